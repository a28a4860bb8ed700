//! What watching an endpoint tells: health checks, metrics, and what the engine says it is.

use super::endpoint::{Kept, Measurement, Outcome, ProbeKind, ProbeRecord};
use super::epoch::Epoch;
use super::shared::done_elsewhere;
use super::{Endpoint, Registry};
use crate::config;
use crate::engine::{EngineError, Loss, Signals};

/// A health check that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckFailure {
    /// What went wrong, for people.
    pub message: String,
    /// What that tells of the process.
    pub loss: Loss,
}

impl From<EngineError> for CheckFailure {
    fn from(error: EngineError) -> Self {
        CheckFailure { loss: error.loss(), message: error.to_string() }
    }
}

/// What followed from a check or a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// The verdict on its health changed.
    pub verdict: bool,
    /// The snapshot depends on something that changed.
    pub publish: bool,
    /// Its epoch changed, and is to be stored.
    pub restarted: bool,
    /// It has to be asked what it is.
    pub unidentified: bool,
}

/// What an engine is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Stands for the launch arguments where those are not written.
    pub fingerprint: String,
    /// Context window in tokens.
    pub window: Option<u32>,
    /// Tokens that its KV cache holds, where its metrics do not tell.
    pub kv_tokens: Option<u64>,
}

impl Registry {
    /// One health check.
    pub fn checked(&mut self, id: &str, result: Result<(), CheckFailure>, after: config::Health, now_ms: u64) -> Seen {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return Seen::default() };
        let health = &mut endpoint.health;
        health.checked = true;
        let ok = result.is_ok();
        let failure = result.err();
        health.loss = health.loss.max(failure.as_ref().map_or(Loss::None, |failure| failure.loss));
        health.last_error = failure.map(|failure| failure.message);
        let verdict = if ok == health.healthy {
            health.streak = 0;
            false
        } else {
            health.streak += 1;
            health.streak >= if ok { after.healthy_after } else { after.unhealthy_after }
        };
        if verdict {
            health.healthy = ok;
            health.streak = 0;
        }
        let mut restarted = false;
        if ok && health.healthy {
            let back = match std::mem::take(&mut health.loss) {
                Loss::Certain => true,
                Loss::Suspected => verdict,
                Loss::None => false,
            };
            if back {
                restarted = live(endpoint, |epoch| epoch.came_back(now_ms));
            }
            if back || verdict {
                // It may have been started anew with other arguments.
                endpoint.fingerprint = None;
            }
        }
        Seen { verdict, publish: verdict || restarted, restarted, unidentified: endpoint.fingerprint.is_none() }
    }

    /// One reading of its metrics. The old figures stay when there are no new ones: stale is not full.
    pub fn scraped(&mut self, id: &str, result: Result<Signals, EngineError>, now_ms: u64) -> Seen {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return Seen::default() };
        let before = std::mem::take(&mut endpoint.signals);
        let (mut restarted, mut resized, mut read) = (false, false, false);
        endpoint.signals = match result {
            Ok(signals) => {
                restarted = live(endpoint, |epoch| epoch.told(signals.started_s));
                if restarted {
                    endpoint.fingerprint = None;
                }
                if let Some(requests) = signals.requests() {
                    self.exchange.scraped(id, requests, now_ms);
                }
                resized = signals.kv_tokens.is_some() && signals.kv_tokens != endpoint.kv_tokens;
                endpoint.kv_tokens = signals.kv_tokens.or(endpoint.kv_tokens);
                read = true;
                Signals { at_ms: Some(now_ms), ..signals }
            }
            // There is no such page: what was known is of another life of the engine.
            Err(error @ EngineError::Status { .. }) => {
                let alarm = Some(format!("the engine has no metrics: {error}"));
                Signals { error: Some(error.to_string()), alarm, ..Signals::default() }
            }
            Err(error) => Signals { error: Some(error.to_string()), ..before },
        };
        let moved = read && endpoint.observe();
        let unidentified = endpoint.fingerprint.is_none();
        Seen { verdict: false, publish: restarted || resized || moved, restarted, unidentified }
    }

    /// The engine has said what it is. A kept result for the same (node, model, launch arguments) that is younger than
    /// `keep_ms`, or that another prober has measured, spares the registration burst; other arguments void what was
    /// measured before.
    pub fn identified(&mut self, id: &str, identity: Identity, keep_ms: u64, now_ms: u64) {
        let follows = self.follows();
        let Some(model) = self.endpoints.get(id).map(|endpoint| self.served_model(&endpoint.pool).to_owned()) else {
            return;
        };
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        endpoint.discovered_window = identity.window;
        endpoint.kv_tokens = endpoint.signals.kv_tokens.or(identity.kv_tokens).or(endpoint.kv_tokens);
        endpoint.fingerprint = Some(identity.fingerprint);
        let Some(key) = endpoint.key(&model) else { return };
        if endpoint.registered && endpoint.kept.as_ref().is_none_or(|kept| kept.key == key) {
            return;
        }
        let result = self.memory.results.get(&key).cloned();
        if endpoint.kept.as_ref().is_some_and(|kept| kept.key != key) {
            endpoint.keep(None);
        }
        endpoint.registered = false;
        endpoint.not_before_ms = 0;
        let young = |result: &Measurement| now_ms.saturating_sub(result.measured_at_ms) < keep_ms;
        let sizing = endpoint.sizing;
        let counts = |result: &Measurement| follows || (young(result) && result.is_complete(sizing));
        if let Some(measurement) = result.filter(counts) {
            endpoint.registered = true;
            endpoint.alarm = None;
            endpoint.push(ProbeRecord {
                throughput_tps: Some(measurement.throughput_tps),
                prefill_tps: measurement.prefill_tps,
                curve: measurement.curve.clone(),
                sweep_error: measurement.sweep_error.clone(),
                reused: true,
                ..ProbeRecord::empty(ProbeKind::Registration, now_ms)
            });
            endpoint.keep(Some(Kept { key, measurement }));
            let pool = endpoint.pool.clone();
            self.count(pool, ProbeKind::Registration, Outcome::Reused);
        } else if follows && let Some(history) = self.memory.history.get(id) {
            done_elsewhere(endpoint, history, Some(&key));
        }
    }
}

/// Lets something happen to an endpoint's epoch; whether that made it another one for the store.
fn live(endpoint: &mut Endpoint, happens: impl FnOnce(&mut Epoch)) -> bool {
    let before = endpoint.epoch;
    happens(&mut endpoint.epoch);
    endpoint.epoch != before
}
