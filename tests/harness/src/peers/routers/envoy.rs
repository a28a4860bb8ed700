//! Envoy's own balancers: the shipped configuration without the filter, and with what an operator would put there instead.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Front, Part, Running, Setup, WORKERS, weights};
use crate::snapshot::{endpoint, pool, snapshot};
use crate::workload::{MODEL, pool_clusters, ring_hash};
use crate::{Envoy, EnvoyOptions};

/// The fastest engine's weight; any would do.
const MOST_WEIGHT: f64 = 1_000.0;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    LeastRequest,
    RingHash,
    RoundRobin,
}

pub(super) async fn start(policy: Policy, setup: &Setup, told: bool) -> Result<Running> {
    let envoy = Envoy::start(options(policy, setup, told)).await?;
    let front = Front::one(envoy.gateway());
    let parts = vec![("router", Part::Envoy(Box::new(envoy)))];
    Ok(Running { front, parts, _dir: TempDir::new()?, _ports: Vec::new() })
}

fn options(policy: Policy, setup: &Setup, told: bool) -> EnvoyOptions {
    let endpoints = setup.engines.iter().map(|(name, address, _)| endpoint(name, *address, 1.0)).collect();
    let weights = if told { weights(setup, MOST_WEIGHT) } else { Vec::new() };
    EnvoyOptions {
        concurrency: WORKERS,
        filter: false,
        edit: Some(Box::new(move |config| balance(policy, &weights, config))),
        ..EnvoyOptions::fixed(snapshot(vec![pool(MODEL, endpoints)]))
    }
}

/// `weights` of the endpoints, in their order; none of those that there are not.
fn balance(policy: Policy, weights: &[u32], config: &mut Value) {
    let named = |name: &str, kind: &str| {
        json!({"policies": [{"typed_extension_config": {
            "name": format!("envoy.load_balancing_policies.{name}"),
            "typed_config": {"@type": format!("type.googleapis.com/envoy.extensions.load_balancing_policies.{name}.v3.{kind}")}}}]})
    };
    let balancer = match policy {
        Policy::RingHash => {
            ring_hash(config);
            None
        }
        Policy::LeastRequest => Some(named("least_request", "LeastRequest")),
        Policy::RoundRobin => Some(named("round_robin", "RoundRobin")),
    };
    for cluster in pool_clusters(config) {
        if let Some(balancer) = &balancer {
            cluster["load_balancing_policy"] = balancer.clone();
        }
        let endpoints = cluster.pointer_mut("/load_assignment/endpoints/0/lb_endpoints").and_then(Value::as_array_mut);
        for (endpoint, weight) in endpoints.into_iter().flatten().zip(weights) {
            endpoint["load_balancing_weight"] = (*weight).into();
        }
        // In our own set-up the prober and the filter see to this.
        cluster["outlier_detection"] = json!({});
        cluster["health_checks"] = json!([{"timeout": "1s", "interval": "2s", "unhealthy_threshold": 3, "healthy_threshold": 1,
            "http_health_check": {"path": "/health"}}]);
    }
    let routes =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes";
    for route in config.pointer_mut(routes).and_then(Value::as_array_mut).into_iter().flatten() {
        // The filter names another host for each attempt; without it, an attempt may meet the host that just failed.
        if let Some(policy) = route.pointer_mut("/route/retry_policy") {
            policy["retry_host_predicate"] = json!([{"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"}}]);
            policy["host_selection_retry_max_attempts"] = 5.into();
        }
    }
}

pub(super) async fn version(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output().await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // `... version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL`
    text.split('/')
        .find(|part| part.starts_with(|c: char| c.is_ascii_digit()) && part.contains('.'))
        .map(str::to_owned)
        .context(text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_the_weights_that_they_are_told() {
        let cluster =
            json!({"load_balancing_policy": {}, "load_assignment": {"endpoints": [{"lb_endpoints": [{}, {}]}]}});
        let told = |weights: &[u32]| {
            let mut config = json!({"static_resources": {"clusters": [cluster]}});
            balance(Policy::LeastRequest, weights, &mut config);
            config["static_resources"]["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"].clone()
        };
        assert_eq!(told(&[]), json!([{}, {}]));
        assert_eq!(told(&[490, 1_000]), json!([{"load_balancing_weight": 490}, {"load_balancing_weight": 1_000}]));
    }
}
