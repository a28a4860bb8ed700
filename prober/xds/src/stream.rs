//! What one stream says, and when. No I/O: requests and resource sets go in, responses come out.
//!
//! Rules, each with a test:
//! - One response per type is under way at a time. Sets that arrive meanwhile replace each other, so a slow Envoy gets
//!   the newest one and none of those between.
//! - A request whose nonce is not that of the last response of its type is stale and ignored; the answer to the last
//!   response will carry the subscription that counts.
//! - A refused response is never repeated; the next change is sent. The last ACKed version stays what Envoy has.
//! - On ADS, clusters go before endpoints before the filter's configuration, and the configuration waits until the
//!   other two are answered: the filter never names a cluster that is still warming. Clusters that are gone from the
//!   set stay until the filter has ACKed the configuration that no longer names them.
//!
//! Not kept in order: an endpoint that leaves a pool leaves EDS a moment before the filter forgets it. `override_host`
//! then takes the next host on the filter's list; the prober drains an endpoint before it removes it.
//!
//! A stream knows nothing of other streams: with one stream per type there is no such order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::Any;

use self::version::{Version, leading_number};
use crate::registry::{Nack, StreamStatus, TypeStatus};
use crate::{EXTENSION_NAME, ResourceSet, ResourceType};

/// The longest message of a refusal that is kept, in characters.
const MAX_NACK_CHARS: usize = 1024;

/// What a stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All types (ADS).
    Aggregated,
    /// One type.
    Only(ResourceType),
}

/// A request that breaks the protocol.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StreamError {
    /// A type that does not belong on this stream.
    #[error("type_url {found:?} on a stream that carries {expected:?}")]
    WrongType {
        /// What was asked for.
        found: String,
        /// What the stream carries.
        expected: &'static str,
    },
}

type Items = BTreeMap<String, Arc<Any>>;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    All,
    Names(BTreeSet<String>),
}

impl Wanted {
    fn has(&self, name: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Names(names) => names.contains(name),
        }
    }

    /// What a request asks for. An empty list means everything only for clusters, and only if the stream never named
    /// one; otherwise it takes the subscription back.
    fn of(kind: ResourceType, names: &[String], before: Option<&Wanted>) -> Wanted {
        let legacy_wildcard =
            kind == ResourceType::Clusters && names.is_empty() && matches!(before, None | Some(Wanted::All));
        if legacy_wildcard || (kind == ResourceType::Clusters && names.iter().any(|name| name == "*")) {
            Wanted::All
        } else {
            Wanted::Names(names.iter().cloned().collect())
        }
    }
}

#[derive(Debug, Clone)]
struct Sent {
    version: Version,
    items: Items,
}

impl Sent {
    fn same_names(&self, other: &Sent) -> bool {
        self.items.keys().eq(other.items.keys())
    }
}

#[derive(Debug, Default)]
struct TypeState {
    wanted: Option<Wanted>,
    /// Nonce of the last response.
    nonce: Option<String>,
    /// The last response, answered or not.
    sent: Option<Sent>,
    /// It is not answered yet.
    awaiting: bool,
    /// It was refused.
    rejected: bool,
    /// Version last ACKed.
    acked: Option<Version>,
    /// What Envoy has: the resources last ACKed.
    held: Items,
    in_sync_with: Option<u64>,
}

impl TypeState {
    fn subscribed(&self) -> bool {
        match &self.wanted {
            None => false,
            Some(Wanted::All) => true,
            Some(Wanted::Names(names)) => !names.is_empty(),
        }
    }
}

/// The state of one stream.
#[derive(Debug)]
pub struct Stream {
    scope: Scope,
    set: Option<Arc<ResourceSet>>,
    types: [TypeState; 3],
    responses: u64,
    highest_seen: u64,
    last_nack: Option<Nack>,
}

impl Stream {
    /// A stream on which nothing has been said.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Stream { scope, set: None, types: Default::default(), responses: 0, highest_seen: 0, last_nack: None }
    }

    /// Takes a request in and says what to send.
    ///
    /// # Errors
    /// When the request does not belong on this stream, which should then end.
    pub fn on_request(&mut self, request: &DiscoveryRequest) -> Result<Vec<DiscoveryResponse>, StreamError> {
        let Some(kind) = self.kind_of(request)? else { return Ok(Vec::new()) };
        self.highest_seen = self.highest_seen.max(leading_number(&request.version_info).unwrap_or(0));
        let state = self.state_mut(kind);
        // A nonce before the first response comes from an earlier stream: as good as none.
        if state.nonce.as_deref().is_some_and(|nonce| nonce != request.response_nonce) {
            return Ok(Vec::new());
        }
        if state.nonce.is_some() {
            state.awaiting = false;
            if let Some(sent) = &state.sent {
                if let Some(error) = &request.error_detail {
                    state.rejected = true;
                    let message = error.message.chars().take(MAX_NACK_CHARS).collect();
                    self.last_nack = Some(Nack { version: sent.version.to_string(), kind, message });
                } else if !state.rejected {
                    state.acked = Some(sent.version);
                    state.held.clone_from(&sent.items);
                }
            }
        }
        let state = self.state_mut(kind);
        let wanted = Wanted::of(kind, &request.resource_names, state.wanted.as_ref());
        if let Some(sent) = &mut state.sent {
            // What was given up is forgotten, so that asking for it again brings it again.
            sent.items.retain(|name, _| wanted.has(name));
        }
        state.held.retain(|name, _| wanted.has(name));
        state.wanted = Some(wanted);
        Ok(self.advance())
    }

    /// Takes a new set in and says what to send.
    pub fn on_resources(&mut self, set: Arc<ResourceSet>) -> Vec<DiscoveryResponse> {
        self.set = Some(set);
        self.advance()
    }

    /// Where the stream stands.
    #[must_use]
    pub fn status(&self) -> StreamStatus {
        let status = |state: &TypeState| TypeStatus {
            acked_version: match state.acked {
                Some(Version::Complete(version)) => Some(version),
                // Everything new is there, some of the old still is: not yet that version.
                Some(Version::Keeping(_)) | None => None,
            },
            in_sync_with: state.in_sync_with,
            pending: state.awaiting,
            rejected_version: match &state.sent {
                Some(sent) if state.rejected => Some(sent.version.to_string()),
                _ => None,
            },
        };
        let subscribed = ResourceType::ALL.into_iter().filter(|kind| self.state(*kind).subscribed());
        StreamStatus {
            types: subscribed.map(|kind| (kind, status(self.state(kind)))).collect(),
            last_nack: self.last_nack.clone(),
            highest_seen: self.highest_seen,
        }
    }

    /// The type of a request; `None` when it is one that nobody serves here, such as listeners on ADS.
    fn kind_of(&self, request: &DiscoveryRequest) -> Result<Option<ResourceType>, StreamError> {
        let kind = ResourceType::from_type_url(&request.type_url);
        match self.scope {
            Scope::Aggregated => Ok(kind),
            // A stream for one type need not name it.
            Scope::Only(own) if kind == Some(own) || request.type_url.is_empty() => Ok(Some(own)),
            Scope::Only(own) => {
                Err(StreamError::WrongType { found: request.type_url.clone(), expected: own.type_url() })
            }
        }
    }

    fn state(&self, kind: ResourceType) -> &TypeState {
        let [clusters, endpoints, extensions] = &self.types;
        match kind {
            ResourceType::Clusters => clusters,
            ResourceType::Endpoints => endpoints,
            ResourceType::Extensions => extensions,
        }
    }

    fn state_mut(&mut self, kind: ResourceType) -> &mut TypeState {
        let [clusters, endpoints, extensions] = &mut self.types;
        match kind {
            ResourceType::Clusters => clusters,
            ResourceType::Endpoints => endpoints,
            ResourceType::Extensions => extensions,
        }
    }

    /// Sends what is due, in order, and notes which types are in sync.
    fn advance(&mut self) -> Vec<DiscoveryResponse> {
        let Some(set) = self.set.clone() else { return Vec::new() };
        let mut out = Vec::new();
        for kind in ResourceType::ALL {
            if kind == ResourceType::Extensions && self.earlier_types_unanswered() {
                continue;
            }
            if let Some(next) = self.due(kind, &set) {
                out.push(self.send(kind, next));
            }
        }
        for kind in ResourceType::ALL {
            if self.in_sync(kind, &set) {
                self.state_mut(kind).in_sync_with = Some(set.version);
            }
        }
        out
    }

    /// Clusters or endpoints are under way. What is due of them has been sent just before this is asked.
    fn earlier_types_unanswered(&self) -> bool {
        self.state(ResourceType::Clusters).awaiting || self.state(ResourceType::Endpoints).awaiting
    }

    /// What Envoy should have of a type now.
    fn target(&self, kind: ResourceType, set: &ResourceSet) -> Option<Sent> {
        let state = self.state(kind);
        let wanted = state.wanted.as_ref().filter(|_| state.subscribed())?;
        let resources = set.of(kind, self.scope == Scope::Aggregated);
        let named = resources.items.iter().filter(|(name, _)| wanted.has(name));
        let mut items: Items = named.map(|(name, item)| (name.clone(), Arc::clone(item))).collect();
        let mut version = Version::Complete(resources.version);
        if kind == ResourceType::Clusters && self.filter_names_old_clusters(set) {
            let before = items.len();
            for (name, item) in &state.held {
                items.entry(name.clone()).or_insert_with(|| Arc::clone(item));
            }
            if items.len() > before {
                version = Version::Keeping(resources.version);
            }
        }
        Some(Sent { version, items })
    }

    /// The filter is configured over this stream and has not taken the set's configuration yet.
    fn filter_names_old_clusters(&self, set: &ResourceSet) -> bool {
        let filter = self.state(ResourceType::Extensions);
        let newest = Version::Complete(set.of(ResourceType::Extensions, true).version);
        filter.wanted.as_ref().is_some_and(|wanted| wanted.has(EXTENSION_NAME)) && filter.acked != Some(newest)
    }

    /// What to send of a type now, if anything.
    fn due(&self, kind: ResourceType, set: &ResourceSet) -> Option<Sent> {
        let state = self.state(kind);
        let target = self.target(kind, set)?;
        if state.awaiting || (target.items.is_empty() && kind != ResourceType::Clusters) {
            // An empty answer would say nothing: the absence of endpoints or of a filter removes neither.
            return None;
        }
        if let Some(sent) = &state.sent {
            let same_names = sent.same_names(&target);
            if state.rejected {
                // With or without the clusters kept, the refused content is the same.
                let same_content = sent.version.number() == target.version.number();
                if same_content && (same_names || kind == ResourceType::Clusters) {
                    return None;
                }
            } else if sent.version == target.version && same_names {
                return None;
            }
        }
        if matches!(target.version, Version::Keeping(_)) && target.items == state.held {
            // Only removals are left to do; they wait for the filter.
            return None;
        }
        Some(target)
    }

    /// The client has ACKed what the set says, all of it; or there is nothing to say.
    fn in_sync(&self, kind: ResourceType, set: &ResourceSet) -> bool {
        let state = self.state(kind);
        let Some(target) = self.target(kind, set) else { return false };
        if target.items.is_empty() && kind != ResourceType::Clusters {
            return true;
        }
        !state.awaiting
            && !state.rejected
            && matches!(target.version, Version::Complete(_))
            && state.acked == Some(target.version)
            && state.held.keys().eq(target.items.keys())
    }

    fn send(&mut self, kind: ResourceType, next: Sent) -> DiscoveryResponse {
        self.responses += 1;
        let nonce = self.responses.to_string();
        let response = DiscoveryResponse {
            version_info: next.version.to_string(),
            resources: next.items.values().map(|item| Any::clone(item)).collect(),
            type_url: kind.type_url().into(),
            nonce: nonce.clone(),
            ..Default::default()
        };
        let state = self.state_mut(kind);
        state.nonce = Some(nonce);
        state.sent = Some(next);
        state.awaiting = true;
        state.rejected = false;
        response
    }
}

mod version;

#[cfg(test)]
mod tests;
