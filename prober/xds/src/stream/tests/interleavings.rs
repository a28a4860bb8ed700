//! Random interleavings against a model of an Envoy.

use std::collections::VecDeque;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::google::protobuf::StringValue;
use prost::Message;

use super::*;

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
}
