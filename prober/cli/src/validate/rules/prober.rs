//! How Envoy hears the prober, and how soon it gives up waiting.

use weighbridge_bootstrap::{PROBER_CLUSTER, XDS_CLUSTER};

use super::super::Severity::{Error, Warning};
use super::super::place::Place;
use super::super::wiring::{Wiring, http_options};
use super::{Hit, Rule, each_that};

/// The longest that a start should wait for a prober that is away, in s.
const FETCH_S: f64 = 2.0;

/// The clusters that lead to the prober's xDS.
fn xds<'a>(wiring: &'a Wiring<'a>) -> Vec<&'a Place<'a>> {
    let names: Vec<_> =
        wiring.services().iter().filter_map(|service| service.at(&["envoy_grpc", "cluster_name"]).text()).collect();
    wiring
        .clusters
        .iter()
        .filter(|cluster| cluster.get("name").text().is_some_and(|name| names.contains(&name)))
        .collect()
}

pub(super) const CLUSTER: Rule = Rule {
    id: "xds-cluster",
    severity: Error,
    trap: "Envoy refuses the configuration, or never hears the prober",
    change: "add the cluster weighbridge-xds of envoy/envoy.yaml, with the prober's address",
    find: |wiring| {
        // A fragment without clusters leaves them to somebody else.
        if wiring.fragment && !wiring.root.get("clusters").exists() {
            return Vec::new();
        }
        let services = wiring.services();
        let names = services.iter().map(|service| service.at(&["envoy_grpc", "cluster_name"]));
        let mut hits: Vec<Hit> = Vec::new();
        for name in names.filter(|name| name.text().is_some_and(|name| wiring.cluster(name).is_none())) {
            let found = format!("there is no cluster {}", name.shown());
            // One cluster is missing once, however many streams would use it.
            if !hits.iter().any(|hit| hit.found == found) {
                hits.push(Hit::new(&name, found));
            }
        }
        hits
    },
};

pub(super) const HTTP2: Rule = Rule {
    id: "xds-http2",
    severity: Error,
    trap: "xDS is gRPC, and over HTTP/1 there is none",
    change: "write explicit_http_config: {http2_protocol_options: {connection_keepalive: {interval: 10s, timeout: 3s}}}",
    find: |wiring| {
        let options = xds(wiring)
            .into_iter()
            .map(|cluster| http_options(cluster).at(&["explicit_http_config", "http2_protocol_options"]));
        let old = |at: &Place<'_>| at.exists();
        let plain: Vec<_> = xds(wiring).into_iter().map(|cluster| cluster.get("http2_protocol_options")).collect();
        options
            .zip(plain)
            .filter(|(new, deprecated)| !old(new) && !old(deprecated))
            .map(|(new, _)| Hit::stands(&new))
            .collect()
    },
};

pub(super) const KEEPALIVE: Rule = Rule {
    id: "xds-keepalive",
    severity: Warning,
    trap: "a prober that vanished without closing its connection is not noticed, and what it would say is not heard",
    change: "write connection_keepalive: {interval: 10s, timeout: 3s} into http2_protocol_options",
    find: |wiring| {
        let options = xds(wiring)
            .into_iter()
            .map(|cluster| http_options(cluster).at(&["explicit_http_config", "http2_protocol_options"]));
        each_that(options.filter(Place::exists).map(|at| at.at(&["connection_keepalive", "interval"])), |at| {
            !at.exists()
        })
    },
};

pub(super) const FETCH: Rule = Rule {
    id: "initial-fetch-timeout",
    severity: Warning,
    trap: "Envoy's start (or the listener) waits so long for a prober that is away: 15 s by default",
    change: "write initial_fetch_timeout: 0.3s (1s where the host is not only ours)",
    find: |wiring| {
        let timeouts = wiring.sources().into_iter().map(|source| source.get("initial_fetch_timeout"));
        // 0 s waits for ever.
        each_that(timeouts, |timeout| !timeout.seconds().is_some_and(|seconds| seconds > 0.0 && seconds <= FETCH_S))
    },
};

pub(super) const BACKOFF: Rule = Rule {
    id: "xds-backoff",
    severity: Warning,
    trap: "a prober that is back is heard only after Envoy's own back-off, which grows to 30 s",
    change: "write retry_policy: {retry_back_off: {base_interval: 0.1s, max_interval: 1s}} beside cluster_name",
    find: |wiring| {
        let services = wiring.services();
        let backoffs = services.iter().map(|service| service.at(&["envoy_grpc", "retry_policy", "retry_back_off"]));
        each_that(backoffs, |backoff| !backoff.exists())
    },
};

pub(super) const API: Rule = Rule {
    id: "prober-cluster",
    severity: Warning,
    trap: "the filter tells and hears nothing: no load of other Envoys, no decision records",
    change: "add the cluster weighbridge-prober of envoy/envoy.yaml, with the address of the prober's REST API",
    find: |wiring| {
        let unsaid = wiring.fragment && !wiring.root.get("clusters").exists();
        if unsaid || wiring.cluster(PROBER_CLUSTER).is_some() {
            return Vec::new();
        }
        // Where not even the other one is there, nobody has a prober.
        let alone = wiring.cluster(XDS_CLUSTER).is_none() && wiring.services().is_empty();
        if alone { Vec::new() } else { vec![Hit::new(&wiring.list_of_clusters(), "no cluster weighbridge-prober")] }
    },
};
