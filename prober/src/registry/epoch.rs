//! Which life of its engine an endpoint is in. Whatever the engine held in its KV cache before is gone in the next one.
//!
//! The number is the second in which the engine started, where its metrics tell that: the same for every prober, and
//! after the prober itself has restarted. Else it is the second in which the engine came back after nobody had listened
//! there, or one more than before when it was registered with other launch arguments. 0: nothing is known yet. It is
//! kept in the store, so a restart of the prober does not make anybody forget anything.
//!
//! A scrape or a check that merely failed changes nothing.

use serde::{Deserialize, Serialize};

/// An engine's life.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Epoch {
    /// The number that filters are told.
    pub value: u64,
    /// `process_start_time_seconds`, where the engine tells it.
    #[serde(default)]
    started_s: Option<f64>,
}

impl Epoch {
    /// The metrics were read; `started_s` is `None` when they do not tell when the process started.
    pub(super) fn told(&mut self, started_s: Option<f64>) {
        let started_s = started_s.filter(|seconds| seconds.is_finite() && *seconds >= 1.0);
        if self.started_s == started_s {
            return;
        }
        if let Some(seconds) = started_s {
            // The cast saturates.
            let whole = seconds as u64;
            // Started anew within the same second.
            let again = self.started_s.is_some() && whole == self.value;
            self.value = whole.saturating_add(u64::from(again));
        }
        self.started_s = started_s;
    }

    /// Whether this start was before the one that is known.
    pub(super) fn is_after(self, started_s: Option<f64>) -> bool {
        self.started_s.zip(started_s).is_some_and(|(known_s, told_s)| told_s < known_s)
    }

    /// The start that is known.
    pub(super) fn started_s(self) -> Option<f64> {
        self.started_s
    }

    /// Whether the engine itself has told of another start than it did `before`.
    pub(super) fn started_since(self, before: Self) -> bool {
        before.started_s.is_some() && self.started_s.is_some() && self.started_s != before.started_s
    }

    /// It was gone, and is back. One that tells when it started says by that whether it was really gone.
    pub(super) fn came_back(&mut self, now_ms: u64) {
        if self.started_s.is_none() {
            self.value = (now_ms / 1_000).max(self.value.saturating_add(1));
        }
    }

    /// It is at another address: when the process there has started is not known.
    pub(super) fn moved(&mut self) {
        self.started_s = None;
        self.value = self.value.saturating_add(1);
    }

    /// It was registered with other launch arguments.
    pub(super) fn replaced(&mut self) {
        if self.started_s.is_none() {
            self.value = self.value.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_start_time_rules_where_it_is_told() {
        let mut epoch = Epoch::default();
        assert_eq!(epoch.value, 0);
        epoch.told(Some(1_700_000_000.5));
        assert_eq!(epoch.value, 1_700_000_000);
        for _ in 0..2 {
            epoch.told(Some(1_700_000_000.5));
            epoch.came_back(1_800_000_000_000);
            epoch.replaced();
            assert_eq!(epoch.value, 1_700_000_000);
        }
        epoch.told(Some(1_700_000_000.9));
        assert_eq!(epoch.value, 1_700_000_001);
        epoch.told(Some(1_700_000_007.0));
        assert_eq!(epoch.value, 1_700_000_007);
        // A clock that was set back: still another life.
        epoch.told(Some(1_600_000_000.0));
        assert_eq!(epoch.value, 1_600_000_000);
    }

    #[test]
    fn without_a_start_time_every_return_counts() {
        let mut epoch = Epoch::default();
        epoch.told(None);
        assert_eq!(epoch.value, 0);
        epoch.came_back(5_900);
        assert_eq!(epoch.value, 5);
        epoch.came_back(5_950);
        assert_eq!(epoch.value, 6);
        epoch.replaced();
        assert_eq!(epoch.value, 7);
        epoch.told(Some(f64::NAN));
        assert_eq!(epoch.value, 7);
    }

    // Also where other probers have stored it: two that took each other's word for a restart would never agree.
    proptest! {
        #[test]
        fn it_survives_a_restart_of_the_prober(seconds in 1.6e9..2.4e9) {
            let mut epoch = Epoch::default();
            epoch.told(Some(seconds));
            let mut read: Epoch = serde_json::from_str(&serde_json::to_string(&epoch).unwrap()).unwrap();
            read.told(Some(seconds));
            prop_assert_eq!((read, read.value), (epoch, seconds as u64));
        }
    }
}
