//! What other probers over the same store have changed is taken in here: pins, drains, results, registrations, and who
//! bursts. Without others nothing ever comes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::api::Registration;
use crate::members::{LEAVE_MS, resolve};
use crate::registry::{History, News, Origin, Registry};
use crate::service::{Asked, Service, now_ms};
use crate::store::{Key, Table};

/// How long a name that another prober has resolved may take here.
const RESOLVE: Duration = Duration::from_secs(2);

/// Takes in what comes until `shutdown`.
pub async fn run(service: Arc<Service>, shutdown: CancellationToken) {
    let mut lease = service.store.lease();
    hear_of_the_lease(&service);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            news = service.store.news() => take_in(&service, &news).await,
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
    let mut registrations = Vec::new();
    for (_, id) in news.iter().filter(|(table, _)| *table == Table::Registrations) {
        let registration: Option<Registration> = service.store.get(Table::Registrations, id);
        let address = match &registration {
            Some(registration) => resolved(registration).await,
            None => None,
        };
        registrations.push((id, registration, address));
    }
    // Values are read under it, so that they are not older than what is changed here meanwhile.
    let _order = service.order.lock().await;
    let now = now_ms();
    service.change(|registry| {
        for (id, registration, address) in registrations {
            registered(registry, id, registration, address, now);
        }
        for (table, key) in news {
            if let Some(news) = read(service, *table, key) {
                registry.learn(key, news, now);
            }
        }
    });
    service.members.notify_one();
    for (_, id) in news.iter().filter(|(table, _)| *table == Table::Demands) {
        if service.store.get::<Asked>(Table::Demands, id).is_none() {
            let last = service.read(|registry| registry.get(id).ok()?.history.back().cloned());
            last.inspect(|record| service.done_elsewhere(id, record));
        }
    }
}

async fn resolved(registration: &Registration) -> Option<SocketAddr> {
    let why = match tokio::time::timeout(RESOLVE, resolve(&registration.address)).await {
        Ok(Ok(addresses)) => return addresses.first().copied(),
        Ok(Err(why)) => why,
        Err(_) => "no answer".to_owned(),
    };
    let (endpoint, address) = (&registration.id, &registration.address);
    tracing::warn!(endpoint, address, why, "registered elsewhere, and not resolved here; it may register again");
    None
}

fn registered(
    registry: &mut Registry,
    id: &str,
    registration: Option<Registration>,
    address: Option<SocketAddr>,
    now: u64,
) {
    let Some(registration) = registration else {
        if let Ok(endpoint) = registry.get_mut(id)
            && endpoint.origin == Origin::Api
        {
            endpoint.leaving_at_ms.get_or_insert(now + LEAVE_MS);
        }
        return;
    };
    let Some(address) = address else { return };
    let (pool, written) = registration.into_parts();
    if let Err(error) = registry.register(&pool, written, address, Origin::Api) {
        tracing::warn!(endpoint = id, %error, "registered elsewhere, and refused here");
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
