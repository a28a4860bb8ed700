//! What an engine's gauge still shows of a probe that is over. Pure: time is an argument (Unix ms).
//!
//! Most engines count at the moment they are asked. SGLang's gauges are written when a batch has run, and once idle stand still for up to
//! half a minute: what a probe has left there would be traffic from outside, and an endpoint full of it. So what is shown
//! after a probe counts for nobody until it has been 0, or more than before: then it moves, and somebody moves it.

/// After so long what still stands there is believed to be somebody's.
const BELIEVED_AFTER_MS: u64 = 60_000;

/// How much of what an engine's gauge shows may be a probe's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Leftover {
    requests: u64,
    until_ms: u64,
}

impl Leftover {
    /// The gauge shows so many while a probe runs.
    pub(super) fn probing(&mut self, requests: u64, now_ms: u64) {
        self.requests = self.requests.max(requests);
        self.until_ms = now_ms.saturating_add(BELIEVED_AFTER_MS);
    }

    /// It shows so many and no probe runs: whether that may all be left from the last one.
    pub(super) fn covers(&mut self, requests: u64, now_ms: u64) -> bool {
        let covers = (1..=self.requests).contains(&requests) && now_ms < self.until_ms;
        self.requests = if covers { requests } else { 0 };
        covers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_a_probe() -> Leftover {
        let mut leftover = Leftover::default();
        [(4, 0), (16, 1_000), (9, 2_000)].iter().for_each(|(requests, at_ms)| leftover.probing(*requests, *at_ms));
        leftover
    }

    #[test]
    fn what_stands_still_or_falls_is_the_probes_for_a_while() {
        let mut leftover = after_a_probe();
        for (requests, at_ms, covered) in [
            (16, 2_250, true),
            (16, 20_000, true),
            (9, 30_000, true),
            (9, 61_999, true),
            (9, 62_000, false),
            (9, 62_250, false),
        ] {
            assert_eq!(leftover.covers(requests, at_ms), covered, "{requests} at {at_ms}");
        }
    }

    #[test]
    fn what_has_been_none_or_rises_is_somebodys() {
        for (first, then) in [(0, 1), (17, 16), (8, 9)] {
            let mut leftover = after_a_probe();
            assert_eq!(leftover.covers(first, 3_000), first == 8);
            assert!(!leftover.covers(then, 3_250) && !leftover.covers(1, 3_500), "{first}, then {then}");
        }
    }

    #[test]
    fn without_a_probe_nothing_is_covered() {
        assert!(!Leftover::default().covers(1, 0) && !Leftover::default().covers(0, 0));
    }
}
