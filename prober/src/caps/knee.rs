//! The knee: how many requests at once are enough.
//!
//! With `T(c)` the throughput and `p(c)` the speed of one request at concurrency `c` (both tokens/s, interpolated between
//! the steps of the sweep as [`Curve`] says), and `B` the best throughput of any step:
//!
//! ```text
//! full  = the smallest c with T(c) >= 0.9 B
//! floor = the largest c such that p stays >= min_tps from 1 to c
//! knee  = max(1, min(ceil(full), floor(floor)))
//! ```
//!
//! Beyond `full`, another request adds little throughput and takes from everybody's speed; beyond `floor`, it takes so
//! much that somebody waits for words. Where both cannot be had, the floor decides: predictability is the product. Where
//! even one request alone is below the floor, the knee is 1, and the caller raises an alarm. 90 % and the floor are the
//! rule of this project's issue on admission; the idea, to run a server where its throughput curve bends and queue in
//! front of it, is the knee of Kleinrock's power (throughput / delay), bent towards a promise about delay.
//!
//! **Cost.** Linear in the steps (about ten), plus a binary search within one of them. Runs when a curve or what refines
//! it changes, never per request. **Missing:** without a curve there is no knee; the cap follows the weight.
//!
//! **Noise.** `full` moves as the throughput of the steps around it does, divided by the slope there: where the curve
//! bends as `c / (1 + c / h)` does, 5 % at any one step move it by less than a factor of 1.8. 5 % of speed at one step
//! move `floor` by no more than a floor that is 5 % higher or lower would. Both are tested.

use serde::Serialize;

use super::Curve;

/// The share of the best throughput that is enough.
pub const ENOUGH: f64 = 0.9;

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Throughput: more requests would add little.
    Throughput,
    /// The floor: more requests would be too slow, each.
    Floor,
    /// One request alone is below the floor already.
    BelowFloor,
}

/// Where an endpoint should stand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Knee {
    /// Requests at once, from 1 to the largest that was measured.
    pub concurrency: u32,
    /// The same before rounding, for hysteresis.
    pub exact: f64,
    /// What decided.
    pub bound: Bound,
}

impl Knee {
    /// The knee of a curve. A floor that is 0, or no number, is no floor.
    #[must_use]
    pub fn of(curve: &Curve, min_tps: f64) -> Self {
        let full = enough(curve);
        let min_tps = if min_tps.is_nan() { 0.0 } else { min_tps };
        let enough = (full - EPSILON).ceil().max(1.0);
        match held(curve, min_tps) {
            None => Knee { concurrency: 1, exact: 1.0, bound: Bound::BelowFloor },
            // Also where only the rounding would go past it.
            Some(floor) if floor + EPSILON < enough => Knee {
                concurrency: (floor + EPSILON).floor().max(1.0) as u32,
                exact: floor.min(full),
                bound: Bound::Floor,
            },
            Some(_) => Knee { concurrency: enough as u32, exact: full, bound: Bound::Throughput },
        }
    }
}

/// What is this near to a whole number is meant to be one.
const EPSILON: f64 = 1e-6;

/// The smallest concurrency with enough throughput.
fn enough(curve: &Curve) -> f64 {
    let enough = ENOUGH * curve.best_tps();
    let mut below: Option<(f64, f64)> = None;
    for step in curve.steps() {
        let here = (f64::from(step.concurrency), step.throughput_tps);
        if here.1 >= enough {
            let Some((from, tps)) = below else { return here.0 };
            return from + (here.0 - from) * (enough - tps) / (here.1 - tps);
        }
        below = Some(here);
    }
    // The best step has enough.
    curve.largest().into()
}

/// The largest concurrency up to which every request has its `min_tps`; `None` when not even one alone has it.
fn held(curve: &Curve, min_tps: f64) -> Option<f64> {
    let mut held: Option<f64> = None;
    for step in curve.steps() {
        let here = f64::from(step.concurrency);
        if step.per_request_tps >= min_tps {
            held = Some(here);
            continue;
        }
        // Between the two, the speed crosses the floor exactly once: it is `a / c + b + d c`, and above at one end only.
        let (mut above, mut below) = (held?, here);
        while below - above > EPSILON {
            let middle = f64::midpoint(above, below);
            if curve.per_request_at(middle) >= min_tps { above = middle } else { below = middle }
        }
        return Some(above);
    }
    held
}

#[cfg(test)]
mod tests {
    use super::super::Step;
    use super::super::curve::tests::even;
    use super::*;
    use engine_sim::model::{Model, Profile};
    use engine_sim::sweep::burst;
    use proptest::prelude::*;

    fn knee(curve: &Curve, min_tps: f64) -> (u32, Bound) {
        let knee = Knee::of(curve, min_tps);
        (knee.concurrency, knee.bound)
    }

    fn pair() -> Curve {
        even(&[(1, 94.0), (8, 400.0), (16, 479.0), (32, 465.0)])
    }

    #[test]
    fn nine_tenths_of_the_best_are_enough() {
        // 0.9 x 479 = 431.1, between 8 and 16: 8 + 8 x 31.1 / 79 = 11.15.
        assert_eq!(knee(&pair(), 30.0), (12, Bound::Throughput));
        // 0.9 x 1,440 = 1,296, between 16 and 32: 26.99.
        let fast = even(&[(1, 106.0), (8, 688.0), (16, 980.0), (32, 1440.0)]);
        assert_eq!(knee(&fast, 30.0), (27, Bound::Throughput));
    }

    #[test]
    fn where_the_floor_comes_first_it_decides() {
        // 400 + 79 (c - 8) / 8 = 40 c at c = 10.66.
        assert_eq!(knee(&pair(), 40.0), (10, Bound::Floor));
        // 60 + 20 (c - 1) = 30 c at c = 4.
        let small = even(&[(1, 60.0), (8, 200.0), (16, 240.0), (32, 235.0)]);
        assert_eq!(knee(&small, 30.0), (4, Bound::Floor));
        assert_eq!(knee(&small, 0.0), (12, Bound::Throughput));
        assert_eq!(knee(&small, f64::NAN), (12, Bound::Throughput));
    }

    #[test]
    fn one_request_that_is_too_slow_alone_is_still_one() {
        assert_eq!(knee(&pair(), 94.1), (1, Bound::BelowFloor));
        assert_eq!(knee(&pair(), f64::INFINITY), (1, Bound::BelowFloor));
        assert_eq!(knee(&even(&[(1, 94.0)]), 30.0), (1, Bound::Throughput));
    }

    // Requests that wait in the engine's own queue are slow, though the throughput does not show it.
    #[test]
    fn an_engine_that_queues_does_not_hold_the_floor() {
        let mut steps: Vec<Step> = pair().into();
        steps[2].per_request_tps = 20.0;
        let (concurrency, bound) = knee(&steps.try_into().unwrap(), 42.0);
        assert!(concurrency < 10 && bound == Bound::Floor, "{concurrency}");
    }

    /// The steps that a sweep of this machine takes.
    fn swept(tps: impl Fn(u32) -> f64, most: u32) -> Curve {
        let step = |n: u32| Step {
            concurrency: n,
            throughput_tps: tps(n),
            per_request_tps: tps(n) / f64::from(n),
            ttft_ms: None,
        };
        let mut curve = Curve::begin(step(1)).unwrap();
        let mut n = 1;
        while n < most {
            n = (2 * n).min(most);
            let next = step(n);
            let more = curve.gains_by(&next);
            curve.push(next).unwrap();
            if !more {
                break;
            }
        }
        curve
    }

    /// By trying every concurrency.
    fn by_trying(tps: impl Fn(u32) -> f64, most: u32, min_tps: f64) -> u32 {
        let best = (1..=most).map(&tps).fold(0.0, f64::max);
        let full = (1..=most).find(|n| tps(*n) >= ENOUGH * best).unwrap();
        let floor = (1..=most).take_while(|n| tps(*n) / f64::from(*n) >= min_tps).last().unwrap_or(1);
        full.min(floor)
    }

    #[test]
    fn the_knees_of_simulated_engines_are_found() {
        for name in ["fast", "pair", "small"] {
            let profile = Profile::named(name).unwrap().warm();
            let tps = |n: u32| burst(&mut Model::new(profile.clone()).unwrap(), n as usize, 128).unwrap();
            let curve = swept(tps, 256);
            for min_tps in [0.0, 20.0, 30.0, 45.0] {
                let found = Knee::of(&curve, min_tps).concurrency;
                let exact = by_trying(tps, 64, min_tps);
                println!("{name}, floor {min_tps}: {found}, by trying every concurrency {exact}");
                let off = f64::from(found.abs_diff(exact));
                assert!(off <= (0.1 * f64::from(exact)).max(1.0), "{name} {min_tps}: {found} {exact}");
            }
        }
    }

    /// The curve of a machine whose throughput is `a c / (1 + c / h)`.
    fn machine() -> impl Strategy<Value = Curve> {
        (5.0..200.0f64, 2.0..60.0f64)
            .prop_map(|(alone_tps, half)| swept(|n| alone_tps * f64::from(n) / (1.0 + f64::from(n) / half), 256))
    }

    fn any_curve() -> impl Strategy<Value = Curve> {
        let step = (1u32..40, 0.1..5_000.0f64, 0.05..1.0f64);
        proptest::collection::vec(step, 1..10).prop_map(|steps| {
            let mut concurrency = 0;
            let steps = steps.into_iter().map(|(more, throughput_tps, share)| {
                concurrency = if concurrency == 0 { 1 } else { concurrency + more };
                let per_request_tps = share * throughput_tps / f64::from(concurrency);
                Step { concurrency, throughput_tps, per_request_tps, ttft_ms: None }
            });
            steps.collect::<Vec<_>>().try_into().unwrap()
        })
    }

    proptest! {
        #[test]
        fn a_knee_lies_within_what_was_measured(curve in any_curve(), min_tps in 0.0..100.0f64) {
            let knee = Knee::of(&curve, min_tps);
            prop_assert!((1..=curve.largest()).contains(&knee.concurrency), "{knee:?}");
            prop_assert!((knee.exact - f64::from(knee.concurrency)).abs() <= 1.0, "{knee:?}");
        }

        #[test]
        fn a_higher_floor_never_raises_it(curve in any_curve(), floor in 0.0..50.0f64, more in 0.0..50.0f64) {
            prop_assert!(Knee::of(&curve, floor + more).concurrency <= Knee::of(&curve, floor).concurrency);
        }

        // Twice as fast at everything: as many are enough, and at least as many hold the floor.
        #[test]
        fn a_faster_machine_never_has_a_lower_one(curve in any_curve(), floor in 0.0..50.0f64, factor in 1.0..4.0f64) {
            let faster = curve.scaled(|_| factor);
            prop_assert!(Knee::of(&faster, floor).concurrency >= Knee::of(&curve, floor).concurrency);
            prop_assert_eq!(Knee::of(&faster, 0.0).concurrency, Knee::of(&curve, 0.0).concurrency);
        }

        // Where it stands, every request has its floor and the throughput is enough, as far as both can be had.
        #[test]
        fn it_keeps_what_it_promises(curve in machine(), floor in 0.0..50.0f64) {
            let Knee { concurrency, bound, .. } = Knee::of(&curve, floor);
            let (tps, each) = (curve.throughput_at(concurrency.into()), curve.per_request_at(concurrency.into()));
            prop_assert!(bound != Bound::Throughput || tps >= 0.9 * curve.best_tps() - 1e-6);
            prop_assert!(bound == Bound::BelowFloor || each >= floor - 1e-3, "{each} {floor}");
        }

        #[test]
        fn noise_of_one_step_moves_it_by_a_bounded_factor(clean in machine(), at in 0usize..12, noise in -0.05..0.05f64) {
            let (clean, noisy) = (Knee::of(&clean, 0.0), Knee::of(&disturbed(&clean, at, noise), 0.0));
            let factor = (noisy.exact / clean.exact).max(clean.exact / noisy.exact);
            prop_assert!(factor < 1.8, "{clean:?} {noisy:?}");
        }

        #[test]
        fn noise_of_one_step_counts_no_more_than_noise_of_the_floor(
            clean in machine(), at in 0usize..12, noise in 0.0..0.05f64, floor in 5.0..50.0f64,
        ) {
            let at_floor = |floor: f64| held(&clean, floor).unwrap_or(0.0);
            for noise in [-noise, noise] {
                let noisy = held(&disturbed(&clean, at, noise), floor).unwrap_or(0.0);
                let (one, other) = (at_floor(floor), at_floor(floor / (1.0 + noise)));
                prop_assert!(noisy >= one.min(other) - 1e-3 && noisy <= one.max(other) + 1e-3, "{one} {noisy} {other}");
            }
        }
    }

    fn disturbed(curve: &Curve, at: usize, noise: f64) -> Curve {
        let mut steps: Vec<Step> = curve.clone().into();
        let count = steps.len();
        let step = &mut steps[at % count];
        step.throughput_tps *= 1.0 + noise;
        step.per_request_tps *= 1.0 + noise;
        steps.try_into().unwrap()
    }
}
