//! Nobody steers from outside; ours end where the load balancer has read them; an engine cannot speak for the filter.

use weighbridge_bootstrap::CLUSTER_HEADER;

use super::super::Severity::{Error, Warning};
use super::super::place::Place;
use super::super::wiring::{HOST_HEADER, http_options};
use super::{Hit, Rule};

/// What a client must not say.
const OURS: [&str; 4] = [HOST_HEADER, CLUSTER_HEADER, "x-weighbridge-endpoint", "x-weighbridge-decision"];

/// Whether one of these mutations takes the header away.
fn removes(mutations: &[Place<'_>], header: &str) -> bool {
    mutations.iter().any(|mutation| {
        let matcher = mutation.at(&["remove_on_match", "key_matcher"]);
        // Envoy has names in lower case, and a matcher that is not told otherwise takes its text as it stands.
        let ignores_case = matcher.get("ignore_case").flag() == Some(true);
        let lower = |text: &str| if ignores_case { text.to_ascii_lowercase() } else { text.to_owned() };
        let begins = matcher.get("prefix").text().is_some_and(|prefix| header.starts_with(&lower(prefix)));
        let exact = matcher.get("exact").text().is_some_and(|name| header == lower(name));
        begins || exact || mutation.get("remove").is_header(header)
    })
}

pub(super) const CLIENT: Rule = Rule {
    id: "client-headers",
    severity: Error,
    trap: "a client may send it, and steer its request to any host or cluster, or forge what we say",
    change: "remove it in early_header_mutation_extensions",
    find: |wiring| {
        let mut hits = Vec::new();
        for manager in &wiring.managers {
            let extensions = manager.at.get("early_header_mutation_extensions");
            if wiring.fragment && !extensions.exists() {
                continue;
            }
            let early: Vec<_> =
                extensions.items().iter().flat_map(|extension| extension.typed().get("mutations").items()).collect();
            let kept: Vec<_> = OURS.into_iter().filter(|header| !removes(&early, header)).collect();
            if !kept.is_empty() {
                let lines = kept.iter().map(|header| format!("{{remove: {header}}}")).collect::<Vec<_>>().join(", ");
                let at = extensions.items().first().map_or(extensions, |first| first.typed().get("mutations"));
                let change = format!("add to the mutations of early_header_mutation_extensions: {lines}");
                hits.push(Hit::new(&at, format!("{} not removed", kept.join(", "))).change(change));
            }
        }
        hits
    },
};

pub(super) const TOO_EARLY: Rule = Rule {
    id: "header-removed-early",
    severity: Error,
    trap: "it is gone before the load balancer reads it, which then falls back on its own choice",
    change: "remove it in the cluster's upstream filters instead, as envoy/envoy.yaml does",
    find: |wiring| {
        let mut hits: Vec<Hit> = Vec::new();
        let mut told = |at: &Place<'_>, name: &str| {
            // A level is that of many routes.
            if !hits.iter().any(|hit| hit.path == at.path) {
                hits.push(Hit::new(at, format!("{name} is removed")));
            }
        };
        for level in wiring.routes().flat_map(|route| &route.levels) {
            for name in level.get("request_headers_to_remove").items() {
                if let Some(header) = [HOST_HEADER, CLUSTER_HEADER].into_iter().find(|header| name.is_header(header)) {
                    told(&name, header);
                }
            }
        }
        for manager in &wiring.managers {
            for filter in manager.filters.iter().skip(manager.ours).filter(|filter| filter.is_a("HeaderMutation")) {
                let mutations = filter.typed().at(&["mutations", "request_mutations"]);
                for header in [HOST_HEADER, CLUSTER_HEADER] {
                    if removes(&mutations.items(), header) {
                        told(&mutations, header);
                    }
                }
            }
        }
        hits
    },
};

/// Mutations of the upstream filters of a cluster: all of this kind, and where they stand.
fn upstream<'a>(cluster: &Place<'a>, kind: &str) -> (Place<'a>, Vec<Place<'a>>) {
    let filters = http_options(cluster).get("http_filters");
    let mutations: Vec<_> = filters.items().into_iter().filter(|filter| filter.is_a("HeaderMutation")).collect();
    let lists: Vec<_> = mutations.iter().map(|filter| filter.typed().at(&["mutations", kind])).collect();
    let at = lists.first().cloned().unwrap_or(filters);
    (at, lists.iter().flat_map(Place::items).collect())
}

pub(super) const ENGINE: Rule = Rule {
    id: "engine-headers",
    severity: Error,
    trap: "the engine is told where its neighbours are and what else we say",
    change: "add a header_mutation to the cluster's upstream http_filters: remove_on_match {prefix: x-weighbridge-}, before upstream_codec",
    find: |wiring| {
        let mut hits = Vec::new();
        for cluster in wiring.pools() {
            let (at, mutations) = upstream(cluster, "request_mutations");
            let kept: Vec<_> =
                [HOST_HEADER, CLUSTER_HEADER].into_iter().filter(|header| !removes(&mutations, header)).collect();
            if !kept.is_empty() {
                hits.push(Hit::new(&at, format!("{} not removed", kept.join(", "))));
            }
        }
        hits
    },
};

pub(super) const ANSWER: Rule = Rule {
    id: "answer-headers",
    severity: Warning,
    trap: "an engine can say who answered, and why, in the filter's name",
    change: "add response_mutations to the same header_mutation: remove_on_match {prefix: x-weighbridge-}",
    find: |wiring| {
        let mut hits = Vec::new();
        for cluster in wiring.pools() {
            let (at, mutations) = upstream(cluster, "response_mutations");
            let names = ["x-weighbridge-endpoint", "x-weighbridge-decision"];
            // Without the filter for requests there is none for answers either, and that is told already.
            let none = upstream(cluster, "request_mutations").1.is_empty();
            if !none && names.iter().any(|header| !removes(&mutations, header)) {
                hits.push(Hit::new(&at, "x-weighbridge- headers of engines not removed"));
            }
        }
        hits
    },
};
