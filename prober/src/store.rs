//! What must survive a restart: pins, drains, results, registrations. An embedded redb file; values are JSON.
//!
//! A file that cannot be read is moved aside and reported, rather than keeping the prober from starting: weights can be
//! measured again, a fleet without a prober cannot.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::registry::{Measurement, Memory};

/// Results that are older than this are pruned.
const OLD_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// The tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Pins by endpoint.
    Pins,
    /// Drains by endpoint.
    Drains,
    /// Last result by endpoint.
    Last,
    /// Results by (node, model, launch arguments).
    Results,
    /// Registrations by endpoint.
    Registrations,
    /// Epochs by endpoint.
    Epochs,
    /// Moving averages by endpoint.
    Averages,
}

impl Table {
    fn definition(self) -> TableDefinition<'static, &'static str, &'static str> {
        TableDefinition::new(match self {
            Table::Pins => "pins",
            Table::Drains => "drains",
            Table::Last => "last",
            Table::Results => "results",
            Table::Registrations => "registrations",
            Table::Epochs => "epochs",
            Table::Averages => "averages",
        })
    }
}

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
    /// A read or write failed.
    #[error("the store failed: {0}")]
    Io(#[from] redb::Error),
    /// A value cannot be written as JSON.
    #[error("a value cannot be stored: {0}")]
    Json(#[from] serde_json::Error),
    /// The task that wrote was lost.
    #[error("the store's task ended early")]
    Lost,
}

/// The store. Clones share the file.
#[derive(Debug, Clone)]
pub struct Store {
    database: Arc<Database>,
}

impl Store {
    /// Opens the file, or makes it. What was wrong with an old file is told in the second part.
    ///
    /// # Errors
    /// When there can be no file at this path.
    pub fn open(path: &Path) -> Result<(Self, Option<String>), StoreError> {
        let failed = |reason: String| StoreError::Open { path: path.to_owned(), reason };
        let mut alarm = None;
        let database = match Database::create(path) {
            Ok(database) => database,
            // Somebody else has it open: moving it away would take it from under them.
            Err(redb::DatabaseError::DatabaseAlreadyOpen) => return Err(failed("another process has it open".into())),
            Err(error) if path.is_file() => {
                let aside = path.with_extension("broken");
                std::fs::rename(path, &aside).map_err(|_| failed(error.to_string()))?;
                alarm = Some(format!(
                    "the store {} was not readable ({error}); it stands aside as {}, pins and results start anew",
                    path.display(),
                    aside.display()
                ));
                Database::create(path).map_err(|error| failed(error.to_string()))?
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        let store = Store { database: Arc::new(database) };
        let write = store.database.begin_write().map_err(redb::Error::from)?;
        let tables = [
            Table::Pins,
            Table::Drains,
            Table::Last,
            Table::Results,
            Table::Registrations,
            Table::Epochs,
            Table::Averages,
        ];
        for table in tables {
            write.open_table(table.definition()).map_err(redb::Error::from)?;
        }
        write.commit().map_err(redb::Error::from)?;
        Ok((store, alarm))
    }

    /// Everything in a table. Values that an older version wrote and this one cannot read are left out.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn all<T: DeserializeOwned>(&self, table: Table) -> Result<HashMap<String, T>, StoreError> {
        let read = self.database.begin_read().map_err(redb::Error::from)?;
        let table = read.open_table(table.definition()).map_err(redb::Error::from)?;
        let mut all = HashMap::new();
        for entry in table.iter().map_err(redb::Error::from)? {
            let (key, value) = entry.map_err(redb::Error::from)?;
            match serde_json::from_str(value.value()) {
                Ok(value) => {
                    all.insert(key.value().to_owned(), value);
                }
                Err(error) => tracing::warn!(key = key.value(), %error, "left out of the store: not readable"),
            }
        }
        Ok(all)
    }

    /// What the registry starts from.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn memory(&self) -> Result<Memory, StoreError> {
        Ok(Memory {
            pins: self.all(Table::Pins)?,
            drains: self.all(Table::Drains)?,
            last: self.all(Table::Last)?,
            results: self.all(Table::Results)?,
            epochs: self.all(Table::Epochs)?,
            averages: self.all(Table::Averages)?,
        })
    }

    /// Removes results that nobody has needed for 30 days: what is kept is used for hours, and every new set of launch
    /// arguments leaves one behind. What an endpoint was last measured with stays.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub async fn prune(&self, now_ms: u64) -> Result<usize, StoreError> {
        let results: HashMap<String, Measurement> = self.all(Table::Results)?;
        let old = results.iter().filter(|(_, result)| now_ms.saturating_sub(result.measured_at_ms) > OLD_MS);
        let changes: Vec<Change> = old.map(|(key, _)| Change::remove(Table::Results, key)).collect();
        let count = changes.len();
        if count > 0 {
            self.write(changes).await?;
        }
        Ok(count)
    }

    /// Writes (or, with `None`, removes) values, all or none, and returns when they are on disk.
    ///
    /// # Errors
    /// When they are not.
    pub async fn write(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let database = Arc::clone(&self.database);
        tokio::task::spawn_blocking(move || {
            let write = database.begin_write().map_err(redb::Error::from)?;
            for Change { table, key, value } in &changes {
                let mut table = write.open_table(table.definition()).map_err(redb::Error::from)?;
                match value {
                    Some(value) => table.insert(key.as_str(), value.as_str()).map_err(redb::Error::from)?,
                    None => table.remove(key.as_str()).map_err(redb::Error::from)?,
                };
            }
            write.commit().map_err(redb::Error::from)?;
            Ok(())
        })
        .await
        .map_err(|_| StoreError::Lost)?
    }
}

/// One value to write or remove.
#[derive(Debug, Clone)]
pub struct Change {
    table: Table,
    key: String,
    value: Option<String>,
}

impl Change {
    /// Writes a value.
    ///
    /// # Errors
    /// When it cannot be JSON.
    pub fn put(table: Table, key: &str, value: &impl Serialize) -> Result<Self, StoreError> {
        Ok(Change { table, key: key.to_owned(), value: Some(serde_json::to_string(value)?) })
    }

    /// Removes a value.
    #[must_use]
    pub fn remove(table: Table, key: &str) -> Self {
        Change { table, key: key.to_owned(), value: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_is_there_after_opening_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.redb");
        let (store, alarm) = Store::open(&path).unwrap();
        assert!(alarm.is_none());
        let changes = vec![
            Change::put(Table::Results, "a", &serde_json::json!({"throughput_tps": 1.5, "measured_at_ms": 7})).unwrap(),
            Change::put(Table::Results, "unreadable", &"x").unwrap(),
            Change::put(Table::Registrations, "gone", &1).unwrap(),
        ];
        store.write(changes).await.unwrap();
        store.write(vec![Change::remove(Table::Registrations, "gone")]).await.unwrap();
        assert!(matches!(Store::open(&path), Err(StoreError::Open { .. })));
        drop(store);
        let (store, _) = Store::open(&path).unwrap();
        let memory = store.memory().unwrap();
        assert_eq!(memory.results["a"].throughput_tps, 1.5);
        assert_eq!(memory.results.len(), 1);
        assert!(store.all::<u8>(Table::Registrations).unwrap().is_empty());
    }

    #[tokio::test]
    async fn old_results_are_pruned_and_results_without_a_prefill_speed_still_read() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(&dir.path().join("s.redb")).unwrap();
        let result = |at_ms: u64| serde_json::json!({"throughput_tps": 1.5, "measured_at_ms": at_ms});
        let changes = vec![
            Change::put(Table::Results, "old", &result(0)).unwrap(),
            Change::put(Table::Results, "young", &result(1)).unwrap(),
            Change::put(Table::Last, "e", &serde_json::json!({"key": "old", "measurement": result(0)})).unwrap(),
        ];
        store.write(changes).await.unwrap();
        assert_eq!(store.prune(OLD_MS + 1).await.unwrap(), 1);
        let memory = store.memory().unwrap();
        assert_eq!(memory.results.keys().collect::<Vec<_>>(), ["young"]);
        assert_eq!((memory.results["young"].prefill_tps, memory.last.len()), (None, 1));
    }

    #[test]
    fn a_broken_file_is_moved_aside_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.redb");
        std::fs::write(&path, vec![7u8; 10_000]).unwrap();
        let (store, alarm) = Store::open(&path).unwrap();
        assert!(alarm.unwrap().contains("s.broken"));
        assert!(store.memory().unwrap().pins.is_empty());
        assert!(dir.path().join("s.broken").exists());
    }
}
