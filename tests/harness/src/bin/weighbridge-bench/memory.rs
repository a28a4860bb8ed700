//! Envoy's memory while bodies wait and while they are in flight, beside the bound that `docs/limits.md` gives.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::load::{self, Call};
use harness::raw::{Behaviour, Recorder};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually, wire};
use serde_json::json;
use tokio::task::JoinSet;

use crate::output;

const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of Envoy's memory per byte of a body that waits, and of one in flight: `docs/limits.md`.
const WAITING: f64 = 1.0;
const IN_FLIGHT: f64 = 2.0;
/// And per request, whatever its body: connections, buffers' last blocks, records.
const EACH_BYTES: f64 = 64_000.0;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Requests at a time.
    #[arg(long, default_value_t = 64)]
    requests: u32,
    /// Sizes of bodies in KB.
    #[arg(long, value_delimiter = ',', default_value = "64,1024,4096")]
    kilobytes: Vec<usize>,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let (mut rows, mut results, mut over) = (Vec::new(), Vec::new(), Vec::new());
    for kilobytes in &options.kilobytes {
        for (what, cap, behaviour, factor) in [
            ("wait", 1, Behaviour::Hold, WAITING),
            ("in flight, read by the engine", options.requests + 1, Behaviour::Hold, IN_FLIGHT),
            ("in flight, not read by it", options.requests + 1, Behaviour::Deaf, IN_FLIGHT),
        ] {
            let body = kilobytes << 10;
            let grown = one(options.requests, body, cap, behaviour).await?;
            let bound = f64::from(options.requests) * (factor * body as f64 + EACH_BYTES);
            rows.push(vec![
                format!("{kilobytes} KB, {what}"),
                format!("{:.1}", grown as f64 / 1e6),
                format!("{:.2}", grown as f64 / f64::from(options.requests) / body as f64),
                format!("{:.1}", bound / 1e6),
            ]);
            results.push(json!({"body_bytes": body, "what": what, "requests": options.requests, "rss_bytes": grown, "bound_bytes": bound}));
            if grown as f64 > bound {
                over.push(format!("{kilobytes} KB, {what}"));
            }
        }
    }
    println!("{} requests each; memory above that of the idle Envoy", options.requests);
    output::table(&["bodies", "MB", "per byte of body", "bound, MB"], &rows);
    output::result("memory", &results);
    ensure!(over.is_empty(), "above the bound: {over:?}");
    Ok(())
}

/// How much an Envoy grows by so many bodies.
async fn one(requests: u32, body: usize, cap: u32, behaviour: Behaviour) -> Result<u64> {
    let engine = Recorder::start(behaviour).await?;
    let mut pool = pool("m", vec![endpoint("e", engine.addr(), 1.0)]);
    pool.admission = wire::Admission {
        base_cap: cap,
        queue: 4096,
        queue_bytes: 1 << 34,
        max_wait_ms: 600_000,
        prefill_budget_tokens: 0,
        ..wire::Admission::default()
    };
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await?;
    // One small request first: what is made once is no part of it.
    let call = |size: usize| Call::chat("m", &"a ".repeat(size / 2), 4).timeout(Duration::from_secs(600));
    let mut sending = JoinSet::new();
    sending.spawn(load::send(envoy.gateway(), call(16)));
    let there = async |in_flight: u64, waiting: u64| {
        eventually("the bodies are there", DEADLINE, async || {
            let stats = envoy.stats().await?;
            let found = (stats.in_flight("m", "e"), stats.get("wasmcustom.weighbridge_queue_depth.pool.m"));
            ensure!(found == (in_flight, waiting), "{found:?}");
            Ok(())
        })
        .await
    };
    there(1, 0).await?;
    let before = envoy.rss_bytes()?;
    for _ in 0..requests {
        sending.spawn(load::send(envoy.gateway(), call(body)));
    }
    let requests = u64::from(requests);
    if cap == 1 {
        there(1, requests).await?;
    } else {
        there(requests + 1, 0).await?;
    }
    Ok(envoy.rss_bytes()?.saturating_sub(before))
}
