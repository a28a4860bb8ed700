//! Which endpoints are on their way out, and what became of them when they were looked at.

use std::net::SocketAddr;

use super::drain::{Emptying, Left, Progress};
use super::{Endpoint, Registry};

/// An endpoint on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Going {
    /// Its id.
    pub id: String,
    /// Where it is.
    pub address: SocketAddr,
    /// The first version that says that it takes no more requests.
    pub version: u64,
    /// Whether it was empty when it was last looked at.
    pub empty: bool,
}

impl Registry {
    /// All that take no more requests, drained or removed. One that is new among them is said to go from the version in force
    /// on.
    pub fn going(&mut self) -> Vec<Going> {
        let version = self.published.as_ref().map_or(0, |published| published.version);
        let going = self.endpoints.iter_mut().filter(|(_, endpoint)| endpoint.goes()).map(|(id, endpoint)| {
            let emptying = endpoint.emptying.get_or_insert(Emptying::from_version(version));
            Going { id: id.clone(), address: endpoint.address, version: emptying.version, empty: emptying.is_empty() }
        });
        going.collect()
    }

    /// What is left at an endpoint; `connected` Envoys are here, and with `others` perhaps more at other probers.
    #[must_use]
    pub fn left(&self, id: &str, connected: usize, others: bool, now_ms: u64) -> Left {
        let engine = self.endpoints.get(id).and_then(|endpoint| {
            let signals = endpoint.signals.fresh(now_ms, self.exchange.settings().stale_after_ms())?;
            signals.requests()
        });
        let in_flight = self.exchange.in_flight(id, now_ms).into();
        Left { connected, reporting: self.exchange.envoys(now_ms), in_flight, others, engine }
    }

    /// An endpoint has been looked at: whether every Envoy has applied its [`Going::version`], and how many requests are left.
    /// How far it is now, when that is news.
    pub fn looked_at(&mut self, id: &str, told: bool, left: Option<u64>, now_ms: u64) -> Option<Progress> {
        let settle_ms = self.exchange.settings().stale_after_ms();
        let endpoint = self.endpoints.get_mut(id)?;
        endpoint.emptying.as_mut()?.look(told, left, settle_ms, now_ms);
        let progress = endpoint.progress(now_ms)?;
        (endpoint.emptying.as_mut()?.said.replace(progress) != Some(progress)).then_some(progress)
    }

    /// Whether an endpoint may be forgotten: it is to be, and it is empty, or its deadline has passed.
    #[must_use]
    pub fn may_be_forgotten(&self, id: &str, now_ms: u64) -> bool {
        self.endpoints.get(id).is_some_and(|endpoint| {
            let Some(removal) = &endpoint.removal else { return false };
            now_ms >= removal.until_ms || endpoint.emptying.is_some_and(|emptying| emptying.is_empty())
        })
    }
}

impl Endpoint {
    /// How far it is on its way out; `None`: it stays.
    #[must_use]
    pub fn progress(&self, now_ms: u64) -> Option<Progress> {
        let until_ms = match (&self.removal, &self.drain) {
            (Some(removal), _) => Some(removal.until_ms),
            (None, Some(drain)) => drain.until_ms,
            (None, None) => return None,
        };
        Some(self.emptying.unwrap_or_default().progress(until_ms, now_ms))
    }
}
