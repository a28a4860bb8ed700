//! A long run: mixed load with mild chaos, memory and latency per five minutes.

use std::time::{Duration, Instant};

use anyhow::Result;
use harness::chaos::{Round, StoreKind, play};
use serde_json::json;

use super::set::quantile_ms;
use super::suite::{print_plan, report, round_json, suite, verdict};
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The prober's store; by default every third seed has Redis.
    #[arg(long, value_enum)]
    store: Option<StoreKind>,
    /// Rows of the table are of so many minutes.
    #[arg(long, default_value_t = 5)]
    every: u64,
}

/// Seconds of a round: of load with its events, and of the look at rest.
const ROUND_S: (u64, u64) = (55, 5);

pub(crate) async fn run(options: &Options) -> Result<()> {
    let rounds = (options.minutes * 60).div_ceil(ROUND_S.0 + ROUND_S.1) as usize;
    let mut suite = suite(options.seed, options.store, rounds, true)?;
    suite.round = Duration::from_secs(ROUND_S.0);
    print_plan(&suite);
    let start = Instant::now();
    let findings = play(suite, |round| eprintln!("{round}")).await?;
    report(&findings, start.elapsed());
    let of = |round: &Round| round.at.as_secs() / (options.every.max(1) * 60);
    let last = findings.rounds.last().map_or(0, of);
    let mut rows = Vec::new();
    for slice in 0..=last {
        let rounds: Vec<&Round> = findings.rounds.iter().filter(|round| of(round) == slice).collect();
        let Some(end) = rounds.last() else { continue };
        let ttft = |share| quantile_ms(rounds.iter().flat_map(|round| &round.ttft).copied(), share);
        let took = |share| quantile_ms(rounds.iter().flat_map(|round| &round.took).copied(), share);
        rows.push(vec![
            format!("{} to {} min", slice * options.every, (slice + 1) * options.every),
            rounds.iter().flat_map(|round| round.ends.values()).sum::<usize>().to_string(),
            format!("{:.0}", ttft(0.5)),
            format!("{:.0}", ttft(0.99)),
            format!("{:.0}", took(0.5)),
            format!("{:.0}", took(0.99)),
            (end.envoy_rss_bytes >> 20).to_string(),
            (end.prober_rss_bytes >> 20).to_string(),
        ]);
    }
    println!();
    output::table(&["", "requests", "TTFT p50 ms", "p99", "end to end p50 ms", "p99", "Envoy MB", "prober MB"], &rows);
    let results: Vec<_> = findings.rounds.iter().map(round_json).collect();
    output::result("soak", &[json!({"rows": rows, "rounds": results})]);
    verdict(&findings)
}
