//! The whole product in front of two real engines of unequal speed: the prober measures them, Envoy routes by what it
//! found, and, interleaved, the same load by equal weights.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use harness::llama::{LlamaOptions, LlamaServer, MODEL};
use harness::load::{self, Call, Conversation, Outcome};
use harness::workload::{Figures, Single, SinglesOptions, Talk, TalksOptions, singles, talks};
use harness::{Envoy, EnvoyOptions, ProberProcess, artifacts};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What makes the engines unequal.
    #[arg(long, value_enum, default_value_t = Unequal::Threads)]
    by: Unequal,
    /// Pairs of runs, by measured and by equal weights.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Conversations of a run.
    #[arg(long, default_value_t = 8)]
    conversations: usize,
    /// Turns of each.
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// Single prompts of a run, beside the conversations.
    #[arg(long, default_value_t = 30)]
    singles: usize,
    /// Single prompts per second.
    #[arg(long, default_value_t = 1.0)]
    per_second: f64,
}

/// What makes the engines unequal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Unequal {
    /// Two threads against one. With fewer than three cores they share them while both are busy, and are less unequal
    /// then than when they were measured, one at a time.
    Threads,
    /// One core each, and a model of twice as many layers: unequal at all times.
    Layers,
}

const FAST: &str = "fast";
const SLOW: &str = "slow";
/// Sequences that an engine runs together.
const SLOTS: usize = 8;
/// Tokens that one request may have.
const WINDOW: usize = 4_096;
/// MiB of host memory for the prompts of slots that were given to somebody else.
const CACHE_MIB: usize = 1_024;
/// No request takes so long.
const LONG: Duration = Duration::from_secs(600);
/// Until the engines are measured and Envoy knows it.
const READY: Duration = Duration::from_secs(300);

/// Whose weights a run goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weights {
    Measured,
    Equal,
}

impl Weights {
    const ALL: [Weights; 2] = [Weights::Measured, Weights::Equal];

    fn as_str(self) -> &'static str {
        match self {
            Weights::Measured => "measured",
            Weights::Equal => "equal",
        }
    }
}

/// Everything that runs.
struct Site {
    engines: [LlamaServer; 2],
    prober: ProberProcess,
    envoy: Envoy,
    _dir: tempfile::TempDir,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let mut site = start(options.by).await?;
    site.prober.ready(READY).await?;
    print_status(&site.prober).await?;
    let measured = endpoints(&site.prober).await?;
    for endpoint in &measured {
        println!(
            "{}: {:.0} tok/s at 16 requests, prefill {:.0} tok/s, weight {}, cap {}",
            endpoint["id"].as_str().unwrap_or_default(),
            endpoint["throughput_tps"].as_f64().unwrap_or(0.0),
            endpoint["prefill_tps"].as_f64().unwrap_or(0.0),
            endpoint["weight"],
            endpoint["max_in_flight"],
        );
    }
    let mut runs: Vec<(Weights, Run)> = Vec::new();
    for round in 0..options.rounds {
        let load = Load::new(options, round + 1);
        let mut order = Weights::ALL;
        // Whatever drifts hurts both.
        order.rotate_left((round % 2) as usize);
        for weights in order {
            weigh(&site.prober, weights).await?;
            let run = load.run(&site, weights).await?;
            eprintln!("round {}, {} weights: {:.0} s", round + 1, weights.as_str(), run.elapsed_s);
            runs.push((weights, run));
        }
    }
    site.envoy.idle(Duration::from_secs(30)).await?;
    report(options, &measured, &runs)?;
    // Of those that were killed here, nothing is to be learnt.
    site.envoy.process().check_running()?;
    site.prober.terminate().await?;
    for engine in site.engines {
        engine.stop().await?;
    }
    Ok(())
}

async fn start(by: Unequal) -> Result<Site> {
    let (fast, slow) = match by {
        Unequal::Threads => {
            let enough = std::thread::available_parallelism()?.get() >= 3;
            let cpus = |list: &str| enough.then(|| list.to_owned());
            (engine(FAST, "model.gguf", 2, cpus("0,1")), engine(SLOW, "model.gguf", 1, cpus("2")))
        }
        Unequal::Layers => {
            (engine(FAST, "model.gguf", 1, Some("0".into())), engine(SLOW, "model-deep.gguf", 1, Some("1".into())))
        }
    };
    let engines = [LlamaServer::start(&fast?).await?, LlamaServer::start(&slow?).await?];
    // Both must know the other's address before they start.
    let admin: SocketAddr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let dir = tempfile::TempDir::with_prefix("weighbridge-real-")?;
    let endpoints: Vec<Value> = engines
        .iter()
        .map(|engine| json!({"id": engine.name(), "address": engine.address().to_string(), "launch_args": engine.name()}))
        .collect();
    let config = json!({
        "api": {"listen": "127.0.0.1:0"},
        "xds": {"listen": "127.0.0.1:0"},
        "filter": {"wasm": artifacts::wasm()?},
        "store": {"path": "prober.redb"},
        "envoy_admin": [format!("http://{admin}")],
        "pools": [{
            "name": MODEL, "models": [MODEL, "default"],
            // No endpoint gets more than it has slots for: requests wait where the freed slot finds them.
            "admission": {"base_cap": SLOTS * 3 / 4, "max_wait": "300s"},
            "endpoints": endpoints,
        }],
    });
    let prober = ProberProcess::start(&config.to_string(), dir.path()).await?;
    let envoy = Envoy::start(EnvoyOptions {
        admin,
        prober: Some(prober.api()),
        concurrency: 1,
        ..EnvoyOptions::with_xds(prober.xds())
    })
    .await?;
    Ok(Site { engines, prober, envoy, _dir: dir })
}

fn engine(name: &str, model: &str, threads: usize, cpus: Option<String>) -> Result<LlamaOptions> {
    let model = artifacts::real(model)?;
    Ok(LlamaOptions { name: name.into(), model, slots: SLOTS, window: WINDOW, threads, cpus, cache_mib: CACHE_MIB })
}

/// What an operator sees.
async fn print_status(prober: &ProberProcess) -> Result<()> {
    let mut status = Command::new(artifacts::cli()?);
    status.arg("status").env("WEIGHBRIDGE_URL", format!("http://{}", prober.api())).kill_on_drop(true);
    let status = status.output().await?;
    println!(
        "$ weighbridge status\n{}{}",
        String::from_utf8_lossy(&status.stdout),
        String::from_utf8_lossy(&status.stderr)
    );
    Ok(())
}

async fn endpoints(prober: &ProberProcess) -> Result<Vec<Value>> {
    let mut endpoints = Vec::new();
    for id in [FAST, SLOW] {
        endpoints.push(prober.endpoint(id).await?);
    }
    Ok(endpoints)
}

/// Pins both to 1, or clears the pins; and waits until Envoy knows.
async fn weigh(prober: &ProberProcess, weights: Weights) -> Result<()> {
    for id in [FAST, SLOW] {
        let path = format!("/v1/endpoints/{id}/pin");
        match weights {
            Weights::Equal => prober.put(&path, &json!({"weight": 1.0, "reason": "the comparison"})).await?,
            Weights::Measured if prober.endpoint(id).await?["pin"].is_null() => continue,
            Weights::Measured => prober.delete(&path).await?,
        };
    }
    prober.applied(READY).await
}

/// What is sent in a pair of runs.
struct Load {
    talks: Vec<Talk>,
    singles: Vec<Single>,
}

/// What came of a run.
struct Run {
    outcomes: Vec<Outcome>,
    elapsed_s: f64,
    /// Prompt tokens that the engines found in their caches, and those that they computed, by their own counters.
    cached: f64,
    computed: f64,
    /// CPU seconds of both engines.
    cpu_s: f64,
}

impl Load {
    fn new(options: &Options, seed: u64) -> Self {
        let talks = talks(&TalksOptions {
            conversations: options.conversations,
            turns: options.turns,
            system_tokens: 200,
            first_tokens: (200, 600),
            later_tokens: (40, 160),
            output_tokens: 48.0,
            think_s: 1.0,
            start_within_s: 8.0,
            seed,
            ..TalksOptions::default()
        });
        let singles = singles(&SinglesOptions {
            requests: options.singles,
            per_second: options.per_second,
            prompt_tokens: (50.0, 1_000.0),
            output_tokens: 48.0,
            seed,
        });
        Self { talks, singles }
    }

    async fn run(&self, site: &Site, weights: Weights) -> Result<Run> {
        let (gateway, before) = (site.envoy.gateway(), counters(&site.engines).await?);
        // What one run has left in the caches must not be found by the other.
        let mark = weights.as_str();
        let (begin, mut running) = (Instant::now(), JoinSet::new());
        for talk in self.talks.iter().cloned() {
            running.spawn(async move { talk_through(gateway, talk, begin, mark).await });
        }
        for single in self.singles.iter().cloned() {
            running.spawn(async move {
                sleep_until(begin + Duration::from_secs_f64(single.at_s)).await;
                let call = Call::chat_stream(MODEL, &format!("{mark} {}", single.text), single.output_tokens);
                vec![load::send(gateway, call.timeout(LONG)).await]
            });
        }
        let outcomes: Vec<Outcome> = running.join_all().await.into_iter().flatten().collect();
        let (elapsed_s, after) = (begin.elapsed().as_secs_f64(), counters(&site.engines).await?);
        let [cached, computed, cpu_s] = [0, 1, 2].map(|nth| after[nth] - before[nth]);
        Ok(Run { outcomes, elapsed_s, cached, computed, cpu_s })
    }
}

async fn talk_through(gateway: SocketAddr, talk: Talk, begin: Instant, mark: &str) -> Vec<Outcome> {
    let (mut conversation, mut outcomes) = (Conversation::new(&system(&talk, mark)), Vec::new());
    let mut at = begin + Duration::from_secs_f64(talk.start_s);
    for (nth, turn) in talk.turns.iter().enumerate() {
        sleep_until(at).await;
        let text = if nth == 0 { format!("{mark} {}", turn.text) } else { turn.text.clone() };
        let outcome = load::send(gateway, conversation.ask(MODEL, &text, turn.output_tokens, true).timeout(LONG)).await;
        conversation.hear(&outcome);
        outcomes.push(outcome);
        at = Instant::now() + Duration::from_secs_f64(turn.think_s);
    }
    outcomes
}

fn system(talk: &Talk, mark: &str) -> String {
    if talk.system.is_empty() { String::new() } else { format!("{mark} {}", talk.system) }
}

async fn counters(engines: &[LlamaServer]) -> Result<[f64; 3]> {
    let mut sums = [0.0; 3];
    for engine in engines {
        sums[0] += engine.metric("llamacpp:prompt_tokens_cached_total").await?;
        sums[1] += engine.metric("llamacpp:prompt_tokens_total").await?;
        sums[2] += engine.cpu_seconds()?;
    }
    Ok(sums)
}

fn report(options: &Options, measured: &[Value], runs: &[(Weights, Run)]) -> Result<()> {
    let weight = |at: usize| measured.get(at).and_then(|endpoint| endpoint["weight"].as_f64()).context("a weight");
    let by_weight = weight(0)? / (weight(0)? + weight(1)?);
    println!(
        "\n{} conversations x {} turns and {} single prompts a run, {} runs each, interleaved; seconds of the wall clock. \
         By its weight, `{FAST}` would get {:.0} % of the requests.",
        options.conversations,
        options.turns,
        options.singles,
        options.rounds,
        by_weight * 100.0
    );
    let (mut rows, mut results, mut failed_in_all) = (Vec::new(), Vec::new(), 0);
    for weights in Weights::ALL {
        let of: Vec<&Run> = runs.iter().filter(|(which, _)| *which == weights).map(|(_, run)| run).collect();
        let (ok, failed): (Vec<Outcome>, Vec<Outcome>) =
            of.iter().flat_map(|run| run.outcomes.clone()).partition(Outcome::is_ok);
        for outcome in failed.iter().take(5) {
            let body = String::from_utf8_lossy(&outcome.body);
            eprintln!("failed: {:?} {:?} {body}", outcome.status, outcome.error);
        }
        failed_in_all += failed.len();
        let sum = |value: fn(&Run) -> f64| of.iter().map(|run| value(run)).sum::<f64>();
        let elapsed_s = sum(|run| run.elapsed_s);
        let (cached, computed) = (sum(|run| run.cached), sum(|run| run.computed));
        let hits_by_engines = cached / (cached + computed).max(1.0);
        let figures = Figures::answered(&ok, 1.0, elapsed_s, Outcome::endpoint);
        let tokens: u64 = ok.iter().map(|outcome| outcome.tokens).sum();
        let of_fast = |outcome: &&Outcome| outcome.endpoint() == FAST;
        let fast_tokens: u64 = ok.iter().filter(of_fast).map(|outcome| outcome.tokens).sum();
        let fast_share = figures.shares.get(FAST).copied().unwrap_or(0.0);
        rows.push(vec![
            weights.as_str().to_owned(),
            figures.requests.to_string(),
            failed.len().to_string(),
            format!("{:.0}", fast_share * 100.0),
            format!("{:.0}", fast_tokens as f64 / tokens.max(1) as f64 * 100.0),
            format!("{:.2}", figures.ttft_p50_s),
            format!("{:.2}", figures.ttft_p99_s),
            format!("{:.0}", figures.tpot_p50_ms),
            format!("{:.0}", figures.tpot_p99_ms),
            format!("{:.1}", figures.end_p99_s),
            format!("{:.2}", figures.hit_rate),
            format!("{hits_by_engines:.2}"),
            format!("{elapsed_s:.0}"),
        ]);
        let mut row = serde_json::to_value(&figures)?;
        row["weights"] = json!(weights.as_str());
        row["failed"] = json!(failed.len());
        row["hit_rate_by_engines"] = json!(hits_by_engines);
        row["fast_share_of_tokens"] = json!(fast_tokens as f64 / tokens.max(1) as f64);
        row["fast_share_by_weight"] = json!(by_weight);
        row["engines_cpu_s"] = json!(sum(|run| run.cpu_s));
        row["runs_s"] = json!(of.iter().map(|run| run.elapsed_s).collect::<Vec<_>>());
        results.push(row);
    }
    output::table(&COLUMNS, &rows);
    output::result("real", &results);
    ensure!(failed_in_all == 0, "{failed_in_all} requests failed");
    Ok(())
}

const COLUMNS: [&str; 13] = [
    "weights",
    "requests",
    "failed",
    "fast %",
    "of tokens %",
    "TTFT p50 (s)",
    "p99",
    "TPOT p50 (ms)",
    "p99",
    "end p99 (s)",
    "hits by usage",
    "by metrics",
    "took (s)",
];
