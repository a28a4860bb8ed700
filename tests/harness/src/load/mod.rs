//! Load: requests on keep-alive connections, and what became of each.
//!
//! [`Client`] sends one after another; [`closed_loop`] keeps a number of connections busy until all requests are sent; [`at_once`] opens a connection per
//! request first and then lets them all go together; [`send`] sends one; [`hold`] begins one and keeps it open. A
//! [`Call`] says how its body travels: cut, framed, over which version.

mod call;
mod connection;
mod conversation;
mod held;
mod report;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

pub use call::{Call, Framing, Version};
pub use conversation::Conversation;
pub use held::{Held, hold};
pub use report::{Outcome, Report, Usage};

pub use crate::paced::Pieces;

use connection::Connection;

/// One client: its requests go one after another over a keep-alive connection, which is opened anew when it was closed.
pub struct Client(Connection);

impl Client {
    /// A client that has not connected yet.
    #[must_use]
    pub fn new(target: SocketAddr) -> Self {
        Self(Connection::new(target))
    }

    /// The whole exchange.
    pub async fn send(&mut self, call: Call) -> Outcome {
        self.0.send(call, 0).await
    }
}

/// Sends one request on a connection of its own.
pub async fn send(target: SocketAddr, call: Call) -> Outcome {
    Connection::new(target).send(call, 0).await
}

/// Sends `requests` requests, each connection one after another. `make` gets the number of the request, from 0.
pub async fn closed_loop(
    target: SocketAddr,
    connections: usize,
    requests: usize,
    make: impl Fn(usize) -> Call + Send + Sync + 'static,
) -> Report {
    let (make, next) = (Arc::new(make), Arc::new(AtomicUsize::new(0)));
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..connections {
        let (make, next) = (make.clone(), next.clone());
        workers.spawn(async move {
            let mut connection = Connection::new(target);
            let mut outcomes = Vec::new();
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= requests {
                    return outcomes;
                }
                outcomes.push(connection.send(make(nth), nth).await);
            }
        });
    }
    Report::new(workers.join_all().await.into_iter().flatten().collect(), start.elapsed())
}

/// Connects once per call, waits until all are connected, and sends all of them together.
pub async fn at_once(target: SocketAddr, calls: Vec<Call>) -> Report {
    let barrier = Arc::new(Barrier::new(calls.len()));
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for (nth, call) in calls.into_iter().enumerate() {
        let barrier = barrier.clone();
        workers.spawn(async move {
            let mut connection = Connection::new(target);
            // What cannot connect now says so when it sends.
            let _ = connection.connect(call.version).await;
            barrier.wait().await;
            connection.send(call, nth).await
        });
    }
    Report::new(workers.join_all().await, start.elapsed())
}

/// The same request `n` times, all together.
pub async fn burst_at_once(target: SocketAddr, n: usize, call: Call) -> Report {
    at_once(target, vec![call; n]).await
}
