//! The numbers of snapshots, when several probers give them out.
//!
//! version = max(unix_ms, highest known + 1). The same content keeps its number whoever says it, so an Envoy that moves from
//! one prober to another hears nothing new; another content never gets a number that is known to be taken. Two probers
//! that change at the same moment may give two numbers to one content: both then take the higher one. Two that give the
//! same number to two contents (in the same millisecond, while they could not hear each other) both take a new one.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use weighbridge_routing::snapshot::wire;
use xxhash_rust::xxh3::xxh3_128;

/// How many numbers are remembered with their contents.
const KNOWN: usize = 64;
/// A version is a time in ms; one that is further ahead than this is no time, and following it would end at the largest
/// number there is.
pub(super) const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// Stands for what a snapshot says, its version aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content(u128);

impl Content {
    /// 128 bits of xxh3 over the JSON: some microseconds for a pool.
    /// `beside` stands for what goes with it and is not in it.
    pub(super) fn of(filter: &wire::Filter, pools: &[wire::Pool], beside: &str) -> Self {
        // What cannot be JSON cannot be published either.
        Content(xxh3_128(&serde_json::to_vec(&(filter, pools, beside)).unwrap_or_default()))
    }
}

/// A number that was given out, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// The number.
    pub version: u64,
    /// The content, as 32 hexadecimal digits.
    content: String,
}

/// What is known of the numbers.
#[derive(Debug, Default)]
pub(super) struct Versions {
    newest: u64,
    known: VecDeque<(u64, Content)>,
    /// Given out here and not yet told to the store.
    untold: Option<Issued>,
}

impl Versions {
    /// Another prober (or this one before it was restarted) has given out a number. `now_ms` 0: at any time.
    pub(super) fn learn(&mut self, issued: &Issued, now_ms: u64) {
        let Ok(content) = u128::from_str_radix(&issued.content, 16) else { return };
        if now_ms > 0 && issued.version > now_ms.saturating_add(DAY_MS) {
            return;
        }
        self.note(issued.version, Content(content));
    }

    fn note(&mut self, version: u64, content: Content) {
        self.newest = self.newest.max(version);
        if self.known.contains(&(version, content)) {
            return;
        }
        if self.known.len() >= KNOWN {
            self.known.pop_front();
        }
        self.known.push_back((version, content));
    }

    /// The highest number that this content is known by.
    pub(super) fn of(&self, content: Content) -> Option<u64> {
        self.known.iter().filter(|(_, known)| *known == content).map(|(version, _)| *version).max()
    }

    /// Whether this content cannot stay under its number: it is known by a higher one, or something else is known by the
    /// same one.
    pub(super) fn moved(&self, content: Content, version: u64) -> bool {
        self.of(content).is_some_and(|known| known > version) || self.clash(version, content)
    }

    fn clash(&self, version: u64, content: Content) -> bool {
        self.known.iter().any(|(known, other)| *known == version && *other != content)
    }

    /// A number for this content above `last`, the one served before, and not below `floor`, the highest that an Envoy
    /// holds: one that the content has already (an Envoy that holds that one holds just this), or else a new one.
    pub(super) fn give(&mut self, content: Content, last: u64, floor: u64, now_ms: u64) -> u64 {
        let fits = |version: &u64| *version > last && *version >= floor && !self.clash(*version, content);
        if let Some(version) = self.of(content).filter(fits) {
            return version;
        }
        let newest = if self.newest > now_ms.saturating_add(DAY_MS) { 0 } else { self.newest };
        let version = now_ms.max(last.max(floor).max(newest).saturating_add(1));
        self.note(version, content);
        self.untold = Some(Issued { version, content: format!("{:032x}", content.0) });
        version
    }

    pub(super) fn take_untold(&mut self) -> Option<Issued> {
        self.untold.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_content_has_one_number_and_another_has_another() {
        let (x, y) = (Content(1), Content(2));
        let (mut a, mut b) = (Versions::default(), Versions::default());
        let first = a.give(x, 0, 0, 1_000);
        let told = a.take_untold().unwrap();
        assert_eq!((first, told.version, a.take_untold()), (1_000, 1_000, None));
        b.learn(&told, 500);
        assert_eq!((b.give(x, 0, 0, 500), b.take_untold()), (1_000, None));
        // Its clock is behind, and yet it goes above.
        assert_eq!(b.give(y, 1_000, 0, 500), 1_001);
        a.learn(&b.take_untold().unwrap(), 2_000);
        assert_eq!(a.give(y, first, 1_001, 2_000), 1_001);
        // Back to the old content: a new number all the same.
        assert_eq!(a.give(x, 1_001, 0, 2_000), 2_000);
    }

    #[test]
    fn a_number_for_two_contents_is_given_up_and_one_from_the_far_future_ignored() {
        let (x, y) = (Content(1), Content(2));
        let (mut a, mut b) = (Versions::default(), Versions::default());
        assert_eq!((a.give(x, 0, 0, 7), b.give(y, 0, 0, 7)), (7, 7));
        a.learn(&b.take_untold().unwrap(), 8);
        assert!(a.moved(x, 7));
        assert_eq!(a.give(x, 7, 0, 7), 8);
        assert!(!a.moved(x, 8));
        a.learn(&Issued { version: u64::MAX, content: "1".into() }, 9);
        assert_eq!(a.give(y, 8, 0, 9), 9);
    }
}
