//! Sending requests when they are due, whatever became of those before.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::arrivals::Arrival;
use super::routers::Front;
use crate::load::{Client, Outcome};
use crate::workload::HASH_HEADER;

/// The request header that names a request, so that the engines' records can be found again.
pub(super) const ID_HEADER: &str = "x-bench-id";
/// A client gives up so long after it has sent its request.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request that was sent.
#[derive(Debug, Clone)]
pub struct Sent {
    /// When it was due, after the beginning.
    pub due: Duration,
    /// How much later it was really sent.
    pub late: Duration,
    /// What became of it.
    pub outcome: Outcome,
}

/// Keep-alive connections that have nothing to do just now, as client libraries keep them.
#[derive(Clone, Default)]
struct Idle(Arc<Mutex<Vec<(SocketAddr, Client)>>>);

impl Idle {
    fn take(&self, target: SocketAddr) -> Client {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle.iter().rposition(|(to, _)| *to == target);
        found.map_or_else(|| Client::new(target), |place| idle.swap_remove(place).1)
    }

    fn give(&self, target: SocketAddr, client: Client) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((target, client));
    }
}

/// Sends all of them, the first `begin` from its moment on, and waits for every answer. In the order of the arrivals.
pub async fn drive(front: &Front, arrivals: &[Arrival], begin: Instant) -> Vec<Sent> {
    let idle = Idle::default();
    let mut running = JoinSet::new();
    for (nth, arrival) in arrivals.iter().enumerate() {
        let (idle, due, target) = (idle.clone(), arrival.at, front.target(nth));
        let mut call = arrival.call().timeout(PATIENCE).header(HASH_HEADER, &arrival.hash);
        call = call.header(ID_HEADER, &nth.to_string());
        for (name, value) in &front.headers {
            call = call.header(name, value);
        }
        running.spawn(async move {
            sleep_until(begin + due).await;
            let late = begin.elapsed().saturating_sub(due);
            let mut client = idle.take(target);
            let mut outcome = client.send(call).await;
            outcome.nth = nth;
            idle.give(target, client);
            Sent { due, late, outcome }
        });
    }
    let mut sent = running.join_all().await;
    sent.sort_by_key(|sent| sent.outcome.nth);
    sent
}
