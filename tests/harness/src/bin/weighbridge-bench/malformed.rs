//! Malformed inputs by the hundred thousand against one running gateway: what they are answered, whether a VM came down, and
//! whether memory grows.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::echo::Echo;
use harness::load::{self, Call};
use harness::malformed::{self, Report};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};
use serde_json::json;

use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many inputs.
    #[arg(long, default_value_t = 100_000)]
    inputs: u64,
    /// Of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many at a time.
    #[arg(long, default_value_t = 32)]
    connections: usize,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let echo = Echo::start().await?;
    let mut fleet = snapshot(vec![pool("m", vec![endpoint("e", echo.addr(1), 1.0)])]);
    fleet.filter.client_headers = vec!["explain".into(), "priority".into(), "max-wait".into()];
    let envoy = Envoy::start(EnvoyOptions::fixed(fleet)).await?;
    let mut report = Report::default();
    let mut memory = vec![(0, envoy.rss_bytes()?)];
    let start = Instant::now();
    for quarter in 0..4 {
        let range = options.inputs * quarter / 4..options.inputs * (quarter + 1) / 4;
        report.merge(malformed::run(envoy.gateway(), options.seed, range, options.connections).await?);
        memory.push(((quarter + 1) * 25, envoy.rss_bytes()?));
    }
    let elapsed = start.elapsed();
    envoy.idle(Duration::from_secs(30)).await?;
    let reloads = envoy.stats().await?.sum("wasm.weighbridge.vm_reload");
    let count = |counts: &mut dyn Iterator<Item = (String, u64)>| -> Vec<Vec<String>> {
        counts.map(|(what, count)| vec![what, count.to_string()]).collect()
    };
    output::table(
        &["kind", "inputs"],
        &count(&mut report.kinds.iter().map(|(kind, count)| ((*kind).to_owned(), *count))),
    );
    output::table(
        &["answer", "times"],
        &count(&mut report.by_status.iter().map(|(status, count)| (status.clone(), *count))),
    );
    let memory_rows: Vec<_> =
        memory.iter().map(|(at, rss)| vec![format!("{at} %"), format!("{:.1}", *rss as f64 / 1e6)]).collect();
    output::table(&["inputs sent", "Envoy's memory, MB"], &memory_rows);
    println!(
        "{} inputs in {:.0} s: {reloads} VM restarts, {} errors of 500 and above that are not ours, {} without an end, nothing in flight",
        options.inputs,
        elapsed.as_secs_f64(),
        report.foreign.len(),
        report.stuck.len()
    );
    output::result(
        "malformed",
        &[json!({
            "inputs": options.inputs, "seed": options.seed, "seconds": elapsed.as_secs_f64(), "vm_reloads": reloads, "by_status": report.by_status,
            "foreign": report.foreign, "stuck": report.stuck, "rss_bytes": memory,
        })],
    );
    ensure!(
        load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await.is_ok(),
        "the gateway does not serve any more"
    );
    ensure!(reloads == 0 && report.foreign.is_empty() && report.stuck.is_empty(), "not all is well");
    Ok(())
}
