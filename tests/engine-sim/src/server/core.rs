//! The model behind a lock, on the wall clock, with those who wait for its events.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};

use super::api::Generation;
use super::config::EngineConfig;
use super::fault::{Fault, FaultKind, Faults, Refusal};
use super::launch_args::LaunchArgs;
use super::state::{Outcome, RequestRecord, State};
use super::subscriber::{Subscriber, Waiter};
use crate::model::{EventKind, Model, Nanos, Profile, ProfileError, Request, Stats, SubmitError};

/// Records kept.
const RECORDS: usize = 1_000;

/// One engine, shared by its connections and its [`drive`] task.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: EngineConfig,
    origin: Instant,
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

/// What [`super::metrics`] shows.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) stats: Stats,
    pub(crate) profile: Arc<Profile>,
    pub(crate) launch_args: LaunchArgs,
    /// Generation requests ever received, and the most that were under way together at the HTTP level.
    pub(crate) requests: u64,
    pub(crate) in_flight_max: usize,
    /// Requests that hang before they reached the model.
    pub(crate) hanging: usize,
    pub(crate) finished: Finished,
    pub(crate) started_s: f64,
}

/// A request in the model. Dropped before [`Self::done`], it is cancelled.
#[derive(Debug)]
pub(crate) struct Ticket {
    core: Arc<Core>,
    pub(crate) id: u64,
    done: bool,
}

impl Ticket {
    /// Nothing is left to cancel.
    pub(crate) fn done(&mut self) {
        self.done = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.done {
            self.core.cancel(self.id);
        }
    }
}

/// A generation request at the HTTP level, counted until dropped.
#[derive(Debug)]
pub(crate) struct Flight {
    core: Arc<Core>,
    hanging: bool,
}

impl Flight {
    /// It never reaches the model; `/metrics` shows it as running all the same, as an engine that is stuck would.
    pub(crate) fn hangs(&mut self) {
        if !std::mem::replace(&mut self.hanging, true) {
            self.core.lock().http.hanging += 1;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let http = &mut self.core.lock().http;
        http.in_flight -= 1;
        http.hanging -= usize::from(self.hanging);
    }
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
        Ok(Self { config, origin: Instant::now(), inner, wake, lives, refusal })
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
        (Flight { core: self.clone(), hanging: false }, fault)
    }

    /// A generation request was invalid.
    pub(crate) fn count_refusal(&self) {
        self.lock().http.refused += 1;
    }

    /// Hands a request to the model; `slow` is its slowdown factor.
    pub(crate) fn submit(
        self: &Arc<Self>,
        profile: &Profile,
        generation: &Generation,
        slow: f64,
        request_id: Option<String>,
    ) -> Result<(Ticket, Waiter), SubmitError> {
        // Hashing is the expensive part, so it stays outside the lock.
        let blocks = generation.prompt.blocks(&generation.reply, profile.block_size_tokens);
        let mut inner = self.lock();
        let now = self.now();
        let id = inner.next_id;
        inner.next_id += 1;
        let mut request = Request::new(id, generation.prompt.tokens(), generation.reply.tokens)
            .with_blocks(blocks.prompt, blocks.output);
        request.stream = generation.stream;
        request.slow = slow;
        inner.model.submit(now, request)?;
        let (subscriber, waiter) = Subscriber::new(id, generation, request_id, now);
        inner.subscribers.insert(id, subscriber);
        // What takes no time is done here and now, without a detour over the timer.
        inner.model.advance(now);
        inner.dispatch();
        self.rearm(&mut inner);
        Ok((Ticket { core: self.clone(), id, done: false }, waiter))
    }

    fn cancel(&self, id: u64) {
        let mut inner = self.lock();
        let now = self.now();
        let gone = inner.model.cancel(now, id);
        inner.dispatch();
        if gone {
            inner.finished.abort += 1;
            if let Some(subscriber) = inner.subscribers.remove(&id) {
                inner.keep(subscriber, now, Outcome::Cancelled);
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

    pub(crate) fn reset_max(&self) {
        let mut inner = self.lock();
        inner.model.reset_max();
        inner.http.in_flight_max = inner.http.in_flight;
    }

    pub(crate) fn records(&self) -> Vec<RequestRecord> {
        self.lock().records.iter().cloned().collect()
    }

    pub(crate) fn reading(&self) -> Reading {
        let mut inner = self.lock();
        self.catch_up(&mut inner);
        Reading {
            stats: inner.model.stats(),
            profile: inner.process.profile.clone(),
            launch_args: LaunchArgs::parse(&inner.process.launch_args),
            requests: inner.http.requests,
            in_flight_max: inner.http.in_flight_max,
            hanging: inner.http.hanging,
            finished: inner.finished,
            started_s: inner.process.started_s,
        }
    }

    pub(crate) fn state(&self) -> State {
        let mut inner = self.lock();
        self.catch_up(&mut inner);
        let stats = inner.model.stats();
        let fault = inner.faults.current(std::time::Instant::now()).clone();
        let (http, process) = (&inner.http, &inner.process);
        State {
            name: self.config.name.clone(),
            model: self.config.model.clone(),
            profile: process.profile.name.clone(),
            launch_args: process.launch_args.clone(),
            alive: process.alive,
            process_start_time_seconds: process.started_s,
            restarts: process.restarts,
            running: stats.running,
            waiting: stats.waiting,
            running_max: stats.running_max,
            in_flight: http.in_flight,
            in_flight_max: http.in_flight_max,
            hanging: http.hanging,
            requests_total: http.requests,
            faults_total: http.faults,
            refused_total: http.refused,
            finished_total: stats.finished,
            cancelled_total: stats.cancelled,
            prompt_tokens_total: stats.prompt_tokens,
            generation_tokens_total: stats.generated_tokens,
            prefix_cache_queries_total: stats.cache_query_tokens,
            prefix_cache_hits_total: stats.cache_hit_tokens,
            kv_cache_usage: stats.kv_usage,
            cold_tokens_left: stats.cold_tokens_left,
            fault,
        }
    }

    fn catch_up(&self, inner: &mut Inner) {
        inner.model.advance(self.now());
        inner.dispatch();
        self.rearm(inner);
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
