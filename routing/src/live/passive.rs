//! Passive health: what requests that fail do to their endpoint.
//!
//! Two thresholds eject: failures in a row, and the share of failures among the requests that ended within the last
//! [`SPAN_MS`] to twice that. An ejection that follows another without a success between is twice as long. When it is over, one
//! request at a time tries the endpoint. No more endpoints than [`Settings::max_ejected_percent`] of a pool are out at a time.
//!
//! An engine that pushes back (429, or 503 with `retry-after`) has not failed: it is left alone for a moment and keeps its
//! good name.

/// Outcomes are counted in spans of this length (ms); the last whole one and the one under way count.
pub const SPAN_MS: u64 = 15_000;
/// When every endpoint is ejected, one that has failed within this time (ms) is worse than one that has not.
pub const PANIC_REST_MS: u64 = 1_000;

/// When an endpoint is taken out for what requests meet there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Failures in a row that eject; 0: they do not.
    pub consecutive_failures: u16,
    /// Share of failures that ejects, in percent; 0: it does not.
    pub failure_percent: u8,
    /// Requests that must have ended before their share of failures says something.
    pub min_requests: u16,
    /// Length of the first ejection (ms).
    pub ejection_ms: u32,
    /// Length of the longest (ms).
    pub max_ejection_ms: u32,
    /// How many of a pool's endpoints may be out at a time, in percent; one may always be, unless this is 0.
    pub max_ejected_percent: u8,
    /// How long an endpoint that pushes back is left alone where it does not say (ms).
    pub cool_down_ms: u32,
    /// The longest, whatever it says (ms).
    pub max_cool_down_ms: u32,
    /// A stream that its client gives up after waiting so long (ms) for its first byte is a failure, if the endpoint has sent
    /// nobody anything meanwhile; 0: it is not. How an engine shows that accepts everything and answers nothing.
    pub silent_after_ms: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings::DEFAULT
    }
}

impl Settings {
    /// What counts where nothing is set.
    pub const DEFAULT: Settings = Settings {
        consecutive_failures: 5,
        failure_percent: 50,
        min_requests: 20,
        ejection_ms: 5_000,
        max_ejection_ms: 60_000,
        max_ejected_percent: 50,
        cool_down_ms: 1_000,
        max_cool_down_ms: 5_000,
        silent_after_ms: 5_000,
    };

    /// How many of so many endpoints may be out at a time.
    #[must_use]
    pub fn most_ejected(&self, endpoints: usize) -> usize {
        match self.max_ejected_percent {
            0 => 0,
            percent => (endpoints * usize::from(percent) / 100).max(1),
        }
    }

    fn too_many(&self, passive: &Passive) -> bool {
        let (ended, failed) = passive.recent.sum();
        let in_a_row = self.consecutive_failures > 0 && passive.failures >= self.consecutive_failures;
        let share = self.failure_percent > 0
            && ended >= self.min_requests.into()
            && failed * 100 >= ended * u32::from(self.failure_percent);
        in_a_row || share
    }
}

/// What the passive health check remembers of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passive {
    /// Takes no traffic before this time (ms on the caller's clock); 0 when it was never ejected.
    pub ejected_until_ms: u64,
    /// It pushed back, and is left alone until this time (ms).
    pub cool_until_ms: u64,
    /// When it last failed (ms).
    pub failed_ms: u64,
    /// Failures since the last success.
    pub failures: u16,
    /// Ejections since the last success; each doubles the next one's length.
    pub ejections: u16,
    /// How its last requests ended.
    pub recent: Recent,
}

impl Passive {
    /// Whether it is out, or its trial is under way.
    #[must_use]
    pub fn is_ejected(&self, now_ms: u64) -> bool {
        now_ms < self.ejected_until_ms
    }

    /// Whether it has pushed back a moment ago.
    #[must_use]
    pub fn is_cooling(&self, now_ms: u64) -> bool {
        now_ms < self.cool_until_ms
    }

    /// Whether it has failed a moment ago: what tells the bad from the worse when all are ejected.
    #[must_use]
    pub fn failed_just_now(&self, now_ms: u64) -> bool {
        self.failed_ms > 0 && now_ms.saturating_sub(self.failed_ms) < PANIC_REST_MS
    }
}

/// How many requests ended, and how many of them failed: in the span under way, and in the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recent {
    /// Number of the span under way.
    pub span: u32,
    /// Requests that ended in it.
    pub ended: u16,
    /// Those of them that failed.
    pub failed: u16,
    /// Requests that ended in the span before.
    pub ended_before: u16,
    /// Those of them that failed.
    pub failed_before: u16,
}

impl Recent {
    fn count(self, failed: bool, now_ms: u64) -> Self {
        let span = (now_ms / SPAN_MS) as u32;
        let mut recent = match span.checked_sub(self.span) {
            // Another thread's clock was read a moment later.
            None | Some(0) => self,
            Some(1) => Recent { span, ended_before: self.ended, failed_before: self.failed, ..Recent::default() },
            Some(_) => Recent { span, ..Recent::default() },
        };
        if recent.ended == u16::MAX {
            (recent.ended, recent.failed) = (recent.ended / 2, recent.failed / 2);
        }
        recent.ended += 1;
        // Of a value that this code did not write more may have failed than ended.
        recent.failed = recent.failed.saturating_add(failed.into());
        recent
    }

    /// All that ended, and what failed of it.
    fn sum(self) -> (u32, u32) {
        let sum = |now: u16, before: u16| u32::from(now) + u32::from(before);
        (sum(self.ended, self.ended_before), sum(self.failed, self.failed_before))
    }
}

/// How a request ended, as far as the endpoint is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The endpoint answered.
    Success,
    /// Connect failure, reset, timeout, silence, 5xx, or an error in an answer that began well.
    Failure,
    /// The engine has enough to do (429, or 503 with `retry-after`).
    Busy {
        /// When it wants to be asked again (ms), if it said.
        retry_after_ms: Option<u32>,
    },
    /// Says nothing about the endpoint: the client left, or was refused what any engine would refuse.
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
/// others stay away for the length of a first ejection, and then the next one tries. No failures marks a trial under way.
pub(super) fn trial(passive: Passive, settings: &Settings, now_ms: u64) -> Passive {
    if passive.ejections == 0 || passive.is_ejected(now_ms) {
        return passive;
    }
    Passive { ejected_until_ms: now_ms.saturating_add(settings.ejection_ms.into()), failures: 0, ..passive }
}

/// Passive health after a request. A trial that fails ejects again for twice as long, and one that succeeds clears
/// everything. (Requests that come only because all are ejected eject nobody for longer: else an outage of the whole pool would
/// outlast its cause.) `may_eject` tells whether one more of the pool may be out; it is asked only when that matters, and where
/// none may, the endpoint gets a rest as if it had pushed back: what fails at once is free at once, and would draw in all who
/// wait.
pub(super) fn after(
    mut passive: Passive,
    report: Report,
    settings: &Settings,
    may_eject: impl FnOnce() -> bool,
    now_ms: u64,
) -> (Passive, Ejected) {
    match report.outcome {
        Outcome::Neutral => (passive, Ejected::No),
        Outcome::Busy { retry_after_ms } => {
            let for_ms = retry_after_ms.unwrap_or(settings.cool_down_ms).min(settings.max_cool_down_ms);
            passive.cool_until_ms = passive.cool_until_ms.max(now_ms.saturating_add(for_ms.into()));
            (passive, Ejected::No)
        }
        Outcome::Success if report.trial => {
            (Passive { cool_until_ms: passive.cool_until_ms, ..Passive::default() }, Ejected::No)
        }
        // A success of a request that was already running when its endpoint was ejected is no reason to trust it.
        Outcome::Success if passive.ejections > 0 => (passive, Ejected::No),
        Outcome::Success => {
            passive.failures = 0;
            passive.recent = passive.recent.count(false, now_ms);
            (passive, Ejected::No)
        }
        Outcome::Failure => {
            passive.failed_ms = now_ms;
            // Nor is its failure one of the trial.
            if passive.ejections > 0 && !report.trial {
                return (passive, Ejected::No);
            }
            let trial_failed = passive.ejections > 0 && passive.failures == 0;
            passive.failures = passive.failures.saturating_add(1);
            passive.recent = passive.recent.count(true, now_ms);
            if !trial_failed {
                if passive.is_ejected(now_ms) || !settings.too_many(&passive) {
                    return (passive, Ejected::No);
                }
                if !may_eject() {
                    passive.cool_until_ms = now_ms.saturating_add(settings.cool_down_ms.into());
                    return (passive, Ejected::No);
                }
            }
            let length = u64::from(settings.ejection_ms).saturating_mul(1 << passive.ejections.min(16));
            passive.ejected_until_ms = now_ms.saturating_add(length.min(settings.max_ejection_ms.into()));
            passive.ejections = passive.ejections.saturating_add(1);
            // What led to this ejection does not lead to the next.
            passive.recent = Recent::default();
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
    const SETTINGS: Settings = Settings::DEFAULT;

    fn after(passive: Passive, report: Report, now_ms: u64) -> (Passive, Ejected) {
        super::after(passive, report, &SETTINGS, || true, now_ms)
    }

    #[test]
    fn counts_that_nobody_wrote_do_not_overflow() {
        let recent = Recent { failed: u16::MAX, ..Recent::default() };
        let counted = [false, true].map(|failed| recent.count(failed, 0));
        assert_eq!(counted, [Recent { ended: 1, ..recent }; 2]);
    }

    // Case C10: an endpoint that fails everything is out after five, for longer each time, and back after a success.
    #[test]
    fn c10_five_failures_eject_and_one_trial_forgives() {
        let mut passive = Passive::default();
        for nth in 1..=5 {
            let (next, ejected) = after(passive, FAILURE, 1_000);
            assert_eq!(ejected == Ejected::Now, nth == 5);
            passive = next;
        }
        assert_eq!(passive.ejected_until_ms, 6_000);
        // Stragglers change nothing that matters.
        assert_eq!(after(passive, SUCCESS, 2_000), (passive, Ejected::No));
        let straggler = after(passive, FAILURE, 2_000);
        assert_eq!(straggler, (Passive { failed_ms: 2_000, ..passive }, Ejected::No));
        // One trial; the next request has to wait for it, but not for ever.
        let tried = trial(passive, &SETTINGS, 6_000);
        assert_eq!((tried.ejected_until_ms, trial(tried, &SETTINGS, 6_001)), (11_000, tried));
        assert_eq!(after(tried, FAILURE, 6_500).0.failures, 0, "a straggler is no trial");
        let failed = Report { trial: true, ..FAILURE };
        let (again, ejected) = after(tried, failed, 7_000);
        assert_eq!((again.ejected_until_ms, ejected), (17_000, Ejected::Now));
        assert_eq!(after(again, Report { trial: true, ..SUCCESS }, 8_000).0, Passive::default());
        assert_eq!(after(again, Report { outcome: Outcome::Neutral, trial: true, added_tokens: 0 }, 8_000).0, again);
    }

    #[test]
    fn half_of_twenty_eject_though_never_five_in_a_row() {
        let (mut passive, mut ended) = (Passive::default(), 0);
        let mut step = |passive: &mut Passive, report, now_ms| {
            ended += 1;
            let (next, ejected) = after(*passive, report, now_ms);
            *passive = next;
            (ended, ejected)
        };
        // Both spans count, what is older does not.
        let ejected = (0..40).find_map(|nth| {
            let report = if nth % 2 == 0 { SUCCESS } else { FAILURE };
            let (ended, ejected) = step(&mut passive, report, SPAN_MS - 1_000 + nth * 100);
            (ejected == Ejected::Now).then_some(ended)
        });
        assert_eq!(ejected, Some(20));
        let mut slow = Passive::default();
        for nth in 0..40 {
            let (next, ejected) = after(slow, if nth % 2 == 0 { SUCCESS } else { FAILURE }, nth * SPAN_MS);
            assert_eq!(ejected, Ejected::No);
            slow = next;
        }
    }

    // Case C21: whoever pushes back is left alone for as long as it says, within reason, and is not ejected.
    #[test]
    fn c21_back_pressure_cools_down_and_ejects_nobody() {
        let busy = |retry_after_ms| Report { outcome: Outcome::Busy { retry_after_ms }, ..SUCCESS };
        let mut passive = after(Passive { failures: 4, ..Passive::default() }, busy(None), 1_000).0;
        assert_eq!((passive.cool_until_ms, passive.failures, passive.ejections), (2_000, 4, 0));
        for _ in 0..100 {
            passive = after(passive, busy(Some(3_600_000)), 1_500).0;
        }
        assert_eq!((passive.cool_until_ms, passive.ejections), (6_500, 0));
        assert_eq!(after(passive, busy(Some(0)), 1_600).0, passive);
        assert!(passive.is_cooling(6_499) && !passive.is_cooling(6_500));
    }

    #[test]
    fn no_more_are_out_than_may_be() {
        let full = Passive { failures: 9, ..Passive::default() };
        let (passive, ejected) = super::after(full, FAILURE, &SETTINGS, || false, 1_000);
        assert_eq!((passive.is_ejected(1_000), passive.failures, ejected), (false, 10, Ejected::No));
        assert_eq!(passive.cool_until_ms, 2_000);
        let most = |percent, endpoints| Settings { max_ejected_percent: percent, ..SETTINGS }.most_ejected(endpoints);
        assert_eq!([most(50, 4), most(50, 3), most(50, 1), most(0, 9), most(100, 9), most(10, 4)], [2, 1, 1, 0, 9, 1]);
    }

    proptest! {
        #[test]
        fn ejections_are_bounded(times in proptest::collection::vec(0u64..100_000, 1..100)) {
            let (mut passive, mut now) = (Passive::default(), 0);
            for step in times {
                now += step;
                passive = after(trial(passive, &SETTINGS, now), Report { trial: step % 2 == 0, ..FAILURE }, now).0;
                prop_assert!(passive.ejected_until_ms <= now + 60_000);
                prop_assert!(passive.recent.failed <= passive.recent.ended);
            }
        }
    }
}
