//! What holds for every policy, and for two of them side by side.

use proptest::prelude::*;

use super::testing::{pool, run};
use super::*;
use crate::curve::Curve;
use crate::prefix::holders::Nobody;
use crate::prefix::holders::testing::Fixed;
use crate::route::{Pick, Reason, decide};
use crate::signals::{Amount, Share};

fn busy(in_flight: u32) -> Load {
    Load { in_flight, ..Load::default() }
}

fn tokens(pending_tokens: u32) -> Load {
    Load { in_flight: 1, pending_tokens, ..Load::default() }
}

/// How often each of the endpoints is picked over so many seeds, nothing being counted in between.
fn spread(pool: &Pool, loads: &[Load], times: u64) -> Vec<u64> {
    let mut picked = vec![0; pool.endpoints.len()];
    for turn in 0..times {
        let view = View { loads, turn: turn as u32, ..View::default() };
        let pick = decide(pool, view, &Ask::default(), &mut Nobody, &mut SplitMix64::seeded(turn)).unwrap();
        picked[pick.chosen()] += 1;
    }
    picked
}

// Case C6: four idle equal endpoints, one request at a time: spread, not always the first.
#[test]
fn c6_idle_equals_share_under_every_policy() {
    for name in AnyPolicy::NAMES {
        let picked = spread(&pool(name, &[1.0; 4]), &[], 4_000);
        assert!(picked.iter().all(|count| (880..1_120).contains(count)), "{name}: {picked:?}");
    }
}

// Case C7: two equally good endpoints among eight split 1:1.
#[test]
fn c7_two_good_ones_among_eight_split_evenly() {
    for policy in [
        r#"{"name": "p2c", "choices": "all"}"#,
        r#"{"name": "least_pending_tokens", "choices": "all"}"#,
        r#"{"name": "least_request", "choices": "all"}"#,
        "score",
    ] {
        let good = |nth| nth == 2 || nth == 6;
        let load =
            |nth| Load { pending_tokens: if good(nth) { 10 } else { 900 }, ..busy(if good(nth) { 1 } else { 9 }) };
        let loads: Vec<Load> = (0..8).map(load).collect();
        let picked = spread(&pool(policy, &[1.0; 8]), &loads, 10_000);
        assert!((4_700..5_300).contains(&picked[2]) && picked[2] + picked[6] == 10_000, "{policy}: {picked:?}");
    }
}

// Case C8: nobody holds the prompt, and the endpoint with the emptiest cache is busy: the least load per weight gets it.
#[test]
fn c8_a_busy_endpoint_with_an_empty_cache_gets_nothing() {
    let empty = Signals { kv: Share::try_new(0.0), ..Signals::default() };
    let full = Signals { kv: Share::try_new(1.0), ..Signals::default() };
    let loads = [Load { pending_tokens: 900, ..busy(9) }, Load { pending_tokens: 100, ..busy(1) }];
    for name in ["p2c", "score", "least_pending_tokens"] {
        for seed in 0..100 {
            let pick = run(&pool(name, &[1.0, 1.0]), &loads, &[empty, full], seed).unwrap();
            assert_eq!(pick.chosen(), 1, "{name}");
        }
    }
}

// Case C5: what others have in flight there counts, for caps too.
#[test]
fn c5_load_from_elsewhere_counts() {
    let loads = [Load { elsewhere: 5, ..busy(1) }, busy(3)];
    let signals = [Signals { outside: 5, ..Signals::default() }, Signals::default()];
    for name in ["p2c", "score", "least_pending_tokens", "least_request"] {
        let loads = loads.map(|load| Load { pending_tokens: 100 * load.in_flight, ..load });
        let ask = Ask { prompt_tokens: 100, output_tokens: 128, ..Ask::default() };
        let view = View { loads: &loads, signals: &signals, ..View::default() };
        let pick = decide(&pool(name, &[1.0, 1.0]), view, &ask, &mut Nobody, &mut SplitMix64::seeded(1)).unwrap();
        assert_eq!(pick.chosen(), 1, "{name}");
    }
    let mut full = pool("p2c", &[1.0, 1.0]);
    full.endpoints[1].cap = 3;
    full.endpoints[0].cap = 6;
    assert!(run(&full, &loads, &[], 1).is_err());
}

#[test]
fn least_pending_tokens_adds_what_others_have_waiting() {
    let pool = pool("least_pending_tokens", &[1.0, 1.0]);
    let ask = Ask { prompt_tokens: 1_000, output_tokens: 100, ..Ask::default() };
    let decide = |loads: [Load; 2], said: Signals| {
        let signals = [said, Signals::default()];
        let view = View { loads: &loads, signals: &signals, ..View::default() };
        decide(&pool, view, &ask, &mut Nobody, &mut SplitMix64::seeded(1)).unwrap().chosen()
    };
    let nothing = Signals::default();
    // Two requests of nobody's that run have 200 tokens before them, two that wait 2,200.
    assert_eq!(decide([tokens(0), tokens(300)], Signals { outside: 2, ..nothing }), 0);
    assert_eq!(decide([tokens(0), tokens(300)], Signals { outside: 2, waiting: Some(2), ..nothing }), 1);
    // Other Envoys say what theirs have before them.
    assert_eq!(decide([tokens(0), tokens(300)], Signals { others: 9, others_tokens: 299, ..nothing }), 0);
    assert_eq!(decide([tokens(0), tokens(300)], Signals { others: 1, others_tokens: 301, ..nothing }), 1);
    // What waits there and is an Envoy's is pending already.
    assert_eq!(decide([tokens(200), tokens(300)], Signals { waiting: Some(7), ..nothing }), 0);
    assert_eq!(decide([tokens(9_000), tokens(300)], nothing), 1);
}

#[test]
fn round_robin_takes_turns_over_whoever_may() {
    let mut pool = pool("round_robin", &[8.0, 1.0, 1.0, 0.3]);
    assert_eq!(spread(&pool, &[busy(9), busy(0), busy(5), busy(1)], 400), [100; 4]);
    pool.endpoints[1].cap = 1;
    let loads = [busy(0), busy(1), busy(0), busy(0)];
    assert_eq!(spread(&pool, &loads, 300), [100, 0, 100, 100]);
    let view = View { loads: &loads, turn: u32::MAX, ..View::default() };
    let pick = decide(&pool, view, &Ask::default(), &mut Nobody, &mut SplitMix64::seeded(1)).unwrap();
    // 4,294,967,295 mod 3 is 0: the first, and the two that come after it.
    assert_eq!((pick.hosts, pick.reason), ([0, 2, 3], Reason::Turn));
}

#[test]
fn random_and_least_request_ignore_weights() {
    let picked = spread(&pool("random", &[8.0, 1.0, 0.25, 1.0]), &[busy(9), busy(0), busy(2), busy(50)], 8_000);
    assert!(picked.iter().all(|count| (1_800..2_200).contains(count)), "{picked:?}");
    let fewest = pool(r#"{"name": "least_request", "choices": "all"}"#, &[8.0, 0.25]);
    assert_eq!(run(&fewest, &[busy(2), busy(1)], &[], 1).unwrap().chosen(), 1);
    // Two drawn uniformly: the busiest never, and the others as often as they are drawn.
    let two = spread(&pool("least_request", &[8.0, 0.25, 1.0]), &[busy(3), busy(2), busy(1)], 3_000);
    assert_eq!(two[0], 0);
    assert!((1_850..2_150).contains(&two[2]), "{two:?}");
}

#[test]
fn only_those_that_know_of_load_stay_with_holders() {
    let ask = Ask { prompt_tokens: 8_100, output_tokens: 128, ..Ask::default() };
    let loads = [Load { pending_tokens: 300, ..busy(3) }, Load { pending_tokens: 200, ..busy(2) }];
    for name in AnyPolicy::NAMES {
        let pool = pool(name, &[1.0, 1.0]);
        let view = View { loads: &loads, ..View::default() };
        let pick = decide(&pool, view, &ask, &mut Fixed::new(&[(0, 8_000)]), &mut SplitMix64::seeded(3)).unwrap();
        let stays = ["p2c", "score", "least_pending_tokens"].contains(&name);
        assert_eq!(pick.affinity.is_some(), stays, "{name}");
        assert_eq!(pick.reason == Reason::Holder, stays, "{name}");
    }
}

/// A pool with a shadow or a canary.
fn with(policy: &str, extra: &str, weights: &[f64]) -> Pool {
    pool(&format!(r#"{{"name": "{policy}", {extra}}}"#), weights)
}

fn shadow(name: &str) -> String {
    format!(r#""shadow": {{"name": "{name}"}}"#)
}

proptest! {
    // A shadow routes nothing: with the same seed the picks are the same, draw for draw.
    #[test]
    fn a_shadow_changes_nothing(
        fleet in proptest::collection::vec((0.01f64..100.0, 0u32..5, 0u32..3), 1..12), seed in any::<u64>(),
        name in 0usize..6, other in 0usize..6, held in any::<bool>()
    ) {
        let (name, other) = (AnyPolicy::NAMES[name], AnyPolicy::NAMES[other]);
        let weights: Vec<f64> = fleet.iter().map(|(weight, ..)| *weight).collect();
        let (alone, shadowed) = (pool(name, &weights), with(name, &shadow(other), &weights));
        let ask = Ask { prompt_tokens: 900, output_tokens: 16, ..Ask::default() };
        let (mut one, mut two) = (SplitMix64::seeded(seed), SplitMix64::seeded(seed));
        for turn in 0..20 {
            let loads: Vec<Load> = fleet.iter().map(|(_, load, elsewhere)| Load { elsewhere: *elsewhere, ..busy(load + turn % 3) }).collect();
            let view = View { loads: &loads, turn, ..View::default() };
            let prefix = || Fixed::new(if held { &[(0, 800)] } else { &[] });
            let plain = decide(&alone, view, &ask, &mut prefix(), &mut one).unwrap();
            let pick = decide(&shadowed, view, &ask, &mut prefix(), &mut two).unwrap();
            let shadow = pick.shadow.unwrap();
            prop_assert!(plain.shadow.is_none());
            prop_assert_eq!(Pick { shadow: None, ..pick }, plain);
            prop_assert_eq!(shadow.policy, other);
            prop_assert!(shadow.load_difference.is_finite() && shadow.cost_difference.is_finite());
        }
        prop_assert_eq!(one.next_u64(), two.next_u64());
    }

    // Nobody is picked who may not be, and a pick leaves its arguments as they were.
    #[test]
    fn every_policy_stays_with_the_eligible(
        fleet in proptest::collection::vec((0.01f64..100.0, 0u32..4, any::<f32>(), any::<f32>(), any::<u32>()), 1..12),
        seed in any::<u64>(), turn in any::<u32>(), held in 0usize..12
    ) {
        let weights: Vec<f64> = fleet.iter().map(|(weight, ..)| *weight).collect();
        let loads: Vec<Load> = fleet.iter().map(|(_, load, ..)| busy(*load)).collect();
        let signals: Vec<Signals> = fleet.iter().map(|(_, _, a, b, waiting)| Signals {
            kv: Share::try_new(f64::from(*a)), tps: Amount::try_new(f64::from(*b)), waiting: Some(*waiting), ..Signals::default()
        }).collect();
        let view = View { loads: &loads, signals: &signals, turn, now_ms: 0 };
        for name in AnyPolicy::NAMES {
            let mut pool = pool(name, &weights);
            pool.endpoints.iter_mut().for_each(|endpoint| endpoint.cap = 3);
            let ask = Ask { prompt_tokens: 5_000, output_tokens: 10, ..Ask::default() };
            let decide = || decide(&pool, view, &ask, &mut Fixed::new(&[(held, 4_000), (0, 2_000)]), &mut SplitMix64::seeded(seed));
            let Ok(pick) = decide() else {
                prop_assert!(loads.iter().all(|load| load.in_flight >= 3));
                continue;
            };
            prop_assert_eq!(pick.survey.excluded[pick.chosen()], None);
            prop_assert!(pick.drawn.contains(&pick.chosen()));
            prop_assert_eq!(decide().unwrap(), pick);
        }
    }

    // A canary's share is its percentage, and the same request is always the canary's or never.
    #[test]
    fn a_canary_takes_its_share(percent in 0u32..=10_000, salt in any::<u32>()) {
        let percent = f64::from(percent) / 100.0;
        let pool = with("p2c", &format!(r#""canary": {{"name": "score", "percent": {percent}}}"#), &[1.0, 1.0]);
        let mut taken = 0u32;
        for nth in 0..4_000u32 {
            let id = format!("{salt:08x}-0000-4000-8000-{nth:012x}");
            let hash = crate::snapshot::Canary::hash(id.as_bytes());
            let ask = Ask { id_hash: Some(hash), ..Ask::default() };
            let one = decide(&pool, View::default(), &ask, &mut Nobody, &mut SplitMix64::seeded(nth.into())).unwrap();
            prop_assert_eq!(one.policy, if one.canary { "score" } else { "p2c" });
            prop_assert_eq!(pool.policy_for(Some(hash)).1, one.canary);
            taken += u32::from(one.canary);
        }
        let share = f64::from(taken) / 4_000.0;
        // Five standard deviations, and five requests for shares so small that they are not normally distributed.
        let bound = 5.0 * (percent / 100.0 * (1.0 - percent / 100.0) / 4_000.0).sqrt() + 5.0 / 4_000.0;
        prop_assert!((share - percent / 100.0).abs() <= bound, "{share} of {percent} %");
        prop_assert!(!run(&pool, &[], &[], 1).unwrap().canary, "a request without an id");
    }
}

#[test]
fn a_shadow_says_what_it_would_have_done_and_what_that_is_worth() {
    let pool = with("round_robin", &shadow("p2c"), &[2.0, 1.0]);
    let loads = [busy(5), busy(4)];
    let shadow = |turn| {
        let view = View { loads: &loads, turn, ..View::default() };
        let pick = decide(&pool, view, &Ask::default(), &mut Nobody, &mut SplitMix64::seeded(1));
        pick.unwrap().shadow.unwrap()
    };
    // (4 + 1) / 1 - (5 + 1) / 2, and 4 / 1 - 5 / 2.
    let differs = shadow(1);
    assert_eq!((differs.chosen, differs.policy, differs.reason), (0, "p2c", Reason::LowerLoad));
    assert_eq!((differs.load_difference, differs.cost_difference), (2.0, 1.5));
    let agrees = shadow(0);
    assert_eq!((agrees.chosen, agrees.load_difference, agrees.cost_difference), (0, 0.0, 0.0));
}

/// The published fleet with its curves, in shares of what each does at 16 requests.
fn curved(by: &str) -> Pool {
    let mut pool = pool(&format!(r#"{{"name": "p2c", "choices": "all", "by": "{by}"}}"#), &[2.72, 1.33, 0.67, 0.67]);
    let curves: [&[(u32, f64)]; 4] = [
        &[(1, 0.108), (8, 0.702), (16, 1.0), (32, 1.469)],
        &[(1, 0.196), (8, 0.835), (16, 1.0), (32, 0.971)],
        &[(1, 0.25), (8, 0.833), (16, 1.0), (32, 0.979)],
        &[(1, 0.25), (8, 0.833), (16, 1.0), (32, 0.979)],
    ];
    for (endpoint, curve) in pool.endpoints.iter_mut().zip(curves) {
        endpoint.curve = Some(Curve::try_new(curve).unwrap());
    }
    pool
}

/// How many of so many requests each endpoint has when nobody finishes.
fn filled(pool: &Pool, requests: u64) -> Vec<u32> {
    let mut loads = vec![Load::default(); pool.endpoints.len()];
    for seed in 0..requests {
        let chosen = run(pool, &loads, &[], seed).unwrap().chosen();
        loads[chosen].in_flight += 1;
    }
    loads.iter().map(Load::total).collect()
}

#[test]
fn by_curve_every_request_gets_the_same_speed_and_by_weight_it_does_not() {
    let tokens_per_s = |share: &Curve, tps_at_16: f64, requests: u32| {
        if requests == 0 { f64::MAX } else { share.share(requests) * tps_at_16 / f64::from(requests) }
    };
    let slowest = |pool: &Pool| {
        let filled = filled(pool, 40);
        let speeds = pool.endpoints.iter().zip([980.0, 479.0, 240.0, 240.0]).zip(&filled);
        let speeds = speeds.map(|((endpoint, tps), n)| tokens_per_s(endpoint.curve.as_ref().unwrap(), tps, *n));
        (speeds.fold(f64::MAX, f64::min), filled)
    };
    let (by_curve, spread) = slowest(&curved("curve"));
    let (by_weight, flat) = slowest(&curved("weight"));
    assert!(by_curve > 1.2 * by_weight, "{by_curve} {spread:?}, {by_weight} {flat:?}");
    assert_eq!(flat, [20, 10, 5, 5]);
    assert!(spread[0] > 25 && spread[2] <= 3, "{spread:?}");
}

// A slow endpoint is slow for its first request, too: one that is idle is no reason to go there.
#[test]
fn by_curve_an_idle_slow_endpoint_does_not_beat_a_fast_one_that_has_room() {
    let loads = [busy(7), busy(4), busy(0), busy(0)];
    assert_eq!(run(&curved("weight"), &loads, &[], 1).unwrap().chosen(), 2);
    let pick = run(&curved("curve"), &loads, &[], 1).unwrap();
    assert_eq!((pick.chosen(), pick.reason), (0, Reason::LowerLoad));
    assert_eq!(run(&curved("curve"), &[], &[], 1).unwrap().reason, Reason::AllIdle);
}

#[test]
fn by_curve_where_nobody_has_a_curve_requests_count_for_the_weight() {
    let mut pool = curved("curve");
    pool.endpoints.iter_mut().for_each(|endpoint| endpoint.curve = None);
    assert_eq!(pool.share(&pool.endpoints[1], 3), Some(1.0));
    assert_eq!(pool.load(&pool.endpoints[1], 3), 4.0 / 1.33);
}
