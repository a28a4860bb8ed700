//! Watching one endpoint: is it healthy, what does it run, what is it.
//!
//! Health checks and metrics are independent: a scrape that fails or times out says nothing about health (case C18), and
//! neither touches any in-flight count (case C3; those live in the filter).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::{EngineError, Signals};
use crate::service::{Service, now_ms};

/// The longest that a scrape may take.
const SCRAPE: Duration = Duration::from_secs(1);

/// Watches until the endpoint is gone or has moved, or `shutdown`.
pub async fn run(service: Arc<Service>, id: String, address: SocketAddr, shutdown: CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = health(&service, &id, address) => {}
        () = signals(&service, &id, address) => {}
    }
}

fn is_there(service: &Service, id: &str, address: SocketAddr) -> bool {
    service.read(|registry| registry.get(id).is_ok_and(|endpoint| endpoint.address == address))
}

async fn health(service: &Service, id: &str, address: SocketAddr) {
    let settings = service.config.health;
    let mut ticks = interval(settings.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let result = service.engines.health(address, settings.timeout).await.map_err(|error| error.to_string());
        if !is_there(service, id, address) {
            return;
        }
        let why = result.as_ref().err().cloned();
        let (first, changed) = service.note(|registry| {
            let first = registry.get(id).is_ok_and(|endpoint| !endpoint.health.checked);
            (first, registry.checked(id, result, settings))
        });
        if changed {
            service.change(|registry| {
                if let Ok(endpoint) = registry.get_mut(id) {
                    if endpoint.health.healthy {
                        tracing::info!(endpoint = id, "healthy");
                        // It may have been started anew with other arguments.
                        endpoint.fingerprint = None;
                    } else {
                        tracing::warn!(endpoint = id, why, "unhealthy");
                    }
                }
            });
        } else if first {
            service.wake.notify_waiters();
        }
    }
}

async fn signals(service: &Service, id: &str, address: SocketAddr) {
    let mut ticks = interval(service.config.signals_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let result = service.engines.metrics(address, SCRAPE).await;
        if !is_there(service, id, address) {
            return;
        }
        let unknown = service.note(|registry| {
            let endpoint = registry.get_mut(id).ok()?;
            let before = std::mem::take(&mut endpoint.signals);
            endpoint.signals = newer(before.clone(), result);
            let restarted = before.started_s.is_some() && endpoint.signals.started_s != before.started_s;
            if restarted {
                endpoint.fingerprint = None;
            }
            endpoint.fingerprint.is_none().then(|| (endpoint.pool.clone(), endpoint.signals.cache_config.clone()))
        });
        if let Some((pool, cache_config)) = unknown {
            identify(service, id, address, &pool, &cache_config).await;
        }
    }
}

/// The old figures stay when there are no new ones: stale is not full.
fn newer(before: Signals, result: Result<Signals, EngineError>) -> Signals {
    match result {
        Ok(signals) => Signals { at_ms: Some(now_ms()), ..signals },
        Err(error @ EngineError::Status { .. }) => {
            Signals { error: Some(error.to_string()), brand: None, running: None, waiting: None, ..before }
        }
        Err(error) => Signals { error: Some(error.to_string()), ..before },
    }
}

/// Asks the engine what it is. An engine without a list of models is what its metrics say.
async fn identify(service: &Service, id: &str, address: SocketAddr, pool: &str, cache_config: &str) {
    let model = service.read(|registry| registry.served_model(pool).to_owned());
    let window = match service.engines.window(address, &model, SCRAPE).await {
        Ok(window) => window,
        Err(EngineError::Status { .. }) => None,
        // No answer: ask again at the next tick.
        Err(EngineError::Http(_)) => return,
    };
    let told = window.map_or_else(String::new, |window| format!("max_model_len={window},"));
    let keep_ms = service.config.probe.keep.as_millis() as u64;
    service.change(|registry| {
        registry.identified(id, format!("{told}{cache_config}"), window, keep_ms, now_ms());
    });
}
