//! What the policies must be able to do, on seeded workloads.

use fleet_sim::fleet::{Fleet, Overrides};
use fleet_sim::outcome::{Outcome, Served, quantile};
use fleet_sim::policy::{Policy, Tuning};
use fleet_sim::sim::{Setting, run};
use fleet_sim::workload::Workload;
use fleet_sim::workload::synthetic::{Arrivals, Settings, Synthetic};

const PUBLISHED: &str = "980,479,240,240";

fn fleet(text: &str) -> Fleet {
    Fleet::parse(text, Overrides::default()).unwrap()
}

fn play(fleet: &Fleet, settings: &Settings, policy: Policy, k: f64) -> Outcome {
    let mut workload = Synthetic::new(settings.clone());
    let tuning = Tuning { k, median_output: workload.median_output(), ..Tuning::default() };
    let router = policy.router(fleet, &tuning, !settings.seed).unwrap();
    let setting = Setting { warm_up: settings.requests / 10, ..Setting::default() };
    let outcome = run(fleet, &mut workload, vec![router], &setting).unwrap();
    let served = outcome.served.len() as u64;
    assert_eq!(served + outcome.total_shed(), settings.requests - settings.requests / 10, "nobody is lost");
    outcome
}

fn p99(outcome: &Outcome, of: fn(&Served) -> Option<f64>) -> f64 {
    quantile(&outcome.ascending(of), 0.99)
}

fn ttft(outcome: &Outcome) -> f64 {
    p99(outcome, |of| Some(of.ttft_ms))
}

fn tpot(outcome: &Outcome) -> f64 {
    p99(outcome, |of| of.tpot_ms)
}

fn e2e(outcome: &Outcome) -> f64 {
    p99(outcome, |of| Some(of.e2e_ms))
}

/// Conversations at a load that keeps the fast engine's prefill busy, were nothing cached.
fn conversations() -> Settings {
    Settings { arrivals: Arrivals::poisson(10.5), conversations: 1.0, requests: 20_000, ..Settings::default() }
}

/// Six of ten are turns of conversations, at the same load.
fn mixed() -> Settings {
    Settings { arrivals: Arrivals::poisson(10.0), requests: 20_000, ..Settings::default() }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let settings = Settings { requests: 3_000, ..mixed() };
    let fleet = fleet(PUBLISHED);
    for policy in [Policy::Affinity, Policy::LeastRequest] {
        assert_eq!(play(&fleet, &settings, policy, 1.0), play(&fleet, &settings, policy, 1.0));
        let other = Settings { seed: 2, ..settings.clone() };
        assert_ne!(play(&fleet, &settings, policy, 1.0), play(&fleet, &other, policy, 1.0));
    }
}

// Issue: four endpoints of 8, 1, 1, 1 at 30 % load, candidates drawn by weight against drawn uniformly.
#[test]
fn drawing_by_weight_keeps_the_slow_ones_from_filling_up() {
    let fleet = fleet("4x,0.5x,0.5x,0.5x");
    let settings = Settings {
        arrivals: Arrivals::poisson(0.3 * fleet.measured_tps.iter().sum::<f64>() / 64.0),
        conversations: 0.0,
        single: (60, 60),
        ..Settings::default()
    };
    let (by_weight, uniformly) =
        (play(&fleet, &settings, Policy::P2c, 1.0), play(&fleet, &settings, Policy::Uniform, 1.0));
    assert!(tpot(&by_weight) < 0.75 * tpot(&uniformly));
}

#[test]
fn counts_equal_to_capacity_beat_equal_counts() {
    let (fleet, settings) = (fleet(PUBLISHED), mixed());
    let ours = play(&fleet, &settings, Policy::P2c, 1.0);
    for (policy, at_most) in [(Policy::RoundRobin, 0.65), (Policy::Random, 0.6), (Policy::LeastRequest, 0.9)] {
        let theirs = play(&fleet, &settings, policy, 1.0);
        assert!(tpot(&ours) < at_most * tpot(&theirs), "{policy:?}");
        assert!(e2e(&ours) < at_most * e2e(&theirs), "{policy:?}");
    }
}

#[test]
fn affinity_finds_more_and_answers_sooner() {
    let (fleet, settings) = (fleet(PUBLISHED), conversations());
    let with = play(&fleet, &settings, Policy::Affinity, 1.0);
    let without = play(&fleet, &settings, Policy::P2c, 1.0);
    assert!(with.hit_rate() > without.hit_rate() + 0.08);
    assert!(ttft(&with) < 0.9 * ttft(&without));
    assert!(e2e(&with) < 1.05 * e2e(&without));
    // What the index says is there, is there.
    assert!(with.believed_wrongly as f64 / (with.believed_tokens as f64) < 0.01);
    assert!(with.index_bytes <= 2 * 1024 * 1024);
}

#[test]
fn without_reuse_affinity_costs_nothing() {
    let (fleet, settings) = (fleet(PUBLISHED), Settings { conversations: 0.0, ..mixed() });
    let settings = Settings { arrivals: Arrivals::poisson(9.0), ..settings };
    let (with, without) = (play(&fleet, &settings, Policy::Affinity, 1.0), play(&fleet, &settings, Policy::P2c, 1.0));
    assert!(with.ideal_hit_rate() < 1e-9 && with.believed_tokens == 0, "a false match: {}", with.believed_tokens);
    assert!((ttft(&with) / ttft(&without) - 1.0).abs() < 0.03);
}

#[test]
fn a_system_prompt_of_everybody_herds_nobody() {
    let fleet = Fleet::parse(PUBLISHED, Overrides { prefill_tps: Some(20_000.0), ..Overrides::default() }).unwrap();
    let settings = Settings {
        arrivals: Arrivals::Users(64),
        conversations: 0.0,
        system: 2_000,
        think_s: 0.5,
        requests: 10_000,
        ..Settings::default()
    };
    let with = play(&fleet, &settings, Policy::Affinity, 1.0).shares();
    let without = play(&fleet, &settings, Policy::P2c, 1.0).shares();
    for ((with, without), weight) in with.iter().zip(without).zip(fleet.shares()) {
        assert!((with - weight).abs() < 0.10, "{with} of {weight}");
        assert!((with - without).abs() < 0.03, "{with} with affinity, {without} without");
    }
}

#[test]
fn the_allowance_pays_for_itself() {
    let fleet = fleet(PUBLISHED);
    for settings in [mixed(), conversations()] {
        let without = play(&fleet, &settings, Policy::Affinity, 0.0);
        let mut hits = without.hit_rate();
        for k in [0.25, 0.5, 1.0, 2.0, 4.0] {
            let outcome = play(&fleet, &settings, Policy::Affinity, k);
            assert!(outcome.hit_rate() > hits - 0.01, "a larger allowance finds no less");
            hits = outcome.hit_rate();
            if k == 1.0 {
                assert!(ttft(&outcome) < 1.1 * ttft(&without));
                assert!(e2e(&outcome) < 1.1 * e2e(&without));
            }
        }
    }
}

#[test]
fn pending_tokens_see_long_prompts() {
    // Prompts of 100 to 4,000 tokens, nothing shared: in-flight counts take them for equal, pending tokens do not.
    let fleet = fleet(PUBLISHED);
    let settings = Settings { arrivals: Arrivals::poisson(9.0), conversations: 0.0, ..mixed() };
    let tokens = play(&fleet, &settings, Policy::LeastPendingTokens, 1.0);
    let counts = play(&fleet, &settings, Policy::P2c, 1.0);
    assert!(ttft(&tokens) < 0.8 * ttft(&counts));
}
