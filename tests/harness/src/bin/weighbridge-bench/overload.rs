//! Three times as many requests as the fleet can serve: with admission, those that are let in are served as on a quiet day, and
//! the rest is told so; without, everybody suffers.
//!
//! "Can serve" is what the engines give together with every slot taken. "Uncontended" is half of that: every request finds a
//! slot at once, and engines still work on several at a time.

use std::time::Duration;

use anyhow::{Context, Result};
use harness::load::{self, Call, Outcome};
use harness::wire;
use harness::workload::{Fleet, MODEL, Policy, SinglesOptions, singles};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Length of each run, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Requests per second, as a multiple of what the fleet can serve.
    #[arg(long, default_value_t = 3.0)]
    overload: f64,
    /// In-flight requests per unit of weight.
    #[arg(long, default_value_t = 6)]
    base_cap: u32,
    /// Requests that may wait.
    #[arg(long, default_value_t = 64)]
    queue: u32,
    /// How long they may, in ms.
    #[arg(long, default_value_t = 10_000)]
    max_wait_ms: u32,
    /// Mean length of an answer, in tokens.
    #[arg(long, default_value_t = 128.0)]
    output_tokens: f64,
    /// How much faster than the wall clock the engines' time runs.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
}

/// What came of one run.
struct Run {
    sent: usize,
    served: usize,
    shed: usize,
    tpot_p50_ms: f64,
    tpot_p99_ms: f64,
    ttft_p99_s: f64,
    tokens_per_s: f64,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let admission = wire::Admission {
        base_cap: options.base_cap,
        queue: options.queue,
        max_wait_ms: options.max_wait_ms,
        ..wire::Admission::default()
    };
    let off = wire::Admission { base_cap: 1_000_000, ..admission.clone() };
    let mut rows = Vec::new();
    let mut results = Vec::new();
    let mut uncontended = None;
    for (name, admission, share) in [
        ("half of what it can, admission on", &admission, 0.5),
        ("overload, admission on", &admission, options.overload),
        ("overload, admission off", &off, options.overload),
    ] {
        let run = one(options, admission, share).await?;
        let quiet = *uncontended.get_or_insert(run.tpot_p99_ms);
        let ratio = run.tpot_p99_ms / quiet;
        let shed = run.shed as f64 / run.sent.max(1) as f64;
        rows.push(vec![
            name.to_owned(),
            run.sent.to_string(),
            run.served.to_string(),
            format!("{:.0} %", shed * 100.0),
            format!("{:.1}", run.tpot_p50_ms),
            format!("{:.1}", run.tpot_p99_ms),
            format!("{ratio:.2}"),
            format!("{:.2}", run.ttft_p99_s),
            format!("{:.0}", run.tokens_per_s),
        ]);
        results.push(json!({
            "what": name, "sent": run.sent, "served": run.served, "shed": shed, "tpot_p50_ms": run.tpot_p50_ms,
            "tpot_p99_ms": run.tpot_p99_ms, "ratio": ratio, "ttft_p99_s": run.ttft_p99_s, "tokens_per_s": run.tokens_per_s,
        }));
    }
    println!(
        "{} s each, answers of {} tokens on average, {} slots per unit of weight, {} may wait {} ms.",
        options.seconds, options.output_tokens, options.base_cap, options.queue, options.max_wait_ms
    );
    let columns = ["", "sent", "served", "shed", "TPOT p50 ms", "TPOT p99 ms", "p99 ratio", "TTFT p99 s", "tokens/s"];
    output::table(&columns, &rows);
    output::result("overload", &results);
    Ok(())
}

/// Tokens per second of the whole fleet with every slot taken.
fn capacity_tps(fleet: &Fleet, base_cap: u32) -> Result<f64> {
    let mut total = 0.0;
    for (engine, weight) in fleet.engines.iter().zip(fleet.weights()) {
        let profile = harness::workload::profile(engine.name()).context("an engine without a profile")?;
        let cap = (f64::from(base_cap) * weight).round().max(1.0);
        total += profile.validate()?.total_tps(cap as usize);
    }
    Ok(total)
}

async fn one(options: &Options, admission: &wire::Admission, share: f64) -> Result<Run> {
    let fleet = Fleet::start_with(Policy::NoAffinity, options.scale, |pool| pool.admission = admission.clone()).await?;
    let target = fleet.envoy().context("no gateway")?.gateway();
    let per_second = capacity_tps(&fleet, options.base_cap)? / options.output_tokens * share;
    let plan = singles(&SinglesOptions {
        requests: (per_second * options.seconds as f64) as usize,
        per_second,
        prompt_tokens: (50.0, 400.0),
        output_tokens: options.output_tokens,
        seed: 1,
    });
    let begin = Instant::now();
    let mut running = JoinSet::new();
    for single in plan {
        let at = begin + Duration::from_secs_f64(single.at_s / options.scale);
        running.spawn(async move {
            sleep_until(at).await;
            let call = Call::chat_stream(MODEL, &single.text, single.output_tokens).timeout(Duration::from_secs(600));
            load::send(target, call).await
        });
    }
    let outcomes = running.join_all().await;
    let elapsed_s = begin.elapsed().as_secs_f64() * options.scale;
    Ok(figures(&outcomes, options.scale, elapsed_s))
}

fn figures(outcomes: &[Outcome], scale: f64, elapsed_s: f64) -> Run {
    let served: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.is_ok()).collect();
    let tpot = served.iter().filter(|outcome| outcome.tokens >= 8).filter_map(|outcome| {
        let after_first = outcome.duration.checked_sub(outcome.ttft?)?.as_secs_f64() * scale;
        Some(after_first / (outcome.tokens - 1) as f64 * 1_000.0)
    });
    let tpot = sorted(tpot);
    let ttft = sorted(served.iter().filter_map(|outcome| Some(outcome.ttft?.as_secs_f64() * scale)));
    Run {
        sent: outcomes.len(),
        served: served.len(),
        shed: outcomes.iter().filter(|outcome| outcome.status == Some(429)).count(),
        tpot_p50_ms: quantile(&tpot, 0.50),
        tpot_p99_ms: quantile(&tpot, 0.99),
        ttft_p99_s: quantile(&ttft, 0.99),
        tokens_per_s: served.iter().map(|outcome| outcome.tokens as f64).sum::<f64>() / elapsed_s,
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
