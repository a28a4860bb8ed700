//! What other probers over the same store have changed.

use serde::{Deserialize, Serialize};

use super::burst::Burst;
use super::drain::Drain;
use super::endpoint::{History, Kept, Measurement, Pin, ProbeKind, failed};
use super::epoch::Epoch;
use super::versions::Issued;
use super::{Endpoint, Registry};
use crate::exchange::averages;

/// One thing that another prober has changed; `None`: removed.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// An operator's weight.
    Pin(Option<Pin>),
    /// An operator's drain.
    Drain(Option<Drain>),
    /// What was measured last on an endpoint.
    Last(Option<Kept>),
    /// A result; here the key is (node, model, launch arguments).
    Result(Option<Measurement>),
    /// The probes of an endpoint.
    History(Option<History>),
    /// An engine's life.
    Epoch(Option<Epoch>),
    /// An endpoint's moving averages.
    Averages(Option<averages::Kept>),
    /// A snapshot's version.
    Snapshot(Option<Issued>),
    /// A burst.
    Probing(Option<Mark>),
}

/// Stands at an endpoint under a burst, in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// That of the prober that bursts.
    pub fence: u64,
    /// Which of its bursts: what was said of the one before says nothing of this one.
    pub burst: u64,
}

/// A mark, and when it was heard of here (Unix ms).
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    mark: Mark,
    heard_ms: u64,
}

impl Registry {
    /// Takes in what another prober has changed.
    pub fn learn(&mut self, key: &str, news: News, now_ms: u64) {
        let follows = self.burst_by.is_some();
        let served = self.endpoints.get(key).map(|endpoint| self.served_model(&endpoint.pool).to_owned());
        let mut endpoint = self.endpoints.get_mut(key);
        let subject = endpoint.as_ref().zip(served).and_then(|(endpoint, served)| endpoint.key(&served));
        match news {
            News::Pin(pin) => {
                put(&mut self.memory.pins, key, pin.clone());
                // What is stored of one that is removed goes at once; it keeps it until it is gone, for it may come back.
                if let Some(endpoint) = endpoint.filter(|endpoint| pin.is_some() || endpoint.removal.is_none()) {
                    endpoint.pin = pin;
                }
            }
            News::Drain(drain) => {
                put(&mut self.memory.drains, key, drain.clone());
                if let Some(endpoint) = endpoint.filter(|endpoint| drain.is_some() || endpoint.removal.is_none()) {
                    endpoint.set_drain(drain);
                }
            }
            News::Result(result) => put(&mut self.memory.results, key, result),
            News::Last(kept) => {
                if let (Some(endpoint), Some(kept)) = (&mut endpoint, &kept)
                    && subject.as_ref().is_none_or(|subject| *subject == kept.key)
                {
                    endpoint.keep(Some(kept.clone()));
                    endpoint.alarm = None;
                    if follows {
                        endpoint.registered |= subject.is_some();
                    } else if !endpoint.registered {
                        // The store came late: asked again what it is, it may turn out to need no burst.
                        endpoint.fingerprint = None;
                    }
                }
                put(&mut self.memory.last, key, kept);
            }
            News::History(history) => {
                if let (Some(endpoint), Some(history)) = (&mut endpoint, &history) {
                    endpoint.history = history.records.clone();
                    if follows {
                        done_elsewhere(endpoint, history, subject.as_deref());
                    }
                }
                put(&mut self.memory.history, key, history);
            }
            News::Epoch(epoch) => {
                if let (Some(endpoint), Some(epoch)) = (endpoint, epoch) {
                    if epoch.started_since(endpoint.epoch) {
                        // Whoever reads it first: it is a restart for both.
                        endpoint.live(|known| *known = epoch, now_ms);
                    }
                    endpoint.epoch = epoch;
                }
                put(&mut self.memory.epochs, key, epoch);
            }
            News::Averages(Some(kept)) => self.exchange.hear(key, kept),
            // Of an endpoint that is there, the other's averages were all that went.
            News::Averages(None) if endpoint.is_none() => self.exchange.forget(key),
            News::Averages(None) => {}
            News::Snapshot(issued) => {
                if let Some(issued) = issued {
                    self.versions.learn(&issued, now_ms);
                }
            }
            News::Probing(mark) => {
                put(&mut self.marks, key, mark.map(|mark| Heard { mark, heard_ms: now_ms }));
                let marked = self.is_marked(key);
                self.probing_elsewhere(key, marked);
            }
        }
    }

    /// Another prober bursts at an endpoint, or does not. One that ends is known of even if no scrape came while it ran.
    fn probing_elsewhere(&mut self, id: &str, now: bool) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        if std::mem::replace(&mut endpoint.probing_elsewhere, now) && !now {
            let own = endpoint.probe_requests((self.burst, self.sweep_max));
            let address = endpoint.address;
            self.probe_was_at(address, own);
        }
    }

    /// Another prober bursts now, with this fence; `None`: this one, or nobody. Marks of a prober that is gone end here.
    pub fn follow(&mut self, fence: Option<u64>) {
        self.burst_by = fence;
        let ids: Vec<String> = self.endpoints.keys().cloned().collect();
        for id in ids {
            let marked = self.is_marked(&id);
            self.probing_elsewhere(&id, marked);
            let subject = self.subject(&id).and_then(|subject| subject.key);
            let known = self.memory.history.get(&id).filter(|_| fence.is_some());
            if let Some((endpoint, history)) = self.endpoints.get_mut(&id).zip(known) {
                done_elsewhere(endpoint, history, subject.as_deref());
            }
        }
    }

    /// Which endpoints other probers burst at, with their marks.
    pub fn marked(&self) -> impl Iterator<Item = (&str, Mark)> {
        let under = self.endpoints.iter().filter(|(_, endpoint)| endpoint.probing_elsewhere);
        under.filter_map(|(id, _)| Some((id.as_str(), self.marks.get(id)?.mark)))
    }

    /// A burst of another prober, since it was heard of: it says no more than that there is one. Why there is follows from
    /// what all probers know; `asked`: somebody has asked for a probe.
    #[must_use]
    pub fn burst_elsewhere(&self, id: &str, asked: bool) -> Option<Burst> {
        let endpoint = self.endpoints.get(id).filter(|endpoint| endpoint.probing_elsewhere)?;
        let kind = match (endpoint.registered, asked) {
            (false, _) => ProbeKind::Registration,
            (true, true) => ProbeKind::Demand,
            (true, false) => ProbeKind::Interval,
        };
        Some(Burst::begin(kind, false, self.marks.get(id)?.heard_ms))
    }

    /// Whether another prober bursts, so that what it has measured counts however old it is.
    pub(super) fn follows(&self) -> bool {
        self.burst_by.is_some()
    }

    pub(super) fn is_marked(&self, id: &str) -> bool {
        self.burst_by.is_some() && self.marks.get(id).map(|heard| heard.mark.fence) == self.burst_by
    }

    /// The number of a snapshot that was given out here since this was last asked, for the store.
    pub fn take_issued(&mut self) -> Option<Issued> {
        self.versions.take_untold()
    }
}

/// The registration probe is done when the prober that bursts has done it, whatever came of it.
pub(super) fn done_elsewhere(endpoint: &mut Endpoint, history: &History, subject: Option<&str>) {
    let Some(last) = history.records.back() else { return };
    if subject.is_none() || history.key.as_deref() != subject {
        return;
    }
    endpoint.registered = true;
    endpoint.alarm = last.error.as_deref().map(failed);
}

fn put<T>(map: &mut std::collections::HashMap<String, T>, key: &str, value: Option<T>) {
    match value {
        Some(value) => {
            map.insert(key.to_owned(), value);
        }
        None => {
            map.remove(key);
        }
    }
}
