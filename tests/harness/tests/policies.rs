//! Policies other than the default, a shadow and a canary in the real Envoy.

use std::collections::BTreeMap;

use crate::common::{DEADLINE, engine, even};
use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::EngineHandle;
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually, wire};
use serde_json::Value;
use weighbridge_routing::snapshot::Canary;

/// An Envoy with as many worker threads, whose one pool of engines has this policy; clients may have decisions explained.
async fn envoy(engines: &[&EngineHandle], policy: wire::Policy, concurrency: u32) -> Envoy {
    let endpoints = engines.iter().map(|engine| endpoint(engine.name(), engine.addr(), 1.0)).collect();
    let mut snapshot = snapshot(vec![wire::Pool { policy, ..pool("m", endpoints) }]);
    snapshot.filter.client_headers = vec!["explain".into()];
    Envoy::start(EnvoyOptions { concurrency, ..EnvoyOptions::fixed(snapshot) }).await.unwrap()
}

fn named(name: &str) -> wire::Policy {
    wire::Policy { name: name.into(), ..wire::Policy::default() }
}

fn shadow(name: &str) -> Option<wire::Shadow> {
    let wire::Policy { choices, score, .. } = wire::Policy::default();
    Some(wire::Shadow { name: name.into(), choices, score })
}

fn explained() -> Call {
    Call::chat("m", "hello", 4).explain()
}

fn decision(outcome: &load::Outcome) -> Value {
    serde_json::from_str(outcome.header("x-weighbridge-decision")).unwrap()
}

/// What one counter of the pool has come to, once all requests are counted.
async fn counted(envoy: &Envoy, family: &str, requests: u64) -> BTreeMap<String, u64> {
    let prefix = format!("wasmcustom.{family}.pool.m.result.");
    eventually(&format!("{family} has counted {requests}"), DEADLINE, async || {
        let stats = envoy.stats().await?;
        let counts: BTreeMap<String, u64> =
            stats.with_prefix(&prefix).map(|(name, value)| (name[prefix.len()..].to_owned(), value)).collect();
        ensure!(counts.values().sum::<u64>() == requests, "{counts:?}");
        Ok(counts)
    })
    .await
    .unwrap()
}

// Row 7 of the mission: four idle endpoints, four requests at once, four worker threads, policy score: one each.
#[tokio::test(flavor = "multi_thread")]
async fn score_gives_four_idle_endpoints_one_each() {
    // Slow enough that the four overlap on a machine that is busy with other tests.
    let profile = Profile::new("slow", &[(1, 100.0), (16, 1_600.0)]);
    let mut engines = Vec::new();
    for name in ["a", "b", "c", "d"] {
        engines.push(engine(name, profile.clone()).await);
    }
    let envoy = envoy(&engines.iter().collect::<Vec<_>>(), named("score"), 4).await;
    let rounds = 250;
    for round in 0..rounds {
        let report = load::burst_at_once(envoy.gateway(), 4, Call::chat("m", "hello", 16)).await;
        assert_eq!(report.ok(), 4, "round {round}: {report:?}");
        assert_eq!(report.by_engine().len(), 4, "round {round}: {:?}", report.by_engine());
    }
    println!("{rounds} rounds of four requests on four worker threads: one each, every round");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terms_of_a_decision_add_up_to_its_score() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let envoy = envoy(&[&a, &b], named("score"), 2).await;
    for _ in 0..20 {
        let report = load::closed_loop(envoy.gateway(), 4, 8, |_| explained()).await;
        assert_eq!(report.ok(), 8, "{report:?}");
        for outcome in &report.outcomes {
            let decision = decision(outcome);
            assert_eq!(decision["policy"], "score");
            let candidates = decision["candidates"].as_array().unwrap();
            let scored: Vec<(f64, &str)> = candidates
                .iter()
                .map(|candidate| {
                    let terms = candidate["terms"].as_object().unwrap();
                    let sum: f64 = terms.values().map(|term| term.as_f64().unwrap()).sum();
                    let score = candidate["score"].as_f64().unwrap();
                    assert!((sum - score).abs() < 1e-9, "{candidate}");
                    (score, candidate["id"].as_str().unwrap())
                })
                .collect();
            let lowest = scored.iter().map(|(score, _)| *score).fold(f64::INFINITY, f64::min);
            let picked = scored.iter().find(|(_, id)| decision["picked"] == *id).unwrap();
            assert!(picked.0 == lowest || decision["reason"] == "holder", "{decision}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_is_counted_and_routes_nothing() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    // By turns, with a shadow that would not take turns.
    let policy = wire::Policy { shadow: shadow("least_request"), ..named("round_robin") };
    let envoy = envoy(&[&a, &b], policy, 1).await;
    let report = load::closed_loop(envoy.gateway(), 1, 200, |_| explained()).await;
    assert_eq!(report.by_engine(), BTreeMap::from([("a".to_owned(), 100), ("b".to_owned(), 100)]));
    let agreed = report.outcomes.iter().map(decision).filter(|decision| {
        assert_eq!(
            (&decision["policy"], &decision["shadow"]["policy"]),
            (&"round_robin".into(), &"least_request".into())
        );
        assert_eq!(decision["reason"], "turn");
        decision["picked"] == decision["shadow"]["picked"]
    });
    let agreed = agreed.count() as u64;
    let counts = counted(&envoy, "weighbridge_shadow_decisions", 200).await;
    println!("shadow least_request under round_robin, one request at a time: {counts:?}");
    assert_eq!(counts.get("agree").copied().unwrap_or_default(), agreed);
    // Both are idle, so chance decides in the shadow.
    assert!((60..=140).contains(&agreed), "{agreed}");
    // What the shadow would have done is in flight nowhere.
    assert_eq!(a.state().requests_total + b.state().requests_total, 200);
    envoy.idle(DEADLINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_takes_its_share_by_the_hash_of_the_request_id() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let wire::Policy { choices, score, .. } = wire::Policy::default();
    let canary = Some(wire::Canary { name: "score".into(), choices, score, percent: 25.0 });
    let envoy = envoy(&[&a, &b], wire::Policy { canary, ..named("p2c") }, 2).await;
    let report = load::closed_loop(envoy.gateway(), 2, 400, |_| explained()).await;
    assert_eq!(report.ok(), 400, "{:?}", report.by_status());
    // The access log has the id by which it was decided.
    let taken = eventually("every request is logged", DEADLINE, async || {
        let log = envoy.access_log();
        ensure!(log.len() == 400, "{} lines", log.len());
        Ok(log
            .iter()
            .filter(|line| {
                let decision = match &line["decision"] {
                    Value::String(text) => serde_json::from_str(text).unwrap(),
                    decision => decision.clone(),
                };
                assert_eq!(decision["policy"], "p2c");
                let canary = decision["shadow"]["routed"] == true;
                assert_eq!(canary, decision["shadow"]["policy"] == "score", "{decision}");
                let hash = Canary::hash(line["request_id"].as_str().unwrap().as_bytes());
                assert_eq!(canary, hash % 10_000 < 2_500, "{line}");
                canary
            })
            .count() as u64)
    });
    let taken = taken.await.unwrap();
    let counts = counted(&envoy, "weighbridge_canary_requests", 400).await;
    println!("canary of 25 %: {counts:?}");
    assert!((57..=143).contains(&taken), "{taken}");
    assert_eq!(counts["canary"], taken);
}
