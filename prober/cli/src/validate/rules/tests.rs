//! Each rule is broken by one edit of a shipped file, and nothing else is found. The ten that the real Envoy starts with are in
//! `tests/harness/tests/cli.rs`, too.

use serde_json::{Value, json};
use weighbridge_bootstrap::{SNIPPET, STANDALONE};

use super::super::{Expected, Finding, check};
use super::RULES;

const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
const HTTP: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// What an edit does.
enum Edit {
    Set(String, Value),
    Unset(String),
    /// A whole text for another, everywhere.
    Replace(&'static str, &'static str),
}
use Edit::{Replace, Set, Unset};

impl Edit {
    fn apply(&self, text: &str) -> String {
        if let Replace(from, to) = self {
            assert!(text.contains(from), "{from}");
            return text.replace(from, to);
        }
        let mut document: Value = serde_yaml_ng::from_str(text).unwrap();
        let (Set(pointer, _) | Unset(pointer)) = self else { unreachable!() };
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
        match self {
            Unset(_) => match parent {
                Value::Array(list) => drop(list.remove(key.parse().unwrap())),
                parent => assert!(parent.as_object_mut().unwrap().remove(key).is_some(), "no {pointer}"),
            },
            Set(_, value) if parent.is_array() => parent[key.parse::<usize>().unwrap()] = value.clone(),
            Set(_, value) => parent[key] = value.clone(),
            Replace(..) => unreachable!(),
        }
        document.to_string()
    }
}

fn findings(text: &str) -> Vec<Finding> {
    check(text, &Expected::default()).unwrap().findings
}

/// A field of the http_connection_manager.
fn manager(rest: &str) -> String {
    format!("{MANAGER}/{rest}")
}

/// Of the filter's `config`.
fn filter(rest: &str) -> String {
    manager(&format!("http_filters/0/config_discovery/default_config/config/{rest}"))
}

/// Of the route `decided`.
fn decided(rest: &str) -> String {
    manager(&format!("route_config/virtual_hosts/0/routes/1/{rest}"))
}

/// Of the cluster of the static pool.
fn pool(rest: &str) -> String {
    format!("/static_resources/clusters/2/{rest}")
}

/// Of its override_host policy.
fn policy(rest: &str) -> String {
    pool(&format!("load_balancing_policy/policies/0/typed_extension_config/typed_config/{rest}"))
}

/// Of the cluster of xDS.
fn xds(rest: &str) -> String {
    format!("/static_resources/clusters/0/{rest}")
}

/// Of the log of attempts.
fn attempts(rest: &str) -> String {
    manager(&format!("http_filters/1/typed_config/upstream_log/0/{rest}"))
}

/// Rule, edit, where it is found (the end of the path).
fn standalone() -> Vec<(&'static str, Edit, &'static str)> {
    let snapshot = |text: &str| Set(filter("configuration/value"), text.into());
    let mutations = |nth: usize| manager(&format!("early_header_mutation_extensions/0/typed_config/mutations/{nth}"));
    let upstream = |rest: &str| pool(&format!("typed_extension_protocol_options/{HTTP}/{rest}"));
    let options = |rest: &str| xds(&format!("typed_extension_protocol_options/{HTTP}/explicit_http_config/{rest}"));
    let reset = "connect-failure,refused-stream,retriable-status-codes";
    vec![
        ("filter-missing", Unset(manager("http_filters/0")), "static_resources.listeners"),
        (
            "filter-default",
            Unset(manager("http_filters/0/config_discovery/default_config")),
            "config_discovery.default_config",
        ),
        ("body-wait", Unset(filter("allow_on_headers_stop_iteration")), "config.allow_on_headers_stop_iteration"),
        ("failure-policy", Set(filter("failure_policy"), "FAIL_CLOSED".into()), "config.failure_policy"),
        (
            "failure-policy",
            Unset(attempts("typed_config/config/failure_policy")),
            "upstream_log[0].typed_config.config.failure_policy",
        ),
        ("vm-id", Replace("vm_id: weighbridge", "vm_id: gateway"), "vm_config.vm_id"),
        ("root-id", Set(filter("root_id"), "llm".into()), "config.root_id"),
        ("runtime", Set(filter("vm_config/runtime"), "envoy.wasm.runtime.wamr".into()), "vm_config.runtime"),
        (
            "capabilities",
            Unset(filter("vm_config/capability_restriction_config/allowed_capabilities/proxy_get_shared_data")),
            "capability_restriction_config.allowed_capabilities",
        ),
        (
            "sandbox",
            Unset(filter("vm_config/capability_restriction_config")),
            "capability_restriction_config.allowed_capabilities",
        ),
        ("snapshot", snapshot(r#"{"format": 1, "version": 0}"#), "configuration.value"),
        ("attempts-missing", Unset(manager("http_filters/1/typed_config/upstream_log")), "typed_config.upstream_log"),
        ("attempts-vm", Set(attempts("typed_config/config/vm_config/vm_id"), "attempts".into()), "vm_config.vm_id"),
        (
            "attempts-vm",
            Set(attempts("typed_config/config/vm_config/code/local/filename"), "other.wasm".into()),
            "vm_config.code",
        ),
        ("attempts-root-id", Set(attempts("typed_config/config/root_id"), "weighbridge".into()), "config.root_id"),
        ("client-headers", Unset(mutations(0)), "early_header_mutation_extensions[0].typed_config.mutations"),
        ("client-headers", Unset(manager("early_header_mutation_extensions")), "early_header_mutation_extensions"),
        (
            "header-removed-early",
            Set(decided("request_headers_to_remove"), json!(["x-weighbridge-host"])),
            "routes[1].request_headers_to_remove[0]",
        ),
        (
            "header-removed-early",
            Set(manager("route_config/request_headers_to_remove"), json!(["x-weighbridge-host"])),
            "route_config.request_headers_to_remove[0]",
        ),
        ("engine-headers", Unset(upstream("http_filters/0")), "http_filters"),
        (
            "header-removed-early",
            Set(decided("request_headers_to_remove"), json!(["X-Weighbridge-Host"])),
            "routes[1].request_headers_to_remove[0]",
        ),
        (
            "engine-headers",
            Set(
                upstream("http_filters/0/typed_config/mutations/request_mutations"),
                json!([{"remove_on_match": {"key_matcher": {"prefix": "X-Weighbridge-"}}}]),
            ),
            "request_mutations",
        ),
        (
            "engine-headers",
            Set(upstream("http_filters/0/typed_config/mutations/request_mutations"), json!([])),
            "request_mutations",
        ),
        (
            "answer-headers",
            Unset(upstream("http_filters/0/typed_config/mutations/response_mutations")),
            "response_mutations",
        ),
        ("routes-elsewhere", Unset(manager("route_config")), "typed_config.route_config"),
        (
            "routes-missing",
            Replace("cluster_header: x-weighbridge-cluster", "cluster: qwen-27b-static"),
            "route_config",
        ),
        ("route-timeout", Unset(decided("route/timeout")), "routes[1].route.timeout"),
        ("route-timeout", Set(decided("route/timeout"), "600s".into()), "routes[1].route.timeout"),
        ("long-route-timeout", Set(decided("route/timeout"), "900s".into()), "routes[1].route.timeout"),
        ("stream-idle-timeout", Unset(manager("stream_idle_timeout")), "typed_config.stream_idle_timeout"),
        ("stream-idle-timeout", Set(decided("route/idle_timeout"), "60s".into()), "routes[1].route.idle_timeout"),
        (
            "stream-duration",
            Set(manager("common_http_protocol_options/max_stream_duration"), "300s".into()),
            "common_http_protocol_options.max_stream_duration",
        ),
        (
            "stream-duration",
            Set(upstream("common_http_protocol_options/max_stream_duration"), "300s".into()),
            "HttpProtocolOptions\"].common_http_protocol_options.max_stream_duration",
        ),
        (
            "stream-duration",
            Set(pool("common_http_protocol_options"), json!({"max_stream_duration": "300s"})),
            "clusters[2].common_http_protocol_options.max_stream_duration",
        ),
        (
            "long-stream-duration",
            Set(pool("common_http_protocol_options"), json!({"max_stream_duration": "3600s"})),
            "clusters[2].common_http_protocol_options.max_stream_duration",
        ),
        (
            "long-stream-duration",
            Set(decided("route/max_stream_duration"), json!({"max_stream_duration": "900s"})),
            "route.max_stream_duration.max_stream_duration",
        ),
        (
            "per-try-timeout",
            Set(decided("route/retry_policy/per_try_timeout"), "30s".into()),
            "retry_policy.per_try_timeout",
        ),
        (
            "per-try-idle-timeout",
            Unset(decided("route/retry_policy/per_try_idle_timeout")),
            "retry_policy.per_try_idle_timeout",
        ),
        ("retry-on", Set(decided("route/retry_policy/retry_on"), reset.into()), "retry_policy.retry_on"),
        ("retry-on", Unset(decided("route/retry_policy/retry_on")), "retry_policy.retry_on"),
        (
            "retry-codes",
            Set(decided("route/retry_policy/retriable_status_codes"), json!([503])),
            "retriable_status_codes",
        ),
        (
            "retry-codes",
            Set(decided("route/retry_policy/retry_on"), "connect-failure,refused-stream,reset".into()),
            "retry_on",
        ),
        (
            "retry-5xx",
            Set(
                decided("route/retry_policy/retry_on"),
                "5xx,connect-failure,refused-stream,reset,retriable-status-codes".into(),
            ),
            "retry_policy.retry_on",
        ),
        ("num-retries", Unset(decided("route/retry_policy/num_retries")), "retry_policy.num_retries"),
        (
            "body-limit",
            Set(decided("request_body_buffer_limit"), (1 << 20).into()),
            "routes[1].request_body_buffer_limit",
        ),
        ("body-limit", Unset(decided("request_body_buffer_limit")), "routes[1].request_body_buffer_limit"),
        (
            "connection-buffer",
            Set("/static_resources/listeners/0/per_connection_buffer_limit_bytes".into(), (64 << 20).into()),
            "listeners[0].per_connection_buffer_limit_bytes",
        ),
        ("upload-timeout", Unset(manager("request_timeout")), "typed_config.request_timeout"),
        ("override-host", Unset(pool("load_balancing_policy")), "clusters[2].load_balancing_policy"),
        (
            "override-header",
            Set(policy("override_host_sources/0/header"), "x-host".into()),
            "override_host_sources[0].header",
        ),
        ("override-fallback", Unset(policy("fallback_policy")), "fallback_policy.policies"),
        ("static-name", Replace("qwen-27b-static", "qwen-27b"), "clusters[2].name"),
        (
            "outlier-detection",
            Set(pool("outlier_detection"), json!({"consecutive_5xx": 5})),
            "clusters[2].outlier_detection",
        ),
        ("health-checks", Set(pool("health_checks"), json!([{"timeout": "1s"}])), "clusters[2].health_checks"),
        ("circuit-breakers", Unset(pool("circuit_breakers")), "clusters[2].circuit_breakers.thresholds"),
        (
            "circuit-breakers",
            Unset(pool("circuit_breakers/thresholds/0/max_requests")),
            "circuit_breakers.thresholds[0]",
        ),
        ("retry-budget", Unset(pool("circuit_breakers/thresholds/0/retry_budget")), "thresholds[0].retry_budget"),
        (
            "engine-idle-timeout",
            Unset(upstream("common_http_protocol_options")),
            "common_http_protocol_options.idle_timeout",
        ),
        (
            "xds-http2",
            Set(options("http2_protocol_options"), Value::Null),
            "explicit_http_config.http2_protocol_options",
        ),
        (
            "xds-keepalive",
            Unset(options("http2_protocol_options/connection_keepalive")),
            "connection_keepalive.interval",
        ),
        (
            "initial-fetch-timeout",
            Unset("/dynamic_resources/cds_config/initial_fetch_timeout".into()),
            "cds_config.initial_fetch_timeout",
        ),
        (
            "initial-fetch-timeout",
            Set(manager("http_filters/0/config_discovery/config_source/initial_fetch_timeout"), "15s".into()),
            "config_source.initial_fetch_timeout",
        ),
        (
            "xds-backoff",
            Unset("/dynamic_resources/ads_config/grpc_services/0/envoy_grpc/retry_policy".into()),
            "retry_policy.retry_back_off",
        ),
        ("xds-cluster", Set(xds("name"), "prober".into()), "grpc_services[0].envoy_grpc.cluster_name"),
        ("prober-cluster", Unset("/static_resources/clusters/1".into()), "static_resources.clusters"),
        ("stats-tags", Unset("/stats_config/stats_tags/1".into()), "stats_config.stats_tags"),
        (
            "histogram-buckets",
            Unset("/stats_config/histogram_bucket_settings".into()),
            "stats_config.histogram_bucket_settings",
        ),
        (
            "decision-log",
            Unset(manager("access_log/0/typed_config/log_format/json_format/decision")),
            "typed_config.access_log",
        ),
        (
            "admin-exposed",
            Set("/admin/address/socket_address/address".into(), "0.0.0.0".into()),
            "admin.address.socket_address.address",
        ),
    ]
}

/// The same of the snippet.
fn snippet() -> Vec<(&'static str, Edit, &'static str)> {
    vec![
        ("plain-keys", Unset("/clusters/2/transport_socket_matches".into()), "clusters[2].transport_socket_matches"),
        ("stream-idle-timeout", Unset("/routes/1/route/idle_timeout".into()), "routes[1].route.idle_timeout"),
        (
            "initial-fetch-timeout",
            Unset("/clusters/2/eds_cluster_config/eds_config/initial_fetch_timeout".into()),
            "initial_fetch_timeout",
        ),
        ("client-headers", Unset("/early_header_mutation_extensions/0/typed_config/mutations/0".into()), "mutations"),
        ("override-host", Unset("/clusters/2/load_balancing_policy".into()), "clusters[2].load_balancing_policy"),
        ("filter-missing", Unset("/http_filters/0".into()), "http_filters"),
        ("routes-missing", Set("/routes".into(), json!([])), "routes"),
        ("xds-cluster", Unset("/clusters/0".into()), "cluster_name"),
    ]
}

#[test]
fn nothing_is_wrong_with_what_ships() {
    for shipped in [STANDALONE, SNIPPET] {
        assert_eq!(findings(shipped), Vec::new());
        // JSON is what `kubectl` and `/config_dump` people have.
        let value: Value = serde_yaml_ng::from_str(shipped).unwrap();
        assert_eq!(findings(&value.to_string()), Vec::new());
    }
}

#[test]
fn each_trap_is_found_and_nothing_beside_it() {
    let mut found = std::collections::BTreeSet::new();
    let cases = standalone().into_iter().map(|case| (STANDALONE, case));
    for (shipped, (rule, edit, path)) in cases.chain(snippet().into_iter().map(|case| (SNIPPET, case))) {
        let findings = findings(&edit.apply(shipped));
        let [finding] = findings.as_slice() else { panic!("{rule}: {findings:#?}") };
        assert_eq!(finding.rule, rule, "{finding:#?}");
        assert!(finding.path.ends_with(path), "{rule}: {} does not end with {path}", finding.path);
        assert!(!finding.change.is_empty() && !finding.change.contains('\n'), "{finding:#?}");
        found.insert(rule);
    }
    // These take more than one edit, or an order: below.
    let others = ["filter-order", "snapshot-version", "snapshot-cluster", "listeners-elsewhere", "pool-cluster"];
    let missing: Vec<_> =
        RULES.iter().map(|rule| rule.id).filter(|id| !found.contains(id) && !others.contains(id)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
    assert_eq!(
        RULES.iter().map(|rule| rule.id).collect::<std::collections::BTreeSet<_>>().len(),
        RULES.len(),
        "an id twice"
    );
}

#[test]
fn order_and_snapshots_are_looked_at() {
    let mut document: Value = serde_yaml_ng::from_str(STANDALONE).unwrap();
    document.pointer_mut(&manager("http_filters")).unwrap().as_array_mut().unwrap().reverse();
    let found = findings(&document.to_string());
    assert_eq!(found.iter().map(|finding| finding.rule).collect::<Vec<_>>(), ["filter-order"]);
    for (from, to, rule) in [
        ("\"version\": 0", "\"version\": 7", "snapshot-version"),
        ("\"cluster\": \"qwen-27b-static\"", "\"cluster\": \"qwen\"", "snapshot-cluster"),
    ] {
        let found = findings(&STANDALONE.replace(from, to));
        assert_eq!(found.iter().map(|finding| finding.rule).collect::<Vec<_>>(), [rule], "{found:#?}");
    }
}

/// The rules that an edited file breaks.
fn broken(edits: &[Edit]) -> Vec<&'static str> {
    let text = edits.iter().fold(STANDALONE.to_owned(), |text, edit| edit.apply(&text));
    findings(&text).iter().map(|finding| finding.rule).collect()
}

#[test]
fn what_comes_from_elsewhere_is_not_missing() {
    let file = |path: &str| json!({"path_config_source": {"path": path}});
    let none = || Set("/static_resources/listeners".into(), json!([]));
    assert_eq!(broken(&[none()]), ["filter-missing"]);
    for source in ["lds_config", "lds_resources_locator"] {
        let lds = Set(format!("/dynamic_resources/{source}"), file("lds.yaml"));
        assert_eq!(broken(&[none(), lds]), ["listeners-elsewhere"]);
    }
    // With the filter in a static listener, those of others are none of ours.
    assert_eq!(broken(&[Set("/dynamic_resources/lds_config".into(), file("lds.yaml"))]), [""; 0]);

    let renamed = || Replace("\"cluster\": \"qwen-27b-static\"", "\"cluster\": \"qwen\"");
    assert_eq!(broken(&[renamed()]), ["snapshot-cluster"]);
    let cds = Set("/dynamic_resources/cds_config".into(), file("cds.yaml"));
    assert_eq!(broken(&[renamed(), cds]), [""; 0]);
}

#[test]
fn names_of_headers_have_no_case() {
    for (from, to) in [
        ("cluster_header: x-weighbridge-cluster", "cluster_header: X-Weighbridge-Cluster"),
        ("header: x-weighbridge-host", "header: X-Weighbridge-Host"),
        ("name: x-weighbridge-retry", "name: X-Weighbridge-Retry"),
        ("prefix: x-weighbridge-, ignore_case: true", "prefix: X-Weighbridge-, ignore_case: true"),
    ] {
        assert_eq!(broken(&[Replace(from, to)]), [""; 0], "{to}");
    }
}

#[test]
fn a_snapshot_may_be_a_struct() {
    let given = |kind: &str, value: Value| {
        let kind = format!("type.googleapis.com/google.protobuf.{kind}");
        broken(&[Set(filter("configuration"), json!({"@type": kind, "value": value}))])
    };
    assert_eq!(given("Struct", json!({"format": 1, "version": 0, "pools": []})), [""; 0]);
    assert_eq!(given("Struct", json!({"format": 1.0, "version": 7.0, "pools": []})), ["snapshot-version"]);
    assert_eq!(given("Struct", json!({"format": 1, "version": 0})), ["snapshot"]);
    assert_eq!(given("StringValue", json!({"format": 1, "version": 0, "pools": []})), ["snapshot"]);
}

#[test]
fn a_larger_body_of_the_prober_needs_more_room() {
    let expected = Expected { max_body: 32 << 20, ..Expected::default() };
    let findings = check(STANDALONE, &expected).unwrap().findings;
    assert_eq!(findings.len(), 5, "one for each route: {findings:#?}");
    assert!(
        findings.iter().all(|finding| finding.rule == "body-limit" && finding.change.contains("34603008")),
        "{findings:#?}"
    );
}

#[test]
fn a_pool_of_the_prober_must_not_be_static() {
    let expected = Expected { pools: vec!["weighbridge".into(), "qwen-27b-static".into()], ..Expected::default() };
    let findings = check(STANDALONE, &expected).unwrap().findings;
    assert_eq!(findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), ["static-name"]);
}

#[test]
fn a_pool_of_the_prober_has_a_cluster_or_a_cds_that_may_bring_one() {
    let expected = Expected { pools: vec!["chat".into(), "code".into()], ..Expected::default() };
    let missing = |text: &str| {
        let findings = check(text, &expected).unwrap().findings;
        let of_rule = findings.into_iter().filter(|finding| finding.rule == "pool-cluster");
        of_rule.map(|finding| (finding.path, finding.found)).collect::<Vec<_>>()
    };
    let file = |edits: &[Edit]| edits.iter().fold(STANDALONE.to_owned(), |text, edit| edit.apply(&text));
    let no_cds = || Unset("/dynamic_resources/cds_config".into());
    let named = |name: &str| Set(pool("name"), name.into());

    assert_eq!(missing(STANDALONE), [], "the prober tells them");
    let somebody = Set("/dynamic_resources/cds_config".into(), json!({"path_config_source": {"path": "cds.yaml"}}));
    assert_eq!(missing(&file(&[somebody])), [], "somebody tells clusters, and these may be among them");
    let found = missing(&file(&[no_cds()]));
    let [(path, chat), (_, code)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(path, "static_resources.clusters");
    assert!(chat.starts_with("pool \"chat\" of the prober has no cluster \"chat\", and no CDS "), "{chat}");
    assert!(code.starts_with("pool \"code\" of the prober has no cluster \"code\", and no CDS "), "{code}");
    let found = missing(&file(&[no_cds(), named("chat")]));
    assert!(found.len() == 1 && found[0].1.contains("\"code\""), "{found:?}");

    // The static one is the cluster only of a filter that nobody tells of another.
    let snapshot = json!({"format": 1, "version": 0, "pools": [
        {"name": "chat", "cluster": "chat-static", "models": ["chat"], "endpoints": []},
    ]});
    let with_static =
        || vec![no_cds(), named("chat-static"), Set(filter("configuration/value"), snapshot.to_string().into())];
    assert_eq!(missing(&file(&with_static())).len(), 2);
    let mut document: Value = serde_json::from_str(&file(&with_static())).unwrap();
    let ours = document.pointer_mut(&manager("http_filters/0")).unwrap();
    *ours = json!({"name": "weighbridge", "typed_config": ours["config_discovery"]["default_config"]});
    let found = missing(&document.to_string());
    assert!(found.len() == 1 && found[0].1.contains("\"code\""), "{found:?}");

    // Parts that have clusters of pools have all of them; where there is none, they are elsewhere.
    let found = missing(SNIPPET);
    assert!(found.len() == 2 && found[0].0 == "clusters", "{found:?}");
    assert!(found[0].1.contains("has no cluster \"chat\": "), "{found:?}");
    assert_eq!(missing(&Unset("/clusters/2".into()).apply(SNIPPET)), []);
}

#[test]
fn what_is_wrong_with_a_probers_file_is_in_the_same_shape() {
    let findings = findings(
        "api: {listen: 127.0.0.1:0}\nprobe: {concurrency: 0}\nweights: guessed\npools: []\nstore: {path: x}\n",
    );
    let told: Vec<_> = findings.iter().map(|finding| (finding.path.as_str(), finding.change.as_str())).collect();
    assert!(told.contains(&("probe.concurrency", "expected 1 to 1024")), "{told:?}");
    assert!(told.iter().any(|(path, _)| *path == "weights"), "{told:?}");
    assert!(findings.iter().all(|finding| finding.rule == "prober"), "{findings:?}");
}
