use envoy_types::pb::google::rpc::Status;
use proptest::prelude::*;
use serde_json::json;
use weighbridge_routing::snapshot::wire;

use super::*;
use crate::{FilterSource, Upstreams};
use ResourceType::{Clusters, Endpoints, Extensions};

mod interleavings;

/// A set with these pools, one endpoint each, of this weight.
fn set(version: u64, pools: &[&str], weight: f64, previous: Option<&ResourceSet>) -> Arc<ResourceSet> {
    let pool = |name: &&str| {
        json!({"name": name, "models": [name],
               "endpoints": [{"id": "e", "address": "10.0.0.1:80", "weight": weight}]})
    };
    let pools: Vec<_> = pools.iter().map(pool).collect();
    let snapshot: wire::Snapshot =
        serde_json::from_value(json!({"format": 1, "version": version, "pools": pools})).unwrap();
    let source = FilterSource { wasm_path: "w.wasm".into() };
    Arc::new(ResourceSet::build(&snapshot, &Upstreams::default(), &source, previous).unwrap())
}

fn request(kind: ResourceType, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: kind.type_url().into(),
        resource_names: names.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn ack(response: &DiscoveryResponse, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: response.type_url.clone(),
        version_info: response.version_info.clone(),
        response_nonce: response.nonce.clone(),
        resource_names: names.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn nack(response: &DiscoveryResponse, names: &[&str]) -> DiscoveryRequest {
    let error = Status { message: "no such file".into(), ..Default::default() };
    DiscoveryRequest { error_detail: Some(error), version_info: "1".into(), ..ack(response, names) }
}

fn kinds(responses: &[DiscoveryResponse]) -> Vec<ResourceType> {
    responses.iter().map(|response| ResourceType::from_type_url(&response.type_url).unwrap()).collect()
}

fn only(mut responses: Vec<DiscoveryResponse>, kind: ResourceType) -> DiscoveryResponse {
    assert_eq!(kinds(&responses), [kind]);
    responses.remove(0)
}

/// A stream on ADS on which everything of the set has been ACKed.
fn settled(first: &Arc<ResourceSet>, pools: &[&str]) -> Stream {
    let mut stream = Stream::new(Scope::Aggregated);
    assert!(stream.on_resources(Arc::clone(first)).is_empty(), "nobody asked yet");
    let clusters = only(stream.on_request(&request(Clusters, &[])).unwrap(), Clusters);
    assert!(stream.on_request(&request(Extensions, &[EXTENSION_NAME])).unwrap().is_empty(), "clusters first");
    let endpoints = only(stream.on_request(&request(Endpoints, pools)).unwrap(), Endpoints);
    assert!(stream.on_request(&ack(&clusters, &[])).unwrap().is_empty(), "endpoints are under way");
    let filter = only(stream.on_request(&ack(&endpoints, pools)).unwrap(), Extensions);
    assert!(stream.on_request(&ack(&filter, &[EXTENSION_NAME])).unwrap().is_empty());
    for status in stream.status().types.values() {
        assert_eq!(status.in_sync_with, Some(first.version));
    }
    stream
}

#[test]
fn clusters_go_before_endpoints_before_the_filter() {
    settled(&set(5, &["a", "b"], 1.0, None), &["a", "b"]);
}

#[test]
fn a_pin_touches_endpoints_and_filter_only() {
    let first = set(5, &["a"], 1.0, None);
    let mut stream = settled(&first, &["a"]);
    let endpoints = only(stream.on_resources(set(6, &["a"], 2.0, Some(&first))), Endpoints);
    let filter = only(stream.on_request(&ack(&endpoints, &["a"])).unwrap(), Extensions);
    assert_eq!(filter.version_info, "6");
    assert!(stream.on_request(&ack(&filter, &[EXTENSION_NAME])).unwrap().is_empty());
    assert!(stream.status().types.values().all(|status| status.in_sync_with == Some(6)));
}

#[test]
fn sets_that_come_faster_than_answers_coalesce() {
    let mut last = set(5, &["a"], 1.0, None);
    let mut stream = Stream::new(Scope::Only(Extensions));
    stream.on_resources(Arc::clone(&last));
    let first = only(stream.on_request(&request(Extensions, &[EXTENSION_NAME])).unwrap(), Extensions);
    for version in 6..2006 {
        last = set(version, &["a"], 1.0, Some(&last));
        assert!(stream.on_resources(Arc::clone(&last)).is_empty());
    }
    let newest = only(stream.on_request(&ack(&first, &[EXTENSION_NAME])).unwrap(), Extensions);
    assert_eq!(newest.version_info, "2005");
}

#[test]
fn a_refused_configuration_is_not_repeated_and_the_last_good_one_counts() {
    let first = set(5, &["a"], 1.0, None);
    let mut stream = settled(&first, &["a"]);
    let second = set(6, &["a"], 1.0, Some(&first));
    let bad = only(stream.on_resources(Arc::clone(&second)), Extensions);
    assert!(stream.on_request(&nack(&bad, &[EXTENSION_NAME])).unwrap().is_empty());
    assert!(stream.on_request(&nack(&bad, &[EXTENSION_NAME])).unwrap().is_empty(), "said twice");
    let status = stream.status();
    let filter = &status.types[&Extensions];
    assert_eq!((filter.acked_version, filter.in_sync_with), (Some(5), Some(5)));
    assert_eq!(filter.rejected_version.as_deref(), Some("6"));
    let told = status.last_nack.unwrap();
    assert_eq!((told.version.as_str(), told.kind, told.message.as_str()), ("6", Extensions, "no such file"));

    let good = only(stream.on_resources(set(7, &["a"], 1.0, Some(&second))), Extensions);
    stream.on_request(&ack(&good, &[EXTENSION_NAME])).unwrap();
    let filter = &stream.status().types[&Extensions];
    assert_eq!((filter.in_sync_with, filter.rejected_version.as_ref()), (Some(7), None));
}

#[test]
fn refused_clusters_do_not_hold_up_the_filter() {
    let first = set(5, &["a"], 1.0, None);
    let mut stream = settled(&first, &["a"]);
    let clusters = stream.on_resources(set(6, &["a", "b"], 1.0, Some(&first)));
    assert_eq!(kinds(&clusters), [Clusters, Endpoints]);
    assert!(stream.on_request(&nack(&clusters[0], &[])).unwrap().is_empty());
    let filter = only(stream.on_request(&ack(&clusters[1], &["a"])).unwrap(), Extensions);
    stream.on_request(&ack(&filter, &[EXTENSION_NAME])).unwrap();
    let status = stream.status();
    assert_eq!(status.types[&Extensions].in_sync_with, Some(6));
    assert_eq!(status.types[&Clusters].in_sync_with, Some(5));
}

#[test]
fn a_stale_nonce_is_ignored_and_an_ack_may_change_the_subscription() {
    let first = set(5, &["a", "b"], 1.0, None);
    let mut stream = Stream::new(Scope::Only(Endpoints));
    stream.on_resources(first);
    let a = only(stream.on_request(&request(Endpoints, &["a"])).unwrap(), Endpoints);
    let stale = DiscoveryRequest { response_nonce: "0".into(), ..request(Endpoints, &["b"]) };
    assert!(stream.on_request(&stale).unwrap().is_empty());
    assert!(stream.status().types[&Endpoints].pending, "a stale request answers nothing");
    let both = only(stream.on_request(&ack(&a, &["a", "b"])).unwrap(), Endpoints);
    assert_eq!(both.resources.len(), 2);
    assert!(stream.on_request(&ack(&both, &["b"])).unwrap().is_empty(), "less is no news");
    let again = only(stream.on_request(&ack(&both, &["a", "b"])).unwrap(), Endpoints);
    assert_eq!(again.resources.len(), 2, "what was given up comes again");
}

#[test]
fn an_unknown_name_gets_no_answer_until_there_is_one() {
    let first = set(5, &["a"], 1.0, None);
    let mut stream = Stream::new(Scope::Only(Endpoints));
    stream.on_resources(Arc::clone(&first));
    assert!(stream.on_request(&request(Endpoints, &["later"])).unwrap().is_empty());
    let found = only(stream.on_resources(set(6, &["a", "later"], 1.0, Some(&first))), Endpoints);
    assert_eq!(found.resources.len(), 1);
}

#[test]
fn the_first_request_of_a_new_stream_may_carry_an_old_nonce_and_names_its_version() {
    let mut stream = Stream::new(Scope::Only(Extensions));
    stream.on_resources(set(5, &["a"], 1.0, None));
    let first = DiscoveryRequest {
        response_nonce: "17".into(),
        version_info: "90".into(),
        ..request(Extensions, &[EXTENSION_NAME])
    };
    only(stream.on_request(&first).unwrap(), Extensions);
    assert_eq!(stream.status().highest_seen, 90);
}

#[test]
fn a_stream_for_one_type_refuses_the_others_and_ads_ignores_strangers() {
    let mut stream = Stream::new(Scope::Only(Endpoints));
    assert!(stream.on_request(&request(Clusters, &[])).is_err());
    let nameless = DiscoveryRequest { type_url: String::new(), ..request(Endpoints, &["a"]) };
    assert!(stream.on_request(&nameless).is_ok());
    let mut ads = Stream::new(Scope::Aggregated);
    ads.on_resources(set(5, &["a"], 1.0, None));
    let listeners = DiscoveryRequest {
        type_url: "type.googleapis.com/envoy.config.listener.v3.Listener".into(),
        ..Default::default()
    };
    assert_eq!(ads.on_request(&listeners), Ok(Vec::new()));
}

#[test]
fn a_pool_leaves_the_filter_before_its_cluster_goes() {
    let first = set(5, &["a", "b"], 1.0, None);
    let mut stream = settled(&first, &["a", "b"]);
    // Another pool comes at the same time, so clusters have something to add at once.
    let clusters = only_first(stream.on_resources(set(6, &["a", "c"], 1.0, Some(&first))), Clusters);
    assert_eq!((clusters.version_info.as_str(), clusters.resources.len()), ("6-keeping", 3));
    let endpoints = last_of_endpoints(&mut stream, &clusters);
    let filter = only(stream.on_request(&ack(&endpoints, &["a", "b", "c"])).unwrap(), Extensions);
    assert_eq!(stream.status().types[&Clusters].in_sync_with, Some(5));
    let rest = only(stream.on_request(&ack(&filter, &[EXTENSION_NAME])).unwrap(), Clusters);
    assert_eq!((rest.version_info.as_str(), rest.resources.len()), ("6", 2));
    stream.on_request(&ack(&rest, &[])).unwrap();
    assert!(stream.status().types.values().all(|status| status.in_sync_with == Some(6)));
}

fn only_first(mut responses: Vec<DiscoveryResponse>, kind: ResourceType) -> DiscoveryResponse {
    assert_eq!(kinds(&responses)[0], kind);
    responses.remove(0)
}

/// ACKs clusters, then asks for all endpoints as an Envoy does, and returns the response that brings them.
fn last_of_endpoints(stream: &mut Stream, clusters: &DiscoveryResponse) -> DiscoveryResponse {
    let nonce: u64 = clusters.nonce.parse().unwrap();
    assert!(stream.on_request(&ack(clusters, &[])).unwrap().is_empty(), "endpoints are under way");
    let under_way = DiscoveryResponse {
        type_url: Endpoints.type_url().into(),
        nonce: (nonce + 1).to_string(),
        ..Default::default()
    };
    only(stream.on_request(&ack(&under_way, &["a", "b", "c"])).unwrap(), Endpoints)
}

#[test]
fn a_pool_that_comes_back_gets_its_endpoints_again() {
    let first = set(5, &["a", "b"], 1.0, None);
    let mut stream = Stream::new(Scope::Aggregated);
    stream.on_resources(Arc::clone(&first));
    let clusters = only(stream.on_request(&request(Clusters, &[])).unwrap(), Clusters);
    let endpoints = only(stream.on_request(&request(Endpoints, &["a", "b"])).unwrap(), Endpoints);
    stream.on_request(&ack(&clusters, &[])).unwrap();
    stream.on_request(&ack(&endpoints, &["a", "b"])).unwrap();
    // The subscription does not move: an Envoy may fold "no b" and "b again" into nothing.
    let second = set(6, &["a"], 1.0, Some(&first));
    let without = stream.on_resources(Arc::clone(&second));
    assert_eq!(kinds(&without), [Clusters, Endpoints]);
    for response in &without {
        stream
            .on_request(&ack(response, if response.type_url == Clusters.type_url() { &[] } else { &["a", "b"] }))
            .unwrap();
    }
    let with = stream.on_resources(set(7, &["a", "b"], 1.0, Some(&second)));
    assert_eq!(kinds(&with), [Clusters, Endpoints]);
    assert_eq!(with[1].resources.len(), 2);
}

#[test]
fn versions_are_read_up_to_the_first_other_character() {
    for (text, number) in
        [("17", Some(17)), ("17-keeping", Some(17)), ("", None), ("v3", None), ("99999999999999999999", None)]
    {
        assert_eq!(leading_number(text), number, "{text}");
    }
}

proptest! {
    #[test]
    fn no_request_is_too_strange(
        kinds in proptest::collection::vec((0usize..3, "[0-9]{0,2}", "[a-z*]{0,2}", any::<bool>()), 0..60),
        aggregated in any::<bool>(),
    ) {
        let scope = if aggregated { Scope::Aggregated } else { Scope::Only(Endpoints) };
        let mut stream = Stream::new(scope);
        stream.on_resources(set(5, &["a", "b"], 1.0, None));
        let mut responses = 0;
        for (kind, nonce, name, refuse) in &kinds {
            let kind = ResourceType::ALL[*kind];
            let error_detail = refuse.then(Status::default);
            let request = DiscoveryRequest { response_nonce: nonce.clone(), error_detail, ..request(kind, &[name]) };
            responses += stream.on_request(&request).map_or(0, |responses| responses.len());
            let _ = stream.status();
        }
        // Every response answers a request, or waits behind one.
        prop_assert!(responses <= 3 * kinds.len());
    }
}
