//! Traffic from outside: what an engine runs and queues beyond the requests that Envoys have sent.
//!
//! ```text
//! ours(scrape)    = sum over Envoys of the most they reported within REACH of the scrape
//! known(scrape)   = max of ours over the scrapes that the gauge may be as old as;
//!                   of the first after a probe, and while the gauge may be as old as that: ours + the probe's requests
//! residue(scrape) = max(0, running + waiting - known(scrape))
//! outside         = min over the last 3 scrapes of residue(scrape);  0 with fewer, or when the last is stale
//! ```
//!
//! An engine is scraped at one moment and Envoys report at others, so the two never fit exactly: a burst of our own is in a
//! scrape up to one interval before it is in a report, and a request that has ended stays in the last report as long. Two
//! things keep such a difference from being taken for somebody else's traffic:
//! - of each Envoy the *most* that it reported from 1.5 intervals before the scrape to 1.5 intervals after it counts (a
//!   report comes every interval, and may be a little late; one that is later still leaves the report before it in force);
//! - the *least* residue of three scrapes counts, so the newest, whose reports are still to come, decides nothing alone.
//!
//! Where our own load swings within an interval, outside traffic is therefore counted a little too low, by about the swing,
//! and it is noticed two to three intervals after it began. It is never counted too high for longer than a scrape, which is
//! what would keep an endpoint from getting the traffic that it can take.
//!
//! **A gauge that stands still.** SGLang sets its gauges with every 40th step of decoding, and when nothing comes only every 30 s: what it
//! says may be as old as the first scrape that said it. So while the gauge has not been set anew since the scrape before, which
//! [`Signals::may_be_as_old_as`](crate::engine::Signals::may_be_as_old_as) tells, a scrape counts against the most that was ours since then.
//! An engine that works sets it soon.
//!
//! **A probe's requests** are nobody else's. While one runs no scrape counts. The first one after it may be of its last moment, so as many
//! requests as the probe had at once are known in it, beside ours, and for as long as the gauge may be as old.

use std::collections::VecDeque;

use super::{STALE_INTERVALS, is_fresh};

/// Scrapes whose least residue counts.
const SCRAPES: usize = 3;
/// Reports that are remembered of an Envoy, per endpoint: more than fit around the oldest scrape that counts.
const REPORTS: usize = 12;

/// What one Envoy has reported of one endpoint, newest last.
#[derive(Debug, Clone, Default)]
pub struct Counts(VecDeque<(u64, u32)>);

impl Counts {
    /// A new count.
    pub fn push(&mut self, now_ms: u64, in_flight: u32) {
        if self.0.len() >= REPORTS {
            self.0.pop_front();
        }
        self.0.push_back((now_ms, in_flight));
    }

    /// The newest.
    #[must_use]
    pub fn last(&self) -> u32 {
        self.0.back().map_or(0, |(_, count)| *count)
    }

    /// The most that was reported around a time.
    pub(super) fn most(&self, at_ms: u64, reach_ms: u64) -> u32 {
        let near = self.0.iter().filter(|(told_ms, _)| is_fresh(*told_ms, at_ms, reach_ms));
        let last_before = self.0.iter().rfind(|(told_ms, _)| *told_ms <= at_ms);
        near.chain(last_before).map(|(_, count)| *count).max().unwrap_or(0)
    }
}

/// What an engine has told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Requests that it runs and queues.
    pub requests: u64,
    /// They may be as old as the reading before.
    pub repeats: bool,
}

/// One count of an engine.
#[derive(Debug, Clone, Copy)]
struct Scrape {
    at_ms: u64,
    reading: Reading,
    /// The sum over Envoys of the most they reported around it.
    ours: u64,
}

/// The last counts of one engine.
#[derive(Debug, Clone)]
pub struct Scrapes {
    last: VecDeque<Scrape>,
    /// What was known of the scrape before the first of `last`.
    known_before: u64,
    /// The most requests that a probe had at once, until the first scrape after it.
    probe: Option<u64>,
    interval_ms: u64,
}

impl Scrapes {
    /// None yet.
    #[must_use]
    pub fn new(interval_ms: u64) -> Self {
        Scrapes { last: VecDeque::new(), known_before: 0, probe: None, interval_ms }
    }

    /// A new reading; `envoys` are all that have reported of the engine.
    pub fn push<'a>(&mut self, now_ms: u64, mut reading: Reading, envoys: impl Iterator<Item = &'a Counts>) {
        if self.last.len() >= SCRAPES {
            let known = self.known().next().map_or(0, |(_, known)| known);
            self.known_before = known;
            self.last.pop_front();
        }
        let ours = envoys.map(|counts| u64::from(counts.most(now_ms, self.reach_ms()))).sum();
        if let Some(probe) = self.probe.take() {
            self.known_before = probe + ours;
            reading.repeats = true;
        }
        self.last.push_back(Scrape { at_ms: now_ms, reading, ours });
    }

    /// A probe runs here, or has just ended, and has had so many requests at once.
    pub fn probed(&mut self, requests: u64) {
        self.last.clear();
        self.probe = Some(requests);
    }

    /// Each scrape, with what was known of its requests.
    fn known(&self) -> impl Iterator<Item = (&Scrape, u64)> {
        self.last.iter().scan(self.known_before, |known, scrape| {
            *known = if scrape.reading.repeats { scrape.ours.max(*known) } else { scrape.ours };
            Some((scrape, *known))
        })
    }

    /// An Envoy's counts are as they are now.
    pub fn with(&mut self, counts: &Counts) {
        let reach_ms = self.reach_ms();
        for scrape in &mut self.last {
            scrape.ours += u64::from(counts.most(scrape.at_ms, reach_ms));
        }
    }

    /// An Envoy's counts are about to change, or it is gone.
    pub fn without(&mut self, counts: &Counts) {
        let reach_ms = self.reach_ms();
        for scrape in &mut self.last {
            scrape.ours = scrape.ours.saturating_sub(counts.most(scrape.at_ms, reach_ms).into());
        }
    }

    /// The formula above.
    #[must_use]
    pub fn outside(&self, now_ms: u64) -> u32 {
        let stale_after_ms = self.interval_ms.saturating_mul(STALE_INTERVALS.into());
        let newest = self.last.back().map(|scrape| scrape.at_ms);
        if self.last.len() < SCRAPES || newest.is_none_or(|at_ms| !is_fresh(at_ms, now_ms, stale_after_ms)) {
            return 0;
        }
        let residues = self.known().map(|(scrape, known)| scrape.reading.requests.saturating_sub(known));
        residues.min().map_or(0, |residue| u32::try_from(residue).unwrap_or(u32::MAX))
    }

    fn reach_ms(&self) -> u64 {
        self.interval_ms.saturating_mul(3) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: u64 = 250;

    fn says(requests: u64) -> Reading {
        Reading { requests, repeats: false }
    }

    fn says_again(requests: u64) -> Reading {
        Reading { requests, repeats: true }
    }

    fn scrapes(of: &[(u64, u64)], envoys: &[&Counts]) -> Scrapes {
        let mut scrapes = Scrapes::new(INTERVAL);
        of.iter().for_each(|(at, requests)| scrapes.push(*at, says(*requests), envoys.iter().copied()));
        scrapes
    }

    fn counts(of: &[(u64, u32)]) -> Counts {
        let mut counts = Counts::default();
        of.iter().for_each(|(at, in_flight)| counts.push(*at, *in_flight));
        counts
    }

    #[test]
    fn steady_traffic_of_others_is_counted() {
        let told = [(1_000, 9), (1_250, 10), (1_500, 11)];
        let (one, two) = (counts(&[(900, 4), (1_150, 4), (1_400, 4)]), counts(&[(1_010, 2), (1_260, 2), (1_510, 2)]));
        let mut engine = scrapes(&told, &[&one, &two]);
        assert_eq!(engine.outside(1_600), 3);
        assert_eq!(scrapes(&told, &[]).outside(1_600), 9);
        engine.without(&one);
        assert_eq!(engine.outside(1_600), 7);
    }

    #[test]
    fn a_burst_of_our_own_is_never_taken_for_somebody_elses() {
        // Sixteen requests begin at 1,450: in the scrape of 1,500, but in no report before 1,650.
        let mut ours = counts(&[(900, 0), (1_150, 0), (1_400, 0)]);
        let mut engine = scrapes(&[(1_000, 0), (1_250, 0), (1_500, 16)], &[&ours]);
        let report = |engine: &mut Scrapes, ours: &mut Counts, at: u64, in_flight: u32| {
            engine.without(ours);
            ours.push(at, in_flight);
            engine.with(ours);
        };
        assert_eq!(engine.outside(1_500), 0);
        report(&mut engine, &mut ours, 1_650, 16);
        assert_eq!(engine.outside(1_650), 0);
        for at in [1_750, 2_000, 2_250] {
            engine.push(at, says(16), [&ours].into_iter());
            assert_eq!(engine.outside(at), 0, "{at}");
            report(&mut engine, &mut ours, at + 150, 16);
        }
        // They end at 2,300: gone from the engine at once, from the report at 2,400.
        engine.push(2_500, says(0), [&ours].into_iter());
        report(&mut engine, &mut ours, 2_650, 0);
        assert_eq!(engine.outside(2_650), 0);
    }

    #[test]
    fn a_late_report_leaves_the_one_before_in_force() {
        let told = [(1_000, 6), (1_250, 6), (1_500, 6)];
        assert_eq!(scrapes(&told, &[&counts(&[(500, 6)])]).outside(1_600), 0);
        assert_eq!(scrapes(&told, &[&counts(&[(500, 4)])]).outside(1_600), 2);
    }

    #[test]
    fn a_gauge_that_stands_still_counts_against_the_most_that_was_ours_since() {
        let mut ours = counts(&[(1_000, 12)]);
        let mut engine = Scrapes::new(INTERVAL);
        engine.push(1_250, says(14), [&ours].into_iter());
        // All of ours end, and nothing comes after them: it says the same for half a minute.
        for at in (1_500..31_000).step_by(250) {
            ours.push(at - 10, 0);
            engine.push(at, says_again(14), [&ours].into_iter());
            let others = if at < 1_750 { 0 } else { 2 };
            assert_eq!(engine.outside(at), others, "{at}");
        }
        // It says the same number, and not the same: these are there now.
        [31_000, 31_250, 31_500].iter().for_each(|at| engine.push(*at, says(14), [&ours].into_iter()));
        assert_eq!(engine.outside(31_500), 14);
    }

    #[test]
    fn a_probes_requests_are_known_for_as_long_as_the_gauge_stands_still() {
        let ours = counts(&[(50, 3)]);
        let mut engine = Scrapes::new(INTERVAL);
        let push = |engine: &mut Scrapes, at: u64, reading: Reading| {
            engine.push(at, reading, [&ours].into_iter());
            engine.outside(at)
        };
        assert_eq!([100, 200, 300].map(|at| push(&mut engine, at, says(9))), [0, 0, 6]);
        engine.probed(16);
        assert_eq!(engine.outside(1_100), 0);
        // The first is known whatever it says, and others beyond the probe's are seen.
        assert_eq!([1_250, 1_500, 1_750].map(|at| push(&mut engine, at, says_again(20))), [0, 0, 1]);
        engine.probed(16);
        // An exact gauge: others that came at once are seen with the second.
        assert_eq!([2_000, 2_250, 2_500, 2_750].map(|at| push(&mut engine, at, says(8))), [0, 0, 0, 5]);
    }

    #[test]
    fn one_scrape_says_nothing_and_an_old_one_neither() {
        assert_eq!(scrapes(&[(1_000, 9)], &[]).outside(1_000), 0);
        let engine = scrapes(&[(500, 9), (750, 9), (1_000, 9)], &[]);
        assert_eq!(engine.outside(1_750), 9);
        assert_eq!(engine.outside(1_751), 0);
    }
}
