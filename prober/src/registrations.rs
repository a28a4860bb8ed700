//! Endpoints that registered over the API, as the store has them: here before a restart, or at another prober.
//!
//! Their names are resolved all at once, within [`RESOLVE`]. One that does not resolve is not given up: as long as the store
//! has it and the registry has not, it is tried again with the names of the file ([`crate::members`]).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::api::Registration;
use crate::config::Networks;
use crate::engine::access::Access;
use crate::members;
use crate::registry::{Origin, Registry};
use crate::service::Service;
use crate::store::Table;

/// How long names may take, all together.
const RESOLVE: Duration = Duration::from_secs(2);

/// The addresses of those whose names resolve, by endpoint.
pub async fn resolved(registrations: &[&Registration], networks: &Networks) -> HashMap<String, SocketAddr> {
    resolved_by(registrations, |address| async move {
        members::resolve(&address, networks).await.and_then(members::Resolved::only)
    })
    .await
}

async fn resolved_by<F>(registrations: &[&Registration], resolve: impl Fn(String) -> F) -> HashMap<String, SocketAddr>
where
    F: Future<Output = Result<SocketAddr, String>>,
{
    let deadline = Instant::now() + RESOLVE;
    let each = registrations.iter().map(|registration| {
        let (id, address, resolving) = (&registration.id, &registration.address, resolve(registration.address.clone()));
        async move {
            let why = match timeout_at(deadline, resolving).await {
                Ok(Ok(address)) => return Some((id.clone(), address)),
                Ok(Err(why)) => why,
                Err(_) => "no answer".to_owned(),
            };
            tracing::warn!(endpoint = id, address, why, "registered, and not resolved; it is tried again");
            None
        }
    });
    join_all(each).await.into_iter().flatten().collect()
}

/// Takes up those that the registry lacks.
pub async fn take_up_missing(service: &Service) {
    let all = service.store.all::<Registration>(Table::Registrations);
    // One of a pool that is not configured any more cannot be taken up, however often it is tried.
    let pool_is_known = |pool: &str| service.config.pools.iter().any(|known| known.wire.name == pool);
    let missing: Vec<&Registration> = service.read(|registry| {
        let missing = all.iter().filter(|(id, wanted)| registry.get(id).is_err() && pool_is_known(&wanted.pool));
        missing.map(|(_, registration)| registration).collect()
    });
    if missing.is_empty() {
        return;
    }
    let addresses = resolved(&missing, &service.config.networks).await;
    if addresses.is_empty() {
        return;
    }
    let _order = service.order.lock().await;
    service.change(|registry| {
        for (id, address) in addresses {
            // It may have been removed meanwhile, or have registered itself.
            let registration = service.store.get::<Registration>(Table::Registrations, &id);
            let same = registration.filter(|registration| all.get(&id) == Some(registration));
            if let Some(registration) = same.filter(|_| registry.get(&id).is_err()) {
                take_up(service, registry, registration, address);
            }
        }
    });
    service.members.notify_one();
}

/// Takes up one whose name has resolved.
pub fn take_up(service: &Service, registry: &mut Registry, registration: Registration, address: SocketAddr) {
    let (pool, written) = registration.into_parts();
    let id = written.id.clone();
    let access = match Access::read(&written.reach, &written.address, service.registrations_may()) {
        Ok(access) => Arc::new(access),
        Err(error) => {
            tracing::warn!(endpoint = id, %error, "registered in the store, and cannot be spoken to from here");
            return;
        }
    };
    if let Err(error) = service.admit(registry, &pool, written, address, Origin::Api, &access) {
        tracing::warn!(endpoint = id, %error, "registered in the store, and refused here");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service;
    use crate::store::Change;
    use serde_json::json;
    use tokio::sync::Barrier;

    fn registration(id: &str, address: &str) -> Registration {
        serde_json::from_value(json!({"pool": "p", "id": id, "address": address})).unwrap()
    }

    #[tokio::test]
    async fn names_are_resolved_at_once_and_one_that_hangs_holds_nobody_up() {
        let all: Vec<Registration> =
            ["a", "b", "hangs", "c", "wrong"].map(|id| registration(id, &format!("{id}:80"))).into();
        // None of the three goes on before all are under way.
        let barrier = Barrier::new(3);
        let all: Vec<&Registration> = all.iter().collect();
        let found = resolved_by(&all, |address| {
            let barrier = &barrier;
            async move {
                match address.as_str() {
                    "hangs:80" => std::future::pending().await,
                    "wrong:80" => Err("no such host".into()),
                    _ => {
                        barrier.wait().await;
                        Ok("10.0.0.1:80".parse().unwrap())
                    }
                }
            }
        });
        let found = tokio::time::timeout(2 * RESOLVE, found).await.unwrap();
        let mut ids: Vec<&str> = found.keys().map(String::as_str).collect();
        ids.sort_unstable();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(found["a"], "10.0.0.1:80".parse().unwrap());
    }

    #[tokio::test]
    async fn what_the_registry_lacks_is_taken_up_with_the_names_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let service = service::tests::service(dir.path()).await;
        // It did not resolve when it came; now it does.
        let change = |id: &str, what: &Registration| Change::put(Table::Registrations, id, what).unwrap();
        let elsewhere = Registration { pool: "gone".into(), ..registration("y", "127.0.0.1:9") };
        service.store.put(vec![change("x", &registration("x", "127.0.0.1:9")), change("y", &elsewhere)]);
        members::resolve_all(&service).await;
        let there = service.read(|registry| registry.endpoints().keys().cloned().collect::<Vec<_>>());
        assert_eq!(there, ["x"]);
        // Nor does it come back once it has been removed.
        service.store.put(vec![Change::remove(Table::Registrations, "x")]);
        service.change(|registry| registry.forget("x"));
        members::resolve_all(&service).await;
        assert!(service.read(|registry| registry.endpoints().is_empty()));
    }
}
