//! Moving averages of what an endpoint's requests are like.
//!
//! ```text
//! alpha   = 1 - exp(-dt / tau)
//! average = average + alpha * (mean of the new samples - average)
//! ```
//!
//! with `dt` the time since the samples of this figure before, and `tau` the configured `signals.average_over`: a change shows to 63 % after
//! tau and to 95 % after three times that, however many requests there were. The first samples are the average. Time in
//! which nothing is served changes nothing: an endpoint that was slow before the night is slow in the morning, and its first
//! samples after that count nearly alone.
//!
//! Samples of all Envoys within [`FOLD_MS`] are pooled and folded in together. Folded one report after the other, the second
//! of two Envoys would find `dt` close to 0 and count for nothing.
//!
//! What cannot be is no sample: negative, infinite, not a number, and beyond what any engine does in any report
//! ([`LONGEST_MS`], [`MOST_TPS`], [`MOST_REQUESTS`]). A filter that is broken, or somebody who has its token, would else decide
//! for minutes what an endpoint is taken for.

use serde::{Deserialize, Serialize};
use weighbridge_routing::exchange::served::Sum;
use weighbridge_routing::exchange::{Averages, Served};

/// How long samples are pooled.
pub const FOLD_MS: u64 = 1_000;
/// The longest mean time of requests in a report, in ms: a day.
pub const LONGEST_MS: f64 = 86_400_000.0;
/// The highest mean speed of requests in a report, in tokens per second.
pub const MOST_TPS: f64 = 1_000_000.0;
/// The most requests in a report.
pub const MOST_REQUESTS: u32 = 1_000_000;
/// How far back samples at the start count: less than a fold has no `dt`.
const LEAST_DT_MS: f64 = 1.0;

/// As it is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The averages.
    #[serde(flatten)]
    pub averages: Averages,
    /// When samples were last folded in, Unix ms.
    pub at_ms: u64,
    /// The same for each figure. Not every request has every figure: one that streams is rare where most do not.
    #[serde(default)]
    pub folded_ms: FoldedMs,
}

/// When samples of each figure were last folded in, Unix ms; 0 in what was stored before it was kept: as all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FoldedMs {
    ttft: u64,
    e2e: u64,
    tps: u64,
    error_rate: u64,
}

impl Kept {
    /// Each figure with its time; 0 for one that has never had a sample.
    fn figures(&mut self) -> [(&mut Option<f64>, &mut u64); 4] {
        let Kept { averages: Averages { ttft_ms, e2e_ms, tps, error_rate }, at_ms, folded_ms: at } = self;
        let all =
            [(ttft_ms, &mut at.ttft), (e2e_ms, &mut at.e2e), (tps, &mut at.tps), (error_rate, &mut at.error_rate)];
        all.map(|(average, at)| {
            if *at == 0 && average.is_some() {
                *at = *at_ms;
            }
            (average, at)
        })
    }
}

/// The averages of one endpoint.
#[derive(Debug, Clone, Default)]
pub struct Moving {
    kept: Kept,
    pooled: Served,
    pooled_since_ms: u64,
    changed: bool,
}

impl From<Kept> for Moving {
    fn from(kept: Kept) -> Self {
        Moving { kept, ..Moving::default() }
    }
}

impl Moving {
    /// Takes in samples.
    pub fn add(&mut self, served: &Served, now_ms: u64, tau_ms: f64) {
        self.fold_when_due(now_ms, tau_ms);
        if self.pooled == Served::default() {
            self.pooled_since_ms = now_ms;
        }
        self.pooled.merge(&sane(served));
    }

    /// Takes over the figures that somebody else has averaged later: both have averaged samples of the same endpoint, and
    /// the next ones are folded into the newest.
    pub fn hear(&mut self, mut kept: Kept) {
        for ((ours, our_ms), (theirs, their_ms)) in self.kept.figures().into_iter().zip(kept.figures()) {
            if *their_ms > *our_ms {
                (*ours, *our_ms) = (*theirs, *their_ms);
            }
        }
        self.kept.at_ms = self.kept.at_ms.max(kept.at_ms);
    }

    /// The averages now.
    #[must_use]
    pub fn value(&self, now_ms: u64, tau_ms: f64) -> Averages {
        let mut now = self.clone();
        now.fold_when_due(now_ms, tau_ms);
        now.kept.averages
    }

    /// What is to be stored, if it has changed since.
    pub fn take(&mut self, now_ms: u64, tau_ms: f64) -> Option<Kept> {
        self.fold_when_due(now_ms, tau_ms);
        std::mem::take(&mut self.changed).then_some(self.kept)
    }

    fn fold_when_due(&mut self, now_ms: u64, tau_ms: f64) {
        if self.pooled == Served::default() || now_ms.abs_diff(self.pooled_since_ms) < FOLD_MS {
            return;
        }
        let served = std::mem::take(&mut self.pooled);
        let samples = [served.ttft_ms.mean(), served.e2e_ms.mean(), served.tps.mean(), served.error_rate()];
        for ((average, at_ms), sample) in self.kept.figures().into_iter().zip(samples) {
            if move_to(average, sample, alpha(now_ms.saturating_sub(*at_ms) as f64, tau_ms)) {
                *at_ms = now_ms;
            }
        }
        self.kept.at_ms = now_ms;
        self.changed = true;
    }
}

/// What can be of a report.
fn sane(served: &Served) -> Served {
    if served.requests > MOST_REQUESTS || served.errors > served.requests {
        return Served::default();
    }
    let within = |sum: Sum, most: f64| {
        let good = sum.n <= served.requests && sum.mean().is_some_and(|mean| mean <= most);
        if good { sum } else { Sum::default() }
    };
    Served {
        ttft_ms: within(served.ttft_ms, LONGEST_MS),
        e2e_ms: within(served.e2e_ms, LONGEST_MS),
        tps: within(served.tps, MOST_TPS),
        ..*served
    }
}

/// How much of the way to new samples an average goes.
#[must_use]
pub fn alpha(dt_ms: f64, tau_ms: f64) -> f64 {
    1.0 - (-dt_ms.max(LEAST_DT_MS) / tau_ms).exp()
}

/// Whether there was a sample.
fn move_to(average: &mut Option<f64>, sample: Option<f64>, alpha: f64) -> bool {
    let Some(sample) = sample.filter(|sample| sample.is_finite() && *sample >= 0.0) else { return false };
    *average = Some(match average.filter(|average| average.is_finite()) {
        Some(average) => average + alpha * (sample - average),
        None => sample,
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use weighbridge_routing::exchange::served::Sample;

    const TAU: f64 = 60_000.0;

    fn served(e2e_ms: u64, n: usize) -> Served {
        let mut served = Served::default();
        for _ in 0..n {
            served.add(&Sample { e2e_ms: Some(e2e_ms), ..Sample::default() });
        }
        served
    }

    fn run(moving: &mut Moving, from_s: u64, to_s: u64, e2e_ms: u64, per_second: usize) -> f64 {
        for second in from_s..to_s {
            moving.add(&served(e2e_ms, per_second), second * 1_000, TAU);
        }
        moving.value(to_s * 1_000, TAU).e2e_ms.unwrap()
    }

    #[test]
    fn a_change_shows_by_time_and_not_by_the_number_of_requests() {
        for per_second in [1, 100] {
            let mut moving = Moving::default();
            assert_eq!(run(&mut moving, 1, 100, 100, per_second), 100.0);
            let after_tau = run(&mut moving, 100, 160, 200, per_second);
            assert!((162.0..165.0).contains(&after_tau), "{after_tau}"); // 100 + 63.2
            let after_three = run(&mut moving, 160, 280, 200, per_second);
            assert!((194.0..196.0).contains(&after_three), "{after_three}"); // 95.0 %
        }
    }

    #[test]
    fn what_cannot_be_is_no_sample() {
        let sum = |n, sum| Sum { n, sum };
        let good = Served { requests: 4, errors: 1, ttft_ms: sum(2, 200.0), e2e_ms: sum(4, 800.0), tps: sum(4, 160.0) };
        let of = |served: Served| {
            let mut moving = Moving::default();
            moving.add(&served, 1_000, TAU);
            moving.value(5_000, TAU)
        };
        let expected = Averages { ttft_ms: Some(100.0), e2e_ms: Some(200.0), tps: Some(40.0), error_rate: Some(0.25) };
        assert_eq!(of(good), expected);
        for wrong in
            [sum(2, f64::INFINITY), sum(2, f64::NAN), sum(2, -1.0), sum(2, 2.0 * LONGEST_MS + 1.0), sum(5, 5.0)]
        {
            assert_eq!(of(Served { ttft_ms: wrong, ..good }), Averages { ttft_ms: None, ..expected }, "{wrong:?}");
        }
        assert_eq!(of(Served { tps: sum(1, MOST_TPS * 1.1), ..good }).tps, None);
        for wrong in [Served { requests: MOST_REQUESTS + 1, ..good }, Served { errors: 5, ..good }] {
            assert_eq!(of(wrong), Averages::default(), "{wrong:?}");
        }
    }

    #[test]
    fn two_envoys_count_by_their_requests() {
        let mut moving = Moving::default();
        for second in 1..400 {
            moving.add(&served(100, 1), second * 1_000, TAU);
            moving.add(&served(400, 2), second * 1_000 + 5, TAU);
        }
        let average = moving.value(400_000, TAU).e2e_ms.unwrap();
        assert!((average - 300.0).abs() < 0.5, "{average}");
    }

    #[test]
    fn silence_forgets_nothing_and_a_restart_neither() {
        let mut moving = Moving::default();
        run(&mut moving, 1, 10, 250, 1);
        let kept = moving.take(20_000, TAU).unwrap();
        assert_eq!(moving.take(30_000, TAU), None);
        let json = serde_json::to_string(&kept).unwrap();
        let again = Moving::from(serde_json::from_str::<Kept>(&json).unwrap());
        assert_eq!(again.value(9_000_000, TAU).e2e_ms, Some(250.0));
        assert_eq!(again.value(9_000_000, TAU).ttft_ms, None);
    }

    #[test]
    fn a_figure_that_few_requests_have_moves_by_its_own_clock() {
        let mut moving = Moving::default();
        let streamed = |ttft_ms: u64| {
            let mut served = Served::default();
            served.add(&Sample { ttft_ms: Some(ttft_ms), ..Sample::default() });
            served
        };
        moving.add(&streamed(100), 1_000, TAU);
        // Every second something without a stream; after three times tau one with.
        run(&mut moving, 2, 182, 50, 1);
        moving.add(&streamed(1_000), 182_000, TAU);
        let ttft_ms = moving.value(183_000, TAU).ttft_ms.unwrap();
        assert!((945.0..965.0).contains(&ttft_ms), "{ttft_ms}"); // 95 % of the way from 100
    }

    #[test]
    fn what_was_stored_with_one_time_counts_with_that_and_each_figure_is_heard_for_itself() {
        let old: Kept = serde_json::from_str(r#"{"ttft_ms": 100.0, "e2e_ms": 50.0, "at_ms": 1000}"#).unwrap();
        let mut moving = Moving::from(old);
        moving.add(&served(100, 1), 60_000, TAU);
        let after_tau = moving.value(61_000, TAU).e2e_ms.unwrap();
        assert!((81.0..82.0).contains(&after_tau), "{after_tau}"); // 50 + 63.2 % of 50
        let ours = moving.take(61_000, TAU).unwrap();
        let mut theirs = Moving::from(old);
        let mut streamed = Served::default();
        streamed.add(&Sample { ttft_ms: Some(900), ..Sample::default() });
        theirs.add(&streamed, 30_000, TAU);
        let theirs = theirs.take(31_000, TAU).unwrap();
        moving.hear(theirs);
        let value = moving.value(61_000, TAU);
        assert_eq!((value.ttft_ms, value.e2e_ms), (theirs.averages.ttft_ms, ours.averages.e2e_ms));
        assert!(value.ttft_ms.is_some_and(|ttft_ms| ttft_ms > 400.0), "{value:?}");
        // Where no request streams nothing is known of that, however new the rest is.
        let mut elsewhere = Moving::default();
        elsewhere.add(&served(70, 1), 90_000, TAU);
        moving.hear(elsewhere.take(91_000, TAU).unwrap());
        let heard = moving.value(91_000, TAU);
        assert_eq!((heard.ttft_ms, heard.e2e_ms), (value.ttft_ms, Some(70.0)));
    }

    #[test]
    fn errors_are_a_share_and_nonsense_is_no_sample() {
        let mut moving = Moving::default();
        let mut mixed = served(1, 3);
        mixed.add(&Sample { error: true, ..Sample::default() });
        mixed.ttft_ms = weighbridge_routing::exchange::served::Sum { n: 1, sum: f64::NAN };
        moving.add(&mixed, 1_000, TAU);
        let value = moving.value(2_000, TAU);
        assert_eq!((value.error_rate, value.ttft_ms, value.tps), (Some(0.25), None, None));
    }
}
