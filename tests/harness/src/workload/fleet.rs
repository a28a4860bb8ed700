//! The fleet that answers, and what stands in front of it.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle};
use serde_json::{Value, json};

use crate::snapshot::{endpoint, pool, snapshot};
use crate::{Envoy, EnvoyOptions, wire};

/// The model that the fleet serves.
pub const MODEL: &str = "bench";
/// The header whose hash ring hash goes by.
pub(crate) const HASH_HEADER: &str = "x-prefix-hash";

/// Throughput over concurrency (tok/s at 1, 8, 16, 32) and KV cache in tokens of the four engines.
pub(crate) const ENGINES: [(&str, [f64; 4], u64); 4] = [
    ("e980", [106.0, 688.0, 980.0, 1_440.0], 262_144),
    ("e479", [94.0, 400.0, 479.0, 465.0], 131_072),
    ("e240a", [60.0, 200.0, 240.0, 235.0], 65_536),
    ("e240b", [60.0, 200.0, 240.0, 235.0], 65_536),
];
/// What each of them prefills per second.
pub(crate) const PREFILL_TPS: f64 = 6_000.0;

/// The machine of an engine of the fleet.
#[must_use]
pub fn profile(name: &str) -> Option<Profile> {
    let (name, curve, kv_tokens) = ENGINES.iter().find(|(known, ..)| *known == name)?;
    let points: Vec<(u32, f64)> = [1, 8, 16, 32].into_iter().zip(*curve).collect();
    let mut profile = Profile::new(*name, &points);
    (profile.prefill_tps, profile.kv_capacity_tokens) = (PREFILL_TPS, *kv_tokens);
    Some(profile)
}

/// Who decides where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Weighbridge with prefix affinity.
    Affinity,
    /// Weighbridge without.
    NoAffinity,
    /// Envoy's ring hash of the first 256 characters, which the client computes.
    RingHash,
    /// Envoy's round robin.
    RoundRobin,
    /// Nobody: each conversation has an engine for ever, as many of them each as its weight says. The ideal for the prefix
    /// cache.
    Pinned,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 5] =
        [Policy::Affinity, Policy::NoAffinity, Policy::RingHash, Policy::RoundRobin, Policy::Pinned];

    /// A name for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::Affinity => "p2c with affinity",
            Policy::NoAffinity => "p2c without",
            Policy::RingHash => "hash of 256 characters",
            Policy::RoundRobin => "round robin",
            Policy::Pinned => "one endpoint for ever",
        }
    }
}

/// Four unequal engines, and a real Envoy with a policy in front of them.
#[derive(Debug)]
pub struct Fleet {
    /// The engines.
    pub engines: Vec<EngineHandle>,
    envoy: Option<Envoy>,
    weights: Vec<f64>,
    /// How much faster than the wall clock the engines' time runs.
    pub scale: f64,
}

impl Fleet {
    /// Starts them.
    ///
    /// # Errors
    /// When an engine or Envoy cannot be started.
    pub async fn start(policy: Policy, scale: f64) -> Result<Self> {
        Self::start_with(policy, scale, |_| ()).await
    }

    /// Starts them, with a last change to the pool.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with(policy: Policy, scale: f64, edit: impl FnOnce(&mut wire::Pool)) -> Result<Self> {
        let speeds: Vec<f64> = ENGINES.iter().map(|(_, curve, _)| curve[2]).collect();
        let mut sorted = speeds.clone();
        sorted.sort_by(f64::total_cmp);
        let median = f64::midpoint(sorted[1], sorted[2]);
        // As the prober would round them.
        let weights: Vec<f64> = speeds.iter().map(|speed| (speed / median * 100.0).round() / 100.0).collect();
        let (mut engines, mut endpoints) = (Vec::new(), Vec::new());
        for ((name, _, kv_tokens), weight) in ENGINES.iter().zip(&weights) {
            let profile = profile(name).context("an engine of the fleet")?;
            let config = EngineConfig {
                name: (*name).into(),
                model: MODEL.into(),
                profile,
                time_scale: scale,
                cold: false,
                ..EngineConfig::default()
            };
            let engine = EngineHandle::start(config).await?;
            endpoints.push(wire::Endpoint {
                prefill_tps: Some(PREFILL_TPS),
                kv_tokens: Some(*kv_tokens),
                context_window: Some(32_768),
                ..endpoint(name, engine.addr(), *weight)
            });
            engines.push(engine);
        }
        let mut pool = pool(MODEL, endpoints);
        pool.median_tps = Some(median);
        pool.affinity.enabled = policy == Policy::Affinity;
        edit(&mut pool);
        let envoy = match options(policy, snapshot(vec![pool])) {
            Some(options) => Some(Envoy::start(options).await?),
            None => None,
        };
        Ok(Self { engines, envoy, weights, scale })
    }

    /// Where each of so many conversations is sent.
    pub(super) fn targets(&self, conversations: usize) -> Result<Vec<SocketAddr>> {
        if let Some(envoy) = &self.envoy {
            return Ok(vec![envoy.gateway(); conversations]);
        }
        let mut given = vec![0.0; self.engines.len()];
        let mut targets = Vec::with_capacity(conversations);
        for _ in 0..conversations {
            // The one that would be the least loaded for its weight with one more.
            let load = |place: &usize| (given[*place] + 1.0) / self.weights[*place];
            let place = (0..given.len()).min_by(|a, b| load(a).total_cmp(&load(b))).context("no engine")?;
            given[place] += 1.0;
            targets.push(self.engines[place].addr());
        }
        Ok(targets)
    }

    /// The Envoy, where the policy has one.
    #[must_use]
    pub fn envoy(&self) -> Option<&Envoy> {
        self.envoy.as_ref()
    }

    /// Each engine's weight, in their order.
    #[must_use]
    pub fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// The share of prompt tokens that the engines found in their caches, by their own counters.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let states: Vec<_> = self.engines.iter().map(EngineHandle::state).collect();
        let hits: u64 = states.iter().map(|state| state.prefix_cache_hits_total).sum();
        let queries: u64 = states.iter().map(|state| state.prefix_cache_queries_total).sum();
        hits as f64 / queries.max(1) as f64
    }
}

fn options(policy: Policy, fleet: wire::Snapshot) -> Option<EnvoyOptions> {
    let options = EnvoyOptions::fixed(fleet);
    match policy {
        Policy::Affinity | Policy::NoAffinity => Some(options),
        // Without the filter nobody names a host, and the shipped cluster falls back to round robin.
        Policy::RoundRobin => Some(EnvoyOptions { filter: false, ..options }),
        Policy::RingHash => Some(EnvoyOptions { filter: false, edit: Some(Box::new(ring_hash)), ..options }),
        Policy::Pinned => None,
    }
}

/// The clusters of the pools, which are those that say how they balance.
pub(crate) fn pool_clusters(config: &mut Value) -> impl Iterator<Item = &mut Value> {
    let clusters = config.pointer_mut("/static_resources/clusters").and_then(Value::as_array_mut);
    clusters.into_iter().flatten().filter(|cluster| cluster.get("load_balancing_policy").is_some())
}

/// Lets the pools balance by a hash of [`HASH_HEADER`].
pub(crate) fn ring_hash(config: &mut Value) {
    let ring = json!({"policies": [{"typed_extension_config": {
        "name": "envoy.load_balancing_policies.ring_hash",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash"}}}]});
    pool_clusters(config).for_each(|cluster| cluster["load_balancing_policy"] = ring.clone());
    let routes =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes";
    if let Some(routes) = config.pointer_mut(routes).and_then(Value::as_array_mut) {
        for route in routes.iter_mut().filter(|route| route.get("route").is_some()) {
            route["route"]["hash_policy"] = json!([{"header": {"header_name": HASH_HEADER}}]);
        }
    }
}
