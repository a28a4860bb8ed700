//! One endpoint: what is written of it, what operators want of it, what has been measured and seen.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weighbridge_routing::snapshot::wire::By;
use weighbridge_routing::weight::Weight;

use super::burst::Burst;
use super::drain::{Drain, Emptying, Progress, Removal};
use super::epoch::Epoch;
use super::health::Health;
use super::verdicts::rounded;
use crate::alarms::Code;
use crate::caps::{Curve, Measured, Mode, Reading, Sizing};
use crate::config;
use crate::engine::Signals;

/// Probe records kept per endpoint.
const HISTORY: usize = 20;
/// An earlier start that so many scrapes in a row tell of is the engine's: nobody else answers in turns with it.
const EARLIER_STARTS: u32 = 20;
/// After a probe that failed, the next try comes this much later.
const RETRY_MS: u64 = 60_000;

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

/// The throughput of a warmed burst, and what was measured after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Completion tokens per second.
    pub throughput_tps: f64,
    /// Prompt tokens per second, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tps: Option<f64>,
    /// Throughput over concurrency, where it was swept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<Curve>,
    /// Why the last sweep gave none; a curve beside it is from one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep_error: Option<String>,
    /// When.
    pub measured_at_ms: u64,
}

impl Measurement {
    /// Whether it has everything that a pool with this sizing wants to know.
    pub(super) fn is_complete(&self, sizing: Sizing) -> bool {
        !sizing.sweeps() || self.curve.is_some() || self.sweep_error.is_some()
    }
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
    /// Which node, model and launch arguments; `None` while the engine is asked (again) what it is.
    pub key: Option<String>,
}

impl Subject {
    /// What it is, as far as two looks at it tell; `None` when they contradict each other.
    pub(super) fn agreed(&self, later: &Subject) -> Option<Subject> {
        let contradict = self.key.as_ref().zip(later.key.as_ref()).is_some_and(|(before, now)| before != now);
        let same = self.address == later.address && !contradict;
        same.then(|| Subject { address: self.address, key: self.key.clone().or_else(|| later.key.clone()) })
    }
}

/// Why a probe ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeRecord {
    /// When it ended.
    pub at_ms: u64,
    /// Why it ran.
    pub kind: ProbeKind,
    /// Tokens per second of the first burst, which does not count.
    pub warmup_tps: Option<f64>,
    /// Tokens per second of the second burst, which does.
    pub throughput_tps: Option<f64>,
    /// Prompt tokens per second of the long prompt.
    pub prefill_tps: Option<f64>,
    /// Why that is unknown; the rest of the result counts all the same.
    pub prefill_error: Option<String>,
    /// Why a sweep of concurrency gave no curve; the rest of the result counts all the same. A curve itself stands with the result that
    /// is in force, and in no record: twenty of them per endpoint would be stored, and none read.
    pub sweep_error: Option<String>,
    /// A kept result spared the bursts.
    #[serde(default)]
    pub reused: bool,
    /// Why there is no result.
    pub error: Option<String>,
}

impl ProbeRecord {
    /// A record of a probe that has found nothing yet.
    #[must_use]
    pub fn empty(kind: ProbeKind, at_ms: u64) -> Self {
        ProbeRecord {
            at_ms,
            kind,
            warmup_tps: None,
            throughput_tps: None,
            prefill_tps: None,
            prefill_error: None,
            sweep_error: None,
            reused: false,
            error: None,
        }
    }

    /// What was found does not count, and why; a failure keeps its own reason.
    pub(crate) fn spoil(&mut self, why: &str) {
        if self.error.is_none() {
            *self = ProbeRecord { error: Some(why.to_owned()), ..Self::empty(self.kind, self.at_ms) };
        }
    }
}

/// The alarm of an endpoint whose last probe failed.
pub(super) fn failed(why: &str) -> String {
    format!("the last probe failed: {why}")
}

/// The probes of an endpoint, as the store keeps them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct History {
    /// Which (node, model, launch arguments) the newest one measured, or was to measure.
    pub key: Option<String>,
    /// Newest last.
    pub records: VecDeque<ProbeRecord>,
}

/// What became of a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct Probed {
    /// As it stands in the history.
    pub record: ProbeRecord,
    /// What is in force and to be stored; `None`: it failed.
    pub kept: Option<Kept>,
    /// The probes of the endpoint, to be stored.
    pub history: History,
}

/// How a probe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With a result.
    Measured,
    /// A kept result spared it.
    Reused,
    /// Somebody else's requests came in between.
    Disturbed,
    /// Without a result.
    Failed,
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
    /// To be forgotten when it is empty, and at its deadline at the latest.
    pub removal: Option<Removal>,
    /// How far it is on its way out, for either reason.
    pub emptying: Option<Emptying>,
    /// The measurement in force, with its key.
    pub kept: Option<Kept>,
    /// What its pool does with its curve.
    pub sizing: Sizing,
    /// The cap that was measured, where the pool wants that.
    pub measured: Option<Measured>,
    /// Whether the registration probe is done (or was spared).
    pub registered: bool,
    /// Whether somebody else of its pool was measured when it came, or was seen for the first time: then it takes no traffic before
    /// it is measured, too. One that was there before anybody was measured has served all along, and goes on.
    pub(super) newcomer: bool,
    /// A burst that runs or is about to.
    pub burst: Option<Burst>,
    /// The same by another prober.
    pub(super) probing_elsewhere: bool,
    /// No probe before this time.
    pub not_before_ms: u64,
    /// Health.
    pub health: Health,
    /// What the engine says of itself.
    pub signals: Signals,
    /// Tokens that its KV cache holds, as the engine last told.
    pub kv_tokens: Option<u64>,
    /// Which life of its engine this is.
    pub epoch: Epoch,
    /// The context window that the engine tells.
    pub discovered_window: Option<u32>,
    /// The launch arguments, or what the engine tells that stands for them; `None` until it has been asked.
    pub fingerprint: Option<String>,
    /// What it last said when it was asked that.
    pub(super) said: Option<String>,
    /// Why it did not say it when it was asked last.
    pub(super) unidentified: Option<String>,
    /// Scrapes in a row that told of an earlier start than the one that is known.
    pub(super) earlier_starts: u32,
    /// Its engine has started anew since it was last asked what it is.
    pub(super) reborn: bool,
    /// What is wrong with its last probe, for people.
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

    /// Whether it is to be measured again as soon as it is idle: what is known is older than `interval_ms`, or is less than its
    /// pool wants, as what another prober has measured for a pool that had other settings.
    pub fn is_due(&self, interval_ms: u64, now_ms: u64) -> bool {
        self.kept.as_ref().is_none_or(|Kept { measurement, .. }| {
            let old = now_ms.saturating_sub(measurement.measured_at_ms) >= interval_ms;
            old || !measurement.is_complete(self.sizing)
        })
    }

    /// Puts a measurement in force, and the cap that follows from it. What serving has said of the same curve stays.
    pub(super) fn keep(&mut self, kept: Option<Kept>) {
        let curve = kept.as_ref().and_then(|kept| kept.measurement.curve.as_ref());
        let curve = curve.filter(|_| self.sizing.mode == Mode::Measured);
        if self.measured.as_ref().map(Measured::curve) != curve {
            self.measured = curve.map(|curve| Measured::new(curve.clone(), self.sizing.min_tps));
        }
        self.kept = kept;
    }

    /// Its curve in shares of what it has at the concurrency of a burst, which is what its weight stands for; for a pool that compares by
    /// it, else nothing. By the curve itself, which may be older than the weight.
    pub(super) fn shares(&self, burst: u32) -> Vec<(u32, f64)> {
        let curve = self.kept.as_ref().and_then(|kept| kept.measurement.curve.as_ref());
        let Some(curve) = curve.filter(|_| self.sizing.by == By::Curve) else { return Vec::new() };
        let whole_tps = curve.throughput_at(burst.into());
        curve.steps().iter().map(|step| (step.concurrency, rounded(step.throughput_tps / whole_tps))).collect()
    }

    /// What its signals say about its curve; `true` when its cap has moved.
    pub(super) fn observe(&mut self, under_burst: bool) -> bool {
        let Some(measured) = &mut self.measured else { return false };
        let Signals { running, generated_tokens, at_ms, .. } = self.signals;
        match (running, generated_tokens, at_ms) {
            // A burst of ours says again what the sweep has said.
            (Some(running), Some(tokens), Some(at_ms)) if !under_burst => {
                measured.take(Reading { at_ms, running, tokens })
            }
            _ => {
                measured.interrupt();
                false
            }
        }
    }

    /// What is wrong with how it was measured or leaves, for people; its health and its signals say for themselves.
    #[must_use]
    pub fn alarms(&self) -> Vec<(Code, String)> {
        let swept = self.kept.as_ref().filter(|_| self.sizing.sweeps()).map(|kept| &kept.measurement);
        let sweep = swept.and_then(|swept| Some((swept, swept.sweep_error.as_deref()?))).map(|(swept, why)| {
            let now = match (self.sizing.mode, swept.curve.is_some()) {
                (Mode::Measured, true) => "the cap stays as measured before",
                (Mode::Measured, false) => "the cap follows the weight",
                (Mode::Weight, true) => "it is compared by the curve before",
                (Mode::Weight, false) => "it is compared by the curve of the endpoint nearest in weight",
            };
            format!("the last sweep of concurrency failed: {why}; {now}")
        });
        let floor = self.measured.as_ref().and_then(Measured::alarm);
        let late = self.emptying.filter(|emptying| emptying.said == Some(Progress::Overdue));
        let late = late.map(|emptying| match emptying.left {
            Some(left) => format!("it was to be empty by now, and has {left} requests left"),
            None => "it was to be empty by now, and nobody tells what it has left".into(),
        });
        // That nobody is there is another alarm.
        let unidentified = self.unidentified.as_ref().filter(|_| self.health.healthy());
        let unidentified =
            unidentified.map(|why| format!("it cannot be measured now: the engine does not say what it runs: {why}"));
        [
            (Code::ProbeFailed, self.alarm.clone().or(unidentified)),
            (Code::SweepFailed, sweep),
            (Code::BelowFloor, floor),
            (Code::DrainOverdue, late),
        ]
        .into_iter()
        .filter_map(|(code, message)| Some((code, message?)))
        .collect()
    }

    /// The same in one line.
    #[must_use]
    pub fn alarm_line(&self) -> Option<String> {
        let all: Vec<String> = self.alarms().into_iter().map(|(_, message)| message).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// A burst runs or is about to, whoever sends it.
    #[must_use]
    pub fn under_burst(&self) -> bool {
        self.burst.is_some() || self.probing_elsewhere
    }

    /// The most requests that the probe at hand has had at once; of another prober's burst no more is known than what these settings,
    /// (concurrency, the most of a sweep), let it have.
    pub(super) fn probe_requests(&self, (concurrency, sweep_max): (u32, u32)) -> u32 {
        match &self.burst {
            Some(burst) => burst.most,
            None if self.sizing.sweeps() => concurrency.max(sweep_max),
            None => concurrency,
        }
    }

    pub(super) fn known(&self) -> bool {
        self.kept.is_some() || self.pin.is_some()
    }

    /// Healthy, and nobody wants it gone.
    pub(super) fn available(&self) -> bool {
        self.health.healthy() && !self.goes()
    }

    /// It is to take no more requests.
    #[must_use]
    pub fn goes(&self) -> bool {
        self.drain.is_some() || self.removal.is_some()
    }

    /// An operator's drain begins, or goes on with another reason and deadline, or ends.
    pub fn set_drain(&mut self, drain: Option<Drain>) {
        self.drain = drain;
        if !self.goes() {
            self.emptying = None;
        }
    }

    /// It is to be forgotten, if it is not already. A deadline that its drain has holds for that, too.
    pub fn remove(&mut self, reason: &'static str, deadline: Duration, now_ms: u64) {
        let drained_until_ms = self.drain.as_ref().and_then(|drain| drain.until_ms);
        let until_ms = drained_until_ms.unwrap_or_else(|| now_ms.saturating_add(deadline.as_millis() as u64));
        self.removal.get_or_insert(Removal { reason, at_ms: now_ms, until_ms });
    }

    /// It is not to be forgotten after all.
    pub(super) fn stay(&mut self) {
        self.removal = None;
        if !self.goes() {
            self.emptying = None;
        }
    }

    /// Lets something happen to its engine's epoch. Whether that made it another one: then it has to be asked again what
    /// it is, and what was known of its tokens is of another life.
    pub(super) fn live(&mut self, happens: impl FnOnce(&mut Epoch), now_ms: u64) -> bool {
        let before = self.epoch;
        happens(&mut self.epoch);
        let restarted = self.epoch != before;
        if restarted {
            self.fingerprint = None;
            self.reborn = true;
            self.health.tokens.restarted(now_ms);
        }
        restarted
    }

    /// When its engine has started, by what it tells now. A process that started before the one that is known is another one behind the same
    /// address, which answers in turns with it (or a clock was set back): as long as both do, it is the younger one. Else
    /// each scrape would be a restart, and each restart a snapshot.
    pub(super) fn plausible_start(&mut self, told_s: Option<f64>) -> Option<f64> {
        self.earlier_starts = if self.epoch.is_after(told_s) { self.earlier_starts.saturating_add(1) } else { 0 };
        if (1..EARLIER_STARTS).contains(&self.earlier_starts) { self.epoch.started_s() } else { told_s }
    }

    /// Adds a probe to the history.
    pub(super) fn push(&mut self, record: ProbeRecord) {
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(record);
    }

    /// No probe before some time from now on.
    pub fn back_off(&mut self, now_ms: u64) {
        self.not_before_ms = now_ms.saturating_add(RETRY_MS);
    }
}
