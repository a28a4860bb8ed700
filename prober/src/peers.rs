//! A burst begins when every Envoy knows that its endpoint takes no traffic; that includes the Envoys of other probers.
//!
//! The prober that bursts marks the endpoint in the store. Every other prober publishes that, and reports which marks all
//! of its Envoys have acknowledged, at each change and every [`BEAT`]. One whose report has not changed for [`SILENCE`] is
//! gone, by the clock of the one that waits: clocks need not agree.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::registry::Mark;
use crate::service::{Service, now_ms};
use crate::store::{Change, Table};

/// How often a prober says that it is there.
const BEAT: Duration = Duration::from_secs(1);
/// After how long without a word a prober is gone.
const SILENCE: Duration = Duration::from_secs(5);
/// After how long its last word is removed.
const FORGET: Duration = Duration::from_secs(60);
/// How long Envoys may take to acknowledge a mark before nothing is reported of it.
const ACK: Duration = Duration::from_secs(5);
/// How often reports are looked at while they are waited for.
const POLL: Duration = Duration::from_millis(50);

/// What a prober says of its Envoys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Report {
    /// Another number each time.
    at_ms: u64,
    /// Marked endpoints of which all Envoys connected there know that they take no traffic, each with the mark of which that
    /// is true: an endpoint may be back in service and under another burst before the next report.
    told: BTreeMap<String, Mark>,
}

impl Report {
    fn has_told(&self, id: &str, mark: Mark) -> bool {
        self.told.get(id) == Some(&mark)
    }
}

/// When each prober's report last changed, as seen here.
#[derive(Debug, Default)]
pub struct Peers {
    seen: Mutex<HashMap<String, (u64, Instant)>>,
}

impl Peers {
    /// Takes in the reports; returns those of others that are there, and the names of those long gone.
    fn look(&self, reports: HashMap<String, Report>, me: &str, now: Instant) -> (Vec<Report>, Vec<String>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|who, _| reports.contains_key(who));
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for (who, report) in reports.into_iter().filter(|(who, _)| who != me) {
            let (at_ms, since) = seen.entry(who.clone()).or_insert((report.at_ms, now));
            if *at_ms != report.at_ms {
                (*at_ms, *since) = (report.at_ms, now);
            }
            let silent = now.duration_since(*since);
            if silent < SILENCE {
                there.push(report);
            } else if silent >= FORGET {
                gone.push(who);
            }
        }
        (there, gone)
    }
}

/// Reports until `shutdown`.
pub async fn run(service: Arc<Service>, shutdown: CancellationToken) {
    while !shutdown.is_cancelled() {
        let changed = service.wake.notified();
        let report = report(&service);
        let Some(report) = shutdown.run_until_cancelled(report).await else { break };
        let mut changes: Vec<Change> = Change::put(Table::Peers, service.store.who(), &report).into_iter().collect();
        let (_, gone) = service.peers.look(service.store.all(Table::Peers), service.store.who(), Instant::now());
        if service.store.fence().is_some() {
            changes.extend(gone.iter().map(|who| Change::remove(Table::Peers, who)));
        }
        service.store.put(changes);
        let again = async {
            changed.await;
            // Changes come in crowds.
            tokio::time::sleep(POLL).await;
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = again => {}
            () = tokio::time::sleep(BEAT) => {}
        }
    }
    service.store.put(vec![Change::remove(Table::Peers, service.store.who())]);
}

async fn report(service: &Service) -> Report {
    let told: BTreeMap<String, Mark> =
        service.read(|registry| registry.marked().map(|(id, mark)| (id.to_owned(), mark)).collect());
    let version = service.version();
    let acknowledged = told.is_empty() || service.xds.wait_applied(version, ACK).await;
    Report { at_ms: now_ms(), told: if acknowledged { told } else { BTreeMap::new() } }
}

/// Waits until every other prober that is there has told its Envoys of this mark at `id`; `false` when that took too long.
pub async fn all_told(service: &Service, id: &str, mark: Mark, patience: Duration) -> bool {
    if !service.store.is_shared() {
        return true;
    }
    let deadline = Instant::now() + patience;
    loop {
        let (there, _) = service.peers.look(service.store.all(Table::Peers), service.store.who(), Instant::now());
        if there.iter().all(|report| report.has_told(id, mark)) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_of_one_burst_says_nothing_of_the_next() {
        let mark = |fence, burst| Mark { fence, burst };
        let report = Report { at_ms: 1, told: BTreeMap::from([("e".to_owned(), mark(7, 1))]) };
        let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert!(again.has_told("e", mark(7, 1)));
        for (id, other) in [("e", mark(7, 2)), ("e", mark(8, 1)), ("f", mark(7, 1))] {
            assert!(!again.has_told(id, other), "{id} {other:?}");
        }
    }

    #[test]
    fn a_prober_is_there_while_its_word_changes() {
        let peers = Peers::default();
        let start = Instant::now();
        let say = |at_ms| HashMap::from([("me".into(), report(0)), ("you".into(), report(at_ms))]);
        fn report(at_ms: u64) -> Report {
            Report { at_ms, told: BTreeMap::new() }
        }
        assert_eq!(peers.look(say(5), "me", start).0.len(), 1);
        assert_eq!(peers.look(say(5), "me", start + SILENCE).0.len(), 0);
        // Its clock was set back: it is there all the same.
        assert_eq!(peers.look(say(3), "me", start + SILENCE).0.len(), 1);
        let (there, gone) = peers.look(say(3), "me", start + SILENCE + FORGET);
        assert_eq!((there.len(), gone), (0, vec!["you".to_owned()]));
    }
}
