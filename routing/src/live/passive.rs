//! Passive health: what requests that fail do to their endpoint.

use super::table::Passive;

/// Failures in a row after which an endpoint is ejected.
pub const EJECT_AFTER: u16 = 5;
/// Length of the first ejection; each further one without a success between doubles it.
pub const EJECT_BASE_MS: u64 = 5_000;
/// The longest ejection.
pub const EJECT_MAX_MS: u64 = 60_000;

/// How a request ended, as far as the endpoint is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The endpoint answered.
    Success,
    /// Connect failure, reset, timeout, 5xx.
    Failure,
    /// Says nothing about the endpoint: the client left, or the engine pushed back (429).
    Neutral,
}

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Whether its endpoint was picked although it had been ejected: as a trial, or because all were. What such a
    /// request meets is news; what one meets that was already running when its endpoint was ejected is not.
    pub trial: bool,
    /// Tokens that it has put into the endpoint's KV cache: moves the endpoint's token clock on.
    pub added_tokens: u64,
}

/// Whether a report ejected the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ejected {
    /// It did, just now.
    Now,
    /// It did not.
    No,
}

/// Passive health when an endpoint is picked. After an ejection one request tries it; until its response has begun, the
/// others stay away for another [`EJECT_BASE_MS`], and then the next one tries. No failures marks a trial under way.
pub(super) fn trial(passive: Passive, now_ms: u64) -> Passive {
    if passive.ejections == 0 || now_ms < passive.ejected_until_ms {
        return passive;
    }
    Passive { ejected_until_ms: now_ms.saturating_add(EJECT_BASE_MS), failures: 0, ..passive }
}

/// Passive health after a request. Five failures in a row eject; when the ejection is over, a trial that fails ejects
/// again for twice as long, and one that succeeds clears everything. (Requests that come only because all are ejected
/// eject nobody for longer: else an outage of the whole pool would outlast its cause.)
pub(super) fn after(mut passive: Passive, report: Report, now_ms: u64) -> (Passive, Ejected) {
    let ejected = now_ms < passive.ejected_until_ms;
    match report.outcome {
        Outcome::Neutral => (passive, Ejected::No),
        // A success of a request that was already running when its endpoint was ejected is no reason to trust it.
        Outcome::Success if ejected && !report.trial => (passive, Ejected::No),
        Outcome::Success => (Passive::default(), Ejected::No),
        Outcome::Failure => {
            let again = passive.ejections > 0 && passive.failures == 0 && report.trial;
            passive.failures = passive.failures.saturating_add(1);
            if !again && (ejected || passive.failures < EJECT_AFTER) {
                return (passive, Ejected::No);
            }
            let length = EJECT_BASE_MS.saturating_mul(1 << passive.ejections.min(16)).min(EJECT_MAX_MS);
            passive.ejected_until_ms = now_ms.saturating_add(length);
            passive.ejections = passive.ejections.saturating_add(1);
            (passive, Ejected::Now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SUCCESS: Report = Report { outcome: Outcome::Success, trial: false, added_tokens: 0 };
    const FAILURE: Report = Report { outcome: Outcome::Failure, ..SUCCESS };

    // Case C10: an endpoint that fails everything is out after five, for longer each time, and back after a success.
    #[test]
    fn c10_five_failures_eject_and_one_trial_forgives() {
        let mut passive = Passive::default();
        for nth in 1..=EJECT_AFTER {
            let (next, ejected) = after(passive, FAILURE, 1_000);
            assert_eq!(ejected == Ejected::Now, nth == EJECT_AFTER);
            passive = next;
        }
        assert_eq!(passive.ejected_until_ms, 1_000 + EJECT_BASE_MS);
        // Stragglers change nothing.
        assert_eq!(after(passive, SUCCESS, 2_000), (passive, Ejected::No));
        assert_eq!(after(passive, FAILURE, 2_000).1, Ejected::No);
        // One trial; the next request has to wait for it, but not for ever.
        let tried = trial(passive, 6_000);
        assert_eq!((tried.ejected_until_ms, trial(tried, 6_001)), (6_000 + EJECT_BASE_MS, tried));
        let failed = Report { trial: true, ..FAILURE };
        let (again, ejected) = after(tried, failed, 7_000);
        assert_eq!((again.ejected_until_ms, ejected), (7_000 + 2 * EJECT_BASE_MS, Ejected::Now));
        assert_eq!(after(again, Report { trial: true, ..SUCCESS }, 8_000).0, Passive::default());
        assert_eq!(after(again, Report { outcome: Outcome::Neutral, trial: true, added_tokens: 0 }, 8_000).0, again);
    }

    proptest! {
        #[test]
        fn ejections_are_bounded(times in proptest::collection::vec(0u64..100_000, 1..100)) {
            let (mut passive, mut now) = (Passive::default(), 0);
            for step in times {
                now += step;
                passive = after(trial(passive, now), Report { trial: step % 2 == 0, ..FAILURE }, now).0;
                prop_assert!(passive.ejected_until_ms <= now + EJECT_MAX_MS);
            }
        }
    }
}
