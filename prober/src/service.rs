//! The one place where the fleet changes: a change to the registry, the snapshot that follows from it, and its way to
//! every Envoy are one step under one lock.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use weighbridge_xds::{EnvoyStatus, XdsServer};

use crate::alarms::{self, Alarm, Code};
use crate::config::{Config, Endpoint};
use crate::decisions::Decisions;
use crate::engine::Client;
use crate::engine::access::{Access, May};
use crate::envoy_admin::Admins;
use crate::live::Live;
use crate::peers::Peers;
use crate::registry::{Memory, Origin, ProbeKind, ProbeRecord, Registered, Registry, RegistryError};
use crate::reload::Reloads;
use crate::store::{Change, Store, Stored, Table};
use crate::tls::Terminator;

/// A probe that somebody asked for.
#[derive(Debug)]
pub struct Demand {
    /// Which endpoint.
    pub id: String,
    /// Without waiting until it is idle.
    pub force: bool,
    /// When the last probe before it ended (Unix ms): what is newer is its result.
    pub before: Option<u64>,
    /// Told when it is done.
    pub done: oneshot::Sender<ProbeRecord>,
}

/// A demand as other probers over the same store see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Without waiting until it is idle.
    pub force: bool,
    /// When, in Unix ms.
    pub at_ms: u64,
}

/// Demands that may wait.
const MAX_DEMANDS: usize = 1000;

/// An engine reserved for a burst.
#[derive(Debug)]
pub struct Exclusive<'a> {
    service: &'a Service,
    engine: SocketAddr,
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.service.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.engine);
    }
}

/// What everything in the prober shares.
#[derive(Debug)]
pub struct Service {
    /// The configuration.
    pub config: Config,
    /// Where Envoys are told.
    pub xds: XdsServer,
    /// What survives a restart.
    pub store: Store,
    /// Speaks to engines.
    pub engines: Client,
    /// Speaks to Envoy admin interfaces.
    pub admins: Admins,
    /// The last decision records.
    pub decisions: Decisions,
    registry: Mutex<Registry>,
    demands: Mutex<Vec<Demand>>,
    /// The other probers.
    pub peers: Peers,
    /// How many bursts have begun: tells two at the same endpoint apart.
    pub bursts: AtomicU64,
    /// Engines under a burst.
    busy: Mutex<HashSet<SocketAddr>>,
    /// Held from a change that is to be stored until it is, so that disk and registry agree on which came last.
    pub order: tokio::sync::Mutex<()>,
    /// What has come of reading files again.
    pub reloads: Reloads,
    /// Since when alarms hold.
    since: Mutex<alarms::Since>,
    changes: AtomicU64,
    /// When it started, in Unix ms.
    pub started_ms: u64,
    /// Who watches the fleet.
    pub live: Live,
    terminators: OnceLock<Vec<Arc<Terminator>>>,
    /// Wakes the schedulers.
    pub wake: Notify,
    /// Wakes the task that starts watching new endpoints.
    pub members: Notify,
}

impl Service {
    /// A service around a registry without endpoints.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(config: Config, xds: XdsServer, store: Store, memory: Memory) -> Result<Arc<Self>, reqwest::Error> {
        let registry = Registry::new(&config, memory);
        Ok(Arc::new(Service {
            xds,
            store,
            engines: Client::new()?,
            admins: Admins::new(&config.envoy_admin)?,
            decisions: Decisions::new(config.decisions_keep, config.pools.iter().map(|pool| pool.wire.name.as_str())),
            registry: Mutex::new(registry),
            demands: Mutex::new(Vec::new()),
            peers: Peers::default(),
            bursts: AtomicU64::new(0),
            busy: Mutex::new(HashSet::new()),
            order: tokio::sync::Mutex::new(()),
            reloads: Reloads::default(),
            since: Mutex::default(),
            changes: AtomicU64::new(0),
            started_ms: now_ms(),
            live: Live::default(),
            terminators: OnceLock::new(),
            wake: Notify::new(),
            members: Notify::new(),
            config,
        }))
    }

    /// Which files and variables registrations may name.
    #[must_use]
    pub fn registrations_may(&self) -> May<'_> {
        May::NameIn(self.config.key_dir.as_deref())
    }

    /// [`Registry::register`], and the endpoint is spoken to like this from now on.
    ///
    /// # Errors
    /// When the registry refuses it.
    pub fn admit(
        &self,
        registry: &mut Registry,
        pool: &str,
        written: Endpoint,
        address: SocketAddr,
        origin: Origin,
        access: &Arc<Access>,
    ) -> Result<Registered, RegistryError> {
        let registered = registry.register(pool, written, address, origin)?;
        self.engines.book().set(address, access);
        Ok(registered)
    }

    /// Whose refusals the metrics count.
    pub fn note_tls(&self, terminators: Vec<Arc<Terminator>>) {
        // Said once, at the start.
        let _ = self.terminators.set(terminators);
    }

    /// Handshakes that have failed, by listener.
    #[must_use]
    pub fn refused_handshakes(&self) -> Vec<(&'static str, u64)> {
        let all = self.terminators.get().into_iter().flatten();
        all.map(|terminator| (terminator.name(), terminator.refused())).collect()
    }

    /// Looks at the fleet.
    pub fn read<T>(&self, look: impl FnOnce(&Registry) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the fleet; what follows from it is on its way to every Envoy when this returns.
    pub fn change<T>(&self, change: impl FnOnce(&mut Registry) -> T) -> T {
        let mut registry = self.lock();
        let result = change(&mut registry);
        let (upstreams, digest) = self.engines.book().for_envoys();
        registry.told_beside(digest);
        if let Some(snapshot) = registry.snapshot(now_ms(), self.xds.highest_seen_version()) {
            self.xds.publish_with(&snapshot, &upstreams);
        }
        // Under the lock: the newest version is to be the last one in the store.
        if let Some(Ok(change)) = registry.take_issued().map(|issued| Change::put(Table::Snapshot, "newest", &issued)) {
            self.store.put(vec![change]);
        }
        drop(registry);
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.wake.notify_waiters();
        result
    }

    /// Changes what no snapshot depends on.
    pub fn note<T>(&self, change: impl FnOnce(&mut Registry) -> T) -> T {
        change(&mut self.lock())
    }

    /// The version in force.
    pub fn version(&self) -> u64 {
        self.read(|registry| registry.published().map_or(0, |published| published.version))
    }

    /// Forgets results that nobody can need any more; what is to be done about them in the store. At the start and with every probe, since
    /// only probes leave results behind.
    pub fn prune(&self, registry: &mut Registry) -> Vec<Change> {
        let old = registry.prune(self.config.probe.keep.as_millis() as u64, now_ms());
        if !old.is_empty() {
            tracing::info!(count = old.len(), "old results are removed from the store");
        }
        old.iter().map(|key| Change::remove(Table::Results, key)).collect()
    }

    /// Writes to the store. One that does not answer has raised an alarm; what was changed is in force, and is stored
    /// when it is back.
    pub async fn remember(&self, changes: Vec<Change>) -> Stored {
        self.store.write(changes).await
    }

    /// Everything that is wrong now, and since when (Unix ms), the prober's own first.
    #[must_use]
    pub fn alarms(&self) -> Vec<(Alarm, u64)> {
        // Held from before they are looked at: whoever looked first notes first.
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alarms = self.store.alarms();
        alarms.extend(self.reloads.alarms().into_iter().map(|why| Alarm::of_prober(Code::FileUnusable, why)));
        self.read(|registry| {
            let refused = registry.alarms.iter().cloned();
            alarms.extend(refused.map(|why| Alarm::of_prober(Code::AddressNotTaken, why)));
            alarms.extend(self.xds.envoys().iter().filter_map(alarm_of));
            alarms.extend(registry.endpoint_alarms());
        });
        let since = since.note(&alarms, now_ms());
        alarms.into_iter().zip(since).collect()
    }

    /// How often [`Self::change`] was called.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Tells those who asked here for a probe of an endpoint that another prober has done it, and what came of it.
    pub fn done_elsewhere(&self, id: &str) {
        let last = self.read(|registry| registry.get(id).ok()?.history.back().cloned());
        for demand in self.take_demands(|demand| demand.id == id) {
            let result = last.clone().filter(|record| Some(record.at_ms) != demand.before);
            let record = result.unwrap_or_else(|| {
                let mut unknown = ProbeRecord::empty(ProbeKind::Demand, now_ms());
                unknown.spoil("the prober that measures has not said what came of it");
                unknown
            });
            // Whoever asked may have left.
            let _ = demand.done.send(record);
        }
    }

    /// Asks for a probe; `false` when too many wait already.
    pub fn demand(&self, demand: Demand) -> bool {
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        // Of those that nobody waits for, one per endpoint says it all.
        let alike = |other: &mut Demand| other.id == demand.id && other.done.is_closed();
        // To the end, so that all of them go.
        let forced = demands.extract_if(.., alike).filter(|other| other.force).count() > 0;
        if demands.len() >= MAX_DEMANDS {
            return false;
        }
        // Whoever asked for it at once still does.
        let forced = forced || self.store.get::<Asked>(Table::Demands, &demand.id).is_some_and(|asked| asked.force);
        let demand = Demand { force: demand.force || forced, ..demand };
        let asked = Asked { force: demand.force, at_ms: now_ms() };
        if let Ok(change) = Change::put(Table::Demands, &demand.id, &asked) {
            // Of several probers one bursts, and that may be another.
            self.store.put(vec![change]);
        }
        demands.push(demand);
        drop(demands);
        self.wake.notify_waiters();
        true
    }

    /// Endpoints of which a probe was asked for, here or at another prober, that has not ended yet.
    #[must_use]
    pub fn asked(&self) -> BTreeSet<String> {
        let here = self.peek_demands(|demands| demands.iter().map(|demand| demand.id.clone()).collect::<Vec<_>>());
        let anywhere = self.store.all::<Asked>(Table::Demands).into_keys();
        here.into_iter().chain(anywhere).collect()
    }

    /// Reserves an engine for a burst, until the guard is dropped; `None` when somebody else has it.
    pub fn exclusive(&self, engine: SocketAddr) -> Option<Exclusive<'_>> {
        // No guard is made for who is refused: dropped here, under the lock, it would wait for the lock for ever.
        if !self.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(engine) {
            return None;
        }
        Some(Exclusive { service: self, engine })
    }

    /// Whether somebody has reserved an engine.
    #[must_use]
    pub fn is_busy(&self, engine: SocketAddr) -> bool {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).contains(&engine)
    }

    /// Takes the demands that `which` picks.
    pub fn take_demands(&self, mut which: impl FnMut(&Demand) -> bool) -> Vec<Demand> {
        self.demands.lock().unwrap_or_else(PoisonError::into_inner).extract_if(.., |demand| which(demand)).collect()
    }

    /// Looks at the demands that wait.
    pub fn peek_demands<T>(&self, look: impl FnOnce(&[Demand]) -> T) -> T {
        look(&self.demands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        // Nothing under the lock can leave the registry half changed in a way that matters more than going on.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an Envoy refuses; `None`: nothing.
fn alarm_of(envoy: &EnvoyStatus) -> Option<Alarm> {
    let why = envoy.refuses.as_ref()?;
    Some(Alarm::of_prober(Code::EnvoyRefuses, format!("Envoy {} refuses what it is sent: {why}", envoy.node_id)))
}

/// Unix time in ms.
#[must_use]
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::store::Place;
    use weighbridge_xds::FilterSource;

    /// A service of one pool `p` without endpoints, over a file that nobody writes.
    pub(crate) async fn service(dir: &std::path::Path) -> Arc<Service> {
        configured(dir, "pools: [{name: p, models: [m]}]").await
    }

    /// The same with another configuration.
    pub(crate) async fn configured(dir: &std::path::Path, config: &str) -> Arc<Service> {
        let config = Config::parse(config).unwrap();
        let store = Store::open(&Place::File(dir.join("s.redb"))).await.unwrap();
        let xds = XdsServer::new(FilterSource { wasm_path: String::new() });
        Service::new(config, xds, store, Memory::default()).unwrap()
    }

    #[tokio::test]
    async fn who_does_not_wait_for_a_probe_takes_no_place() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path()).await;
        let ask = |id: &str, force: bool| {
            let (done, result) = oneshot::channel();
            (service.demand(Demand { id: id.into(), force, before: None, done }), result)
        };
        // Their result is dropped at once.
        assert!((0..3 * MAX_DEMANDS).all(|nth| ask("a", nth == 7).0));
        let waiting = |demands: &[Demand]| demands.iter().map(|demand| demand.force).collect::<Vec<_>>();
        assert_eq!(service.peek_demands(|demands| waiting(demands)), [true], "one was forced");
        let kept: Vec<_> = (0..MAX_DEMANDS).map(|_| ask("a", false)).collect();
        assert!(kept.iter().all(|(taken, _)| *taken) && !ask("b", true).0, "somebody waits for each of them");
    }

    #[tokio::test]
    async fn an_engine_is_reserved_for_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path()).await;
        let engine = "127.0.0.1:8000".parse().unwrap();
        let first = service.exclusive(engine).unwrap();
        assert!(service.exclusive(engine).is_none());
        assert!(service.exclusive(engine).is_none(), "who was refused gives nothing back");
        drop(first);
        assert!(service.exclusive(engine).is_some());
    }
}
