//! What the prober knows of the fleet, and the snapshot that follows from it. Pure: time is an argument (Unix ms).
//!
//! An endpoint's **weight** is its pin, else its measured throughput against the pool's median, else 1.0. Its **state**
//! is the first that applies:
//!
//! | state | when |
//! |---|---|
//! | draining | the operator drains it, or it is about to be forgotten |
//! | unhealthy | its health checks fail |
//! | probing | a burst runs or is about to, and somebody else of the pool can serve |
//! | new | never measured, its registration probe is not done, and somebody else of the pool is measured |
//! | ready | otherwise |

//!
//! - [`burst`]: how far a burst is.
//! - [`endpoint`]: one endpoint, and [`epoch`]: which life of its engine it is in.
//! - [`health`]: whether it may serve, and [`tokens`]: whether it generates; [`drain`]: how it leaves.
//! - [`watched`]: what health checks and metrics change; [`gpus`]: what exporters tell.
//! - [`exchanged`]: what an Envoy is answered.
//! - [`verdicts`]: weights, states, and the snapshot; [`versions`]: its number.
//! - [`pools`]: what a pool has in sum.
//! - [`shared`]: what other probers have changed.

mod burst;
mod drain;
mod endpoint;
mod epoch;
mod exchanged;
mod gpus;
mod health;
mod leaving;
mod pools;
mod shared;
mod tokens;
mod verdicts;
mod versions;
mod watched;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use weighbridge_routing::snapshot::MAX_ENDPOINTS_PER_POOL;
use weighbridge_routing::snapshot::wire;
use weighbridge_routing::weight::Clamp;

use crate::caps::Curve;
use crate::config;
use crate::engine::Signals;
use crate::exchange::{self, Exchange};
use shared::Heard;

pub use burst::{Burst, Phase, Step, Work};
pub use drain::{Drain, Emptying, Left, Progress, Removal};
pub use endpoint::{
    Endpoint, History, Kept, Measurement, Origin, Outcome, Pin, ProbeKind, ProbeRecord, Probed, Subject,
};
pub use epoch::Epoch;
pub use gpus::Gpus;
pub use health::{CheckFailure, Health};
pub use leaving::Going;
pub use pools::PoolLoad;
pub use shared::{Mark, News};
pub use tokens::{Tokens, Tried};
pub use verdicts::{Verdict, WeightSource};
pub use versions::Issued;
pub use watched::{Identified, Identity, Seen};

/// The most endpoints that the file does not name.
pub const MAX_REGISTRATIONS: usize = 4096;

/// Results that are older than this are forgotten.
const OLD_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// What a registration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// There is a new endpoint.
    New,
    /// It was known, with the same address and arguments.
    Reconnect,
    /// It was known, and comes back with another address or other arguments.
    Changed,
}

/// Why a request to the registry was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// No such endpoint.
    #[error("there is no endpoint {0}")]
    NoEndpoint(String),
    /// No such pool.
    #[error("pool is {0:?}: expected one of the configured pools")]
    NoPool(String),
    /// The file names it, so the file must forget it.
    #[error("endpoint {0} is named by the configuration file")]
    FromFile(String),
    /// Another pool has this id.
    #[error("id is {0:?}: expected an id that no endpoint of another pool has")]
    OtherPool(String),
    /// Not where endpoints may be.
    #[error("address is {address}: expected {expected}")]
    Outside {
        /// The address, resolved.
        address: SocketAddr,
        /// What is permitted.
        expected: String,
    },
    /// Another endpoint of the pool is there: both would count for themselves what one engine does.
    #[error("address is {address}: expected one that no other endpoint of the pool has; {other} has it")]
    SameAddress {
        /// The address, resolved.
        address: SocketAddr,
        /// Who has it.
        other: String,
    },
    /// One engine is spoken to in one way.
    #[error("tls and api_key are not those of {other}: expected the same of every endpoint at {address}")]
    OtherReach {
        /// The address, resolved.
        address: SocketAddr,
        /// Who has it.
        other: String,
    },
    /// Too many that the file does not name.
    #[error("{MAX_REGISTRATIONS} endpoints have registered already")]
    TooManyRegistrations,
    /// Too many for one snapshot.
    #[error("pool {0} has 1024 endpoints already")]
    TooMany(String),
}

/// The fleet.
#[derive(Debug)]
pub struct Registry {
    filter: wire::Filter,
    pools: Vec<config::Pool>,
    clamp: Clamp,
    /// Requests at once of a burst.
    burst: u32,
    /// The most requests at once of a sweep.
    sweep_max: u32,
    networks: config::Networks,
    endpoints: BTreeMap<String, Endpoint>,
    memory: Memory,
    published: Option<wire::Snapshot>,
    /// What that says.
    content: Option<versions::Content>,
    versions: versions::Versions,
    /// The fence of the prober that bursts, when that is another one.
    burst_by: Option<u64>,
    /// Which endpoints are under a burst, as the store says.
    marks: HashMap<String, Heard>,
    probes: BTreeMap<(String, ProbeKind, Outcome), u64>,
    /// Requests for one token, by pool and what came of them.
    token_checks: BTreeMap<(String, &'static str), u64>,
    /// What Envoys report, and what follows from it.
    pub exchange: Exchange,
    /// How busy GPUs are.
    pub gpus: Gpus,
    /// Stands for what Envoys are told beside the snapshot.
    beside: String,
    /// What is wrong with the prober itself.
    pub alarms: Vec<String>,
}

/// What the store remembers from before.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Pins by endpoint.
    pub pins: HashMap<String, Pin>,
    /// Drains by endpoint.
    pub drains: HashMap<String, Drain>,
    /// Last results by endpoint.
    pub last: HashMap<String, Kept>,
    /// Results by key.
    pub results: HashMap<String, Measurement>,
    /// Epochs by endpoint.
    pub epochs: HashMap<String, Epoch>,
    /// Moving averages by endpoint.
    pub averages: HashMap<String, exchange::averages::Kept>,
    /// Probes by endpoint.
    pub history: HashMap<String, History>,
    /// The version of the newest snapshot.
    pub snapshot: Option<Issued>,
}

impl Registry {
    /// A fleet without endpoints; `memory` is what the store remembers of them.
    #[must_use]
    pub fn new(config: &config::Config, mut memory: Memory) -> Self {
        let settings = exchange::Settings::new(config.signals.interval, config.signals.average_over);
        let mut versions = versions::Versions::default();
        if let Some(issued) = &memory.snapshot {
            versions.learn(issued, 0);
        }
        Registry {
            exchange: Exchange::new(settings, std::mem::take(&mut memory.averages)),
            gpus: Gpus::new(config.signals.clone()),
            filter: config.filter.clone(),
            pools: config.pools.clone(),
            clamp: config.probe.clamp,
            burst: config.probe.concurrency,
            sweep_max: config.probe.sweep_max,
            networks: config.networks.clone(),
            endpoints: BTreeMap::new(),
            memory,
            published: None,
            content: None,
            versions,
            burst_by: None,
            marks: HashMap::new(),
            probes: BTreeMap::new(),
            token_checks: BTreeMap::new(),
            beside: String::new(),
            alarms: Vec::new(),
        }
    }

    /// The pools as configured.
    #[must_use]
    pub fn pools(&self) -> &[config::Pool] {
        &self.pools
    }

    /// The endpoints by id.
    #[must_use]
    pub fn endpoints(&self) -> &BTreeMap<String, Endpoint> {
        &self.endpoints
    }

    /// One endpoint.
    ///
    /// # Errors
    /// When there is none of this id.
    pub fn get(&self, id: &str) -> Result<&Endpoint, RegistryError> {
        self.endpoints.get(id).ok_or_else(|| RegistryError::NoEndpoint(id.to_owned()))
    }

    /// One endpoint, to change it.
    ///
    /// # Errors
    /// When there is none of this id.
    pub fn get_mut(&mut self, id: &str) -> Result<&mut Endpoint, RegistryError> {
        self.endpoints.get_mut(id).ok_or_else(|| RegistryError::NoEndpoint(id.to_owned()))
    }

    /// What Envoys are told beside the snapshot (how engines are spoken to) has become this: another snapshot goes with it.
    pub fn told_beside(&mut self, digest: String) {
        if self.beside != digest {
            self.beside = digest;
            self.content = None;
        }
    }

    /// Changes what filters show when they report.
    pub fn set_reports_token(&mut self, token: String) {
        self.filter.reports_token = token;
    }

    /// What the engines of a pool call their model.
    #[must_use]
    pub fn served_model(&self, pool: &str) -> &str {
        self.pools.iter().find(|known| known.wire.name == pool).map_or("", |pool| &pool.served_model)
    }

    /// Adds an endpoint, or takes up one that comes back.
    ///
    /// # Errors
    /// When there is no such pool, no endpoint may be there or another one of the pool is, or the id belongs to another pool or to
    /// the file.
    pub fn register(
        &mut self,
        pool: &str,
        written: config::Endpoint,
        address: SocketAddr,
        origin: Origin,
    ) -> Result<Registered, RegistryError> {
        if !self.pools.iter().any(|known| known.wire.name == pool) {
            return Err(RegistryError::NoPool(pool.to_owned()));
        }
        if !self.networks.permit(address) {
            return Err(RegistryError::Outside { address, expected: self.networks.expected() });
        }
        // One that leaves takes nothing new, so an engine may come back under another name.
        let there =
            |endpoint: &Endpoint| endpoint.pool == pool && endpoint.address == address && endpoint.removal.is_none();
        if let Some((other, _)) = self.endpoints.iter().find(|(id, endpoint)| **id != written.id && there(endpoint)) {
            return Err(RegistryError::SameAddress { address, other: other.clone() });
        }
        let other = self.endpoints.iter().find(|(id, endpoint)| {
            **id != written.id && endpoint.address == address && endpoint.written.reach != written.reach
        });
        if let Some((other, _)) = other {
            return Err(RegistryError::OtherReach { address, other: other.clone() });
        }
        let others_known = self.others_known(&written.id, pool);
        if let Some(known) = self.endpoints.get_mut(&written.id) {
            if known.pool != pool {
                return Err(RegistryError::OtherPool(written.id));
            }
            if known.origin != origin && (known.written != written || known.address != address) {
                return Err(RegistryError::FromFile(written.id));
            }
            known.stay();
            if known.written == written && known.address == address {
                return Ok(Registered::Reconnect);
            }
            if known.written.launch_args != written.launch_args || known.address != address {
                known.epoch.replaced();
                known.kv_tokens = None;
                known.discovered_window = None;
                self.exchange.replaced(&written.id);
            }
            if known.address != address {
                // Another machine may be there: it is new until it is seen to be what was measured.
                known.kept = None;
                known.epoch.moved();
                known.earlier_starts = 0;
            }
            known.written = written;
            known.address = address;
            known.fingerprint = None;
            known.said = None;
            known.unidentified = None;
            known.health = Health::unchecked();
            known.registered = false;
            known.newcomer = others_known;
            return Ok(Registered::Changed);
        }
        let pool_sizing = self.pools.iter().find(|known| known.wire.name == pool).map(|pool| pool.sizing);
        let members = self.endpoints.values().filter(|endpoint| endpoint.pool == pool).count();
        if members >= MAX_ENDPOINTS_PER_POOL {
            return Err(RegistryError::TooMany(pool.to_owned()));
        }
        let registered = self.endpoints.values().filter(|endpoint| endpoint.origin == Origin::Api).count();
        if origin == Origin::Api && registered >= MAX_REGISTRATIONS {
            return Err(RegistryError::TooManyRegistrations);
        }
        let id = written.id.clone();
        let mut endpoint = Endpoint {
            pool: pool.to_owned(),
            address,
            origin,
            pin: self.memory.pins.get(&id).cloned(),
            drain: self.memory.drains.get(&id).cloned(),
            removal: None,
            emptying: None,
            kept: None,
            sizing: pool_sizing.unwrap_or_default(),
            measured: None,
            registered: false,
            newcomer: others_known,
            burst: None,
            probing_elsewhere: self.is_marked(&id),
            not_before_ms: 0,
            health: Health::unchecked(),
            signals: Signals::default(),
            kv_tokens: None,
            epoch: self.memory.epochs.get(&id).copied().unwrap_or_default(),
            discovered_window: None,
            fingerprint: None,
            said: None,
            unidentified: None,
            earlier_starts: 0,
            reborn: false,
            alarm: None,
            history: self.memory.history.get(&id).map(|history| history.records.clone()).unwrap_or_default(),
            written,
        };
        endpoint.keep(self.memory.last.get(&id).cloned());
        self.endpoints.insert(id, endpoint);
        Ok(Registered::New)
    }

    fn others_known(&self, id: &str, pool: &str) -> bool {
        let members = self.endpoints.iter().filter(|(_, endpoint)| endpoint.pool == pool);
        verdicts::others_known(id, members.map(|(id, endpoint)| (id.as_str(), endpoint)))
    }

    /// Forgets an endpoint at once, with its pin and drain: who registers under this id later is somebody else.
    pub fn forget(&mut self, id: &str) -> Option<Endpoint> {
        self.memory.pins.remove(id);
        self.memory.drains.remove(id);
        self.memory.last.remove(id);
        self.memory.epochs.remove(id);
        self.exchange.forget(id);
        self.memory.history.remove(id);
        self.endpoints.remove(id)
    }

    /// What a probe of this endpoint would measure.
    #[must_use]
    pub fn subject(&self, id: &str) -> Option<Subject> {
        let endpoint = self.endpoints.get(id)?;
        Some(Subject { address: endpoint.address, key: endpoint.key(self.served_model(&endpoint.pool)) })
    }

    /// Nothing of a burst is sent any more, however it ended. A gauge that trails may go on showing it: it may have begun and ended between
    /// two readings.
    pub fn burst_ended(&mut self, id: &str) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let address = endpoint.address;
        if let Some(burst) = endpoint.burst.take() {
            self.probe_was_at(address, burst.most);
        }
    }

    /// The requests of the probe that runs at the engine of this endpoint, at whichever of its endpoints (several pools may share one). Cost:
    /// a look at each endpoint.
    fn probe_at(&self, id: &str, address: SocketAddr) -> Option<u32> {
        let there = self.endpoints.iter().filter(|(_, endpoint)| endpoint.address == address && endpoint.under_burst());
        // One that waits until the engine is idle has sent nothing yet, and may wait for long.
        let sends = |other: &str, endpoint: &Endpoint| other == id || endpoint.burst.is_none_or(|burst| burst.most > 0);
        let bursts = there.filter(|(other, endpoint)| sends(other, endpoint));
        bursts.map(|(_, endpoint)| endpoint.probe_requests((self.burst, self.sweep_max))).max()
    }

    /// A probe has ended there.
    fn probe_was_at(&mut self, address: SocketAddr, requests: u32) {
        for (id, _) in self.endpoints.iter().filter(|(_, endpoint)| endpoint.address == address) {
            self.exchange.probed(id, requests.into());
        }
    }

    /// A probe has ended, perhaps with a curve. A result always replaces the kept one; a failure keeps it and raises an alarm. What was
    /// measured of something that is not there any more counts as a failure, and changes nothing else. `None`: the endpoint is gone.
    pub fn probed(
        &mut self,
        id: &str,
        subject: &Subject,
        mut record: ProbeRecord,
        curve: Option<Curve>,
    ) -> Option<Probed> {
        let now = self.subject(id)?;
        self.burst_ended(id);
        let endpoint = self.endpoints.get_mut(id)?;
        let Some(subject) = subject.agreed(&now) else {
            record.spoil("the engine runs something else now than was measured");
            // Of nothing that is there.
            return Some(self.ended(id, None, record, None));
        };
        endpoint.registered = true;
        if subject.key.is_none() {
            record.spoil("the engine did not say what it runs");
        }
        match &record.error {
            None => endpoint.health.tokens.proven(record.at_ms),
            Some(_) => endpoint.health.tokens.doubt(),
        }
        let kept = match (record.throughput_tps, subject.key.clone()) {
            (Some(throughput_tps), Some(key)) => {
                // What failed does not take away the reading that it was to replace.
                let before = endpoint.kept.as_ref().filter(|kept| kept.key == key).map(|kept| &kept.measurement);
                let stays = before.filter(|_| record.sweep_error.is_some()).and_then(|before| before.curve.clone());
                let prefill = before.filter(|_| record.prefill_error.is_some()).and_then(|before| before.prefill_tps);
                let measurement = Measurement {
                    throughput_tps,
                    prefill_tps: record.prefill_tps.or(prefill),
                    curve: curve.or(stays),
                    sweep_error: record.sweep_error.clone(),
                    measured_at_ms: record.at_ms,
                };
                self.memory.results.insert(key.clone(), measurement.clone());
                endpoint.alarm = None;
                endpoint.not_before_ms = 0;
                let kept = Kept { key, measurement };
                endpoint.keep(Some(kept.clone()));
                Some(kept)
            }
            _ => {
                endpoint.alarm = record.error.as_deref().map(endpoint::failed);
                endpoint.back_off(record.at_ms);
                None
            }
        };
        Some(self.ended(id, subject.key, record, kept))
    }

    /// Counts a probe of what `key` stands for, and writes it down.
    fn ended(&mut self, id: &str, key: Option<String>, record: ProbeRecord, kept: Option<Kept>) -> Probed {
        let mut history = History { key, records: std::iter::once(record.clone()).collect() };
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            let outcome = if kept.is_some() { Outcome::Measured } else { Outcome::Failed };
            let (pool, kind) = (endpoint.pool.clone(), record.kind);
            endpoint.push(record.clone());
            history.records.clone_from(&endpoint.history);
            self.count(pool, kind, outcome);
        }
        self.memory.history.insert(id.to_owned(), history.clone());
        Probed { record, kept, history }
    }

    /// Forgets results that nobody has needed for 30 days, and that spare no probe any more, and returns their keys: every new set of launch
    /// arguments leaves one behind. What an endpoint was last measured with stays. Cost: linear in the results.
    pub fn prune(&mut self, keep_ms: u64, now_ms: u64) -> Vec<String> {
        let old_ms = OLD_MS.max(keep_ms);
        let is_old = |result: &Measurement| now_ms.saturating_sub(result.measured_at_ms) > old_ms;
        self.memory.results.extract_if(|_, result| is_old(result)).map(|(key, _)| key).collect()
    }

    /// Counts a probe of a pool.
    pub fn count(&mut self, pool: String, kind: ProbeKind, outcome: Outcome) {
        *self.probes.entry((pool, kind, outcome)).or_default() += 1;
    }

    /// How many probes ended how, since the prober started, by pool.
    #[must_use]
    pub fn probes(&self) -> &BTreeMap<(String, ProbeKind, Outcome), u64> {
        &self.probes
    }

    /// Whether some endpoint is under a burst.
    #[must_use]
    pub fn is_bursting(&self) -> bool {
        self.endpoints.values().any(Endpoint::under_burst)
    }

    /// Whether every endpoint has had its registration probe.
    #[must_use]
    pub fn all_registered(&self) -> bool {
        self.endpoints.values().all(|endpoint| endpoint.registered)
    }

    /// The snapshot in force.
    #[must_use]
    pub fn published(&self) -> Option<&wire::Snapshot> {
        self.published.as_ref()
    }
}

#[cfg(test)]
mod tests;
