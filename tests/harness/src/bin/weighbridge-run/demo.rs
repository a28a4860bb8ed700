//! The demo fleet: three simulated engines of unequal speed that serve one model.

use std::net::SocketAddr;

use anyhow::Result;
use harness::artifacts;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use serde_json::{Value, json};

/// The model that clients ask for.
pub(crate) const MODEL: &str = "demo";
/// The endpoint that the hints pin.
pub(crate) const SLOWEST: &str = "old-card";

/// Running engines; dropped, they stop.
pub(crate) struct Demo {
    engines: Vec<EngineHandle>,
}

impl Demo {
    pub(crate) async fn start() -> Result<Self> {
        let old_card = Profile::new("old card", &[(1, 40.0), (8, 190.0), (16, 240.0), (32, 250.0)]);
        let machines = [("fast-card", Profile::fast()), ("pair", Profile::pair()), (SLOWEST, old_card)];
        let mut engines = Vec::new();
        for (name, profile) in machines {
            let config = EngineConfig { profile, model: MODEL.into(), name: name.into(), ..EngineConfig::default() };
            engines.push(EngineHandle::start(config).await?);
        }
        Ok(Self { engines })
    }

    /// The configuration of the prober. An Envoy whose port is not known yet (0) cannot be asked by it.
    pub(crate) fn prober_config(&self, api: SocketAddr, xds: SocketAddr, envoy_admin: SocketAddr) -> Result<Value> {
        let envoy_admin = (envoy_admin.port() != 0).then(|| format!("http://{envoy_admin}"));
        let endpoints: Vec<_> = self
            .engines
            .iter()
            .map(|engine| json!({"id": engine.name(), "address": engine.addr().to_string(), "node": engine.name()}))
            .collect();
        Ok(json!({
            "api": {"listen": api},
            "xds": {"listen": xds},
            "filter": {"wasm": artifacts::wasm()?, "client_headers": ["explain"]},
            "store": {"path": "demo.redb"},
            "envoy_admin": envoy_admin.into_iter().collect::<Vec<_>>(),
            "pools": [{"name": MODEL, "models": [MODEL, "default"], "served_model": MODEL, "endpoints": endpoints}],
        }))
    }

    /// A line per engine.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::from(
            "Demo fleet (simulated engines; the prober measures them now, which takes a little over a minute):\n",
        );
        for engine in &self.engines {
            text.push_str(&format!("  {:<12} http://{}\n", engine.name(), engine.addr()));
        }
        text
    }
}
