use crate::Upstreams;
use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::google::protobuf::StringValue;
use prost::{Message, Name};
use serde_json::{Value, json};

use super::*;

fn source() -> FilterSource {
    FilterSource { wasm_path: "weighbridge.wasm".into() }
}

fn snapshot(value: Value) -> wire::Snapshot {
    serde_json::from_value(value).unwrap()
}

fn two_pools(version: u64) -> Value {
    json!({"format": 1, "version": version, "pools": [
        {"name": "big", "models": ["m"], "endpoints": [
            {"id": "a", "address": "10.0.0.2:80", "weight": 1.34},
            {"id": "b", "address": "10.0.0.1:80", "weight": 0.66, "state": "draining"}]},
        {"name": "small", "models": ["n"], "endpoints": [{"id": "c", "address": "[::1]:81", "state": "unhealthy"}]}]})
}

fn build(value: Value, previous: Option<&ResourceSet>) -> Result<ResourceSet, ResourceError> {
    ResourceSet::build(&snapshot(value), &Upstreams::default(), &source(), previous)
}

fn unpack<T: Message + Name + Default>(any: &Any) -> T {
    assert_eq!(any.type_url, T::type_url());
    T::decode(any.value.as_slice()).unwrap()
}

fn versions(set: &ResourceSet) -> [u64; 3] {
    ResourceType::ALL.map(|kind| set.of(kind, true).version)
}

fn hosts_of(set: &ResourceSet, cluster: &str) -> Vec<(String, u32, i32)> {
    let assignment: ClusterLoadAssignment = unpack(&set.endpoints.items[cluster]);
    assert_eq!(assignment.cluster_name, cluster);
    let host = |lb: &LbEndpoint| {
        let Some(HostIdentifier::Endpoint(endpoint)) = &lb.host_identifier else { panic!("a host by name") };
        let address = format!("{:?}", endpoint.address.as_ref().unwrap().address.as_ref().unwrap());
        (address, lb.load_balancing_weight.unwrap().value, lb.health_status)
    };
    assignment.endpoints[0].lb_endpoints.iter().map(host).collect()
}

#[test]
fn every_cluster_has_its_endpoints_whatever_their_state() {
    let set = build(two_pools(7), None).unwrap();
    assert!(set.clusters.items.keys().eq(["big", "small"]));
    let hosts = hosts_of(&set, "big");
    let facts: Vec<_> = hosts.iter().map(|(_, weight, health)| (*weight, *health)).collect();
    assert_eq!(facts, [(66, HealthStatus::Draining.into()), (134, HealthStatus::Healthy.into())]);
    let (address, weight, health) = &hosts_of(&set, "small")[0];
    assert!(address.contains("\"::1\"") && address.contains("81"), "{address}");
    assert_eq!((*weight, *health), (100, HealthStatus::Unhealthy.into()));
}

#[test]
fn endpoints_with_one_address_are_one_host() {
    let mut value = two_pools(7);
    value["pools"][0]["endpoints"][1]["address"] = json!("10.0.0.2:80");
    let set = build(value, None).unwrap();
    let facts: Vec<_> = hosts_of(&set, "big").into_iter().map(|(_, weight, health)| (weight, health)).collect();
    assert_eq!(facts, [(134, HealthStatus::Healthy.into())]);
}

#[test]
fn broken_weights_count_as_one_and_tiny_ones_as_the_least() {
    for (weight, expected) in
        [(json!(0), 100), (json!(-1), 100), (json!("x"), 100), (json!(1e-9), 1), (json!(1e300), 1_000_000)]
    {
        assert_eq!(fallback_weight(&weight), expected, "{weight}");
    }
}

#[test]
fn each_type_moves_only_when_its_content_does() {
    let first = build(two_pools(7), None).unwrap();
    assert_eq!(versions(&first), [7, 7, 7]);

    let second = build(two_pools(8), Some(&first)).unwrap();
    assert_eq!(versions(&second), [7, 7, 8], "only the number changed");

    let mut pinned = two_pools(9);
    pinned["pools"][0]["endpoints"][0]["weight"] = json!(3.5);
    let third = build(pinned.clone(), Some(&second)).unwrap();
    assert_eq!(versions(&third), [7, 9, 9], "a pin");

    pinned["version"] = json!(10);
    pinned["pools"][0]["endpoints"].as_array_mut().unwrap().reverse();
    let fourth = build(pinned.clone(), Some(&third)).unwrap();
    assert_eq!(versions(&fourth), [7, 9, 10], "another order of the same endpoints");

    pinned["version"] = json!(11);
    pinned["pools"].as_array_mut().unwrap().pop();
    let fifth = build(pinned, Some(&fourth)).unwrap();
    assert_eq!(versions(&fifth), [11, 11, 11], "a pool less");
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let first = build(two_pools(7), None).unwrap();
    let refused = |value: Value| build(value, Some(&first)).unwrap_err().to_string();
    assert!(refused(two_pools(7)).contains("not above 7"));

    let mut value = two_pools(8);
    value["pools"][1]["cluster"] = json!("big");
    assert!(refused(value).contains("\"big\" belongs to two pools"));

    let mut value = two_pools(8);
    value["pools"][1]["endpoints"][0]["address"] = json!("gpu:80");
    assert!(refused(value).contains("address of endpoint c in pool small is \"gpu:80\""));
}

#[test]
fn the_filter_gets_the_snapshot_as_json() {
    let set = build(two_pools(7), None).unwrap();
    let config: TypedExtensionConfig = unpack(&set.extensions.items[EXTENSION_NAME]);
    assert_eq!(config.name, "weighbridge");
    let plugin = unpack::<Wasm>(&config.typed_config.unwrap()).config.unwrap();
    assert!(plugin.allow_on_headers_stop_iteration.unwrap().value);
    let json: StringValue = unpack(&plugin.configuration.unwrap());
    assert_eq!(serde_json::from_str::<wire::Snapshot>(&json.value).unwrap(), snapshot(two_pools(7)));
}

#[test]
fn a_cluster_takes_its_endpoints_from_where_it_came() {
    let set = build(two_pools(7), None).unwrap();
    for aggregated in [true, false] {
        let cluster: Cluster = unpack(&set.of(ResourceType::Clusters, aggregated).items["big"]);
        let source = cluster.eds_cluster_config.unwrap().eds_config.unwrap();
        assert_eq!(source.initial_fetch_timeout.unwrap().seconds, 1);
        match source.config_source_specifier.unwrap() {
            ConfigSourceSpecifier::Ads(_) => assert!(aggregated),
            ConfigSourceSpecifier::ApiConfigSource(_) => assert!(!aggregated),
            other => panic!("{other:?}"),
        }
    }
}
