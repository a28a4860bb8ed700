//! When to probe: one task per pool, one burst at a time.
//!
//! | probe | when | what it waits for |
//! |---|---|---|
//! | registration | the endpoint is new, or runs with other launch arguments | takes no traffic, then idle |
//! | on demand | asked for | idle first, then takes no traffic; with `force` it waits for nothing, and the result counts as it comes |
//! | interval | the result is older than `probe.interval` | idle first, then takes no traffic |
//!
//! Of several probers over one store only the one with the lease bursts ([`crate::store::lease`]), also for those that
//! were asked for at another. A burst whose lease ends is cut short, and its marks and results count no more.
//!
//! Idle: the engine itself runs nothing, and no Envoy has a request under way there ([`crate::envoy_admin`] says what
//! holds for one that does not tell). "Takes no traffic": state `probing`
//! is published and every Envoy has acknowledged it, unless nobody else of the pool can serve.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::caps::Curve;
use crate::engine::EngineError;
use crate::peers;
use crate::probe::{self, Bursts, Company, ProbeError, Target};
use crate::registry::{Burst, Mark, Outcome, Phase, ProbeKind, ProbeRecord, Probed, Registry, Step, Subject};
use crate::service::{Asked, Demand, Service, now_ms};
use crate::store::{Change, Table};

/// How often a pool looks for something to do when nothing wakes it.
const LOOK: Duration = Duration::from_millis(500);
/// How long Envoys may take to acknowledge that an endpoint takes no traffic.
const ACK: Duration = Duration::from_secs(5);
/// How long an endpoint that was idle may take to become so again after it took the last request.
const SETTLE: Duration = Duration::from_secs(2);
/// How often idleness is looked at while it is waited for.
const POLL: Duration = Duration::from_millis(50);
/// Registration bursts that were disturbed are repeated so often.
const TRIES: u32 = 3;
/// A probe that was asked for this long ago is not waited for by anybody.
const FORGOTTEN_MS: u64 = 3_600_000;

struct Job {
    id: String,
    subject: Subject,
    kind: ProbeKind,
    force: bool,
    /// Goes with what is stored.
    fence: u64,
}

/// Probes the endpoints of one pool until `shutdown`.
pub async fn run(service: Arc<Service>, pool: String, shutdown: CancellationToken) {
    loop {
        let woken = service.wake.notified();
        let done = async {
            let job = next(&service, &pool).await?;
            // Two pools may share an engine (LoRA names): their bursts must not meet.
            let _only = service.exclusive(job.subject.address)?;
            execute(&service, &pool, &job).await;
            Some(())
        };
        match shutdown.run_until_cancelled(done).await {
            None => return,
            Some(Some(())) => continue,
            Some(None) => {}
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = woken => tokio::time::sleep(POLL).await,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// What to do next, the most urgent first.
async fn next(service: &Service, pool: &str) -> Option<Job> {
    let now_ms = now_ms();
    let interval_ms = service.config.probe.interval.as_millis() as u64;
    let fence = service.store.fence();
    let leads = fence.is_some();
    // Nobody can be told of an endpoint that is gone.
    let gone = |demand: &Demand| service.read(|registry| registry.get(&demand.id).is_err());
    drop(service.take_demands(gone));
    // Whoever asks now is refused.
    let down = |demand: &Demand| !demand.force && service.read(|registry| is_down(registry, &demand.id));
    for demand in service.take_demands(down) {
        // Another one may have forced it, here or at another prober.
        if service.store.get::<Asked>(Table::Demands, &demand.id).is_some_and(|asked| !asked.force) {
            service.store.put(vec![Change::remove(Table::Demands, &demand.id)]);
        }
        tracing::info!(endpoint = demand.id, "it went down before it was probed: not probed");
        let mut record = ProbeRecord::empty(ProbeKind::Demand, now_ms);
        record.spoil("it went down before it was probed: ask again when it is back, or now with force=true");
        // Whoever asked may have left.
        let _ = demand.done.send(record);
    }
    let mut demands: Vec<(String, bool)> =
        service.peek_demands(|demands| demands.iter().map(|demand| (demand.id.clone(), demand.force)).collect());
    let fence = fence.or_else(|| {
        // Nobody can have the lease: what the operator forces here is done here, and nothing else.
        demands.retain(|(_, force)| *force);
        (!service.store.health().up && !demands.is_empty()).then_some(0)
    })?;
    if leads {
        demands.extend(asked_elsewhere(service, now_ms));
    }
    let (mut at_once, mut when_idle) = (Vec::new(), Vec::new());
    service.read(|registry| {
        for (id, endpoint) in registry.endpoints().iter().filter(|(_, endpoint)| endpoint.pool == pool) {
            let Some(subject) = registry.subject(id) else { continue };
            let job = |kind, force| Job { id: id.clone(), subject: subject.clone(), kind, force, fence };
            if demands.iter().any(|(asked, force)| asked == id && *force) {
                at_once.push(job(ProbeKind::Demand, true));
            } else if demands.iter().any(|(asked, _)| asked == id) && now_ms >= endpoint.not_before_ms {
                when_idle.push(job(ProbeKind::Demand, false));
            }
            let able = endpoint.health.checked && endpoint.health.healthy() && !endpoint.goes();
            if !leads || !able || endpoint.fingerprint.is_none() || now_ms < endpoint.not_before_ms {
                continue;
            }
            if !endpoint.registered {
                at_once.push(job(ProbeKind::Registration, false));
            } else if endpoint.is_due(interval_ms, now_ms) {
                when_idle.push(job(ProbeKind::Interval, false));
            }
        }
    });
    // Another pool's burst at one engine holds up that endpoint, and not the others.
    let free = |job: &Job| !service.is_busy(job.subject.address);
    if let Some(job) = at_once.into_iter().find(free) {
        return Some(job);
    }
    for job in when_idle.into_iter().filter(free) {
        if idle(service, job.subject.address).await.is_ok() {
            return Some(job);
        }
    }
    None
}

fn is_down(registry: &Registry, id: &str) -> bool {
    registry.get(id).is_ok_and(|endpoint| endpoint.health.checked && !endpoint.health.healthy())
}

async fn execute(service: &Service, pool: &str, job: &Job) {
    let Job { id, subject, kind, force, fence } = job;
    let begins = Burst::begin(*kind, *force, now_ms());
    let marked = service.change(|registry| registry.get_mut(id).map(|endpoint| endpoint.burst = Some(begins)).is_ok());
    if !marked {
        return;
    }
    let mark = Mark { fence: *fence, burst: service.bursts.fetch_add(1, Ordering::Relaxed) };
    if *fence > 0 {
        let put = Change::put(Table::Probing, id, &mark).map(|change| change.fenced(*fence));
        service.store.put(put.into_iter().collect());
    }
    // However this ends (the task is dropped at shutdown, before xDS ends), the endpoint does not stay out of service.
    let _guard = Unmark { service, id, fence: *fence };
    let result = tokio::select! {
        biased;
        // Whoever has the lease then may burst at once: two bursts at one engine would measure each other.
        () = lost(service, *fence) => {
            tracing::warn!(endpoint = id, "cut short: this prober is not the one that measures any more");
            return;
        }
        result = burst(service, pool, job, mark) => result,
    };
    let Some(result) = result else { return back_off(service, id) };
    if service.store.fence().unwrap_or_default() != *fence {
        tracing::warn!(endpoint = id, "thrown away: this prober was not the one that measures until the end");
        return;
    }
    let (record, curve) = record(*kind, result);
    let steps = curve.as_ref().map(|curve| curve.steps().len());
    // Taken before the result can be seen: whoever asks after having seen it wants another burst.
    let demands = service.take_demands(|demand| demand.id == *id);
    let order = service.order.lock().await;
    let (probed, old) =
        service.change(|registry| (registry.probed(id, subject, record, curve), service.prune(registry)));
    let mut changes = Vec::new();
    if let Some(Probed { record, kept, history }) = &probed {
        tell(id, record, steps);
        changes.push(Change::put(Table::History, id, history));
        if let Some(kept) = kept {
            changes.push(Change::put(Table::Last, id, kept));
            changes.push(Change::put(Table::Results, &kept.key, &kept.measurement));
        }
    }
    // The demand goes after its result: whoever sees that it is gone, at another prober, finds the result.
    changes.push(Ok(Change::remove(Table::Demands, id)));
    changes.extend(old.into_iter().map(Ok));
    if let Ok(changes) = changes.into_iter().collect::<Result<Vec<_>, _>>() {
        // Not stored yet is an alarm already; the result is in force.
        service.remember(changes.into_iter().map(|change| change.fenced(*fence)).collect()).await;
    }
    drop(order);
    // Of an endpoint that is gone they hear that by the end of their channel.
    let Some(Probed { record, .. }) = probed else { return };
    for demand in demands {
        // Whoever asked may have left.
        let _ = demand.done.send(record.clone());
    }
}

/// Logs what came of a probe, with so many `steps` of a curve.
fn tell(endpoint: &str, record: &ProbeRecord, steps: Option<usize>) {
    let ProbeRecord { throughput_tps, warmup_tps, prefill_tps, prefill_error, sweep_error, error, .. } = record;
    match error {
        None => {
            tracing::info!(
                endpoint,
                throughput_tps,
                warmup_tps,
                prefill_tps,
                prefill_error,
                steps,
                sweep_error,
                "measured"
            );
        }
        Some(error) => tracing::warn!(endpoint, error, "the probe failed; the last weight stays"),
    }
}

/// Waits until this prober may burst no longer; for ever when it never needed the lease.
async fn lost(service: &Service, fence: u64) {
    if fence == 0 {
        std::future::pending::<()>().await;
    }
    service.store.lost(fence).await;
}

/// Takes the endpoint out of service and bursts. `None`: somebody came in between; it goes back into service, and is tried
/// again when it is idle.
async fn burst(service: &Service, pool: &str, job: &Job, mark: Mark) -> Option<Result<Bursts, String>> {
    let Job { id, subject, kind, force, .. } = job;
    let (version, model) = (service.version(), service.read(|registry| registry.served_model(pool).to_owned()));
    let told = tokio::join!(service.xds.wait_applied(version, ACK), peers::all_told(service, id, mark, ACK));
    if told != (true, true) {
        tracing::warn!(endpoint = id, "not every Envoy has acknowledged that the endpoint takes no traffic");
    }
    let patience = if *kind == ProbeKind::Registration { service.config.probe.timeout } else { SETTLE };
    let idle = if *force { Ok(()) } else { wait_idle(service, subject.address, patience).await };
    if idle.is_ok() {
        tracing::info!(endpoint = id, ?kind, "burst");
        match measure(service, job, &model).await {
            Err(ProbeError::Disturbed(_)) if *kind != ProbeKind::Registration => {
                service.note(|registry| registry.count(pool.to_owned(), *kind, Outcome::Disturbed));
                None
            }
            result => Some(result.map_err(|error| error.to_string())),
        }
    } else if *kind == ProbeKind::Registration {
        let why = idle.err().unwrap_or_default();
        Some(Err(format!("it was not idle within {}: {why}", humantime::format_duration(patience))))
    } else {
        None
    }
}

/// What was asked for at other probers. One for an endpoint that is not known here waits: its registration may be on its
/// way.
fn asked_elsewhere(service: &Service, now_ms: u64) -> Vec<(String, bool)> {
    let asked = service.store.all::<Asked>(Table::Demands);
    let (young, old): (Vec<_>, Vec<_>) =
        asked.into_iter().partition(|(_, asked)| now_ms.saturating_sub(asked.at_ms) < FORGOTTEN_MS);
    if !old.is_empty() {
        service.store.put(old.iter().map(|(id, _)| Change::remove(Table::Demands, id)).collect());
    }
    young.into_iter().map(|(id, asked)| (id, asked.force)).collect()
}

/// What goes into the history, and the curve, which does not.
fn record(kind: ProbeKind, result: Result<Bursts, String>) -> (ProbeRecord, Option<Curve>) {
    let empty = ProbeRecord::empty(kind, now_ms());
    match result {
        Ok(Bursts { warmup_tps, throughput_tps, prefill_tps, curve }) => {
            let (prefill_tps, prefill_error) = either(prefill_tps);
            let (curve, sweep_error) = either(curve);
            let record = ProbeRecord {
                warmup_tps: Some(warmup_tps),
                throughput_tps: Some(throughput_tps),
                prefill_tps,
                prefill_error,
                sweep_error,
                ..empty
            };
            (record, curve)
        }
        Err(error) => (ProbeRecord { error: Some(error), ..empty }, None),
    }
}

/// What was found, and why it was not.
fn either<T>(found: Option<Result<T, String>>) -> (Option<T>, Option<String>) {
    match found {
        None => (None, None),
        Some(Ok(value)) => (Some(value), None),
        Some(Err(why)) => (None, Some(why)),
    }
}

/// A request came in between. Back into service, and not again at the next idle moment: a quiet pool of one would be
/// burst at for ever.
fn back_off(service: &Service, id: &str) {
    service.note(|registry| {
        if let Ok(endpoint) = registry.get_mut(id) {
            endpoint.back_off(now_ms());
        }
    });
}

struct Unmark<'a> {
    service: &'a Service,
    id: &'a str,
    fence: u64,
}

impl Drop for Unmark<'_> {
    fn drop(&mut self) {
        self.service.change(|registry| registry.burst_ended(self.id));
        // One that was forced without the lease has left no mark that others would heed.
        if self.fence > 0 {
            self.service.store.put(vec![Change::remove(Table::Probing, self.id).fenced(self.fence)]);
        }
    }
}

async fn measure(service: &Service, job: &Job, model: &str) -> Result<Bursts, ProbeError> {
    let settings = &service.config.probe;
    let (window, sweep) = service.read(|registry| {
        let endpoint = registry.get(&job.id).ok();
        let sweep = endpoint.is_some_and(|endpoint| endpoint.sizing.sweeps());
        (endpoint.and_then(|endpoint| endpoint.context_window()), sweep)
    });
    let target = Target { engine: job.subject.address, model, window, sweep };
    let company = if job.force { Company::Accepted } else { Company::Refused };
    let report = |step: Step| {
        service.note(|registry| {
            if let Ok(endpoint) = registry.get_mut(&job.id)
                && let Some(burst) = &mut endpoint.burst
            {
                burst.take(step, now_ms());
            }
        });
    };
    let mut tries = 1;
    loop {
        match probe::measure(&service.engines, target, settings, company, now_ms(), &report).await {
            Err(ProbeError::Disturbed(running)) if tries < TRIES && job.kind == ProbeKind::Registration => {
                tracing::info!(endpoint = job.id, running, "disturbed; again");
                tries += 1;
                report(Step::Begins(Phase::Waiting, 0));
                // What still runs there disturbs the next try, which says so.
                let _ = wait_idle(service, job.subject.address, settings.timeout).await;
            }
            result => return result,
        }
    }
}

/// Waits until it is idle, so long at most; why it was not when it was looked at last.
async fn wait_idle(service: &Service, address: SocketAddr, patience: Duration) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    loop {
        let looked = idle(service, address).await;
        if looked.is_ok() || Instant::now() >= deadline {
            return looked;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Whether the engine runs nothing and no Envoy has anything under way there, and why not. An engine that does not tell what it runs
/// is judged by the Envoys alone.
async fn idle(service: &Service, address: SocketAddr) -> Result<(), String> {
    let running = match service.engines.metrics(address, Duration::from_secs(2)).await {
        Ok(signals) => signals.requests().unwrap_or(0),
        Err(EngineError::Status { .. }) => 0,
        Err(error) => return Err(format!("it cannot be asked what it runs: {error}")),
    };
    if running > 0 {
        return Err(format!("it runs {running} requests"));
    }
    if service.admins.idle(address).await { Ok(()) } else { Err("Envoys have requests under way there".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::registry::{Measurement, News, Origin};
    use crate::service::tests::service;

    #[tokio::test]
    async fn who_waits_for_an_endpoint_that_went_down_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path()).await;
        let written = config::Endpoint {
            reach: config::Reach::default(),
            id: "a".into(),
            address: "127.77.0.1:9".into(),
            node: "n".into(),
            launch_args: None,
            context_window: None,
            max_in_flight: None,
        };
        let address = written.address.parse().unwrap();
        service.change(|registry| registry.register("p", written, address, Origin::Api)).unwrap();
        let ask = |force: bool| {
            let (done, result) = tokio::sync::oneshot::channel();
            assert!(service.demand(Demand { id: "a".into(), force, before: None, done }));
            result
        };
        let (mut plain, mut forced) = (ask(false), ask(true));
        for at_ms in 1..=3 {
            let refused = Err(EngineError::Refused("no".into()).into());
            service.note(|registry| registry.checked("a", refused, &service.config.health, at_ms));
        }
        assert!(next(&service, "p").await.is_some_and(|job| job.force));
        assert!(plain.try_recv().unwrap().error.unwrap().contains("went down"));
        assert!(forced.try_recv().is_err(), "it is done at once, whatever its health");
    }

    #[tokio::test]
    async fn old_results_go_with_the_next_probe() {
        let dir = tempfile::tempdir().unwrap();
        let service = service(dir.path()).await;
        let (store, shutdown) = (service.store.clone(), CancellationToken::new());
        let stop = shutdown.clone();
        let storing = tokio::spawn(async move { store.run(stop).await });
        // Nobody is there: what comes of the probe does not matter.
        let address: SocketAddr = "127.77.0.1:9".parse().unwrap();
        let written = config::Endpoint {
            reach: config::Reach::default(),
            id: "a".into(),
            address: address.to_string(),
            node: "n".into(),
            launch_args: Some("args".into()),
            context_window: None,
            max_in_flight: None,
        };
        service.change(|registry| registry.register("p", written, address, Origin::Api)).unwrap();
        for (key, measured_at_ms) in [("old", 1), ("young", now_ms())] {
            let result =
                Measurement { throughput_tps: 1.0, prefill_tps: None, curve: None, sweep_error: None, measured_at_ms };
            service.store.put(vec![Change::put(Table::Results, key, &result).unwrap()]);
            service.note(|registry| registry.learn(key, News::Result(Some(result)), now_ms()));
        }
        let subject = service.read(|registry| registry.subject("a")).unwrap();
        let fence = service.store.fence().unwrap();
        execute(&service, "p", &Job { id: "a".into(), subject, kind: ProbeKind::Demand, force: true, fence }).await;
        let left = service.store.all::<Measurement>(Table::Results);
        assert_eq!(left.keys().collect::<Vec<_>>(), ["young"]);
        shutdown.cancel();
        storing.await.unwrap();
    }
}
