//! Timeouts, retries and bodies of the routes that lead where the filter says.

use super::super::Severity::{Error, Warning};
use super::super::place::Place;
use super::super::wiring::{Route, Routing, Wiring, http_options};
use super::{Hit, Rule, each_that};

/// Envoy's default for a stream without bytes, in s.
const STREAM_IDLE_S: f64 = 300.0;
/// How long an answer must be allowed to take where nothing says how long an attempt may be silent, in s: as the shipped files.
const ANSWER_S: f64 = 900.0;
/// What Envoy buffers of a connection by default, and all that the shipped files let it.
const DEFAULT_BUFFER: u64 = 1 << 20;

pub(super) const ELSEWHERE: Rule = Rule {
    id: "routes-elsewhere",
    severity: Warning,
    trap: "the routes come over RDS and are not checked here",
    change: "compare them with the routes of envoy/mesh/envoy-snippet.yaml, or check them as a file with `routes:`",
    find: |wiring| {
        let elsewhere = wiring.managers.iter().filter(|manager| manager.routing == Routing::Elsewhere);
        elsewhere.map(|manager| Hit::new(&manager.at.get("route_config"), "missing")).collect()
    },
};

pub(super) const MISSING: Rule = Rule {
    id: "routes-missing",
    severity: Error,
    trap: "what the filter has decided leads nowhere",
    change: "put the routes of envoy/mesh/envoy-snippet.yaml first into the virtual host",
    find: |wiring| {
        let without =
            wiring.managers.iter().filter(|manager| manager.routing == Routing::Here && manager.routes.is_empty());
        let name = if wiring.fragment { "routes" } else { "route_config" };
        without
            .map(|manager| Hit::new(&manager.at.get(name), "no route with cluster_header: x-weighbridge-cluster"))
            .collect()
    },
};

/// How long an attempt of the route may be silent, in s; nothing where no attempt is given up for it.
fn silence(route: &Route<'_>) -> Option<f64> {
    route.retries.get("per_try_idle_timeout").seconds().filter(|seconds| *seconds > 0.0)
}

/// A bound of a whole answer, in s.
enum Bound {
    /// An answer that is not streamed may be silent for longer.
    Short,
    /// Only what takes very long is cut off.
    Long,
}

/// What a bound of so many seconds is; nothing when there is none.
fn bound(seconds: f64, silence: Option<f64>) -> Option<Bound> {
    match seconds {
        0.0 => None,
        seconds if seconds < silence.unwrap_or(ANSWER_S) => Some(Bound::Short),
        _ => Some(Bound::Long),
    }
}

/// The timeouts of routes that bound an answer, or leave it to Envoy.
fn timeouts(wiring: &Wiring<'_>, wanted: fn(Option<Bound>) -> bool) -> Vec<Hit> {
    let timeouts = wiring.routes().map(|route| (route.action.get("timeout"), silence(route)));
    // Envoy's default is 15 s.
    let of = |at: &Place<'_>, silence| at.seconds().map_or(Some(Bound::Short), |seconds| bound(seconds, silence));
    timeouts.filter(|(at, silence)| wanted(of(at, *silence))).map(|(at, _)| Hit::stands(&at)).collect()
}

pub(super) const TIMEOUT: Rule = Rule {
    id: "route-timeout",
    severity: Error,
    trap: "an answer that takes longer is cut off (15 s by default), however it streams",
    change: "write timeout: 0s; per_try_idle_timeout bounds what is silent",
    find: |wiring| timeouts(wiring, |bound| matches!(bound, Some(Bound::Short))),
};

pub(super) const LONG_TIMEOUT: Rule = Rule {
    id: "long-route-timeout",
    severity: Warning,
    trap: "an answer that takes longer is cut off, however it streams",
    change: "write timeout: 0s; per_try_idle_timeout bounds what is silent",
    find: |wiring| timeouts(wiring, |bound| matches!(bound, Some(Bound::Long))),
};

pub(super) const IDLE: Rule = Rule {
    id: "stream-idle-timeout",
    severity: Error,
    trap: "a stream that is silent during a long prefill is reset (after 5 min by default)",
    change: "write stream_idle_timeout: 0s in the http_connection_manager, or idle_timeout: 0s on each of our routes",
    find: |wiring| {
        let mut hits: Vec<Hit> = Vec::new();
        for manager in &wiring.managers {
            for route in &manager.routes {
                let (own, general) = (route.action.get("idle_timeout"), manager.at.get("stream_idle_timeout"));
                if wiring.fragment && !own.exists() && !general.exists() {
                    // The host's own setting is not seen here.
                    hits.push(
                        Hit::new(&own, "missing")
                            .change("write idle_timeout: 0s on the route: the host's own default is 5 min"),
                    );
                    continue;
                }
                let at = if own.exists() { own } else { general };
                let seconds = at.seconds().unwrap_or(STREAM_IDLE_S);
                // As long as an attempt may be silent is long enough.
                let enough = silence(route).is_some_and(|most| seconds >= most);
                if seconds != 0.0 && !enough && !hits.iter().any(|hit| hit.path == at.path) {
                    hits.push(Hit::stands(&at));
                }
            }
        }
        hits
    },
};

/// Where the options of a connection bound its streams.
fn max_stream_duration<'a>(of: &Place<'a>) -> Place<'a> {
    of.at(&["common_http_protocol_options", "max_stream_duration"])
}

/// The bounds of streams, wherever they may stand: manager, route, and a pool's cluster, where the old place counts, too.
fn durations(wiring: &Wiring<'_>, wanted: fn(Option<Bound>) -> bool) -> Vec<Hit> {
    // What bounds many routes must suit the most patient one.
    let most = wiring.routes().map(|route| silence(route).unwrap_or(ANSWER_S)).reduce(f64::max);
    let managers = wiring.managers.iter().map(|manager| (max_stream_duration(&manager.at), most));
    let routes =
        wiring.routes().map(|route| (route.action.at(&["max_stream_duration", "max_stream_duration"]), silence(route)));
    let clusters = wiring.pools().flat_map(|cluster| [http_options(cluster), cluster.clone()]);
    let all = managers.chain(routes).chain(clusters.map(|at| (max_stream_duration(&at), most)));
    let bounded = all.filter(|(at, silence)| wanted(at.seconds().and_then(|seconds| bound(seconds, *silence))));
    bounded.map(|(at, _)| Hit::stands(&at)).collect()
}

pub(super) const DURATION: Rule = Rule {
    id: "stream-duration",
    severity: Error,
    trap: "a stream is cut off after it, however well it goes",
    change: "leave it out",
    find: |wiring| durations(wiring, |bound| matches!(bound, Some(Bound::Short))),
};

pub(super) const LONG_DURATION: Rule = Rule {
    id: "long-stream-duration",
    severity: Warning,
    trap: "a stream that takes longer is cut off, however well it goes",
    change: "leave it out",
    find: |wiring| durations(wiring, |bound| matches!(bound, Some(Bound::Long))),
};

pub(super) const TRY_TIMEOUT: Rule = Rule {
    id: "per-try-timeout",
    severity: Error,
    trap: "an attempt that takes longer is given up, and made again elsewhere, however far it was",
    change: "leave it out; per_try_idle_timeout bounds what is silent",
    find: |wiring| {
        let timeouts = wiring.routes().map(|route| route.retries.get("per_try_timeout"));
        each_that(timeouts, |timeout| timeout.seconds().is_some_and(|seconds| seconds > 0.0))
    },
};

pub(super) const TRY_IDLE: Rule = Rule {
    id: "per-try-idle-timeout",
    severity: Warning,
    trap: "an engine that hangs holds its requests for ever",
    change: "write per_try_idle_timeout: 900s into the route's retry_policy, or as long as an answer that is not streamed may take",
    find: |wiring| {
        // With another bound of silence, an attempt ends, too.
        let bounded =
            |route: &&Route<'_>| route.action.get("idle_timeout").seconds().is_some_and(|seconds| seconds > 0.0);
        let timeouts =
            wiring.routes().filter(|route| !bounded(route)).map(|route| route.retries.get("per_try_idle_timeout"));
        each_that(timeouts, |timeout| timeout.seconds().is_none_or(|seconds| seconds == 0.0))
    },
};

/// Where a retry is made, and the conditions for one.
fn retry_on<'a>(wiring: &'a Wiring<'_>) -> impl Iterator<Item = (Place<'a>, Vec<String>)> {
    let routes = wiring.routes().filter(|route| !route.once);
    routes.map(|route| {
        let at = route.retries.get("retry_on");
        let conditions = at.text().unwrap_or_default().split(',').map(|word| word.trim().to_owned());
        (at.clone(), conditions.filter(|word| !word.is_empty()).collect())
    })
}

pub(super) const RETRY_ON: Rule = Rule {
    id: "retry-on",
    severity: Error,
    trap: "where an engine dies or refuses, the client gets 503 instead of the next host that the filter named",
    change: "write retry_on: connect-failure,refused-stream,reset,retriable-status-codes",
    find: |wiring| {
        let mut hits = Vec::new();
        for (at, conditions) in retry_on(wiring) {
            let has = |word: &str| conditions.iter().any(|condition| condition == word);
            let lacking = ["connect-failure", "refused-stream", "reset"].into_iter().filter(|word| {
                // 5xx and gateway-error hold what has no answer at all.
                let held = has("5xx") || (has("gateway-error") && *word != "refused-stream");
                !has(word) && !held
            });
            let lacking: Vec<_> = lacking.collect();
            if !lacking.is_empty() {
                hits.push(Hit::new(&at, format!("{} ({} not in it)", at.shown(), lacking.join(", "))));
            }
        }
        hits
    },
};

pub(super) const RETRY_CODES: Rule = Rule {
    id: "retry-codes",
    severity: Warning,
    trap: "an engine that has enough to do (429), is not there (502) or cannot serve now (503) answers the client itself",
    change: "write retriable-status-codes into retry_on, and retriable_status_codes: [429, 502, 503]",
    find: |wiring| {
        let mut hits = Vec::new();
        for route in wiring.routes().filter(|route| !route.once && route.retries.get("retry_on").exists()) {
            let named = route.retries.get("retry_on").text().is_some_and(|on| on.contains("retriable-status-codes"));
            let list = route.retries.get("retriable_status_codes");
            let codes: Vec<_> = list.items().iter().filter_map(Place::number).collect();
            let lacking: Vec<_> = [429, 502, 503].into_iter().filter(|code| !codes.contains(code)).collect();
            if !named {
                let at = route.retries.get("retry_on");
                hits.push(Hit::new(&at, format!("{} (retriable-status-codes not in it)", at.shown())));
            } else if !lacking.is_empty() {
                let lacking = lacking.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                hits.push(Hit::new(&list, format!("{lacking} not in it")));
            }
        }
        hits
    },
};

pub(super) const RETRY_5XX: Rule = Rule {
    id: "retry-5xx",
    severity: Warning,
    trap: "a 500 is an answer: what made one engine fail meets the next, and the next",
    change: "write connect-failure,refused-stream,reset,retriable-status-codes instead",
    find: |wiring| {
        let wide = retry_on(wiring).filter(|(_, conditions)| conditions.iter().any(|condition| condition == "5xx"));
        wide.map(|(at, _)| Hit::stands(&at)).collect()
    },
};

pub(super) const RETRIES: Rule = Rule {
    id: "num-retries",
    severity: Warning,
    trap: "the filter names several hosts, and most of them are never tried (the default is 1)",
    change: "write num_retries: 2",
    find: |wiring| {
        let routes = wiring.routes().filter(|route| !route.once && route.retries.get("retry_on").exists());
        each_that(routes.map(|route| route.retries.get("num_retries")), |count| count.number().unwrap_or(1) < 2)
    },
};

pub(super) const BODY_LIMIT: Rule = Rule {
    id: "body-limit",
    severity: Error,
    trap: "Envoy answers 413 before the filter, whose max_body is what counts, has seen the body",
    change: "raise request_body_buffer_limit on the route",
    find: |wiring| {
        let max_body = wiring.expected.max_body;
        let needed = max_body.saturating_add(1 << 20);
        let mut hits = Vec::new();
        for manager in &wiring.managers {
            let connection = manager
                .listener
                .as_ref()
                .and_then(|listener| listener.get("per_connection_buffer_limit_bytes").number());
            for route in &manager.routes {
                let limit = route.body_limit.number().unwrap_or(connection.unwrap_or(DEFAULT_BUFFER));
                if limit <= max_body {
                    let found =
                        format!("{} lets in {limit} bytes, and max_body is {max_body}", route.body_limit.shown());
                    hits.push(
                        Hit::new(&route.body_limit, found).change(format!("write request_body_buffer_limit: {needed}")),
                    );
                }
            }
        }
        hits
    },
};

pub(super) const CONNECTION_BUFFER: Rule = Rule {
    id: "connection-buffer",
    severity: Warning,
    trap: "every connection may fill so much, in both directions, whatever it carries",
    change: "write per_connection_buffer_limit_bytes: 1048576, and raise request_body_buffer_limit on the routes instead",
    find: |wiring| {
        let listeners = wiring.managers.iter().filter_map(|manager| manager.listener.as_ref());
        let limits = listeners.chain(wiring.pools()).map(|at| at.get("per_connection_buffer_limit_bytes"));
        each_that(limits, |limit| limit.number().is_some_and(|bytes| bytes > DEFAULT_BUFFER))
    },
};

pub(super) const UPLOAD: Rule = Rule {
    id: "upload-timeout",
    severity: Warning,
    trap: "an upload that stalls holds what it has sent for ever",
    change: "write request_timeout: 120s in the http_connection_manager; it ends with the last byte of the body",
    find: |wiring| {
        let timeouts =
            wiring.managers.iter().filter(|_| !wiring.fragment).map(|manager| manager.at.get("request_timeout"));
        each_that(timeouts, |timeout| timeout.seconds().is_none_or(|seconds| seconds == 0.0))
    },
};
