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

use crate::config::{self, Networks};
use crate::engine::access::{Access, May};
use crate::registrations;
use crate::registry::{Going, Origin, Progress, Registry};
use crate::service::{Service, now_ms};
use crate::store::{Change, Table};
use crate::watch;

/// How often names are resolved.
const RESOLVE: Duration = Duration::from_secs(10);
/// The most alarms of members.
const MAX_ALARMS: usize = 32;
/// How often endpoints on their way out are looked at.
const LOOK: Duration = Duration::from_millis(500);

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
            look_at_going(&service).await;
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
            let mut wrong = Vec::new();
            let access = match Access::read(&written.reach, &written.address, May::NameAll) {
                Ok(access) => Arc::new(access),
                Err(error) => {
                    // Whoever is there already is spoken to as before.
                    alarm(service, written, &[error.to_string()]);
                    continue;
                }
            };
            match resolve(&written.address, &service.config.networks).await {
                Ok(Resolved { permitted, refused }) => {
                    wrong.extend(refused);
                    if !permitted.is_empty() {
                        wrong.extend(take_over(service, &pool.wire.name, written, &permitted, &access));
                    }
                }
                Err(why) => wrong.push(format!("it does not resolve: {why}")),
            }
            alarm(service, written, &wrong);
        }
    }
    registrations::take_up_missing(service).await;
}

/// Says what is wrong with an address of the file now, and no longer what was wrong with it before.
fn alarm(service: &Service, written: &config::Endpoint, wrong: &[String]) {
    let of_it = format!("{}: {}: ", written.id, written.address);
    service.note(|registry| {
        let before = registry.alarms.extract_if(.., |alarm| alarm.starts_with(&of_it)).collect::<Vec<_>>();
        for why in wrong {
            let alarm = format!("{of_it}{why}");
            if !before.contains(&alarm) {
                tracing::warn!(endpoint = written.id, address = written.address, why, "not taken over from the file");
            }
            if registry.alarms.len() < MAX_ALARMS {
                registry.alarms.push(alarm);
            }
        }
    });
}

/// What `host:port` stands for.
#[derive(Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Where endpoints may be, in order.
    pub permitted: Vec<SocketAddr>,
    /// Why none may be at the others, a sentence each.
    pub refused: Vec<String>,
}

impl Resolved {
    /// The first address, when endpoints may be at all of them: a name that leads anywhere else cannot be trusted.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn only(self) -> Result<SocketAddr, String> {
        match (self.refused.into_iter().next(), self.permitted.first()) {
            (Some(why), _) => Err(why),
            (None, Some(address)) => Ok(*address),
            (None, None) => Err("no address".into()),
        }
    }
}

/// Every address that `host:port` stands for.
///
/// # Errors
/// Why there is none, in words.
pub async fn resolve(address: &str, networks: &Networks) -> Result<Resolved, String> {
    let found = look_up(address).await?;
    let (permitted, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|address| networks.permit(*address));
    let refused = others.iter().map(|address| format!("it is {address}: expected {}", networks.expected()));
    Ok(Resolved { permitted, refused: refused.collect() })
}

async fn look_up(address: &str) -> Result<Vec<SocketAddr>, String> {
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

/// Makes the registry have an endpoint at each address, and no other of this origin. Returns what is refused, and why.
fn take_over(
    service: &Service,
    pool: &str,
    written: &config::Endpoint,
    addresses: &[SocketAddr],
    access: &Arc<Access>,
) -> Vec<String> {
    let several = addresses.len() > 1;
    let wanted: HashMap<String, SocketAddr> = addresses
        .iter()
        .map(|address| (if several { id_of(&written.id, *address) } else { written.id.clone() }, *address))
        .filter(|(id, _)| is_id(id))
        .collect();
    let origin = Origin::File(written.id.clone());
    let (now, deadline) = (now_ms(), service.config.drain_deadline);
    let mut refused = Vec::new();
    service.change(|registry| {
        let stale: Vec<String> = registry
            .endpoints()
            .iter()
            .filter(|(id, endpoint)| endpoint.origin == origin && !wanted.contains_key(*id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in stale {
            if let Ok(endpoint) = registry.get_mut(&id) {
                endpoint.remove("its name does not resolve to this address any more", deadline, now);
            }
        }
        // After those that leave: an address may only have got another id.
        for (id, address) in &wanted {
            let node = if written.node == written.id { id.clone() } else { written.node.clone() };
            let endpoint = config::Endpoint { id: id.clone(), node, ..written.clone() };
            if let Err(error) = service.admit(registry, pool, endpoint, *address, origin.clone(), access) {
                refused.push(format!("{id} is not taken over: {error}"));
            }
        }
    });
    service.members.notify_one();
    refused
}

/// `<id>-<ip with dashes>-<port>`.
fn id_of(id: &str, address: SocketAddr) -> String {
    let ip = address.ip().to_string().replace(['.', ':'], "-");
    format!("{id}-{ip}-{}", address.port())
}

/// Looks how far endpoints are that take no more requests, and forgets those that are to be forgotten once they are empty,
/// or late.
async fn look_at_going(service: &Service) {
    let going = service.note(Registry::going);
    if going.is_empty() {
        return;
    }
    let connected = service.xds.envoys().iter().filter(|envoy| envoy.connected).count();
    for Going { id, address, version, empty } in going {
        let told = service.xds.wait_applied(version, Duration::ZERO).await;
        let others = service.store.is_shared();
        let left = service.read(|registry| registry.left(&id, connected, others, now_ms())).count();
        // Nothing new can come, so what was confirmed once is not asked for again.
        let left = if empty && left == Some(0) { left } else { left_in_envoys(service, address, left).await };
        let (news, forget) = service.note(|registry| {
            let now_ms = now_ms();
            (registry.looked_at(&id, told, left, now_ms), registry.may_be_forgotten(&id, now_ms))
        });
        match news {
            Some(Progress::Drained) => tracing::info!(endpoint = id, "drained: nothing is left there"),
            Some(Progress::Overdue) => tracing::warn!(endpoint = id, left, "not empty at its deadline"),
            Some(Progress::Draining) | None => {}
        }
        if forget {
            self::forget(service, &id).await;
        }
    }
}

/// What is left, when Envoys' admin interfaces can be asked, too: they know of requests that no filter has counted, and where
/// nobody else tells they are the only ones that do.
async fn left_in_envoys(service: &Service, address: SocketAddr, left: Option<u64>) -> Option<u64> {
    match left {
        Some(0) | None if !service.admins.is_empty() => service.admins.idle(address).await.then_some(0),
        left => left,
    }
}

async fn forget(service: &Service, id: &str) {
    let _order = service.order.lock().await;
    // It may have come back meanwhile.
    let forgotten = service.change(|registry| {
        let may = registry.may_be_forgotten(id, now_ms());
        may.then(|| registry.forget(id)).flatten()
    });
    let Some(endpoint) = forgotten else { return };
    let left = endpoint.emptying.and_then(|emptying| emptying.left);
    tracing::info!(endpoint = id, left, "forgotten");
    let tables = [Table::Pins, Table::Drains, Table::Last, Table::History, Table::Epochs, Table::Averages];
    // What another prober has removed already is gone; who has registered there since is not.
    let known = |table: &Table| service.store.get::<IgnoredAny>(*table, id).is_some();
    if !known(&Table::Registrations) {
        let changes = tables.into_iter().filter(known).map(|table| Change::remove(table, id));
        service.remember(changes.collect()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_resolve_and_get_ids() {
        let everywhere = Networks::default();
        let only = async |address: &str| resolve(address, &everywhere).await.and_then(Resolved::only);
        assert_eq!(only("10.0.0.1:80").await, Ok("10.0.0.1:80".parse().unwrap()));
        let local = resolve("localhost:80", &everywhere).await.unwrap();
        assert!(!local.permitted.is_empty() && local.permitted.iter().all(|address| address.ip().is_loopback()));
        assert!(only("no-such-host.invalid:80").await.is_err());
        assert!(only("169.254.169.254:80").await.unwrap_err().contains("169.254.0.0/16"));
        assert_eq!(id_of("vllm", "10.0.0.1:80".parse().unwrap()), "vllm-10-0-0-1-80");
        assert!(is_id(&id_of("vllm", "[fe80::1]:80".parse().unwrap())));
    }
}
