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

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use weighbridge_routing::snapshot::MAX_ENDPOINTS_PER_POOL;
use weighbridge_routing::snapshot::wire::{self, State};
use weighbridge_routing::weight::{Clamp, Weight, cap, weights};

use crate::config;
use crate::engine::Signals;

/// Probe records kept per endpoint.
const HISTORY: usize = 20;
/// After a probe that failed, the next try comes this much later.
const RETRY_MS: u64 = 60_000;
/// A version is a time in ms; one that is further ahead than this is no time.
const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// A weight set by an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// The weight.
    pub weight: Weight,
    /// Why, in the operator's words.
    #[serde(default)]
    pub reason: String,
    /// When it was set.
    pub at_ms: u64,
}

/// An endpoint taken out by an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    /// Why, in the operator's words.
    #[serde(default)]
    pub reason: String,
    /// Since when.
    pub at_ms: u64,
}

/// The throughput of a warmed burst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Completion tokens per second.
    pub throughput_tps: f64,
    /// When.
    pub measured_at_ms: u64,
}

/// What was measured last on an endpoint, and for which (node, model, launch arguments).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The three, as one key.
    pub key: String,
    /// The result.
    pub measurement: Measurement,
}

/// What is measured: a result counts only for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Where.
    pub address: SocketAddr,
    /// Which node, model and launch arguments.
    pub key: Option<String>,
}

/// Why a probe ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeKind {
    /// The endpoint is new, or runs with other launch arguments.
    Registration,
    /// Its result was older than the interval.
    Interval,
    /// Somebody asked for it.
    Demand,
}

/// One probe, for the history.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeRecord {
    /// When it ended.
    pub at_ms: u64,
    /// Why it ran.
    pub kind: ProbeKind,
    /// Tokens per second of the first burst, which does not count.
    pub warmup_tps: Option<f64>,
    /// Tokens per second of the second burst, which does.
    pub throughput_tps: Option<f64>,
    /// A kept result spared the bursts.
    pub reused: bool,
    /// Why there is no result.
    pub error: Option<String>,
}

/// Health as the checks see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The verdict.
    pub healthy: bool,
    /// Whether there has been a check at all.
    pub checked: bool,
    /// Checks in a row that contradict the verdict.
    streak: u32,
    /// What the last failed check said.
    pub last_error: Option<String>,
}

/// Where an endpoint comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The configuration file, under this id.
    File(String),
    /// A registration.
    Api,
}

/// One endpoint.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// As written.
    pub written: config::Endpoint,
    /// Its pool.
    pub pool: String,
    /// Its address, resolved.
    pub address: SocketAddr,
    /// Where it comes from.
    pub origin: Origin,
    /// The operator's weight.
    pub pin: Option<Pin>,
    /// The operator's drain.
    pub drain: Option<Drain>,
    /// To be forgotten when it is empty, and at this time at the latest.
    pub leaving_at_ms: Option<u64>,
    /// The measurement in force, with its key.
    pub kept: Option<Kept>,
    /// Whether the registration probe is done (or was spared).
    pub registered: bool,
    /// A burst runs or is about to.
    pub probing: bool,
    /// No probe before this time.
    pub not_before_ms: u64,
    /// Health.
    pub health: Health,
    /// What the engine says of itself.
    pub signals: Signals,
    /// The context window that the engine tells.
    pub discovered_window: Option<u32>,
    /// The launch arguments, or what the engine tells that stands for them; `None` until it has been asked.
    pub fingerprint: Option<String>,
    /// What is wrong, for people.
    pub alarm: Option<String>,
    /// Probes, newest last.
    pub history: VecDeque<ProbeRecord>,
}

impl Endpoint {
    /// The key under which results are kept: node, model and launch arguments.
    #[must_use]
    pub fn key(&self, served_model: &str) -> Option<String> {
        let args = self.written.launch_args.as_deref().or(self.fingerprint.as_deref())?;
        Some(serde_json::json!([self.written.node, served_model, args]).to_string())
    }

    /// Context window in tokens, written or discovered.
    #[must_use]
    pub fn context_window(&self) -> Option<u32> {
        self.written.context_window.or(self.discovered_window)
    }

    fn known(&self) -> bool {
        self.kept.is_some() || self.pin.is_some()
    }

    /// Healthy, and nobody wants it gone.
    fn available(&self) -> bool {
        self.health.healthy && self.drain.is_none() && self.leaving_at_ms.is_none()
    }

    /// No probe before some time from now on.
    pub fn back_off(&mut self, now_ms: u64) {
        self.not_before_ms = now_ms.saturating_add(RETRY_MS);
    }
}

/// Where a weight comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightSource {
    /// The operator.
    Pinned,
    /// A warmed burst.
    Measured,
    /// Nobody knows better.
    Default,
}

/// What follows for one endpoint from everything that is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Its weight.
    pub weight: Weight,
    /// Where that comes from.
    pub source: WeightSource,
    /// Its state.
    pub state: State,
}

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
    endpoints: BTreeMap<String, Endpoint>,
    memory: Memory,
    published: Option<wire::Snapshot>,
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
}

impl Registry {
    /// A fleet without endpoints; `memory` is what the store remembers of them.
    #[must_use]
    pub fn new(config: &config::Config, memory: Memory) -> Self {
        Registry {
            filter: config.filter.clone(),
            pools: config.pools.clone(),
            clamp: config.probe.clamp,
            endpoints: BTreeMap::new(),
            memory,
            published: None,
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

    /// What the engines of a pool call their model.
    #[must_use]
    pub fn served_model(&self, pool: &str) -> &str {
        self.pools.iter().find(|known| known.wire.name == pool).map_or("", |pool| &pool.served_model)
    }

    /// Adds an endpoint, or takes up one that comes back.
    ///
    /// # Errors
    /// When there is no such pool, or the id belongs to another one or to the file.
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
        if let Some(known) = self.endpoints.get_mut(&written.id) {
            if known.pool != pool {
                return Err(RegistryError::OtherPool(written.id));
            }
            if known.origin != origin && (known.written != written || known.address != address) {
                return Err(RegistryError::FromFile(written.id));
            }
            known.leaving_at_ms = None;
            if known.written == written && known.address == address {
                return Ok(Registered::Reconnect);
            }
            known.written = written;
            known.address = address;
            known.fingerprint = None;
            known.health = Health::unchecked();
            known.registered = false;
            return Ok(Registered::Changed);
        }
        let members = self.endpoints.values().filter(|endpoint| endpoint.pool == pool).count();
        if members >= MAX_ENDPOINTS_PER_POOL {
            return Err(RegistryError::TooMany(pool.to_owned()));
        }
        let id = written.id.clone();
        let endpoint = Endpoint {
            pool: pool.to_owned(),
            address,
            origin,
            pin: self.memory.pins.get(&id).cloned(),
            drain: self.memory.drains.get(&id).cloned(),
            leaving_at_ms: None,
            kept: self.memory.last.get(&id).cloned(),
            registered: false,
            probing: false,
            not_before_ms: 0,
            health: Health::unchecked(),
            signals: Signals::default(),
            discovered_window: None,
            fingerprint: None,
            alarm: None,
            history: VecDeque::new(),
            written,
        };
        self.endpoints.insert(id, endpoint);
        Ok(Registered::New)
    }

    /// Forgets an endpoint at once, with its pin and drain: who registers under this id later is somebody else.
    pub fn forget(&mut self, id: &str) -> Option<Endpoint> {
        self.memory.pins.remove(id);
        self.memory.drains.remove(id);
        self.memory.last.remove(id);
        self.endpoints.remove(id)
    }

    /// The engine has said what it is. A kept result for the same (node, model, launch arguments) that is younger than
    /// `keep_ms` spares the registration burst; other arguments void what was measured before.
    pub fn identified(&mut self, id: &str, fingerprint: String, window: Option<u32>, keep_ms: u64, now_ms: u64) {
        let Some(model) = self.endpoints.get(id).map(|endpoint| self.served_model(&endpoint.pool).to_owned()) else {
            return;
        };
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        endpoint.discovered_window = window;
        endpoint.fingerprint = Some(fingerprint);
        let Some(key) = endpoint.key(&model) else { return };
        if endpoint.registered && endpoint.kept.as_ref().is_none_or(|kept| kept.key == key) {
            return;
        }
        let result = self.memory.results.get(&key).copied();
        if endpoint.kept.as_ref().is_some_and(|kept| kept.key != key) {
            endpoint.kept = None;
        }
        endpoint.registered = false;
        endpoint.not_before_ms = 0;
        if let Some(measurement) = result.filter(|m| now_ms.saturating_sub(m.measured_at_ms) < keep_ms) {
            endpoint.kept = Some(Kept { key, measurement });
            endpoint.registered = true;
            endpoint.alarm = None;
            push(
                &mut endpoint.history,
                ProbeRecord {
                    at_ms: now_ms,
                    kind: ProbeKind::Registration,
                    warmup_tps: None,
                    throughput_tps: Some(measurement.throughput_tps),
                    reused: true,
                    error: None,
                },
            );
        }
    }

    /// What a probe of this endpoint would measure.
    #[must_use]
    pub fn subject(&self, id: &str) -> Option<Subject> {
        let endpoint = self.endpoints.get(id)?;
        Some(Subject { address: endpoint.address, key: endpoint.key(self.served_model(&endpoint.pool)) })
    }

    /// A probe has ended. A result always replaces the kept one; a failure keeps it and raises an alarm. Returns what
    /// is to be stored.
    pub fn probed(&mut self, id: &str, subject: &Subject, record: ProbeRecord) -> Option<Kept> {
        let now = self.subject(id)?;
        let endpoint = self.endpoints.get_mut(id)?;
        endpoint.probing = false;
        if now != *subject {
            // It came back as something else meanwhile: what was measured is not what is there.
            return None;
        }
        endpoint.registered = true;
        let kept = match (record.throughput_tps, now.key) {
            (Some(throughput_tps), Some(key)) => {
                let measurement = Measurement { throughput_tps, measured_at_ms: record.at_ms };
                self.memory.results.insert(key.clone(), measurement);
                endpoint.alarm = None;
                endpoint.not_before_ms = 0;
                let kept = Kept { key, measurement };
                endpoint.kept = Some(kept.clone());
                Some(kept)
            }
            _ => {
                let why = record.error.as_deref().unwrap_or("the engine did not say what it runs");
                endpoint.alarm = Some(format!("the last probe failed: {why}"));
                endpoint.not_before_ms = record.at_ms.saturating_add(RETRY_MS);
                None
            }
        };
        push(&mut endpoint.history, record);
        kept
    }

    /// One health check; `true` when the verdict changed.
    pub fn checked(&mut self, id: &str, result: Result<(), String>, after: config::Health) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return false };
        let health = &mut endpoint.health;
        health.checked = true;
        let ok = result.is_ok();
        health.last_error = result.err();
        if ok == health.healthy {
            health.streak = 0;
            return false;
        }
        health.streak += 1;
        let needed = if ok { after.healthy_after } else { after.unhealthy_after };
        if health.streak < needed {
            return false;
        }
        health.healthy = ok;
        health.streak = 0;
        true
    }

    /// Whether every endpoint has had its registration probe.
    #[must_use]
    pub fn all_registered(&self) -> bool {
        self.endpoints.values().all(|endpoint| endpoint.registered)
    }

    /// Weight, source and state of every endpoint, by id.
    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<&str, Verdict> {
        let mut verdicts = BTreeMap::new();
        for pool in &self.pools {
            let members: Vec<(&str, &Endpoint)> = self
                .endpoints
                .iter()
                .filter(|(_, endpoint)| endpoint.pool == pool.wire.name)
                .map(|(id, endpoint)| (id.as_str(), endpoint))
                .collect();
            let throughputs: Vec<Option<f64>> = members
                .iter()
                .map(|(_, endpoint)| endpoint.kept.as_ref().map(|kept| kept.measurement.throughput_tps))
                .collect();
            let measured = weights(&throughputs, self.clamp);
            for ((id, endpoint), measured) in members.iter().zip(measured) {
                let (weight, source) = match (&endpoint.pin, measured) {
                    (Some(pin), _) => (pin.weight, WeightSource::Pinned),
                    (None, Some(weight)) if endpoint.registered => (weight, WeightSource::Measured),
                    (None, Some(weight)) => (weight, WeightSource::Default),
                    (None, None) => (Weight::ONE, WeightSource::Default),
                };
                verdicts.insert(*id, Verdict { weight, source, state: state(id, endpoint, &members) });
            }
        }
        verdicts
    }

    /// The snapshot, when it says something else than the one before. `floor` is the highest version that an Envoy holds.
    pub fn snapshot(&mut self, now_ms: u64, floor: u64) -> Option<wire::Snapshot> {
        let verdicts = self.verdicts();
        let mut pools: Vec<wire::Pool> = self.pools.iter().map(|pool| pool.wire.clone()).collect();
        for pool in &mut pools {
            let members = self.endpoints.iter().filter(|(_, endpoint)| endpoint.pool == pool.name);
            pool.endpoints = members
                .filter_map(|(id, endpoint)| {
                    let verdict = verdicts.get(id.as_str())?;
                    Some(wire::Endpoint {
                        id: id.clone(),
                        address: endpoint.address.to_string(),
                        weight: verdict.weight.get().into(),
                        cap: Some(cap(pool.admission.base_cap, verdict.weight)),
                        context_window: endpoint.context_window(),
                        state: verdict.state,
                        ..wire::Endpoint::default()
                    })
                })
                .collect();
        }
        // A version from the far future can only be a mistake, and following it would end at the largest number there is.
        let floor = if floor > now_ms.saturating_add(DAY_MS) { 0 } else { floor };
        let last = self.published.as_ref().map_or(0, |published| published.version);
        if let Some(published) = &self.published
            && published.pools == pools
            && last >= floor
        {
            return None;
        }
        let version = now_ms.max(last.saturating_add(1)).max(floor.saturating_add(1));
        let snapshot = wire::Snapshot { format: 1, version, filter: self.filter.clone(), pools };
        self.published = Some(snapshot.clone());
        Some(snapshot)
    }

    /// The snapshot in force.
    #[must_use]
    pub fn published(&self) -> Option<&wire::Snapshot> {
        self.published.as_ref()
    }
}

impl Health {
    /// Healthy until a check says otherwise: a prober that starts must not close a fleet that serves.
    fn unchecked() -> Self {
        Health { healthy: true, checked: false, streak: 0, last_error: None }
    }
}

fn state(id: &str, endpoint: &Endpoint, members: &[(&str, &Endpoint)]) -> State {
    if endpoint.drain.is_some() || endpoint.leaving_at_ms.is_some() {
        State::Draining
    } else if !endpoint.health.healthy {
        State::Unhealthy
    } else if endpoint.probing && has_stand_in(id, members) {
        State::Probing
    } else if is_new(id, endpoint, members) {
        State::New
    } else {
        State::Ready
    }
}

/// Never measured, while somebody else of the pool is: it takes no traffic until it is.
fn is_new(id: &str, endpoint: &Endpoint, members: &[(&str, &Endpoint)]) -> bool {
    let known_other = members.iter().any(|(other, endpoint)| *other != id && endpoint.known() && endpoint.available());
    !endpoint.registered && !endpoint.known() && known_other
}

/// Whether somebody else can take the traffic meanwhile: seen to be healthy, not in doubt, and not new.
fn has_stand_in(id: &str, members: &[(&str, &Endpoint)]) -> bool {
    members.iter().any(|(other, endpoint)| {
        let sound = endpoint.health.checked && endpoint.health.streak == 0 && endpoint.available();
        *other != id && sound && !endpoint.probing && !is_new(other, endpoint, members)
    })
}

fn push(history: &mut VecDeque<ProbeRecord>, record: ProbeRecord) {
    if history.len() >= HISTORY {
        history.pop_front();
    }
    history.push_back(record);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(ids: &[&str]) -> Registry {
        let config = config::Config::parse("pools: [{name: p, models: [m]}]").unwrap();
        let mut registry = Registry::new(&config, Memory::default());
        for id in ids {
            add(&mut registry, id, "args");
        }
        registry
    }

    fn add(registry: &mut Registry, id: &str, args: &str) -> Registered {
        let written = config::Endpoint {
            id: id.into(),
            address: "10.0.0.1:80".into(),
            node: id.into(),
            launch_args: Some(args.into()),
            context_window: None,
        };
        let address = "10.0.0.1:80".parse().unwrap();
        let registered = registry.register("p", written, address, Origin::Api).unwrap();
        registry.get_mut(id).unwrap().health.checked = true;
        registered
    }

    fn probed(registry: &mut Registry, id: &str, tps: Option<f64>, at_ms: u64) {
        let error = tps.is_none().then(|| "no".to_owned());
        let kind = ProbeKind::Registration;
        let subject = registry.subject(id).unwrap();
        registry.probed(
            id,
            &subject,
            ProbeRecord { at_ms, kind, warmup_tps: None, throughput_tps: tps, reused: false, error },
        );
    }

    fn seen(registry: &Registry, id: &str) -> (f64, WeightSource, State) {
        let verdict = registry.verdicts()[id];
        (verdict.weight.get(), verdict.source, verdict.state)
    }

    #[test]
    fn a_new_endpoint_waits_for_its_probe_unless_nobody_is_measured() {
        let mut registry = registry(&["a", "b"]);
        assert_eq!(seen(&registry, "a"), (1.0, WeightSource::Default, State::Ready));
        registry.get_mut("a").unwrap().probing = true;
        assert_eq!(seen(&registry, "a").2, State::Probing);
        probed(&mut registry, "a", Some(980.0), 1);
        assert_eq!(seen(&registry, "b").2, State::New);
        registry.get_mut("b").unwrap().probing = true;
        probed(&mut registry, "b", Some(479.0), 2);
        assert_eq!(seen(&registry, "a"), (1.34, WeightSource::Measured, State::Ready));
        assert_eq!(seen(&registry, "b"), (0.66, WeightSource::Measured, State::Ready));
    }

    #[test]
    fn alone_in_its_pool_it_serves_while_it_is_probed() {
        let mut registry = registry(&["a"]);
        registry.get_mut("a").unwrap().probing = true;
        assert_eq!(seen(&registry, "a").2, State::Ready);
    }

    // The only stand-in of a measured endpoint is one that nobody has measured, or has not been seen to live.
    #[test]
    fn an_endpoint_without_a_sound_stand_in_serves_while_it_is_probed() {
        let mut registry = registry(&["a", "b"]);
        probed(&mut registry, "a", Some(980.0), 1);
        registry.get_mut("a").unwrap().probing = true;
        assert_eq!((seen(&registry, "a").2, seen(&registry, "b").2), (State::Ready, State::New));
        probed(&mut registry, "b", Some(479.0), 2);
        assert_eq!(seen(&registry, "a").2, State::Probing);
        registry.get_mut("b").unwrap().health.checked = false;
        assert_eq!(seen(&registry, "a").2, State::Ready);
    }

    #[test]
    fn a_result_counts_only_for_what_was_measured() {
        let mut registry = registry(&["a"]);
        let before = registry.subject("a").unwrap();
        add(&mut registry, "a", "other");
        let record = ProbeRecord {
            at_ms: 1,
            kind: ProbeKind::Registration,
            warmup_tps: None,
            throughput_tps: Some(980.0),
            reused: false,
            error: None,
        };
        assert_eq!(registry.probed("a", &before, record), None);
        assert!(!registry.get("a").unwrap().registered && registry.get("a").unwrap().kept.is_none());
    }

    #[test]
    fn a_failed_probe_keeps_the_last_weight_and_raises_an_alarm() {
        let mut registry = registry(&["a", "b"]);
        probed(&mut registry, "a", Some(980.0), 1);
        probed(&mut registry, "b", Some(479.0), 2);
        probed(&mut registry, "a", None, 3);
        assert_eq!(seen(&registry, "a").0, 1.34);
        assert!(registry.get("a").unwrap().alarm.is_some());
        add(&mut registry, "c", "args");
        probed(&mut registry, "c", None, 4);
        assert_eq!(seen(&registry, "c"), (1.0, WeightSource::Default, State::Ready));
        probed(&mut registry, "a", Some(980.0), 5);
        assert!(registry.get("a").unwrap().alarm.is_none());
    }

    #[test]
    fn other_launch_arguments_are_measured_anew_and_the_same_are_not() {
        let mut registry = registry(&["a"]);
        registry.identified("a", String::new(), None, 1_000, 0);
        assert!(!registry.get("a").unwrap().registered);
        probed(&mut registry, "a", Some(980.0), 10);
        assert_eq!(add(&mut registry, "a", "args"), Registered::Reconnect);
        assert_eq!(add(&mut registry, "a", "other"), Registered::Changed);
        registry.identified("a", String::new(), None, 1_000, 20);
        assert!(!registry.get("a").unwrap().registered && registry.get("a").unwrap().kept.is_none());
        // Back to the first: its result is kept, for as long as it is young.
        assert_eq!(add(&mut registry, "a", "args"), Registered::Changed);
        registry.identified("a", String::new(), None, 1_000, 1_009);
        assert!(registry.get("a").unwrap().registered && registry.get("a").unwrap().history.back().unwrap().reused);
        assert_eq!(add(&mut registry, "a", "other"), Registered::Changed);
        assert_eq!(add(&mut registry, "a", "args"), Registered::Changed);
        registry.identified("a", String::new(), None, 1_000, 1_010);
        assert!(!registry.get("a").unwrap().registered);
    }

    #[test]
    fn a_pin_rules_and_is_not_clamped() {
        let mut registry = registry(&["a", "b"]);
        probed(&mut registry, "a", Some(980.0), 1);
        registry.get_mut("a").unwrap().pin =
            Some(Pin { weight: Weight::try_new(100.0).unwrap(), reason: String::new(), at_ms: 0 });
        assert_eq!(seen(&registry, "a"), (100.0, WeightSource::Pinned, State::Ready));
    }

    #[test]
    fn health_needs_several_failures_and_one_success() {
        let after = config::Config::parse("pools: [{name: p, models: [m]}]").unwrap().health;
        let mut registry = registry(&["a"]);
        let fail = || Err("refused".to_owned());
        assert!(!registry.checked("a", fail(), after) && !registry.checked("a", Ok(()), after));
        assert!(!registry.checked("a", fail(), after) && !registry.checked("a", fail(), after));
        assert!(registry.checked("a", fail(), after));
        assert_eq!(seen(&registry, "a").2, State::Unhealthy);
        assert!(registry.checked("a", Ok(()), after));
        assert_eq!(seen(&registry, "a").2, State::Ready);
    }

    #[test]
    fn versions_only_grow_and_only_when_something_changed() {
        let mut registry = registry(&["a"]);
        let first = registry.snapshot(100, 0).unwrap().version;
        assert_eq!((first, registry.snapshot(200, 0)), (100, None));
        registry.get_mut("a").unwrap().drain = Some(Drain { reason: String::new(), at_ms: 0 });
        assert_eq!(registry.snapshot(50, 0).unwrap().version, 101);
        // An Envoy that holds a higher one, from another prober or a lost store.
        assert_eq!(registry.snapshot(50, 500).unwrap().version, 501);
        assert_eq!(registry.snapshot(50, 501), None);
        assert_eq!(registry.snapshot(50, u64::MAX), None);
    }
}
