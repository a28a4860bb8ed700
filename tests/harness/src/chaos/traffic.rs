//! Steady mixed load: clients that hold conversations, ask single questions, stream or not, and leave in the middle now
//! and then. What each sends follows from the seed; what became of it goes into the [`Ledger`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ledger::{End, Kind, Ledger, Line};
use super::stage::ID_HEADER;
use crate::load::{Call, Client, Conversation};

/// Turns of a conversation.
const TURNS: usize = 6;
/// Longest pause between two requests of a client.
const THINK_MS: u64 = 60;

/// How long a client waits where nobody listens before it tries again.
const RECONNECT: Duration = Duration::from_millis(100);

/// How the clients of a pool behave.
#[derive(Debug, Clone)]
pub struct TrafficOptions {
    /// Clients of each pool.
    pub clients: usize,
    /// Tokens of an answer: uniform between these.
    pub tokens: (u32, u32),
    /// A client gives up after so long.
    pub patience: Duration,
    /// Only streams, back to back, that nobody leaves.
    pub streams_only: bool,
    /// Of everything random.
    pub seed: u64,
}

/// Running clients; dropped, they leave in the middle of whatever they do.
#[derive(Debug)]
pub struct Traffic {
    target: SocketAddr,
    options: TrafficOptions,
    flow: watch::Sender<Flow>,
    /// Requests without an end yet, by pool.
    outstanding: Vec<(String, Arc<AtomicUsize>)>,
    ledger: Arc<Ledger>,
    clients: JoinSet<()>,
    born: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Runs,
    Pauses,
    Ends,
}

impl Traffic {
    /// Starts the clients of these pools, whose models have their names.
    #[must_use]
    pub fn start(target: SocketAddr, pools: &[&str], options: TrafficOptions, ledger: Arc<Ledger>) -> Self {
        let outstanding = pools.iter().map(|pool| ((*pool).to_owned(), Arc::default())).collect();
        let flow = watch::Sender::new(Flow::Runs);
        let (clients, born) = (JoinSet::new(), 0);
        let mut traffic = Self { target, options, flow, outstanding, ledger, clients, born };
        for pool in pools {
            traffic.join(pool, traffic.options.clients, usize::MAX);
        }
        traffic
    }

    /// So many more clients of a pool, each for so many requests.
    pub fn join(&mut self, pool: &str, clients: usize, requests: usize) {
        let Some((_, outstanding)) = self.outstanding.iter().find(|(name, _)| name == pool) else { return };
        for _ in 0..clients {
            let mut user = User {
                name: format!("{pool}-{}", self.born),
                pool: pool.to_owned(),
                rng: StdRng::seed_from_u64(self.options.seed.wrapping_add(self.born as u64)),
                options: self.options.clone(),
                talk: Conversation::default(),
                turns: 0,
                asked: 0,
            };
            self.born += 1;
            let (mut flow, outstanding) = (self.flow.subscribe(), Arc::clone(outstanding));
            let (ledger, target) = (Arc::clone(&self.ledger), self.target);
            self.clients.spawn(async move {
                let mut client = Client::new(target);
                for _ in 0..requests {
                    // An error means that the traffic was dropped.
                    match flow.wait_for(|flow| *flow != Flow::Pauses).await.map(|flow| *flow) {
                        Ok(Flow::Runs) => {}
                        _ => return,
                    }
                    outstanding.fetch_add(1, Ordering::Relaxed);
                    let line = user.ask(&mut client).await;
                    outstanding.fetch_sub(1, Ordering::Relaxed);
                    let nobody = line.end == End::NoAnswer;
                    ledger.enter(line);
                    if nobody {
                        tokio::time::sleep(RECONNECT).await;
                    }
                    if !user.options.streams_only {
                        tokio::time::sleep(Duration::from_millis(user.rng.random_range(0..=THINK_MS))).await;
                    }
                }
            });
        }
    }

    /// Requests of a pool that have no end yet.
    #[must_use]
    pub fn outstanding(&self, pool: &str) -> usize {
        let found = self.outstanding.iter().find(|(name, _)| name == pool);
        found.map_or(0, |(_, outstanding)| outstanding.load(Ordering::Relaxed))
    }

    /// No client sends anything new, until [`Self::resume`]; waits until every request has ended, at most as long as a
    /// client's patience lasts.
    pub async fn pause(&self) {
        self.flow.send_replace(Flow::Pauses);
        let start = Instant::now();
        while self.outstanding.iter().any(|(pool, _)| self.outstanding(pool) > 0)
            && start.elapsed() < self.options.patience + Duration::from_secs(1)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The end of a pause.
    pub fn resume(&self) {
        self.flow.send_replace(Flow::Runs);
    }

    /// Every client ends its request and goes.
    pub async fn end(mut self) {
        self.flow.send_replace(Flow::Ends);
        while self.clients.join_next().await.is_some() {}
    }
}

/// One user.
struct User {
    name: String,
    pool: String,
    rng: StdRng,
    options: TrafficOptions,
    talk: Conversation,
    turns: usize,
    asked: usize,
}

impl User {
    async fn ask(&mut self, client: &mut Client) -> Line {
        self.asked += 1;
        let id = format!("{}-{}", self.name, self.asked);
        let (least, most) = self.options.tokens;
        let tokens = self.rng.random_range(least..=most);
        let kind = match self.rng.random_range(0..10) {
            _ if self.options.streams_only => Kind::Stream,
            0..5 => Kind::Turn,
            5..8 => Kind::Whole,
            8 => Kind::Stream,
            _ => Kind::Leaves,
        };
        let call = match kind {
            Kind::Turn => {
                if self.turns == TURNS {
                    (self.talk, self.turns) = (Conversation::default(), 0);
                }
                self.turns += 1;
                self.talk.ask(&self.pool, &format!("{id}: and then?"), tokens, true)
            }
            Kind::Whole => Call::chat(&self.pool, &id, tokens),
            Kind::Stream => Call::chat_stream(&self.pool, &id, tokens),
            Kind::Leaves => Call::chat_stream(&self.pool, &id, tokens).cut_after(self.rng.random_range(0..4)),
        };
        let begun = Instant::now();
        let outcome = client.send(call.header(ID_HEADER, &id).timeout(self.options.patience)).await;
        if kind == Kind::Turn {
            if outcome.is_ok() {
                self.talk.hear(&outcome);
            } else {
                self.turns = TURNS;
            }
        }
        Line::new(id, &self.pool, kind, tokens, begun, &outcome)
    }
}
