//! Who watches the fleet, and what they are sent.
//!
//! One task makes the document of `/v1/fleet` and hands it to all streams: what a look costs does not grow with the number of
//! those who look, and without any it costs nothing. It is made
//!
//! | when | how often |
//! |---|---|
//! | a burst runs, or the fleet has just been changed | every 250 ms |
//! | otherwise | every second |
//!
//! and handed on when it says something new, at the latest five seconds after the one before.
//!
//! There is room for one document, the newest ([`tokio::sync::watch`]): a stream whose client is slow finds the newest when it
//! is ready for another, and nothing piles up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::api::Fleet;
use crate::registry::Registry;
use crate::series::{Generated, PoolReading, Reading, STEP_MS, Series};
use crate::service::{Service, now_ms};

/// Streams at a time.
pub const STREAMS: usize = 64;

/// How often the document is made at most.
const LEAST: Duration = Duration::from_millis(250);
/// How often it is made while nothing happens.
const CALM: Duration = Duration::from_secs(1);
/// How often streams are sent one at least.
const MOST: Duration = Duration::from_secs(5);

/// A JSON object, to be sent with one more field in front.
#[derive(Debug, Default)]
pub struct Document {
    now_ms: u64,
    /// The same by the clock that is never set back.
    read_at: Option<Instant>,
    /// After its opening brace.
    rest: Bytes,
}

impl Document {
    /// From an object with at least one field, which was true at this time (Unix ms).
    #[must_use]
    pub fn new(now_ms: u64, read_at: Option<Instant>, json: Vec<u8>) -> Self {
        let mut rest = Bytes::from(json);
        let _brace = rest.split_to(1.min(rest.len()));
        Document { now_ms, read_at, rest }
    }

    /// When it was true.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The same by the clock that is never set back: what orders them.
    #[must_use]
    pub fn read_at(&self) -> Option<Instant> {
        self.read_at
    }

    /// Its beginning, for a reader who was let in like this.
    #[must_use]
    pub fn opening(&self, auth: &str) -> Vec<u8> {
        format!(r#"{{"auth":"{auth}","#).into_bytes()
    }

    /// What comes after that. It is not copied.
    #[must_use]
    pub fn rest(&self) -> Bytes {
        self.rest.clone()
    }
}

/// Where streams get documents from.
#[derive(Debug)]
pub struct Live {
    newest: watch::Sender<Arc<Document>>,
    series: Mutex<Series>,
    slots: Arc<Semaphore>,
    ended: CancellationToken,
}

impl Default for Live {
    fn default() -> Self {
        let slots = Arc::new(Semaphore::new(STREAMS));
        Live { newest: watch::Sender::default(), series: Mutex::default(), slots, ended: CancellationToken::new() }
    }
}

/// One stream's place. Dropped, it is free.
#[derive(Debug)]
pub struct Watcher {
    newest: watch::Receiver<Arc<Document>>,
    ended: CancellationToken,
    _slot: OwnedSemaphorePermit,
}

impl Live {
    /// Looks at the last quarter of an hour, or goes on with it.
    pub fn series<T>(&self, look: impl FnOnce(&mut Series) -> T) -> T {
        look(&mut self.series.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A place for one more stream, unless there are too many.
    pub fn watch(&self) -> Option<Watcher> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        Some(Watcher { newest: self.newest.subscribe(), ended: self.ended.clone(), _slot: slot })
    }
}

impl Watcher {
    /// Waits for a document that is newer than one of this time; `None` when the prober stops.
    pub async fn newer_than(&mut self, shown: Option<Instant>) -> Option<Arc<Document>> {
        loop {
            self.ended.run_until_cancelled(self.newest.changed()).await?.ok()?;
            let document = Arc::clone(&self.newest.borrow_and_update());
            if document.read_at > shown {
                return Some(document);
            }
        }
    }
}

/// Makes documents while somebody watches, until `shutdown`; then every stream ends.
pub async fn run(service: Arc<Service>, shutdown: CancellationToken) {
    let _ended = service.live.ended.clone().drop_guard();
    let mut ticks = interval(LEAST);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut looked, mut sent): (Option<Instant>, Option<(Instant, Fleet)>) = (None, None);
    let mut changes = service.changes();
    while let Some(now) = shutdown.run_until_cancelled(ticks.tick()).await {
        let before = std::mem::replace(&mut changes, service.changes());
        let changed = before != changes;
        let calm = looked.is_some_and(|looked| now.duration_since(looked) < CALM);
        if calm && !changed && !service.read(|registry| registry.is_bursting()) {
            continue;
        }
        looked = Some(now);
        if service.live.newest.receiver_count() == 0 {
            sent = None;
            // Somebody is to know since when something has been wrong, whoever looks later.
            let _alarms = service.alarms();
            continue;
        }
        let fleet = Fleet::of(&service);
        let document = Arc::new(fleet.document());
        let fleet = fleet.timeless();
        let due = sent.as_ref().is_none_or(|(at, before)| now.duration_since(*at) >= MOST || *before != fleet);
        if due {
            service.live.newest.send_replace(document);
            sent = Some((now, fleet));
        }
    }
}

/// Goes on with the series until `shutdown`.
pub async fn sample(service: Arc<Service>, shutdown: CancellationToken) {
    let mut ticks = interval(Duration::from_millis(STEP_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let now_ms = now_ms();
        let (endpoints, pools) = service.read(|registry| readings(registry, now_ms));
        service.live.series(|series| series.push(endpoints, pools, now_ms));
    }
}

type Readings = (Vec<(String, Reading)>, Vec<(String, PoolReading)>);

fn readings(registry: &Registry, now_ms: u64) -> Readings {
    let exchange = &registry.exchange;
    let reporting = exchange.envoys(now_ms) > 0;
    let endpoints = registry.endpoints().iter().map(|(id, endpoint)| {
        let signals = endpoint.signals.fresh(now_ms, exchange.settings().stale_after_ms());
        let generated = signals.and_then(|signals| signals.generated_tokens.zip(signals.at_ms));
        let averages = exchange.averages(id, now_ms).unwrap_or_default();
        let reading = Reading {
            ttft_ms: averages.ttft_ms,
            generated: generated.map(|(tokens, at_ms)| Generated { tokens, at_ms }),
            request_tps: averages.tps,
            in_flight: reporting.then(|| exchange.in_flight(id, now_ms)),
            waiting: registry.figures(id, endpoint, now_ms).waiting,
        };
        (id.clone(), reading)
    });
    let loads = registry.pool_loads(&registry.verdicts(), now_ms).into_iter();
    let pools =
        loads.map(|(name, load)| (name.to_owned(), PoolReading { waiting: load.waiting, in_flight: load.in_flight }));
    (endpoints.collect(), pools.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many ms after `epoch`, while the clock on the wall runs backwards.
    fn document(epoch: Instant, ms: u64) -> Arc<Document> {
        let json = format!(r#"{{"now_ms":{ms}}}"#).into_bytes();
        Arc::new(Document::new(1_000 - ms, Some(epoch + Duration::from_millis(ms)), json))
    }

    #[tokio::test]
    async fn a_slow_stream_finds_the_newest_and_only_that() {
        let (live, epoch) = (Live::default(), Instant::now());
        let mut watcher = live.watch().unwrap();
        for ms in 1..=100 {
            live.newest.send_replace(document(epoch, ms));
        }
        let shown = watcher.newer_than(None).await.unwrap();
        assert_eq!(shown.now_ms(), 900);
        // One that was made before the one that the stream has shown, and came later.
        live.newest.send_replace(document(epoch, 99));
        let later = async {
            tokio::task::yield_now().await;
            live.newest.send_replace(document(epoch, 101));
        };
        let (found, ()) = tokio::join!(watcher.newer_than(shown.read_at()), later);
        assert_eq!(found.unwrap().now_ms(), 899);
    }

    #[tokio::test]
    async fn there_is_room_for_so_many_and_all_end_together() {
        let live = Live::default();
        let mut watchers: Vec<Watcher> = (0..STREAMS).map(|_| live.watch().unwrap()).collect();
        assert!(live.watch().is_none());
        watchers.pop();
        watchers.push(live.watch().unwrap());
        live.ended.cancel();
        for watcher in &mut watchers {
            assert!(watcher.newer_than(None).await.is_none());
        }
    }

    #[test]
    fn a_document_is_not_copied_for_each_reader() {
        let document = document(Instant::now(), 5);
        assert_eq!(document.rest().as_ptr(), document.rest().as_ptr());
        let whole = [document.opening("none"), document.rest().to_vec()].concat();
        assert_eq!(String::from_utf8(whole).unwrap(), r#"{"auth":"none","now_ms":5}"#);
    }
}
