//! What must be true of every run, and a few that can be reckoned by hand.

use std::path::Path;

use engine_sim::model::Nanos;
use fleet_sim::fleet::{Fleet, Overrides};
use fleet_sim::outcome::Outcome;
use fleet_sim::policy::{Policy, Tuning};
use fleet_sim::report::{Slo, Summary};
use fleet_sim::scene::SceneArgs;
use fleet_sim::sim::{Fault, Setting, run};
use fleet_sim::workload::{Call, Replay};

const MS: Nanos = 1_000_000;

fn fleet(text: &str) -> Fleet {
    Fleet::parse(text, Overrides::default()).unwrap()
}

/// Requests at these times (ms), of so many prompt and output tokens.
fn requests(of: &[(u64, u64, u64)]) -> Replay {
    let call = |(nth, (at, prompt_tokens, output_tokens)): (usize, &(u64, u64, u64))| {
        let (prompt_tokens, output_tokens) = (*prompt_tokens, *output_tokens);
        (at * MS, Call { conversation: nth as u64, prompt_tokens, output_tokens, ..Call::default() })
    };
    Replay::new(of.iter().enumerate().map(call).collect())
}

fn play(
    fleet: &Fleet,
    mut workload: Replay,
    policy: Policy,
    tuning: &Tuning,
    setting: &Setting,
    gateways: u64,
) -> Outcome {
    let routers = (0..gateways).map(|seed| policy.router(fleet, tuning, seed).unwrap()).collect();
    run(fleet, &mut workload, routers, setting).unwrap()
}

fn scene(change: impl FnOnce(&mut SceneArgs)) -> fleet_sim::scene::Scene {
    let mut args = SceneArgs { requests: 600, warm_up: 0.0, ..SceneArgs::default() };
    change(&mut args);
    args.prepare().unwrap()
}

fn ms(outcome: &Outcome) -> Vec<(f64, f64, f64)> {
    let rounded = |ms: f64| (ms * 10.0).round() / 10.0;
    outcome.served.iter().map(|of| (rounded(of.waited_ms), rounded(of.ttft_ms), rounded(of.e2e_ms))).collect()
}

// The small engine: 60 tokens/s alone, 200 at 8; a prompt of 64 tokens costs nothing, 6,000 tokens/s beyond.
#[test]
fn one_request_takes_what_the_curve_says() {
    let outcome = play(
        &fleet("240"),
        requests(&[(0, 64, 60), (10_000, 664, 30)]),
        Policy::Affinity,
        &Tuning::default(),
        &Setting::default(),
        1,
    );
    // 1 / 60 s to the first token and 1 s to the last; then 100 ms of prefill before 1 / 60 and 0.5 s.
    assert_eq!(ms(&outcome), [(0.0, 16.7, 1_000.0), (0.0, 116.7, 600.0)]);
    assert_eq!(outcome.served[0].tpot_ms.map(|ms| (ms * 100.0).round()), Some(1_667.0));
}

#[test]
fn one_slot_serves_in_turn_and_what_waits_too_long_is_shed() {
    let tuning = Tuning { base_cap: 1, queue: 3, max_wait_ms: 2_500, ..Tuning::default() };
    let arrivals = [(0, 64, 60), (10, 64, 60), (20, 64, 60), (30, 64, 60), (40, 64, 60)];
    let outcome = play(&fleet("240"), requests(&arrivals), Policy::Affinity, &tuning, &Setting::default(), 1);
    // A second each, one after the other; the fourth would come after 2.97 s, and the fifth finds the queue full.
    assert_eq!(ms(&outcome), [(0.0, 16.7, 1_000.0), (990.0, 1_006.7, 1_990.0), (1_980.0, 1_996.7, 2_980.0)]);
    assert_eq!((outcome.total_shed(), outcome.peak.as_slice()), (2, [1].as_slice()));
    // Without a queue everybody but the first is turned away.
    let none =
        play(&fleet("240"), requests(&arrivals), Policy::P2c, &Tuning { queue: 0, ..tuning }, &Setting::default(), 1);
    assert_eq!((none.served.len(), none.total_shed()), (1, 4));
}

// Prompts beyond the prefill budget, four seconds of prefill each: the next is always there when one is through. One at a time would
// add a step of 17 ms for each that came before.
#[test]
fn an_endpoint_does_not_stand_still_between_long_prompts() {
    let tuning = Tuning { max_wait_ms: 120_000, ..Tuning::default() };
    let arrivals: Vec<(u64, u64, u64)> = (0..10).map(|nth| (nth, 24_064, 10)).collect();
    let outcome = play(&fleet("240"), requests(&arrivals), Policy::Affinity, &tuning, &Setting::default(), 1);
    let mut first_tokens: Vec<f64> =
        outcome.served.iter().enumerate().map(|(nth, of)| of.ttft_ms + nth as f64).collect();
    first_tokens.sort_by(f64::total_cmp);
    assert_eq!(first_tokens.len(), 10);
    for (nth, at) in first_tokens.iter().enumerate() {
        let computed = 4_000.0 * (nth + 1) as f64;
        assert!((computed..computed + 50.0).contains(at), "{nth}: {at} ms");
    }
    // And not all of them are there at once: the others can still go elsewhere.
    assert_eq!(outcome.peak, [3]);
}

#[test]
fn priorities_go_first_and_ageing_lets_the_last_through() {
    let tuning = Tuning { base_cap: 1, ageing_ms: 0, ..Tuning::default() };
    let arrivals: Vec<(u64, u64, u64)> = (0..40).map(|nth| (nth, 64, 30)).collect();
    let setting = Setting { priorities: vec![(0, 0.3), (9, 0.3)], ..Setting::default() };
    let order = |tuning: &Tuning| -> Vec<u8> {
        let outcome = play(&fleet("240"), requests(&arrivals), Policy::P2c, tuning, &setting, 1);
        outcome.served.iter().map(|of| of.priority).collect()
    };
    let strict = order(&tuning);
    assert!(strict[1..].is_sorted() && strict.contains(&0) && strict.contains(&9), "{strict:?}");
    // What came within 40 ms of each other is told apart by 1 ms a step no more.
    assert!(!order(&Tuning { ageing_ms: 1, ..tuning })[1..].is_sorted());
}

#[test]
fn every_request_ends_exactly_once_whatever_the_policy() {
    let crowd = scene(|args| {
        (args.load, args.gateways, args.slo_ttft) = (1.6, 3, 500.0);
        args.fault = vec!["kill:0@3-6".parse().unwrap(), "slow3:1@2-4".parse().unwrap()];
    });
    for policy in Policy::ALL {
        let mut crowd = crowd.clone();
        crowd.setting.priorities = vec![(0, 0.2), (9, 0.3)];
        let outcome = crowd.run(policy, &Tuning { max_wait_ms: 3_000, ..Tuning::default() }).unwrap();
        let ended = outcome.served.len() as u64 + outcome.total_shed() + outcome.failed;
        assert_eq!((ended, outcome.total()), (600, 600), "{policy:?}");
        assert_eq!((outcome.left, outcome.left_in_flight), (0, 0), "{policy:?}");
        assert!(outcome.failed + outcome.retried > 0, "{policy:?} was cut off in the middle");
        let summary = Summary::of(&outcome, crowd.slo);
        assert!((summary.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && summary.good_share <= 1.0);
    }
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_last_bit() {
    let at = |seed| {
        scene(|args| {
            (args.seed, args.gateways, args.cv, args.load) = (seed, 4, 2.0, 1.0);
            args.fault = vec!["kill:2@3-6".parse().unwrap()];
        })
    };
    let (one, other) = (at(1), at(2));
    for policy in
        [Policy::Affinity, Policy::LeastPendingTokens, Policy::Score, Policy::CacheAware, Policy::Epp, Policy::Oracle]
    {
        let play = |scene: &fleet_sim::scene::Scene| scene.run(policy, &Tuning::default()).unwrap();
        assert_eq!(play(&one), play(&one), "{policy:?}");
        assert_ne!(play(&one), play(&other), "{policy:?}");
    }
    assert_eq!(one.facts(), at(1).facts());
}

#[test]
fn one_gateway_never_passes_a_cap_and_many_hardly() {
    let tuning = Tuning { base_cap: 6, ..Tuning::default() };
    let scene = scene(|args| args.load = 1.3);
    let caps: Vec<u32> = scene.fleet.pool(&tuning, &[]).unwrap().endpoints.iter().map(|of| of.cap).collect();
    let alone = scene.run(Policy::Affinity, &tuning).unwrap();
    assert_eq!(alone.peak, caps, "full, and not above");
    assert!(alone.served.iter().any(|of| of.waited_ms > 0.0));
    let many = scene.behind(4).run(Policy::Affinity, &tuning).unwrap();
    // Four gateways that hear of each other after a quarter of a second each let in a few more, and not four times as many.
    assert!(many.peak.iter().zip(&caps).any(|(peak, cap)| peak > cap), "{:?} of {caps:?}", many.peak);
    assert!(many.peak.iter().zip(&caps).all(|(peak, cap)| *peak < 3 * cap), "{:?} of {caps:?}", many.peak);
}

#[test]
fn gateways_that_hear_of_each_other_late_do_worse() {
    let at = |interval_ms| {
        let scene =
            scene(|args| (args.gateways, args.load, args.interval_ms, args.requests) = (8, 0.9, interval_ms, 4_000));
        Summary::of(&scene.run(Policy::P2c, &Tuning::default()).unwrap(), scene.slo)
    };
    let (soon, late) = (at(50), at(10_000));
    assert!(soon.e2e_ms.p99 < 0.95 * late.e2e_ms.p99, "{} and {}", soon.e2e_ms.p99, late.e2e_ms.p99);
}

#[test]
fn a_dead_endpoint_costs_what_it_was_answering_and_no_more() {
    let arrivals: Vec<(u64, u64, u64)> = (0..600).map(|nth| (nth * 50, 64, 20)).collect();
    let setting = Setting { faults: vec!["kill:1@10-20".parse().unwrap()], ..Setting::default() };
    let outcome = play(&fleet("1x,1x"), requests(&arrivals), Policy::Affinity, &Tuning::default(), &setting, 1);
    let served_there = |from: f64, to: f64| {
        outcome.served.iter().filter(|of| of.endpoint == 1 && (from..to).contains(&of.ended_s)).count()
    };
    assert!(served_there(5.0, 10.0) > 20 && served_there(10.0, 20.0) == 0 && served_there(25.0, 31.0) > 20);
    // 20 requests/s at two engines of 60 tokens/s and more: a handful was there.
    assert!((1..12).contains(&outcome.failed), "{}", outcome.failed);
    // Five failures in a row eject it, whether they were cut off or found the door shut; the latter are tried again.
    assert!(outcome.failed + outcome.retried >= 5 && outcome.retried > 0, "{} {}", outcome.failed, outcome.retried);
    assert_eq!(outcome.served.len() as u64 + outcome.failed, 600);
    let far: Fault = "kill:2@1-2".parse().unwrap();
    let far = Setting { faults: vec![far], ..Setting::default() };
    let router = Policy::P2c.router(&fleet("1x,1x"), &Tuning::default(), 1).unwrap();
    assert!(
        run(&fleet("1x,1x"), &mut requests(&arrivals), vec![router], &far)
            .unwrap_err()
            .to_string()
            .contains("endpoint 2")
    );
}

#[test]
fn who_knows_everything_is_ahead_of_chance() {
    for load in [0.5, 0.9] {
        let scene = scene(|args| (args.load, args.requests) = (load, 2_000));
        let mean = |policy| {
            let summary = Summary::of(&scene.run(policy, &Tuning::default()).unwrap(), scene.slo);
            (summary.e2e_ms.mean, summary.e2e_ms.p99)
        };
        let (random, ours) = (mean(Policy::Random), mean(Policy::Affinity));
        for oracle in [mean(Policy::Oracle), mean(Policy::OracleAll)] {
            assert!(oracle.0 < random.0 && oracle.1 < random.1, "{oracle:?} against {random:?}");
            assert!(oracle.0 <= ours.0, "{oracle:?} against {ours:?}");
        }
    }
}

#[test]
fn traces_run_at_the_load_that_was_asked_for() {
    let sample = |name: &str| Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name));
    for trace in ["azure.csv", "mooncake.jsonl"] {
        let scene = scene(|args| {
            (args.load, args.fleet) = (0.5, "1x,1x,2x,4x".into());
            if trace == "azure.csv" { args.azure = sample(trace) } else { args.mooncake = sample(trace) }
        });
        let facts = scene.facts();
        assert!((facts.rate_rps.unwrap() / facts.capacity_rps - 0.5).abs() < 1e-3, "{facts:?}");
        let summary =
            Summary::of(&scene.run(Policy::Affinity, &Tuning::default()).unwrap(), Slo { ttft_ms: 1e9, tpot_ms: 1e9 });
        assert_eq!((summary.arrived, summary.good_share), (facts.requests, 1.0));
        if trace == "mooncake.jsonl" {
            assert!(summary.hit_rate > 0.05 && summary.hit_rate < summary.ideal_hit_rate, "{}", summary.hit_rate);
        }
    }
}
