//! Envoy's memory while prompts come that never come again.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::echo::Echo;
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};
use serde_json::{Value, json};

use crate::output;
use crate::pair::{MODEL, without_access_log};

/// Ten steps are reported.
const STEPS: usize = 10;
const WARM_UP: usize = 2_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Distinct prompts.
    #[arg(long, default_value_t = 1_000_000)]
    prompts: usize,
    /// Stops after so many minutes.
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    /// Keep-alive connections.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Worker threads of Envoy.
    #[arg(long, default_value_t = 2)]
    concurrency: u32,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let echo = Echo::start().await?;
    let endpoints = (1..=4).map(|nth| endpoint(&format!("e{nth}"), echo.addr(nth), 1.0)).collect();
    let fleet = snapshot(vec![pool(MODEL, endpoints)]);
    let envoy = Envoy::start(EnvoyOptions {
        concurrency: options.concurrency,
        edit: Some(Box::new(without_access_log)),
        ..EnvoyOptions::fixed(fleet)
    })
    .await?;
    let send = async |from: usize, count: usize| {
        let report =
            load::closed_loop(envoy.gateway(), options.connections, count, move |nth| prompt(from + nth)).await;
        ensure!(report.ok() == count, "not every request was answered: {:?}", report.by_status());
        Ok(())
    };
    // Connections, buffers and code are there before the start is noted. These prompts do not come again either.
    send(usize::MAX / 2, WARM_UP).await?;
    let (start, limit) = (Instant::now(), Duration::from_secs_f64(options.minutes * 60.0));
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    let mut note = |sent: usize| -> Result<()> {
        let (rss, seconds) = (envoy.rss_bytes()?, start.elapsed().as_secs_f64());
        rows.push(vec![sent.to_string(), format!("{:.1}", rss as f64 / f64::from(1 << 20)), format!("{seconds:.0}")]);
        results.push(json!({"prompts": sent, "rss_bytes": rss, "seconds": seconds}));
        Ok(())
    };
    note(0)?;
    let mut sent = 0;
    for _ in 0..STEPS {
        if start.elapsed() > limit {
            break;
        }
        send(sent, options.prompts / STEPS).await?;
        sent += options.prompts / STEPS;
        note(sent)?;
    }
    let stats = envoy.stats().await?;
    let lookups =
        |result: &str| stats.get(&format!("wasmcustom.weighbridge_prefix_lookups.pool.{MODEL}.result.{result}"));
    println!(
        "Resident memory of Envoy over distinct prompts of five messages ({} misses, {} hits)",
        lookups("miss"),
        lookups("hit")
    );
    output::table(&["prompts", "RSS (MB)", "seconds"], &rows);
    output::result("index", &results);
    Ok(())
}

/// Five messages that nobody else sends: each adds checkpoints.
fn prompt(seed: usize) -> Call {
    let said = |nth: usize| {
        let role = if nth.is_multiple_of(2) { "user" } else { "assistant" };
        let text = format!("Lorry {seed}, axle {nth}: the scale says {}. ", seed.wrapping_mul(7_919 + nth));
        // Long enough for a checkpoint at each message's end.
        json!({"role": role, "content": text.repeat(10)})
    };
    let messages: Vec<Value> = (0..5).map(said).collect();
    Call::post("/v1/chat/completions", json!({"model": MODEL, "messages": messages, "max_tokens": 16}).to_string())
}
