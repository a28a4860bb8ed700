//! Weighbridge as it is shipped: the filter in Envoy, and a prober that has measured the engines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Front, Part, Running, Setup, WORKERS};
use crate::fault::ReservedPort;
use crate::snapshot::{pool, snapshot};
use crate::wire::By;
use crate::workload::MODEL;
use crate::{Envoy, EnvoyOptions, ProberProcess, artifacts};

/// What a pool of ours has that may differ from the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    /// `policy.by`
    pub by: By,
    /// `affinity.k`
    pub k: u32,
}

/// How long measuring four engines may take: two bursts of 2,048 tokens each, and a long prompt.
const MEASURE_DEADLINE: Duration = Duration::from_secs(300);
const STORE: &str = "prober.redb";

/// What the prober has measured: its store, and what it says of it.
#[derive(Debug)]
pub struct Measured {
    dir: TempDir,
    /// Each endpoint as `GET /v1/endpoints` has it.
    pub endpoints: Value,
}

impl Measured {
    /// Lets the prober measure these engines.
    ///
    /// # Errors
    /// When it does not come to an end.
    pub async fn measure(setup: &Setup) -> Result<Self> {
        let dir = TempDir::with_prefix("weighbridge-measured-")?;
        // With its sweep, which a pool that compares by weight does not miss.
        let (mut envoy, prober, _admin) = both(setup, Settings { by: By::Curve, k: 1 }, dir.path()).await?;
        let endpoints = prober.get("/v1/endpoints").await?["endpoints"].take();
        envoy.process().terminate(super::STOP_DEADLINE).await?;
        prober.terminate().await?;
        Ok(Self { dir, endpoints })
    }

    /// The store's file.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.dir.path().join(STORE)
    }
}

pub(super) async fn start(setup: &Setup, settings: Settings) -> Result<Running> {
    let dir = TempDir::with_prefix("weighbridge-ours-")?;
    if let Some(store) = &setup.measured {
        // A copy: what one run teaches is not known to the next.
        std::fs::copy(store, dir.path().join(STORE)).with_context(|| format!("{}", store.display()))?;
    }
    let (envoy, prober, admin) = both(setup, settings, dir.path()).await?;
    let front = Front::one(envoy.gateway());
    let parts = vec![("envoy", Part::Envoy(Box::new(envoy))), ("prober", Part::Prober(Box::new(prober)))];
    Ok(Running { front, parts, _dir: dir, _ports: vec![admin] })
}

/// Envoy and the prober, when all endpoints are measured and Envoy knows it.
async fn both(setup: &Setup, settings: Settings, dir: &Path) -> Result<(Envoy, ProberProcess, ReservedPort)> {
    let Settings { by, k } = settings;
    let admin = ReservedPort::any()?;
    let endpoints: Vec<Value> = setup
        .engines
        .iter()
        .map(|(name, address, _)| json!({"id": name, "address": address.to_string(), "node": name}))
        .collect();
    let mut pool_config = json!({
        "name": MODEL, "models": [MODEL], "served_model": MODEL, "endpoints": endpoints,
        "policy": {"by": by}, "affinity": {"k": k},
    });
    for (field, value) in setup.pool.as_object().into_iter().flatten() {
        match (pool_config[field].as_object_mut(), value.as_object()) {
            (Some(section), Some(given)) => section.extend(given.clone()),
            _ => pool_config[field] = value.clone(),
        }
    }
    let config = json!({
        "api": {"listen": "127.0.0.1:0"},
        "xds": {"listen": "127.0.0.1:0"},
        "filter": {"wasm": artifacts::wasm()?},
        "store": {"path": STORE},
        "envoy_admin": [format!("http://{}", admin.address())],
        "pools": [pool_config],
    });
    let prober = ProberProcess::start(&config.to_string(), dir).await?;
    let envoy = Envoy::start(EnvoyOptions {
        concurrency: WORKERS,
        admin: admin.address(),
        snapshot: Some(snapshot(vec![pool(MODEL, Vec::new())])),
        prober: Some(prober.api()),
        ..EnvoyOptions::with_xds(prober.xds())
    })
    .await?;
    prober.ready(MEASURE_DEADLINE).await?;
    prober.applied(super::START_DEADLINE).await?;
    Ok((envoy, prober, admin))
}
