//! The router's log of attempts, through which the filter hears of every attempt that failed.

use serde_json::Value;

use super::super::Severity::{Error, Warning};
use super::super::place::Place;
use super::super::wiring::is_router;
use super::{Hit, Rule, each_that};

pub(super) const MISSING: Rule = Rule {
    id: "attempts-missing",
    severity: Warning,
    trap: "the filter hears only of the last attempt, and an endpoint whose requests others save is not ejected",
    change: "add the upstream_log of envoy/envoy.yaml to the router's typed_config",
    find: |wiring| {
        // In parts, the router may be somebody else's.
        if !wiring.attempts.is_empty() || wiring.fragment {
            return Vec::new();
        }
        let routers =
            wiring.managers.iter().filter_map(|manager| manager.filters.iter().find(|filter| is_router(filter)));
        each_that(routers.map(|router| router.typed().get("upstream_log")), |_| true)
    },
};

pub(super) const VM: Rule = Rule {
    id: "attempts-vm",
    severity: Error,
    trap: "it runs in another VM, and the filter hears nothing",
    change: "give both the same vm_id, code, configuration and environment",
    find: |wiring| {
        let Some(filter) = wiring.filters().find(Place::exists).map(|config| config.get("vm_config")) else {
            return Vec::new();
        };
        let mut hits = Vec::new();
        for log in &wiring.attempts {
            let vm = log.typed().at(&["config", "vm_config"]);
            // What Envoy tells VMs apart by.
            for part in ["vm_id", "code", "configuration", "environment_variables"] {
                let (ours, theirs) = (filter.get(part), vm.get(part));
                if ours.value() != theirs.value() {
                    hits.push(Hit::new(&theirs, format!("{}, and the filter's is {}", brief(&theirs), brief(&ours))));
                }
            }
        }
        hits
    },
};

fn brief(place: &Place<'_>) -> String {
    match place.value() {
        Some(Value::Object(_)) => place.value().map(ToString::to_string).unwrap_or_default(),
        _ => place.shown(),
    }
}

pub(super) const ROOT_ID: Rule = Rule {
    id: "attempts-root-id",
    severity: Error,
    trap: "the module takes its part as a log only under the root weighbridge-attempts",
    change: "write root_id: weighbridge-attempts",
    find: |wiring| {
        let ids = wiring.attempts.iter().map(|log| log.typed().at(&["config", "root_id"]));
        each_that(ids, |id| !id.is("weighbridge-attempts"))
    },
};
