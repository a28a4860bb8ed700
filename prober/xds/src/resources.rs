//! A snapshot becomes the resources of the three types.
//!
//! Each type has its own version: the version of the snapshot in which its content last changed. A pin therefore moves
//! ECDS and the weights in EDS, and leaves CDS alone: Envoy warms a cluster anew when it changes. A cluster depends on its
//! name, on the authorities of its hosts' TLS, and on whether any has a key, so it changes seldom while it is served. When it does, its endpoints
//! are sent again after it: they are what warms it. Since every
//! snapshot differs from the one before at least in its version, the version of ECDS is the snapshot's own.
//!
//! EDS lists every endpoint of a pool whatever its state: the filter decides who takes traffic, and a host that left
//! EDS could not be named by an Envoy that still holds the older snapshot. Weight and health are for the fallback
//! policy only.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::HealthStatus;
use envoy_types::pb::google::protobuf::Any;
use weighbridge_routing::snapshot::wire;

use crate::proto::{self, EndpointSource, Host};
use crate::upstream::{Needs, Upstreams};
use crate::{EXTENSION_NAME, ResourceType};

/// Where the filter's code is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterSource {
    /// Path of the wasm module as Envoy sees it.
    pub wasm_path: String,
}

/// Why a snapshot cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// An address that is not `ip:port`.
    #[error("address of endpoint {endpoint} in pool {pool} is {address:?}: expected ip:port")]
    Address {
        /// The pool's name.
        pool: String,
        /// The endpoint's id.
        endpoint: String,
        /// What stands there.
        address: String,
    },
    /// Two pools that would share a cluster.
    #[error("cluster {0:?} belongs to two pools")]
    DuplicateCluster(String),
    /// A cluster that would wait for endpoints for ever.
    #[error("cluster {0:?} has no endpoint assignment")]
    Inconsistent(String),
    /// A version that does not move forward.
    #[error("snapshot version {offered} is not above {current}, which is being served")]
    NotNewer {
        /// The version offered.
        offered: u64,
        /// The version being served.
        current: u64,
    },
    /// The snapshot has no JSON form.
    #[error("snapshot cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// The resources of one type.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// Version of the snapshot in which the content last changed.
    pub version: u64,
    /// Name to resource.
    pub items: BTreeMap<String, Arc<Any>>,
}

impl Resources {
    /// Keeps the older version number, and the older allocations, where the content is the same.
    fn next(version: u64, items: BTreeMap<String, Arc<Any>>, previous: Option<&Resources>) -> Self {
        match previous {
            Some(previous) if previous.items == items => previous.clone(),
            _ => Resources { version, items },
        }
    }
}

/// Everything one snapshot turns into.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceSet {
    /// The snapshot's version.
    pub version: u64,
    /// Clusters whose endpoints come over ADS.
    clusters: Resources,
    /// The same clusters with their endpoints on a stream of their own.
    standalone_clusters: Resources,
    endpoints: Resources,
    extensions: Resources,
    /// What `endpoints` were made of. Maps in protobuf have no order, so the same hosts may have other bytes.
    hosts: BTreeMap<String, Vec<Host>>,
}

impl ResourceSet {
    /// Builds the set of a snapshot; `previous` is the set it replaces.
    ///
    /// # Errors
    /// When the snapshot is not newer, or a part of it cannot be served. The previous set stays valid then.
    pub fn build(
        snapshot: &wire::Snapshot,
        upstreams: &Upstreams,
        source: &FilterSource,
        previous: Option<&ResourceSet>,
    ) -> Result<Self, ResourceError> {
        let version = snapshot.version;
        if let Some(previous) = previous
            && version <= previous.version
        {
            return Err(ResourceError::NotNewer { offered: version, current: previous.version });
        }
        let mut clusters = BTreeMap::new();
        let mut standalone = BTreeMap::new();
        let mut endpoints = BTreeMap::new();
        let mut hosts = BTreeMap::new();
        for pool in &snapshot.pools {
            let name = pool.cluster.as_ref().unwrap_or(&pool.name);
            let of_pool = hosts_of(pool, upstreams)?;
            let same = previous.filter(|previous| previous.hosts.get(name) == Some(&of_pool));
            let assignment = match same.and_then(|previous| previous.endpoints.items.get(name)) {
                Some(assignment) => Arc::clone(assignment),
                None => Arc::new(proto::load_assignment(name, &of_pool)),
            };
            if endpoints.insert(name.clone(), assignment).is_some() {
                return Err(ResourceError::DuplicateCluster(name.clone()));
            }
            let needs: Needs = of_pool.iter().map(|host| &host.upstream).collect();
            clusters.insert(name.clone(), Arc::new(proto::cluster(name, EndpointSource::Ads, &needs)));
            standalone.insert(name.clone(), Arc::new(proto::cluster(name, EndpointSource::OwnStream, &needs)));
            hosts.insert(name.clone(), of_pool);
        }
        let filter = proto::filter(&source.wasm_path, serde_json::to_string(snapshot)?);
        let extensions = BTreeMap::from([(EXTENSION_NAME.to_owned(), Arc::new(filter))]);
        let clusters = Resources::next(version, clusters, previous.map(|set| &set.clusters));
        let changed = |previous: &&ResourceSet| {
            let before = &previous.clusters.items;
            clusters.items.iter().any(|(name, cluster)| before.get(name).is_some_and(|known| known != cluster))
        };
        let before = previous.filter(|previous| !changed(previous));
        let endpoints = Resources::next(version, endpoints, before.map(|set| &set.endpoints));
        let set = ResourceSet {
            version,
            clusters,
            standalone_clusters: Resources::next(version, standalone, previous.map(|set| &set.standalone_clusters)),
            endpoints,
            hosts,
            extensions: Resources { version, items: extensions },
        };
        set.consistent()?;
        Ok(set)
    }

    /// Every cluster has its endpoint assignment.
    fn consistent(&self) -> Result<(), ResourceError> {
        match self.clusters.items.keys().find(|name| !self.endpoints.items.contains_key(*name)) {
            Some(name) => Err(ResourceError::Inconsistent(name.clone())),
            None => Ok(()),
        }
    }

    /// The resources of a type; `aggregated` says whether they travel over ADS.
    #[must_use]
    pub fn of(&self, kind: ResourceType, aggregated: bool) -> &Resources {
        match kind {
            ResourceType::Clusters if aggregated => &self.clusters,
            ResourceType::Clusters => &self.standalone_clusters,
            ResourceType::Endpoints => &self.endpoints,
            ResourceType::Extensions => &self.extensions,
        }
    }
}

/// The distinct hosts of a pool, ordered by address so that the order of the snapshot is no change. Endpoints with the
/// same address are one host to Envoy: it keeps the larger weight and the better health.
fn hosts_of(pool: &wire::Pool, upstreams: &Upstreams) -> Result<Vec<Host>, ResourceError> {
    let mut hosts: BTreeMap<SocketAddr, Host> = BTreeMap::new();
    for endpoint in &pool.endpoints {
        let address = endpoint.address.parse::<SocketAddr>().map_err(|_| ResourceError::Address {
            pool: pool.name.clone(),
            endpoint: endpoint.id.clone(),
            address: endpoint.address.clone(),
        })?;
        let upstream = upstreams.get(&address).cloned().unwrap_or_default();
        let (weight, health) = (fallback_weight(&endpoint.weight), fallback_health(endpoint.state));
        let host = Host { address, weight, health, upstream };
        match hosts.entry(address) {
            Entry::Vacant(free) => {
                free.insert(host);
            }
            Entry::Occupied(mut taken) => {
                let merged = taken.get_mut();
                merged.weight = merged.weight.max(host.weight);
                if host.health == HealthStatus::Healthy {
                    merged.health = host.health;
                }
            }
        }
    }
    Ok(hosts.into_values().collect())
}

/// Weight x 100, within what Envoy accepts (1 and up; the sum over a pool must fit 32 bits). What is not a positive
/// number counts as 1.0, as it does in the filter.
fn fallback_weight(weight: &serde_json::Value) -> u32 {
    const MAX: f64 = 1_000_000.0;
    match weight.as_f64() {
        // The clamp keeps the conversion exact.
        Some(weight) if weight > 0.0 => (weight * 100.0).round().clamp(1.0, MAX) as u32,
        _ => 100,
    }
}

fn fallback_health(state: wire::State) -> HealthStatus {
    match state {
        wire::State::Ready => HealthStatus::Healthy,
        wire::State::New | wire::State::Probing | wire::State::Draining => HealthStatus::Draining,
        wire::State::Unhealthy => HealthStatus::Unhealthy,
    }
}

#[cfg(test)]
mod tests;
