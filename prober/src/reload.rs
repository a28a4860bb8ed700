//! Files that may change while the prober serves: the API's token, certificates, keys of engines.
//!
//! They are read again every second and compared by content: that notices a file written in place, one that is renamed over
//! another, and the swapped directory of a Kubernetes secret alike. What cannot be read or used leaves in force what was
//! there before, and raises an alarm until it can.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::service::Service;

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What reading a file again has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// The same as before.
    Same,
    /// Something else, which is in force now.
    Changed,
}

/// Something that stands in files.
pub trait Reload: Send + Sync {
    /// Reads it again and puts it in force. It may block. Each part comes with its name, as the configuration calls it; of one
    /// that cannot be used it says why, and what was in force stays so.
    fn reload(&self, service: &Service) -> Vec<(String, Result<Read, String>)>;
}

/// How often something was read that had changed, or could not be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Changed, and is in force.
    pub changed: u64,
    /// Began to fail.
    pub failed: u64,
}

/// What has come of reading files again.
#[derive(Debug, Default)]
pub struct Reloads(Mutex<BTreeMap<String, State>>);

#[derive(Debug, Default)]
struct State {
    count: Count,
    /// What is wrong now.
    wrong: Option<String>,
}

impl Reloads {
    /// Takes note of one reading.
    pub fn note(&self, field: &str, read: Result<Read, String>) {
        let mut all = self.all();
        if !all.contains_key(field) {
            all.insert(field.to_owned(), State::default());
        }
        let Some(state) = all.get_mut(field) else { return };
        match read {
            Ok(read) => {
                if state.wrong.take().is_some() || read == Read::Changed {
                    tracing::info!(file = field, "read again, in force");
                }
                state.count.changed += u64::from(read == Read::Changed);
            }
            Err(why) if state.wrong.as_ref() != Some(&why) => {
                tracing::error!(file = field, why, "cannot be used; what was read before stays in force");
                state.count.failed += 1;
                state.wrong = Some(why);
            }
            Err(_) => {}
        }
    }

    /// Forgets what was not read this time.
    fn keep(&self, fields: &HashSet<String>) {
        self.all().retain(|field, _| fields.contains(field));
    }

    /// What cannot be used now, a sentence each.
    #[must_use]
    pub fn alarms(&self) -> Vec<String> {
        let all = self.all();
        all.values()
            .filter_map(|state| state.wrong.as_ref())
            .map(|why| format!("{why}; what was read before stays in force"))
            .collect()
    }

    /// How often what was read, by field.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, Count)> {
        self.all().iter().map(|(field, state)| (field.clone(), state.count)).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads all of them again until `shutdown`.
pub async fn run(service: Arc<Service>, files: Vec<Arc<dyn Reload>>, shutdown: CancellationToken) {
    let files: Arc<[_]> = files.into();
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let (service, files) = (Arc::clone(&service), Arc::clone(&files));
        // A file may be on a disk that hangs.
        let read = tokio::task::spawn_blocking(move || {
            let mut there = HashSet::new();
            for (field, read) in files.iter().flat_map(|file| file.reload(&service)) {
                service.reloads.note(&field, read);
                there.insert(field);
            }
            service.reloads.keep(&there);
        });
        if let Some(Err(error)) = shutdown.run_until_cancelled(read).await {
            tracing::error!(%error, "files could not be read again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_an_alarm_until_it_can() {
        let reloads = Reloads::default();
        reloads.note("f", Ok(Read::Same));
        assert_eq!(reloads.alarms(), Vec::<String>::new());
        for _ in 0..3 {
            reloads.note("f", Err("f is short".into()));
        }
        assert_eq!(reloads.alarms().len(), 1);
        reloads.note("f", Ok(Read::Changed));
        assert_eq!(reloads.alarms(), Vec::<String>::new());
        assert_eq!(reloads.counts(), [("f".to_owned(), Count { changed: 1, failed: 1 })]);
        reloads.note("g", Err("g is gone".into()));
        reloads.keep(&HashSet::from(["f".to_owned()]));
        assert_eq!((reloads.alarms().len(), reloads.counts().len()), (0, 1));
    }
}
