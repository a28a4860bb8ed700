//! What a store can do, whichever it is.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

use super::entry::{Entry, Key, Stamp};

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened, not even anew.
    #[error("the store {path} cannot be opened: {reason}")]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file cannot be read or written.
    #[error("the store {path}: {reason}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file is not what this program wrote.
    #[error("the store {path} is damaged: {reason}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Redis does not answer, or not as it should.
    #[error("Redis at {place}: {reason}")]
    Redis {
        /// Where, without the password.
        place: String,
        /// Why.
        reason: String,
    },
    /// The URL names no Redis.
    #[error("{0}")]
    Url(String),
    /// A value cannot be written as JSON.
    #[error("a value cannot be stored: {0}")]
    Json(#[from] serde_json::Error),
}

/// How far a reader has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Which life of the store.
    pub generation: String,
    /// The number of the last write seen.
    pub revision: u64,
}

/// What a read has found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where the next read goes on.
    pub cursor: Cursor,
    /// What was wrong with the store and has been mended, for people.
    pub mended: Option<String>,
}

/// Who has the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The prober.
    pub who: String,
    /// Rises with every change of hands, also over a store that has lost everything.
    pub fence: u64,
}

/// A place that keeps entries. Every call is one attempt that ends soon; [`super::Store`] repeats it.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync {
    /// What it is, for people; without a password.
    fn describe(&self) -> String;

    /// Whether other probers write to it as well.
    fn is_shared(&self) -> bool;

    /// Everything.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn load(&self) -> Result<Found, StoreError>;

    /// What was written after the cursor; `None` when that cannot be told, and everything has to be loaded again.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn changes(&self, since: &Cursor) -> Result<Option<Found>, StoreError>;

    /// Writes entries, all or none, except those that the store has newer (left alone) and those whose fence is stale:
    /// their indices are returned.
    ///
    /// # Errors
    /// When they are not stored.
    async fn write(&self, entries: &[Entry]) -> Result<Vec<usize>, StoreError>;

    /// Forgets removals that still have these stamps.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn forget(&self, removals: &[(Key, Stamp)]) -> Result<(), StoreError>;

    /// Takes the lease for `ttl`, or renews it; returns who has it then.
    ///
    /// # Errors
    /// When it cannot be asked.
    async fn lease(&self, who: &str, ttl: Duration) -> Result<LeaseHolder, StoreError>;

    /// Gives the lease back, if `who` has it.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn release(&self, who: &str) -> Result<(), StoreError>;

    /// Lets go of what it has open, when nobody reads or writes any more: whoever comes next may open it.
    async fn close(&self) {}
}
