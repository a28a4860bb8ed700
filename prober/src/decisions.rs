//! The last decision records of each pool, as the Envoys send them: what `GET /v1/decisions` searches.
//!
//! In memory only: they explain what happened lately, and the access log has every one of them. Bounded three ways: each
//! record ([`weighbridge_routing::decision::record`]), how many a pool keeps (`decisions.keep`), and how many bytes these
//! have as JSON ([`MAX_POOL_BYTES`]). The oldest go first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use weighbridge_routing::decision::record::Record;

/// The most that one pool's records may have, in bytes of JSON.
pub const MAX_POOL_BYTES: usize = 8 << 20;

/// VMs whose last batch is remembered: every worker thread of every Envoy is one.
pub const MAX_SENDERS: usize = 4_096;

/// What one filter sends at a time.
#[derive(Debug)]
pub struct Batch {
    /// Which Envoy.
    pub envoy: String,
    /// Which of its VMs, and which batch of that one, for those that say so: one that comes again is not taken again.
    pub sender: Option<(String, u64)>,
    /// Requests that ended there since the last batch, told of or not.
    pub seen: u64,
    /// Records that were lost since the last batch, because the prober could not be reached.
    pub dropped: u64,
    /// The records, not looked at yet.
    pub records: Vec<Value>,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub struct Taken {
    /// Records that are kept now.
    pub kept: usize,
    /// The place of each that is not, and why.
    pub refused: Vec<(usize, String)>,
    /// It came before, and has been taken then.
    pub repeated: bool,
}

/// What to look for; records must match all of it.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// The pool.
    pub pool: Option<String>,
    /// An endpoint that was picked, tried, or answered.
    pub endpoint: Option<String>,
    /// The first token came at least so late (ms); one that told of no first token does not match.
    pub ttft_ms: Option<u64>,
    /// Took at least this long, wait and answer together.
    pub slow_ms: Option<u64>,
    /// Ended at this time (ms since 1970) or later.
    pub since_ms: Option<u64>,
    /// Ended at this time or before.
    pub until_ms: Option<u64>,
    /// `x-request-id`.
    pub request_id: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// The newest first.
    pub records: Vec<Record>,
    /// How many match, shown or not.
    pub matched: usize,
    /// How many were looked at.
    pub kept: usize,
    /// The oldest of these, in ms since 1970.
    pub oldest_ms: Option<u64>,
}

/// Counts since the prober started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that Envoys have told of by number.
    pub seen: u64,
    /// Records taken.
    pub taken: u64,
    /// Records that were none.
    pub refused: u64,
    /// Records that Envoys could not get through.
    pub dropped: u64,
    /// Records of batches that had come before.
    pub repeated: u64,
}

struct Kept {
    record: Record,
    bytes: usize,
}

impl Kept {
    /// When the request ended; when it came here, for a record without a time.
    fn ended_ms(&self) -> u64 {
        match self.record.time_ms {
            0 => self.record.received_ms,
            time_ms => time_ms.saturating_add(self.record.total_ms()),
        }
    }
}

#[derive(Default)]
struct Ring {
    kept: VecDeque<Kept>,
    bytes: usize,
}

impl Ring {
    fn push(&mut self, new: Kept, keep: usize) {
        self.bytes += new.bytes;
        self.kept.push_back(new);
        while self.kept.len() > keep || self.bytes > MAX_POOL_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }
}

/// The last batch of each VM. An answer that comes too late makes a filter send its batch once more.
#[derive(Default)]
struct Senders {
    last: HashMap<(String, String), Last>,
    heard: u64,
}

struct Last {
    batch: u64,
    /// Its place in the order in which batches came.
    heard: u64,
}

impl Senders {
    /// Whether this batch is the one that came last from there.
    fn is_repeat(&mut self, envoy: &str, vm: String, batch: u64) -> bool {
        self.heard += 1;
        let sender = (envoy.to_owned(), vm);
        if self.last.len() >= MAX_SENDERS
            && !self.last.contains_key(&sender)
            && let Some(oldest) = self.last.iter().min_by_key(|(_, last)| last.heard).map(|(sender, _)| sender.clone())
        {
            self.last.remove(&oldest);
        }
        let before = self.last.insert(sender, Last { batch, heard: self.heard });
        before.is_some_and(|before| before.batch == batch)
    }
}

#[derive(Default)]
struct Inside {
    rings: BTreeMap<String, Ring>,
    counts: Counts,
    senders: Senders,
}

/// The records of all pools.
pub struct Decisions {
    keep: usize,
    inside: Mutex<Inside>,
}

impl std::fmt::Debug for Decisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decisions").field("keep", &self.keep).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Decisions {
    /// Room for so many records of each of these pools.
    #[must_use]
    pub fn new<'a>(keep: usize, pools: impl Iterator<Item = &'a str>) -> Self {
        let rings = pools.map(|pool| (pool.to_owned(), Ring::default())).collect();
        Decisions { keep, inside: Mutex::new(Inside { rings, ..Inside::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a batch, each record for itself: one that is broken does not spoil the others.
    pub fn take(&self, batch: Batch, now_ms: u64) -> Taken {
        // Reading them needs no lock.
        let records: Vec<_> = batch.records.into_iter().map(read).collect();
        let mut taken = Taken::default();
        let mut inside = self.lock();
        if let Some((vm, nth)) = batch.sender
            && inside.senders.is_repeat(&batch.envoy, vm, nth)
        {
            inside.counts.repeated += records.len() as u64;
            return Taken { repeated: true, ..taken };
        }
        for (place, record) in records.into_iter().enumerate() {
            let kept = record.and_then(|Kept { mut record, bytes }| {
                let ring = inside.rings.get_mut(&record.pool);
                let ring = ring.ok_or_else(|| format!("pool is {:?}: expected a pool of this prober", record.pool))?;
                record.envoy = Some(batch.envoy.clone());
                record.received_ms = now_ms;
                ring.push(Kept { record, bytes }, self.keep);
                Ok(())
            });
            match kept {
                Ok(()) => taken.kept += 1,
                Err(why) => taken.refused.push((place, why)),
            }
        }
        let counts = &mut inside.counts;
        counts.seen = counts.seen.saturating_add(batch.seen);
        counts.dropped = counts.dropped.saturating_add(batch.dropped);
        counts.taken += taken.kept as u64;
        counts.refused += taken.refused.len() as u64;
        taken
    }

    /// Looks through what is kept.
    #[must_use]
    pub fn find(&self, search: &Search) -> Found {
        let inside = self.lock();
        let pools = inside.rings.iter().filter(|(pool, _)| search.pool.as_ref().is_none_or(|wanted| wanted == *pool));
        let mut found = Found::default();
        let mut matching: Vec<&Kept> = Vec::new();
        for (_, ring) in pools {
            found.kept += ring.kept.len();
            let oldest_ms = ring.kept.iter().map(Kept::ended_ms).min();
            found.oldest_ms = [found.oldest_ms, oldest_ms].into_iter().flatten().min();
            matching.extend(ring.kept.iter().rev().filter(|kept| search.matches(kept)));
        }
        found.matched = matching.len();
        // Stable: of those that ended in the same millisecond, the one that came last stands first.
        matching.sort_by_key(|kept| std::cmp::Reverse(kept.ended_ms()));
        found.records = matching.into_iter().take(search.limit).map(|kept| kept.record.clone()).collect();
        found
    }

    /// Whether there is such a pool.
    #[must_use]
    pub fn knows(&self, pool: &str) -> bool {
        self.lock().rings.contains_key(pool)
    }

    /// Counts since the prober started.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }
}

fn read(value: Value) -> Result<Kept, String> {
    let bytes = value.to_string();
    let record = Record::from_json(&bytes).map_err(|error| error.to_string())?;
    Ok(Kept { record, bytes: bytes.len() })
}

impl Search {
    fn matches(&self, kept: &Kept) -> bool {
        let Kept { record, .. } = kept;
        self.endpoint.as_ref().is_none_or(|endpoint| record.concerns(endpoint))
            && self.slow_ms.is_none_or(|slow_ms| record.total_ms() >= slow_ms)
            && self.ttft_ms.is_none_or(|ttft_ms| {
                record.result.as_ref().and_then(|result| result.ttft_ms).is_some_and(|took_ms| took_ms >= ttft_ms)
            })
            && self.since_ms.is_none_or(|since_ms| kept.ended_ms() >= since_ms)
            && self.until_ms.is_none_or(|until_ms| kept.ended_ms() <= until_ms)
            && self.request_id.as_ref().is_none_or(|id| record.request_id.as_ref() == Some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(nth: u64) -> Value {
        json!({"time_ms": 1_000 + nth, "request_id": format!("r{nth}"), "pool": "p", "snapshot": 1, "reason": "lower_load",
            "picked": "a", "result": {"endpoint": "b", "status": 200, "attempts": 2, "duration_ms": 10 + nth, "ttft_ms": 100 + nth,
            "tried": ["a", "b"]}})
    }

    fn batch(records: Vec<Value>) -> Batch {
        Batch { envoy: "e".into(), sender: None, seen: 100, dropped: 1, records }
    }

    fn all() -> Search {
        Search { limit: 1_000, ..Search::default() }
    }

    fn ids(found: &Found) -> Vec<&str> {
        found.records.iter().filter_map(|record| record.request_id.as_deref()).collect()
    }

    #[test]
    fn the_newest_come_first_and_the_oldest_go_first() {
        let decisions = Decisions::new(3, ["p", "q"].into_iter());
        assert_eq!(decisions.take(batch((0..5).map(record).collect()), 7_000).kept, 5);
        let found = decisions.find(&all());
        assert_eq!((ids(&found), found.matched, found.kept), (vec!["r4", "r3", "r2"], 3, 3));
        assert_eq!(found.oldest_ms, Some(1_014));
        assert_eq!((found.records[0].envoy.as_deref(), found.records[0].received_ms), (Some("e"), 7_000));
        assert_eq!(decisions.counts(), Counts { seen: 100, taken: 5, dropped: 1, ..Counts::default() });
    }

    #[test]
    fn a_batch_that_comes_again_is_taken_once() {
        let decisions = Decisions::new(100, ["p"].into_iter());
        let from = |envoy: &str, vm: &str, nth: u64| Batch {
            envoy: envoy.into(),
            sender: Some((vm.into(), nth)),
            ..batch(vec![record(nth)])
        };
        assert_eq!(decisions.take(from("e", "1", 7), 0).kept, 1);
        let again = decisions.take(from("e", "1", 7), 1);
        assert_eq!((again.repeated, again.kept), (true, 0));
        assert_eq!(decisions.counts(), Counts { seen: 100, taken: 1, dropped: 1, repeated: 1, ..Counts::default() });
        // Another VM, another Envoy, the next batch, and one that does not say which it is.
        for other in [from("e", "2", 7), from("f", "1", 7), from("e", "1", 8), batch(vec![record(7)])] {
            assert_eq!(decisions.take(other, 2).kept, 1);
        }
        // However many there are, only so many are remembered; the one that was silent longest is forgotten.
        for vm in 0..MAX_SENDERS {
            decisions.take(Batch { records: Vec::new(), ..from("many", &vm.to_string(), 1) }, 3);
        }
        assert_eq!(decisions.lock().senders.last.len(), MAX_SENDERS);
        assert!(!decisions.take(from("e", "1", 8), 4).repeated);
        assert!(decisions.take(Batch { records: Vec::new(), ..from("many", "4095", 1) }, 4).repeated);
    }

    #[test]
    fn each_filter_finds_what_it_says() {
        let decisions = Decisions::new(100, ["p", "q"].into_iter());
        decisions.take(batch((0..5).map(record).collect()), 7_000);
        let found = |search: Search| ids(&decisions.find(&search)).len();
        assert_eq!(found(Search { pool: Some("q".into()), ..all() }), 0);
        assert_eq!(found(Search { pool: Some("p".into()), ..all() }), 5);
        // Picked, tried or answered.
        assert_eq!(["a", "b", "c"].map(|id| found(Search { endpoint: Some(id.into()), ..all() })), [5, 5, 0]);
        assert_eq!(found(Search { slow_ms: Some(13), ..all() }), 2);
        // When it ended, not when it began.
        assert_eq!(found(Search { since_ms: Some(1_018), ..all() }), 1);
        assert_eq!(found(Search { until_ms: Some(1_014), ..all() }), 3);
        assert_eq!(found(Search { since_ms: Some(1_012), until_ms: Some(1_012), ..all() }), 1);
        assert_eq!([100, 102, 105].map(|ttft_ms| found(Search { ttft_ms: Some(ttft_ms), ..all() })), [5, 3, 0]);
        assert_eq!(found(Search { request_id: Some("r2".into()), ..all() }), 1);
        let two = decisions.find(&Search { limit: 2, ..all() });
        assert_eq!((two.records.len(), two.matched), (2, 5));
    }

    #[test]
    fn a_broken_record_does_not_spoil_the_others() {
        let decisions = Decisions::new(100, ["p"].into_iter());
        let mut elsewhere = record(1);
        elsewhere["pool"] = json!("none");
        let mut wrong = record(2);
        wrong["result"]["status"] = json!("ok");
        let mut long = record(3);
        long["request_id"] = json!("x".repeat(2_000));
        let mut many = record(4);
        many["candidates"] = vec![json!({"id": "a", "weight": 1.0, "in_flight": 0, "cap": 1}); 65].into();
        let mut huge = record(5);
        huge["what"] = json!("x".repeat(20_000));
        let taken = decisions.take(batch(vec![elsewhere, wrong, json!(7), long, many, huge, record(9)]), 0);
        assert_eq!(taken.kept, 1);
        let said = |place: usize, word: &str| {
            let (at, why) = &taken.refused[place];
            assert!(*at == place && why.contains(word), "{place}: {why}");
        };
        said(0, "pool");
        said(1, "expected u16");
        said(2, "expected struct Record");
        said(3, "request_id");
        said(4, "candidates");
        said(5, "16384");
        assert_eq!(decisions.counts().refused, 6);
    }

    #[test]
    fn large_records_push_more_of_the_old_ones_out() {
        let decisions = Decisions::new(10_000, ["p"].into_iter());
        let large: Vec<_> = (0..1_200)
            .map(|nth| {
                let mut large = record(nth);
                large["hosts"] = vec![json!("h".repeat(1_000)); 8].into();
                large
            })
            .collect();
        decisions.take(batch(large), 0);
        let found = decisions.find(&all());
        assert!(found.kept > 900 && found.kept < 1_050, "{}", found.kept);
        assert_eq!(ids(&found)[0], "r1199");
    }
}
