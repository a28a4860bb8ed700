//! Traffic from outside: what an engine runs and queues beyond the requests that Envoys have sent.
//!
//! ```text
//! residue(scrape) = max(0, running + waiting - sum over Envoys of the most they reported within REACH of the scrape - echo)
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
//! **Echo.** A probe's requests are nobody else's. While it runs no scrape counts; after it, a gauge that trails may go on showing
//! them, so as many as the probe had at once are left out. That ends with the first scrape of no more than the Envoys have, since then the
//! gauge has seen the end, and at the latest after [`GAUGES_TRAIL`], since no gauge stands still for longer: until then, so many
//! requests of others cannot be told from the probe's, and what is beyond them counts at once. An engine whose gauge does not trail
//! ends it with the first scrape.

use std::collections::VecDeque;

use super::{STALE_INTERVALS, is_fresh};
use crate::engine::GAUGES_TRAIL;

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

/// One count of an engine.
#[derive(Debug, Clone, Copy)]
struct Scrape {
    at_ms: u64,
    requests: u64,
    /// The sum over Envoys of the most they reported around it.
    ours: u64,
    /// What of it may be the requests of a probe that has ended.
    echo: u64,
}

/// A probe that has been here.
#[derive(Debug, Clone, Copy)]
struct Probed {
    /// When it was last seen to run.
    at_ms: u64,
    /// The most requests that it had at once.
    requests: u64,
}

/// The last counts of one engine.
#[derive(Debug, Clone)]
pub struct Scrapes {
    last: VecDeque<Scrape>,
    /// Until its end is in the gauge.
    probed: Option<Probed>,
    interval_ms: u64,
}

impl Scrapes {
    /// None yet.
    #[must_use]
    pub fn new(interval_ms: u64) -> Self {
        Scrapes { last: VecDeque::new(), probed: None, interval_ms }
    }

    /// A new count of what it runs and queues; `envoys` are all that have reported of it.
    pub fn push<'a>(&mut self, now_ms: u64, requests: u64, envoys: impl Iterator<Item = &'a Counts>) {
        if self.last.len() >= SCRAPES {
            self.last.pop_front();
        }
        let ours = envoys.map(|counts| u64::from(counts.most(now_ms, self.reach_ms()))).sum();
        let trails =
            |probed: &Probed| requests > ours && is_fresh(probed.at_ms, now_ms, GAUGES_TRAIL.as_millis() as u64);
        self.probed = self.probed.filter(trails);
        let echo = self.probed.map_or(0, |probed| probed.requests);
        self.last.push_back(Scrape { at_ms: now_ms, requests, ours, echo });
    }

    /// A probe runs here, or has just ended, and has had so many requests at once.
    pub fn probed(&mut self, now_ms: u64, requests: u64) {
        self.last.clear();
        let before = self.probed.map_or(0, |probed| probed.requests);
        self.probed = Some(Probed { at_ms: now_ms, requests: requests.max(before) });
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
        let residues =
            self.last.iter().map(|scrape| scrape.requests.saturating_sub(scrape.ours.saturating_add(scrape.echo)));
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

    fn scrapes(of: &[(u64, u64)], envoys: &[&Counts]) -> Scrapes {
        let mut scrapes = Scrapes::new(INTERVAL);
        of.iter().for_each(|(at, requests)| scrapes.push(*at, *requests, envoys.iter().copied()));
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
            engine.push(at, 16, [&ours].into_iter());
            assert_eq!(engine.outside(at), 0, "{at}");
            report(&mut engine, &mut ours, at + 150, 16);
        }
        // They end at 2,300: gone from the engine at once, from the report at 2,400.
        engine.push(2_500, 0, [&ours].into_iter());
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
    fn the_echo_of_a_probe_ends_where_the_gauge_shows_no_more_than_the_envoys() {
        let ours = counts(&[(50, 3)]);
        let mut engine = Scrapes::new(INTERVAL);
        let scrape = |engine: &mut Scrapes, at: &[u64], requests: u64| {
            at.iter().for_each(|at| engine.push(*at, requests, [&ours].into_iter()));
            engine.outside(at[at.len() - 1])
        };
        assert_eq!(scrape(&mut engine, &[100, 200, 300], 9), 6);
        engine.probed(1_000, 16);
        // A step of the same probe with fewer.
        engine.probed(1_100, 1);
        assert_eq!(engine.outside(1_100), 0);
        assert_eq!(scrape(&mut engine, &[1_250, 1_500, 1_750], 18), 0);
        assert_eq!(scrape(&mut engine, &[2_000, 2_250, 2_500], 20), 1);
        assert_eq!(scrape(&mut engine, &[2_750], 3), 0);
        assert_eq!(scrape(&mut engine, &[3_000, 3_250, 3_500], 18), 15);
    }

    #[test]
    fn one_scrape_says_nothing_and_an_old_one_neither() {
        assert_eq!(scrapes(&[(1_000, 9)], &[]).outside(1_000), 0);
        let engine = scrapes(&[(500, 9), (750, 9), (1_000, 9)], &[]);
        assert_eq!(engine.outside(1_750), 9);
        assert_eq!(engine.outside(1_751), 0);
    }
}
