//! What must survive a restart, and what several probers share: pins, drains, results and their history, registrations,
//! epochs, averages, the snapshot's version. Values are JSON; one that cannot be read is left out.
//!
//! - [`entry`]: one value and its stamp: of two, the later counts.
//! - [`mirror`]: the copy that the prober works on, and what of it is still to be written (pure).
//! - [`backend`]: what a store can do; [`redb`]: one file; [`redis`]: one Redis, for several probers.
//! - [`exchange`]: the task that writes, reads, repeats, and raises the alarm.
//! - [`lease`]: which of several probers bursts.
//!
//! Nothing waits for a store that is gone: the prober goes on with its copy, and what it changes meanwhile is written when
//! the store is back.

pub mod backend;
pub mod entry;
mod exchange;
pub mod lease;
pub mod mirror;
pub mod redb;
pub mod redis;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use self::backend::{Backend, StoreError};
pub use self::entry::{Change, Key, Table};
pub use self::lease::Lease;
pub use self::redis::RedisUrl;

use self::exchange::Session;
use self::mirror::Mirror;
use crate::alarms::{Alarm, Code};
use crate::registry::Memory;
use crate::service::now_ms;

/// How long a prober that starts waits for its store before it starts without.
const START: Duration = Duration::from_secs(3);

/// Where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file of this prober alone.
    File(PathBuf),
    /// In a Redis, perhaps shared with other probers.
    Redis(RedisUrl),
}

/// Whether a change is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// It is.
    Now,
    /// The store does not answer; it will be, when it does.
    Later,
}

/// How the store is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Whether it did what it was last asked.
    pub up: bool,
    /// Whether everything in it has been read since the prober started.
    pub loaded: bool,
    /// Why it did not.
    pub error: Option<String>,
    /// What was wrong with it when the prober started, and has been mended.
    pub mended: Option<String>,
    /// Rises with everything that is written, or overtaken by what others have written.
    pub progress: u64,
}

#[derive(Debug)]
struct Inner {
    backend: Box<dyn Backend>,
    /// This prober's name among others.
    who: String,
    mirror: Mutex<Mirror>,
    session: tokio::sync::Mutex<Session>,
    health: watch::Sender<Health>,
    lease: watch::Sender<Lease>,
    /// Something waits to be written.
    waiting: Notify,
    /// What others have changed and nobody has looked at.
    news: Mutex<BTreeSet<Key>>,
    news_came: Notify,
}

/// The store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl Store {
    /// Opens the store and reads it. A Redis that does not answer is an alarm, not an error: [`Store::run`] goes on
    /// trying.
    ///
    /// # Errors
    /// When there can be no file at this path, or no Redis behind the URL.
    pub async fn open(place: &Place) -> Result<Self, StoreError> {
        let writer = getrandom::u64().unwrap_or_else(|_| now_ms());
        let who = format!("{writer:016x}");
        let backend: Box<dyn Backend> = match place {
            Place::File(path) => Box::new(redb::File::new(path.clone())),
            Place::Redis(url) => Box::new(redis::Redis::new(url.clone(), who.clone())?),
        };
        let store = Store::over(backend, writer);
        match tokio::time::timeout(START, store.exchange()).await {
            Ok(Err(error @ StoreError::Open { .. })) => return Err(error),
            // The alarm is raised already.
            Ok(_) => {}
            Err(_) => store.is_down(&format!("{}: no answer", store.inner.backend.describe())),
        }
        store.try_lease().await;
        // Whoever starts from here has it all.
        store.inner.news.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(store)
    }

    fn over(backend: Box<dyn Backend>, writer: u64) -> Self {
        Store {
            inner: Arc::new(Inner {
                backend,
                who: format!("{writer:016x}"),
                mirror: Mutex::new(Mirror::new(writer)),
                session: tokio::sync::Mutex::default(),
                health: watch::Sender::default(),
                lease: watch::Sender::new(Lease::Unknown),
                waiting: Notify::new(),
                news: Mutex::default(),
                news_came: Notify::new(),
            }),
        }
    }

    /// This prober's name among those that share the store.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.inner.who
    }

    /// Whether other probers may share it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.backend.is_shared()
    }

    /// What it is, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        self.inner.backend.describe()
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> Health {
        self.inner.health.borrow().clone()
    }

    /// How many changes wait to be written.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.mirror().waiting()
    }

    /// What is wrong with it, for people.
    #[must_use]
    pub fn alarms(&self) -> Vec<Alarm> {
        let Health { up, loaded, error, mended, .. } = self.health();
        let mended = mended.map(|mended| Alarm::of_prober(Code::StoreMended, mended));
        let mut alarms: Vec<Alarm> = mended.into_iter().collect();
        if !up {
            let waiting = self.waiting();
            let why = error.unwrap_or_else(|| format!("{} has not been read yet", self.describe()));
            let pins = if loaded { "" } else { "; pins and results from before the start are not known yet" };
            let burst = if self.is_shared() { "; nobody measures until it is back" } else { "" };
            let message = format!("{why}; {waiting} changes are in force and wait to be stored{pins}{burst}");
            alarms.push(Alarm::of_prober(Code::StoreDown, message));
        }
        alarms
    }

    /// Everything in a table. Values that an older version wrote and this one cannot read are left out.
    #[must_use]
    pub fn all<T: DeserializeOwned>(&self, table: Table) -> HashMap<String, T> {
        let mirror = self.mirror();
        let mut all = HashMap::new();
        for (key, json) in mirror.all(table) {
            if let Some(value) = read(table, key, json) {
                all.insert(key.to_owned(), value);
            }
        }
        all
    }

    /// The value under a key.
    #[must_use]
    pub fn get<T: DeserializeOwned>(&self, table: Table, key: &str) -> Option<T> {
        read(table, key, self.mirror().get(table, key)?)
    }

    /// What the registry starts from.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory {
            pins: self.all(Table::Pins),
            drains: self.all(Table::Drains),
            last: self.all(Table::Last),
            results: self.all(Table::Results),
            epochs: self.all(Table::Epochs),
            averages: self.all(Table::Averages),
            history: self.all(Table::History),
            snapshot: self.get(Table::Snapshot, "newest"),
        }
    }

    /// Changes values here, all or none; they are written as soon as the store does that. Never waits.
    pub fn put(&self, changes: Vec<Change>) -> u64 {
        let now_ms = now_ms();
        let mut mirror = self.mirror();
        let mut place = 0;
        for change in changes {
            if self.is_shared() || !change.table.between_probers() {
                place = mirror.put(change, now_ms);
            }
        }
        drop(mirror);
        self.inner.waiting.notify_one();
        place
    }

    /// The same, and waits until they are in the store, or the store turns out not to answer.
    pub async fn write(&self, changes: Vec<Change>) -> Stored {
        let place = self.put(changes);
        let mut health = self.inner.health.subscribe();
        loop {
            let up = health.borrow_and_update().up;
            if self.mirror().is_written(place) {
                return Stored::Now;
            }
            if !up || health.changed().await.is_err() {
                return Stored::Later;
            }
        }
    }

    /// Waits until others have changed something, and returns the keys, each once; the values are read with
    /// [`Store::get`], so that whoever takes them in never sees an older one after a newer one.
    pub async fn news(&self) -> BTreeSet<Key> {
        loop {
            let came = self.inner.news_came.notified();
            let news = std::mem::take(&mut *self.inner.news.lock().unwrap_or_else(PoisonError::into_inner));
            if !news.is_empty() {
                return news;
            }
            came.await;
        }
    }

    /// The fence of this prober's lease, while it has it: it may burst. Not before it knows what has been measured.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        let fence = self.inner.lease.borrow().fence(Instant::now());
        fence.filter(|_| self.inner.health.borrow().loaded)
    }

    /// Waits until this prober has the lease with this fence no longer.
    pub async fn lost(&self, fence: u64) {
        let mut lease = self.lease();
        loop {
            let until = match &*lease.borrow_and_update() {
                held if held.fence(Instant::now()) != Some(fence) => return,
                Lease::Mine { until, .. } => *until,
                _ => return,
            };
            let ends = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            // A renewal is no news: at the end that was known it is looked at again.
            tokio::select! {
                changed = lease.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = ends => {}
            }
        }
    }

    /// What is known of the lease, and how it changes.
    #[must_use]
    pub fn lease(&self) -> watch::Receiver<Lease> {
        self.inner.lease.subscribe()
    }

    fn mirror(&self) -> MutexGuard<'_, Mirror> {
        // A panic between two of its steps would leave a change unwritten at worst.
        self.inner.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read<T: DeserializeOwned>(table: Table, key: &str, json: &str) -> Option<T> {
    serde_json::from_str(json)
        .inspect_err(|error| tracing::warn!(table = table.name(), key, %error, "left out of the store: not readable"))
        .ok()
}
