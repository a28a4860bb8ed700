//! How long a change of the prober's takes until Envoy has it, by size of the pool: a pin is set, and the clock stops when
//! Envoy has acknowledged the snapshot with it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::fault::ReservedPort;
use harness::snapshot::{pool, snapshot};
use harness::{Envoy, EnvoyOptions, ProberProcess, artifacts};
use serde_json::{Value, json};

use crate::output;

const DEADLINE: Duration = Duration::from_secs(60);
/// How often the prober is asked who has what.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Endpoints of the pool. They are only named: nobody listens there.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000")]
    endpoints: Vec<usize>,
    /// Changes.
    #[arg(long, default_value_t = 50)]
    changes: u32,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for &endpoints in &options.endpoints {
        let pushed = one(endpoints, options.changes).await?;
        rows.push(vec![
            format!("{endpoints} endpoints"),
            format!("{:.1}", pushed.snapshot_bytes as f64 / 1024.0),
            format!("{:.1} / {:.1}", pushed.took_ms.0, pushed.took_ms.1),
            format!("{:.1}", pushed.envoy_cpu_ms),
        ]);
        results.push(json!({"endpoints": endpoints, "snapshot_bytes": pushed.snapshot_bytes,
            "p50_ms": pushed.took_ms.0, "max_ms": pushed.took_ms.1, "envoy_cpu_ms": pushed.envoy_cpu_ms}));
    }
    output::table(&["pool", "snapshot, KiB", "until Envoy has it, p50 / max, ms", "CPU of Envoy, ms"], &rows);
    output::result("push", &results);
    Ok(())
}

struct Pushed {
    snapshot_bytes: usize,
    took_ms: (f64, f64),
    /// Per change.
    envoy_cpu_ms: f64,
}

async fn one(endpoints: usize, changes: u32) -> Result<Pushed> {
    // Nobody listens on port 1 of all of 127.0.0.0/8; the health checks fail at once, and cost next to nothing every hour.
    let address = |nth: usize| SocketAddr::from(([127, 1, (nth / 250) as u8, (nth % 250) as u8 + 1], 1));
    let listed: Vec<Value> =
        (0..endpoints).map(|nth| json!({"id": format!("e{nth}"), "address": address(nth)})).collect();
    let config = json!({
        "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "filter": {"wasm": artifacts::wasm()?},
        "health": {"interval": "1h", "timeout": "1s"}, "signals": {"interval": "10s"},
        "pools": [{"name": "m", "models": ["m"], "endpoints": listed}],
    });
    let dir = tempfile::TempDir::with_prefix("weighbridge-push-")?;
    let prober = ProberProcess::start(&config.to_string(), dir.path()).await?;
    let admin = ReservedPort::any()?;
    let options = EnvoyOptions {
        concurrency: 2,
        admin: admin.address(),
        snapshot: Some(snapshot(vec![pool("m", Vec::new())])),
        prober: Some(prober.api()),
        ..EnvoyOptions::with_xds(prober.xds())
    };
    let mut envoy = Envoy::start(options).await?;
    has_it(&prober).await?;
    let snapshot_bytes = prober.get("/v1/snapshot").await?.to_string().len();
    let (before, mut took_ms) = (envoy.cpu_seconds()?, Vec::new());
    for change in 0..changes {
        let begun = Instant::now();
        prober.put("/v1/endpoints/e0/pin", &json!({"weight": 1.0 + f64::from(change + 1) / 100.0})).await?;
        has_it(&prober).await?;
        took_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let envoy_cpu_ms = (envoy.cpu_seconds()? - before) * 1e3 / f64::from(changes);
    envoy.process().terminate(DEADLINE).await?;
    prober.terminate().await?;
    took_ms.sort_by(f64::total_cmp);
    let at = |share: f64| took_ms.get(((took_ms.len() - 1) as f64 * share) as usize).copied().context("no change");
    Ok(Pushed { snapshot_bytes, took_ms: (at(0.5)?, at(1.0)?), envoy_cpu_ms })
}

/// Waits until Envoy has acknowledged what the prober says now.
async fn has_it(prober: &ProberProcess) -> Result<()> {
    let begun = Instant::now();
    loop {
        let answer = prober.get("/v1/envoys").await?;
        let all = answer["envoys"].as_array().context("no list")?;
        let connected: Vec<_> = all.iter().filter(|envoy| envoy["connected"] == true).collect();
        if !connected.is_empty() && connected.iter().all(|envoy| envoy["applied_version"] == answer["version"]) {
            return Ok(());
        }
        ensure!(begun.elapsed() < DEADLINE, "not within {DEADLINE:?}: {answer}");
        tokio::time::sleep(PAUSE).await;
    }
}
