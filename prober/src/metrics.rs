//! `/metrics`: the fleet as Prometheus reads it, made from the registry at each scrape, so nothing can go stale and
//! endpoints that are gone leave no series behind.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Metrics;

use crate::alarms::Code;
use crate::api::word;
use crate::registry::Progress;
use crate::service::{Service, now_ms};

type Labels = Vec<(&'static str, String)>;
type Numbers = Family<Labels, Gauge<f64, AtomicU64>>;

/// The text of one scrape.
///
/// # Errors
/// When it cannot be written, which formatting into a string never causes.
pub fn text(service: &Service) -> Result<String, std::fmt::Error> {
    let mut metrics = Metrics::with_prefix("weighbridge_prober");
    let mut family = |name: &str, help: &str| {
        let numbers = Numbers::default();
        metrics.register(name, help, numbers.clone());
        numbers
    };
    let weight = family("weight", "Weight in force");
    let throughput = family("throughput_tps", "Tokens per second of the measurement in force");
    let prefill = family("prefill_tps", "Prompt tokens per second of the measurement in force");
    let age = family("measurement_age_seconds", "Age of the measurement in force");
    let cap = family("cap", "The most requests that the filters let an endpoint have at once");
    let cap_source = family("cap_source", "1 for where the cap in force comes from: hand, measured or weight");
    let knee = family("cap_knee", "The cap that the last sweep of concurrency gave");
    let capacity = family("pool_capacity", "Sum of the caps of the endpoints that take traffic");
    let headroom = family(
        "pool_headroom",
        "Slots of them that are free, as the engines tell, else the Envoys; none where nobody tells",
    );
    let state = family("state", "1 for the state in force");
    let pinned = family("pinned", "1 where an operator has set the weight");
    let healthy = family("healthy", "1 where the health checks succeed");
    let overdue = family("drain_overdue", "1 where requests were left when a drain or removal was to be over");
    let alarm = family("alarm", "1 where something is wrong with the endpoint");
    let running = family("engine_running", "Requests that the engine runs");
    let waiting = family("engine_waiting", "Requests in the engine's own queue");
    let kv = family("engine_kv_usage", "Filled share of the engine's KV cache");
    let gpu = family("gpu_usage", "How busy the endpoint's GPUs are, 0 to 1");
    let stale = family("signals_stale", "1 where the engine's figures are older than three intervals");
    let in_flight = family("envoys_in_flight", "Requests that Envoys have in flight");
    let outside = family("outside_requests", "Requests that the engine has beyond those of all Envoys");
    let ttft = family("average_ttft_ms", "Moving average of the time to the first token of streams");
    let e2e = family("average_e2e_ms", "Moving average of the time from the decision to the end of the answer");
    let tps = family("average_tps", "Moving average of tokens per second of one request");
    let errors = family("average_error_rate", "Moving average of the share of requests that failed");
    let reporting = family("envoys_reporting", "Envoys that have reported their load within three intervals");
    let version = family("snapshot_version", "Version of the snapshot in force");
    let alarms =
        family("alarms", "Things that are wrong, of the prober itself and of endpoints, by the code of docs/alarms.md");
    let envoys = family("envoys_connected", "Envoys that are connected");
    let probes = Family::<Labels, Counter>::default();
    metrics.register("probes", "Probes by kind and result, since the prober started", probes.clone());
    let token_checks = Family::<Labels, Counter>::default();
    metrics.register(
        "token_checks",
        "Requests for one token by what came of them, since the prober started",
        token_checks.clone(),
    );
    let decisions = Family::<Labels, Counter>::default();
    metrics.register("decisions", "Decision records by result, since the prober started", decisions.clone());
    let counts = service.decisions.counts();
    for (result, count) in [
        ("kept", counts.taken),
        ("refused", counts.refused),
        ("dropped", counts.dropped),
        ("repeated", counts.repeated),
    ] {
        decisions.get_or_create(&vec![("result", result.to_owned())]).inc_by(count);
    }
    let reloads = Family::<Labels, Counter>::default();
    metrics.register("reloads", "Files that were read again, by result: changed, or began to fail", reloads.clone());
    for (field, count) in service.reloads.counts() {
        for (result, count) in [("changed", count.changed), ("failed", count.failed)] {
            reloads.get_or_create(&vec![("file", field.clone()), ("result", result.to_owned())]).inc_by(count);
        }
    }
    let refused = Family::<Labels, Counter>::default();
    metrics.register(
        "tls_refused",
        "Handshakes of clients that have failed, since the prober started",
        refused.clone(),
    );
    for (listener, count) in service.refused_handshakes() {
        refused.get_or_create(&vec![("listener", listener.to_owned())]).inc_by(count);
    }
    let nacks = Counter::<u64>::default();
    metrics.register("nacks", "Configurations that Envoys have refused, since the prober started", nacks.clone());
    nacks.inc_by(service.xds.nacks());
    service.read(|registry| {
        for ((pool, kind, outcome), count) in registry.probes() {
            let labels = vec![("pool", pool.clone()), ("kind", word(kind)), ("result", word(outcome))];
            probes.get_or_create(&labels).inc_by(*count);
        }
        for ((pool, result), count) in registry.token_checks() {
            let labels = vec![("pool", pool.clone()), ("result", (*result).to_owned())];
            token_checks.get_or_create(&labels).inc_by(*count);
        }
        let verdicts = registry.verdicts();
        for (id, endpoint) in registry.endpoints() {
            let Some(verdict) = verdicts.get(id.as_str()) else { continue };
            let labels = vec![("pool", endpoint.pool.clone()), ("endpoint", id.clone())];
            let set = |family: &Numbers, value: f64| {
                family.get_or_create(&labels).set(value);
            };
            set(&weight, verdict.weight.get());
            set(&pinned, f64::from(u8::from(endpoint.pin.is_some())));
            set(&healthy, f64::from(u8::from(endpoint.health.healthy())));
            set(&alarm, f64::from(u8::from(!endpoint.alarms().is_empty() || endpoint.signals.alarm.is_some())));
            let late = endpoint.progress(now_ms()) == Some(Progress::Overdue);
            set(&overdue, f64::from(u8::from(late)));
            set(&cap, verdict.cap.into());
            let source = ("source", verdict.cap_source.as_str().to_owned());
            cap_source.get_or_create(&[labels.clone(), vec![source]].concat()).set(1.0);
            if let Some(measured) = &endpoint.measured {
                set(&knee, measured.knee().concurrency.into());
            }
            let mut with_state = labels.clone();
            with_state.push(("state", verdict.state.as_str().to_owned()));
            state.get_or_create(&with_state).set(1.0);
            if let Some(tps) = endpoint.kept.as_ref().and_then(|kept| kept.measurement.prefill_tps) {
                set(&prefill, tps);
            }
            if let Some(kept) = &endpoint.kept {
                set(&throughput, kept.measurement.throughput_tps);
                set(&age, now_ms().saturating_sub(kept.measurement.measured_at_ms) as f64 / 1e3);
            }
            let now_ms = now_ms();
            let exchange = &registry.exchange;
            let fresh = endpoint.signals.fresh(now_ms, exchange.settings().stale_after_ms());
            set(&stale, f64::from(u8::from(fresh.is_none())));
            set(&in_flight, exchange.in_flight(id, now_ms).into());
            set(&outside, exchange.outside(id, now_ms).into());
            let figures = registry.figures(id, endpoint, now_ms);
            let averages = exchange.averages(id, now_ms).unwrap_or_default();
            for (family, value) in [
                (&running, figures.running.map(f64::from)),
                (&waiting, figures.waiting.map(f64::from)),
                (&kv, figures.kv_usage),
                (&gpu, figures.gpu_usage),
                (&ttft, averages.ttft_ms),
                (&e2e, averages.e2e_ms),
                (&tps, averages.tps),
                (&errors, averages.error_rate),
            ] {
                if let Some(value) = value {
                    set(family, value);
                }
            }
        }
        for (pool, load) in registry.pool_loads(&verdicts, now_ms()) {
            let labels = vec![("pool", pool.to_owned())];
            capacity.get_or_create(&labels).set(load.capacity as f64);
            headroom.get_or_create(&labels).set(load.headroom.unwrap_or(0) as f64);
        }
        let published = registry.published().map_or(0, |published| published.version);
        version.get_or_create(&Vec::new()).set(published as f64);
        reporting.get_or_create(&Vec::new()).set(registry.exchange.envoys(now_ms()) as f64);
    });
    let wrong = service.alarms();
    for code in Code::ALL {
        let count = wrong.iter().filter(|(alarm, _)| alarm.code == code).count();
        alarms.get_or_create(&vec![("code", code.as_str().to_owned())]).set(count as f64);
    }
    let connected = service.xds.envoys().iter().filter(|envoy| envoy.connected).count();
    envoys.get_or_create(&Vec::new()).set(connected as f64);
    let mut text = String::new();
    encode_registry(&mut text, &metrics)?;
    encode_registry(&mut text, &of_the_store(service))?;
    encode_eof(&mut text)?;
    Ok(text)
}

/// The store stands beside the prober: several probers may share it.
fn of_the_store(service: &Service) -> Metrics {
    let mut metrics = Metrics::with_prefix("weighbridge");
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Gauge::<u64, AtomicU64>::default();
        gauge.set(value);
        metrics.register(name, help, gauge);
    };
    let store = &service.store;
    gauge("store_up", "1 while the store does what it is asked", store.health().up.into());
    gauge("store_pending_writes", "Changes that are in force and wait to be stored", store.waiting() as u64);
    gauge("probe_lease", "1 while this prober is the one that measures", store.fence().is_some().into());
    metrics
}
