//! Every endpoint is drained by the API, stopped, started and taken back, one after another, under load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::chaos::act;
use harness::chaos::plan::Event;
use harness::chaos::{Kind, Ledger, Line, Traffic, TrafficOptions};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use tokio::time::sleep;

use super::set::{ENGINES, POOL, even, quantile_ms, stage};
use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Clients.
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Times through the whole fleet.
    #[arg(long, default_value_t = 2)]
    times: usize,
}

pub(super) async fn run(options: &Options) -> Result<()> {
    let mut stage = stage(even(100.0)).await?;
    let ledger = Arc::new(Ledger::default());
    let load = TrafficOptions {
        clients: options.clients,
        tokens: (20, 200),
        patience: Duration::from_secs(60),
        streams_only: false,
        seed: 1,
    };
    let mut traffic = Traffic::start(stage.gateway, &[POOL], load, Arc::clone(&ledger));
    let mut rng = StdRng::seed_from_u64(1);
    let mut rows = Vec::new();
    sleep(Duration::from_secs(3)).await;
    for name in ENGINES.iter().cycle().take(ENGINES.len() * options.times) {
        let event = Event::EngineRestartsDrained((*name).to_owned());
        let start = Instant::now();
        act::begin(&mut stage, &mut traffic, &event, &mut rng).await?;
        let stopped = start.elapsed();
        sleep(Duration::from_secs(1)).await;
        act::end(&mut stage, &event).await?;
        let back = Instant::now();
        stage.all_ready().await?;
        rows.push(vec![
            (*name).to_owned(),
            format!("{:.2}", stopped.as_secs_f64()),
            format!("{:.2}", back.elapsed().as_secs_f64()),
        ]);
        sleep(Duration::from_secs(1)).await;
    }
    traffic.end().await;
    let lines = ledger.take();
    let failed: Vec<&Line> = lines.iter().filter(|line| !line.is_good()).collect();
    for line in failed.iter().take(10) {
        println!("failed: {line:?}");
    }
    println!(
        "Rolling restart of {} endpoints, {} times, under {} clients.",
        ENGINES.len(),
        options.times,
        options.clients
    );
    output::table(&["endpoint", "drained and stopped after s", "ready after its start s"], &rows);
    let served = || lines.iter().filter(|line| line.is_good() && line.kind != Kind::Whole).filter_map(|line| line.ttft);
    let (p50, p99) = (quantile_ms(served(), 0.5), quantile_ms(served(), 0.99));
    println!(
        "{} of {} requests failed; TTFT of the streams p50 {p50:.0} ms, p99 {p99:.0} ms",
        failed.len(),
        lines.len()
    );
    output::result(
        "chaos rolling",
        &[json!({"requests": lines.len(), "failed": failed.len(), "ttft_p50_ms": p50, "ttft_p99_ms": p99})],
    );
    ensure!(failed.is_empty(), "{} requests failed", failed.len());
    Ok(())
}
