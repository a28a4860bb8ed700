//! What a pool has in sum: for people and autoscalers.

use std::collections::BTreeMap;

use weighbridge_routing::snapshot::wire::State;

use super::{Registry, Verdict};

/// The load of one pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolLoad {
    /// Sum of the caps of the endpoints that take traffic.
    pub capacity: u64,
    /// Slots of them that are free, as the engines tell, else the Envoys. One of which nobody tells has none: whoever scales by
    /// this would send it more. `None`: nobody tells of any.
    pub headroom: Option<u64>,
    /// Requests that Envoys have in flight at its endpoints.
    pub in_flight: u64,
    /// Requests that wait in the Envoys' queues.
    pub waiting: u64,
}

impl Registry {
    /// The load of every pool, by name. Linear in the endpoints, times the Envoys that report.
    #[must_use]
    pub fn pool_loads(&self, verdicts: &BTreeMap<&str, Verdict>, now_ms: u64) -> BTreeMap<&str, PoolLoad> {
        let names = self.pools.iter().map(|pool| pool.wire.name.as_str());
        let mut loads: BTreeMap<&str, PoolLoad> = names.map(|name| (name, PoolLoad::default())).collect();
        for (id, endpoint) in &self.endpoints {
            let Some(load) = loads.get_mut(endpoint.pool.as_str()) else { continue };
            load.in_flight += u64::from(self.exchange.in_flight(id, now_ms));
            let Some(verdict) = verdicts.get(id.as_str()).filter(|verdict| verdict.state == State::Ready) else {
                continue;
            };
            load.capacity += u64::from(verdict.cap);
            if let Some(busy) = self.busy(id, endpoint, now_ms) {
                *load.headroom.get_or_insert(0) += u64::from(verdict.cap).saturating_sub(busy);
            }
        }
        for (name, load) in &mut loads {
            load.waiting = self.exchange.waiting(name, now_ms);
        }
        loads
    }
}
