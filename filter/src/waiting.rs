//! A request that waits for a slot, paused in Envoy with its body.
//!
//! The live table has its place; here is what it takes to send it on its way. Its turn comes by a wake-up ([`crate::wake`]) or,
//! failing that, by a tick, which also finds those whose time is over. Whoever goes without its slot leaves the queue: a
//! client that has gone, an error, a pool that is no more.

use std::rc::Rc;

use weighbridge_routing::api_error::ApiError;
use weighbridge_routing::decision::{Decision, QueueRecord};
use weighbridge_routing::live::{Claim, Left, Queued, Standing};
use weighbridge_routing::prefix::index::Search;
use weighbridge_routing::request::Shape;
use weighbridge_routing::route::Refusal as Why;
use weighbridge_routing::snapshot::{Pool, Snapshot};

use crate::answer::Refusal;
use crate::host;
use crate::place::{begin, record};
use crate::placed::{Known, Placed};
use crate::vm;

pub(crate) struct Waiting {
    snapshot: Rc<Snapshot>,
    pool: usize,
    known: Known,
    search: Search,
    queued: Queued,
}

/// What became of a request that waited.
pub(crate) enum Turn {
    /// It has its endpoint and can go on.
    Placed(Box<Placed>),
    /// It waits on.
    Waits(Box<Waiting>),
    /// It has waited for nothing.
    Refused(Refusal),
}

impl Waiting {
    /// A request that has got its place in the queue.
    pub(crate) fn new(snapshot: Rc<Snapshot>, pool: usize, known: Known, search: Search, queued: Queued) -> Self {
        let waiting = Waiting { snapshot, pool, known, search, queued };
        if let Some(pool) = waiting.pool() {
            vm::with(|vm| vm.seat(&pool.name, waiting.queued.ticket, waiting.known.context));
        }
        waiting
    }

    fn pool(&self) -> Option<&Pool> {
        self.snapshot.pools.get(self.pool)
    }

    /// Comes for its slot.
    pub(crate) fn claim(mut self: Box<Self>) -> Turn {
        if !self.follow_snapshot() {
            return self.pool_gone();
        }
        let Some(pool) = self.snapshot.pools.get(self.pool) else { return Turn::Waits(self) };
        let ticket = self.queued.ticket;
        match vm::with(|vm| vm.claim(pool, ticket, &mut self.search, host::now_ms())) {
            Claim::Waiting => Turn::Waits(self),
            Claim::Admitted(admitted) => {
                vm::with(|vm| {
                    vm.unseat(&pool.name, ticket);
                    if let Some(waited) = &admitted.waited {
                        vm.stats.queue_wait(&pool.name, waited.total_ms);
                    }
                });
                let Waiting { snapshot, pool, known, search, queued } = *self;
                let placed = Placed::new(snapshot, pool, known, admitted, search).after(queued.ticket, queued.position);
                match begin(placed) {
                    Ok(placed) => Turn::Placed(placed),
                    Err(refusal) => Turn::Refused(refusal),
                }
            }
            Claim::Unknown => {
                // Its VM has forgotten it: that cannot be, and must not leave a request paused for ever.
                self.pool_gone()
            }
        }
    }

    /// Looks after itself, now that the tick says how it stands.
    pub(crate) fn stands(self: Box<Self>, standing: Standing) -> Turn {
        match standing {
            Standing::Waiting | Standing::Lost => Turn::Waits(self),
            Standing::Granted => self.claim(),
            Standing::Expired => {
                let left = self.leave();
                let error = ApiError::queue_timeout(self.pool_name(), self.waited_ms(), left.retry_after_s);
                self.refuse(error, "queue_timeout")
            }
            Standing::Hopeless(refusal) => {
                let left = self.leave();
                let mut error = ApiError::refused(refusal, self.pool_name(), &self.known.ask, Shape::Chat);
                if refusal == Why::QueueFull {
                    error.retry_after_s = Some(left.retry_after_s);
                }
                self.refuse(error, refusal.as_str())
            }
        }
    }

    /// Its pool has gone from the snapshot.
    pub(crate) fn pool_gone(self: Box<Self>) -> Turn {
        self.leave();
        let error = ApiError::pool_gone(self.pool_name());
        self.refuse(error, "no_endpoint")
    }

    /// Its client has gone.
    pub(crate) fn client_left(&self) {
        self.leave();
        self.record("client_left");
        vm::with(|vm| vm.stats.refused(self.pool_name(), "client_left"));
    }

    /// Gives up its place, and the slot that it may have been given: that goes to the next.
    pub(crate) fn leave(&self) -> Left {
        let Some(pool) = self.pool() else { return Left { had_slot: false, retry_after_s: 1 } };
        vm::with(|vm| {
            vm.unseat(&pool.name, self.queued.ticket);
            vm.leave(pool, self.queued.ticket, host::now_ms())
        })
    }

    fn pool_name(&self) -> &str {
        self.pool().map_or("none", |pool| &pool.name)
    }

    fn waited_ms(&self) -> u64 {
        host::now_ms().saturating_sub(self.known.started_ms)
    }

    /// The snapshot may have changed since it came: caps, endpoints and their places. `false` when its pool has gone.
    fn follow_snapshot(&mut self) -> bool {
        let Some(now) = vm::with(|vm| vm.snapshot()).filter(|now| !Rc::ptr_eq(now, &self.snapshot)) else {
            return true;
        };
        let Some(place) = now.pools.iter().position(|pool| pool.name == self.pool_name()) else { return false };
        if let Some(pool) = now.pools.get(place) {
            let (prefixes, home) = std::mem::take(&mut self.search).into_prompt();
            self.search = vm::with(|vm| vm.search(pool, prefixes, home, host::now_ms()));
        }
        self.pool = place;
        self.snapshot = now;
        true
    }

    fn refuse(&self, error: ApiError, reason: &'static str) -> Turn {
        let decision = self.record(reason).filter(|_| self.known.explain);
        Turn::Refused(Refusal { decision, ..Refusal::new(error, self.pool_name(), reason) })
    }

    /// Writes down that it has waited in vain, and why.
    fn record(&self, reason: &'static str) -> Option<String> {
        let pool = self.pool()?;
        let wait_ms = self.waited_ms();
        let Queued { ticket, position, .. } = self.queued;
        let decision = Decision {
            reason,
            queue: Some(QueueRecord { ticket, position: position as u64, wait_ms }),
            spilled_from: self.known.spilled_from.as_deref(),
            ..Decision::refused(pool, self.snapshot.version, &self.known.ask, &self.queued.refused)
        };
        Some(record(decision, wait_ms))
    }
}
