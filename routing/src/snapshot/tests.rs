use super::*;
use std::collections::HashSet;

use proptest::prelude::*;
use serde_json::{Value, json};

fn example() -> Value {
    json!({"format": 1, "version": 7, "pools": [{
    "name": "qwen", "models": ["qwen-27b", "default"], "served_model": "qwen-27b",
    "endpoints": [
        {"id": "a", "address": "10.0.1.10:8000", "weight": 1.34},
        {"id": "b", "address": "10.0.1.11:8000", "weight": 0.66, "state": "probing", "cap": 3}
    ]}]})
}

fn read(value: &Value) -> Result<Snapshot, SnapshotError> {
    Snapshot::from_json(value.to_string().as_bytes())
}

#[test]
fn a_snapshot_is_read() {
    let snapshot = read(&example()).unwrap();
    let (_, pool) = snapshot.pool_for_model("default").unwrap();
    assert_eq!(pool.cluster, "qwen");
    let caps: Vec<_> = pool.endpoints.iter().map(|endpoint| endpoint.cap).collect();
    assert_eq!(caps, [32, 3]);
    assert!(snapshot.pool_for_model("other").is_none());
    assert!(snapshot.alarms.is_empty());
}

// A rename: the old id drains at the address that the new one has, too.
#[test]
fn what_happens_at_a_shared_address_is_put_down_to_whom_it_was_sent() {
    let pool_of = |states: &[&str]| {
        let mut value = example();
        let endpoint = |(nth, state): (usize, &&str)| json!({"id": format!("e{nth}"), "address": "10.0.1.10:8000", "state": state});
        let mut endpoints: Vec<Value> = states.iter().enumerate().map(endpoint).collect();
        endpoints.push(json!({"id": "other", "address": "10.0.1.11:8000"}));
        value["pools"][0]["endpoints"] = endpoints.into();
        read(&value).unwrap().pools.remove(0)
    };
    let shared = b"10.0.1.10:8000";
    let renamed = pool_of(&["draining", "ready"]);
    assert_eq!(renamed.place_at(shared, &[]), Some(1));
    // A request is known to have gone to one of them; where else it may go says nothing.
    assert_eq!(
        [[0, 2], [2, 0], [2, 1], [2, 2], [9, 2]].map(|likely| renamed.place_at(shared, &likely).unwrap()),
        [0, 0, 1, 1, 1]
    );
    assert_eq!(
        (renamed.place_at(b"10.0.1.11:8000", &[1, 0]), renamed.place_at(b"10.0.1.12:8000", &[1])),
        (Some(2), None)
    );
    for (states, expected) in [
        (["draining", "unhealthy"], 1),
        (["draining", "probing"], 1),
        (["unhealthy", "ready"], 1),
        (["new", "draining"], 0),
        (["draining", "draining"], 0),
    ] {
        assert_eq!(pool_of(&states).place_at(shared, &[]), Some(expected), "{states:?}");
    }
}

// Case C2: a weight that is 0, negative or NaN counts as 1.0 and raises an alarm.
#[test]
fn c2_a_broken_weight_counts_as_one_and_is_told() {
    for broken in [json!(0), json!(-3), json!(null), json!("NaN"), json!([1])] {
        let mut value = example();
        value["pools"][0]["endpoints"][0]["weight"] = broken.clone();
        let snapshot = read(&value).unwrap();
        assert_eq!(snapshot.pools[0].endpoints[0].weight, Weight::ONE, "{broken}");
        assert_eq!(snapshot.alarms.len(), 1, "{broken}");
    }
}

#[test]
fn a_broken_curve_counts_as_none_and_is_told() {
    let mut value = example();
    value["pools"][0]["policy"] = json!({"name": "p2c", "by": "curve"});
    value["pools"][0]["endpoints"][0]["curve"] = json!([[1, 0.5], [8, 1.0]]);
    let snapshot = read(&value).unwrap();
    let pool = &snapshot.pools[0];
    assert_eq!((pool.share(&pool.endpoints[0], 7), snapshot.alarms.len()), (Some(1.0), 0));
    value["pools"][0]["endpoints"][0]["curve"] = json!([[2, 0.5]]);
    let snapshot = read(&value).unwrap();
    assert!(snapshot.pools[0].endpoints.iter().all(|endpoint| endpoint.curve.is_none()));
    assert!(snapshot.alarms[0].contains("curve") && snapshot.alarms[0].contains("2 requests"), "{:?}", snapshot.alarms);
    value["pools"][0]["policy"] = json!({"name": "score", "by": "curve"});
    assert!(read(&value).unwrap_err().to_string().contains(r#"policy.by is "curve": expected weight"#));
    value["pools"][0]["policy"] = json!({"name": "p2c", "by": "guess"});
    assert!(read(&value).unwrap_err().to_string().contains("guess"));
}

#[test]
fn by_curve_one_without_a_curve_has_that_of_its_nearest() {
    let endpoint = |id: &str, weight: f64, curve: Value| json!({"id": id, "address": format!("10.0.0.1:8{}", id.len()), "weight": weight, "curve": curve});
    let endpoints = [
        endpoint("a", 3.0, json!([[1, 0.1], [16, 1.0]])),
        endpoint("bb", 0.5, json!([[1, 0.3], [16, 1.0]])),
        endpoint("ccc", 0.6, json!([])),
    ];
    let pool = |by: &str| {
        let pool = json!({"name": "p", "models": ["m"], "policy": {"name": "p2c", "by": by}, "endpoints": endpoints});
        read(&json!({"format": 1, "version": 1, "pools": [pool]})).unwrap().pools.remove(0)
    };
    let by_curve = pool("curve");
    assert_eq!(by_curve.endpoints[2].curve, by_curve.endpoints[1].curve);
    assert_eq!(pool("weight").endpoints[2].curve, None);
}

#[test]
fn a_wrong_value_is_refused_by_name() {
    let cases = [
        ("/format", json!(2), "format"),
        ("/pools/0/name", json!("a.b"), "pools[0].name"),
        ("/pools/0/models", json!([]), "pools[0].models"),
        ("/pools/0/policy", json!({"name": "best"}), "pools[0].policy.name"),
        ("/pools/0/adapters", json!(["lora"]), "pools[0].adapters"),
        ("/pools/0/affinity", json!({"k": -1}), "pools[0].affinity.k"),
        ("/pools/0/affinity", json!({"max_share": 2}), "pools[0].affinity.max_share"),
        ("/pools/0/affinity", json!({"kv_tokens": 0}), "pools[0].affinity.kv_tokens"),
        ("/pools/0/affinity", json!({"prefill_tps": 0}), "pools[0].affinity.prefill_tps"),
        ("/pools/0/policy", json!({"name": "p2c", "choices": 0}), "pools[0].policy.choices"),
        ("/pools/0/policy", json!({"name": "p2c", "choices": "most"}), "pools[0].policy.choices"),
        ("/pools/0/policy", json!({"score": {"kv": -1}}), "pools[0].policy.score.kv"),
        ("/pools/0/policy", json!({"shadow": {"name": "best"}}), "pools[0].policy.shadow.name"),
        ("/pools/0/policy", json!({"shadow": {"name": "p2c", "choices": 0}}), "pools[0].policy.shadow.choices"),
        ("/pools/0/policy", json!({"canary": {"name": "best", "percent": 1}}), "pools[0].policy.canary.name"),
        ("/pools/0/policy", json!({"canary": {"name": "score", "percent": 100.5}}), "pools[0].policy.canary.percent"),
        ("/pools/0/admission", json!({"base_cap": 0}), "pools[0].admission.base_cap"),
        ("/pools/0/admission", json!({"queue": 4097}), "pools[0].admission.queue"),
        ("/pools/0/admission", json!({"max_wait_ms": 3_600_001}), "pools[0].admission.max_wait_ms"),
        ("/pools/0/admission", json!({"ageing_ms": 3_600_001}), "pools[0].admission.ageing_ms"),
        ("/pools/0/admission", json!({"fairness": "header:"}), "pools[0].admission.fairness"),
        ("/pools/0/admission", json!({"fairness": "header:X-Tenant"}), "pools[0].admission.fairness"),
        ("/pools/0/admission", json!({"spill_to": "qwen"}), "pools[0].admission.spill_to"),
        ("/pools/0/admission", json!({"spill_to": "nobody"}), "pools[0].admission.spill_to"),
        ("/pools/0/endpoints/1/id", json!("a"), "pools[0].endpoints[1].id"),
        ("/pools/0/endpoints/1/address", json!("gpu:80"), "pools[0].endpoints[1].address"),
        ("/pools/0/endpoints/1/cap", json!(0), "pools[0].endpoints[1].cap"),
        ("/filter", json!({"client_headers": ["all"]}), "filter.client_headers[0]"),
    ];
    for (pointer, wrong, field) in cases {
        let mut value = example();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = value.pointer_mut(parent).unwrap();
        match name.parse::<usize>() {
            Ok(nth) => parent[nth] = wrong,
            Err(_) => parent[name] = wrong,
        }
        let message = read(&value).unwrap_err().to_string();
        assert!(message.starts_with(field), "{pointer}: {message}");
    }
}

#[test]
fn one_model_in_two_pools_is_refused() {
    let mut value = example();
    let mut twin = value["pools"][0].clone();
    twin["name"] = json!("twin");
    value["pools"].as_array_mut().unwrap().push(twin);
    assert!(read(&value).unwrap_err().to_string().starts_with("pools[1].models"));
}

#[test]
fn an_engine_that_restarts_is_another_holder() {
    let mut value = example();
    let holder = |value: &Value| read(value).unwrap().pools[0].endpoints[0].holder;
    let before = holder(&value);
    value["pools"][0]["endpoints"][0]["epoch"] = json!(1);
    assert_ne!(holder(&value), before);
}

#[test]
fn no_two_endpoints_of_a_pool_are_the_same_holder() {
    let mut value = example();
    let endpoints: Vec<_> =
        (0..1000).map(|nth| json!({"id": format!("e{nth}"), "address": "10.0.0.1:80", "weight": 1})).collect();
    value["pools"][0]["endpoints"] = json!(endpoints);
    let holders: HashSet<u16> = read(&value).unwrap().pools[0].endpoints.iter().map(|one| one.holder).collect();
    assert_eq!((holders.len(), holders.contains(&0)), (1000, false));
}

#[test]
fn an_endpoint_that_moves_gets_another_key() {
    assert_ne!(EndpointKey::of("a", "10.0.0.1:80"), EndpointKey::of("a", "10.0.0.2:80"));
    assert_ne!(EndpointKey::of("a", "10.0.0.1:80"), EndpointKey::of("b", "10.0.0.1:80"));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Snapshot::from_json(&bytes);
    }
}

#[test]
fn what_a_pool_refuses_may_go_to_another_and_never_in_a_circle() {
    let pools = |spills: &[(&str, Option<&str>)]| {
        let pools: Vec<_> = spills
            .iter()
            .map(|(name, to)| json!({"name": name, "models": [name], "endpoints": [], "admission": {"spill_to": to}}))
            .collect();
        read(&json!({"format": 1, "version": 1, "pools": pools}))
    };
    let chain = pools(&[("a", Some("c")), ("b", None), ("c", Some("b"))]).unwrap();
    let places: Vec<_> = chain.pools.iter().map(|pool| pool.spill_to).collect();
    assert_eq!(places, [Some(2), None, Some(1)]);
    // A pool that leads into a circle is not on it, and the one that closes it is named.
    let error = pools(&[("a", Some("b")), ("b", Some("c")), ("c", Some("b"))]).unwrap_err().to_string();
    assert!(error.starts_with("pools[1].admission.spill_to is \"c\""), "{error}");
}

#[test]
fn fairness_is_between_users_or_values_of_a_header() {
    let of = |text: &str| Fairness::of(text);
    assert_eq!((of("none"), of("user")), (Some(Fairness::None), Some(Fairness::User)));
    assert_eq!(of("header:x-tenant"), Some(Fairness::Header("x-tenant".into())));
    assert_eq!((of("tenant"), of("header:a b")), (None, None));
}
