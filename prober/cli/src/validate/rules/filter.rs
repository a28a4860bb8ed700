//! The filter and its VM.

use weighbridge_bootstrap::FILTER;
use weighbridge_routing::snapshot::Snapshot;

use super::super::Severity::{Error, Warning};
use super::super::place::Place;
use super::super::wiring::{Wiring, cluster_of, is_router};
use super::{Hit, Rule, each_that};

pub(super) const MISSING: Rule = Rule {
    id: "filter-missing",
    severity: Error,
    trap: "no request is decided",
    change: "put the http_filters of envoy/mesh/envoy-snippet.yaml before the router of the http_connection_manager",
    find: |wiring| {
        let elsewhere = wiring.comes_over("lds") || (wiring.fragment && !wiring.root.get("http_filters").exists());
        if !wiring.managers.is_empty() || elsewhere {
            return Vec::new();
        }
        let at = if wiring.fragment {
            wiring.root.get("http_filters")
        } else {
            wiring.root.at(&["static_resources", "listeners"])
        };
        vec![Hit::new(&at, "no HTTP filter weighbridge")]
    },
};

pub(super) const ELSEWHERE: Rule = Rule {
    id: "listeners-elsewhere",
    severity: Warning,
    trap: "the listeners come over LDS, and neither filter nor routes are checked here",
    change: "check them as a file with `http_filters:`, `routes:` and what else envoy/mesh/envoy-snippet.yaml has",
    find: |wiring| {
        if !wiring.managers.is_empty() || !wiring.comes_over("lds") {
            return Vec::new();
        }
        vec![Hit::new(&wiring.root.at(&["static_resources", "listeners"]), "no HTTP filter weighbridge")]
    },
};

pub(super) const ORDER: Rule = Rule {
    id: "filter-order",
    severity: Error,
    trap: "the router ends the chain, and what comes after it sees no request",
    change: "move the filter before the router, which must be last",
    find: |wiring| {
        let mut hits = Vec::new();
        for manager in &wiring.managers {
            let router = manager.filters.iter().position(is_router);
            if router.is_some_and(|router| router < manager.ours) {
                hits.push(Hit::new(manager.filter(), "weighbridge stands after the router"));
            }
        }
        hits
    },
};

pub(super) const DEFAULT: Rule = Rule {
    id: "filter-default",
    severity: Error,
    trap: "until the prober has been heard, every request of the listener is answered 500",
    change: "add a default_config as in envoy/envoy.yaml, with version 0 and the pools that you know, or none",
    find: |wiring| {
        let discoveries = wiring.managers.iter().map(|manager| manager.filter().get("config_discovery"));
        let defaults = discoveries.filter(Place::exists).map(|discovery| discovery.get("default_config"));
        each_that(defaults, |default| !default.exists())
    },
};

pub(super) const BODY_WAIT: Rule = Rule {
    id: "body-wait",
    severity: Error,
    trap: "the filter waits for the body in the headers callback, and without this the request hangs for ever",
    change: "write allow_on_headers_stop_iteration: true",
    find: |wiring| {
        let flags = wiring.filters().filter(Place::exists).map(|config| config.get("allow_on_headers_stop_iteration"));
        each_that(flags, |flag| flag.flag() != Some(true))
    },
};

pub(super) const FAILURE_POLICY: Rule = Rule {
    id: "failure-policy",
    severity: Error,
    trap: "after one trap a worker answers 503 (or goes on undecided) until Envoy restarts",
    change: "write failure_policy: FAIL_RELOAD, with a reload_config as in envoy/envoy.yaml",
    find: |wiring| {
        let policies = wiring.plugins().map(|config| config.get("failure_policy"));
        each_that(policies, |policy| !policy.is("FAIL_RELOAD"))
    },
};

pub(super) const VM_ID: Rule = Rule {
    id: "vm-id",
    severity: Error,
    trap: "what the prober sends runs in the VM weighbridge, and would not find this one's shared data",
    change: "write vm_id: weighbridge",
    find: |wiring| {
        let ids = wiring.filters().filter(Place::exists).map(|config| config.at(&["vm_config", "vm_id"]));
        each_that(ids, |id| !id.is(FILTER))
    },
};

pub(super) const ROOT_ID: Rule = Rule {
    id: "root-id",
    severity: Error,
    trap: "the module makes its filter only for the root weighbridge",
    change: "write root_id: weighbridge",
    find: |wiring| {
        each_that(wiring.filters().filter(Place::exists).map(|config| config.get("root_id")), |id| !id.is(FILTER))
    },
};

pub(super) const RUNTIME: Rule = Rule {
    id: "runtime",
    severity: Error,
    trap: "only V8 runs the module",
    change: "write runtime: envoy.wasm.runtime.v8",
    find: |wiring| {
        let runtimes = wiring.plugins().map(|config| config.at(&["vm_config", "runtime"]));
        each_that(runtimes, |runtime| !runtime.is("envoy.wasm.runtime.v8"))
    },
};

fn capabilities<'a>(config: &Place<'a>) -> Place<'a> {
    config.at(&["vm_config", "capability_restriction_config", "allowed_capabilities"])
}

/// What the shipped configuration lets the module do; a test compares that with the module.
fn needed() -> Vec<String> {
    let shipped = weighbridge_bootstrap::Bootstrap::standalone().map(weighbridge_bootstrap::Bootstrap::into_value);
    let Ok(shipped) = shipped else { return Vec::new() };
    let expected = super::super::Expected::default();
    let wiring = Wiring::of(&shipped, false, &expected);
    let lists = wiring.filters().filter_map(|config| capabilities(&config).value()?.as_object());
    lists.flat_map(|list| list.keys().cloned()).collect()
}

pub(super) const CAPABILITIES: Rule = Rule {
    id: "capabilities",
    severity: Error,
    trap: "the module cannot do its work",
    change: "take over allowed_capabilities from envoy/envoy.yaml",
    find: |wiring| {
        let needed = needed();
        let mut hits = Vec::new();
        for list in wiring.plugins().map(|config| capabilities(&config)) {
            let Some(allowed) = list.value().and_then(|value| value.as_object()).filter(|allowed| !allowed.is_empty())
            else {
                continue;
            };
            let lacking: Vec<_> =
                needed.iter().filter(|name| !allowed.contains_key(*name)).map(String::as_str).collect();
            if !lacking.is_empty() {
                let add = lacking.iter().map(|name| format!("{name}: {{}}")).collect::<Vec<_>>().join(", ");
                hits.push(Hit::new(&list, format!("{} not allowed", lacking.join(", "))).change(format!("add {add}")));
            }
        }
        hits
    },
};

pub(super) const SANDBOX: Rule = Rule {
    id: "sandbox",
    severity: Warning,
    trap: "the module may do everything that Envoy offers, and needs little of it",
    change: "take over capability_restriction_config from envoy/envoy.yaml",
    find: |wiring| {
        each_that(wiring.plugins().map(|config| capabilities(&config)), |list| {
            list.value().and_then(|value| value.as_object()).is_none_or(|allowed| allowed.is_empty())
        })
    },
};

pub(super) const SNAPSHOT: Rule = Rule {
    id: "snapshot",
    severity: Error,
    trap: "the filter refuses it, and Envoy its configuration",
    change: "correct it; {\"format\": 1, \"version\": 0, \"pools\": []} is the least that does",
    find: |wiring| {
        let mut hits = Vec::new();
        for snapshot in &wiring.snapshots {
            if let Err(error) = Snapshot::from_json(snapshot.text.as_bytes()) {
                hits.push(Hit::new(&snapshot.at, format!("no snapshot ({error})")));
            }
        }
        hits
    },
};

pub(super) const SNAPSHOT_VERSION: Rule = Rule {
    id: "snapshot-version",
    severity: Warning,
    trap: "a static snapshot gives way to the prober's only while its version is lower",
    change: "write \"version\": 0",
    find: |wiring| {
        let mut hits = Vec::new();
        for snapshot in &wiring.snapshots {
            let version = snapshot.json.as_ref().and_then(|json| json.get("version")?.as_u64()).unwrap_or(0);
            if version > 0 {
                hits.push(Hit::new(&snapshot.at, format!("version {version}")));
            }
        }
        hits
    },
};

pub(super) const SNAPSHOT_CLUSTER: Rule = Rule {
    id: "snapshot-cluster",
    severity: Error,
    trap: "a request that the static snapshot decides is answered 503",
    change: "name a cluster of static_resources.clusters, such as `<pool>-static`",
    find: |wiring| {
        // Somebody's CDS may have it. The prober's has it too late for a static snapshot.
        if wiring.fragment || (wiring.comes_over("cds") && !wiring.clusters_are_told()) {
            return Vec::new();
        }
        let mut hits = Vec::new();
        for (at, pool) in wiring.snapshot_pools() {
            let Some(cluster) = cluster_of(pool) else { continue };
            if wiring.cluster(cluster).is_none() {
                hits.push(Hit::new(at, format!("there is no cluster {cluster:?}")));
            }
        }
        hits
    },
};
