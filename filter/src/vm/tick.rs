//! What a VM does on a tick, and what one VM per Envoy does for all: drop dead rows and unused slots, publish gauges.

use std::collections::HashSet;

use weighbridge_routing::admission::expected_wait_ms;
use weighbridge_routing::learnt;
use weighbridge_routing::live::beats::{Beat, Beats, LEASE_MS};
use weighbridge_routing::live::{Look, SharedValue, StoreError};

use super::{BEATS, PoolState, Vm, pool_state};
use crate::host::{self, Shared};
use crate::{calls, records};

/// Gauges whose pools and endpoints come and go.
const POOL_GAUGES: [&str; 6] = [
    "weighbridge_in_flight.",
    "weighbridge_ejected.",
    "weighbridge_queue_depth.",
    "weighbridge_queue_bytes.",
    "weighbridge_free_slots.",
    "weighbridge_expected_wait_ms.",
];

impl Vm {
    /// Twice a second: flush the statistics, say that this VM lives, and where it holds the lease, do what one VM per
    /// Envoy does.
    pub(crate) fn tick(&mut self) {
        let now_ms = host::now_ms();
        self.unix_offset_ms = host::unix_ms().wrapping_sub(now_ms);
        calls::expire(self, now_ms);
        records::send(self, now_ms);
        self.stats.flush();
        // A row that was dropped by mistake, on beats that were a moment old, heals here even if no request comes.
        for PoolState { live_key, row, .. } in &mut self.pools {
            if row.look(&mut Shared(live_key)) == Look::Missing && row.rewrite(&mut Shared(live_key)).is_err() {
                self.stats.unshared();
            }
        }
        for held in &mut self.pools {
            // What could not be shared waits for the next tick.
            if let Ok(learnt) = learnt::publish(&mut Shared(&held.learnt_key), &mut held.pending) {
                held.learnt = learnt;
            }
            held.heard.publish(&held.pool);
        }
        if let Some(beats) = self.beat() {
            self.lead(&beats, now_ms);
        }
    }

    /// Beats, and gives the beats back when this VM holds the lease.
    pub(super) fn beat(&mut self) -> Option<Beats> {
        let now_ms = host::now_ms();
        let mut value = Shared(BEATS);
        // Rarely contended: each VM writes twice a second. A beat that does not get through comes again in half a
        // second, well before anybody takes this VM for dead.
        for _ in 0..8 {
            let (bytes, token) = value.load();
            let mut beats = Beats::decode(&bytes.unwrap_or_default());
            let beat = if self.serves { beats.beat(self.id, now_ms) } else { Beat::Known };
            if let Some(snapshot) = &self.snapshot {
                self.records.share(snapshot.decisions_per_second, beats.alive(now_ms));
            }
            let leads = beats.lease(self.id, now_ms);
            if leads {
                beats.forget_dead(now_ms);
            }
            match value.store(&beats.encode(), token) {
                Ok(()) => {
                    self.leads_until_ms = if leads { now_ms.saturating_add(LEASE_MS) } else { 0 };
                    if beat == Beat::New {
                        self.rewrite_rows();
                    }
                    return leads.then_some(beats);
                }
                Err(StoreError::Conflict) => {}
                Err(StoreError::Failed) => break,
            }
        }
        self.leads_until_ms = 0;
        None
    }

    /// After this VM was taken for dead, its rows are gone; what it still holds is written again.
    fn rewrite_rows(&mut self) {
        for PoolState { live_key, row, .. } in &mut self.pools {
            if row.rewrite(&mut Shared(live_key)).is_err() {
                self.stats.unshared();
            }
        }
    }

    /// The leading VM's work: drop dead rows and unused slots, publish gauges.
    fn lead(&mut self, beats: &Beats, now_ms: u64) {
        let Some(snapshot) = self.snapshot() else { return };
        let unix_ms = host::unix_ms();
        self.stats.gauge("weighbridge_snapshot_version", snapshot.version);
        // Versions of the prober are times; a static fallback's is not, and is as old as its loading.
        let since = if snapshot.version > 1_000_000_000_000 { snapshot.version } else { self.adopted_unix_ms };
        self.stats.gauge("weighbridge_snapshot_age_s", unix_ms.saturating_sub(since) / 1_000);
        if let Some(age) = self.exchange.age(now_ms) {
            self.stats.gauge("weighbridge_signals_age_ms", age.ms);
            self.stats.gauge("weighbridge_signals_stale", age.stale.into());
        }
        let mut published = HashSet::new();
        for pool in &snapshot.pools {
            let held = pool_state(&mut self.pools, self.id, &pool.name);
            let change = held.row.sweep(&mut Shared(&held.live_key), pool, |id| !beats.is_alive(id, now_ms), now_ms);
            let swept = self.changed(pool, change);
            for (endpoint, in_flight) in pool.endpoints.iter().zip(swept.in_flight) {
                let name = format!("weighbridge_in_flight.pool.{}.endpoint.{}", pool.name, endpoint.id);
                self.stats.gauge(&name, in_flight.into());
                published.insert(name);
            }
            // One that was never ejected has no gauge.
            for (endpoint, _) in pool.endpoints.iter().zip(swept.ejected).filter(|(_, ejected)| *ejected) {
                let name = format!("weighbridge_ejected.pool.{}.endpoint.{}", pool.name, endpoint.id);
                self.stats.gauge(&name, 1);
                published.insert(name);
            }
            let free = swept.free;
            let expected_ms = expected_wait_ms(free, swept.waiting, swept.releases_per_s, pool.admission.max_wait_ms);
            for (family, value) in [
                ("weighbridge_queue_depth", swept.waiting as u64),
                ("weighbridge_queue_bytes", swept.waiting_bytes),
                ("weighbridge_free_slots", free),
                ("weighbridge_expected_wait_ms", expected_ms),
            ] {
                let name = format!("{family}.pool.{}", pool.name);
                self.stats.gauge(&name, value);
                published.insert(name);
            }
        }
        for family in POOL_GAUGES {
            self.stats.zero_gauges(family, &published);
        }
    }
}
