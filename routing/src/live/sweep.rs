//! What one VM per Envoy does for a pool now and then: drop the dead, and look after the queue.

use super::queue::{self, Board};
use super::row::Row;
use super::{Change, SharedValue, Then, transact};
use crate::snapshot::{EndpointKey, Pool};

/// What a sweep found, after it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Swept {
    /// Requests in flight at each endpoint, in the pool's order, slots given to waiters among them.
    pub in_flight: Vec<u32>,
    /// Whether each endpoint is ejected, in the pool's order.
    pub ejected: Vec<bool>,
    /// Slots that a request could have now, over all endpoints: what others have in flight there counts, and what is
    /// ejected has none.
    pub free: u64,
    /// Requests that wait.
    pub waiting: usize,
    /// Bytes of their bodies.
    pub waiting_bytes: u64,
    /// Releases per second.
    pub releases_per_s: f64,
}

impl Row {
    /// Drops the rows whose VM is dead, with their waiters, and the slots of endpoints that nobody names and that carry
    /// nothing; what the dead held goes to waiters in the same step.
    pub fn sweep(
        &self,
        value: &mut impl SharedValue,
        pool: &Pool,
        mut is_dead: impl FnMut(u64) -> bool,
        now_ms: u64,
    ) -> Change<Swept> {
        let (result, stored) = transact(value, |table| {
            let named = |key: EndpointKey| pool.endpoints.iter().any(|endpoint| endpoint.key == key);
            let dropped = table.drop_rows(&mut is_dead) + table.drop_idle_slots(now_ms, named);
            let woken = self.hand_over(table, pool, now_ms);
            let totals = table.totals();
            let in_flight = |(hint, key): (usize, EndpointKey)| {
                table.find(key, hint).and_then(|slot| totals.get(slot)).map_or(0, |total| total.in_flight)
            };
            let ejected = |(hint, key): (usize, EndpointKey)| {
                table.find(key, hint).is_some_and(|slot| table.passive(slot).is_ejected(now_ms))
            };
            let keys = pool.endpoints.iter().map(|endpoint| endpoint.key);
            let slots = keys.clone().enumerate().map(|(hint, key)| table.find(key, hint)).collect();
            let (waiting, waiting_bytes) = queue::load(table, now_ms);
            let swept = Swept {
                in_flight: keys.clone().enumerate().map(in_flight).collect(),
                ejected: keys.enumerate().map(ejected).collect(),
                free: Board::new(table, pool, slots, &self.elsewhere).free(now_ms),
                waiting,
                waiting_bytes,
                releases_per_s: queue::drain_rate(table, now_ms),
            };
            let then = if dropped > 0 || !woken.is_empty() { Then::Store } else { Then::Leave };
            ((swept, woken), then)
        });
        Change::new(result, stored)
    }
}
