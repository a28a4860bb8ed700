//! What other probers over the same store have changed is taken in here: pins, drains, results, registrations, and who
//! bursts. Without others nothing ever comes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::api::Registration;
use crate::registrations;
use crate::registry::{History, News, Origin, Registry};
use crate::service::{Asked, Service, now_ms};
use crate::store::{Key, Table};

/// Takes in what comes until `shutdown`.
pub async fn run(service: Arc<Service>, shutdown: CancellationToken) {
    let mut lease = service.store.lease();
    hear_of_the_lease(&service);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            news = service.store.news() => {
                // Names may take their time.
                if shutdown.run_until_cancelled(take_in(&service, &news)).await.is_none() {
                    return;
                }
            }
            changed = lease.changed() => {
                if changed.is_err() {
                    return;
                }
                hear_of_the_lease(&service);
            }
        }
    }
}

/// Only another prober's bursts are followed.
pub fn hear_of_the_lease(service: &Service) {
    let lease = service.store.lease().borrow().clone();
    let fence = lease.current_fence().filter(|_| lease.is_others());
    service.change(|registry| registry.follow(fence));
}

async fn take_in(service: &Service, news: &BTreeSet<Key>) {
    let of = |wanted: Table| news.iter().filter(move |(table, _)| *table == wanted).map(|(_, id)| id);
    let registered: Vec<(&String, Option<Registration>)> =
        of(Table::Registrations).map(|id| (id, service.store.get(Table::Registrations, id))).collect();
    let wanted: Vec<&Registration> = registered.iter().filter_map(|(_, registration)| registration.as_ref()).collect();
    let addresses = registrations::resolved(&wanted, &service.config.networks).await;
    // A change wakes whoever waits for one, and ends in reports to other probers. What these say of themselves is none: two
    // probers would keep each other awake.
    if news.iter().any(|(table, _)| !matches!(table, Table::Peers | Table::Demands)) {
        // Values are read under it, so that they are not older than what is changed here meanwhile.
        let _order = service.order.lock().await;
        let now = now_ms();
        service.change(|registry| {
            for (id, registration) in &registered {
                match registration {
                    None => removed(registry, id, service.config.drain_deadline, now),
                    Some(registration) => {
                        if let Some(address) = addresses.get(*id) {
                            registrations::take_up(service, registry, registration.clone(), *address);
                        }
                    }
                }
            }
            for (table, key) in news {
                if let Some(news) = read(service, *table, key) {
                    registry.learn(key, news, now);
                }
            }
        });
    }
    if !registered.is_empty() {
        service.members.notify_one();
    }
    for id in of(Table::Demands) {
        if service.store.get::<Asked>(Table::Demands, id).is_none() {
            service.done_elsewhere(id);
        } else {
            service.wake.notify_waiters();
        }
    }
}

/// Another prober has removed a registration.
fn removed(registry: &mut Registry, id: &str, deadline: Duration, now: u64) {
    if let Ok(endpoint) = registry.get_mut(id)
        && endpoint.origin == Origin::Api
    {
        endpoint.remove("removed at another prober", deadline, now);
    }
}

/// What stands under a key now, as the registry understands it; nothing of tables that it does not know.
fn read(service: &Service, table: Table, key: &str) -> Option<News> {
    fn get<T: DeserializeOwned>(service: &Service, table: Table, key: &str) -> Option<T> {
        service.store.get(table, key)
    }
    let news = match table {
        Table::Pins => News::Pin(get(service, table, key)),
        Table::Drains => News::Drain(get(service, table, key)),
        Table::Last => News::Last(get(service, table, key)),
        Table::Results => News::Result(get(service, table, key)),
        Table::History => News::History(get::<History>(service, table, key)),
        Table::Epochs => News::Epoch(get(service, table, key)),
        Table::Snapshot => News::Snapshot(get(service, table, key)),
        Table::Probing => News::Probing(get(service, table, key)),
        Table::Averages => News::Averages(get(service, table, key)),
        Table::Registrations | Table::Demands | Table::Peers => return None,
    };
    Some(news)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service;
    use crate::store::Change;
    use futures::FutureExt;
    use serde_json::json;
    use std::pin::pin;

    /// Whether news of this table wake those who wait for changes.
    async fn wakes(service: &Service, table: Table, key: &str) -> bool {
        let mut woken = pin!(service.wake.notified());
        woken.as_mut().enable();
        take_in(service, &BTreeSet::from([(table, key.to_owned())])).await;
        woken.now_or_never().is_some()
    }

    #[tokio::test]
    async fn what_other_probers_say_of_themselves_wakes_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let service = service::tests::service(dir.path()).await;
        assert!(!wakes(&service, Table::Peers, "another").await);
        assert!(wakes(&service, Table::Pins, "e").await);
    }

    #[tokio::test]
    async fn registrations_of_another_prober_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let service = service::tests::service(dir.path()).await;
        let news = BTreeSet::from([(Table::Registrations, "e".to_owned())]);
        let registration = json!({"pool": "p", "id": "e", "address": "127.0.0.1:9"});
        service.store.put(vec![Change::put(Table::Registrations, "e", &registration).unwrap()]);
        take_in(&service, &news).await;
        let leaves = || service.read(|registry| registry.get("e").map(|endpoint| endpoint.removal.is_some()));
        assert_eq!(leaves(), Ok(false));
        service.store.put(vec![Change::remove(Table::Registrations, "e")]);
        take_in(&service, &news).await;
        assert_eq!(leaves(), Ok(true));
    }
}
