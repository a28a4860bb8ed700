//! What the API shows.

use serde::Serialize;
use utoipa::ToSchema;
use weighbridge_routing::weight::cap;

use crate::engine::Signals;
use crate::registry::{Endpoint, ProbeRecord, Registry, Verdict, WeightSource};
use crate::service::now_ms;

/// One endpoint.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndpointView {
    id: String,
    pool: String,
    /// `ip:port`
    address: String,
    node: String,
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
    drain: Option<DrainView>,
    max_in_flight: u32,
    /// Tokens
    context_window: Option<u32>,
    /// Tokens that the KV cache holds, where the engine tells.
    kv_tokens: Option<u64>,
    /// Another number means that the engine has restarted; 0 until that is known.
    epoch: u64,
    health: HealthView,
    signals: SignalsView,
    alarm: Option<String>,
    /// Probes, newest last; only where one endpoint is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<ProbeView>>,
}

#[derive(Debug, Serialize, ToSchema)]
struct PinView {
    weight: f64,
    reason: String,
    since: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct DrainView {
    reason: String,
    since: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct HealthView {
    healthy: bool,
    /// Whether there has been a check at all.
    checked: bool,
    last_error: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SignalsView {
    /// `vllm`, `sglang`, `llamacpp`, or nothing when it is none of them.
    brand: Option<String>,
    running: Option<u64>,
    waiting: Option<u64>,
    kv_usage: Option<f64>,
    age_ms: Option<u64>,
    error: Option<String>,
}

/// One probe.
#[derive(Debug, Serialize, ToSchema)]
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
            reused: record.reused,
            error: record.error.clone(),
        }
    }
}

impl From<&Signals> for SignalsView {
    fn from(signals: &Signals) -> Self {
        SignalsView {
            brand: signals.brand.map(|brand| word(&brand)),
            running: signals.running,
            waiting: signals.waiting,
            kv_usage: signals.kv_usage,
            age_ms: signals.at_ms.map(|at_ms| now_ms().saturating_sub(at_ms)),
            error: signals.error.clone(),
        }
    }
}

impl EndpointView {
    fn new(id: &str, endpoint: &Endpoint, verdict: Verdict, base_cap: u32) -> Self {
        EndpointView {
            id: id.to_owned(),
            pool: endpoint.pool.clone(),
            address: endpoint.address.to_string(),
            node: endpoint.written.node.clone(),
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
                .map(|drain| DrainView { reason: drain.reason.clone(), since: time(drain.at_ms) }),
            max_in_flight: cap(base_cap, verdict.weight),
            context_window: endpoint.context_window(),
            kv_tokens: endpoint.kv_tokens,
            epoch: endpoint.epoch.value,
            health: HealthView {
                healthy: endpoint.health.healthy,
                checked: endpoint.health.checked,
                last_error: endpoint.health.last_error.clone(),
            },
            signals: (&endpoint.signals).into(),
            alarm: endpoint.alarm.clone(),
            history: None,
        }
    }

    /// All endpoints, by id.
    pub(super) fn all(registry: &Registry) -> Vec<Self> {
        let verdicts = registry.verdicts();
        registry
            .endpoints()
            .iter()
            .filter_map(|(id, endpoint)| {
                let verdict = *verdicts.get(id.as_str())?;
                Some(Self::new(id, endpoint, verdict, base_cap(registry, &endpoint.pool)))
            })
            .collect()
    }

    /// One endpoint, without its history.
    pub(super) fn one(registry: &Registry, id: &str) -> Option<Self> {
        let endpoint = registry.get(id).ok()?;
        let verdict = *registry.verdicts().get(id)?;
        Some(Self::new(id, endpoint, verdict, base_cap(registry, &endpoint.pool)))
    }

    /// The same with its history.
    pub(super) fn with_history(mut self, registry: &Registry) -> Self {
        self.history = registry.get(&self.id).ok().map(|endpoint| endpoint.history.iter().map(Into::into).collect());
        self
    }
}

fn base_cap(registry: &Registry, pool: &str) -> u32 {
    let pool = registry.pools().iter().find(|known| known.wire.name == pool);
    pool.map_or(0, |pool| pool.wire.admission.base_cap)
}
