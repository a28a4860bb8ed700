//! Who belongs to the fleet: names of the configuration file are resolved, again and again, and those of registrations
//! until they do ([`crate::registrations`]); endpoints that leave are forgotten when they are empty; each that is there is watched.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weighbridge_routing::snapshot::is_id;

use crate::config;
use crate::registrations;
use crate::registry::Origin;
use crate::service::{Service, now_ms};
use crate::store::{Change, Table};
use crate::watch;

/// How often names are resolved.
const RESOLVE: Duration = Duration::from_secs(10);
/// How often leaving endpoints are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long Envoys may take to hear that an endpoint drains.
const TOLD: Duration = Duration::from_secs(2);
/// How long a leaving endpoint may take to become empty.
pub const LEAVE_MS: u64 = 60_000;

/// Keeps the members until `shutdown`, then waits for the watchers.
pub async fn run(service: Arc<Service>, shutdown: CancellationToken) {
    let mut watched: HashMap<(String, SocketAddr), tokio::task::AbortHandle> = HashMap::new();
    let mut watchers = JoinSet::new();
    let mut resolved = Instant::now();
    while !shutdown.is_cancelled() {
        let slow = async {
            if resolved.elapsed() >= RESOLVE {
                resolve_all(&service).await;
                resolved = Instant::now();
            }
            release_leaving(&service).await;
        };
        if shutdown.run_until_cancelled(slow).await.is_none() {
            break;
        }
        while watchers.try_join_next().is_some() {}
        watched.retain(|_, handle| !handle.is_finished());
        let present = service.read(|registry| {
            let there = registry.endpoints().iter().map(|(id, endpoint)| (id.clone(), endpoint.address));
            there.collect::<Vec<_>>()
        });
        for (id, address) in present {
            watched.entry((id, address)).or_insert_with_key(|(id, address)| {
                watchers.spawn(watch::run(Arc::clone(&service), id.clone(), *address, shutdown.clone()))
            });
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = service.members.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    while watchers.join_next().await.is_some() {}
}

/// Resolves every address of the file, and takes over what has changed; and those of registrations that are not there yet.
pub async fn resolve_all(service: &Service) {
    for pool in &service.config.pools {
        for written in &pool.endpoints {
            match resolve(&written.address).await {
                Ok(addresses) => take_over(service, &pool.wire.name, written, &addresses),
                Err(why) => {
                    tracing::warn!(endpoint = written.id, address = written.address, why, "not resolved");
                    service.note(|registry| {
                        let alarm = format!("{}: {} cannot be resolved: {why}", written.id, written.address);
                        if !registry.alarms.contains(&alarm) && registry.alarms.len() < 32 {
                            registry.alarms.push(alarm);
                        }
                    });
                }
            }
        }
    }
    registrations::take_up_missing(service).await;
}

/// Every address that `host:port` stands for.
///
/// # Errors
/// Why there is none, in words.
pub async fn resolve(address: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let mut found: Vec<SocketAddr> = match tokio::net::lookup_host(address).await {
        Ok(found) => found.collect(),
        Err(error) => return Err(error.to_string()),
    };
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { Err("no address".into()) } else { Ok(found) }
}

fn take_over(service: &Service, pool: &str, written: &config::Endpoint, addresses: &[SocketAddr]) {
    let several = addresses.len() > 1;
    let wanted: HashMap<String, SocketAddr> = addresses
        .iter()
        .map(|address| (if several { id_of(&written.id, *address) } else { written.id.clone() }, *address))
        .filter(|(id, _)| is_id(id))
        .collect();
    let origin = Origin::File(written.id.clone());
    let now = now_ms();
    service.change(|registry| {
        registry.alarms.retain(|alarm| !alarm.starts_with(&format!("{}: {} cannot", written.id, written.address)));
        for (id, address) in &wanted {
            let node = if written.node == written.id { id.clone() } else { written.node.clone() };
            let endpoint = config::Endpoint { id: id.clone(), node, ..written.clone() };
            if let Err(error) = registry.register(pool, endpoint, *address, origin.clone()) {
                tracing::error!(endpoint = id, %error, "not taken over from the file");
            }
        }
        let stale: Vec<String> = registry
            .endpoints()
            .iter()
            .filter(|(id, endpoint)| endpoint.origin == origin && !wanted.contains_key(*id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in stale {
            if let Ok(endpoint) = registry.get_mut(&id) {
                endpoint.leaving_at_ms.get_or_insert(now + LEAVE_MS);
            }
        }
    });
    service.members.notify_one();
}

/// `<id>-<ip with dashes>-<port>`.
fn id_of(id: &str, address: SocketAddr) -> String {
    let ip = address.ip().to_string().replace(['.', ':'], "-");
    format!("{id}-{ip}-{}", address.port())
}

/// Forgets leaving endpoints that are empty, or late.
async fn release_leaving(service: &Service) {
    let leaving: Vec<(String, SocketAddr, u64, Option<u64>)> = service.read(|registry| {
        let all = registry.endpoints().iter();
        all.filter_map(|(id, endpoint)| {
            Some((id.clone(), endpoint.address, endpoint.leaving_at_ms?, endpoint.signals.running))
        })
        .collect()
    });
    for (id, address, at_ms, running) in leaving {
        // Envoys must know that it drains before it can be called empty.
        let told = service.xds.wait_applied(service.version(), TOLD).await;
        // Without an Envoy to ask, the engine's own count decides; without either, the deadline.
        let empty = if service.admins.is_empty() { running == Some(0) } else { service.admins.idle(address).await };
        if !(told && empty) && now_ms() < at_ms {
            continue;
        }
        let _order = service.order.lock().await;
        // It may have come back while Envoys were asked.
        let forgotten = service.change(|registry| {
            let leaving = registry.get(&id).is_ok_and(|endpoint| endpoint.leaving_at_ms.is_some());
            leaving.then(|| registry.forget(&id)).flatten()
        });
        if forgotten.is_none() {
            continue;
        }
        tracing::info!(endpoint = id, "forgotten");
        let tables = [Table::Pins, Table::Drains, Table::Last, Table::History, Table::Epochs, Table::Averages];
        // What another prober has removed already is gone; who has registered there since is not.
        let known = |table: &Table| service.store.get::<IgnoredAny>(*table, &id).is_some();
        if !known(&Table::Registrations) {
            let changes = tables.into_iter().filter(known).map(|table| Change::remove(table, &id));
            service.remember(changes.collect()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_resolve_and_get_ids() {
        assert_eq!(resolve("10.0.0.1:80").await.unwrap(), ["10.0.0.1:80".parse().unwrap()]);
        assert!(resolve("localhost:80").await.unwrap().iter().all(|address| address.ip().is_loopback()));
        assert!(resolve("no-such-host.invalid:80").await.is_err());
        assert_eq!(id_of("vllm", "10.0.0.1:80".parse().unwrap()), "vllm-10-0-0-1-80");
        assert!(is_id(&id_of("vllm", "[fe80::1]:80".parse().unwrap())));
    }
}
