//! Endpoints that are to take no more requests, and how far they are. Pure: time is an argument (Unix ms).
//!
//! A **drain** is an operator's, and ends when the operator ends it. A **removal** ends with the endpoint forgotten: when it is
//! empty, and at its deadline in any case.
//!
//! ```text
//! empty = every connected Envoy has applied a snapshot that says so, some time ago (three intervals of reports), and
//!         nothing is left in flight
//! left  = what the Envoys have in flight there, as they report;
//!         where an Envoy does not report, or others may be connected to another prober: what the engine runs and queues,
//!         when that is more, or unknown where it does not tell either. Unknown is not empty.
//! ```

use serde::{Deserialize, Serialize};

/// An endpoint taken out by an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    /// Why, in the operator's words.
    #[serde(default)]
    pub reason: String,
    /// Since when.
    pub at_ms: u64,
    /// When it was to be empty; unknown of drains from before there were deadlines.
    #[serde(default)]
    pub until_ms: Option<u64>,
}

/// An endpoint that is to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Why.
    pub reason: &'static str,
    /// Since when.
    pub at_ms: u64,
    /// When it goes, empty or not.
    pub until_ms: u64,
}

/// How far an endpoint on its way out is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Requests may be under way there.
    Draining,
    /// None are.
    Drained,
    /// Some may be, and the deadline has passed.
    Overdue,
}

/// What is known of the requests that are left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// Envoys that are connected here.
    pub connected: usize,
    /// Envoys that report what they have in flight.
    pub reporting: usize,
    /// The sum of that.
    pub in_flight: u64,
    /// Whether other Envoys may be connected to another prober.
    pub others: bool,
    /// What the engine runs and queues, when it has told so of late.
    pub engine: Option<u64>,
}

impl Left {
    /// Requests that are left; `None` when nobody can tell.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        let all_report = self.reporting > 0 && self.reporting >= self.connected && !self.others;
        match (all_report, self.engine) {
            (true, _) => Some(self.in_flight),
            (false, Some(engine)) => Some(engine.max(self.in_flight)),
            // Some are known, and there may be more.
            (false, None) => (self.in_flight > 0).then_some(self.in_flight),
        }
    }
}

/// An endpoint while it becomes empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Emptying {
    /// The first snapshot version of which it is certain that it says so.
    pub version: u64,
    /// When every Envoy was first known to have applied that.
    told_ms: Option<u64>,
    /// Requests left when it was last looked at.
    pub left: Option<u64>,
    empty: bool,
    /// How far it was when that was last said.
    pub(super) said: Option<Progress>,
}

impl Emptying {
    /// It takes no more requests from this version on.
    #[must_use]
    pub fn from_version(version: u64) -> Self {
        Emptying { version, ..Emptying::default() }
    }

    /// A look: whether every Envoy has applied the version, and how many requests are left. What was reported less than
    /// `settle_ms` after that may be from before.
    pub fn look(&mut self, told: bool, left: Option<u64>, settle_ms: u64, now_ms: u64) {
        if told {
            self.told_ms.get_or_insert(now_ms);
        }
        self.left = left;
        let settled = self.told_ms.is_some_and(|told_ms| now_ms.abs_diff(told_ms) >= settle_ms);
        self.empty = settled && left == Some(0);
    }

    /// Whether nothing is left, for certain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self, until_ms: Option<u64>, now_ms: u64) -> Progress {
        match until_ms {
            _ if self.empty => Progress::Drained,
            Some(until_ms) if now_ms >= until_ms => Progress::Overdue,
            _ => Progress::Draining,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_is_asked_what_is_left() {
        let reported = Left { connected: 2, reporting: 2, in_flight: 3, ..Left::default() };
        assert_eq!(reported.count(), Some(3));
        // Somebody else's requests are none that a removal could disturb.
        assert_eq!(Left { engine: Some(9), ..reported }.count(), Some(3));
        let one_is_silent = Left { reporting: 1, in_flight: 0, ..reported };
        assert_eq!(one_is_silent.count(), None);
        assert_eq!(Left { in_flight: 1, ..one_is_silent }.count(), Some(1));
        assert_eq!(Left { engine: Some(2), ..one_is_silent }.count(), Some(2));
        assert_eq!(Left { engine: Some(0), ..one_is_silent }.count(), Some(0));
        assert_eq!(Left { in_flight: 0, others: true, ..reported }.count(), None);
        assert_eq!(Left::default().count(), None);
        assert_eq!(Left { engine: Some(0), ..Left::default() }.count(), Some(0));
    }

    #[test]
    fn empty_is_what_was_reported_after_everybody_had_heard() {
        let mut emptying = Emptying::from_version(7);
        assert_eq!(emptying.progress(Some(5_000), 0), Progress::Draining);
        emptying.look(false, Some(0), 750, 1_000);
        assert!(!emptying.is_empty(), "a request may still be sent there");
        emptying.look(true, Some(0), 750, 1_500);
        assert!(!emptying.is_empty(), "a report from before that may count");
        // One that was heard of stays heard of, whoever connects since.
        emptying.look(false, Some(0), 750, 2_250);
        assert_eq!((emptying.is_empty(), emptying.progress(Some(0), 2_250)), (true, Progress::Drained));
        for left in [Some(1), None] {
            emptying.look(true, left, 750, 3_000);
            assert_eq!(emptying.progress(Some(5_000), 4_999), Progress::Draining);
            assert_eq!(emptying.progress(Some(5_000), 5_000), Progress::Overdue);
            assert_eq!(emptying.progress(None, u64::MAX), Progress::Draining);
        }
    }

    #[test]
    fn a_drain_from_before_there_were_deadlines_is_read() {
        let drain: Drain = serde_json::from_str(r#"{"reason": "fans", "at_ms": 5}"#).unwrap();
        assert_eq!(drain, Drain { reason: "fans".into(), at_ms: 5, until_ms: None });
    }

    proptest! {
        /// Never empty before everybody has heard and the time to settle is over, nor while something is left or unknown.
        #[test]
        fn nothing_is_empty_too_early(looks in prop::collection::vec((any::<bool>(), prop::option::of(0..3u64), 0..1_000u64), 1..40)) {
            let (mut emptying, mut now, mut told_ms) = (Emptying::default(), 0, None);
            for (told, left, passed) in looks {
                now += passed;
                if told && told_ms.is_none() {
                    told_ms = Some(now);
                }
                emptying.look(told, left, 750, now);
                let may = told_ms.is_some_and(|told_ms| now - told_ms >= 750) && left == Some(0);
                prop_assert_eq!(emptying.is_empty(), may);
            }
        }
    }
}
