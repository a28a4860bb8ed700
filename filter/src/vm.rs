//! What one VM keeps between requests. Envoy makes a new root context at every configuration update and keeps the VM,
//! so this lives in a `thread_local!`, not in the root context.

mod seats;
mod tick;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::rc::Rc;

use weighbridge_routing::eligibility::Ask;
use weighbridge_routing::exchange::EndpointReport;
use weighbridge_routing::exchange::served::Sample as Served;
use weighbridge_routing::learnt::{Learnt, Pending, Sample};
use weighbridge_routing::live::beats::Beats;
use weighbridge_routing::live::table::FORMAT;
use weighbridge_routing::live::{
    Change, Charge, Claim, Ejected, Left, Outcome, Question, Report, Row, SharedValue, Standing, Table, Verdict,
};
use weighbridge_routing::prefix::index::{Prefix, Search};
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::route::Pick;
use weighbridge_routing::snapshot::{Endpoint, EndpointKey, Pool, Snapshot, SnapshotError};

use crate::calls::Calls;
use crate::host::{self, Index, Level, Shared};
use crate::records::{Records, Went};
use crate::signals::{self, Exchange, Heard};
pub(crate) use crate::stats::Lookup;
use crate::stats::Stats;
use crate::wake::Wakes;

const SNAPSHOT: &str = "snapshot";
const SNAPSHOT_VERSION: &str = "snapshot/version";
const BEATS: &str = "beats/1";
/// How often ticks come at the most, and at the least.
const TICK_MS: RangeInclusive<u64> = 50..=500;
/// A wake-up that has not come so long after a tick saw the slot is taken for lost. Not counted in ticks: while old root
/// contexts live on for the sake of their streams, each of them ticks.
const WAKE_MS: u64 = 50;

thread_local! {
    static VM: RefCell<Vm> = RefCell::new(Vm::new());
}

/// Works on this thread's VM. Host calls never call back into the VM, so it is never borrowed twice.
pub(crate) fn with<T>(work: impl FnOnce(&mut Vm) -> T) -> T {
    VM.with_borrow_mut(work)
}

/// What the VM has of one pool: its row in the live table, and what the pool's answers have taught.
struct PoolState {
    pool: String,
    /// The pool's name in wake-ups.
    key: u64,
    live_key: String,
    row: Row,
    learnt_key: String,
    learnt: Learnt,
    /// Not yet shared with the other VMs.
    pending: Pending,
    /// What the prober says, and is to be told.
    heard: Heard,
    /// Whether endpoints send anything.
    pulses: Vec<(EndpointKey, Pulse)>,
}

/// Counts the pieces of answers that an endpoint sends to this VM: what stands still is silent. Shared with the requests that are
/// there, so that counting costs no look-up.
pub(crate) type Pulse = Rc<Cell<u64>>;

/// The state of one VM.
pub(crate) struct Vm {
    pub(crate) id: u64,
    /// Whether this VM serves requests: the one that only checks a configuration and the one of the main thread do not.
    serves: bool,
    rng: SplitMix64,
    snapshot: Option<Rc<Snapshot>>,
    adopted_unix_ms: u64,
    /// Unix time less the monotonic clock, as of the last tick: spares a host call per request.
    unix_offset_ms: u64,
    /// Few enough that a search by name is cheaper than a map.
    pools: Vec<PoolState>,
    /// Streams whose requests wait, by pool and ticket.
    seats: HashMap<(u64, u64), Seat>,
    wakes: Wakes,
    pub(crate) stats: Stats,
    /// What the prober has been asked.
    pub(crate) calls: Calls,
    /// Decision records for the prober.
    pub(crate) records: Records,
    /// How far this VM is in the exchange with it.
    pub(crate) exchange: Exchange,
    /// Until when this VM leads without asking again.
    leads_until_ms: u64,
}

/// Where a waiting request is found.
#[derive(Debug, Clone, Copy)]
struct Seat {
    /// Its stream's context.
    context: u32,
    /// When a tick first saw that it has a slot, and the wake-up was not there yet.
    granted_ms: Option<u64>,
}

/// What a waiting request has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// It stands so.
    Stands(Standing),
    /// Its pool has gone.
    PoolGone,
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
            unix_offset_ms: 0,
            pools: Vec::new(),
            seats: HashMap::new(),
            wakes: Wakes::default(),
            stats: Stats::default(),
            calls: Calls::default(),
            records: Records::default(),
            exchange: Exchange::default(),
            leads_until_ms: 0,
        }
    }

    /// The snapshot in force.
    pub(crate) fn snapshot(&self) -> Option<Rc<Snapshot>> {
        self.snapshot.clone()
    }

    /// A time on the monotonic clock as ms since 1970.
    pub(crate) fn unix_ms(&self, now_ms: u64) -> u64 {
        self.unix_offset_ms.wrapping_add(now_ms)
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
            create_if_absent(&learnt_key(&pool.name), &Learnt::default().encode());
            let named = |key: EndpointKey| pool.endpoints.iter().any(|endpoint| endpoint.key == key);
            if let Some(held) = self.pools.iter_mut().find(|held| held.pool == pool.name) {
                held.row.forget_idle(named);
            }
        }
        // Pools come and go; what holds nothing and is named no more is forgotten.
        self.pools.retain(|held| {
            !held.row.is_idle()
                || !held.pending.is_empty()
                || !held.heard.is_empty()
                || snapshot.pools.iter().any(|pool| pool.name == held.pool)
        });
        create_if_absent(BEATS, &Beats::default().encode());
        signals::create_shared(&snapshot, self.id);
        self.adopted_unix_ms = host::unix_ms();
        self.unix_offset_ms = self.adopted_unix_ms.wrapping_sub(host::now_ms());
        let envoy = match host::property("xds\0node\0id") {
            Some(id) if !id.is_empty() => String::from_utf8_lossy(&id).into_owned(),
            // Not to be told apart by its own name; its threads are at least told apart from other Envoys'.
            _ => format!("{:016x}", self.id),
        };
        self.records.name(envoy);
        self.calls.authorize(&snapshot.reports_token);
        self.snapshot = Some(Rc::new(snapshot));
        signals::configured(self);
        Ok(())
    }

    /// A request has ended, or was refused, and its record is written.
    pub(crate) fn tell(&mut self, record: &str, went: Went) {
        self.records.offer(record, went, &mut self.rng);
    }

    /// Called before the first request: from here on this VM has a row.
    pub(crate) fn serve(&mut self) {
        if !self.serves {
            self.serves = true;
            self.hear();
            self.beat();
        }
    }

    /// Makes sure that wake-ups come to the root context that is active now.
    pub(crate) fn hear(&self) {
        if self.serves {
            Wakes::register(self.id);
        }
    }

    /// What the pool's answers have taught, as of the last tick.
    pub(crate) fn learnt(&mut self, pool: &Pool) -> &Learnt {
        &pool_state(&mut self.pools, self.id, &pool.name).learnt
    }

    /// Learns from an answer. The others hear of it on the next tick.
    pub(crate) fn learn(&mut self, pool: &Pool, sample: &Sample) {
        pool_state(&mut self.pools, self.id, &pool.name).pending.add(sample);
    }

    /// Looks for who holds a prompt's prefix.
    pub(crate) fn search(&mut self, pool: &Pool, prefixes: Vec<Prefix>, home: Option<u64>, now_ms: u64) -> Search {
        let row = &pool_state(&mut self.pools, self.id, &pool.name).row;
        let clock = |place| pool.endpoints.get(place).map_or(0, |endpoint: &Endpoint| row.clock(endpoint.key, place));
        Search::new(prefixes, home, pool, clock, now_ms, &mut Index)
    }

    /// Writes down which endpoint remembers the response of this id.
    pub(crate) fn learn_response(&mut self, pool: &Pool, endpoint: &Endpoint, id: u64, place: usize, now_ms: u64) {
        if pool.affinity.enabled {
            let clock = pool_state(&mut self.pools, self.id, &pool.name).row.clock(endpoint.key, place);
            let mut search = self.search(pool, vec![Prefix { hash: id, tokens: 1 }], None, now_ms);
            search.learn(place, clock, &mut Index);
        }
    }

    /// Picks an endpoint and counts the request there, or gives it a place in the queue.
    pub(crate) fn admit(&mut self, pool: &Pool, ask: &Ask, search: &mut Search, now_ms: u64) -> Verdict {
        let held = pool_state(&mut self.pools, self.id, &pool.name);
        let (mut index, mut shared) = (Index, Shared(&held.live_key));
        let question = Question { pool, ask, signals: held.heard.signals(pool), now_ms };
        let change = held.row.admit(&mut shared, &question, &mut search.holders(&mut index), &mut self.rng);
        self.changed(pool, change)
    }

    /// A waiting request comes for its slot.
    pub(crate) fn claim(&mut self, pool: &Pool, ticket: u64, search: &mut Search, now_ms: u64) -> Claim {
        let held = pool_state(&mut self.pools, self.id, &pool.name);
        let (mut index, mut shared) = (Index, Shared(&held.live_key));
        let change = held.row.claim(&mut shared, pool, ticket, &mut search.holders(&mut index), now_ms);
        self.changed(pool, change)
    }

    /// A waiting request goes without a slot.
    pub(crate) fn leave(&mut self, pool: &Pool, ticket: u64, now_ms: u64) -> Left {
        let snapshot = self.snapshot();
        let held = pool_state(&mut self.pools, self.id, &pool.name);
        let now = in_force(snapshot.as_deref(), pool);
        let change = held.row.leave(&mut Shared(&held.live_key), now, ticket, now_ms);
        self.changed(pool, change)
    }

    /// Counts what policies beside the pool's own had to do with a request that was given to an endpoint; nothing where it
    /// waited, since no policy chose the slot that came free.
    pub(crate) fn count_policies(&mut self, pool: &Pool, pick: &Pick, waited: bool) {
        if waited {
            return;
        }
        if pool.canary.is_some() {
            self.stats.canary(&pool.name, pick.canary);
        }
        if let Some(shadow) = &pick.shadow {
            self.stats.shadow(&pool.name, shadow.chosen == pick.chosen(), shadow.load_difference);
        }
    }

    /// The pulse of an endpoint.
    pub(crate) fn pulse(&mut self, pool: &Pool, endpoint: &Endpoint) -> Pulse {
        let pulses = &mut pool_state(&mut self.pools, self.id, &pool.name).pulses;
        match pulses.iter().find(|(key, _)| *key == endpoint.key) {
            Some((_, pulse)) => Rc::clone(pulse),
            None => {
                // Of endpoints that are gone nobody keeps one.
                pulses.retain(|(_, pulse)| Rc::strong_count(pulse) > 1);
                let pulse = Pulse::default();
                pulses.push((endpoint.key, Rc::clone(&pulse)));
                pulse
            }
        }
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
        let snapshot = self.snapshot();
        let held = pool_state(&mut self.pools, self.id, &pool.name);
        let now = in_force(snapshot.as_deref(), pool);
        let change = held.row.shift(&mut Shared(&held.live_key), now, from, to, charge, report, now_ms);
        self.reported(pool, from, change);
    }

    /// A request has its first token.
    pub(crate) fn first_token(&mut self, pool: &Pool, endpoint: &Endpoint, charge: &mut Charge, now_ms: u64) {
        let snapshot = self.snapshot();
        let held = pool_state(&mut self.pools, self.id, &pool.name);
        let now = in_force(snapshot.as_deref(), pool);
        let change = held.row.first_token(&mut Shared(&held.live_key), now, endpoint, charge, now_ms);
        self.changed(pool, change);
    }

    /// Gives a request back.
    pub(crate) fn release(&mut self, pool: &Pool, endpoint: &Endpoint, charge: Charge, report: Report, now_ms: u64) {
        let snapshot = self.snapshot();
        let held = pool_state(&mut self.pools, self.id, &pool.name);
        let now = in_force(snapshot.as_deref(), pool);
        let change = held.row.release(&mut Shared(&held.live_key), now, endpoint, charge, report, now_ms);
        self.reported(pool, endpoint, change);
    }

    /// Says how a request goes before it ends.
    pub(crate) fn report(&mut self, pool: &Pool, endpoint: &Endpoint, report: Report, now_ms: u64) {
        let snapshot = self.snapshot();
        let held = pool_state(&mut self.pools, self.id, &pool.name);
        let now = in_force(snapshot.as_deref(), pool);
        let change = held.row.report(&mut Shared(&held.live_key), now, endpoint, report, now_ms);
        self.reported(pool, endpoint, change);
    }

    /// An attempt failed at this address, and whose it was is not known (any more).
    pub(crate) fn attempt_failed(&mut self, cluster: &[u8], address: &[u8], outcome: Outcome, now_ms: u64) {
        let Some(snapshot) = self.snapshot() else { return };
        let Some(pool) = snapshot.pools.iter().find(|pool| pool.cluster.as_bytes() == cluster) else { return };
        if let Some(endpoint) = pool.place_at(address, &[]).and_then(|place| pool.endpoints.get(place)) {
            self.report(pool, endpoint, Report { outcome, trial: false, added_tokens: 0 }, now_ms);
            if outcome == Outcome::Failure {
                self.served(pool, endpoint, &Served { error: true, ..Served::default() });
            }
        }
    }

    fn reported(&mut self, pool: &Pool, endpoint: &Endpoint, change: Change<Ejected>) {
        if self.changed(pool, change) == Ejected::Now {
            self.stats.ejection(&pool.name, &endpoint.id, endpoint.key);
            host::log(Level::Warn, &format!("weighbridge: {} of {} ejected after failures", endpoint.id, pool.name));
        }
    }

    /// Does what every change of the live table leads to: those who have got a slot by it are woken.
    fn changed<T>(&mut self, pool: &Pool, change: Change<T>) -> T {
        if change.stored.is_err() {
            self.stats.unshared();
        }
        if !change.woken.is_empty() {
            self.wakes.call(pool_key(&pool.name), &change.woken);
        }
        change.result
    }

    /// Whether this VM does what one VM per Envoy does, going by its last beat.
    pub(crate) fn leads(&self, now_ms: u64) -> bool {
        now_ms < self.leads_until_ms
    }

    /// Takes in what others have in flight in a pool: whoever waits goes by it, too.
    pub(crate) fn take_in(&mut self, pool: &Pool) {
        let held = pool_state(&mut self.pools, self.id, &pool.name);
        let signals = held.heard.signals(pool);
        held.row.hear(pool.endpoints.iter().zip(signals).map(|(endpoint, said)| (endpoint.key, said.elsewhere())));
    }

    /// Works on what is known of a pool from the prober.
    pub(crate) fn heard<T>(&mut self, pool: &str, work: impl FnOnce(&mut Heard) -> T) -> T {
        work(&mut pool_state(&mut self.pools, self.id, pool).heard)
    }

    /// A request has ended, or an attempt of one has failed.
    pub(crate) fn served(&mut self, pool: &Pool, endpoint: &Endpoint, sample: &Served) {
        self.heard(&pool.name, |heard| heard.served(endpoint.key, sample));
    }

    /// What this Envoy has in a pool, over all its VMs: requests that wait, and what it has and thinks of each endpoint.
    pub(crate) fn own_loads(&self, pool: &Pool, now_ms: u64) -> (u32, Vec<EndpointReport>) {
        let table = Shared(&live_key(&pool.name)).load().0.and_then(Table::decode).unwrap_or_default();
        let loads = pool.endpoints.iter().enumerate().map(|(hint, endpoint)| {
            let Some(slot) = table.find(endpoint.key, hint) else { return EndpointReport::default() };
            let (counts, passive) = (table.total(slot), table.passive(slot));
            EndpointReport {
                in_flight: counts.in_flight,
                pending_tokens: counts.pending_tokens,
                ejected: passive.is_ejected(now_ms),
                cooling_down: passive.is_cooling(now_ms),
                served: None,
            }
        });
        (u32::try_from(table.waiters()).unwrap_or(u32::MAX), loads.collect())
    }
}

/// The pool as it is now, whatever it was when a request came.
fn in_force<'a>(snapshot: Option<&'a Snapshot>, then: &'a Pool) -> &'a Pool {
    snapshot.and_then(|snapshot| snapshot.pools.iter().find(|pool| pool.name == then.name)).unwrap_or(then)
}

fn live_key(pool: &str) -> String {
    format!("live/{FORMAT}/{pool}")
}

fn pool_key(pool: &str) -> u64 {
    EndpointKey::of("", pool).0
}

fn learnt_key(pool: &str) -> String {
    format!("learnt/1/{pool}")
}

pub(crate) fn create_if_absent(key: &str, value: &[u8]) {
    if host::shared_data(key).0.is_none() {
        // A failure shows at the first change, which counts it.
        let _ = host::set_shared_data(key, value, 0);
    }
}

#[expect(clippy::indexing_slicing, reason = "the place was just found, or just filled")]
fn pool_state<'a>(pools: &'a mut Vec<PoolState>, id: u64, pool: &str) -> &'a mut PoolState {
    let place = pools.iter().position(|held| held.pool == pool).unwrap_or(pools.len());
    if place == pools.len() {
        let learnt_key = learnt_key(pool);
        let learnt = host::shared_data(&learnt_key).0.map_or_else(Learnt::default, |bytes| Learnt::decode(&bytes));
        pools.push(PoolState {
            pool: pool.to_owned(),
            key: pool_key(pool),
            live_key: live_key(pool),
            row: Row::new(id),
            learnt_key,
            learnt,
            pending: Pending::default(),
            heard: Heard::default(),
            pulses: Vec::new(),
        });
    }
    &mut pools[place]
}

/// Writes down that an endpoint, whose token clock is `clock`, has a whole prompt now.
pub(crate) fn learn_holder(search: &mut Search, place: usize, clock: u64) {
    search.learn(place, clock, &mut Index);
}
