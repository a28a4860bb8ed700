//! What a file may say, and what it is told when it is wrong.

use super::checked::{is_address, size};
use super::*;
use crate::caps::Mode;
use weighbridge_routing::snapshot::wire::By;

const EXAMPLE: &str = include_str!("../../example.yaml");

#[test]
fn what_the_example_shows_in_comments_is_valid_too() {
    let shown = ["score: {", "shadow: {", "canary: {"];
    let mut text = EXAMPLE.to_owned();
    for what in shown {
        let comment = format!("    # {what}");
        assert!(text.contains(&comment), "the example shows no {what}");
        text = text.replace(&comment, &format!("    {what}"));
    }
    Config::parse(&text).unwrap();
    for name in ["score", "least_pending_tokens", "least_request", "random", "round_robin"] {
        let line = EXAMPLE.lines().find(|line| line.trim_start().starts_with("name: p2c")).unwrap();
        assert!(line.contains(name), "the example does not name {name}");
        Config::parse(&EXAMPLE.replace("name: p2c", &format!("name: {name}"))).unwrap();
    }
}

#[test]
fn the_example_is_valid_and_has_the_documented_defaults() {
    let config = Config::parse(EXAMPLE).unwrap();
    assert_eq!((config.filter.max_body, config.filter.prefix_bytes), (16 << 20, 64 << 10));
    assert_eq!(config.probe.interval, Duration::from_secs(6 * 3600));
    let short = Config::parse("pools: [{name: p, models: [m]}]").unwrap();
    assert_eq!(short.probe.concurrency, config.probe.concurrency);
    assert_eq!((short.probe.sweep_max, short.pools[0].sizing), (256, Sizing::default()));
    assert_eq!((config.probe.sweep_max, config.pools[0].sizing), (256, Sizing::default()));
    assert_eq!((short.probe.prefill_tokens, config.probe.prefill_tokens), (8192, 8192));
    assert_eq!((&short.pools[0].wire.affinity, &short.filter), (&config.pools[0].wire.affinity, &config.filter));
    assert_eq!((short.api_listen.port(), short.xds_listen.port()), (7070, 7071));
    assert_eq!(short.health.unhealthy_after, 3);
    assert_eq!(short.pools[0].served_model, "m");
}

#[test]
fn every_wrong_value_is_reported_at_once() {
    let yaml = r#"
api: {listen: "0.0.0.0:7070"}
store: {path: s, redis: "http://:s3cret@127.0.0.1"}
filter: {max_body: 16 apples}
probe: {concurrency: 0, interval: soon, clamp: [8, 0.25]}
health: {unhealthy_after: 0}
envoy_admin: ["127.0.0.1:9901"]
pools:
- name: a.b
  models: []
  endpoints:
  - {id: "x y", address: "10.0.0.1"}
  - {id: same, address: "10.0.0.1:80", context_window: 0}
  - {id: same, address: "gpu-1.example:80"}
"#;
    let ConfigError::Fields(errors) = Config::parse(yaml).unwrap_err() else { panic!("not fields") };
    let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
    for field in [
        "api.token_file",
        "store.path",
        "store.redis",
        "filter.max_body",
        "probe.concurrency",
        "probe.interval",
        "probe.clamp",
        "health.unhealthy_after",
        "envoy_admin[0]",
        "pools[0].name",
        "pools[0].models",
        "pools[0].endpoints[0].id",
        "pools[0].endpoints[0].address",
        "pools[0].endpoints[1].context_window",
        "pools[0].endpoints[2].id",
    ] {
        assert!(fields.contains(&field), "{field} not in {fields:?}");
    }
}

#[test]
fn what_the_filter_would_refuse_is_refused() {
    let error = Config::parse("pools: [{name: p, models: [m], policy: {name: best}}]").unwrap_err().to_string();
    assert!(error.contains("pools[0].policy.name") && error.contains("best"), "{error}");
    let error = Config::parse("pools: [{name: p, models: [m]}, {name: q, models: [m]}]").unwrap_err().to_string();
    assert!(error.contains("pools[1].models"), "{error}");
    let error = Config::parse("filter: {client_headers: [all]}\npools: [{name: p, models: [m]}]").unwrap_err();
    assert!(error.to_string().contains("filter.client_headers[0]"), "{error}");
}

// Such a cluster would be passed over by Envoy, and the pool's requests go to the prober.
#[test]
fn a_pool_is_not_called_like_a_cluster_of_ours() {
    for name in ["weighbridge-prober", "weighbridge-xds", "default-static"] {
        let found = errors(&format!("pools: [{{name: {name}, models: [m]}}]"));
        assert!(found.iter().any(|error| error.starts_with("pools[0].name")), "{name}: {found:?}");
    }
    let found = errors("pools: [{name: p, models: [m], served_model: ''}]");
    assert!(found.iter().any(|error| error.starts_with("pools[0].served_model")), "{found:?}");
}

#[test]
fn what_is_wrong_with_a_policy_is_told_by_name() {
    let found = errors(
        r#"
pools:
- name: p
  models: [m]
  policy:
    score: {active: -1, quue: 2}
    shadow: {name: best, choices: none}
    canary: {percent: 101, score: {active: 0, queue: 0, latency: 0, job: 0, throughput: 0, kv: 0, gpu: 0}}
- name: q
  models: [n]
  policy: {canary: {name: random}}
"#,
    );
    let expected = [
        "pools[0].policy.score.quue is unknown: expected one of active, queue, ",
        "pools[0].policy.score.active is \"-1\": expected a number from 0 to 10000",
        "pools[0].policy.shadow.name is \"best\": expected p2c, score, least_pending_tokens, ",
        "pools[0].policy.shadow.choices is \"none\": expected a number from 1, or all",
        "pools[0].policy.canary.name is missing: ",
        "pools[0].policy.canary.percent is \"101\": expected a number from 0 to 100",
        "pools[0].policy.canary.score is \"0 throughout\": expected at least one coefficient above 0",
        "pools[1].policy.canary.percent is missing: expected a number",
    ];
    for expected in expected {
        assert_eq!(found.iter().filter(|error| error.starts_with(expected)).count(), 1, "{expected:?} in {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

fn errors(yaml: &str) -> Vec<String> {
    match Config::parse(yaml) {
        Err(ConfigError::Fields(errors)) => errors.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sweep_reaches_what_a_weight_stands_for() {
    let file =
        |by, most| format!("probe: {{sweep_max: {most}}}\npools: [{{name: p, models: [m], policy: {{by: {by}}}}}]");
    assert!(Config::parse(&file("weight", 8)).is_ok() && Config::parse(&file("curve", 16)).is_ok());
    let [error] = &errors(&file("curve", 8))[..] else { panic!() };
    assert_eq!(
        error,
        "probe.sweep_max is \"8\": expected probe.concurrency (16) or more where a pool has policy.by: curve"
    );
    // What a file is refused for stands where its fields are explained.
    let reference = super::reference::markdown().unwrap();
    let row = reference.lines().find(|line| line.starts_with("| `sweep_max` |")).unwrap();
    assert!(row.contains("`probe.concurrency`") && row.contains("`policy.by: curve`"), "{row}");
}

#[test]
fn every_field_can_be_written() {
    let config = Config::parse(
        r#"
api: {listen: "127.0.0.1:0", token_file: t, tls: {cert_file: c, key_file: k}}
xds: {listen: "127.0.0.1:0", tls: {cert_file: c, key_file: k, client_ca_file: a}}
filter: {wasm: w, max_body: 4096, client_headers: [priority, max-wait, explain], prefix_bytes: 0}
store: {path: s, redis: null}
probe: {concurrency: 1, tokens: 2, prefill_tokens: 64, interval: 1h, keep: 2h, timeout: 3s, sweep_max: 8, clamp: [1, 2.5]}
health: {interval: 1s, timeout: 1s, unhealthy_after: 1, healthy_after: 2}
signals: {interval: 1s}
networks: [10.0.0.0/8, "fd00::/8"]
envoy_admin: ["http://127.0.0.1:9901/"]
pools:
- name: p
  models: [m, lora]
  served_model: m
  adapters: [lora]
  policy:
    name: least_pending_tokens
    choices: all
    score: {active: 1, queue: 2, latency: 3, job: 4, throughput: 5, kv: 6, gpu: 7.5}
    shadow: {name: score, choices: 3, score: {gpu: 0}}
    canary: {name: random, choices: 1, score: {kv: 1}, percent: 2.5}
  affinity: {enabled: false, cold: hash, k: 2, max_share: 0.25, kv_tokens: 5000000000, prefill_tps: 9000}
  admission: {base_cap: 8, cap: measured, min_tps: 12.5, queue: 10, max_wait: 1s}
  endpoints: [{id: e, address: "h:1", node: n, launch_args: "-x", context_window: 4096, max_in_flight: 3}]
"#,
    )
    .unwrap();
    assert_eq!((config.filter.max_body, config.filter.prefix_bytes, config.probe.prefill_tokens), (4096, 0, 64));
    let ca = |tls: &Option<Tls>| tls.as_ref().unwrap().client_ca_file.clone();
    assert_eq!((ca(&config.api_tls), ca(&config.xds_tls)), (None, Some("a".into())));
    assert_eq!(config.pools[0].sizing, Sizing { mode: Mode::Measured, by: By::Weight, min_tps: 12.5 });
    assert_eq!((config.probe.sweep_max, config.pools[0].endpoints[0].max_in_flight), (8, Some(3)));
    let pool = &config.pools[0].wire;
    assert_eq!(
        (pool.adapters.as_slice(), pool.policy.name.as_str()),
        (&["lora".to_owned()][..], "least_pending_tokens")
    );
    let score = wire::Score { active: 1.0, queue: 2.0, latency: 3.0, job: 4.0, throughput: 5.0, kv: 6.0, gpu: 7.5 };
    assert_eq!(pool.policy.score, score);
    let (shadow, canary) = (pool.policy.shadow.as_ref().unwrap(), pool.policy.canary.as_ref().unwrap());
    assert_eq!((shadow.name.as_str(), shadow.score.gpu, shadow.score.kv), ("score", 0.0, 15.0));
    assert_eq!((canary.name.as_str(), canary.score.kv, canary.percent), ("random", 1.0, 2.5));
    let expected = wire::Affinity {
        enabled: false,
        cold: wire::Cold::Hash,
        k: 2.0,
        max_share: 0.25,
        kv_tokens: 5_000_000_000,
        prefill_tps: 9000.0,
    };
    assert_eq!(pool.affinity, expected);
}

#[test]
fn unknown_fields_wrong_types_and_wrong_values_are_told_at_once_and_each_once() {
    let found = errors(
        r#"
apis: {}
filter: {prefix_bytes: many, max_body: [1]}
probe: {interval: 6, clamp: [1], prefill_tokens: 7, tokens: -1, sweep_max: 0}
signals: none
3: x
pools:
- {name: 7, models: [m, 8], policy: {name: best, choices: 0, choice: 2}, adapters: [x], wieght: 3}
- models: {}
  affinity: {cold: warm, k: -1, max_share: 2, kv_tokens: 0, prefill_tps: 0, hot: 1}
  admission: {base_cap: 0, cap: guessed, min_tps: -1}
  endpoints:
  - {id: a, adress: "h:1"}
  - b
  - {id: c, address: "h:2"}
  - {id: c, address: "h:2", context_window: big, max_in_flight: 0}
- {name: q, models: [m]}
"#,
    );
    let expected = [
        "apis is unknown: expected one of api, xds, filter, ",
        "\"3\" is unknown: ",
        "filter.max_body is a list: expected a size",
        "probe.interval is \"6\": expected a duration",
        "probe.clamp is a list: expected [least, most]",
        "probe.tokens is \"-1\": expected a whole number",
        "signals is \"none\": expected a section with interval",
        "pools[0].wieght is unknown: ",
        "pools[0].name is \"7\": expected text",
        "pools[0].models[1] is \"8\": expected text",
        "pools[0].policy.choice is unknown: expected one of name, choices",
        "pools[1].name is missing: ",
        "pools[1].models is a section: expected a list",
        "pools[1].affinity.hot is unknown: ",
        "pools[1].affinity.cold is \"warm\": expected policy or hash",
        "pools[1].admission.cap is \"guessed\": expected weight or measured",
        "pools[1].endpoints[0].adress is unknown: expected one of id, address, node, launch_args, context_window",
        "pools[1].endpoints[0].address is missing: ",
        "pools[1].endpoints[1] is \"b\": expected a section with id, address",
        "pools[1].endpoints[3].context_window is \"big\": expected a whole number",
        "filter.prefix_bytes is \"many\": expected a size",
        "probe.prefill_tokens is \"7\": expected 64 to",
        "probe.sweep_max is \"0\": expected 1 to 4096",
        "pools[0].policy.name is \"best\": ",
        "pools[0].policy.choices is \"0\": ",
        "pools[0].adapters is \"x\": ",
        "pools[1].affinity.k is \"-1\": ",
        "pools[1].affinity.max_share is \"2\": ",
        "pools[1].affinity.kv_tokens is \"0\": ",
        "pools[1].affinity.prefill_tps is \"0\": ",
        "pools[1].admission.min_tps is \"-1\": expected tokens per second from 0",
        "pools[1].endpoints[3].max_in_flight is \"0\": expected a number from 1",
        "pools[1].admission.base_cap is \"0\": ",
        "pools[1].endpoints[3].id is \"c\": expected an id that is used once",
        "pools[1].endpoints[3].address is \"h:2\": expected an address that no other endpoint of the pool has",
        "pools[2].models[0] is \"m\": expected a model name that pools[0] has not",
    ];
    for expected in expected {
        assert_eq!(found.iter().filter(|error| error.starts_with(expected)).count(), 1, "{expected:?} in {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn no_time_is_longer_than_can_be_added_to_the_present() {
    for long in ["9300000000000000000s", "18446744073709552s", "3651days"] {
        let found = errors(&format!(
            "probe: {{timeout: {long}, interval: {long}}}\nhealth: {{interval: {long}}}\npools: [{{name: p, models: [m]}}]"
        ));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().all(|error| error.contains("at most 3650days") && error.contains(long)), "{found:?}");
    }
}

#[test]
fn what_is_no_configuration_at_all_is_told() {
    assert!(matches!(Config::parse("a: [").unwrap_err(), ConfigError::Yaml(_)));
    assert!(matches!(Config::parse("a: 1\na: 2").unwrap_err(), ConfigError::Yaml(_)));
    assert_eq!(errors("just text").len(), 2, "{:?}", errors("just text"));
    for nothing in ["", "# nothing", "pools:"] {
        assert_eq!(errors(nothing), ["pools is missing: expected a list"], "{nothing:?}");
    }
    assert_eq!(errors("pools: []"), ["pools is \"[]\": expected at least one pool"]);
}

#[test]
fn the_files_that_are_named_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let report = |store: &str, token: &str, wasm: &str| {
        let path = |name: &str| dir.path().join(name).display().to_string();
        let file = serde_json::json!({
            "api": {"token_file": path(token)}, "store": {"path": path(store)}, "filter": {"wasm": path(wasm)},
            "pools": [{"name": "p", "models": ["m"]}],
        });
        Config::check(&file.to_string())
    };
    for (name, content) in [("token", "0123456789abcdef"), ("short", "secret"), ("module", "x")] {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    assert_eq!(report("new.redb", "token", "module"), Report::default());
    let bad = report("none/new.redb", "none", "none");
    assert_eq!((bad.errors.len(), bad.warnings.len()), (2, 1), "{bad:?}");
    assert!(bad.errors[0].starts_with("store.path is ") && bad.errors[1].starts_with("api.token_file is "), "{bad:?}");
    assert!(bad.warnings[0].starts_with("filter.wasm is "), "{bad:?}");
    let short = report("new.redb", "short", "module").errors;
    assert!(short.len() == 1 && short[0].contains("it has 6") && !short[0].contains("secret"), "{short:?}");
    // They are looked at, too, when something else is wrong.
    assert!(Config::check("store: {path: /no/such/directory/s.redb}").errors.len() == 2);
}

#[test]
fn addresses_and_sizes() {
    for good in ["10.0.0.1:80", "[::1]:80", "gpu-1:8000", "vllm.default.svc.cluster.local:8000"] {
        assert!(is_address(good), "{good}");
    }
    let nobody = ["127.0.0.1:0", "0.0.0.0:80", "[::]:80", "224.0.0.1:80", "255.255.255.255:80", "[fe80::1%1]:80"];
    for bad in nobody.into_iter().chain(["[::ffff:0.0.0.0]:80", "[::ffff:224.0.0.1]:80"]) {
        assert!(!is_address(bad), "{bad}");
    }
    for bad in ["10.0.0.1", "gpu:0", "gpu:99999", ":80", "a b:80", "http://gpu:80", ""] {
        assert!(!is_address(bad), "{bad}");
    }
    assert_eq!((size("16MiB"), size("1000"), size("0"), size("MiB")), (Some(16 << 20), Some(1000), Some(0), None));
}

#[test]
fn what_is_wrong_with_admission_is_told_all_at_once() {
    let file = serde_json::json!({"pools": [
        {"name": "a", "models": ["a"], "admission": {
            "queue": 5000, "queue_bytes": "much", "max_wait": "2h", "ageing": "soon", "prefill_budget": -1,
            "fairness": "tenant", "spill_to": "a", "wait": 1,
        }},
        {"name": "b", "models": ["b"], "admission": {"spill_to": "nobody"}},
    ]});
    let found = errors(&file.to_string());
    let expected = [
        "pools[0].admission.wait is unknown: ",
        "pools[0].admission.prefill_budget is \"-1\": expected a whole number from 0 to 4294967295",
        "pools[0].admission.queue_bytes is \"much\": expected a size such as 64MiB",
        "pools[0].admission.max_wait is \"2h\": expected at most 1h",
        "pools[0].admission.ageing is \"soon\": expected a duration",
        "pools[0].admission.spill_to is \"a\": expected the name of another pool",
        "pools[1].admission.spill_to is \"nobody\": expected the name of another pool",
        "pools[0].admission.queue is \"5000\": expected a number from 0 to 4096",
        "pools[0].admission.fairness is \"tenant\": expected none, user, or header:",
    ];
    for expected in expected {
        assert_eq!(found.iter().filter(|error| error.starts_with(expected)).count(), 1, "{expected:?} in {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    let circle = serde_json::json!({"pools": [
        {"name": "a", "models": ["a"], "admission": {"spill_to": "b"}},
        {"name": "b", "models": ["b"], "admission": {"spill_to": "a"}},
    ]});
    let found = errors(&circle.to_string());
    assert!(found.len() == 1 && found[0].starts_with("pools[0].admission.spill_to is \"b\": "), "{found:#?}");
}

#[test]
fn passive_health_reaches_the_filter_as_written() {
    let with = |section: &str| Config::parse(&format!("pools: [{{name: p, models: [m], passive_health: {section}}}]"));
    let written = "{consecutive_failures: 3, failure_percent: 20, min_requests: 9, ejection: 1500ms, max_ejection: 2s, \
                   max_ejected_percent: 100, cool_down: 0s, max_cool_down: 1m, silent_after: 0s}";
    let expected = wire::PassiveHealth {
        consecutive_failures: 3,
        failure_percent: 20,
        min_requests: 9,
        ejection_ms: 1_500,
        max_ejection_ms: 2_000,
        max_ejected_percent: 100,
        cool_down_ms: 0,
        max_cool_down_ms: 60_000,
        silent_after_ms: 0,
    };
    assert_eq!(with(written).unwrap().pools[0].wire.passive_health, expected);
    assert_eq!(with("{}").unwrap().pools[0].wire.passive_health, wire::PassiveHealth::default());
    let wrong = "{failure_percent: 101, min_requests: 65536, ejection: 0s, max_ejection: 2h, cool_down: soon}";
    let error = with(wrong).unwrap_err().to_string();
    for expected in [
        "pools[0].passive_health.failure_percent is \"101\": expected percent, from 0 to 100",
        "pools[0].passive_health.min_requests is \"65536\": expected a number from 0 to 65535",
        "pools[0].passive_health.ejection is \"0s\": ",
        "pools[0].passive_health.max_ejection is \"2h\": expected at most 1h",
        "pools[0].passive_health.cool_down is \"soon\": expected a duration",
    ] {
        assert!(error.contains(expected), "{expected} is not in {error}");
    }
    let error = with("{ejection: 9s, max_ejection: 8s}").unwrap_err().to_string();
    assert!(error.contains("passive_health.max_ejection is \"8s\": expected at least as long as ejection"), "{error}");
}

#[test]
fn admission_reaches_the_filter_as_written() {
    let file = "pools: [{name: p, models: [m], admission: {base_cap: 8, queue: 9, queue_bytes: 1MiB, max_wait: 1500ms, \
                ageing: 0s, prefill_budget: 0, fairness: 'header:x-tenant'}}]";
    let config = Config::parse(file).unwrap();
    let expected = wire::Admission {
        base_cap: 8,
        queue: 9,
        queue_bytes: 1 << 20,
        max_wait_ms: 1_500,
        ageing_ms: 0,
        prefill_budget_tokens: 0,
        fairness: "header:x-tenant".into(),
        spill_to: None,
    };
    assert_eq!(config.pools[0].wire.admission, expected);
    let default = Config::parse("pools: [{name: p, models: [m]}]").unwrap();
    assert_eq!(default.pools[0].wire.admission, wire::Admission::default());
}

#[test]
fn the_store_is_a_file_or_a_redis_whose_password_is_never_shown() {
    let with = |store: &str| format!("store: {store}\npools: [{{name: p, models: [m]}}]");
    let place = |store: &str| Config::parse(&with(store)).unwrap().store;
    assert_eq!(place("{}"), Place::File("weighbridge.redb".into()));
    assert_eq!(place("{path: /var/lib/s.redb}"), Place::File("/var/lib/s.redb".into()));
    for url in ["redis://127.0.0.1:6379/0", "redis://:s3cret@redis/1", "rediss://user:s3cret@redis.example:6380"] {
        let store = format!("{{redis: \"{url}\"}}");
        let shown = format!("{:?}", Config::parse(&with(&store)).unwrap());
        assert!(matches!(place(&store), Place::Redis(_)) && !shown.contains("s3cret"), "{shown}");
        // Nothing is connected to, and no file is looked for.
        assert_eq!(Config::check(&with(&store)).errors, Vec::<String>::new());
    }
    for bad in ["redis:6379", "http://:s3cret@redis", "redis://:s3cret@redis:99999", "redis://u:s3cret@redis/x"] {
        let errors = errors(&with(&format!("{{redis: \"{bad}\"}}")));
        assert!(errors.len() == 1 && errors[0].starts_with("store.redis is "), "{errors:?}");
        assert!(errors[0].contains("redis://[[user]:password@]host") && !errors[0].contains("s3cret"), "{errors:?}");
    }
    let both = errors(&with("{path: s.redb, redis: \"redis://redis\"}"));
    assert_eq!(both, ["store.path is \"s.redb\": expected nothing beside store.redis"]);
}

#[test]
fn api_and_xds_listen_at_two_places() {
    let file = |api: &str, xds: &str| {
        format!(
            "api: {{listen: \"{api}\", token_file: t}}\nxds: {{listen: \"{xds}\"}}\npools: [{{name: p, models: [m]}}]"
        )
    };
    for (api, xds) in [
        ("127.0.0.1:7000", "127.0.0.1:7000"),
        ("0.0.0.0:7000", "127.0.0.1:7000"),
        ("127.0.0.1:7000", "0.0.0.0:7000"),
        ("[::]:7000", "127.0.0.1:7000"),
        ("0.0.0.0:7000", "[::]:7000"),
        ("[::]:7000", "[::1]:7000"),
        ("[::ffff:127.0.0.1]:7000", "127.0.0.1:7000"),
    ] {
        let expected =
            format!("xds.listen is \"{xds}\": expected another address than api.listen ({api}), such as another port");
        assert_eq!(errors(&file(api, xds)), [expected], "{api} {xds}");
    }
    for (api, xds) in [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:7000", "127.0.0.1:7001"),
        ("127.0.0.1:7000", "127.0.0.2:7000"),
        ("0.0.0.0:7000", "[::1]:7000"),
        ("0.0.0.0:7000", "0.0.0.0:7001"),
    ] {
        assert!(Config::parse(&file(api, xds)).is_ok(), "{api} {xds}");
    }
    // What is left out counts, too.
    let found = errors("api: {listen: 127.0.0.1:7071}\npools: [{name: p, models: [m]}]");
    assert!(found.len() == 1 && found[0].contains("xds.listen is \"127.0.0.1:7071\""), "{found:?}");
    // The default stands in for what is no address, and is nothing that the file says.
    let found = errors("api: {listen: here}\nxds: {listen: 127.0.0.1:7070}\npools: [{name: p, models: [m]}]");
    assert_eq!(found, ["api.listen is \"here\": expected ip:port"]);
}

#[test]
fn who_writes_a_weight_is_told_that_it_is_measured() {
    let pool = |rest: &str| errors(&format!("pools: [{{name: p, models: [m], {rest}}}]"));
    let hint = "weights are measured, and `weighbridge pin ENDPOINT WEIGHT` sets one by hand";
    let found = pool("endpoints: [{id: a, address: \"h:1\"}, {id: b, address: \"h:2\", weight: 2}]");
    let [error] = &found[..] else { panic!("{found:?}") };
    assert!(error.starts_with("pools[0].endpoints[1].weight is unknown: expected one of id, address, "), "{error}");
    assert!(error.contains(hint), "{error}");
    for other in [pool("weight: 2"), pool("endpoints: [{id: a, address: \"h:1\", wieght: 2}]")] {
        assert!(other.len() == 1 && !other[0].contains(hint), "{other:?}");
    }
}

#[test]
fn a_number_of_the_wrong_kind_is_told_the_range_of_its_field() {
    let probe = |field: &str, value: &str| {
        errors(&format!("probe: {{{field}: {value}}}\npools: [{{name: p, models: [m]}}]")).join("\n")
    };
    for value in ["-1", "0.5", "many", "99999999999"] {
        let expected = format!("probe.tokens is \"{value}\": expected a whole number from 1 to 65536");
        assert_eq!(probe("tokens", value), expected);
    }
    for value in ["0", "65537"] {
        assert_eq!(probe("tokens", value), format!("probe.tokens is \"{value}\": expected 1 to 65536"));
    }
    assert_eq!(
        probe("prefill_tokens", "-1"),
        "probe.prefill_tokens is \"-1\": expected a whole number from 64 to 131072, or 0"
    );
    let affinity = |rest: &str| errors(&format!("pools: [{{name: p, models: [m], affinity: {{{rest}}}}}]")).join("\n");
    assert!(affinity("prefill_tps: fast").ends_with("expected a number above 0"), "{}", affinity("prefill_tps: fast"));
    assert!(affinity("max_share: all").ends_with("expected a number from 0 to 1"), "{}", affinity("max_share: all"));
    assert!(affinity("kv_tokens: -1").ends_with("expected a whole number from 1"), "{}", affinity("kv_tokens: -1"));
}
