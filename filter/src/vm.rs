//! What one VM keeps between requests. Envoy makes a new root context at every configuration update and keeps the VM,
//! so this lives in a `thread_local!`, not in the root context.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use weighbridge_routing::eligibility::Ask;
use weighbridge_routing::live::beats::{Beat, Beats};
use weighbridge_routing::live::row::{Ejected, Refused};
use weighbridge_routing::live::table::FORMAT;
use weighbridge_routing::live::{Admitted, Charge, Report, Row, SharedValue, StoreError, Table, Then, transact};
use weighbridge_routing::prefix::holders::Holders;
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::snapshot::{Endpoint, EndpointKey, Pool, Snapshot, SnapshotError};

use crate::host::{self, Level, Shared};
use crate::stats::Stats;

const SNAPSHOT: &str = "snapshot";
const SNAPSHOT_VERSION: &str = "snapshot/version";
const BEATS: &str = "beats/1";

thread_local! {
    static VM: RefCell<Vm> = RefCell::new(Vm::new());
}

/// Works on this thread's VM. Host calls never call back into the VM, so it is never borrowed twice.
pub(crate) fn with<T>(work: impl FnOnce(&mut Vm) -> T) -> T {
    VM.with_borrow_mut(work)
}

/// One pool's row and the key of its live table.
struct PoolRow {
    pool: String,
    key: String,
    row: Row,
}

/// The state of one VM.
pub(crate) struct Vm {
    id: u64,
    /// Whether this VM serves requests: the one that only checks a configuration and the one of the main thread do not.
    serves: bool,
    rng: SplitMix64,
    snapshot: Option<Rc<Snapshot>>,
    adopted_unix_ms: u64,
    /// Few enough that a search by name is cheaper than a map.
    rows: Vec<PoolRow>,
    pub(crate) stats: Stats,
}

impl Vm {
    fn new() -> Self {
        let mut seed = [0; 8];
        // Without randomness from the host, the address of a fresh allocation and the time still differ between VMs.
        let seed = match getrandom::fill(&mut seed) {
            Ok(()) => u64::from_le_bytes(seed),
            Err(_) => host::unix_ms() ^ (std::ptr::from_ref(Box::leak(Box::new(0u8))) as u64).rotate_left(40),
        };
        let mut rng = SplitMix64::seeded(seed);
        Vm {
            id: rng.next_u64(),
            serves: false,
            rng,
            snapshot: None,
            adopted_unix_ms: 0,
            rows: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// The snapshot in force.
    pub(crate) fn snapshot(&self) -> Option<Rc<Snapshot>> {
        self.snapshot.clone()
    }

    /// Takes a snapshot, unless this Envoy has seen a newer one: then takes that. A listener that is updated comes
    /// with its static fallback first, and must not fall back to it.
    ///
    /// # Errors
    /// When the snapshot is broken; the one in force stays.
    pub(crate) fn configure(&mut self, json: &[u8]) -> Result<(), SnapshotError> {
        let mut snapshot = Snapshot::from_json(json)?;
        let known =
            host::shared_data(SNAPSHOT_VERSION).0.and_then(|bytes| bytes.try_into().ok().map(u64::from_le_bytes));
        match known {
            Some(known) if known > snapshot.version => {
                let newer = host::shared_data(SNAPSHOT).0.and_then(|json| Snapshot::from_json(&json).ok());
                if let Some(newer) = newer.filter(|newer| newer.version > snapshot.version) {
                    snapshot = newer;
                }
            }
            _ => {
                let version = snapshot.version.to_le_bytes();
                if host::set_shared_data(SNAPSHOT, json, 0).is_err()
                    || host::set_shared_data(SNAPSHOT_VERSION, &version, 0).is_err()
                {
                    host::log(Level::Warn, "weighbridge: the snapshot could not be kept in shared data");
                }
            }
        }
        for alarm in &snapshot.alarms {
            host::log(Level::Warn, &format!("weighbridge: snapshot {}: {alarm}", snapshot.version));
        }
        // A first write cannot be conditional, so the values that VMs swap are made here, before any worker serves.
        for pool in &snapshot.pools {
            create_if_absent(&live_key(&pool.name), Table::default().bytes());
            let named = |key: EndpointKey| pool.endpoints.iter().any(|endpoint| endpoint.key == key);
            if let Some(held) = self.rows.iter_mut().find(|held| held.pool == pool.name) {
                held.row.forget_idle(named);
            }
        }
        create_if_absent(BEATS, &Beats::default().encode());
        self.adopted_unix_ms = host::unix_ms();
        self.snapshot = Some(Rc::new(snapshot));
        Ok(())
    }

    /// Called before the first request: from here on this VM has a row.
    pub(crate) fn serve(&mut self) {
        if !self.serves {
            self.serves = true;
            self.beat();
        }
    }

    /// Picks an endpoint and counts the request there.
    pub(crate) fn admit(
        &mut self,
        pool: &Pool,
        ask: &Ask,
        prefix: &mut impl Holders,
        now_ms: u64,
    ) -> Result<Admitted, Refused> {
        let (id, rng) = (self.id, &mut self.rng);
        let held = pool_row(&mut self.rows, id, &pool.name);
        let admitted = held.row.admit(&mut Shared(&held.key), pool, ask, prefix, now_ms, rng)?;
        if !admitted.shared {
            self.stats.unshared();
        }
        Ok(admitted)
    }

    /// Moves a request's count to the endpoint that it really went to.
    pub(crate) fn shift(
        &mut self,
        pool: &Pool,
        from: &Endpoint,
        to: &Endpoint,
        charge: Charge,
        report: Report,
        now_ms: u64,
    ) {
        let held = pool_row(&mut self.rows, self.id, &pool.name);
        let result = held.row.shift(&mut Shared(&held.key), from, to, charge, report, now_ms);
        self.reported(pool, from, result);
    }

    /// Gives a request back.
    pub(crate) fn release(&mut self, pool: &Pool, endpoint: &Endpoint, charge: Charge, report: Report, now_ms: u64) {
        let held = pool_row(&mut self.rows, self.id, &pool.name);
        let result = held.row.release(&mut Shared(&held.key), endpoint, charge, report, now_ms);
        self.reported(pool, endpoint, result);
    }

    /// Says how a request goes before it ends.
    pub(crate) fn report(&mut self, pool: &Pool, endpoint: &Endpoint, report: Report, now_ms: u64) {
        let held = pool_row(&mut self.rows, self.id, &pool.name);
        let result = held.row.report(&mut Shared(&held.key), endpoint, report, now_ms);
        self.reported(pool, endpoint, result);
    }

    fn reported(&mut self, pool: &Pool, endpoint: &Endpoint, (ejected, stored): (Ejected, Result<(), StoreError>)) {
        if stored.is_err() {
            self.stats.unshared();
        }
        if ejected == Ejected::Now {
            self.stats.ejection(&pool.name, &endpoint.id, endpoint.key);
            host::log(Level::Warn, &format!("weighbridge: {} of {} ejected after failures", endpoint.id, pool.name));
        }
    }

    /// Twice a second: flush the statistics, say that this VM lives, and where it holds the lease, do what one VM per
    /// Envoy does.
    pub(crate) fn tick(&mut self) {
        self.stats.flush();
        let now_ms = host::now_ms();
        // A row that was dropped by mistake, on beats that were a moment old, heals here even if no request comes.
        if self.rows.iter().any(|held| held.row.is_missing(&mut Shared(&held.key))) {
            self.rewrite_rows();
        }
        if let Some(beats) = self.beat() {
            self.lead(&beats, now_ms);
        }
    }

    /// Beats, and gives the beats back when this VM holds the lease.
    fn beat(&mut self) -> Option<Beats> {
        let now_ms = host::now_ms();
        let mut value = Shared(BEATS);
        // Rarely contended: each VM writes twice a second. A beat that does not get through comes again in half a
        // second, well before anybody takes this VM for dead.
        for _ in 0..8 {
            let (bytes, token) = value.load();
            let mut beats = Beats::decode(&bytes.unwrap_or_default());
            let beat = if self.serves { beats.beat(self.id, now_ms) } else { Beat::Known };
            let leads = beats.lease(self.id, now_ms);
            if leads {
                beats.forget_dead(now_ms);
            }
            match value.store(&beats.encode(), token) {
                Ok(()) => {
                    if beat == Beat::New {
                        self.rewrite_rows();
                    }
                    return leads.then_some(beats);
                }
                Err(StoreError::Conflict) => {}
                Err(StoreError::Failed) => break,
            }
        }
        None
    }

    /// After this VM was taken for dead, its rows are gone; what it still holds is written again.
    fn rewrite_rows(&mut self) {
        for PoolRow { key, row, .. } in &mut self.rows {
            if row.rewrite(&mut Shared(key)).is_err() {
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
        let mut published = HashSet::new();
        for pool in &snapshot.pools {
            let (in_flight, _) = transact(&mut Shared(&live_key(&pool.name)), |table| {
                let dropped = table.drop_rows(|id| !beats.is_alive(id, now_ms))
                    + table.drop_idle_slots(now_ms, |key| pool.endpoints.iter().any(|endpoint| endpoint.key == key));
                let in_flight: Vec<u32> = pool
                    .endpoints
                    .iter()
                    .enumerate()
                    .map(|(hint, endpoint)| {
                        table.find(endpoint.key, hint).map_or(0, |slot| table.total(slot).in_flight)
                    })
                    .collect();
                (in_flight, if dropped > 0 { Then::Store } else { Then::Leave })
            });
            for (endpoint, in_flight) in pool.endpoints.iter().zip(in_flight) {
                let name = format!("weighbridge_in_flight.pool.{}.endpoint.{}", pool.name, endpoint.id);
                self.stats.gauge(&name, in_flight.into());
                published.insert(name);
            }
        }
        self.stats.zero_gauges("weighbridge_in_flight.", &published);
    }
}

fn live_key(pool: &str) -> String {
    format!("live/{FORMAT}/{pool}")
}

fn create_if_absent(key: &str, value: &[u8]) {
    if host::shared_data(key).0.is_none() {
        // A failure shows at the first change, which counts it.
        let _ = host::set_shared_data(key, value, 0);
    }
}

#[expect(clippy::indexing_slicing, reason = "the place was just found, or just filled")]
fn pool_row<'a>(rows: &'a mut Vec<PoolRow>, id: u64, pool: &str) -> &'a mut PoolRow {
    let place = rows.iter().position(|held| held.pool == pool).unwrap_or(rows.len());
    if place == rows.len() {
        rows.push(PoolRow { pool: pool.to_owned(), key: live_key(pool), row: Row::new(id) });
    }
    &mut rows[place]
}
