//! Envoy's own balancers: the shipped configuration without the filter, and with what an operator would put there instead.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Front, Part, Running, Setup, WORKERS};
use crate::snapshot::{endpoint, pool, snapshot};
use crate::workload::{MODEL, pool_clusters, ring_hash};
use crate::{Envoy, EnvoyOptions};

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    LeastRequest,
    RingHash,
    RoundRobin,
}

pub(super) async fn start(policy: Policy, setup: &Setup) -> Result<Running> {
    let envoy = Envoy::start(options(policy, setup)).await?;
    let front = Front::one(envoy.gateway());
    let parts = vec![("router", Part::Envoy(Box::new(envoy)))];
    Ok(Running { front, parts, _dir: TempDir::new()?, _ports: Vec::new() })
}

fn options(policy: Policy, setup: &Setup) -> EnvoyOptions {
    let endpoints = setup.engines.iter().map(|(name, address, _)| endpoint(name, *address, 1.0)).collect();
    EnvoyOptions {
        concurrency: WORKERS,
        filter: false,
        edit: Some(Box::new(move |config| balance(policy, config))),
        ..EnvoyOptions::fixed(snapshot(vec![pool(MODEL, endpoints)]))
    }
}

fn balance(policy: Policy, config: &mut Value) {
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
