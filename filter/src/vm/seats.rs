//! The requests of this VM that wait: which context belongs to which ticket, and which of them are due.

use weighbridge_routing::live::Standing;

use super::{Due, PoolState, Seat, TICK_MS, Vm, WAKE_MS, pool_key, pool_state};
use crate::host::Shared;

impl Vm {
    /// A request of this stream waits.
    pub(crate) fn seat(&mut self, pool: &str, ticket: u64, context: u32) {
        self.seats.insert((pool_key(pool), ticket), Seat { context, granted_ms: None });
    }

    /// It waits no longer.
    pub(crate) fn unseat(&mut self, pool: &str, ticket: u64) {
        self.seats.remove(&(pool_key(pool), ticket));
    }

    /// The stream of a waiting request, unless it has left.
    pub(crate) fn seated(&self, pool: u64, ticket: u64) -> Option<u32> {
        self.seats.get(&(pool, ticket)).map(|seat| seat.context)
    }

    /// Whether any request of this VM waits.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.seats.is_empty()
    }

    /// Gives slots to waiters, of any VM, that the snapshot in force has more of than the one before.
    pub(crate) fn dispatch(&mut self, now_ms: u64) {
        let Some(snapshot) = self.snapshot().filter(|_| self.serves) else { return };
        for pool in &snapshot.pools {
            let held = pool_state(&mut self.pools, self.id, &pool.name);
            let change = held.row.dispatch(&mut Shared(&held.live_key), pool, now_ms);
            self.changed(pool, change);
        }
    }

    /// Looks after the requests that wait here: gives out what has come free unseen (an ejection is over), and tells who has
    /// something to do. A slot is left to its wake-up, which is probably on its way, for [`WAKE_MS`].
    pub(crate) fn due(&mut self, now_ms: u64) -> Vec<(u32, Due)> {
        let mut due = Vec::new();
        let Some(snapshot) = self.snapshot().filter(|_| self.has_waiters()) else { return due };
        for place in 0..self.pools.len() {
            let Some(PoolState { pool: name, key, live_key, row, .. }) = self.pools.get_mut(place) else { break };
            if row.waiting() == 0 {
                continue;
            }
            let (key, mut shared) = (*key, Shared(live_key));
            let Some(pool) = snapshot.pools.iter().find(|pool| pool.name == *name) else {
                due.extend(
                    self.seats.iter().filter(|(seat, _)| seat.0 == key).map(|(_, seat)| (seat.context, Due::PoolGone)),
                );
                continue;
            };
            let change = row.dispatch(&mut shared, pool, now_ms);
            let standing = row.standing(&mut shared, pool, now_ms);
            // Whoever gets no place by that is told on the next tick.
            if standing.iter().any(|own| own.standing == Standing::Lost) && row.rewrite(&mut shared).is_err() {
                self.stats.unshared();
            }
            self.changed(pool, change);
            for own in standing {
                let Some(seat) = self.seats.get_mut(&(key, own.ticket)) else { continue };
                match own.standing {
                    Standing::Waiting | Standing::Lost => {}
                    Standing::Granted if now_ms.saturating_sub(*seat.granted_ms.get_or_insert(now_ms)) < WAKE_MS => {}
                    standing => {
                        if standing == Standing::Granted {
                            self.stats.late_wake();
                        }
                        due.push((seat.context, Due::Stands(standing)));
                    }
                }
            }
        }
        due
    }

    /// How often ticks are to come while nobody waits: once per interval of the signals, and at least twice a second.
    pub(crate) fn tick_ms(&self) -> u32 {
        let interval_ms = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.signals_interval_ms);
        let wanted_ms = if interval_ms == 0 { *TICK_MS.end() } else { interval_ms };
        wanted_ms.clamp(*TICK_MS.start(), *TICK_MS.end()) as u32
    }
}
