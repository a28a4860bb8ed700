//! Who is connected, and what each Envoy has applied or refused.
//!
//! One Envoy may hold several streams (ADS, or one per type), and two Envoys may carry the same node id by mistake: the
//! state is kept per stream, and an Envoy is as far as its slowest stream. What an Envoy last said stays readable after
//! it left, for at most [`MAX_GONE`] Envoys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

use crate::ResourceType;

/// How many Envoys without a stream are remembered.
pub const MAX_GONE: usize = 256;

/// A refused response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Nack {
    /// The version refused, as it was sent.
    pub version: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: ResourceType,
    /// What Envoy said, cut to 1,024 characters.
    pub message: String,
}

/// Where a stream stands with one type.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TypeStatus {
    /// Version last ACKed.
    pub acked_version: Option<u64>,
    /// The newest snapshot version of which everything of this type has been ACKed.
    pub in_sync_with: Option<u64>,
    /// A response is on its way.
    pub pending: bool,
    /// The version refused, until another one is ACKed.
    pub rejected_version: Option<String>,
}

impl TypeStatus {
    /// The slower of two streams.
    fn slower(self, other: &TypeStatus) -> TypeStatus {
        TypeStatus {
            acked_version: self.acked_version.min(other.acked_version),
            in_sync_with: self.in_sync_with.min(other.in_sync_with),
            pending: self.pending || other.pending,
            rejected_version: self.rejected_version.or_else(|| other.rejected_version.clone()),
        }
    }
}

/// Where a stream stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamStatus {
    /// The types it subscribes to.
    pub types: BTreeMap<ResourceType, TypeStatus>,
    /// The last refusal.
    pub last_nack: Option<Nack>,
    /// The highest version the client ever named.
    pub highest_seen: u64,
}

/// One Envoy, as `GET /v1/envoys` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnvoyStatus {
    /// `node.id` of its bootstrap.
    pub node_id: String,
    /// `node.cluster` of its bootstrap.
    pub node_cluster: String,
    /// Whether it has a stream.
    pub connected: bool,
    /// How many streams it has.
    pub streams: usize,
    /// The snapshot version its filter has applied.
    pub applied_version: Option<u64>,
    /// Its last refusal, also after it was cured.
    pub last_nack: Option<Nack>,
    /// It is connected, and refuses what it was sent last: in Envoy's words.
    pub refuses: Option<String>,
    /// Per subscribed type.
    pub types: BTreeMap<ResourceType, TypeStatus>,
}

#[derive(Debug, Default)]
struct Node {
    cluster: String,
    streams: BTreeMap<u64, StreamStatus>,
    last_nack: Option<Nack>,
    /// What the last stream said when it ended.
    last_types: BTreeMap<ResourceType, TypeStatus>,
    /// Order of leaving; the longest gone is forgotten first.
    left: u64,
}

impl Node {
    fn types(&self) -> BTreeMap<ResourceType, TypeStatus> {
        if self.streams.is_empty() {
            return self.last_types.clone();
        }
        let mut all = BTreeMap::new();
        for (kind, status) in self.streams.values().flat_map(|stream| &stream.types) {
            let merged = match all.remove(kind) {
                Some(other) => status.clone().slower(&other),
                None => status.clone(),
            };
            all.insert(*kind, merged);
        }
        all
    }

    /// Everything it subscribes to has been ACKed up to this snapshot.
    fn in_sync_with(&self, version: u64) -> bool {
        self.types().values().all(|status| status.in_sync_with >= Some(version))
    }
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<String, Node>,
    next_stream: u64,
    departures: u64,
    highest_seen: u64,
    nacks: u64,
}

/// The state of all Envoys.
#[derive(Debug)]
pub struct Registry {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

impl Default for Registry {
    fn default() -> Self {
        Registry { state: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything can panic, so a poisoned state is still a good one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ticks whenever anything changes here; the value counts the changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Makes waiters look again.
    pub(crate) fn touch(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Notes a new stream; it counts as connected until the entry is dropped.
    #[must_use]
    pub fn connect(self: &Arc<Self>, node_id: &str, node_cluster: &str) -> Entry {
        let mut state = self.lock();
        let stream = state.next_stream;
        state.next_stream += 1;
        let node = state.nodes.entry(node_id.to_owned()).or_default();
        node.cluster = node_cluster.to_owned();
        node.streams.insert(stream, StreamStatus::default());
        drop(state);
        self.touch();
        Entry { registry: Arc::clone(self), node_id: node_id.to_owned(), stream }
    }

    fn disconnect(&self, node_id: &str, stream: u64) {
        let mut state = self.lock();
        state.departures += 1;
        let departure = state.departures;
        if let Some(node) = state.nodes.get_mut(node_id) {
            let last = node.types();
            node.streams.remove(&stream);
            if node.streams.is_empty() {
                node.last_types = last;
                node.left = departure;
            }
        }
        let gone = |node: &Node| node.streams.is_empty();
        if state.nodes.values().filter(|node| gone(node)).count() > MAX_GONE {
            let oldest = state.nodes.iter().filter(|(_, node)| gone(node)).min_by_key(|(_, node)| node.left);
            if let Some(id) = oldest.map(|(id, _)| id.clone()) {
                state.nodes.remove(&id);
            }
        }
        drop(state);
        self.touch();
    }

    /// All Envoys, by node id.
    #[must_use]
    pub fn envoys(&self) -> Vec<EnvoyStatus> {
        let state = self.lock();
        let status = |(id, node): (&String, &Node)| {
            let types = node.types();
            let refused = !node.streams.is_empty() && types.values().any(|status| status.rejected_version.is_some());
            EnvoyStatus {
                node_id: id.clone(),
                node_cluster: node.cluster.clone(),
                connected: !node.streams.is_empty(),
                streams: node.streams.len(),
                applied_version: types.get(&ResourceType::Extensions).and_then(|status| status.acked_version),
                last_nack: node.last_nack.clone(),
                refuses: node.last_nack.as_ref().filter(|_| refused).map(|nack| nack.message.clone()),
                types,
            }
        };
        state.nodes.iter().map(status).collect()
    }

    /// Every connected Envoy that takes the filter from here has everything of this snapshot.
    #[must_use]
    pub fn applied(&self, version: u64) -> bool {
        let state = self.lock();
        let takes_filter =
            |node: &&Node| node.streams.values().any(|stream| stream.types.contains_key(&ResourceType::Extensions));
        state.nodes.values().filter(takes_filter).all(|node| node.in_sync_with(version))
    }

    /// At least one Envoy subscribes to something, and every connected one has everything of this snapshot.
    #[must_use]
    pub fn all_in_sync_with(&self, version: u64) -> bool {
        let state = self.lock();
        let mut connected = state.nodes.values().filter(|node| !node.streams.is_empty()).peekable();
        connected.peek().is_some() && connected.all(|node| !node.types().is_empty() && node.in_sync_with(version))
    }

    /// How many configurations have been refused.
    #[must_use]
    pub fn nacks(&self) -> u64 {
        self.lock().nacks
    }

    /// The highest version any client ever named.
    #[must_use]
    pub fn highest_seen(&self) -> u64 {
        self.lock().highest_seen
    }
}

/// A stream's place in the registry; dropping it disconnects.
#[derive(Debug)]
pub struct Entry {
    registry: Arc<Registry>,
    node_id: String,
    stream: u64,
}

impl Entry {
    /// The Envoy's node id.
    #[must_use]
    pub fn node_id(&self) -> &str {
        &self.node_id
    }

    /// Replaces what is known about the stream.
    pub fn update(&self, status: StreamStatus) {
        let mut state = self.registry.lock();
        state.highest_seen = state.highest_seen.max(status.highest_seen);
        let mut refused = false;
        let Some(node) = state.nodes.get_mut(&self.node_id) else { return };
        let Some(slot) = node.streams.get_mut(&self.stream) else { return };
        if *slot == status {
            return;
        }
        if status.last_nack.is_some() && status.last_nack != slot.last_nack {
            node.last_nack.clone_from(&status.last_nack);
            refused = true;
        }
        *slot = status;
        state.nacks += u64::from(refused);
        drop(state);
        self.registry.touch();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.disconnect(&self.node_id, self.stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_sync(kind: ResourceType, version: u64) -> StreamStatus {
        let status = TypeStatus { acked_version: Some(version), in_sync_with: Some(version), ..Default::default() };
        StreamStatus { types: [(kind, status)].into(), highest_seen: version, ..Default::default() }
    }

    #[test]
    fn an_envoy_is_as_far_as_its_slowest_stream() {
        let registry = Arc::new(Registry::default());
        assert!(!registry.all_in_sync_with(0), "nobody is connected");
        assert!(registry.applied(5), "nobody has to apply anything");
        let ecds = registry.connect("a", "edge");
        let eds = registry.connect("a", "edge");
        ecds.update(in_sync(ResourceType::Extensions, 5));
        eds.update(in_sync(ResourceType::Endpoints, 4));
        assert!(!registry.applied(5));
        assert!(registry.applied(4));
        eds.update(in_sync(ResourceType::Endpoints, 5));
        assert!(registry.applied(5) && registry.all_in_sync_with(5));
        let envoys = registry.envoys();
        assert_eq!((envoys.len(), envoys[0].streams, envoys[0].applied_version), (1, 2, Some(5)));
        assert_eq!(registry.highest_seen(), 5);
    }

    #[test]
    fn two_envoys_with_one_node_id_do_not_hide_each_other() {
        let registry = Arc::new(Registry::default());
        let fast = registry.connect("same", "");
        let slow = registry.connect("same", "");
        fast.update(in_sync(ResourceType::Extensions, 9));
        slow.update(in_sync(ResourceType::Extensions, 3));
        assert!(!registry.applied(9));
        drop(slow);
        assert!(registry.applied(9));
    }

    #[test]
    fn an_envoy_that_left_stays_readable_and_holds_nobody_up() {
        let registry = Arc::new(Registry::default());
        let entry = registry.connect("a", "edge");
        let nack = Nack { version: "7".into(), kind: ResourceType::Extensions, message: "no".into() };
        // Counted once, however often the stream reports it.
        for version in [5, 6] {
            entry.update(StreamStatus { last_nack: Some(nack.clone()), ..in_sync(ResourceType::Extensions, version) });
        }
        assert_eq!((registry.nacks(), &registry.envoys()[0].refuses), (1, &None), "it was cured");
        let mut refused = in_sync(ResourceType::Extensions, 6);
        refused.types.values_mut().for_each(|status| status.rejected_version = Some("7".into()));
        entry.update(StreamStatus { last_nack: Some(nack.clone()), ..refused });
        assert_eq!(registry.envoys()[0].refuses.as_deref(), Some("no"));
        drop(entry);
        assert_eq!(registry.envoys()[0].refuses, None, "nobody knows what it would say now");
        let envoy = &registry.envoys()[0];
        assert!(!envoy.connected);
        assert_eq!((envoy.applied_version, envoy.last_nack.as_ref()), (Some(6), Some(&nack)));
        assert!(registry.applied(100));
        let json = serde_json::to_value(envoy).unwrap();
        assert_eq!(json["last_nack"]["type"], "ecds");
        assert_eq!(json["types"]["ecds"]["acked_version"], 6);
    }

    #[test]
    fn the_longest_gone_is_forgotten_first() {
        let registry = Arc::new(Registry::default());
        let here = registry.connect("here", "");
        for nth in 0..MAX_GONE + 10 {
            drop(registry.connect(&format!("gone-{nth}"), ""));
        }
        let envoys = registry.envoys();
        assert_eq!(envoys.len(), MAX_GONE + 1);
        assert!(envoys.iter().any(|envoy| envoy.node_id == "here" && envoy.connected));
        assert!(!envoys.iter().any(|envoy| envoy.node_id == "gone-0"));
        drop(here);
    }
}
