//! Traffic from outside: what an engine runs and queues beyond the requests that Envoys have sent.
//!
//! ```text
//! residue(scrape) = max(0, running + waiting - sum over Envoys of the most they reported within REACH of the scrape)
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
    fn most(&self, at_ms: u64, reach_ms: u64) -> u32 {
        let near = self.0.iter().filter(|(told_ms, _)| is_fresh(*told_ms, at_ms, reach_ms));
        let last_before = self.0.iter().rfind(|(told_ms, _)| *told_ms <= at_ms);
        near.chain(last_before).map(|(_, count)| *count).max().unwrap_or(0)
    }
}

/// The last counts of one engine.
#[derive(Debug, Clone, Default)]
pub struct Scrapes(VecDeque<(u64, u64)>);

impl Scrapes {
    /// A new count of what it runs and queues.
    pub fn push(&mut self, now_ms: u64, requests: u64) {
        if self.0.len() >= SCRAPES {
            self.0.pop_front();
        }
        self.0.push_back((now_ms, requests));
    }

    /// The formula above.
    #[must_use]
    pub fn outside(&self, envoys: &[&Counts], now_ms: u64, interval_ms: u64) -> u32 {
        let stale_after_ms = interval_ms.saturating_mul(STALE_INTERVALS.into());
        let newest = self.0.back().map(|(at_ms, _)| *at_ms);
        if self.0.len() < SCRAPES || newest.is_none_or(|at_ms| !is_fresh(at_ms, now_ms, stale_after_ms)) {
            return 0;
        }
        let reach_ms = interval_ms.saturating_mul(3) / 2;
        let residues = self.0.iter().map(|(at_ms, requests)| {
            let ours: u64 = envoys.iter().map(|counts| u64::from(counts.most(*at_ms, reach_ms))).sum();
            requests.saturating_sub(ours)
        });
        residues.min().map_or(0, |residue| u32::try_from(residue).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: u64 = 250;

    fn scrapes(of: &[(u64, u64)]) -> Scrapes {
        let mut scrapes = Scrapes::default();
        of.iter().for_each(|(at, requests)| scrapes.push(*at, *requests));
        scrapes
    }

    fn counts(of: &[(u64, u32)]) -> Counts {
        let mut counts = Counts::default();
        of.iter().for_each(|(at, in_flight)| counts.push(*at, *in_flight));
        counts
    }

    #[test]
    fn steady_traffic_of_others_is_counted() {
        let engine = scrapes(&[(1_000, 9), (1_250, 10), (1_500, 11)]);
        let (one, two) = (counts(&[(900, 4), (1_150, 4), (1_400, 4)]), counts(&[(1_010, 2), (1_260, 2), (1_510, 2)]));
        assert_eq!(engine.outside(&[&one, &two], 1_600, INTERVAL), 3);
        assert_eq!(engine.outside(&[], 1_600, INTERVAL), 9);
    }

    #[test]
    fn a_burst_of_our_own_is_never_taken_for_somebody_elses() {
        // Sixteen requests begin at 1,450: in the scrape of 1,500, but in no report before 1,650.
        let mut engine = scrapes(&[(1_000, 0), (1_250, 0), (1_500, 16)]);
        let mut ours = counts(&[(900, 0), (1_150, 0), (1_400, 0)]);
        assert_eq!(engine.outside(&[&ours], 1_500, INTERVAL), 0);
        ours.push(1_650, 16);
        assert_eq!(engine.outside(&[&ours], 1_650, INTERVAL), 0);
        for at in [1_750, 2_000, 2_250] {
            engine.push(at, 16);
            assert_eq!(engine.outside(&[&ours], at, INTERVAL), 0, "{at}");
            ours.push(at + 150, 16);
        }
        // They end at 2,300: gone from the engine at once, from the report at 2,400.
        engine.push(2_500, 0);
        ours.push(2_650, 0);
        assert_eq!(engine.outside(&[&ours], 2_650, INTERVAL), 0);
    }

    #[test]
    fn a_late_report_leaves_the_one_before_in_force() {
        let engine = scrapes(&[(1_000, 6), (1_250, 6), (1_500, 6)]);
        assert_eq!(engine.outside(&[&counts(&[(500, 6)])], 1_600, INTERVAL), 0);
        assert_eq!(engine.outside(&[&counts(&[(500, 4)])], 1_600, INTERVAL), 2);
    }

    #[test]
    fn one_scrape_says_nothing_and_an_old_one_neither() {
        assert_eq!(scrapes(&[(1_000, 9)]).outside(&[], 1_000, INTERVAL), 0);
        let engine = scrapes(&[(500, 9), (750, 9), (1_000, 9)]);
        assert_eq!(engine.outside(&[], 1_750, INTERVAL), 9);
        assert_eq!(engine.outside(&[], 1_751, INTERVAL), 0);
    }
}
