//! The model behind a lock, on the wall clock, with those who wait for its events.

mod conversations;
mod guards;
mod readings;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::config::EngineConfig;
use super::fault::{Fault, FaultKind, Faults, Refusal};
use super::launch_args::LaunchArgs;
use super::shapes::{Choice, Generation};
use super::state::{Outcome, RequestRecord};
use super::subscriber::{Subscriber, Waiter};
use conversations::Conversations;

use crate::model::{EventKind, Model, Nanos, Profile, ProfileError, Request, SubmitError};

pub(crate) use guards::{Flight, Ticket};
pub(crate) use readings::Reading;

/// Records kept.
const RECORDS: usize = 1_000;

/// One engine, shared by its connections and its [`drive`] task.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: EngineConfig,
    origin: Instant,
    nonce: u64,
    inner: Mutex<Inner>,
    wake: Notify,
    lives: watch::Sender<u64>,
    refusal: watch::Sender<Option<Refusal>>,
}

#[derive(Debug)]
struct Inner {
    model: Model,
    subscribers: HashMap<u64, Subscriber>,
    next_id: u64,
    /// When [`drive`] wakes up by itself.
    armed: Option<Nanos>,
    finished: Finished,
    records: VecDeque<RequestRecord>,
    conversations: Conversations,
    faults: Faults,
    http: Http,
    process: Process,
}

#[derive(Debug, Default)]
struct Http {
    in_flight: usize,
    in_flight_max: usize,
    hanging: usize,
    requests: u64,
    faults: u64,
    refused: u64,
}

#[derive(Debug)]
struct Process {
    profile: Arc<Profile>,
    launch_args: String,
    started_s: f64,
    restarts: u64,
    alive: bool,
}

/// Requests by how they finished, since the (re)start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Finished {
    pub(crate) stop: u64,
    pub(crate) length: u64,
    pub(crate) abort: u64,
}

impl Core {
    pub(crate) fn new(config: EngineConfig) -> Result<Self, ProfileError> {
        let profile = Arc::new(config.effective_profile(&LaunchArgs::parse(&config.launch_args))?);
        let mut model = Model::new((*profile).clone())?;
        if !config.cold {
            model.restart(0, (*profile).clone(), false)?;
        }
        let inner = Inner {
            model,
            subscribers: HashMap::new(),
            next_id: 0,
            armed: None,
            finished: Finished::default(),
            records: VecDeque::new(),
            conversations: Conversations::default(),
            faults: Faults::new(config.seed),
            http: Http::default(),
            process: Process {
                profile,
                launch_args: config.launch_args.clone(),
                started_s: unix_seconds(),
                restarts: 0,
                alive: true,
            },
        };
        let (lives, _) = watch::channel(0);
        let (refusal, _) = watch::channel(None);
        let (inner, wake) = (Mutex::new(inner), Notify::new());
        static ENGINES: AtomicU64 = AtomicU64::new(0);
        let nth = ENGINES.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let nonce = xxh3_64_with_seed(&nth, unix_seconds().to_bits());
        Ok(Self { config, origin: Instant::now(), nonce, inner, wake, lives, refusal })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine as launched.
    pub(crate) fn profile(&self) -> Arc<Profile> {
        self.lock().process.profile.clone()
    }

    /// Model time now.
    fn now(&self) -> Nanos {
        (self.origin.elapsed().as_nanos() as f64 * self.config.time_scale) as Nanos
    }

    /// A generation request has come in: it is counted, and the dice decide its fate.
    pub(crate) fn enter(self: &Arc<Self>) -> (Flight, Option<Fault>) {
        let mut inner = self.lock();
        let http = &mut inner.http;
        http.requests += 1;
        http.in_flight += 1;
        http.in_flight_max = http.in_flight_max.max(http.in_flight);
        let fault = inner.faults.draw(std::time::Instant::now());
        inner.http.faults += u64::from(fault.is_some());
        (Flight::new(self.clone()), fault)
    }

    /// A generation request was invalid.
    pub(crate) fn count_refusal(&self) {
        self.lock().http.refused += 1;
    }

    /// What distinguishes the ids of this engine's answers from all others'.
    pub(crate) fn nonce(&self) -> u64 {
        self.nonce
    }

    /// A later request may go on from this answer.
    pub(crate) fn remember(&self, id: String, conversation: Vec<u8>) {
        self.lock().conversations.put(id, conversation);
    }

    /// The conversation that ended with this answer.
    pub(crate) fn conversation(&self, id: &str) -> Option<Vec<u8>> {
        self.lock().conversations.get(id)
    }

    /// Hands a request to the model; `slow` is its slowdown factor, `path` and `headers` go into its
    /// records.
    pub(crate) fn submit(
        self: &Arc<Self>,
        profile: &Profile,
        generation: &Generation,
        slow: f64,
        path: &str,
        headers: &[(String, String)],
    ) -> Result<(Ticket, Waiter), SubmitError> {
        // Hashing is the expensive part, so it stays outside the lock.
        let mut requests: Vec<Request> = generation.choices.iter().map(|choice| sequence(choice, profile)).collect();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let now = self.now();
        let first = inner.next_id;
        inner.next_id += requests.len() as u64;
        let mut ticket = Ticket::new(self.clone(), first..first);
        for (id, mut request) in (first..).zip(requests.drain(..)) {
            (request.id, request.stream, request.slow) = (id, generation.stream, slow);
            if let Err(error) = inner.model.submit(now, request) {
                // Before the ticket, which takes it to cancel those already in.
                drop(guard);
                return Err(error);
            }
            ticket.add(id);
        }
        let (subscribers, waiter) = Subscriber::all(first, generation, path, headers, now);
        inner.subscribers.extend(subscribers.into_iter().map(|subscriber| (subscriber.id(), subscriber)));
        // What takes no time is done here and now, without a detour over the timer.
        inner.model.advance(now);
        inner.dispatch();
        self.rearm(inner);
        Ok((ticket, waiter))
    }

    fn cancel(&self, ids: Range<u64>) {
        let mut inner = self.lock();
        let now = self.now();
        for id in ids {
            let gone = inner.model.cancel(now, id);
            inner.dispatch();
            if gone {
                inner.finished.abort += 1;
                if let Some(subscriber) = inner.subscribers.remove(&id) {
                    inner.keep(subscriber, now, Outcome::Cancelled);
                }
            }
        }
        self.rearm(&mut inner);
    }

    /// Wakes [`drive`] when it would come too late.
    fn rearm(&self, inner: &mut Inner) {
        if let Some(next) = inner.model.next_event()
            && inner.armed.is_none_or(|armed| next < armed)
        {
            inner.armed = Some(next);
            self.wake.notify_one();
        }
    }

    /// Brings the model up to now; when to do so again.
    fn tick(&self) -> Option<Instant> {
        let mut inner = self.lock();
        let now = self.now();
        inner.model.advance(now);
        inner.dispatch();
        inner.armed = inner.model.next_event();
        let wall_nanos = inner.armed? as f64 / self.config.time_scale;
        // Rounded up, or the timer might fire just before the event.
        Some(self.origin + Duration::from_nanos(wall_nanos.ceil() as u64 + 1))
    }

    /// The process starts anew: running requests are lost, the cache and the counters are gone.
    pub(crate) fn restart(&self, cold: bool, launch_args: Option<String>) {
        let mut inner = self.lock();
        inner.lose_all(self.now());
        if let Some(launch_args) = launch_args {
            // The profile was valid when the engine was made, and arguments cannot make it invalid.
            if let Ok(profile) = self.config.effective_profile(&LaunchArgs::parse(&launch_args)) {
                inner.process.profile = Arc::new(profile);
            }
            inner.process.launch_args = launch_args;
        }
        let profile = (*inner.process.profile).clone();
        inner.conversations = Conversations::default();
        if inner.model.restart(self.now(), profile, cold).is_ok() {
            inner.finished = Finished::default();
        }
        inner.process.started_s = unix_seconds();
        inner.process.restarts += 1;
        inner.process.alive = true;
        drop(inner);
        self.lives.send_modify(|lives| *lives += 1);
    }

    /// The process dies: running requests are lost.
    pub(crate) fn kill(&self) {
        let mut inner = self.lock();
        inner.process.alive = false;
        inner.lose_all(self.now());
        drop(inner);
        self.lives.send_modify(|lives| *lives += 1);
    }

    /// Resolves when the process that runs now is gone.
    pub(crate) fn end_of_life(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut lives = self.lives.subscribe();
        async move {
            // An error means that the engine itself is gone.
            let _ = lives.changed().await;
        }
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        let refuses = fault.kind == FaultKind::Refuse;
        let mut inner = self.lock();
        inner.faults.set(fault, std::time::Instant::now());
        self.refusal.send_replace(refuses.then(|| Refusal { until: inner.faults.until() }));
    }

    pub(crate) fn fault(&self) -> Fault {
        self.lock().faults.current(std::time::Instant::now()).clone()
    }

    /// Whether and how long [`FaultKind::Refuse`] is in force; changes are seen through it.
    pub(crate) fn refusal(&self) -> watch::Receiver<Option<Refusal>> {
        self.refusal.subscribe()
    }
}

impl Inner {
    /// Hands the model's events to those who wait for them.
    fn dispatch(&mut self) {
        for event in self.model.take_events() {
            match event.kind {
                EventKind::Finished { .. } => {
                    if let Some(subscriber) = self.subscribers.remove(&event.id) {
                        match subscriber.finish_reason {
                            "stop" => self.finished.stop += 1,
                            _ => self.finished.length += 1,
                        }
                        self.keep(subscriber, event.at, Outcome::Finished);
                    }
                }
                kind => {
                    if let Some(subscriber) = self.subscribers.get_mut(&event.id) {
                        subscriber.note(event.at, kind);
                    }
                }
            }
        }
    }

    fn lose_all(&mut self, now: Nanos) {
        let lost = std::mem::take(&mut self.subscribers);
        for (id, subscriber) in lost {
            self.model.cancel(now, id);
            self.keep(subscriber, now, Outcome::Lost);
        }
        self.model.take_events();
    }

    /// The end of a request.
    fn keep(&mut self, subscriber: Subscriber, at: Nanos, outcome: Outcome) {
        if self.records.len() == RECORDS {
            self.records.pop_front();
        }
        self.records.push_back(subscriber.close(at, outcome));
    }
}

/// A choice as the model sees it, without a name yet.
fn sequence(choice: &Choice, profile: &Profile) -> Request {
    let blocks = choice.prompt.blocks(&choice.reply, profile.block_size_tokens);
    Request::new(0, choice.prompt.tokens(), choice.reply.tokens).with_blocks(blocks.prompt, blocks.output)
}

/// Keeps the model going: sleeps until its next event, or until a submission brings an earlier one.
pub(crate) async fn drive(core: Arc<Core>) {
    loop {
        match core.tick() {
            Some(at) => {
                tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = core.wake.notified() => {}
                }
            }
            None => core.wake.notified().await,
        }
    }
}

/// Wall-clock time in seconds since the epoch.
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
