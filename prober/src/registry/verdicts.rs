//! What follows for every endpoint from everything that is known, and the snapshot that says so.

use std::collections::BTreeMap;

use serde::Serialize;
use weighbridge_routing::snapshot::wire::{self, State};
use weighbridge_routing::weight::{Weight, cap, median, weights};

use super::versions::{Content, DAY_MS};
use super::{Endpoint, Registry};
use crate::alarms::{Alarm, Code, Subject};
use crate::caps::{CapSource, Measured};

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
    /// The most requests that it may have at once.
    pub cap: u32,
    /// Where that comes from.
    pub cap_source: CapSource,
    /// Its state.
    pub state: State,
}

impl Registry {
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
                let (cap, cap_source) = cap_of(endpoint, pool.wire.admission.base_cap, weight);
                let state = state(id, endpoint, &members);
                verdicts.insert(*id, Verdict { weight, source, cap, cap_source, state });
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
            let measured =
                members.clone().filter_map(|(_, endpoint)| Some(endpoint.kept.as_ref()?.measurement.throughput_tps));
            pool.median_tps = median(measured).map(rounded);
            pool.endpoints = members
                .filter_map(|(id, endpoint)| {
                    let verdict = verdicts.get(id.as_str())?;
                    Some(wire::Endpoint {
                        id: id.clone(),
                        address: endpoint.address.to_string(),
                        weight: verdict.weight.get().into(),
                        cap: Some(verdict.cap),
                        curve: endpoint.shares(self.burst),
                        context_window: endpoint.context_window(),
                        prefill_tps: endpoint.kept.as_ref().and_then(|kept| kept.measurement.prefill_tps).map(rounded),
                        kv_tokens: endpoint.kv_tokens,
                        epoch: endpoint.epoch.value,
                        state: verdict.state,
                    })
                })
                .collect();
        }
        // A version from the far future can only be a mistake, and following it would end at the largest number there is.
        let floor = if floor > now_ms.saturating_add(DAY_MS) { 0 } else { floor };
        let last = self.published.as_ref().map_or(0, |published| published.version);
        let same = self
            .published
            .as_ref()
            .is_some_and(|published| published.pools == pools && published.filter == self.filter);
        let content = match self.content {
            Some(content) if same => content,
            _ => Content::of(&self.filter, &pools, &self.beside),
        };
        if same && self.content == Some(content) && last >= floor && !self.versions.moved(content, last) {
            return None;
        }
        let version = self.versions.give(content, last, floor, now_ms);
        self.content = Some(content);
        let snapshot = wire::Snapshot { format: 1, version, filter: self.filter.clone(), pools };
        self.published = Some(snapshot.clone());
        Some(snapshot)
    }
}

impl Registry {
    /// Everything that is wrong with the endpoints.
    #[must_use]
    pub fn endpoint_alarms(&self) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        for (id, endpoint) in &self.endpoints {
            let health = &endpoint.health;
            let down =
                (health.checked && !health.healthy()).then(|| health.last_error().unwrap_or("unhealthy").to_owned());
            let unhealthy = down.map(|why| (Code::Unhealthy, why));
            let silent = endpoint.signals.alarm.clone().map(|why| (Code::NoSignals, why));
            alarms.extend(unhealthy.into_iter().chain(endpoint.alarms()).chain(silent).map(|(code, message)| {
                let subject = Subject::Endpoint { id: id.clone(), pool: endpoint.pool.clone() };
                Alarm { code, subject, message }
            }));
        }
        alarms
    }
}

/// By hand, else measured, else by weight.
fn cap_of(endpoint: &Endpoint, base_cap: u32, weight: Weight) -> (u32, CapSource) {
    match (endpoint.written.max_in_flight, endpoint.measured.as_ref().map(Measured::cap)) {
        (Some(written), _) => (written, CapSource::Hand),
        (None, Some(measured)) => (measured, CapSource::Measured),
        (None, None) => (cap(base_cap, weight), CapSource::Weight),
    }
}

/// To three significant digits: the noise of a measurement is no news.
pub(super) fn rounded(speed_tps: f64) -> f64 {
    if !speed_tps.is_finite() || speed_tps <= 0.0 {
        return speed_tps;
    }
    let digits = 2 - speed_tps.log10().floor() as i32;
    if digits > 0 {
        let scale = 10f64.powi(digits);
        (speed_tps * scale).round() / scale
    } else {
        let step = 10f64.powi(-digits);
        (speed_tps / step).round() * step
    }
}

fn state(id: &str, endpoint: &Endpoint, members: &[(&str, &Endpoint)]) -> State {
    if endpoint.goes() {
        State::Draining
    } else if !endpoint.health.healthy() {
        State::Unhealthy
    } else if endpoint.under_burst() && has_stand_in(id, members) {
        State::Probing
    } else if is_new(id, endpoint, members) {
        State::New
    } else {
        State::Ready
    }
}

/// Never measured, and came when somebody else of the pool was: while somebody else is, it takes no traffic until it is measured.
/// Those who were there before anybody was measured have no newcomer among them: the first result must not close all others.
fn is_new(id: &str, endpoint: &Endpoint, members: &[(&str, &Endpoint)]) -> bool {
    endpoint.newcomer && !endpoint.registered && !endpoint.known() && others_known(id, members.iter().copied())
}

/// Whether somebody else of these, the members of a pool, is measured or pinned, and may take requests.
pub(super) fn others_known<'a>(id: &str, mut members: impl Iterator<Item = (&'a str, &'a Endpoint)>) -> bool {
    members.any(|(other, endpoint)| other != id && endpoint.known() && endpoint.available())
}

/// Whether somebody else can take the traffic meanwhile: seen to be healthy, not in doubt, and not new.
fn has_stand_in(id: &str, members: &[(&str, &Endpoint)]) -> bool {
    members.iter().any(|(other, endpoint)| {
        let sound = endpoint.health.is_sound() && endpoint.available();
        *other != id && sound && !endpoint.under_burst() && !is_new(other, endpoint, members)
    })
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn three_digits_are_kept() {
        for (exact, kept) in [(6_123.4, 6_120.0), (0.012_345, 0.012_3), (999.6, 1_000.0), (42.0, 42.0), (0.0, 0.0)] {
            assert_eq!(rounded(exact), kept, "{exact}");
        }
        assert!(rounded(f64::NAN).is_nan());
    }
}
