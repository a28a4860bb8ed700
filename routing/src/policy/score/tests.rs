use proptest::prelude::*;

use super::*;
use crate::eligibility::{Ask, Load, View};
use crate::policy::testing::{pool, run};
use crate::prefix::holders::Nobody;
use crate::route::{Pick, Reason, decide};
use crate::signals::Signals;

fn busy(in_flight: u32) -> Load {
    Load { in_flight, ..Load::default() }
}

/// A signal of each kind.
fn full(waiting: u32, ttft_ms: f64, tps: f64, kv: f64, gpu: f64) -> Signals {
    Signals {
        waiting: Some(waiting),
        ttft_ms: Amount::try_new(ttft_ms),
        tps: Amount::try_new(tps),
        kv: Share::try_new(kv),
        gpu: Share::try_new(gpu),
        ..Signals::default()
    }
}

fn terms(pick: &Pick, of: usize) -> Vec<(&'static str, i64)> {
    let (_, terms) = pick.terms.iter().find(|(index, _)| *index == of).unwrap();
    terms.iter().map(|(term, value)| (term.as_str(), value)).collect()
}

#[test]
fn the_formula_term_by_term() {
    let pool = pool("score", &[1.0, 1.0, 1.0]);
    let loads = [busy(2), busy(2), busy(3)];
    let signals = [full(1, 100.0, 30.0, 0.5, 0.25), full(0, 300.0, 50.0, 1.0, 1.0), full(0, 200.0, 40.0, 0.0, 0.0)];
    let pick = run(&pool, &loads, &signals, 1).unwrap();
    // 200 + 10 + 0 + 0 - 0 + 7.5 + 3.75; 200 + 0 + 5 + 0 - 3 + 15 + 15; 300 + 0 + 2.5 + 0 - 1.5 + 0 + 0
    let expected = [
        (0, [200_000, 10_000, 0, 0, 0, 7_500, 3_750], 221_250),
        (1, [200_000, 0, 5_000, 0, -3_000, 15_000, 15_000], 232_000),
        (2, [300_000, 0, 2_500, 0, -1_500, 0, 0], 301_000),
    ];
    let words = ["active", "queue", "latency", "job", "throughput", "kv", "gpu"];
    for (of, values, total) in expected {
        assert_eq!(terms(&pick, of), words.into_iter().zip(values).collect::<Vec<_>>(), "{of}");
        assert_eq!(pick.terms.iter().find(|(index, _)| *index == of).unwrap().1.total(), total);
    }
    assert_eq!((pick.hosts, pick.reason, pick.policy), ([0, 1, 2], Reason::LowerScore, "score"));
}

// Row 7 of the mission, one after the other: a request in flight outweighs every other term.
#[test]
fn four_idle_endpoints_and_four_requests_one_each() {
    let pool = pool("score", &[1.34, 0.66, 2.72, 0.25]);
    let signals =
        [full(0, 900.0, 10.0, 1.0, 1.0), full(0, 1.0, 99.0, 0.0, 0.0), Signals::default(), full(0, 5.0, 5.0, 0.5, 0.1)];
    for signals in [&signals[..], &[]] {
        for seed in 0..100 {
            let mut loads = [busy(0); 4];
            for _ in 0..4 {
                loads[run(&pool, &loads, signals, seed).unwrap().chosen()].in_flight += 1;
            }
            assert!(loads.iter().all(|load| load.in_flight == 1), "{loads:?}");
        }
    }
}

// Case C19: what nobody measures does not count, and own counts decide; chance only between equals.
#[test]
fn c19_without_signals_own_counts_decide() {
    let pool = pool("score", &[1.0, 1.0, 1.0]);
    for seed in 0..100 {
        let pick = run(&pool, &[busy(3), busy(1), busy(2)], &[], seed).unwrap();
        assert_eq!((pick.hosts, pick.reason), ([1, 2, 0], Reason::LowerScore));
        // 100 x 150 / 102 for each request in flight.
        assert_eq!(terms(&pick, 1), [("active", 147_059), ("job", 0)]);
    }
}

// Cases C18 and C19: one engine that tells less than the others is neither favoured nor punished.
#[test]
fn c18_what_one_does_not_tell_counts_for_nobody() {
    let pool = pool("score", &[1.0, 1.0]);
    let quiet = Signals { kv: None, ..full(0, 100.0, 30.0, 0.0, 0.5) };
    for kv in [0.0, 1.0] {
        let signals = [full(0, 100.0, 30.0, kv, 0.5), quiet];
        let pick = run(&pool, &[busy(1), busy(1)], &signals, 1).unwrap();
        assert_eq!(pick.reason, Reason::TieChance, "kv {kv}");
        assert_eq!(terms(&pick, 0), terms(&pick, 1));
        assert!(terms(&pick, 0).iter().all(|(term, _)| *term != "kv"));
        // The other coefficients keep the sum of 150: 100 x 150 / 135.
        assert_eq!(terms(&pick, 0)[0], ("active", 111_111));
    }
}

#[test]
fn a_signal_of_zero_counts_and_one_that_is_no_number_does_not() {
    let pool = pool("score", &[1.0, 1.0]);
    let zero = full(0, 0.0, 0.0, 0.0, 0.0);
    let pick = run(&pool, &[busy(1), busy(0)], &[zero, full(9, 10.0, 10.0, 0.1, 0.1)], 1).unwrap();
    assert_eq!((pick.chosen(), terms(&pick, 0).len()), (1, 7));
    let broken = full(0, f64::NAN, f64::INFINITY, f64::NAN, -1.0);
    let pick = run(&pool, &[busy(1), busy(0)], &[zero, broken], 1).unwrap();
    assert_eq!(terms(&pick, 0).iter().map(|(term, _)| *term).collect::<Vec<_>>(), ["active", "queue", "job"]);
}

#[test]
fn when_nothing_with_a_coefficient_is_left_own_counts_decide() {
    let mut pool = pool("score", &[1.0, 1.0]);
    pool.policy = super::super::AnyPolicy::Score(Score::try_new([0.0, 0.0, 5.0, 0.0, 3.0, 0.0, 0.0]).unwrap());
    for seed in 0..50 {
        assert_eq!(run(&pool, &[busy(2), busy(1)], &[], seed).unwrap().chosen(), 1);
    }
}

#[test]
fn the_job_term_is_what_the_endpoint_does_not_hold() {
    let pool = pool("score", &[1.0, 1.0, 1.0]);
    let ask = Ask { prompt_tokens: 1_000, output_tokens: 100, ..Ask::default() };
    let loads = [busy(1); 3];
    let view = View { loads: &loads, ..View::default() };
    let mut prefix = crate::prefix::holders::testing::Fixed::new(&[(2, 800), (1, 400)]);
    let pick = decide(&pool, view, &ask, &mut prefix, &mut SplitMix64::seeded(1)).unwrap();
    // Costs of 1,100, 700 and 300 tokens: 1, 1/2 and 0 of 2 x 150 / 102 points.
    let job = |of| terms(&pick, of).iter().find(|(term, _)| *term == "job").unwrap().1;
    assert_eq!([job(0), job(1), job(2)], [2_941, 1_471, 0]);
    assert_eq!((pick.chosen(), pick.reason), (2, Reason::Holder));
}

// Row 5 of the mission, in points: 10 in flight at weight 1.34 against 3 at 0.66 are 7 requests more; 8,000 tokens are worth
// 7.6 requests per weight, so 10.2 at the holder.
#[test]
fn a_long_conversation_stays_within_the_allowance() {
    let pool = pool("score", &[1.34, 0.66]);
    let loads = [busy(10), busy(3)];
    let view = View { loads: &loads, ..View::default() };
    let stay = |tokens: u64| {
        let ask = Ask { prompt_tokens: tokens, output_tokens: 128, ..Ask::default() };
        let mut prefix = crate::prefix::holders::testing::Fixed::new(&[(0, tokens)]);
        decide(&pool, view, &ask, &mut prefix, &mut SplitMix64::seeded(1)).unwrap()
    };
    assert_eq!((stay(8_000).chosen(), stay(8_000).reason), (0, Reason::Holder));
    assert_eq!((stay(100).chosen(), stay(100).reason), (1, Reason::LowerScore));
}

#[test]
fn coefficients_are_checked() {
    assert_eq!(Score::try_new([100.0, 10.0, 5.0, 2.0, 3.0, 15.0, 15.0]), Ok(Score::default()));
    assert_eq!(Score::try_new([1.0, 1.0, 1.0, 1.0, -3.0, 1.0, 1.0]), Err(Term::Throughput));
    assert_eq!(Score::try_new([1.0, f64::NAN, 1.0, 1.0, 1.0, 1.0, 1.0]), Err(Term::Queue));
    assert_eq!(Score::try_new([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 10_000.5]), Err(Term::Gpu));
    assert_eq!(Score::try_new([0.0; 7]), Err(Term::Active));
}

/// Anything that metrics might say, sense or not.
fn anything() -> impl Strategy<Value = (u32, Option<u32>, [f64; 4], u32)> {
    (0u32..2_000, any::<Option<u32>>(), any::<[f64; 4]>(), prop_oneof![Just(0u32), any::<u32>()])
}

proptest! {
    // The terms of a record add up to its score, exactly, and the lowest score wins.
    #[test]
    fn terms_add_up(
        fleet in proptest::collection::vec(anything(), 1..40), points in any::<[f64; 7]>(), seed in any::<u64>(),
        prompt_tokens in any::<u32>(), output_tokens in any::<u32>()
    ) {
        let mut pool = pool("score", &vec![1.0; fleet.len()]);
        let score = Score::try_new(points.map(|value| if value.is_finite() { value.abs() % 10_000.0 } else { 1.0 })).unwrap_or_default();
        pool.policy = super::super::AnyPolicy::Score(score);
        let loads: Vec<Load> = fleet.iter().map(|(in_flight, _, _, elsewhere)| Load { elsewhere: *elsewhere / 4, ..busy(*in_flight) }).collect();
        let signals: Vec<Signals> = fleet.iter().map(|(_, waiting, [a, b, c, d], _)| Signals { waiting: *waiting, ..full(0, *a, *b, *c, *d) }).collect();
        for endpoint in &mut pool.endpoints {
            endpoint.cap = u32::MAX;
        }
        let ask = Ask { prompt_tokens: prompt_tokens.into(), output_tokens: output_tokens.into(), ..Ask::default() };
        let view = View { loads: &loads, signals: &signals, ..View::default() };
        let pick = decide(&pool, view, &ask, &mut Nobody, &mut SplitMix64::seeded(seed)).unwrap();
        prop_assert_eq!(pick.terms.len(), fleet.len().min(crate::route::EXPLAINED));
        let total = |of: usize| pick.terms.iter().find(|(index, _)| *index == of).unwrap().1.total();
        for (of, terms) in &pick.terms {
            prop_assert_eq!(terms.total(), terms.iter().map(|(_, value)| value).sum::<i64>());
            prop_assert!(total(pick.chosen()) <= terms.total(), "{of}");
        }
        // And so they do in the record.
        let admitted = crate::live::Admitted { pick: pick.clone(), loads, charge: crate::live::Charge::default(), waited: None };
        let record = crate::decision::Decision::admitted(&pool, 1, &ask, &admitted).to_json();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let mut written = 0;
        for candidate in record["candidates"].as_array().unwrap() {
            let Some(score) = candidate["score"].as_f64() else { continue };
            written += 1;
            let sum: f64 = candidate["terms"].as_object().unwrap().values().map(|value| value.as_f64().unwrap()).sum();
            let scale = sum.abs().max(1.0);
            prop_assert!((sum - score).abs() <= 1e-9 * scale, "{score} {sum}");
        }
        prop_assert_eq!(written, pick.terms.len());
        prop_assert_eq!(&record["candidates"][0]["id"], &serde_json::json!(pool.endpoints[pick.chosen()].id));
    }
}
