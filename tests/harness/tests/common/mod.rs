//! A prober, a real Envoy and simulated engines that know each other.

pub(crate) mod fleet;
pub(crate) mod queue;

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::load::{self, Call, Outcome};
use harness::snapshot::{pool, snapshot};
use harness::{Envoy, EnvoyOptions, ProberProcess, artifacts, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Until what must happen soon has happened. Generous: tests share two cores.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A warm engine of the model `m`.
pub(crate) async fn engine(name: &str, profile: Profile) -> EngineHandle {
    let config = EngineConfig { name: name.into(), model: "m".into(), profile, cold: false, ..EngineConfig::default() };
    EngineHandle::start(config).await.unwrap()
}

/// As fast per request at any load: 200 tokens/s each.
pub(crate) fn even() -> Profile {
    Profile::new("even", &[(1, 200.0), (64, 12_800.0)])
}

/// A loopback address whose port nobody has now, for those who must know each other's address before they start.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A prober's configuration and directory. Started again, it has its store, and listens where it did before.
pub(crate) struct Site {
    pub(crate) config: Value,
    /// Envoy's admin interface, which the prober asks.
    pub(crate) admin: SocketAddr,
    dir: TempDir,
}

impl Site {
    /// A pool `m` of these engines; small bursts, frequent checks, everything explained.
    pub(crate) fn new(engines: &[&EngineHandle]) -> Self {
        let admin = free_address();
        let endpoints: Vec<_> =
            engines.iter().map(|engine| json!({"id": engine.name(), "address": engine.addr()})).collect();
        let config = json!({
            "api": {"listen": "127.0.0.1:0"},
            "xds": {"listen": "127.0.0.1:0"},
            "filter": {"wasm": artifacts::wasm().unwrap(), "client_headers": ["explain"]},
            "store": {"path": "prober.redb"},
            "probe": {"concurrency": 4, "tokens": 16, "prefill_tokens": 0},
            "health": {"interval": "100ms"},
            "signals": {"interval": "100ms"},
            "envoy_admin": [format!("http://{admin}")],
            "pools": [{"name": "m", "models": ["m"], "endpoints": endpoints}],
        });
        Self { config, admin, dir: TempDir::with_prefix("weighbridge-prober-").unwrap() }
    }

    /// Starts the prober.
    pub(crate) async fn prober(&mut self) -> ProberProcess {
        // The port of a prober that has just gone may still be in its last seconds.
        let prober = eventually("the prober starts", DEADLINE, async || {
            ProberProcess::start(&self.config.to_string(), self.dir.path()).await
        });
        let prober = prober.await.unwrap();
        self.config["api"]["listen"] = prober.api().to_string().into();
        self.config["xds"]["listen"] = prober.xds().to_string().into();
        prober
    }

    /// Starts an Envoy that knows nothing but where the prober is.
    pub(crate) async fn envoy(&self, prober: &ProberProcess, concurrency: u32) -> Envoy {
        let options = EnvoyOptions {
            concurrency,
            admin: self.admin,
            snapshot: Some(snapshot(vec![pool("m", Vec::new())])),
            prober: Some(prober.api()),
            ..EnvoyOptions::with_xds(prober.xds())
        };
        Envoy::start(options).await.unwrap()
    }

    /// Both, ready: everything measured, and Envoy has it.
    pub(crate) async fn start(&mut self, concurrency: u32) -> (ProberProcess, Envoy) {
        let prober = self.prober().await;
        let envoy = self.envoy(&prober, concurrency).await;
        prober.ready(DEADLINE).await.unwrap();
        (prober, envoy)
    }
}

/// Waits until every connected Envoy, at least one, has applied what the prober last said.
pub(crate) async fn applied(prober: &ProberProcess) {
    prober.applied(DEADLINE).await.unwrap();
}

/// Waits until the endpoint is in this state.
pub(crate) async fn in_state(prober: &ProberProcess, id: &str, state: &str) -> Value {
    eventually(&format!("{id} is {state}"), DEADLINE, async || {
        let endpoint = prober.endpoint(id).await?;
        ensure!(endpoint["state"] == state, "{endpoint}");
        Ok(endpoint)
    })
    .await
    .unwrap()
}

/// The newest probe in an endpoint's history.
pub(crate) fn last_probe(endpoint: &Value) -> &Value {
    endpoint["history"].as_array().and_then(|history| history.last()).unwrap_or(&Value::Null)
}

/// A number that must be there.
pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A short chat.
pub(crate) fn chat() -> Call {
    Call::chat("m", "hello", 4)
}

/// One short chat through the gateway, explained.
pub(crate) async fn explained(envoy: &Envoy) -> Outcome {
    load::send(envoy.gateway(), chat().header("x-weighbridge-explain", "1")).await
}

/// An endpoint's weight as the decision record of a request has it.
pub(crate) fn weight_in_decision(decision: &str, id: &str) -> Result<f64> {
    let decision: Value = serde_json::from_str(decision).with_context(|| format!("decision {decision:?}"))?;
    let candidates = decision["candidates"].as_array().context("no candidates")?;
    let candidate = candidates.iter().find(|candidate| candidate["id"] == id).context("not a candidate")?;
    candidate["weight"].as_f64().context("no weight")
}

/// Waits until a request is decided with this weight of the endpoint.
pub(crate) async fn decided_with(envoy: &Envoy, id: &str, weight: f64) {
    eventually(&format!("requests are decided with weight {weight} of {id}"), DEADLINE, async || {
        let outcome = explained(envoy).await;
        let found = weight_in_decision(outcome.header("x-weighbridge-decision"), id)?;
        ensure!(found == weight, "{found}");
        Ok(())
    })
    .await
    .unwrap();
}
