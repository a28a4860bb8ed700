//! `/v1/fleet`: everything that people look at, in one document, and `/v1/alarms`.
//!
//! The document is the same for everybody but for its first field, which says how the request was let in; so it is made once for
//! all streams of `/v1/events` ([`crate::live`]), and each puts that field in front.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;
use weighbridge_xds::EnvoyStatus;

use super::auth::Admitted;
use super::status::Readiness;
use super::views::{EndpointView, word};
use crate::alarms::{Alarm, Subject};
use crate::config;
use crate::exchange::Shunned;
use crate::live::Document;
use crate::probe::prefill_tokens;
use crate::registry::{Burst, Endpoint, Origin, PoolLoad, Registry, Work};
use crate::service::{Service, now_ms};

/// The whole state, for people.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Fleet {
    /// When this was so, in Unix ms.
    now_ms: u64,
    /// The same by the clock that is never set back.
    #[serde(skip)]
    read_at: Option<Instant>,
    /// The snapshot's version.
    version: u64,
    /// As `/readyz` says.
    ready: bool,
    /// When the prober started, in Unix ms.
    started_ms: u64,
    prober_version: &'static str,
    /// This prober is the one that measures.
    leads: bool,
    pools: Vec<PoolView>,
    endpoints: Vec<FleetEndpoint>,
    #[schema(value_type = Vec<Object>)]
    envoys: Vec<EnvoyStatus>,
    alarms: Vec<AlarmView>,
}

/// One pool.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct PoolView {
    name: String,
    /// What clients ask for.
    models: Vec<String>,
    /// What the engines call it.
    served_model: String,
    policy: String,
    /// How many endpoints are compared: a number or `all`.
    choices: String,
    /// Tokens per second.
    median_tps: Option<f64>,
    /// Sum of the caps of the endpoints that take traffic.
    capacity: u64,
    /// Free slots of them; nothing where nobody tells.
    headroom: Option<u64>,
    /// Requests that the Envoys have in flight there.
    in_flight: u64,
    /// Requests in the Envoys' queues.
    waiting: u64,
    /// The longest that a request waits, ms.
    max_wait_ms: u32,
    /// The most requests that wait at an Envoy at a time.
    queue_limit: u32,
    /// Pools that take what this one would refuse, in order.
    spill_to: Vec<String>,
}

/// One endpoint: as `GET /v1/endpoints` shows it, and what only people look at.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct FleetEndpoint {
    #[serde(flatten)]
    view: EndpointView,
    /// Requests that the Envoys have in flight there; nothing when none reports.
    in_flight: Option<u32>,
    /// `file` (cannot be removed by DELETE) or `api`
    origin: &'static str,
    /// Envoys that have it ejected now: failures of its own took it out there.
    ejected: u32,
    /// Envoys that leave it alone for a moment, since it has pushed back.
    cooling_down: u32,
    /// A burst that runs or is about to.
    burst: Option<BurstView>,
    /// A probe on demand waits.
    asked: bool,
}

/// How far a burst is. Of another prober's this one knows only that it has begun: its phase stays `waiting`.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct BurstView {
    /// `registration`, `demand` or `interval`
    kind: String,
    /// `waiting`, `warmup`, `settling`, `kept`, `prefill` or `sweep`
    phase: &'static str,
    /// Unix ms
    begun_ms: u64,
    /// Unix ms
    phase_begun_ms: u64,
    /// Requests of this phase that are done.
    done: u32,
    /// How many it has.
    of: u32,
    /// How long this phase takes by the last measurement, or by the warm-up.
    expected_ms: Option<u64>,
    warmup_tps: Option<f64>,
    kept_tps: Option<f64>,
    /// It waits for nothing.
    forced: bool,
    /// Another prober runs it.
    elsewhere: bool,
}

/// One thing that is wrong.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct AlarmView {
    /// docs/alarms.md has an entry for each.
    code: &'static str,
    subject: SubjectView,
    message: String,
    /// Since when, in Unix ms.
    since_ms: Option<u64>,
}

/// Whom an alarm is about.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum SubjectView {
    Prober,
    Endpoint { id: String, pool: String },
}

impl From<(Alarm, u64)> for AlarmView {
    fn from((Alarm { code, subject, message }, since_ms): (Alarm, u64)) -> Self {
        let subject = match subject {
            Subject::Prober => SubjectView::Prober,
            Subject::Endpoint { id, pool } => SubjectView::Endpoint { id, pool },
        };
        AlarmView { code: code.as_str(), subject, message, since_ms: Some(since_ms) }
    }
}

impl PoolView {
    fn new(pool: &config::Pool, median_tps: Option<f64>, load: PoolLoad) -> Self {
        let (policy, admission) = (&pool.wire.policy, &pool.wire.admission);
        PoolView {
            name: pool.wire.name.clone(),
            models: pool.wire.models.clone(),
            served_model: pool.served_model.clone(),
            policy: policy.name.clone(),
            choices: policy.choices.to_string(),
            median_tps,
            capacity: load.capacity,
            headroom: load.headroom,
            in_flight: load.in_flight,
            waiting: load.waiting,
            max_wait_ms: admission.max_wait_ms,
            queue_limit: admission.queue,
            spill_to: admission.spill_to.iter().cloned().collect(),
        }
    }
}

/// What the Envoys say of an endpoint.
struct Seen {
    /// Any of them reports.
    reporting: bool,
    shunned: Shunned,
}

impl FleetEndpoint {
    fn new(view: EndpointView, endpoint: &Endpoint, burst: Option<BurstView>, seen: Seen, asked: bool) -> Self {
        let origin = match endpoint.origin {
            Origin::File(_) => "file",
            Origin::Api => "api",
        };
        let in_flight = seen.reporting.then_some(view.in_flight());
        let Shunned { ejected, cooling_down } = seen.shunned;
        FleetEndpoint { in_flight, origin, ejected, cooling_down, burst, asked, view }
    }
}

impl BurstView {
    fn new(burst: Burst, elsewhere: bool, endpoint: &Endpoint, probe: &config::Probe) -> Self {
        let work = Work {
            burst_tokens: u64::from(probe.concurrency) * u64::from(probe.tokens),
            prefill_tokens: prefill_tokens(probe, endpoint.context_window()).into(),
        };
        let expected_ms = burst.expected_ms(work, endpoint.kept.as_ref().map(|kept| &kept.measurement));
        let Burst { kind, forced, begun_ms, phase, phase_begun_ms, done, of, most: _, warmup_tps, kept_tps } = burst;
        BurstView {
            kind: word(&kind),
            phase: phase.as_str(),
            begun_ms,
            phase_begun_ms,
            done,
            of,
            expected_ms,
            warmup_tps,
            kept_tps,
            forced,
            elsewhere,
        }
    }
}

impl Fleet {
    /// As it is now. Linear in the endpoints, times the Envoys that report.
    pub(crate) fn of(service: &Service) -> Self {
        let (now_ms, read_at) = (now_ms(), Instant::now());
        let asked = service.asked();
        let alarms = service.alarms().into_iter().map(Into::into).collect();
        let (version, pools, endpoints) = service.read(|registry: &Registry| {
            let verdicts = registry.verdicts();
            let loads = registry.pool_loads(&verdicts, now_ms);
            let published = registry.published();
            let median = |name: &str| published?.pools.iter().find(|pool| pool.name == name)?.median_tps;
            let pools = registry.pools().iter().map(|pool| {
                let name = pool.wire.name.as_str();
                PoolView::new(pool, median(name), loads.get(name).copied().unwrap_or_default())
            });
            let reporting = registry.exchange.envoys(now_ms) > 0;
            let endpoints = EndpointView::all(registry, &verdicts).filter_map(|view| {
                let endpoint = registry.get(view.id()).ok()?;
                let asked = asked.contains(view.id());
                let elsewhere = endpoint.burst.is_none();
                let burst = endpoint.burst.or_else(|| registry.burst_elsewhere(view.id(), asked));
                let burst = burst.map(|burst| BurstView::new(burst, elsewhere, endpoint, &service.config.probe));
                let seen = Seen { reporting, shunned: registry.exchange.shunned(view.id(), now_ms) };
                Some(FleetEndpoint::new(view, endpoint, burst, seen, asked))
            });
            (published.map_or(0, |published| published.version), pools.collect(), endpoints.collect())
        });
        Fleet {
            now_ms,
            read_at: Some(read_at),
            version,
            ready: Readiness::of(service).ready,
            started_ms: service.started_ms,
            prober_version: env!("CARGO_PKG_VERSION"),
            leads: service.store.fence().is_some(),
            pools,
            endpoints,
            envoys: service.xds.envoys(),
            alarms,
        }
    }

    /// As it is sent.
    pub(crate) fn document(&self) -> Document {
        // Serialising what has neither maps with other keys than texts nor failing parts cannot fail.
        Document::new(self.now_ms, self.read_at, serde_json::to_vec(self).unwrap_or_else(|_| b"{}".to_vec()))
    }

    /// Without what changes by itself as time goes by: two that are equal then have the same to say.
    pub(crate) fn timeless(mut self) -> Self {
        (self.now_ms, self.read_at) = (0, None);
        for endpoint in &mut self.endpoints {
            endpoint.view.forget_age();
        }
        self
    }
}

/// The whole state in one document: pools, endpoints with what happens at them, Envoys, alarms. `/v1/events` sends the same
/// whenever something has changed.
#[utoipa::path(get, path = "/v1/fleet", responses((status = 200, body = Fleet)))]
pub(super) async fn fleet(State(service): State<Arc<Service>>, Extension(admitted): Extension<Admitted>) -> Response {
    let document = Fleet::of(&service).document();
    let body = [document.opening(admitted.by().as_str()).as_slice(), &document.rest()].concat();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[derive(Serialize, ToSchema)]
pub(super) struct AlarmList {
    alarms: Vec<AlarmView>,
}

/// Everything that is wrong, of the prober itself and of endpoints.
#[utoipa::path(get, path = "/v1/alarms", responses((status = 200, body = AlarmList)))]
pub(super) async fn alarms(State(service): State<Arc<Service>>) -> Json<AlarmList> {
    Json(AlarmList { alarms: service.alarms().into_iter().map(Into::into).collect() })
}

#[cfg(test)]
mod tests {
    use weighbridge_routing::exchange::{EndpointReport, PoolReport, Report};

    use super::*;
    use crate::config::{Endpoint as Written, Reach};

    const ENDPOINTS: u16 = 1_000;

    fn written(nth: u16) -> Written {
        Written {
            id: format!("endpoint-{nth}"),
            address: format!("127.0.0.1:{}", 10_000 + nth),
            node: format!("node-{nth}"),
            launch_args: Some("--tensor-parallel-size 2 --max-model-len 65536".into()),
            context_window: Some(65_536),
            max_in_flight: None,
            reach: Reach::default(),
        }
    }

    // What is looked at by few, must not cost many: the document is bounded by the endpoints, and made once for all.
    #[tokio::test]
    async fn a_thousand_endpoints_are_a_document_of_a_megabyte_or_two() {
        let dir = tempfile::tempdir().unwrap();
        // What Envoys report is to outlast a busy machine.
        let config = "{signals: {interval: 10s}, pools: [{name: p, models: [m]}]}";
        let service = crate::service::tests::configured(dir.path(), config).await;
        service.note(|registry| {
            for nth in 0..ENDPOINTS {
                let written = written(nth);
                let address = written.address.parse().unwrap();
                registry.register("p", written, address, Origin::Api).unwrap();
            }
            for envoy in 0..4 {
                let row = EndpointReport { in_flight: 7, ..EndpointReport::default() };
                let endpoints = (0..ENDPOINTS).map(|nth| (format!("endpoint-{nth}"), row.clone())).collect();
                let pools = [("p".to_owned(), PoolReport { waiting: 3, endpoints })].into();
                registry.exchanged(&Report { envoy: format!("e{envoy}"), pools }, now_ms()).unwrap();
            }
        });
        let begun = Instant::now();
        let fleet = Fleet::of(&service);
        let made = begun.elapsed();
        let document = fleet.document();
        let (written, bytes) = (begun.elapsed() - made, document.rest().len());
        println!("{ENDPOINTS} endpoints, 4 Envoys: {bytes} bytes, made in {made:?}, written in {written:?}");
        assert!((500_000..2_000_000).contains(&bytes), "{bytes}");
        let shown: serde_json::Value =
            serde_json::from_slice(&[document.opening("none").as_slice(), &document.rest()].concat()).unwrap();
        assert_eq!(shown["endpoints"].as_array().unwrap().len(), usize::from(ENDPOINTS));
        assert_eq!((&shown["pools"][0]["in_flight"], &shown["pools"][0]["waiting"]), (&28_000.into(), &12.into()));
        // Nothing has happened: there is nothing new to say, though the figures are older.
        assert_eq!(fleet.timeless(), Fleet::of(&service).timeless());
        assert_eq!(shown["auth"], "none");
    }
}
