//! The clusters of pools: who picks the host, and what of Envoy's own would get in between.

use serde_json::Value;

use super::super::Severity::{Error, Warning};
use super::super::place::Place;
use super::super::wiring::{HOST_HEADER, http_options, override_host};
use super::{Hit, Rule, each_that};

/// Envoy's default for each threshold of a circuit breaker.
const BREAKER: u64 = 1024;
/// Engines close connections that are idle for 5 s (uvicorn, cpp-httplib).
const ENGINE_IDLE_S: f64 = 5.0;

pub(super) const OVERRIDE: Rule = Rule {
    id: "override-host",
    severity: Error,
    trap: "Envoy picks a host itself, and all that was measured is for nothing",
    change: "take over load_balancing_policy from the cluster in envoy/envoy.yaml",
    find: |wiring| {
        let policies = wiring.pools().map(|cluster| (cluster, override_host(cluster)));
        let without = policies.filter(|(_, policy)| !policy.exists());
        without.map(|(cluster, _)| Hit::new(&cluster.get("load_balancing_policy"), "no override_host policy")).collect()
    },
};

pub(super) const HEADER: Rule = Rule {
    id: "override-header",
    severity: Error,
    trap: "the policy does not look where the filter writes, and falls back on its own choice",
    change: "write override_host_sources: [{header: x-weighbridge-host}]",
    find: |wiring| {
        let policies = wiring.pools().map(override_host).filter(Place::exists);
        let sources = policies.map(|policy| policy.get("override_host_sources"));
        sources
            .filter(|sources| sources.items().first().is_none_or(|first| !first.get("header").is_header(HOST_HEADER)))
            .map(|sources| match sources.items().first() {
                Some(first) => Hit::stands(&first.get("header")),
                None => Hit::stands(&sources),
            })
            .collect()
    },
};

pub(super) const FALLBACK: Rule = Rule {
    id: "override-fallback",
    severity: Error,
    trap: "when none of the named hosts is there any more, nobody is picked",
    change: "add a fallback_policy with envoy.load_balancing_policies.round_robin",
    find: |wiring| {
        let policies = wiring.pools().map(override_host).filter(Place::exists);
        each_that(policies.map(|policy| policy.at(&["fallback_policy", "policies"])), |list| list.items().is_empty())
    },
};

pub(super) const STATIC_NAME: Rule = Rule {
    id: "static-name",
    severity: Error,
    trap: "Envoy passes over a cluster of the prober that is called like a static one, and goes on with the old endpoints",
    change: "call the static cluster `<pool>-static`, and let only the static snapshot name it",
    find: |wiring| {
        if !wiring.clusters_are_told() {
            return Vec::new();
        }
        let snapshot = wiring.snapshot_pools().filter_map(|(_, pool)| pool.get("name")?.as_str());
        let pools: Vec<_> = snapshot.chain(wiring.expected.pools.iter().map(String::as_str)).collect();
        let names = wiring.clusters.iter().map(|cluster| cluster.get("name"));
        let shadows = names.filter(|name| name.text().is_some_and(|name| pools.contains(&name)));
        shadows.map(|name| Hit::new(&name, format!("{} is the name of a pool", name.shown()))).collect()
    },
};

pub(super) const MISSING: Rule = Rule {
    id: "pool-cluster",
    severity: Error,
    trap: "what the filter sends there is answered 503",
    change: "let the prober tell its clusters, with dynamic_resources.cds_config as in envoy/envoy.yaml, or add a cluster of that \
             name, made after qwen-27b of envoy/mesh/envoy-snippet.yaml",
    find: |wiring| {
        let here = match wiring.fragment {
            // The clusters of pools stand there or elsewhere, all of them.
            true => wiring.pools().any(|cluster| cluster.get("type").is("EDS")),
            false => !wiring.comes_over("cds"),
        };
        if !here {
            return Vec::new();
        }
        let at = wiring.list_of_clusters();
        let missing = wiring.expected.pools.iter().filter(|pool| !wiring.has_cluster_of(pool));
        let why = if wiring.fragment { "" } else { ", and no CDS (dynamic_resources.cds_config) that could bring one" };
        missing.map(|pool| Hit::new(&at, format!("pool {pool:?} of the prober has no cluster {pool:?}{why}"))).collect()
    },
};

pub(super) const OUTLIERS: Rule = Rule {
    id: "outlier-detection",
    severity: Warning,
    trap: "override_host picks an ejected host all the same, and the filter ejects by itself",
    change: "leave outlier_detection out of the clusters of pools",
    find: |wiring| {
        let detections = wiring.pools().map(|cluster| cluster.get("outlier_detection"));
        detections.filter(Place::exists).map(|at| Hit::new(&at, "set")).collect()
    },
};

pub(super) const HEALTH: Rule = Rule {
    id: "health-checks",
    severity: Warning,
    trap: "override_host picks an unhealthy host all the same, and the prober checks already, once for all Envoys",
    change: "leave health_checks out of the clusters of pools",
    find: |wiring| {
        let checks = wiring.pools().map(|cluster| cluster.get("health_checks"));
        checks.filter(|checks| !checks.items().is_empty()).map(|at| Hit::new(&at, "set")).collect()
    },
};

/// The thresholds of the default priority.
fn thresholds<'a>(cluster: &Place<'a>) -> Place<'a> {
    let list = cluster.at(&["circuit_breakers", "thresholds"]);
    let default = |threshold: &Place<'_>| threshold.get("priority").text().is_none_or(|priority| priority == "DEFAULT");
    list.items().into_iter().find(default).unwrap_or(list)
}

pub(super) const BREAKERS: Rule = Rule {
    id: "circuit-breakers",
    severity: Warning,
    trap: "Envoy's own limit of 1024 refuses what the filter has admitted",
    change: "write circuit_breakers with max_connections, max_pending_requests and max_requests of 100000",
    find: |wiring| {
        let mut hits = Vec::new();
        for at in wiring.pools().map(thresholds) {
            let low: Vec<_> = ["max_connections", "max_pending_requests", "max_requests"]
                .into_iter()
                .filter(|name| at.get(name).number().unwrap_or(BREAKER) <= BREAKER)
                .collect();
            if !low.is_empty() {
                hits.push(Hit::new(&at, format!("{} at most {BREAKER}", low.join(", "))));
            }
        }
        hits
    },
};

pub(super) const BUDGET: Rule = Rule {
    id: "retry-budget",
    severity: Warning,
    trap: "only 3 retries may be under way at once, too few when an engine with many requests dies",
    change: "write retry_budget: {budget_percent: {value: 50}, min_retry_concurrency: 32} into the thresholds",
    find: |wiring| {
        let thresholds = wiring.pools().map(thresholds).filter(|at| at.value().is_some_and(Value::is_object));
        let bounded =
            |at: &Place<'_>| !at.get("retry_budget").exists() && at.get("max_retries").number().unwrap_or(3) <= 3;
        thresholds.filter(bounded).map(|at| Hit::new(&at.get("retry_budget"), "missing")).collect()
    },
};

pub(super) const IDLE: Rule = Rule {
    id: "engine-idle-timeout",
    severity: Warning,
    trap: "engines close idle connections after 5 s, and now and then a request is sent on one that is just being closed",
    change: "write common_http_protocol_options: {idle_timeout: 4s} into the cluster's HttpProtocolOptions",
    find: |wiring| {
        let timeouts =
            wiring.pools().map(|cluster| http_options(cluster).at(&["common_http_protocol_options", "idle_timeout"]));
        each_that(timeouts, |timeout| {
            timeout.seconds().is_none_or(|seconds| seconds == 0.0 || seconds >= ENGINE_IDLE_S)
        })
    },
};

pub(super) const PLAIN_KEYS: Rule = Rule {
    id: "plain-keys",
    severity: Warning,
    trap: "an endpoint whose engine speaks TLS is spoken to in plain text, and so is its key",
    change: "take over transport_socket_matches from the cluster in envoy/mesh/envoy-snippet.yaml",
    find: |wiring| {
        let told = wiring.pools().filter(|cluster| cluster.get("type").is("EDS"));
        let open = told.filter(|cluster| {
            let matches = cluster.get("transport_socket_matches").items();
            !cluster.get("transport_socket").exists()
                && !matches.iter().any(|at| at.at(&["match", "weighbridge_tls"]).exists())
        });
        open.map(|cluster| Hit::new(&cluster.get("transport_socket_matches"), "no match for weighbridge_tls")).collect()
    },
};
