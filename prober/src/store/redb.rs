//! The embedded store: one file, one process.
//!
//! A file that is damaged is moved aside and a new one begun: weights can be measured again, a fleet without a prober
//! cannot. After any failure the file is opened again, since a database that has seen one refuses further work; so a disk
//! that is full, and then is not, needs no restart. When the prober starts, every checksum of the file is compared once, and
//! commits are in two phases: a bit that has flipped in the newest one is damage then, not a commit that a crash cut off,
//! which would be undone without a word. Removals are not kept: nobody else could bring the value back.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition, TableError};

use super::backend::{Backend, Cursor, Found, LeaseHolder, StoreError};
use super::entry::{Entry, Key, Stamp, Table};

/// The file.
#[derive(Debug, Clone)]
pub struct File {
    path: Arc<Path>,
    /// `None` until it has been opened, and after a failure.
    database: Arc<Mutex<Option<Database>>>,
    /// What has been mended since the last load.
    mended: Arc<Mutex<Option<String>>>,
    /// Whether the checksums have been compared.
    verified: Arc<AtomicBool>,
}

/// The format of what is in the file, under one key: what each table holds, and how its values read. It rises when an older
/// prober would read values wrong or lose them; a new table or a new field that may be missing does not raise it. A file
/// that says nothing is from before there was such a key, and of format 1.
const META: TableDefinition<'static, &'static str, &'static str> = TableDefinition::new("meta");
const FORMAT_KEY: &str = "format";
/// What this prober writes, and the newest that it reads.
const FORMAT: u32 = 1;

fn definition(table: Table) -> TableDefinition<'static, &'static str, &'static str> {
    TableDefinition::new(table.name())
}

/// The cause of a failure: the file is not what was written, or it cannot be read or written now.
enum Cause {
    Damaged(String),
    Other(String),
}

impl<E: Into<redb::Error>> From<E> for Cause {
    fn from(error: E) -> Self {
        let error = error.into();
        match error {
            redb::Error::Corrupted(_)
            | redb::Error::UpgradeRequired(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. } => Cause::Damaged(error.to_string()),
            redb::Error::Io(error) if is_not_ours(&error) => Cause::Damaged(error.to_string()),
            error => Cause::Other(error.to_string()),
        }
    }
}

/// What the file says of its format.
fn format(database: &Database) -> Result<Option<String>, redb::Error> {
    let read = database.begin_read()?;
    match read.open_table(META) {
        Ok(meta) => Ok(meta.get(FORMAT_KEY)?.map(|format| format.value().to_owned())),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What is no database, or ends too early, says so in these words.
fn is_not_ours(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
}

/// Whether somebody has written it, who may want it back: a database has zeros, and one that is damaged is hardly a text.
fn is_text(path: &Path) -> bool {
    // Only of a file: a pipe would not end.
    if !path.is_file() {
        return false;
    }
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(4_096).read_to_end(&mut head));
    let whole = match std::str::from_utf8(&head) {
        Ok(_) => head.len(),
        // Cut within a character.
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => 0,
    };
    let readable = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    read.is_ok() && whole > 0 && head.iter().all(readable)
}

impl File {
    /// The store in this file, which is opened by the first load.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        File { path: path.into(), database: Arc::default(), mended: Arc::default(), verified: Arc::default() }
    }

    /// Opens the file or makes it; one that is damaged is moved aside first.
    fn open(&self) -> Result<Database, StoreError> {
        let failed = |reason: String| StoreError::Open { path: self.path.to_path_buf(), reason };
        if is_text(&self.path) {
            return Err(failed("it is a text, which no store ever was: name another file in store.path".into()));
        }
        match Database::create(&*self.path).and_then(|database| self.verified(database)) {
            Ok(database) => self.not_newer(database),
            // Somebody else has it: moving it away would take it from under them.
            Err(DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch) => {
                Err(failed("another process has it open".into()))
            }
            // Of another version of the database: nothing is wrong with it.
            Err(error @ DatabaseError::UpgradeRequired(_)) => Err(failed(error.to_string())),
            Err(error) if self.is_damaged(&error) => {
                self.put_aside(&error.to_string())?;
                Database::create(&*self.path).map_err(|error| failed(error.to_string()))
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Compares every checksum, once: opening a file that was closed in an orderly way compares none. Cost: the file is read.
    fn verified(&self, mut database: Database) -> Result<Database, DatabaseError> {
        if !self.verified.swap(true, Ordering::Relaxed) && !database.check_integrity()? {
            let path = self.path.display();
            *self.mended.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!(
                "the store {path} was damaged and has been repaired; what was written last may be missing"
            ));
        }
        Ok(database)
    }

    /// A newer prober's file is left as it is, and refused: moving it aside would lose its pins to whoever only wanted to go back.
    fn not_newer(&self, database: Database) -> Result<Database, StoreError> {
        let Ok(Some(format)) = format(&database) else {
            // What cannot be read is found out, and mended, by whoever reads it.
            return Ok(database);
        };
        match format.parse::<u32>() {
            Ok(format) if format <= FORMAT => Ok(database),
            _ => Err(StoreError::Open {
                path: self.path.to_path_buf(),
                reason: format!(
                    "it is of format {format}, and this prober reads formats up to {FORMAT}: a newer one wrote it. Start that one, \
                     or name another file in store.path (docs/release.md)"
                ),
            }),
        }
    }

    fn is_damaged(&self, error: &DatabaseError) -> bool {
        let damaged = match error {
            DatabaseError::Storage(StorageError::Io(error)) => is_not_ours(error),
            DatabaseError::Storage(StorageError::Corrupted(_)) | DatabaseError::RepairAborted => true,
            _ => false,
        };
        damaged && self.path.is_file()
    }

    fn put_aside(&self, why: &str) -> Result<(), StoreError> {
        let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".broken-{second}"));
        let aside = self.path.with_file_name(name);
        std::fs::rename(&self.path, &aside).map_err(|error| StoreError::Open {
            path: self.path.to_path_buf(),
            reason: format!("it is damaged ({why}) and cannot be moved aside: {error}"),
        })?;
        let path = self.path.display();
        *self.mended.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!(
            "the store {path} was damaged ({why}); it stands aside as {}, and a new one has begun with what this \
             prober knows",
            aside.display()
        ));
        Ok(())
    }

    /// Does something with the database, which is opened where it is not.
    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, Cause>) -> Result<T, StoreError> {
        let mut slot = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = match slot.take() {
            Some(database) => database,
            None => self.open()?,
        };
        match work(&database) {
            Ok(done) => {
                *slot = Some(database);
                Ok(done)
            }
            Err(Cause::Damaged(why)) => {
                drop(database);
                self.put_aside(&why)?;
                Err(StoreError::Damaged { path: self.path.to_path_buf(), reason: why })
            }
            Err(Cause::Other(reason)) => Err(StoreError::File { path: self.path.to_path_buf(), reason }),
        }
    }

    /// The same where blocking does no harm. A database that panics over its file is damaged, too.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, Cause> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = self.clone();
        match tokio::task::spawn_blocking(move || file.with(work)).await {
            Ok(done) => done,
            Err(lost) => {
                if lost.is_panic() {
                    self.put_aside("the database gave up over it")?;
                }
                Err(StoreError::Damaged { path: self.path.to_path_buf(), reason: "it could not be worked with".into() })
            }
        }
    }
}

#[async_trait]
impl Backend for File {
    fn describe(&self) -> String {
        format!("file {}", self.path.display())
    }

    fn is_shared(&self) -> bool {
        false
    }

    async fn load(&self) -> Result<Found, StoreError> {
        let entries = self.run(read_all).await;
        // A file that turned out to be damaged when it was read has been replaced by now.
        let entries = match entries {
            Err(StoreError::Damaged { .. }) => self.run(read_all).await,
            entries => entries,
        }?;
        let mended = self.mended.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Found { entries, cursor: Cursor::default(), mended })
    }

    async fn changes(&self, since: &Cursor) -> Result<Option<Found>, StoreError> {
        Ok(Some(Found { cursor: since.clone(), ..Found::default() }))
    }

    async fn write(&self, entries: &[Entry]) -> Result<Vec<usize>, StoreError> {
        let entries: Vec<Entry> = entries.iter().filter(|entry| !entry.table.between_probers()).cloned().collect();
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        self.run(move |database| {
            let mut write = database.begin_write()?;
            write.set_two_phase_commit(true);
            {
                let mut meta = write.open_table(META)?;
                if meta.get(FORMAT_KEY)?.is_none() {
                    meta.insert(FORMAT_KEY, FORMAT.to_string().as_str())?;
                }
            }
            for entry in &entries {
                let mut table = write.open_table(definition(entry.table))?;
                let newer = table.get(entry.key.as_str())?.is_some_and(|stored| {
                    Entry::decoded(entry.table, entry.key.clone(), stored.value()).stamp > entry.stamp
                });
                if newer {
                    continue;
                }
                match entry.value {
                    Some(_) => table.insert(entry.key.as_str(), entry.encoded().as_str())?,
                    None => table.remove(entry.key.as_str())?,
                };
            }
            write.commit()?;
            Ok(Vec::new())
        })
        .await
    }

    async fn forget(&self, _: &[(Key, Stamp)]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn lease(&self, who: &str, _: Duration) -> Result<LeaseHolder, StoreError> {
        // The file is locked: there is nobody else.
        Ok(LeaseHolder { who: who.to_owned(), fence: 0 })
    }

    async fn release(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self) {
        let file = self.clone();
        let close = move || drop(file.database.lock().unwrap_or_else(PoisonError::into_inner).take());
        // It has nothing to say: what was written is on disk.
        let _ = tokio::task::spawn_blocking(close).await;
    }
}

fn read_all(database: &Database) -> Result<Vec<Entry>, Cause> {
    let read = database.begin_read()?;
    let mut entries = Vec::new();
    for name in Table::ALL {
        let table = match read.open_table(definition(name)) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in table.iter()? {
            let (key, stored) = entry?;
            entries.push(Entry::decoded(name, key.value().to_owned(), stored.value()));
        }
    }
    Ok(entries)
}
