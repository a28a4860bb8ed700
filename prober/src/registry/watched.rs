//! What watching an endpoint tells: health checks, tokens, metrics, and what the engine says it is.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Registry;
use super::endpoint::{Kept, Measurement, Outcome, ProbeKind, ProbeRecord};
use super::epoch::Epoch;
use super::health::{CheckFailure, Checked};
use super::shared::done_elsewhere;
use super::tokens::Tried;
use crate::config;
use crate::engine::{Brand, EngineError, Signals};
use crate::exchange::outside::Reading;

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

/// What followed from what an engine says it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identified {
    /// Its epoch changed, and is to be stored.
    pub restarted: bool,
    /// The key of a result that is not true any more, and is to be forgotten.
    pub void: Option<String>,
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
    pub fn checked(
        &mut self,
        id: &str,
        result: Result<(), CheckFailure>,
        settings: &config::Health,
        now_ms: u64,
    ) -> Seen {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return Seen::default() };
        let before = endpoint.health.healthy();
        let Checked { answers_again, came_back } = endpoint.health.check(result, settings, now_ms);
        let restarted = came_back && endpoint.live(|epoch| epoch.came_back(now_ms), now_ms);
        if came_back || answers_again {
            // It may have been started anew with other arguments.
            endpoint.fingerprint = None;
        }
        let verdict = before != endpoint.health.healthy();
        Seen { verdict, publish: verdict || restarted, restarted, unidentified: endpoint.fingerprint.is_none() }
    }

    /// How long an engine may take for one token, when it is to be asked for one now; `None`: it is not.
    ///
    /// It is not while a burst runs or is about to, which tells the same; nor while it takes no requests or does not answer at
    /// all. Nor while Envoys have requests there and it does not count its tokens while it generates: then nobody could tell a long answer
    /// from none, and the filters judge what they have under way.
    #[must_use]
    pub fn token_due(&self, id: &str, settings: &config::Health, now_ms: u64) -> Option<Duration> {
        let (every, endpoint) = (settings.generate_every?, self.endpoints.get(id)?);
        let tokens = &endpoint.health.tokens;
        let failed = tokens.error().is_some();
        let serves = endpoint.health.checked && endpoint.health.answers() && !endpoint.goes();
        let burst = endpoint.under_burst() || (!endpoint.registered && !failed);
        let signals = endpoint.signals.fresh(now_ms, self.exchange.settings().stale_after_ms());
        let runs = signals.and_then(|signals| signals.requests()).unwrap_or_default() > 0;
        // The others count the tokens of a request when it ends.
        let counts = signals
            .is_some_and(|signals| signals.generated_tokens.is_some() && (signals.brand == Some(Brand::Vllm) || !runs));
        let blind = !failed && !counts && (runs || self.exchange.in_flight(id, now_ms) > 0);
        let due = serves && !burst && !blind && tokens.due(every, now_ms);
        due.then(|| tokens.patience(settings.generate_timeout))
    }

    /// What came of it; it was asked at `since_ms`.
    pub fn token_tried(
        &mut self,
        id: &str,
        tried: Tried,
        since_ms: u64,
        settings: &config::Health,
        now_ms: u64,
    ) -> Seen {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return Seen::default() };
        *self.token_checks.entry((endpoint.pool.clone(), tried.as_str())).or_default() += 1;
        let before = endpoint.health.healthy();
        let rule = (settings.path.as_str(), settings.unhealthy_after);
        endpoint.health.tokens.tried(tried, since_ms, rule, now_ms);
        let verdict = before != endpoint.health.healthy();
        Seen { verdict, publish: verdict, restarted: false, unidentified: endpoint.fingerprint.is_none() }
    }

    /// How many requests for one token ended how, since the prober started, by pool.
    #[must_use]
    pub fn token_checks(&self) -> &BTreeMap<(String, &'static str), u64> {
        &self.token_checks
    }

    /// One reading of its metrics. The old figures stay when there are no new ones: stale is not full.
    pub fn scraped(&mut self, id: &str, result: Result<Signals, EngineError>, now_ms: u64) -> Seen {
        let Some(probe_requests) = self.endpoints.get(id).map(|endpoint| self.probe_at(id, endpoint.address)) else {
            return Seen::default();
        };
        let Some(endpoint) = self.endpoints.get_mut(id) else { return Seen::default() };
        let before = std::mem::take(&mut endpoint.signals);
        let was_healthy = endpoint.health.healthy();
        let (mut restarted, mut resized, mut read) = (false, false, false);
        endpoint.signals = match result {
            Ok(signals) => {
                let fell = before.generated_tokens.zip(signals.generated_tokens).is_some_and(|(was, is)| is < was);
                let started_s = endpoint.plausible_start(signals.started_s);
                let happens = |epoch: &mut Epoch| {
                    epoch.told(started_s);
                    if fell {
                        epoch.came_back(now_ms);
                    }
                };
                restarted = endpoint.live(happens, now_ms);
                let reconfigured = before.cache_config != signals.cache_config;
                if reconfigured && !before.cache_config.is_empty() && !signals.cache_config.is_empty() {
                    endpoint.fingerprint = None;
                }
                endpoint.health.tokens.counted(signals.generated_tokens, now_ms);
                match (signals.requests(), probe_requests) {
                    // A probe's own requests are nobody else's: an endpoint without a stand-in would be full of them.
                    (Some(_), Some(own)) => self.exchange.probed(id, own.into()),
                    (Some(requests), None) => {
                        let repeats = before.at_ms.is_some() && signals.may_be_as_old_as(&before);
                        self.exchange.scraped(id, Reading { requests, repeats }, now_ms);
                    }
                    (None, _) => {}
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
        let moved = read && endpoint.observe(probe_requests.is_some());
        let unidentified = endpoint.fingerprint.is_none();
        let verdict = was_healthy != endpoint.health.healthy();
        Seen { verdict, publish: verdict || restarted || resized || moved, restarted, unidentified }
    }

    /// The engine was asked what it is, and did not answer.
    pub fn unidentified(&mut self, id: &str, error: &EngineError) {
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            endpoint.unidentified = Some(error.to_string());
        }
    }

    /// The engine has said what it is. A kept result for the same (node, model, launch arguments) that is younger than
    /// `keep_ms`, or that another prober has measured, spares the registration burst, also after a restart; other arguments
    /// void what was measured before. An engine that says something else than last time is another one, even when the
    /// arguments that are written for it are the same.
    pub fn identified(&mut self, id: &str, identity: Identity, keep_ms: u64, now_ms: u64) -> Identified {
        let follows = self.follows();
        let mut told = Identified::default();
        let Some(pool) = self.endpoints.get(id).map(|endpoint| endpoint.pool.clone()) else { return told };
        let (model, others_known) = (self.served_model(&pool).to_owned(), self.others_known(id, &pool));
        let Some(endpoint) = self.endpoints.get_mut(id) else { return told };
        endpoint.unidentified = None;
        endpoint.discovered_window = identity.window;
        endpoint.kv_tokens = endpoint.signals.kv_tokens.or(identity.kv_tokens).or(endpoint.kv_tokens);
        let before = endpoint.said.replace(identity.fingerprint.clone());
        let another = before.is_some_and(|before| before != identity.fingerprint);
        let first = endpoint.fingerprint.replace(identity.fingerprint).is_none();
        if first || another {
            endpoint.newcomer = others_known;
        }
        let reborn = std::mem::take(&mut endpoint.reborn);
        let before = endpoint.epoch;
        if another && !reborn {
            endpoint.epoch.replaced();
        }
        told.restarted = endpoint.epoch != before;
        let Some(key) = endpoint.key(&model) else { return told };
        let young = |result: &Measurement| now_ms.saturating_sub(result.measured_at_ms) < keep_ms;
        let same = endpoint.kept.as_ref().filter(|kept| kept.key == key);
        let holds = match same {
            // It has started anew: what was measured counts as it would for one that registers.
            Some(kept) => !another && (!reborn || follows || young(&kept.measurement)),
            None => endpoint.kept.is_none() && !another && !reborn,
        };
        if endpoint.registered && holds {
            return told;
        }
        // The one that measures says what is void; what it has measured since may be here before this prober has asked.
        if another && same.is_some() && !follows {
            // Measured under the arguments that are written, of which some are not true any more.
            self.memory.results.remove(&key);
            self.memory.last.remove(id);
            told.void = Some(key.clone());
        }
        let result = self.memory.results.get(&key).cloned();
        if another || same.is_none() {
            endpoint.keep(None);
        }
        endpoint.registered = false;
        endpoint.not_before_ms = 0;
        let sizing = endpoint.sizing;
        let counts = |result: &Measurement| follows || (young(result) && result.is_complete(sizing));
        if let Some(measurement) = result.filter(counts) {
            endpoint.registered = true;
            endpoint.alarm = None;
            endpoint.push(ProbeRecord {
                throughput_tps: Some(measurement.throughput_tps),
                prefill_tps: measurement.prefill_tps,
                sweep_error: measurement.sweep_error.clone(),
                reused: true,
                ..ProbeRecord::empty(ProbeKind::Registration, now_ms)
            });
            endpoint.keep(Some(Kept { key, measurement }));
            self.count(pool, ProbeKind::Registration, Outcome::Reused);
        } else if follows && let Some(history) = self.memory.history.get(id) {
            done_elsewhere(endpoint, history, Some(&key));
        }
        told
    }
}
