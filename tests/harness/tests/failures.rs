//! Endpoints that fail: retries to our second choice, ejection, hangs, back-pressure, all gone and back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle, Fault};
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually};

async fn fleet(of: &[(&str, f64)]) -> (Vec<EngineHandle>, Envoy) {
    let mut engines = Vec::new();
    let mut endpoints = Vec::new();
    for (name, weight) in of {
        let config = EngineConfig {
            name: (*name).into(),
            model: "m".into(),
            profile: Profile::new("brisk", &[(1, 1_000.0), (32, 32_000.0)]),
            cold: false,
            ..EngineConfig::default()
        };
        let engine = EngineHandle::start(config).await.unwrap();
        endpoints.push(endpoint(name, engine.addr(), *weight));
        engines.push(engine);
    }
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool("m", endpoints)]))).await.unwrap();
    (engines, envoy)
}

fn chat(_: usize) -> Call {
    Call::chat("m", "hello", 4)
}

// A retry goes to our second choice, not to Envoy's, and the count follows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_goes_to_the_second_choice() {
    for fault in [Fault::reset_before_headers(), Fault::none()] {
        let (engines, envoy) = fleet(&[("first", 4.0), ("third", 1.0), ("second", 2.0)]).await;
        if fault == Fault::none() {
            engines[0].kill().await;
        } else {
            engines[0].set_fault(fault);
        }
        // One by one, so that the order of the choices is the order of the weights.
        let report = load::closed_loop(envoy.gateway(), 1, 4, chat).await;
        assert_eq!(report.by_engine(), BTreeMap::from([("second".to_owned(), 4)]), "{report:?}");
        assert_eq!(report.by_endpoint(), report.by_engine());
        envoy.idle(Duration::from_secs(10)).await.unwrap();
    }
}

// Case C10: an endpoint that fails every request in no time is ejected after a few, and back with one trial request.
#[tokio::test(flavor = "multi_thread")]
async fn c10_an_endpoint_that_fails_everything_is_ejected_and_comes_back() {
    let (engines, envoy) = fleet(&[("bad", 4.0), ("good", 1.0)]).await;
    engines[0].set_fault(Fault::status(500));
    let report = load::closed_loop(envoy.gateway(), 4, 200, chat).await;
    let failed = report.by_status().get("500").copied().unwrap_or_default();
    println!("{failed} of 200 requests met the failing endpoint");
    // Five in a row, and what four connections had under way.
    assert!((5..=9).contains(&failed), "{:?}", report.by_status());
    let met = engines[0].state().requests_total;
    engines[0].set_fault(Fault::none());
    eventually("the endpoint serves again", Duration::from_secs(30), async || {
        let outcome = load::send(envoy.gateway(), chat(0)).await;
        ensure!(outcome.engine() == "bad", "{outcome:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(engines[0].state().requests_total > met);
    let ejections = eventually("the ejection is counted", Duration::from_secs(10), async || {
        let count = envoy.stats().await?.get("wasmcustom.weighbridge_ejections.pool.m.endpoint.bad");
        ensure!(count > 0);
        Ok(count)
    });
    assert_eq!(ejections.await.unwrap(), 1);
}

// Case C21: 429 is back-pressure, not failure.
#[tokio::test(flavor = "multi_thread")]
async fn c21_back_pressure_ejects_nobody() {
    let (engines, envoy) = fleet(&[("busy", 4.0), ("free", 1.0)]).await;
    engines[0].set_fault(Fault { count: Some(50), ..Fault::status(429) });
    load::closed_loop(envoy.gateway(), 1, 60, chat).await;
    assert_eq!(engines[0].state().requests_total, 60);
}

// Case C15: an endpoint that accepts and never answers holds up nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn c15_an_endpoint_that_hangs_holds_up_nobody_else() {
    let (engines, envoy) = fleet(&[("hangs", 1.0), ("fine", 1.0)]).await;
    engines[0].set_fault(Fault::hang());
    let report = load::closed_loop(envoy.gateway(), 8, 200, |_| chat(0).timeout(Duration::from_secs(3))).await;
    let by_engine = report.by_engine();
    let stuck = report.outcomes.iter().filter(|outcome| outcome.error.is_some()).count();
    println!("{stuck} of 200 requests were stuck; the others: {by_engine:?}");
    assert_eq!(by_engine.get("fine").copied().unwrap_or_default() + stuck, 200, "{:?}", report.by_status());
    assert!(stuck <= 40, "{stuck}");
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}

// Case C16: all endpoints die under load and return: a clear 503 meanwhile, served within seconds of the return.
#[tokio::test(flavor = "multi_thread")]
async fn c16_all_gone_and_back() {
    let (engines, envoy) = fleet(&[("a", 1.0), ("b", 1.0)]).await;
    assert_eq!(load::closed_loop(envoy.gateway(), 8, 100, chat).await.ok(), 100);
    for engine in &engines {
        engine.kill().await;
    }
    let down = load::closed_loop(envoy.gateway(), 8, 200, chat).await;
    assert_eq!(down.by_status(), BTreeMap::from([("503".to_owned(), 200)]));
    assert!(
        down.outcomes.iter().all(|outcome| outcome.json()["error"]["message"].is_string()),
        "{:?}",
        down.outcomes[0]
    );
    for engine in &engines {
        engine.revive().await.unwrap();
    }
    let back = Instant::now();
    eventually("served again", Duration::from_secs(10), async || {
        ensure!(load::send(envoy.gateway(), chat(0)).await.is_ok());
        Ok(())
    })
    .await
    .unwrap();
    println!("served {:?} after the return", back.elapsed());
    eventually("both serve", Duration::from_secs(30), async || {
        let split = load::closed_loop(envoy.gateway(), 4, 40, chat).await.by_engine();
        ensure!(split.len() == 2, "{split:?}");
        Ok(())
    })
    .await
    .unwrap();
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}
