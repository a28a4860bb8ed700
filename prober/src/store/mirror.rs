//! Everything the store holds, in memory, and what of it is still to be written. Pure: time is an argument.
//!
//! The prober works on this copy, so it never waits for the store to read, and a store that is gone takes nothing away.
//! Changes wait here in the order in which they were made until the backend has them: one per key, the newest, so what
//! waits is bounded by the number of keys, which is bounded by the fleet. When the backend is back, perhaps empty,
//! [`Mirror::reconcile`] compares both sides: the higher stamp wins, and what the backend lacks is written again.
//!
//! Cost: a change or a merge is two look-ups in a tree; reconciling is one for every key.

use std::collections::{BTreeMap, HashSet};

use super::entry::{Change, Entry, Key, Stamp, Table};

/// How long a removal is remembered. A prober that was cut off for longer may bring back what was removed meanwhile.
const FORGET_MS: u64 = 24 * 3_600 * 1_000;

#[derive(Debug, Clone)]
struct Held {
    stamp: Stamp,
    value: Option<String>,
    fence: Option<u64>,
    /// Its place in the order of what is to be written.
    waits: Option<u64>,
}

/// The copy.
#[derive(Debug)]
pub struct Mirror {
    writer: u64,
    last_ms: u64,
    entries: BTreeMap<Key, Held>,
    waiting: BTreeMap<u64, Key>,
    next: u64,
}

/// Entries on their way to the backend, with their places in the order.
#[derive(Debug, Default)]
pub struct Batch {
    /// What to write.
    pub entries: Vec<Entry>,
    places: Vec<u64>,
}

impl Mirror {
    /// An empty copy; `writer` tells this prober's stamps from others'.
    #[must_use]
    pub fn new(writer: u64) -> Self {
        Mirror { writer, last_ms: 0, entries: BTreeMap::new(), waiting: BTreeMap::new(), next: 1 }
    }

    /// Changes a value here; it waits to be written. The place in the order is for [`Mirror::is_written`].
    pub fn put(&mut self, change: Change, now_ms: u64) -> u64 {
        let Change { table, key, value, fence } = change;
        self.last_ms = now_ms.max(self.last_ms.saturating_add(1));
        let stamp = Stamp { at_ms: self.last_ms, writer: self.writer };
        self.hold((table, key), Held { stamp, value, fence, waits: None });
        self.next - 1
    }

    /// Whether everything up to this place has been written.
    #[must_use]
    pub fn is_written(&self, place: u64) -> bool {
        self.waiting.first_key_value().is_none_or(|(first, _)| *first > place)
    }

    /// How many values wait to be written.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When the longest waiting value was changed, in Unix ms.
    #[must_use]
    pub fn waiting_since_ms(&self) -> Option<u64> {
        let (_, key) = self.waiting.first_key_value()?;
        Some(self.entries.get(key)?.stamp.at_ms)
    }

    /// The first of what waits, in order.
    #[must_use]
    pub fn batch(&self, most: usize) -> Batch {
        let mut batch = Batch::default();
        for (place, (table, key)) in self.waiting.iter().take(most) {
            let Some(held) = self.entries.get(&(*table, key.clone())) else { continue };
            let Held { stamp, value, fence, .. } = held.clone();
            batch.entries.push(Entry { table: *table, key: key.clone(), stamp, value, fence });
            batch.places.push(*place);
        }
        batch
    }

    /// The backend has these. What was changed meanwhile has another place, and still waits.
    pub fn written(&mut self, batch: &Batch) {
        for place in &batch.places {
            if let Some(key) = self.waiting.remove(place)
                && let Some(held) = self.entries.get_mut(&key)
            {
                held.waits = None;
            }
        }
    }

    /// The backend refused this one, whose fence is stale: it never was.
    pub fn refused(&mut self, entry: &Entry) {
        let key = (entry.table, entry.key.clone());
        if self.entries.get(&key).is_some_and(|held| held.stamp == entry.stamp)
            && let Some(held) = self.entries.remove(&key)
            && let Some(place) = held.waits
        {
            self.waiting.remove(&place);
        }
    }

    /// Takes in what the backend has; whether that is news.
    pub fn merge(&mut self, entry: Entry) -> bool {
        self.last_ms = self.last_ms.max(entry.stamp.at_ms);
        let key = (entry.table, entry.key);
        if self.entries.get(&key).is_some_and(|held| held.stamp >= entry.stamp) {
            return false;
        }
        let held = Held { stamp: entry.stamp, value: entry.value, fence: None, waits: None };
        if let Some(place) = self.entries.insert(key, held).and_then(|old| old.waits) {
            // Somebody has changed it later.
            self.waiting.remove(&place);
        }
        true
    }

    /// Takes in everything that the backend has, and lets wait what it has not or has only older. Returns the news.
    pub fn reconcile(&mut self, all: Vec<Entry>) -> Vec<Key> {
        let mut same = HashSet::new();
        let mut news = Vec::new();
        for entry in all {
            let key = (entry.table, entry.key.clone());
            if self.entries.get(&key).is_some_and(|held| held.stamp == entry.stamp) {
                same.insert(key);
            } else if self.merge(entry) {
                same.insert(key.clone());
                news.push(key);
            }
        }
        let mut lacking: Vec<(Stamp, Key)> = self
            .entries
            .iter()
            .filter(|(key, held)| held.waits.is_none() && !same.contains(*key))
            .map(|(key, held)| (held.stamp, key.clone()))
            .collect();
        lacking.sort();
        for (_, key) in lacking {
            if let Some(held) = self.entries.remove(&key) {
                self.hold(key, held);
            }
        }
        news
    }

    /// The JSON under a key.
    #[must_use]
    pub fn get(&self, table: Table, key: &str) -> Option<&str> {
        self.entries.get(&(table, key.to_owned()))?.value.as_deref()
    }

    /// Every key of a table with its JSON.
    pub fn all(&self, table: Table) -> impl Iterator<Item = (&str, &str)> {
        let from = self.entries.range((table, String::new())..);
        let of_table = from.take_while(move |((in_table, _), _)| *in_table == table);
        of_table.filter_map(|((_, key), held)| Some((key.as_str(), held.value.as_deref()?)))
    }

    /// Forgets removals that everybody has heard of; `keep` says whether they must be remembered at all. Returns them.
    pub fn forget_removals(&mut self, now_ms: u64, keep: bool) -> Vec<(Key, Stamp)> {
        let old = |held: &Held| !keep || now_ms.saturating_sub(held.stamp.at_ms) > FORGET_MS;
        let gone = self.entries.extract_if(.., |_, held| held.value.is_none() && held.waits.is_none() && old(held));
        gone.map(|(key, held)| (key, held.stamp)).collect()
    }

    fn hold(&mut self, key: Key, mut held: Held) {
        let place = self.next;
        self.next += 1;
        held.waits = Some(place);
        self.waiting.insert(place, key.clone());
        if let Some(place) = self.entries.insert(key, held).and_then(|old| old.waits) {
            self.waiting.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(mirror: &mut Mirror, key: &str, value: u64, now_ms: u64) -> u64 {
        mirror.put(Change::put(Table::Pins, key, &value).unwrap(), now_ms)
    }

    fn keys(batch: &Batch) -> Vec<(&str, &str)> {
        batch.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_deref().unwrap_or("-"))).collect()
    }

    #[test]
    fn what_waits_is_in_order_and_one_per_key() {
        let mut mirror = Mirror::new(1);
        let first = put(&mut mirror, "a", 1, 5);
        put(&mut mirror, "b", 2, 5);
        put(&mut mirror, "a", 3, 5);
        let last = mirror.put(Change::remove(Table::Pins, "c"), 5);
        assert_eq!(keys(&mirror.batch(9)), [("b", "2"), ("a", "3"), ("c", "-")]);
        let sent = mirror.batch(2);
        // Changed while it is on its way.
        put(&mut mirror, "b", 4, 5);
        mirror.written(&sent);
        assert!(mirror.is_written(first) && !mirror.is_written(last));
        assert_eq!(keys(&mirror.batch(9)), [("c", "-"), ("b", "4")]);
        mirror.written(&mirror.batch(9));
        assert_eq!((mirror.waiting(), mirror.waiting_since_ms()), (0, None));
    }

    #[test]
    fn the_later_change_wins_also_against_a_clock_that_is_ahead() {
        let (mut early, mut late) = (Mirror::new(1), Mirror::new(2));
        put(&mut early, "k", 1, 1_000_000);
        let seen = early.batch(9).entries.remove(0);
        assert!(late.merge(seen.clone()) && !late.merge(seen));
        // An hour behind, but later.
        put(&mut late, "k", 2, 5);
        let answer = late.batch(9).entries.remove(0);
        assert!(early.merge(answer));
        assert_eq!((early.get(Table::Pins, "k"), early.waiting()), (Some("2"), 0));
    }

    #[test]
    fn both_sides_have_everything_after_reconciling() {
        let mut mirror = Mirror::new(1);
        for (key, at_ms) in [("both", 1), ("only here", 2), ("newer there", 3), ("newer here", 4)] {
            put(&mut mirror, key, at_ms, at_ms);
        }
        let mut there: Vec<Entry> = mirror.batch(9).entries;
        mirror.written(&mirror.batch(9));
        there.retain(|entry| entry.key != "only here");
        let mut foreign = Mirror::new(2);
        put(&mut foreign, "newer there", 33, 100);
        put(&mut foreign, "only there", 5, 100);
        there.retain(|entry| entry.key != "newer there");
        there.extend(foreign.batch(9).entries);
        put(&mut mirror, "newer here", 44, 200);
        let mut news = mirror.reconcile(there.clone());
        news.sort();
        assert_eq!(news.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>(), ["newer there", "only there"]);
        assert_eq!(keys(&mirror.batch(9)), [("newer here", "44"), ("only here", "2")]);
        // A backend that has lost everything gets everything, oldest first.
        mirror.written(&mirror.batch(9));
        assert!(mirror.reconcile(Vec::new()).is_empty());
        let all = mirror.batch(9);
        assert_eq!(all.entries.len(), 5);
        assert!(all.entries.is_sorted_by_key(|entry| entry.stamp));
    }

    #[test]
    fn a_removal_is_remembered_for_a_day_and_a_refusal_undone() {
        let mut mirror = Mirror::new(1);
        put(&mut mirror, "k", 1, 5);
        mirror.put(Change::remove(Table::Pins, "k"), 6);
        mirror.written(&mirror.batch(9));
        assert!(mirror.forget_removals(FORGET_MS + 6, true).is_empty());
        assert_eq!(mirror.forget_removals(FORGET_MS + 7, true).len(), 1);
        mirror.put(Change::put(Table::Last, "k", &1).unwrap().fenced(3), 9);
        let refused = mirror.batch(9).entries.remove(0);
        mirror.refused(&refused);
        assert_eq!((mirror.get(Table::Last, "k"), mirror.waiting()), (None, 0));
    }
}
