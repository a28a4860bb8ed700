//! Where requests go: the real Envoy, the real filter, weights set by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, wire};

async fn engine(name: &str, profile: Profile) -> EngineHandle {
    let config = EngineConfig { name: name.into(), model: "m".into(), profile, cold: false, ..EngineConfig::default() };
    EngineHandle::start(config).await.unwrap()
}

async fn fleet(of: &[(&str, Profile, f64)]) -> (Vec<EngineHandle>, wire::Pool) {
    let mut engines = Vec::new();
    let mut endpoints = Vec::new();
    for (name, profile, weight) in of {
        let engine = engine(name, profile.clone()).await;
        endpoints.push(endpoint(name, engine.addr(), *weight));
        engines.push(engine);
    }
    (engines, pool("m", endpoints))
}

/// Sixteen requests at once over three worker threads; how many each endpoint got.
async fn sixteen(fast: f64, pair: f64) -> (usize, usize) {
    let (engines, pool) = fleet(&[("fast", Profile::fast(), fast), ("pair", Profile::pair(), pair)]).await;
    let options = EnvoyOptions { concurrency: 3, ..EnvoyOptions::fixed(snapshot(vec![pool])) };
    let envoy = Envoy::start(options).await.unwrap();
    let report = load::burst_at_once(envoy.gateway(), 16, Call::chat("m", "tell me a story", 64)).await;
    assert_eq!(report.ok(), 16, "{report:?}");
    let split = report.by_engine();
    let got = |name: &str| split.get(name).copied().unwrap_or_default();
    println!(
        "weights {fast} and {pair}: {} and {}; engines ran at most {} and {} at once",
        got("fast"),
        got("pair"),
        engines[0].state().running_max,
        engines[1].state().running_max
    );
    // What the response says is what happened.
    assert_eq!(report.by_endpoint(), split);
    (got("fast"), got("pair"))
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_requests_split_by_weight() {
    let (fast, pair) = sixteen(1.34, 0.66).await;
    assert!((10..=12).contains(&fast) && fast + pair == 16, "{fast}/{pair}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_requests_split_as_badly_as_the_old_hand_set_weights() {
    let (fast, pair) = sixteen(1.0, 3.5).await;
    assert!((3..=5).contains(&fast) && fast + pair == 16, "{fast}/{pair}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_quiet_network_the_faster_endpoint_answers() {
    let instant = Profile::instant;
    let (_engines, pool) = fleet(&[("slow", instant(), 0.66), ("fast", instant(), 1.34)]).await;
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    let report = load::closed_loop(envoy.gateway(), 1, 50, |_| Call::chat("m", "hello", 4)).await;
    assert_eq!(report.by_engine(), BTreeMap::from([("fast".to_owned(), 50)]));
}

// Row 7 of the mission: four idle endpoints, four requests at once: one each, every round.
#[tokio::test(flavor = "multi_thread")]
async fn four_at_once_on_four_idle_endpoints_never_meet() {
    // Slow enough that the four overlap on a machine that is busy with other tests.
    let profile = Profile::new("even", &[(1, 100.0), (16, 1_600.0)]);
    let of: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| (*name, profile.clone(), 1.0)).collect();
    let (engines, mut pool) = fleet(&of).await;
    pool.policy.choices = wire::Choices::Word("all".into());
    let options = EnvoyOptions { concurrency: 4, ..EnvoyOptions::fixed(snapshot(vec![pool])) };
    let envoy = Envoy::start(options).await.unwrap();
    for round in 0..200 {
        let report = load::burst_at_once(envoy.gateway(), 4, Call::chat("m", "hello", 8)).await;
        assert_eq!(report.ok(), 4, "round {round}: {report:?}");
        assert_eq!(report.by_engine().len(), 4, "round {round}: {:?}", report.by_engine());
    }
    for engine in &engines {
        assert_eq!(engine.state().in_flight_max, 1, "{}", engine.name());
    }
}

// Case C6: concurrency 1, four idle equal endpoints: spread, not always the first.
#[tokio::test(flavor = "multi_thread")]
async fn c6_equal_idle_endpoints_share() {
    let of: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| (*name, Profile::instant(), 1.0)).collect();
    let (_engines, pool) = fleet(&of).await;
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    let report = load::closed_loop(envoy.gateway(), 1, 200, |_| Call::chat("m", "hello", 2)).await;
    let split = report.by_engine();
    assert!(split.len() == 4 && split.values().all(|count| (25..=80).contains(count)), "{split:?}");
}

// Cases C5 and C8: what is in flight counts at once, so a burst never lands on the one that looked free.
#[tokio::test(flavor = "multi_thread")]
async fn c5_c8_a_burst_spreads_while_it_arrives() {
    let profile = Profile::new("even", &[(1, 50.0), (16, 800.0)]);
    let of: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| (*name, profile.clone(), 1.0)).collect();
    let (_engines, mut pool) = fleet(&of).await;
    pool.policy.choices = wire::Choices::Word("all".into());
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    let report = load::burst_at_once(envoy.gateway(), 40, Call::chat("m", "hello", 16)).await;
    let split = report.by_engine();
    assert!(split.values().all(|count| *count == 10) && split.len() == 4, "{split:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_sent_to_an_endpoint_that_takes_no_traffic() {
    let names = ["ready", "new", "probing", "draining", "unhealthy"];
    let of: Vec<_> = names.iter().map(|name| (*name, Profile::instant(), 1.0)).collect();
    let (engines, mut pool) = fleet(&of).await;
    let states =
        [wire::State::Ready, wire::State::New, wire::State::Probing, wire::State::Draining, wire::State::Unhealthy];
    for (endpoint, state) in pool.endpoints.iter_mut().zip(states) {
        endpoint.state = state;
    }
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    let report = load::closed_loop(envoy.gateway(), 8, 100, |_| Call::chat("m", "hello", 2)).await;
    assert_eq!(report.by_engine(), BTreeMap::from([("ready".to_owned(), 100)]));
    assert!(engines[1..].iter().all(|engine| engine.state().requests_total == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_pool_answers_429_and_serves_again_when_a_slot_is_free() {
    let (engines, mut pool) = fleet(&[("only", Profile::new("slow", &[(1, 20.0)]), 1.0)]).await;
    pool.endpoints[0].cap = Some(2);
    // Nobody waits here; `queue.rs` is about those who do.
    pool.admission.queue = 0;
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    let report = load::burst_at_once(envoy.gateway(), 6, Call::chat("m", "hello", 20)).await;
    assert_eq!(report.by_status(), BTreeMap::from([("200".to_owned(), 2), ("429".to_owned(), 4)]));
    let refused = report.outcomes.iter().find(|outcome| outcome.status == Some(429)).unwrap();
    assert_eq!(refused.json()["error"]["code"], "capacity_exhausted");
    assert_eq!(refused.header("retry-after"), "1");
    // The response's end frees the slot before its client can ask again.
    let after = load::closed_loop(envoy.gateway(), 2, 6, |_| Call::chat("m", "hello", 2)).await;
    assert_eq!(after.ok(), 6, "{:?}", after.by_status());
    assert!(engines[0].state().in_flight_max <= 2);
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}
