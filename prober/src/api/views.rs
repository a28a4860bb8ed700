//! What the API shows.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use weighbridge_routing::exchange::Averages;

use crate::caps::{Measured, Step, observed};
use crate::engine::Signals;
use crate::registry::{Endpoint, ProbeRecord, Registry, Verdict, WeightSource};
use crate::service::now_ms;

/// One endpoint.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct EndpointView {
    id: String,
    pool: String,
    /// `ip:port`
    address: String,
    node: String,
    /// It is spoken to over TLS.
    tls: bool,
    /// It asks for a key, and the prober has one.
    api_key: bool,
    launch_args: Option<String>,
    /// `ready`, `new`, `probing`, `draining` or `unhealthy`
    state: &'static str,
    weight: f64,
    /// `measured`, `pinned` or `default`
    weight_source: &'static str,
    /// Tokens per second of the warmed burst.
    throughput_tps: Option<f64>,
    /// Prompt tokens per second of a long prompt; nothing when the engine refused it, or it was not measured.
    prefill_tps: Option<f64>,
    /// RFC 3339
    measured_at: Option<String>,
    pin: Option<PinView>,
    /// An operator has taken it out of service.
    drain: Option<LeavingView>,
    /// It is going to be forgotten.
    removal: Option<LeavingView>,
    /// The most requests that the filters let it have at once.
    max_in_flight: u32,
    /// `hand`, `measured` or `weight`
    cap_source: &'static str,
    /// Tokens
    context_window: Option<u32>,
    /// Tokens that the KV cache holds, where the engine tells.
    kv_tokens: Option<u64>,
    /// Another number means that the engine has restarted; 0 until that is known.
    epoch: u64,
    health: HealthView,
    signals: SignalsView,
    alarm: Option<String>,
    /// Throughput over concurrency as the last sweep measured it; only where one endpoint is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    curve: Option<Vec<StepView>>,
    /// Where on it a measured cap begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    knee: Option<KneeView>,
    /// What serving says of the curve since.
    #[serde(skip_serializing_if = "Option::is_none")]
    observed: Option<Vec<PointView>>,
    /// Probes, newest last; only where one endpoint is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<ProbeView>>,
}

/// One step of a sweep.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct StepView {
    /// Requests at once.
    concurrency: u32,
    /// Completion tokens of all of them per second.
    throughput_tps: f64,
    /// Completion tokens of one of them per second of its own time; the median.
    per_request_tps: f64,
    /// Time to the first token; the median.
    ttft_ms: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct KneeView {
    /// Requests at once.
    concurrency: u32,
    /// What decided: `throughput` (nine tenths of the best are enough), `floor`, or `below_floor` (one request alone is too
    /// slow already).
    bound: String,
    /// The floor: `admission.min_tps` of the pool.
    min_tps: f64,
}

/// Windows of serving at about the same concurrency.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct PointView {
    /// Mean running count.
    concurrency: f64,
    /// Tokens per second, as the engine counts them.
    throughput_tps: f64,
    /// The same against the curve.
    ratio: f64,
    /// How many windows.
    windows: u64,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct PinView {
    weight: f64,
    reason: String,
    since: String,
}

/// An endpoint that takes no more requests.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct LeavingView {
    reason: String,
    /// RFC 3339
    since: String,
    /// When it was to be empty, RFC 3339
    deadline: Option<String>,
    /// `draining`, `drained` (no request is left there), or `overdue` (one may be, and the deadline has passed)
    state: String,
    /// Requests left there, as the Envoys report, else as the engine tells; nothing when nobody can tell.
    in_flight: Option<u64>,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct HealthView {
    healthy: bool,
    /// Whether there has been a check at all.
    checked: bool,
    /// Whether it answers health checks, whatever it generates.
    answers: bool,
    /// What the last check said when it failed, else why no token is to be expected.
    last_error: Option<String>,
    /// When it was last known to generate, RFC 3339
    last_token: Option<String>,
}

/// What the engine, exporters, Envoys and served requests tell. What is stale is missing.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct SignalsView {
    /// `vllm`, `sglang`, `llamacpp`, or nothing when it is none of them.
    brand: Option<String>,
    running: Option<u32>,
    waiting: Option<u32>,
    /// 0 to 1
    kv_usage: Option<f64>,
    /// 0 to 1, of a DCGM exporter
    gpu_usage: Option<f64>,
    /// Tokens generated since the engine started.
    generated_tokens: Option<u64>,
    /// Share of looked-up prompt tokens that its prefix cache had, since it started.
    prefix_hit_rate: Option<f64>,
    /// Requests that Envoys have in flight there, as they report.
    in_flight: u32,
    /// Requests that the engine has beyond those.
    outside: u32,
    averages: AveragesView,
    age_ms: Option<u64>,
    /// The engine's figures are older than three intervals, or there are none.
    stale: bool,
    /// Why the last scrape gave nothing.
    error: Option<String>,
    /// The engine tells nothing that can be used: no metrics page, or one of another brand.
    alarm: Option<String>,
    gpu_error: Option<String>,
}

/// Moving averages over the requests of all Envoys.
#[derive(Debug, Default, PartialEq, Serialize, ToSchema)]
pub(super) struct AveragesView {
    /// Time to the first token of streams, ms.
    ttft_ms: Option<f64>,
    /// From the decision to the end, ms.
    e2e_ms: Option<f64>,
    /// Tokens per second of one request.
    tps: Option<f64>,
    /// Share of requests that failed, 0 to 1.
    error_rate: Option<f64>,
}

/// One probe.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct ProbeView {
    at: String,
    /// `registration`, `interval` or `demand`
    kind: String,
    /// Tokens per second of the first burst, which does not count.
    warmup_tps: Option<f64>,
    /// Tokens per second of the second burst, which does.
    throughput_tps: Option<f64>,
    /// Prompt tokens per second of the long prompt.
    prefill_tps: Option<f64>,
    /// Why that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_error: Option<String>,
    /// Why the sweep of concurrency gave no curve.
    #[serde(skip_serializing_if = "Option::is_none")]
    sweep_error: Option<String>,
    /// A kept result spared the bursts.
    reused: bool,
    error: Option<String>,
}

fn time(ms: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms);
    humantime::format_rfc3339_millis(time).to_string()
}

/// The word that an enum is in JSON.
pub(crate) fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

impl From<&ProbeRecord> for ProbeView {
    fn from(record: &ProbeRecord) -> Self {
        ProbeView {
            at: time(record.at_ms),
            kind: word(&record.kind),
            warmup_tps: record.warmup_tps,
            throughput_tps: record.throughput_tps,
            prefill_tps: record.prefill_tps,
            prefill_error: record.prefill_error.clone(),
            sweep_error: record.sweep_error.clone(),
            reused: record.reused,
            error: record.error.clone(),
        }
    }
}

impl SignalsView {
    fn new(registry: &Registry, id: &str, endpoint: &Endpoint) -> Self {
        let now_ms = now_ms();
        let (signals, exchange) = (&endpoint.signals, &registry.exchange);
        let fresh = signals.fresh(now_ms, exchange.settings().stale_after_ms());
        let figures = registry.figures(id, endpoint, now_ms);
        let Averages { ttft_ms, e2e_ms, tps, error_rate } = exchange.averages(id, now_ms).unwrap_or_default();
        SignalsView {
            brand: signals.brand.map(|brand| word(&brand)),
            running: figures.running,
            waiting: figures.waiting,
            kv_usage: figures.kv_usage,
            gpu_usage: figures.gpu_usage,
            generated_tokens: fresh.and_then(|signals| signals.generated_tokens),
            prefix_hit_rate: fresh.and_then(Signals::hit_rate),
            in_flight: exchange.in_flight(id, now_ms),
            outside: exchange.outside(id, now_ms),
            averages: AveragesView { ttft_ms, e2e_ms, tps, error_rate },
            age_ms: signals.at_ms.map(|at_ms| now_ms.saturating_sub(at_ms)),
            stale: fresh.is_none(),
            error: signals.error.clone(),
            alarm: signals.alarm.clone(),
            gpu_error: registry.gpus.error(id, &endpoint.written.node).map(str::to_owned),
        }
    }
}

impl LeavingView {
    fn new(endpoint: &Endpoint, reason: &str, at_ms: u64, until_ms: Option<u64>) -> Self {
        let emptying = endpoint.emptying.unwrap_or_default();
        LeavingView {
            reason: reason.to_owned(),
            since: time(at_ms),
            deadline: until_ms.map(time),
            state: word(&emptying.progress(until_ms, now_ms())),
            in_flight: emptying.left,
        }
    }
}

impl From<&Step> for StepView {
    fn from(step: &Step) -> Self {
        let Step { concurrency, throughput_tps, per_request_tps, ttft_ms } = *step;
        StepView { concurrency, throughput_tps, per_request_tps, ttft_ms }
    }
}

impl From<&Measured> for KneeView {
    fn from(measured: &Measured) -> Self {
        let knee = measured.knee();
        KneeView { concurrency: knee.concurrency, bound: word(&knee.bound), min_tps: measured.min_tps() }
    }
}

impl From<observed::Point> for PointView {
    fn from(point: observed::Point) -> Self {
        let observed::Point { concurrency, throughput_tps, ratio, windows } = point;
        PointView { concurrency, throughput_tps, ratio, windows }
    }
}

impl EndpointView {
    fn new(registry: &Registry, id: &str, endpoint: &Endpoint, verdict: Verdict) -> Self {
        EndpointView {
            id: id.to_owned(),
            pool: endpoint.pool.clone(),
            address: endpoint.address.to_string(),
            node: endpoint.written.node.clone(),
            tls: endpoint.written.reach.tls.is_some(),
            api_key: endpoint.written.reach.api_key.is_some(),
            launch_args: endpoint.written.launch_args.clone(),
            state: verdict.state.as_str(),
            weight: verdict.weight.get(),
            weight_source: match verdict.source {
                WeightSource::Pinned => "pinned",
                WeightSource::Measured => "measured",
                WeightSource::Default => "default",
            },
            throughput_tps: endpoint.kept.as_ref().map(|kept| kept.measurement.throughput_tps),
            prefill_tps: endpoint.kept.as_ref().and_then(|kept| kept.measurement.prefill_tps),
            measured_at: endpoint.kept.as_ref().map(|kept| time(kept.measurement.measured_at_ms)),
            pin: endpoint.pin.as_ref().map(|pin| PinView {
                weight: pin.weight.get(),
                reason: pin.reason.clone(),
                since: time(pin.at_ms),
            }),
            drain: endpoint
                .drain
                .as_ref()
                .map(|drain| LeavingView::new(endpoint, &drain.reason, drain.at_ms, drain.until_ms)),
            removal: endpoint
                .removal
                .as_ref()
                .map(|removal| LeavingView::new(endpoint, removal.reason, removal.at_ms, Some(removal.until_ms))),
            max_in_flight: verdict.cap,
            cap_source: verdict.cap_source.as_str(),
            context_window: endpoint.context_window(),
            kv_tokens: endpoint.kv_tokens,
            epoch: endpoint.epoch.value,
            health: HealthView {
                healthy: endpoint.health.healthy(),
                checked: endpoint.health.checked,
                answers: endpoint.health.answers(),
                last_error: endpoint.health.last_error().map(str::to_owned),
                last_token: endpoint.health.tokens.proven_ms().map(time),
            },
            signals: SignalsView::new(registry, id, endpoint),
            alarm: endpoint.alarm_line(),
            curve: None,
            knee: None,
            observed: None,
            history: None,
        }
    }

    /// All endpoints, by id.
    pub(super) fn all(registry: &Registry, verdicts: &BTreeMap<&str, Verdict>) -> impl Iterator<Item = Self> {
        registry.endpoints().iter().filter_map(|(id, endpoint)| {
            let verdict = *verdicts.get(id.as_str())?;
            Some(Self::new(registry, id, endpoint, verdict))
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Requests that Envoys have in flight there, as they report.
    pub(super) fn in_flight(&self) -> u32 {
        self.signals.in_flight
    }

    /// Leaves out how old its figures are: that changes by itself.
    pub(super) fn forget_age(&mut self) {
        self.signals.age_ms = None;
    }

    /// One endpoint, without what only [`Self::in_full`] adds.
    pub(super) fn one(registry: &Registry, id: &str) -> Option<Self> {
        let endpoint = registry.get(id).ok()?;
        let verdict = *registry.verdicts().get(id)?;
        Some(Self::new(registry, id, endpoint, verdict))
    }

    /// The same with its history and its curve.
    pub(super) fn in_full(mut self, registry: &Registry) -> Self {
        let Ok(endpoint) = registry.get(&self.id) else { return self };
        self.history = Some(endpoint.history.iter().map(Into::into).collect());
        let curve = endpoint.kept.as_ref().and_then(|kept| kept.measurement.curve.as_ref());
        self.curve = curve.map(|curve| curve.steps().iter().map(Into::into).collect());
        self.knee = endpoint.measured.as_ref().map(Into::into);
        let observed = endpoint.measured.as_ref().map(Measured::observed);
        self.observed = observed.map(|observed| observed.points().into_iter().map(Into::into).collect());
        self
    }
}
