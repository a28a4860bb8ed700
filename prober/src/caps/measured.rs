//! A measured cap, and how it moves while the endpoint serves.
//!
//! It begins at the [`Knee`] of the sweep, `K`. What serving says ([`Observed`]) scales the curve; the knee of the scaled
//! curve, held within `K` +- [`REACH`] (25 %, rounded inwards), is the target. Once a minute ([`PAUSE_MS`]) the cap moves
//! towards it by one `STRIDE` (5 % of `K`, at least 1), but only when the target before rounding is further away than
//! `BAND` (0.6 of a request, or 5 % of `K` when that is more).
//!
//! A move back, against the one before, takes half a stride more.
//!
//! **Why it cannot oscillate.** An average says what the engine does *at* a concurrency, against its curve *at that
//! concurrency*. The cap decides at which concurrency the engine runs, hence which averages get new points, but not what
//! they say; and an average that gets none keeps its value. So nothing that the cap does comes back with a sign, and for
//! an engine and a traffic that do not change the target tends to one value. But an average is over a range of concurrencies, and where in
//! it the cap is shows a little; that is what the dearer way back is for. What is left is noise: the averages have a gain of
//! 5 %, the target must leave the band to move anything, and then it moves one stride a minute. A new sweep begins anew.
//!
//! **Cost.** The target is worked out at most once a minute and endpoint.

use std::cmp::Ordering;

use super::{Bound, Curve, Knee, Observed, Reading};

/// How far from the knee serving may move a cap, as a share of the knee.
pub const REACH: f64 = 0.25;
/// The least time between two moves, in ms.
pub const PAUSE_MS: u64 = 60_000;
/// One move, as a share of the knee; at least one request.
const STRIDE: f64 = 0.05;
/// What a target may be off before anything moves, as a share of the knee.
const BAND: f64 = 0.05;
/// The same in requests, at least.
const BAND_LEAST: f64 = 0.6;

/// The measured cap of one endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    curve: Curve,
    min_tps: f64,
    knee: Knee,
    observed: Observed,
    cap: u32,
    /// Where it last moved: up or down. Even where it has not moved.
    last: Ordering,
    /// When the target is next looked at; `None` until something has been observed.
    next_ms: Option<u64>,
}

impl Measured {
    /// As a sweep has it.
    #[must_use]
    pub fn new(curve: Curve, min_tps: f64) -> Self {
        let knee = Knee::of(&curve, min_tps);
        Measured {
            min_tps,
            knee,
            observed: Observed::default(),
            cap: knee.concurrency,
            last: Ordering::Equal,
            next_ms: None,
            curve,
        }
    }

    /// The cap now.
    #[must_use]
    pub fn cap(&self) -> u32 {
        self.cap
    }

    /// The curve of the sweep.
    #[must_use]
    pub fn curve(&self) -> &Curve {
        &self.curve
    }

    /// The knee of the sweep.
    #[must_use]
    pub fn knee(&self) -> Knee {
        self.knee
    }

    /// The floor, in tokens per second.
    #[must_use]
    pub fn min_tps(&self) -> f64 {
        self.min_tps
    }

    /// What serving says.
    #[must_use]
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// What an operator should know.
    #[must_use]
    pub fn alarm(&self) -> Option<String> {
        let alone = self.curve.per_request_at(1.0);
        (self.knee.bound == Bound::BelowFloor).then(|| {
            let floor = self.min_tps;
            format!("one request alone gets {alone:.1} tokens/s, less than admission.min_tps ({floor}): its cap is 1")
        })
    }

    /// Takes a scrape; `true` when the cap has moved.
    pub fn take(&mut self, now: Reading) -> bool {
        if !self.observed.take(&self.curve, now) {
            return false;
        }
        let due = *self.next_ms.get_or_insert(now.at_ms.saturating_add(PAUSE_MS));
        if now.at_ms < due {
            return false;
        }
        self.next_ms = Some(now.at_ms.saturating_add(PAUSE_MS));
        let before = self.cap;
        self.cap = self.next();
        if self.cap != before {
            self.last = self.cap.cmp(&before);
        }
        self.cap != before
    }

    /// Leaves out what happens until the next reading.
    pub fn interrupt(&mut self) {
        self.observed.interrupt();
    }

    /// Where the next move leads.
    fn next(&self) -> u32 {
        let knee = f64::from(self.knee.concurrency);
        let target = Knee::of(&self.curve.scaled(|concurrency| self.observed.factor(concurrency)), self.min_tps);
        let (least, most) = (((1.0 - REACH) * knee).ceil(), ((1.0 + REACH) * knee).floor());
        let off = target.exact.clamp(least, most) - f64::from(self.cap);
        let stride = (STRIDE * knee).round().max(1.0);
        let back = matches!((self.last, off > 0.0), (Ordering::Less, true) | (Ordering::Greater, false));
        if off.abs() < BAND_LEAST.max(BAND * knee) + if back { stride / 2.0 } else { 0.0 } {
            return self.cap;
        }
        let stride = stride as u32;
        let target = f64::from(target.concurrency).clamp(least, most) as u32;
        target.clamp(self.cap.saturating_sub(stride), self.cap.saturating_add(stride)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::curve::tests::even;
    use super::*;
    use proptest::prelude::*;
    use weighbridge_routing::rng::SplitMix64;

    fn curve() -> Curve {
        even(&[(1, 94.0), (2, 138.0), (4, 225.0), (8, 400.0), (16, 479.0), (32, 465.0)])
    }

    /// Serves at its cap for so many minutes, an engine whose throughput at `n` is `tps(n)`; the caps it had.
    fn served(measured: &mut Measured, minutes: u64, from_ms: u64, mut tps: impl FnMut(f64) -> f64) -> Vec<u32> {
        let (mut tokens, mut caps) = (0.0, vec![measured.cap()]);
        for tick in 0..minutes * 240 {
            let running = measured.cap();
            tokens += tps(running.into()) / 4.0;
            let now = Reading { at_ms: from_ms + tick * 250, running: running.into(), tokens: tokens as u64 };
            if measured.take(now) {
                caps.push(measured.cap());
            }
        }
        caps
    }

    #[test]
    fn an_engine_that_serves_as_measured_keeps_its_cap() {
        let mut measured = Measured::new(curve(), 40.0);
        assert_eq!((measured.cap(), measured.knee().bound), (10, Bound::Floor));
        assert_eq!(served(&mut measured, 60, 0, |n| curve().throughput_at(n)), [10]);
    }

    #[test]
    fn an_engine_that_is_slower_than_measured_gets_less_but_never_below_three_quarters() {
        let mut measured = Measured::new(curve(), 40.0);
        // 0.9 x: 36 + ... = 40 c at c = 9.
        let caps = served(&mut measured, 30, 0, |n| 0.9 * curve().throughput_at(n));
        assert!(caps == [10, 9] || caps == [10, 9, 8], "{caps:?}");
        let each = 0.9 * curve().per_request_at(f64::from(measured.cap()));
        assert!(each >= 40.0, "{each}");
        let caps = served(&mut measured, 60, 10_000_000, |n| 0.3 * curve().throughput_at(n));
        assert_eq!(caps.last(), Some(&8), "{caps:?}");
        // And back.
        let caps = served(&mut measured, 120, 20_000_000, |n| curve().throughput_at(n));
        assert_eq!(caps.last(), Some(&10), "{caps:?}");
    }

    #[test]
    fn it_moves_once_a_minute_by_one_stride() {
        let flat = even(&[(1, 40.0), (64, 2_560.0)]);
        let mut measured = Measured::new(flat.clone(), 39.0);
        assert_eq!(measured.cap(), 58);
        let (mut tokens, mut moves) = (0.0, Vec::new());
        for tick in 0..240 * 12u64 {
            let running = measured.cap();
            tokens += 0.9 * flat.throughput_at(running.into()) / 4.0;
            let before = measured.cap();
            if measured.take(Reading { at_ms: tick * 250, running: running.into(), tokens: tokens as u64 }) {
                moves.push((tick * 250, before - measured.cap()));
            }
        }
        assert!(moves.iter().all(|(_, stride)| *stride <= 3), "{moves:?}");
        assert!(moves.windows(2).all(|pair| pair[1].0 - pair[0].0 >= PAUSE_MS) && moves[0].0 >= PAUSE_MS, "{moves:?}");
        // A quarter less is 44; 46 is within the band of that.
        assert_eq!(measured.cap(), 46, "{moves:?}");
    }

    #[test]
    fn one_request_stays_one() {
        let mut measured = Measured::new(curve(), 200.0);
        assert!(measured.alarm().unwrap().contains("94.0 tokens/s"));
        assert_eq!(served(&mut measured, 30, 0, |n| 2.0 * curve().throughput_at(n)), [1]);
    }

    /// An average is over a range of concurrencies, so what it says does depend a little on where in it the cap is: at 7 the target is
    /// 6.4, at 6 it is 6.6, and with the band alone the cap went to and fro.
    #[test]
    fn a_target_between_two_caps_is_no_reason_to_go_to_and_fro() {
        let mut measured = Measured::new(curve(), 50.841_858_262_579_855);
        let tps =
            |n: f64| curve().throughput_at(n) * 1.304_793_448_288_570_1 * (1.0 - 0.088_420_296_344_946_55 * n.log2());
        served(&mut measured, 60, 0, tps);
        let later = served(&mut measured, 60, 10_000_000, tps);
        assert!(later.len() <= 2, "{later:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        // Whatever an engine does beside its curve, and however noisy: within reach, and after it has arrived no to and fro.
        #[test]
        fn it_settles(factor in 0.4..1.6f64, tilt in -0.1..0.1f64, noise in 0.0..0.1f64, floor in 0.0..60.0f64, seed: u64) {
            let mut measured = Measured::new(curve(), floor);
            let mut random = SplitMix64::seeded(seed);
            let mut tps = |n: f64| {
                let noise = 1.0 + noise * (2.0 * (random.below(1_000) as f64 / 1_000.0) - 1.0);
                curve().throughput_at(n) * factor * (1.0 + tilt * n.log2()).max(0.1) * noise
            };
            let knee = f64::from(measured.knee().concurrency);
            let arrived = served(&mut measured, 60, 0, &mut tps);
            let later = served(&mut measured, 240, 10_000_000, &mut tps);
            for cap in arrived.iter().chain(&later) {
                prop_assert!((f64::from(*cap) - knee).abs() <= REACH * knee, "{arrived:?} {later:?}");
            }
            let turns = later.windows(3).filter(|caps| caps[0] == caps[2]).count();
            // Noise may carry the target over the edge of the band and back, once in a long while.
            prop_assert!(turns <= 1, "{arrived:?} {later:?}");
        }
    }
}
