use std::collections::VecDeque;

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::google::protobuf::StringValue;
use envoy_types::pb::google::rpc::Status;
use proptest::prelude::*;
use prost::Message;
use serde_json::json;
use weighbridge_routing::snapshot::wire;

use super::*;
use crate::FilterSource;
use ResourceType::{Clusters, Endpoints, Extensions};

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
    Arc::new(ResourceSet::build(&snapshot, &source, previous).unwrap())
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

// ---- random interleavings against a model of an Envoy ----

#[derive(Debug, Clone)]
enum Step {
    /// Publish these pools (a bit each) with this weight; `bad` makes the client refuse that version's `kind`.
    Publish {
        pools: u8,
        weight: u8,
        bad: Option<u8>,
    },
    ToClient,
    ToServer,
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u8..16, 1u8..4, proptest::option::weighted(0.2, 0u8..3))
            .prop_map(|(pools, weight, bad)| Step::Publish { pools, weight, bad }),
        6 => Just(Step::ToClient),
        6 => Just(Step::ToServer),
        1 => Just(Step::Reconnect),
    ]
}

/// What the model Envoy believes about a type.
#[derive(Debug, Default, Clone)]
struct Known {
    nonce: String,
    version: String,
    names: Vec<String>,
}

/// A client that behaves like Envoy's state-of-the-world mux: CDS decides which endpoints it asks for.
#[derive(Debug, Default)]
struct Client {
    known: [Known; 3],
    clusters: BTreeSet<String>,
    /// Cluster to the weight of its endpoint.
    endpoints: BTreeMap<String, u32>,
    /// Pools the filter names.
    filter: BTreeSet<String>,
    to_server: VecDeque<DiscoveryRequest>,
    to_client: VecDeque<DiscoveryResponse>,
    /// Responses refused so far, as (type, version, names).
    refused: BTreeSet<(ResourceType, String, Vec<String>)>,
}

impl Client {
    fn say(&mut self, kind: ResourceType, error: Option<&str>) {
        let known = &self.known[kind as usize];
        let error_detail = error.map(|message| Status { message: message.into(), ..Default::default() });
        self.to_server.push_back(DiscoveryRequest {
            type_url: kind.type_url().into(),
            version_info: known.version.clone(),
            response_nonce: known.nonce.clone(),
            resource_names: known.names.clone(),
            error_detail,
            ..Default::default()
        });
    }

    fn connect(&mut self) {
        self.to_client.clear();
        self.to_server.clear();
        for kind in ResourceType::ALL {
            self.known[kind as usize].nonce.clear();
        }
        self.known[Extensions as usize].names = vec![EXTENSION_NAME.into()];
        self.say(Clusters, None);
        if !self.clusters.is_empty() {
            self.say(Endpoints, None);
        }
        self.say(Extensions, None);
    }

    fn take(&mut self, response: &DiscoveryResponse, bad: &BTreeSet<(ResourceType, u64)>) {
        let kind = ResourceType::from_type_url(&response.type_url).unwrap();
        let names = names_in(kind, response);
        let identity = (kind, response.version_info.clone(), names.clone());
        assert!(!self.refused.contains(&identity), "sent again after it was refused: {identity:?}");
        let refuse = bad.contains(&(kind, leading_number(&response.version_info).unwrap()));
        if refuse {
            self.refused.insert(identity);
        } else {
            match kind {
                Clusters => {
                    self.clusters = names.into_iter().collect();
                    let clusters = self.clusters.clone();
                    self.endpoints.retain(|name, _| clusters.contains(name));
                    let wanted: Vec<String> = clusters.into_iter().collect();
                    if self.known[Endpoints as usize].names != wanted {
                        self.known[Endpoints as usize].names = wanted;
                        // Whoever asks anew may be told anew.
                        self.refused.retain(|(kind, ..)| *kind != Endpoints);
                        self.say(Endpoints, None);
                    }
                }
                Endpoints => {
                    for (name, weight) in weights_in(response) {
                        if self.clusters.contains(&name) {
                            self.endpoints.insert(name, weight);
                        }
                    }
                }
                Extensions => self.filter = pools_in(response),
            }
            self.known[kind as usize].version.clone_from(&response.version_info);
        }
        self.known[kind as usize].nonce.clone_from(&response.nonce);
        self.say(kind, refuse.then_some("refused"));
    }
}

fn names_in(kind: ResourceType, response: &DiscoveryResponse) -> Vec<String> {
    use envoy_types::pb::envoy::config::cluster::v3::Cluster;
    let name = |any: &Any| match kind {
        Clusters => Cluster::decode(any.value.as_slice()).unwrap().name,
        Endpoints => ClusterLoadAssignment::decode(any.value.as_slice()).unwrap().cluster_name,
        Extensions => TypedExtensionConfig::decode(any.value.as_slice()).unwrap().name,
    };
    response.resources.iter().map(name).collect()
}

fn weights_in(response: &DiscoveryResponse) -> Vec<(String, u32)> {
    let read = |any: &Any| {
        let assignment = ClusterLoadAssignment::decode(any.value.as_slice()).unwrap();
        let weight = assignment.endpoints[0].lb_endpoints[0].load_balancing_weight.unwrap().value;
        (assignment.cluster_name, weight)
    };
    response.resources.iter().map(read).collect()
}

fn pools_in(response: &DiscoveryResponse) -> BTreeSet<String> {
    let config = TypedExtensionConfig::decode(response.resources[0].value.as_slice()).unwrap();
    let wasm = Wasm::decode(config.typed_config.unwrap().value.as_slice()).unwrap();
    let json = StringValue::decode(wasm.config.unwrap().configuration.unwrap().value.as_slice()).unwrap();
    let snapshot: wire::Snapshot = serde_json::from_str(&json.value).unwrap();
    snapshot.pools.into_iter().map(|pool| pool.name).collect()
}

const POOLS: [&str; 4] = ["a", "b", "c", "d"];

struct World {
    stream: Stream,
    client: Client,
    current: Arc<ResourceSet>,
    bad: BTreeSet<(ResourceType, u64)>,
    sent: usize,
    /// The order on ADS can be promised: nothing was refused, and the stream has seen it all.
    ordered: bool,
}

impl World {
    fn new() -> Self {
        let mut stream = Stream::new(Scope::Aggregated);
        let current = set(1, &["a"], 1.0, None);
        stream.on_resources(Arc::clone(&current));
        let mut client = Client::default();
        client.connect();
        World { stream, client, current, bad: BTreeSet::new(), sent: 0, ordered: true }
    }

    fn push(&mut self, responses: Vec<DiscoveryResponse>) {
        self.sent += responses.len();
        self.client.to_client.extend(responses);
        for kind in ResourceType::ALL {
            let under_way = self.client.to_client.iter().filter(|response| response.type_url == kind.type_url());
            assert!(under_way.count() <= 1, "two responses of one type under way");
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Publish { pools, weight, bad } => {
                let version = self.current.version + 1;
                let names: Vec<&str> = POOLS
                    .into_iter()
                    .enumerate()
                    .filter(|(bit, _)| pools >> bit & 1 == 1)
                    .map(|(_, name)| name)
                    .collect();
                self.current = set(version, &names, f64::from(*weight), Some(&self.current));
                if let Some(kind) = bad.and_then(|kind| ResourceType::ALL.get(usize::from(kind))) {
                    // Only a change can be bad; what has been ACKed before stays good.
                    if self.current.of(*kind, true).version == version {
                        self.bad.insert((*kind, version));
                        self.ordered = false;
                    }
                }
                let responses = self.stream.on_resources(Arc::clone(&self.current));
                self.push(responses);
            }
            Step::ToClient => {
                if let Some(response) = self.client.to_client.pop_front() {
                    self.client.take(&response, &self.bad);
                }
            }
            Step::ToServer => {
                if let Some(request) = self.client.to_server.pop_front() {
                    let responses = self.stream.on_request(&request).unwrap();
                    self.push(responses);
                }
            }
            Step::Reconnect => {
                self.stream = Stream::new(Scope::Aggregated);
                self.stream.on_resources(Arc::clone(&self.current));
                self.client.refused.clear();
                self.client.connect();
                self.ordered = false;
            }
        }
        if self.ordered {
            for pool in &self.client.filter {
                assert!(self.client.endpoints.contains_key(pool), "the filter names {pool}, which has no endpoints");
            }
        }
    }

    /// Delivers everything; returns how many messages that took.
    fn drain(&mut self) -> usize {
        let mut steps = 0;
        while !(self.client.to_client.is_empty() && self.client.to_server.is_empty()) {
            self.run(&Step::ToClient);
            self.run(&Step::ToServer);
            steps += 1;
            assert!(steps < 100, "no end of messages");
        }
        steps
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_interleaving_ends_and_ends_converged(steps in proptest::collection::vec(step(), 0..80)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
        }
        world.drain();
        let silent = world.sent;
        world.drain();
        prop_assert_eq!(silent, world.sent);

        // A last good set puts everything right, whatever was refused before.
        world.run(&Step::Publish { pools: 0b0101, weight: 9, bad: None });
        world.drain();
        let pools: BTreeSet<String> = ["a", "c"].map(String::from).into();
        prop_assert_eq!(&world.client.filter, &pools);
        let current = world.current.version;
        let clusters_good = !world.bad.contains(&(Clusters, world.current.of(Clusters, true).version));
        if clusters_good {
            prop_assert_eq!(&world.client.clusters, &pools);
            let endpoints: BTreeMap<String, u32> = pools.iter().map(|pool| (pool.clone(), 900)).collect();
            prop_assert_eq!(&world.client.endpoints, &endpoints);
            for (kind, status) in world.stream.status().types {
                prop_assert_eq!(status.in_sync_with, Some(current), "{}", kind);
                prop_assert!(!status.pending);
            }
        }
    }

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
