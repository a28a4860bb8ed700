//! The configuration file as it is written, and the defaults of what is not, once [`super::shape`] has made sure that it can be read.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weighbridge_routing::snapshot::wire;

use super::EngineTls;
use crate::caps::{Mode, Sizing};
use crate::store::redis::redacted;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) api: Api,
    #[serde(default)]
    pub(super) xds: Xds,
    #[serde(default)]
    pub(super) filter: Filter,
    #[serde(default)]
    pub(super) store: Store,
    #[serde(default)]
    pub(super) probe: Probe,
    #[serde(default)]
    pub(super) health: Health,
    #[serde(default)]
    pub(super) drain: Drain,
    #[serde(default)]
    pub(super) signals: Signals,
    #[serde(default)]
    pub(super) decisions: Decisions,
    #[serde(default)]
    pub(super) networks: Option<Vec<String>>,
    #[serde(default)]
    pub(super) envoy_admin: Vec<String>,
    #[serde(default)]
    pub(super) pools: Vec<Pool>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Api {
    pub(super) listen: SocketAddr,
    pub(super) token_file: Option<PathBuf>,
    pub(super) key_dir: Option<PathBuf>,
    pub(super) tls: Option<Tls>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) cert_file: PathBuf,
    pub(super) key_file: PathBuf,
    pub(super) client_ca_file: Option<PathBuf>,
}

impl Default for Api {
    fn default() -> Self {
        Api { listen: SocketAddr::from(([127, 0, 0, 1], 7070)), token_file: None, key_dir: None, tls: None }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Xds {
    pub(super) listen: SocketAddr,
    pub(super) tls: Option<Tls>,
}

impl Default for Xds {
    fn default() -> Self {
        Xds { listen: SocketAddr::from(([127, 0, 0, 1], 7071)), tls: None }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Filter {
    pub(super) wasm: PathBuf,
    pub(super) max_body: String,
    pub(super) client_headers: Vec<String>,
    pub(super) prefix_bytes: String,
}

impl Default for Filter {
    fn default() -> Self {
        Filter {
            wasm: "dist/weighbridge.wasm".into(),
            max_body: "16MiB".into(),
            client_headers: Vec::new(),
            prefix_bytes: "64KiB".into(),
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Store {
    pub(super) path: Option<PathBuf>,
    /// May hold a password.
    pub(super) redis: Option<String>,
}

impl Store {
    /// The embedded store's file.
    pub(super) fn file(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| "weighbridge.redb".into())
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let redis = self.redis.as_deref().map(redacted);
        f.debug_struct("Store").field("path", &self.path).field("redis", &redis).finish()
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Decisions {
    pub(super) per_second: u32,
    pub(super) keep: u32,
}

impl Default for Decisions {
    fn default() -> Self {
        Decisions { per_second: 50, keep: 1_000 }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Probe {
    pub(super) concurrency: u32,
    pub(super) tokens: u32,
    pub(super) prefill_tokens: u32,
    pub(super) interval: String,
    pub(super) keep: String,
    pub(super) timeout: String,
    pub(super) sweep_max: u32,
    pub(super) clamp: [f64; 2],
}

impl Default for Probe {
    fn default() -> Self {
        Probe {
            concurrency: 16,
            tokens: 128,
            prefill_tokens: 8192,
            interval: "6h".into(),
            keep: "6h".into(),
            timeout: "120s".into(),
            sweep_max: 256,
            clamp: [0.25, 8.0],
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Health {
    pub(super) path: String,
    pub(super) interval: String,
    pub(super) timeout: String,
    pub(super) unhealthy_after: u32,
    pub(super) healthy_after: u32,
    pub(super) generate_every: String,
    pub(super) generate_timeout: String,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            path: "/health".into(),
            interval: "2s".into(),
            timeout: "1s".into(),
            unhealthy_after: 3,
            healthy_after: 1,
            generate_every: "5m".into(),
            generate_timeout: "30s".into(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Drain {
    pub(super) deadline: String,
}

impl Default for Drain {
    fn default() -> Self {
        Drain { deadline: "15m".into() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Signals {
    pub(super) interval: String,
    pub(super) average_over: String,
    pub(super) dcgm: Vec<Dcgm>,
}

impl Default for Signals {
    fn default() -> Self {
        Signals { interval: "250ms".into(), average_over: "60s".into(), dcgm: Vec::new() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dcgm {
    pub(super) node: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) url: String,
    #[serde(default)]
    pub(super) gpus: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) models: Vec<String>,
    pub(super) served_model: Option<String>,
    #[serde(default)]
    pub(super) adapters: Vec<String>,
    #[serde(default)]
    pub(super) policy: wire::Policy,
    #[serde(default)]
    pub(super) affinity: wire::Affinity,
    #[serde(default)]
    pub(super) admission: Admission,
    #[serde(default)]
    pub(super) passive_health: PassiveHealth,
    #[serde(default)]
    pub(super) endpoints: Vec<Endpoint>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admission {
    pub(super) base_cap: u32,
    pub(super) cap: Mode,
    pub(super) min_tps: f64,
    pub(super) queue: u32,
    pub(super) queue_bytes: String,
    pub(super) max_wait: String,
    pub(super) ageing: String,
    pub(super) prefill_budget: u32,
    pub(super) fairness: String,
    pub(super) spill_to: Option<String>,
}

impl Default for Admission {
    fn default() -> Self {
        let Sizing { mode: cap, min_tps, .. } = Sizing::default();
        let wire::Admission { base_cap, queue, prefill_budget_tokens, fairness, spill_to, .. } =
            wire::Admission::default();
        Admission {
            base_cap,
            cap,
            min_tps,
            queue,
            queue_bytes: "64MiB".into(),
            max_wait: "30s".into(),
            ageing: "5s".into(),
            prefill_budget: prefill_budget_tokens,
            fairness,
            spill_to,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PassiveHealth {
    pub(super) consecutive_failures: u32,
    pub(super) failure_percent: u32,
    pub(super) min_requests: u32,
    pub(super) ejection: String,
    pub(super) max_ejection: String,
    pub(super) max_ejected_percent: u32,
    pub(super) cool_down: String,
    pub(super) max_cool_down: String,
    pub(super) silent_after: String,
}

impl Default for PassiveHealth {
    fn default() -> Self {
        let wire = wire::PassiveHealth::default();
        PassiveHealth {
            consecutive_failures: wire.consecutive_failures,
            failure_percent: wire.failure_percent,
            min_requests: wire.min_requests,
            ejection: "5s".into(),
            max_ejection: "60s".into(),
            max_ejected_percent: wire.max_ejected_percent,
            cool_down: "1s".into(),
            max_cool_down: "5s".into(),
            silent_after: "5s".into(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Endpoint {
    pub(super) id: String,
    pub(super) address: String,
    pub(super) node: Option<String>,
    pub(super) launch_args: Option<String>,
    pub(super) context_window: Option<u32>,
    pub(super) max_in_flight: Option<u32>,
    pub(super) tls: Option<EngineTls>,
    pub(super) api_key_file: Option<PathBuf>,
    pub(super) api_key_env: Option<String>,
}
