//! The seeded suite, with a table of what happened and whether what must be true was true.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::chaos::suite::store_of;
use harness::chaos::{End, Findings, Member, Round, StageOptions, StoreKind, SuiteOptions, TrafficOptions, play};
use serde_json::json;

use super::set::{even, member};
use crate::output;

/// Seconds of a round: of load with its events, and of the look at rest.
const ROUND_S: (u64, u64) = (15, 5);

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Options {
    /// Of everything random: the plan is a function of it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// About how long.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The prober's store; by default every third seed has Redis.
    #[arg(long, value_enum)]
    store: Option<StoreKind>,
    /// Only prints the plan.
    #[arg(long)]
    plan: bool,
}

pub(super) async fn run(options: &Options) -> Result<()> {
    let rounds = (options.minutes * 60).div_ceil(ROUND_S.0 + ROUND_S.1) as usize;
    let suite = suite(options.seed, options.store, rounds, false)?;
    print_plan(&suite);
    if options.plan {
        return Ok(());
    }
    let start = Instant::now();
    let findings = play(suite, |round| eprintln!("{round}")).await?;
    report(&findings, start.elapsed());
    let results: Vec<_> = findings.rounds.iter().map(round_json).collect();
    output::result("chaos", &results);
    verdict(&findings)
}

/// Six engines in two pools, one of each behind a wire that can fail, and a newcomer.
pub(super) fn suite(seed: u64, store: Option<StoreKind>, rounds: usize, mild: bool) -> Result<SuiteOptions> {
    let mut members: Vec<Member> = Vec::new();
    for pool in ["alpha", "beta"] {
        for nth in 1..=3 {
            let name = format!("{pool}-{nth}");
            members.push(Member { wired: nth == 3, ..member(&name, pool, even(100.0), Some(8)) });
        }
    }
    members.push(Member { spare: true, ..member("alpha-new", "alpha", even(100.0), None) });
    Ok(SuiteOptions {
        stage: StageOptions {
            engine_program: std::env::current_exe()?,
            members,
            store: store.unwrap_or(store_of(seed)),
            workers: 2,
            panics: true,
            prober: json!({"health": {"interval": "500ms", "timeout": "500ms"}}),
            pool: json!({"admission": {"queue": 200, "max_wait": "10s"}}),
            log_failures_only: true,
        },
        traffic: TrafficOptions {
            clients: 10,
            tokens: (5, 60),
            patience: Duration::from_secs(15),
            streams_only: false,
            seed,
        },
        seed,
        rounds,
        round: Duration::from_secs(ROUND_S.0),
        mild,
    })
}

pub(super) fn print_plan(suite: &SuiteOptions) {
    println!(
        "Plan of seed {}, {:?} as the store, {} rounds of {:?}:",
        suite.seed, suite.stage.store, suite.rounds, suite.round
    );
    for (nth, steps) in suite.plan().iter().enumerate() {
        let steps: Vec<_> = steps
            .iter()
            .map(|step| {
                format!(
                    "{} ({:.1} s to {:.1} s)",
                    step.event,
                    step.at.as_secs_f64(),
                    (step.at + step.lasts).as_secs_f64()
                )
            })
            .collect();
        println!("{:3}  {}", nth + 1, steps.join("; "));
    }
}

/// The table of rounds, and the invariants.
pub(super) fn report(findings: &Findings, elapsed: Duration) {
    let mb = |bytes: u64| (bytes >> 20).to_string();
    let count = |round: &Round, end: End| round.ends.get(&end).copied().unwrap_or(0);
    let rows: Vec<Vec<String>> = findings
        .rounds
        .iter()
        .map(|round| {
            let failed: usize =
                round.ends.iter().filter(|(end, _)| !matches!(end, End::Served | End::Left)).map(|(_, n)| n).sum();
            vec![
                round.events.join(" + "),
                count(round, End::Served).to_string(),
                count(round, End::Left).to_string(),
                failed.to_string(),
                round.excused.to_string(),
                round.waiting.to_string(),
                format!("{:.2}", round.fullest),
                mb(round.envoy_rss_bytes),
                mb(round.prober_rss_bytes),
            ]
        })
        .collect();
    let columns =
        ["round", "served", "left", "failed", "excused", "deepest queue", "peak / cap", "Envoy MB", "prober MB"];
    output::table(&columns, &rows);
    let ends = findings.ends();
    println!("\n{:.0} s, {} requests: {ends:?}", elapsed.as_secs_f64(), ends.values().sum::<usize>());
    println!("{} panics injected", findings.panics);
    let violations = findings.violations.len() + findings.more_violations;
    println!("violations of invariants: {violations}");
    for violation in &findings.violations {
        println!("  {violation}");
    }
}

pub(super) fn round_json(round: &Round) -> serde_json::Value {
    let ends: serde_json::Map<_, _> = round.ends.iter().map(|(end, n)| (format!("{end:?}"), json!(n))).collect();
    json!({"at_s": round.at.as_secs(), "events": round.events, "ends": ends, "excused": round.excused, 
        "waiting": round.waiting, "fullest": round.fullest, "envoy_rss": round.envoy_rss_bytes,
        "prober_rss": round.prober_rss_bytes})
}

pub(super) fn verdict(findings: &Findings) -> Result<()> {
    let violations = findings.violations.len() + findings.more_violations;
    ensure!(violations == 0, "{violations} violations");
    Ok(())
}
