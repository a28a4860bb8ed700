//! Metrics, access log, admin interface.

use std::net::IpAddr;

use super::super::Severity::Warning;
use super::super::place::Place;
use super::super::wiring::Wiring;
use super::{Hit, Rule, each_that};

/// Where labels of metrics are made.
fn stats<'a>(wiring: &Wiring<'a>, name: &str) -> Place<'a> {
    if wiring.fragment { wiring.root.get(name) } else { wiring.root.at(&["stats_config", name]) }
}

/// Parts may leave it to the host.
fn unsaid(wiring: &Wiring<'_>, at: &Place<'_>) -> bool {
    wiring.fragment && !at.exists()
}

pub(super) const TAGS: Rule = Rule {
    id: "stats-tags",
    severity: Warning,
    trap: "metrics have pool, endpoint and reason in their names instead of labels, and dashboards and alerts find nothing",
    change: "take over stats_config.stats_tags from envoy/envoy.yaml",
    find: |wiring| {
        let tags = stats(wiring, "stats_tags");
        if unsaid(wiring, &tags) {
            return Vec::new();
        }
        let made: Vec<_> = tags
            .items()
            .iter()
            .filter(|tag| tag.get("regex").text().is_some_and(|regex| regex.contains("weighbridge")))
            .filter_map(|tag| tag.get("tag_name").text())
            .collect();
        let lacking: Vec<_> =
            ["pool", "endpoint", "reason", "result"].into_iter().filter(|name| !made.contains(name)).collect();
        if lacking.is_empty() { Vec::new() } else { vec![Hit::new(&tags, format!("no tag {}", lacking.join(", ")))] }
    },
};

pub(super) const BUCKETS: Rule = Rule {
    id: "histogram-buckets",
    severity: Warning,
    trap: "waits and times to the first token fall into Envoy's own buckets, which end too early for a p99",
    change: "take over stats_config.histogram_bucket_settings from envoy/envoy.yaml",
    find: |wiring| {
        let settings = stats(wiring, "histogram_bucket_settings");
        let ours = |setting: &Place<'_>| {
            setting.at(&["match", "prefix"]).text().is_some_and(|prefix| prefix.contains("weighbridge"))
        };
        if unsaid(wiring, &settings) || settings.items().iter().any(ours) {
            return Vec::new();
        }
        vec![Hit::new(&settings, "no buckets for wasmcustom.weighbridge_")]
    },
};

pub(super) const DECISIONS: Rule = Rule {
    id: "decision-log",
    severity: Warning,
    trap: "when somebody asks why a request was slow, only the prober's sample is left",
    change: "add decision: \"%FILTER_STATE(wasm.weighbridge.decision:PLAIN)%\" to the access log's json_format",
    find: |wiring| {
        let logs = wiring.managers.iter().map(|manager| manager.at.get("access_log"));
        let logs = logs.filter(|log| !unsaid(wiring, log));
        each_that(logs, |log| log.value().is_none_or(|value| !value.to_string().contains("wasm.weighbridge.decision")))
    },
};

pub(super) const ADMIN: Rule = Rule {
    id: "admin-exposed",
    severity: Warning,
    trap: "whoever reaches it reads the keys of engines (/config_dump?include_eds), and can stop Envoy",
    change: "let the admin interface listen on 127.0.0.1",
    find: |wiring| {
        let address = wiring.root.at(&["admin", "address", "socket_address", "address"]);
        each_that(std::iter::once(address), |address| {
            address.text().is_some_and(|text| text.parse::<IpAddr>().is_ok_and(|ip| !ip.is_loopback()))
        })
    },
};
