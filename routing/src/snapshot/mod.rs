//! The snapshot: what the prober tells every filter, as JSON, and the types it becomes.
//!
//! [`wire`] is the JSON as it travels (ECDS plugin configuration, `GET /v1/snapshot`, shared data). [`Snapshot`] is
//! the same after checking: ids are valid, addresses parse, every model names one pool, weights cannot be zero or NaN.
//! The wire form is read leniently where a value has a safe stand-in (a broken weight counts as 1.0 and is listed in
//! [`Snapshot::alarms`]) and strictly where it has none. Unknown fields are ignored, so that a newer prober can talk
//! to an older filter; `format` says when that is no longer possible.
//!
//! Cost: linear in the number of endpoints and models; runs once per snapshot and VM, never per request.

use std::collections::HashMap;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::admission::Admission;
use crate::curve::Curve;
use crate::live::passive;
use crate::policy::AnyPolicy;
use crate::weight::Weight;

/// The only `format` this code reads.
pub const FORMAT: u32 = 1;

/// Limits that keep a snapshot, and with it the live table, bounded.
pub const MAX_ENDPOINTS_PER_POOL: usize = 1024;
/// The most pools in one snapshot.
pub const MAX_POOLS: usize = 256;
/// The longest model name in bytes.
pub const MAX_MODEL_BYTES: usize = 256;
/// The most decision records that one Envoy sends to the prober per second.
pub const MAX_DECISIONS_PER_SECOND: u32 = 1_000;

pub mod admission;
mod check;
pub mod wire;

pub use admission::Fairness;
use check::refuse;
pub use wire::State;

/// A checked snapshot, indexed by model.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Grows with every change.
    pub version: u64,
    /// Largest request body in bytes.
    pub max_body_bytes: u64,
    /// Which client headers count.
    pub client_headers: ClientHeaders,
    /// How many bytes of a prompt are hashed for prefix affinity.
    pub prefix_bytes: u64,
    /// How many decision records a second this Envoy may send to the prober. 0: none.
    pub decisions_per_second: u32,
    /// How often the filter reports its load and hears of the others', in ms; 0: not at all.
    pub signals_interval_ms: u64,
    /// The bearer token of this filter's reports to the prober; empty: none.
    pub reports_token: String,
    /// The pools, in the order given.
    pub pools: Vec<Pool>,
    /// What was wrong but had a safe stand-in, one sentence each.
    pub alarms: Vec<String>,
    by_model: HashMap<String, usize>,
}

/// Which headers of clients are listened to; none by default, since nobody steers from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientHeaders {
    /// `x-weighbridge-priority`
    pub priority: bool,
    /// `x-weighbridge-max-wait-ms`
    pub max_wait: bool,
    /// `x-weighbridge-explain`
    pub explain: bool,
}

/// A checked pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// The pool's id.
    pub name: String,
    /// The Envoy cluster to send to.
    pub cluster: String,
    /// The names clients may ask for.
    pub models: Vec<String>,
    /// What the engines call the model, when that differs from what clients may say.
    pub served_model: Option<String>,
    /// Names that the engines know themselves (LoRA adapters), in the order given.
    pub adapters: Vec<String>,
    /// Which endpoint takes a request.
    pub policy: AnyPolicy,
    /// A second policy, which decides too and routes nothing.
    pub shadow: Option<AnyPolicy>,
    /// A policy that takes some of the requests.
    pub canary: Option<Canary>,
    /// When to stay with the holder of a prompt's prefix.
    pub affinity: Affinity,
    /// In-flight requests per unit of weight.
    pub base_cap: u32,
    /// Who waits, for how long, and how much prefill an endpoint may have.
    pub admission: Admission,
    /// When an endpoint is taken out for what requests meet there.
    pub passive_health: passive::Settings,
    /// Between whom turns are taken inside a priority.
    pub fairness: Fairness,
    /// Place in the snapshot of the pool that takes what this one would refuse.
    pub spill_to: Option<usize>,
    /// Whether endpoints are compared by their curves, and with the request at hand; see [`Pool::load`].
    pub by_curve: bool,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl Pool {
    /// What is compared between endpoints: the requests per weight of one that has so many in flight. By curve
    /// ([`crate::curve`]), the weight is what it has left of it at that many, and the request at hand is counted: a slow endpoint
    /// is slow for its first request, too. By weight nothing is below one that is idle.
    #[must_use]
    pub fn load(&self, endpoint: &Endpoint, in_flight: u32) -> f64 {
        match self.share(endpoint, in_flight) {
            None => endpoint.weight.per_weight(in_flight.into()),
            Some(share) => endpoint.weight.per_weight(f64::from(in_flight) + 1.0) / share,
        }
    }

    /// The share of its weight that an endpoint with so many in flight has with one more; `None` in a pool that compares by
    /// weight.
    #[must_use]
    pub fn share(&self, endpoint: &Endpoint, in_flight: u32) -> Option<f64> {
        let share = || endpoint.curve.as_ref().map_or(1.0, |curve| curve.share(in_flight.saturating_add(1)));
        self.by_curve.then(share)
    }

    /// The place of the endpoint to which what happened at an address is put down: the first of the `likely` ones that is there, else
    /// the one that serves, and one that drains only where nobody else is. One that was renamed has its address together with its
    /// successor until it has gone.
    // Only what went wrong or elsewhere comes here, and what is not inlined does not stand in the way of what did not.
    #[cold]
    #[must_use]
    pub fn place_at(&self, address: &[u8], likely: &[usize]) -> Option<usize> {
        let is_there = |endpoint: &Endpoint| endpoint.address.as_bytes() == address;
        let sent_there = likely.iter().copied().find(|place| self.endpoints.get(*place).is_some_and(is_there));
        sent_there.or_else(|| {
            let there = self.endpoints.iter().enumerate().filter(|(_, endpoint)| is_there(endpoint));
            let first = there.min_by_key(|(_, endpoint)| match endpoint.state {
                State::Ready => 0,
                State::New | State::Probing | State::Unhealthy => 1,
                State::Draining => 2,
            });
            first.map(|(place, _)| place)
        })
    }

    /// The name under which the engines know what a client asked for as `asked`: the served model, except for an
    /// adapter, which they know by its own name. Without a served model, any name of the pool is the engines' own.
    #[must_use]
    pub fn engine_name<'a>(&'a self, asked: &'a str) -> &'a str {
        match &self.served_model {
            Some(served) if !self.adapters.iter().any(|adapter| adapter == asked) => served,
            // Asked of another pool, whose requests this one takes.
            None if !self.models.iter().any(|model| model == asked) => {
                self.models.first().map_or(asked, String::as_str)
            }
            _ => asked,
        }
    }

    /// The policy for a request with this hash of its id, and whether it is the canary: the same for the same id, at every
    /// Envoy. A request without an id is never the canary's.
    #[must_use]
    pub fn policy_for(&self, id_hash: Option<u64>) -> (&AnyPolicy, bool) {
        match (&self.canary, id_hash) {
            (Some(canary), Some(hash)) if hash % 10_000 < canary.per_ten_thousand.into() => (&canary.policy, true),
            _ => (&self.policy, false),
        }
    }
}

/// A policy that takes a share of a pool's requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Canary {
    /// The policy.
    pub policy: AnyPolicy,
    /// Its share, in requests of 10,000.
    pub per_ten_thousand: u16,
}

impl Canary {
    /// What [`Pool::policy_for`] goes by: a hash of the request's id (`x-request-id`).
    #[must_use]
    pub fn hash(id: &[u8]) -> u64 {
        xxh3_64(id)
    }
}

/// Checked settings of prefix affinity; see [`crate::affinity`] for what they mean together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affinity {
    /// Whether prefixes matter at all.
    pub enabled: bool,
    /// Where a prompt goes whose prefix nobody is known to hold.
    pub cold: wire::Cold,
    /// Factor of the allowance, at least 0.
    pub k: f64,
    /// The largest allowance in requests per weight.
    pub max_allowance: f64,
    /// Median throughput of the pool's measured endpoints in tokens/s.
    pub median_tps: f64,
}

/// A checked endpoint.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `[A-Za-z0-9_-]{1,64}`
    pub id: String,
    /// Identity in the live table: a hash of id and address, so that an id that moves to another address starts with
    /// a clean slot. Never 0.
    pub key: EndpointKey,
    /// `ip:port` in the form Envoy prints it.
    pub address: String,
    /// Relative capacity.
    pub weight: Weight,
    /// How much of its weight it has at how many requests. In a pool that compares by curve, one that was not measured has that of the
    /// one nearest in weight; nothing where nobody was.
    pub curve: Option<Curve>,
    /// The most requests in flight.
    pub cap: u32,
    /// Prompt tokens that it may have to compute at a time, beyond two prompts; 0: any number. See [`crate::admission`].
    pub prefill_budget: u32,
    /// Context window in tokens, where known.
    pub context_window: Option<u32>,
    /// Prefill speed in tokens/s, measured or the pool's stand-in; above 0.
    pub prefill_tps: f64,
    /// Tokens that its KV cache holds, told by the engine or the pool's stand-in; at least 1.
    pub kv_tokens: u64,
    /// Changes when the engine restarts.
    pub epoch: u64,
    /// Identity in the holder index: a hash of key and epoch, so that what an engine held before it restarted is nobody's.
    /// Never 0.
    pub holder: u16,
    /// Whether it takes traffic.
    pub state: State,
}

/// Names an endpoint inside the live table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointKey(pub u64);

impl EndpointKey {
    /// The key of the endpoint with this id at this address.
    #[must_use]
    pub fn of(id: &str, address: &str) -> Self {
        EndpointKey(xxh3_64_with_seed(address.as_bytes(), xxh3_64(id.as_bytes())).max(1))
    }
}

/// Why a snapshot is refused. The message names the field, the value and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Not JSON, or JSON of another shape.
    #[error("snapshot is not readable: {0}")]
    Json(#[from] serde_json::Error),
    /// A field with a value that has no safe stand-in.
    #[error("{field} is {value:?}: expected {expected}")]
    Field {
        /// Path of the field, such as `pools[0].endpoints[2].id`.
        field: String,
        /// What stands there.
        value: String,
        /// What could stand there.
        expected: &'static str,
    },
}

/// Whether a text is a legal id of a pool or an endpoint: `[A-Za-z0-9_-]{1,64}`.
#[must_use]
pub fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

impl Snapshot {
    /// Reads and checks a snapshot.
    ///
    /// # Errors
    /// When it is not JSON of this shape, or a field has a value without a safe stand-in.
    pub fn from_json(json: &[u8]) -> Result<Self, SnapshotError> {
        Self::try_from(serde_json::from_slice::<wire::Snapshot>(json)?)
    }

    /// The pool that serves a model name.
    #[must_use]
    pub fn pool_for_model(&self, model: &str) -> Option<(usize, &Pool)> {
        let index = *self.by_model.get(model)?;
        Some((index, self.pools.get(index)?))
    }

    /// The answer to `GET /v1/models`: every name that clients may ask for, in the OpenAI shape. `max_model_len` is
    /// the largest context window that an endpoint of the pool is known to have.
    #[must_use]
    pub fn models_json(&self) -> Vec<u8> {
        let data: Vec<serde_json::Value> = self
            .pools
            .iter()
            .flat_map(|pool| {
                let window = pool.endpoints.iter().filter_map(|endpoint| endpoint.context_window).max();
                pool.models.iter().map(move |model| {
                    serde_json::json!({
                        "id": model, "object": "model", "created": 0, "owned_by": "weighbridge", "max_model_len": window
                    })
                })
            })
            .collect();
        serde_json::json!({"object": "list", "data": data}).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests;
