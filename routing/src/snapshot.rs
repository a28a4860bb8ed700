//! The snapshot: what the prober tells every filter, as JSON, and the types it becomes.
//!
//! [`wire`] is the JSON as it travels (ECDS plugin configuration, `GET /v1/snapshot`, shared data). [`Snapshot`] is
//! the same after checking: ids are valid, addresses parse, every model names one pool, weights cannot be zero or NaN.
//! The wire form is read leniently where a value has a safe stand-in (a broken weight counts as 1.0 and is listed in
//! [`Snapshot::alarms`]) and strictly where it has none. Unknown fields are ignored, so that a newer prober can talk
//! to an older filter; `format` says when that is no longer possible.
//!
//! Cost: linear in the number of endpoints and models; runs once per snapshot and VM, never per request.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::weight::{Weight, cap};

/// The only `format` this code reads.
pub const FORMAT: u32 = 1;

/// Limits that keep a snapshot, and with it the live table, bounded.
pub const MAX_ENDPOINTS_PER_POOL: usize = 1024;
/// The most pools in one snapshot.
pub const MAX_POOLS: usize = 256;
/// The longest model name in bytes.
pub const MAX_MODEL_BYTES: usize = 256;

/// The JSON form.
pub mod wire {
    use serde::{Deserialize, Serialize};

    /// A whole snapshot.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Snapshot {
        /// Contract version; see [`super::FORMAT`].
        pub format: u32,
        /// Grows with every change: `max(unix_ms, last + 1)`. A static fallback uses 0.
        pub version: u64,
        /// Settings of the filter itself.
        #[serde(default)]
        pub filter: Filter,
        /// One entry per Envoy cluster.
        pub pools: Vec<Pool>,
    }

    /// What an operator sets under `filter:`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Filter {
        /// Largest request body in bytes; a larger one is answered 413.
        #[serde(default = "default_max_body")]
        pub max_body: u64,
        /// Request headers of clients that count: `priority`, `max-wait`, `explain`.
        #[serde(default)]
        pub client_headers: Vec<String>,
        /// How many bytes of a prompt are hashed for prefix affinity; what comes after is scanned, not hashed. 0: none.
        #[serde(default = "default_prefix_bytes")]
        pub prefix_bytes: u64,
    }

    fn default_max_body() -> u64 {
        16 * 1024 * 1024
    }

    fn default_prefix_bytes() -> u64 {
        64 * 1024
    }

    impl Default for Filter {
        fn default() -> Self {
            Filter { max_body: default_max_body(), client_headers: Vec::new(), prefix_bytes: default_prefix_bytes() }
        }
    }

    /// One pool: the endpoints that serve the same model.
    #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
    pub struct Pool {
        /// The pool's id: stats label, live-table key.
        pub name: String,
        /// The Envoy cluster, when it is not called like the pool (static fallback: `<pool>-static`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cluster: Option<String>,
        /// The names clients may ask for.
        pub models: Vec<String>,
        /// What the engines call the model; a body that names another one is rewritten.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub served_model: Option<String>,
        /// Names that the engines know themselves, such as LoRA adapters: clients may ask for them, and they are never
        /// rewritten.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub adapters: Vec<String>,
        /// How to pick.
        #[serde(default)]
        pub policy: Policy,
        /// When to stay with the holder of a prompt's prefix.
        #[serde(default)]
        pub affinity: Affinity,
        /// Median throughput of the measured endpoints, in tokens/s.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub median_tps: Option<f64>,
        /// When to refuse.
        #[serde(default)]
        pub admission: Admission,
        /// The endpoints, in any order.
        pub endpoints: Vec<Endpoint>,
    }

    /// `policy: {name: p2c, choices: 2}`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Policy {
        /// `p2c` or `least_pending_tokens`.
        pub name: String,
        /// How many distinct endpoints are drawn and compared: a number from 1, or `all`.
        #[serde(default)]
        pub choices: Choices,
    }

    impl Default for Policy {
        fn default() -> Self {
            Policy { name: "p2c".into(), choices: Choices::default() }
        }
    }

    /// How many candidates are compared.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    pub enum Choices {
        /// That many distinct ones.
        Count(u32),
        /// `all` (any other word is refused when the snapshot is checked).
        Word(String),
    }

    impl Default for Choices {
        fn default() -> Self {
            Choices::Count(2)
        }
    }

    /// `affinity: {enabled: true, cold: policy, k: 1.0, max_share: 0.5}`. See [`crate::affinity`].
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Affinity {
        /// Whether prefixes matter at all.
        pub enabled: bool,
        /// Where a prompt goes whose prefix nobody is known to hold: `policy`, or `hash` (the same home at every Envoy).
        pub cold: Cold,
        /// Factor of the allowance.
        pub k: f64,
        /// The largest allowance, as a share of the pool's base cap.
        pub max_share: f64,
        /// Tokens that an endpoint's KV cache holds, for endpoints that do not tell.
        pub kv_tokens: u64,
        /// Prefill speed in tokens/s of endpoints that have not been measured.
        pub prefill_tps: f64,
    }

    impl Default for Affinity {
        fn default() -> Self {
            Affinity {
                enabled: true,
                cold: Cold::Policy,
                k: 1.0,
                max_share: 0.5,
                kv_tokens: 256 * 1024,
                prefill_tps: 6_000.0,
            }
        }
    }

    /// Where a prompt goes whose prefix nobody is known to hold.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Cold {
        /// Where the policy says.
        #[default]
        Policy,
        /// To the home that weighted rendezvous hashing gives it, while that one is not much fuller than the freest.
        Hash,
    }

    /// `admission: {base_cap: 24}`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Admission {
        /// In-flight requests per unit of weight.
        #[serde(default = "default_base_cap")]
        pub base_cap: u32,
    }

    fn default_base_cap() -> u32 {
        24
    }

    impl Default for Admission {
        fn default() -> Self {
            Admission { base_cap: default_base_cap() }
        }
    }

    /// One endpoint.
    #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
    pub struct Endpoint {
        /// `[A-Za-z0-9_-]{1,64}`.
        pub id: String,
        /// `ip:port`; names are resolved by the prober.
        pub address: String,
        /// Relative capacity. Anything that is not a positive number counts as 1.0 and raises an alarm.
        #[serde(default)]
        pub weight: serde_json::Value,
        /// In-flight cap set by hand; otherwise `base_cap x weight`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cap: Option<u32>,
        /// Context window in tokens, where known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub context_window: Option<u32>,
        /// Measured prefill speed in tokens/s.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub prefill_tps: Option<f64>,
        /// Tokens that its KV cache holds, where the engine tells.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub kv_tokens: Option<u64>,
        /// Changes when the engine restarts: what it held before is gone.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub epoch: u64,
        /// Whether it takes traffic.
        #[serde(default)]
        pub state: State,
    }

    fn is_zero(n: &u64) -> bool {
        *n == 0
    }

    /// Whether an endpoint takes traffic, and if not, why.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum State {
        /// Takes traffic.
        #[default]
        Ready,
        /// Registered, not measured yet.
        New,
        /// Under a burst.
        Probing,
        /// Finishing what it has.
        Draining,
        /// Fails its health checks.
        Unhealthy,
    }

    impl State {
        /// The word used in JSON, in decisions and in stats.
        #[must_use]
        pub fn as_str(self) -> &'static str {
            match self {
                State::Ready => "ready",
                State::New => "new",
                State::Probing => "probing",
                State::Draining => "draining",
                State::Unhealthy => "unhealthy",
            }
        }
    }
}

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
    /// What is compared.
    pub policy: Policy,
    /// How many distinct endpoints are drawn and compared.
    pub choices: Choices,
    /// When to stay with the holder of a prompt's prefix.
    pub affinity: Affinity,
    /// In-flight requests per unit of weight.
    pub base_cap: u32,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl Pool {
    /// The name under which the engines know what a client asked for as `asked`: the served model, except for an
    /// adapter, which they know by its own name.
    #[must_use]
    pub fn engine_name<'a>(&'a self, asked: &'a str) -> &'a str {
        match &self.served_model {
            Some(served) if !self.adapters.iter().any(|adapter| adapter == asked) => served,
            _ => asked,
        }
    }
}

/// What the policy compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Requests in flight per weight.
    P2c,
    /// Pending tokens per weight.
    LeastPendingTokens,
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

/// How many distinct endpoints the policy draws and compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choices {
    /// That many, drawn in proportion to weight.
    Count(std::num::NonZeroU32),
    /// Every eligible one.
    All,
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
    /// The most requests in flight.
    pub cap: u32,
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

fn refuse<T>(field: String, value: impl ToString, expected: &'static str) -> Result<T, SnapshotError> {
    Err(SnapshotError::Field { field, value: value.to_string(), expected })
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

impl TryFrom<wire::Snapshot> for Snapshot {
    type Error = SnapshotError;

    fn try_from(raw: wire::Snapshot) -> Result<Self, SnapshotError> {
        if raw.format != FORMAT {
            return refuse("format".into(), raw.format, "1");
        }
        if raw.pools.len() > MAX_POOLS {
            return refuse("pools".into(), format!("{} pools", raw.pools.len()), "at most 256 pools");
        }
        let client_headers = client_headers(&raw.filter.client_headers)?;
        let mut alarms = Vec::new();
        let mut by_model = HashMap::new();
        let mut names = HashSet::new();
        let mut pools = Vec::with_capacity(raw.pools.len());
        for (index, pool) in raw.pools.into_iter().enumerate() {
            let pool = check_pool(index, pool, &mut alarms)?;
            if !names.insert(pool.name.clone()) {
                return refuse(format!("pools[{index}].name"), pool.name, "a name that no other pool has");
            }
            for model in &pool.models {
                if by_model.insert(model.clone(), index).is_some_and(|other| other != index) {
                    return refuse(format!("pools[{index}].models"), model, "a model name that no other pool has");
                }
            }
            pools.push(pool);
        }
        Ok(Snapshot {
            version: raw.version,
            max_body_bytes: raw.filter.max_body,
            client_headers,
            prefix_bytes: raw.filter.prefix_bytes,
            pools,
            alarms,
            by_model,
        })
    }
}

fn client_headers(names: &[String]) -> Result<ClientHeaders, SnapshotError> {
    let mut allowed = ClientHeaders::default();
    for (index, name) in names.iter().enumerate() {
        match name.as_str() {
            "priority" => allowed.priority = true,
            "max-wait" => allowed.max_wait = true,
            "explain" => allowed.explain = true,
            _ => return refuse(format!("filter.client_headers[{index}]"), name, "priority, max-wait or explain"),
        }
    }
    Ok(allowed)
}

fn check_pool(index: usize, raw: wire::Pool, alarms: &mut Vec<String>) -> Result<Pool, SnapshotError> {
    let field = |name: &str| format!("pools[{index}].{name}");
    if !is_id(&raw.name) {
        return refuse(field("name"), raw.name, "1 to 64 of A-Z a-z 0-9 _ -");
    }
    if raw.models.is_empty() {
        return refuse(field("models"), "[]", "at least one model name");
    }
    for model in &raw.models {
        if model.is_empty() || model.len() > MAX_MODEL_BYTES {
            return refuse(field("models"), model, "names of 1 to 256 bytes");
        }
    }
    for adapter in &raw.adapters {
        if !raw.models.contains(adapter) {
            return refuse(field("adapters"), adapter, "names that models lists too");
        }
    }
    let policy = match raw.policy.name.as_str() {
        "p2c" | "" => Policy::P2c,
        "least_pending_tokens" => Policy::LeastPendingTokens,
        _ => return refuse(field("policy.name"), raw.policy.name, "p2c or least_pending_tokens"),
    };
    let affinity = check_affinity(&field, &raw)?;
    let choices = match raw.policy.choices {
        wire::Choices::Word(word) if word == "all" => Choices::All,
        wire::Choices::Word(word) => return refuse(field("policy.choices"), word, "a number from 1, or all"),
        wire::Choices::Count(count) => match std::num::NonZeroU32::new(count) {
            Some(count) => Choices::Count(count),
            None => return refuse(field("policy.choices"), 0, "a number from 1, or all"),
        },
    };
    if raw.admission.base_cap == 0 {
        return refuse(field("admission.base_cap"), 0, "a number from 1");
    }
    if raw.endpoints.len() > MAX_ENDPOINTS_PER_POOL {
        return refuse(field("endpoints"), format!("{} endpoints", raw.endpoints.len()), "at most 1024 endpoints");
    }
    let (mut ids, mut holders) = (HashSet::new(), HashSet::new());
    let mut endpoints = Vec::with_capacity(raw.endpoints.len());
    for (nth, endpoint) in raw.endpoints.into_iter().enumerate() {
        let mut endpoint = check_endpoint(
            &field(&format!("endpoints[{nth}]")),
            endpoint,
            raw.admission.base_cap,
            &raw.affinity,
            alarms,
        )?;
        if !ids.insert(endpoint.id.clone()) {
            return refuse(field(&format!("endpoints[{nth}].id")), endpoint.id, "an id that is used once in the pool");
        }
        // 16 bits collide now and then; two endpoints that share one would hold each other's prefixes.
        while !holders.insert(endpoint.holder) {
            endpoint.holder = endpoint.holder.wrapping_add(1).max(1);
        }
        endpoints.push(endpoint);
    }
    Ok(Pool {
        cluster: raw.cluster.unwrap_or_else(|| raw.name.clone()),
        name: raw.name,
        models: raw.models,
        served_model: raw.served_model,
        adapters: raw.adapters,
        policy,
        choices,
        affinity,
        base_cap: raw.admission.base_cap,
        endpoints,
    })
}

/// What stands in for the pool's median throughput until somebody is measured, in tokens/s.
const DEFAULT_MEDIAN_TPS: f64 = 730.0;

fn check_affinity(field: &impl Fn(&str) -> String, pool: &wire::Pool) -> Result<Affinity, SnapshotError> {
    let raw = &pool.affinity;
    if !(0.0..=1_000.0).contains(&raw.k) {
        return refuse(field("affinity.k"), raw.k, "a number from 0 to 1000");
    }
    if !(0.0..=1.0).contains(&raw.max_share) {
        return refuse(field("affinity.max_share"), raw.max_share, "a number from 0 to 1");
    }
    if raw.kv_tokens == 0 {
        return refuse(field("affinity.kv_tokens"), 0, "a number from 1");
    }
    if !is_speed(raw.prefill_tps) {
        return refuse(field("affinity.prefill_tps"), raw.prefill_tps, "a positive number");
    }
    Ok(Affinity {
        enabled: raw.enabled,
        cold: raw.cold,
        k: raw.k,
        max_allowance: raw.max_share * f64::from(pool.admission.base_cap),
        median_tps: pool.median_tps.filter(|tps| is_speed(*tps)).unwrap_or(DEFAULT_MEDIAN_TPS),
    })
}

fn is_speed(tps: f64) -> bool {
    tps.is_finite() && tps > 0.0
}

fn check_endpoint(
    field: &str,
    raw: wire::Endpoint,
    base_cap: u32,
    affinity: &wire::Affinity,
    alarms: &mut Vec<String>,
) -> Result<Endpoint, SnapshotError> {
    if !is_id(&raw.id) {
        return refuse(format!("{field}.id"), raw.id, "1 to 64 of A-Z a-z 0-9 _ -");
    }
    let Ok(address) = raw.address.parse::<SocketAddr>() else {
        return refuse(format!("{field}.address"), raw.address, "ip:port");
    };
    let weight = raw.weight.as_f64().and_then(|value| Weight::try_new(value).ok()).unwrap_or_else(|| {
        alarms.push(format!("{field}.weight of {} is {}: counted as 1.0", raw.id, raw.weight));
        Weight::ONE
    });
    if raw.cap == Some(0) {
        return refuse(format!("{field}.cap"), 0, "a number from 1, or nothing");
    }
    let address = address.to_string();
    let key = EndpointKey::of(&raw.id, &address);
    Ok(Endpoint {
        key,
        holder: (xxh3_64_with_seed(&raw.epoch.to_le_bytes(), key.0) as u16).max(1),
        id: raw.id,
        address,
        weight,
        cap: raw.cap.unwrap_or_else(|| cap(base_cap, weight)),
        context_window: raw.context_window,
        prefill_tps: raw.prefill_tps.filter(|tps| is_speed(*tps)).unwrap_or(affinity.prefill_tps),
        kv_tokens: raw.kv_tokens.unwrap_or(affinity.kv_tokens).max(1),
        epoch: raw.epoch,
        state: raw.state,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn example() -> Value {
        json!({"format": 1, "version": 7, "pools": [{
        "name": "qwen", "models": ["qwen-27b", "default"], "served_model": "qwen-27b",
        "endpoints": [
            {"id": "a", "address": "10.0.1.10:8000", "weight": 1.34},
            {"id": "b", "address": "10.0.1.11:8000", "weight": 0.66, "state": "probing", "cap": 3}
        ]}]})
    }

    fn read(value: &Value) -> Result<Snapshot, SnapshotError> {
        Snapshot::from_json(value.to_string().as_bytes())
    }

    #[test]
    fn a_snapshot_is_read() {
        let snapshot = read(&example()).unwrap();
        let (_, pool) = snapshot.pool_for_model("default").unwrap();
        assert_eq!(pool.cluster, "qwen");
        let caps: Vec<_> = pool.endpoints.iter().map(|endpoint| endpoint.cap).collect();
        assert_eq!(caps, [32, 3]);
        assert!(snapshot.pool_for_model("other").is_none());
        assert!(snapshot.alarms.is_empty());
    }

    // Case C2: a weight that is 0, negative or NaN counts as 1.0 and raises an alarm.
    #[test]
    fn c2_a_broken_weight_counts_as_one_and_is_told() {
        for broken in [json!(0), json!(-3), json!(null), json!("NaN"), json!([1])] {
            let mut value = example();
            value["pools"][0]["endpoints"][0]["weight"] = broken.clone();
            let snapshot = read(&value).unwrap();
            assert_eq!(snapshot.pools[0].endpoints[0].weight, Weight::ONE, "{broken}");
            assert_eq!(snapshot.alarms.len(), 1, "{broken}");
        }
    }

    #[test]
    fn a_wrong_value_is_refused_by_name() {
        let cases = [
            ("/format", json!(2), "format"),
            ("/pools/0/name", json!("a.b"), "pools[0].name"),
            ("/pools/0/models", json!([]), "pools[0].models"),
            ("/pools/0/policy", json!({"name": "best"}), "pools[0].policy.name"),
            ("/pools/0/adapters", json!(["lora"]), "pools[0].adapters"),
            ("/pools/0/affinity", json!({"k": -1}), "pools[0].affinity.k"),
            ("/pools/0/affinity", json!({"max_share": 2}), "pools[0].affinity.max_share"),
            ("/pools/0/affinity", json!({"kv_tokens": 0}), "pools[0].affinity.kv_tokens"),
            ("/pools/0/affinity", json!({"prefill_tps": 0}), "pools[0].affinity.prefill_tps"),
            ("/pools/0/policy", json!({"name": "p2c", "choices": 0}), "pools[0].policy.choices"),
            ("/pools/0/policy", json!({"name": "p2c", "choices": "most"}), "pools[0].policy.choices"),
            ("/pools/0/admission", json!({"base_cap": 0}), "pools[0].admission.base_cap"),
            ("/pools/0/endpoints/1/id", json!("a"), "pools[0].endpoints[1].id"),
            ("/pools/0/endpoints/1/address", json!("gpu:80"), "pools[0].endpoints[1].address"),
            ("/pools/0/endpoints/1/cap", json!(0), "pools[0].endpoints[1].cap"),
            ("/filter", json!({"client_headers": ["all"]}), "filter.client_headers[0]"),
        ];
        for (pointer, wrong, field) in cases {
            let mut value = example();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let parent = value.pointer_mut(parent).unwrap();
            match name.parse::<usize>() {
                Ok(nth) => parent[nth] = wrong,
                Err(_) => parent[name] = wrong,
            }
            let message = read(&value).unwrap_err().to_string();
            assert!(message.starts_with(field), "{pointer}: {message}");
        }
    }

    #[test]
    fn one_model_in_two_pools_is_refused() {
        let mut value = example();
        let mut twin = value["pools"][0].clone();
        twin["name"] = json!("twin");
        value["pools"].as_array_mut().unwrap().push(twin);
        assert!(read(&value).unwrap_err().to_string().starts_with("pools[1].models"));
    }

    #[test]
    fn an_engine_that_restarts_is_another_holder() {
        let mut value = example();
        let holder = |value: &Value| read(value).unwrap().pools[0].endpoints[0].holder;
        let before = holder(&value);
        value["pools"][0]["endpoints"][0]["epoch"] = json!(1);
        assert_ne!(holder(&value), before);
    }

    #[test]
    fn no_two_endpoints_of_a_pool_are_the_same_holder() {
        let mut value = example();
        let endpoints: Vec<_> =
            (0..1000).map(|nth| json!({"id": format!("e{nth}"), "address": "10.0.0.1:80", "weight": 1})).collect();
        value["pools"][0]["endpoints"] = json!(endpoints);
        let holders: HashSet<u16> = read(&value).unwrap().pools[0].endpoints.iter().map(|one| one.holder).collect();
        assert_eq!((holders.len(), holders.contains(&0)), (1000, false));
    }

    #[test]
    fn an_endpoint_that_moves_gets_another_key() {
        assert_ne!(EndpointKey::of("a", "10.0.0.1:80"), EndpointKey::of("a", "10.0.0.2:80"));
        assert_ne!(EndpointKey::of("a", "10.0.0.1:80"), EndpointKey::of("b", "10.0.0.1:80"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Snapshot::from_json(&bytes);
        }
    }
}
