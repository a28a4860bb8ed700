//! One value of the store, and when it was written.
//!
//! Every value carries a [`Stamp`]; of two values under one key the one with the higher stamp counts, wherever and in
//! whatever order the two arrive. A value that is removed leaves a stamp without a value, so that a removal wins over what
//! was written before it. That makes the store a map of last-writer-wins registers: probers may write while they cannot
//! see each other, and agree as soon as they can.

use std::fmt;

use serde::Serialize;

use super::StoreError;

/// The tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Registrations by endpoint.
    Registrations,
    /// Pins by endpoint.
    Pins,
    /// Drains by endpoint.
    Drains,
    /// Results by (node, model, launch arguments).
    Results,
    /// Last result by endpoint.
    Last,
    /// Probe records by endpoint.
    History,
    /// Epochs by endpoint.
    Epochs,
    /// Moving averages by endpoint.
    Averages,
    /// Version and content hash of the newest snapshot, under one key.
    Snapshot,
    /// Probes that somebody asked for, by endpoint.
    Demands,
    /// Which endpoints are under a burst, with the fence of the prober that bursts.
    Probing,
    /// What each prober's Envoys have applied, by prober.
    Peers,
}

impl Table {
    /// All of them, in the order in which news of them is taken in: an endpoint before what is known of it.
    pub const ALL: [Table; 12] = [
        Table::Registrations,
        Table::Pins,
        Table::Drains,
        Table::Results,
        Table::Last,
        Table::History,
        Table::Epochs,
        Table::Averages,
        Table::Snapshot,
        Table::Demands,
        Table::Probing,
        Table::Peers,
    ];

    /// Its name in the file and in Redis.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Table::Registrations => "registrations",
            Table::Pins => "pins",
            Table::Drains => "drains",
            Table::Results => "results",
            Table::Last => "last",
            Table::History => "history",
            Table::Epochs => "epochs",
            Table::Averages => "averages",
            Table::Snapshot => "snapshot",
            Table::Demands => "demands",
            Table::Probing => "probing",
            Table::Peers => "peers",
        }
    }

    /// The table of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.name() == name)
    }

    /// Whether it only says something to other probers that run at the same time.
    #[must_use]
    pub fn between_probers(self) -> bool {
        matches!(self, Table::Demands | Table::Probing | Table::Peers)
    }
}

/// Where a value stands.
pub type Key = (Table, String);

/// When a value was written, and by whom. The time is a hybrid clock: Unix ms, but always above every stamp that the
/// writer has seen, so that a prober whose clock is late can still change what another has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Stamp {
    /// Hybrid time in ms.
    pub at_ms: u64,
    /// The writer, to break ties.
    pub writer: u64,
}

/// Length of a stamp as text: two 64-bit numbers in hexadecimal with a dash, so that text order is stamp order.
const STAMP_BYTES: usize = 33;

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.at_ms, self.writer)
    }
}

/// A value with its place and stamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its table.
    pub table: Table,
    /// Its key.
    pub key: String,
    /// When it was written.
    pub stamp: Stamp,
    /// JSON; `None` when it was removed.
    pub value: Option<String>,
    /// Counts only while nobody has taken the lease with a higher fence. Not stored.
    pub fence: Option<u64>,
}

impl Entry {
    /// The value as it is stored: the stamp, a space, and the JSON, or nothing after the space for a removal.
    #[must_use]
    pub fn encoded(&self) -> String {
        format!("{} {}", self.stamp, self.value.as_deref().unwrap_or_default())
    }

    /// Reads a stored value. One without a stamp was written before there were stamps, and is older than any.
    #[must_use]
    pub fn decoded(table: Table, key: String, stored: &str) -> Self {
        let stamped = stored.split_at_checked(STAMP_BYTES).and_then(|(stamp, rest)| {
            let (at_ms, writer) = stamp.split_once('-')?;
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            let value = rest.strip_prefix(' ')?;
            let stamp = Stamp { at_ms: number(at_ms)?, writer: number(writer)? };
            Some((stamp, (!value.is_empty()).then(|| value.to_owned())))
        });
        let (stamp, value) = stamped.unwrap_or_else(|| (Stamp::default(), Some(stored.to_owned())));
        Entry { table, key, stamp, value, fence: None }
    }
}

/// One value to write or remove.
#[derive(Debug, Clone)]
pub struct Change {
    pub(super) table: Table,
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) fence: Option<u64>,
}

impl Change {
    /// Writes a value.
    ///
    /// # Errors
    /// When it cannot be JSON.
    pub fn put(table: Table, key: &str, value: &impl Serialize) -> Result<Self, StoreError> {
        Ok(Change { table, key: key.to_owned(), value: Some(serde_json::to_string(value)?), fence: None })
    }

    /// Removes a value.
    #[must_use]
    pub fn remove(table: Table, key: &str) -> Self {
        Change { table, key: key.to_owned(), value: None, fence: None }
    }

    /// Refused by the store once somebody has taken the lease after this fence.
    #[must_use]
    pub fn fenced(mut self, fence: u64) -> Self {
        self.fence = Some(fence);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_text_order_is_stamp_order() {
        let entry = |at_ms, writer, value: Option<&str>| Entry {
            table: Table::Pins,
            key: "k".into(),
            stamp: Stamp { at_ms, writer },
            value: value.map(str::to_owned),
            fence: None,
        };
        let all = [entry(9, u64::MAX, Some("{\"a\": 1}")), entry(10, 0, None), entry(u64::MAX, 1, Some("1"))];
        for pair in all.windows(2) {
            assert!(
                pair[0].stamp < pair[1].stamp && pair[0].encoded()[..STAMP_BYTES] < pair[1].encoded()[..STAMP_BYTES]
            );
        }
        for entry in all {
            assert_eq!(Entry::decoded(Table::Pins, "k".into(), &entry.encoded()), entry);
        }
        let old = Entry::decoded(Table::Pins, "k".into(), "{\"weight\": 1.5}");
        assert_eq!((old.stamp, old.value.as_deref()), (Stamp::default(), Some("{\"weight\": 1.5}")));
        for table in Table::ALL {
            assert_eq!(Table::named(table.name()), Some(table));
        }
    }
}
