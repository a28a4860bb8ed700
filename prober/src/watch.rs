//! Watching one endpoint: is it healthy, does it generate, what does it run, what is it.
//!
//! Besides: exporters of GPU figures, and moving averages on their way into the store.
//!
//! Health checks and metrics are independent: a scrape that fails or times out says nothing about health (case C18), and
//! neither touches any in-flight count (case C3; those live in the filter).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::engine::{Brand, EngineError};
use crate::registry::{CheckFailure, Identity, Seen, Tried};
use crate::service::{Service, now_ms};
use crate::store::{Change, Table};

/// The longest that a scrape may take.
const SCRAPE: Duration = Duration::from_secs(1);
/// How often it is looked at whether an engine is to be asked for a token, at least.
const LOOK: Duration = Duration::from_millis(500);
/// The pause before an engine that did not say what it is is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How often moving averages are stored.
const STORE_AVERAGES: Duration = Duration::from_secs(5);

/// Watches until the endpoint is gone or has moved, or `shutdown`.
pub async fn run(service: Arc<Service>, id: String, address: SocketAddr, shutdown: CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = health(&service, &id, address) => {}
        () = tokens(&service, &id, address) => {}
        () = signals(&service, &id, address) => {}
    }
}

fn is_there(service: &Service, id: &str, address: SocketAddr) -> bool {
    service.read(|registry| registry.get(id).is_ok_and(|endpoint| endpoint.address == address))
}

async fn health(service: &Service, id: &str, address: SocketAddr) {
    let settings = &service.config.health;
    loop {
        let begun = Instant::now();
        let result = service.engines.health(address, &settings.path, settings.timeout).await;
        if !is_there(service, id, address) {
            return;
        }
        let (first, seen, pace) = service.note(|registry| {
            let first = registry.get(id).is_ok_and(|endpoint| !endpoint.health.checked);
            let seen = registry.checked(id, result.map_err(CheckFailure::from), settings, now_ms());
            let pace = registry.get(id).map_or(settings.interval, |endpoint| endpoint.health.pace(settings));
            (first, seen, pace)
        });
        take_in(service, id, seen).await;
        if first && !seen.publish {
            service.wake.notify_waiters();
        }
        sleep_until(begun + pace).await;
    }
}

/// Asks for one token where nothing else has proven for long that they come. Never through the gateway: an Envoy counts
/// nothing of it. While it is under way no burst begins at the engine, and none is under way when it begins.
async fn tokens(service: &Service, id: &str, address: SocketAddr) {
    let settings = &service.config.health;
    let Some(every) = settings.generate_every else { return std::future::pending().await };
    loop {
        sleep(LOOK.min(every)).await;
        if !is_there(service, id, address) {
            return;
        }
        let asked = service.read(|registry| {
            let patience = registry.token_due(id, settings, now_ms())?;
            let model = registry.served_model(&registry.get(id).ok()?.pool).to_owned();
            Some((patience, model))
        });
        let Some((patience, model)) = asked else { continue };
        let Some(_only) = service.exclusive(address) else { continue };
        let since_ms = now_ms();
        let tried = match timeout(patience, service.engines.token(address, &model)).await {
            Ok(Ok(())) => Tried::Token,
            Ok(Err(error)) => Tried::of(error, &model),
            Err(_) => Tried::Nothing(patience),
        };
        if !is_there(service, id, address) {
            return;
        }
        tracing::debug!(endpoint = id, result = tried.as_str(), "asked for a token");
        let seen = service.note(|registry| registry.token_tried(id, tried, since_ms, settings, now_ms()));
        take_in(service, id, seen).await;
    }
}

/// Says, publishes and stores what follows from what was seen.
async fn take_in(service: &Service, id: &str, seen: Seen) {
    if seen.verdict {
        let why = service.read(|registry| {
            let health = &registry.get(id).ok()?.health;
            (!health.healthy()).then(|| health.last_error().unwrap_or_default().to_owned())
        });
        match why {
            None => tracing::info!(endpoint = id, "healthy"),
            Some(why) => tracing::warn!(endpoint = id, why, "unhealthy"),
        }
    }
    if seen.publish {
        service.change(|_| ());
    }
    if seen.restarted {
        remember_epoch(service, id).await;
    }
}

async fn remember_epoch(service: &Service, id: &str) {
    let epoch = service.read(|registry| registry.get(id).map(|endpoint| endpoint.epoch));
    if let Ok(change) = epoch.map(|epoch| Change::put(Table::Epochs, id, &epoch))
        && let Ok(change) = change
    {
        service.remember(vec![change]).await;
    }
}

async fn signals(service: &Service, id: &str, address: SocketAddr) {
    let mut ticks = interval(service.config.signals.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ask_from = Instant::now();
    loop {
        ticks.tick().await;
        let result = service.engines.metrics(address, SCRAPE).await;
        if !is_there(service, id, address) {
            return;
        }
        let seen = service.note(|registry| registry.scraped(id, result, now_ms()));
        take_in(service, id, seen).await;
        if seen.unidentified
            && Instant::now() >= ask_from
            && let Err(error) = identify(service, id, address).await
        {
            // Nobody there costs nothing, and is to be noticed at once when somebody is.
            if matches!(error, EngineError::Http(_)) {
                ask_from = Instant::now() + ASK_AGAIN;
            }
            service.note(|registry| registry.unidentified(id, &error));
        }
    }
}

/// Reads an exporter of GPU figures until `shutdown`.
pub async fn gpus(service: Arc<Service>, url: String, shutdown: CancellationToken) {
    let mut ticks = interval(service.read(|registry| registry.gpus.interval()));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let result = service.engines.gpus(&url, SCRAPE).await;
        service.note(|registry| registry.gpus.read(&url, result, now_ms()));
    }
}

/// Stores the moving averages that have changed, every few seconds and at the end.
pub async fn averages(service: Arc<Service>, shutdown: CancellationToken) {
    let mut ticks = interval(STORE_AVERAGES);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut serving = true;
    while serving {
        serving = shutdown.run_until_cancelled(ticks.tick()).await.is_some();
        let changed = service.note(|registry| registry.exchange.take_changed(now_ms()));
        let changes = changed.iter().map(|(id, kept)| Change::put(Table::Averages, id, kept));
        match changes.collect::<Result<Vec<_>, _>>() {
            Ok(changes) if changes.is_empty() => {}
            // A failure is an alarm already; they come again with the next change.
            Ok(changes) => {
                service.remember(changes).await;
            }
            Err(error) => tracing::error!(%error, "moving averages are not stored"),
        }
    }
}

/// Asks the engine what it is. An engine without a list of models is what its metrics say.
///
/// # Errors
/// When it does not answer.
async fn identify(service: &Service, id: &str, address: SocketAddr) -> Result<(), EngineError> {
    let asked = service.read(|registry| {
        let endpoint = registry.get(id).ok()?;
        let model = registry.served_model(&endpoint.pool).to_owned();
        Some((model, endpoint.signals.brand, endpoint.signals.cache_config.clone()))
    });
    let Some((model, brand, cache_config)) = asked else { return Ok(()) };
    let mut window = match service.engines.window(address, &model, SCRAPE).await {
        Ok(window) => window,
        Err(EngineError::Status { .. }) => None,
        Err(error) => return Err(error),
    };
    let mut told = window.map_or_else(String::new, |window| format!("max_model_len={window},"));
    let mut kv_tokens = None;
    // llama.cpp has metrics only when it is told to, so an engine of no known brand may be one.
    if window.is_none() && matches!(brand, Some(Brand::Llamacpp) | None) {
        match service.engines.props(address, SCRAPE).await {
            Ok(props) => {
                (window, kv_tokens) = (props.window, props.kv_tokens());
                if let Some((window, slots)) = props.window.zip(props.slots) {
                    told = format!("n_ctx={window},total_slots={slots},");
                }
            }
            Err(EngineError::Status { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let identity = Identity { fingerprint: format!("{told}{cache_config}"), window, kv_tokens };
    let keep_ms = service.config.probe.keep.as_millis() as u64;
    // A result that comes while one is voided is stored after that.
    let _order = service.order.lock().await;
    let told = service.change(|registry| registry.identified(id, identity, keep_ms, now_ms()));
    if told.restarted {
        remember_epoch(service, id).await;
    }
    if let Some(key) = told.void {
        let changes = [Change::remove(Table::Results, &key), Change::remove(Table::Last, id)];
        let fence = service.store.fence();
        let fenced = |change: Change| match fence {
            Some(fence) => change.fenced(fence),
            None => change,
        };
        service.remember(changes.into_iter().map(fenced).collect()).await;
    }
    Ok(())
}
