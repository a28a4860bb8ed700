//! The task between the copy and the backend: one round at a time reads everything when it must, writes what waits, and
//! reads what others have written.
//!
//! A round that fails makes the store down, and the next one begins with reading everything: only then is it known what
//! the backend still has. Everything is read again every [`RELOAD`] too, since a Redis may lose some of what it had
//! without anybody noticing (eviction, an old dump restored).

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backend::{Cursor, StoreError};
use super::entry::{Entry, Key};
use super::lease::{Lease, RENEW, TTL};
use super::mirror::Batch;
use super::{Health, Store};
use crate::service::now_ms;

/// How often a shared store is asked what others have written.
const POLL: Duration = Duration::from_millis(200);
/// How soon a store that failed is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// How often a shared store is read whole.
const RELOAD: Duration = Duration::from_secs(30);
/// Entries per write.
const BATCH: usize = 256;
/// How long what waits at the end may take to be written.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Where the conversation with the backend stands.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// `None`: everything has to be read.
    cursor: Option<Cursor>,
    loaded_at: Option<Instant>,
}

impl Store {
    /// Writes and reads until `shutdown`, then writes what waits and gives the lease back.
    pub async fn run(&self, shutdown: CancellationToken) {
        tokio::join!(self.keep_exchanging(&shutdown), self.keep_lease(&shutdown));
        // Nobody writes any more.
        self.inner.health.send_modify(|health| health.up = false);
        self.inner.backend.close().await;
    }

    async fn keep_exchanging(&self, shutdown: &CancellationToken) {
        loop {
            let done = self.exchange().await;
            let pause = match done {
                Err(_) => RETRY,
                Ok(()) if self.is_shared() => POLL,
                Ok(()) => RELOAD,
            };
            let waiting = async {
                // What waits after a failure is no reason to try again at once.
                match done {
                    Ok(()) => self.inner.waiting.notified().await,
                    Err(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = waiting => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        // A failure is logged already; the process ends either way.
        let _ = tokio::time::timeout(LAST_WORD, self.exchange()).await;
    }

    async fn keep_lease(&self, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            let next = Instant::now() + RENEW;
            self.try_lease().await;
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
        if self.fence().is_some() {
            self.inner.lease.send_replace(Lease::Unknown);
            // It would end by itself.
            let _ = self.inner.backend.release(&self.inner.who).await;
        }
    }

    /// Asks once for the lease.
    pub(super) async fn try_lease(&self) {
        let asked = Instant::now();
        let answer = self.inner.backend.lease(&self.inner.who, TTL).await;
        let now = Instant::now();
        self.inner.lease.send_if_modified(|lease| {
            let before = lease.clone();
            *lease = match answer {
                Ok(holder) => Lease::answered(holder, &self.inner.who, asked, now, self.is_shared()),
                Err(_) => before.clone().unanswered(now),
            };
            let changed = before.current_fence() != lease.current_fence() || before.is_others() != lease.is_others();
            if changed && self.is_shared() {
                match &*lease {
                    Lease::Mine { fence, .. } => tracing::info!(fence, "this prober measures"),
                    Lease::Others { holder, .. } => tracing::info!(prober = holder.who, "another prober measures"),
                    Lease::Unknown => tracing::warn!("nobody measures until the store answers"),
                }
            }
            changed
        });
    }

    /// One round. A failure is the alarm.
    pub(super) async fn exchange(&self) -> Result<(), StoreError> {
        let mut session = self.inner.session.lock().await;
        let result = self.round(&mut session).await;
        if let Err(error) = &result {
            session.cursor = None;
            self.is_down(&error.to_string());
        }
        result
    }

    async fn round(&self, session: &mut Session) -> Result<(), StoreError> {
        let backend = &self.inner.backend;
        let stale = session.loaded_at.is_none_or(|at| at.elapsed() >= RELOAD) && self.is_shared();
        let mut cursor = match session.cursor.take().filter(|_| !stale) {
            Some(cursor) => cursor,
            None => self.load(session).await?,
        };
        loop {
            let batch = self.mirror().batch(BATCH);
            if batch.entries.is_empty() {
                break;
            }
            let refused = backend.write(&batch.entries).await?;
            let refused: Vec<&Entry> = refused.iter().filter_map(|index| batch.entries.get(*index)).collect();
            self.is_written(&batch, &refused);
            if !refused.is_empty() {
                // Whatever stands there instead is in force here again.
                cursor = self.load(session).await?;
                self.heard(refused.into_iter().map(key_of));
            }
        }
        session.cursor = match backend.changes(&cursor).await? {
            Some(found) => {
                let mut news = Vec::new();
                let mut mirror = self.mirror();
                for entry in found.entries {
                    let key = key_of(&entry);
                    if mirror.merge(entry) {
                        news.push(key);
                    }
                }
                drop(mirror);
                self.heard(news);
                Some(found.cursor)
            }
            None => {
                tracing::warn!("{} has lost something; it is compared with what is known here", backend.describe());
                None
            }
        };
        self.is_up();
        if session.cursor.is_none() {
            // The next round reads everything, and comes at once.
            self.inner.waiting.notify_one();
        }
        Ok(())
    }

    fn is_written(&self, batch: &Batch, refused: &[&Entry]) {
        let mut mirror = self.mirror();
        for entry in refused {
            tracing::warn!(table = entry.table.name(), key = entry.key, "not stored: another prober measures now");
            mirror.refused(entry);
        }
        mirror.written(batch);
        if !self.is_shared() {
            mirror.forget_removals(0, false);
        }
        drop(mirror);
        self.inner.health.send_modify(|health| health.progress += 1);
    }

    async fn load(&self, session: &mut Session) -> Result<Cursor, StoreError> {
        let backend = &self.inner.backend;
        let forgotten = self.mirror().forget_removals(now_ms(), self.is_shared());
        backend.forget(&forgotten).await?;
        let found = backend.load().await?;
        session.loaded_at = Some(Instant::now());
        let news = self.mirror().reconcile(found.entries);
        self.heard(news);
        if let Some(mended) = found.mended {
            tracing::error!("{mended}");
            self.inner.health.send_modify(|health| health.mended = Some(mended));
        }
        Ok(found.cursor)
    }

    fn heard(&self, keys: impl IntoIterator<Item = Key>) {
        let mut news = self.inner.news.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        news.extend(keys);
        let some = !news.is_empty();
        drop(news);
        if some {
            self.inner.news_came.notify_waiters();
            // What waited to be written may have been overtaken: nobody need wait for it any more.
            self.inner.health.send_modify(|health| health.progress += 1);
        }
    }

    fn is_up(&self) {
        self.inner.health.send_if_modified(|health| {
            if health.up {
                return false;
            }
            if health.error.is_some() {
                tracing::info!("{} answers again; what waited is stored", self.describe());
            }
            *health = Health { up: true, loaded: true, error: None, ..health.clone() };
            true
        });
    }

    pub(super) fn is_down(&self, why: &str) {
        self.inner.health.send_if_modified(|health| {
            match (health.up || health.error.is_none(), health.loaded) {
                (true, true) => tracing::error!("{why}; this prober goes on without, and keeps what is to be stored"),
                // Whether it goes on is decided where it is started.
                (true, false) => tracing::error!("{why}"),
                (false, _) => {}
            }
            let changed = health.up || health.error.as_deref() != Some(why);
            *health = Health { up: false, error: Some(why.to_owned()), ..health.clone() };
            changed
        });
    }
}

fn key_of(entry: &Entry) -> Key {
    (entry.table, entry.key.clone())
}
