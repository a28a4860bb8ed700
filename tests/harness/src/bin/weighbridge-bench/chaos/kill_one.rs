//! One of four endpoints is killed (`kill -9`) under streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::chaos::{End, Ledger, Line, Traffic, TrafficOptions};
use serde_json::json;
use tokio::time::sleep;

use super::set::{ENGINES, POOL, even, logged, quantile_ms, stage, unix_ms};
use crate::output;

/// An ejected endpoint is tried by one request at a time, for the first time 5 s after it was ejected; the request is sent on.
const FIRST_TRIAL_MS: u64 = 4_900;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Streams at once.
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Seconds before and after the kill.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// How often.
    #[arg(long, default_value_t = 3)]
    runs: u64,
}

pub(super) async fn run(options: &Options) -> Result<()> {
    let (mut rows, mut results, mut bad) = (Vec::new(), Vec::new(), 0);
    for nth in 0..options.runs {
        let mut stage = stage(even(50.0)).await?;
        let ledger = Arc::new(Ledger::default());
        let (patience, seed) = (Duration::from_secs(30), nth);
        let load = TrafficOptions { clients: options.streams, tokens: (20, 80), patience, streams_only: true, seed };
        let traffic = Traffic::start(stage.gateway, &[POOL], load, Arc::clone(&ledger));
        sleep(Duration::from_secs(options.seconds)).await;
        let victim = ENGINES[nth as usize % ENGINES.len()];
        let (killed, killed_ms) = (Instant::now(), unix_ms());
        stage.engine(victim)?.process.kill().await?;
        sleep(Duration::from_secs(options.seconds)).await;
        traffic.end().await;
        let lines = ledger.take();
        let log = logged(&stage, &lines).await?;
        let failed: Vec<&Line> = lines.iter().filter(|line| !line.is_good()).collect();
        let after_headers = failed.iter().filter(|line| line.end == End::Broken && line.endpoint == victim).count();
        for line in failed.iter().filter(|line| line.end != End::Broken || line.endpoint != victim) {
            println!("lost: {line:?} {:?}", log.get(&line.id));
        }
        bad += failed.len() - after_headers;
        let mut to_victim: Vec<_> =
            log.values().filter(|one| one.picked == victim && one.sent_ms() > killed_ms).collect();
        to_victim.sort_by_key(|one| one.sent_ms());
        let after: Vec<u64> = to_victim.iter().map(|one| one.sent_ms() - killed_ms).collect();
        let (routed, trials): (Vec<u64>, Vec<u64>) = after.into_iter().partition(|ms| *ms < FIRST_TRIAL_MS);
        let trials = trials.len();
        let last = routed.last().copied();
        let ttft = |after: bool| {
            let others = lines.iter().filter(move |line| {
                line.end == End::Served && line.endpoint != victim && (line.begun >= killed) == after
            });
            others.filter_map(|line| line.ttft)
        };
        let (before, after) = (quantile_ms(ttft(false), 0.99), quantile_ms(ttft(true), 0.99));
        let streams_there = failed.len();
        rows.push(vec![
            victim.to_owned(),
            lines.len().to_string(),
            after_headers.to_string(),
            (streams_there - after_headers).to_string(),
            routed.len().to_string(),
            last.map_or("-".to_owned(), |ms| format!("{:.3}", ms as f64 / 1e3)),
            trials.to_string(),
            format!("{before:.0}"),
            format!("{after:.0}"),
        ]);
        results.push(json!({
            "victim": victim, "requests": lines.len(), "failed_after_headers": after_headers,
            "failed_otherwise": streams_there - after_headers, "routed_there_after": routed.len(),
            "last_routed_there_ms": last, "trials": trials, "ttft_p99_before_ms": before, "ttft_p99_after_ms": after,
        }));
    }
    println!("One of four endpoints killed under {} streams; times in seconds, TTFT in ms.", options.streams);
    let columns = [
        "killed",
        "requests",
        "cut after headers",
        "failed otherwise",
        "routed there after",
        "last after s",
        "trials",
        "TTFT p99 before",
        "after",
    ];
    output::table(&columns, &rows);
    output::result("chaos kill-one", &results);
    ensure!(bad == 0, "{bad} requests failed before their response headers");
    Ok(())
}
