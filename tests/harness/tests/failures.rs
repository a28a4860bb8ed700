//! Endpoints that fail: retries to our second choice, ejection, hangs, back-pressure, all gone and back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle, Fault};
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, artifacts, eventually, wire};
use tokio::task::JoinHandle;

async fn fleet(of: &[(&str, f64)]) -> (Vec<EngineHandle>, Envoy) {
    fleet_with(of, wire::PassiveHealth::default()).await
}

async fn fleet_with(of: &[(&str, f64)], passive_health: wire::PassiveHealth) -> (Vec<EngineHandle>, Envoy) {
    fleet_of(of, wire::Pool { passive_health, ..wire::Pool::default() }, None).await
}

async fn fleet_of(of: &[(&str, f64)], settings: wire::Pool, wasm: Option<PathBuf>) -> (Vec<EngineHandle>, Envoy) {
    let (engines, endpoints) = engines(of).await;
    (engines, envoy_before(endpoints, settings, wasm).await)
}

async fn engines(of: &[(&str, f64)]) -> (Vec<EngineHandle>, Vec<wire::Endpoint>) {
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
    (engines, endpoints)
}

async fn envoy_before(endpoints: Vec<wire::Endpoint>, settings: wire::Pool, wasm: Option<PathBuf>) -> Envoy {
    let wire::Pool { passive_health, admission, .. } = settings;
    let mut snapshot = snapshot(vec![wire::Pool { passive_health, admission, ..pool("m", endpoints) }]);
    snapshot.filter.client_headers = vec!["explain".into()];
    Envoy::start(EnvoyOptions { wasm, ..EnvoyOptions::fixed(snapshot) }).await.unwrap()
}

/// The same, the first of them renamed: before all others stands its old id, which drains at the same address.
async fn renamed_fleet(of: &[(&str, f64)]) -> (Vec<EngineHandle>, Envoy) {
    let (engines, mut endpoints) = engines(of).await;
    let old = endpoint("old", engines[0].addr(), of[0].1);
    endpoints.insert(0, wire::Endpoint { state: wire::State::Draining, ..old });
    (engines, envoy_before(endpoints, wire::Pool::default(), None).await)
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
    let ejected = async |is: u64| {
        eventually("the gauge tells", Duration::from_secs(10), async || {
            let found = envoy.stats().await?.get("wasmcustom.weighbridge_ejected.pool.m.endpoint.bad");
            ensure!(found == is, "{found}");
            Ok(())
        })
        .await
        .unwrap();
    };
    ejected(1).await;
    engines[0].set_fault(Fault::none());
    eventually("the endpoint serves again", Duration::from_secs(30), async || {
        let outcome = load::send(envoy.gateway(), chat(0)).await;
        ensure!(outcome.engine() == "bad", "{outcome:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(engines[0].state().requests_total > met);
    ejected(0).await;
    let ejections = eventually("the ejection is counted", Duration::from_secs(10), async || {
        let count = envoy.stats().await?.get("wasmcustom.weighbridge_ejections.pool.m.endpoint.bad");
        ensure!(count > 0);
        Ok(count)
    });
    assert_eq!(ejections.await.unwrap(), 1);
}

// Case C21: 429 is back-pressure, not failure: the next endpoint answers, nobody is ejected, and the busy one is left alone for as
// long as it says.
#[tokio::test(flavor = "multi_thread")]
async fn c21_back_pressure_goes_to_the_next_and_ejects_nobody() {
    for fault in [Fault::status(429), Fault { retry_after: Some(1), ..Fault::status(503) }] {
        let (engines, envoy) = fleet(&[("busy", 4.0), ("free", 1.0)]).await;
        engines[0].set_fault(fault);
        let report = load::closed_loop(envoy.gateway(), 1, 100, chat).await;
        assert_eq!(report.by_engine(), BTreeMap::from([("free".to_owned(), 100)]), "{report:?}");
        let asked = engines[0].state().requests_total;
        println!("the busy engine was asked {asked} times while 100 requests were answered");
        assert!((1..=10).contains(&asked), "{asked}");
        engines[0].set_fault(Fault::none());
        eventually("it serves again", Duration::from_secs(10), async || {
            ensure!(load::send(envoy.gateway(), chat(0)).await.engine() == "busy");
            Ok(())
        })
        .await
        .unwrap();
        envoy.idle(Duration::from_secs(10)).await.unwrap();
        assert_eq!(envoy.stats().await.unwrap().sum("wasmcustom.weighbridge_ejections."), 0);
    }
}

// The log of attempts comes back with the VM.
#[tokio::test(flavor = "multi_thread")]
async fn c21_holds_after_a_vm_was_lost() {
    let wasm = Some(artifacts::fault_wasm().unwrap());
    let (engines, envoy) = fleet_of(&[("busy", 4.0), ("free", 1.0)], wire::Pool::default(), wasm).await;
    // Over every worker thread.
    load::closed_loop(envoy.gateway(), 8, 16, |_| chat(0).header("x-weighbridge-test-panic", "1")).await;
    eventually("served again", Duration::from_secs(10), async || {
        let report = load::closed_loop(envoy.gateway(), 8, 32, chat).await;
        ensure!(report.ok() == 32, "{:?}", report.by_status());
        Ok(())
    })
    .await
    .unwrap();
    engines[0].set_fault(Fault { retry_after: Some(1), ..Fault::status(503) });
    let report = load::closed_loop(envoy.gateway(), 8, 200, chat).await;
    assert_eq!(report.by_engine(), BTreeMap::from([("free".to_owned(), 200)]), "{report:?}");
    envoy.idle(Duration::from_secs(10)).await.unwrap();
    assert!(envoy.stats().await.unwrap().get("wasm.weighbridge.vm_reload_success") > 0, "no VM was lost");
    assert_eq!(envoy.stats().await.unwrap().sum("wasmcustom.weighbridge_ejections."), 0);
}

// Where everybody pushes back, the client hears it from an engine.
#[tokio::test(flavor = "multi_thread")]
async fn where_all_push_back_the_client_hears_429() {
    let (engines, envoy) = fleet(&[("a", 1.0), ("b", 1.0)]).await;
    engines.iter().for_each(|engine| engine.set_fault(Fault { retry_after: Some(7), ..Fault::status(429) }));
    let outcome = load::send(envoy.gateway(), chat(0)).await;
    assert_eq!((outcome.status, outcome.header("retry-after")), (Some(429), "7"), "{outcome:?}");
    assert!(engines.iter().all(|engine| engine.state().requests_total > 0));
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}

// 502 and 503 go to the next endpoint, and are failures all the same; a 500 is an answer.
#[tokio::test(flavor = "multi_thread")]
async fn failures_of_the_first_attempt_count_though_the_client_sees_none() {
    for (status, seen) in [(503, 0), (502, 0), (500, 5)] {
        let (engines, envoy) = fleet(&[("bad", 4.0), ("good", 1.0)]).await;
        engines[0].set_fault(Fault::status(status));
        let report = load::closed_loop(envoy.gateway(), 1, 40, chat).await;
        assert_eq!(report.by_status().get(&status.to_string()).copied().unwrap_or_default(), seen, "{report:?}");
        assert_eq!(engines[0].state().requests_total, 5, "ejected after five");
        eventually("the ejection is counted", Duration::from_secs(10), async || {
            let stats = envoy.stats().await?;
            ensure!(stats.get("wasmcustom.weighbridge_ejections.pool.m.endpoint.bad") == 1);
            Ok(())
        })
        .await
        .unwrap();
        envoy.idle(Duration::from_secs(10)).await.unwrap();
    }
}

// An endpoint that was renamed is ejected for what it does, though its old id, which is about to go, has the same address.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_at_a_shared_address_is_put_down_to_whom_it_was_sent() {
    for (status, seen) in [(503, 0), (500, 5)] {
        let (engines, envoy) = renamed_fleet(&[("bad", 4.0), ("good", 1.0)]).await;
        engines[0].set_fault(Fault::status(status));
        let report = load::closed_loop(envoy.gateway(), 1, 40, chat).await;
        assert_eq!(report.by_status().get(&status.to_string()).copied().unwrap_or_default(), seen, "{report:?}");
        assert_eq!(engines[0].state().requests_total, 5, "ejected after five");
        envoy.idle(Duration::from_secs(10)).await.unwrap();
    }
}

// While the second attempt runs, the request counts where it runs.
#[tokio::test(flavor = "multi_thread")]
async fn the_count_goes_along_with_the_attempt() {
    let of = [("first", 4.0), ("second", 1.0)];
    for (engines, envoy) in [fleet(&of).await, renamed_fleet(&of).await] {
        engines[0].set_fault(Fault::reset_before_headers());
        engines[1].set_fault(Fault::hang());
        let waiting = hang(&envoy, 1);
        has_counts(&envoy, (0, 1)).await;
        waiting.iter().for_each(JoinHandle::abort);
        envoy.idle(Duration::from_secs(10)).await.unwrap();
    }
}

/// So many requests that hang where they are, each by itself.
fn hang(envoy: &Envoy, count: usize) -> Vec<JoinHandle<load::Outcome>> {
    let gateway = envoy.gateway();
    (0..count).map(|nth| tokio::spawn(load::send(gateway, chat(nth).timeout(Duration::from_secs(60))))).collect()
}

async fn has_counts(envoy: &Envoy, wanted: (u64, u64)) {
    eventually(&format!("the counts are {wanted:?}"), Duration::from_secs(10), async || {
        let stats = envoy.stats().await?;
        let counts = (stats.in_flight("m", "first"), stats.in_flight("m", "second"));
        ensure!(counts == wanted, "{counts:?}");
        Ok(())
    })
    .await
    .unwrap();
}

// Of several at one endpoint, the one whose attempt failed goes, and no other: else its end would be counted elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn of_several_requests_the_one_that_failed_moves() {
    let (engines, envoy) = fleet(&[("first", 4.0), ("second", 1.0)]).await;
    engines.iter().for_each(|engine| engine.set_fault(Fault::hang()));
    let held = hang(&envoy, 8);
    has_counts(&envoy, (6, 2)).await;
    engines[0].set_fault(Fault::reset_before_headers());
    let moved = hang(&envoy, 1);
    has_counts(&envoy, (6, 3)).await;
    moved.iter().for_each(JoinHandle::abort);
    has_counts(&envoy, (6, 2)).await;
    held.iter().for_each(JoinHandle::abort);
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}

// The same of one that had waited, whose headers cannot be read any more when it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_had_waited_moves_when_its_attempt_fails() {
    let admission = wire::Admission { base_cap: 1, ..wire::Admission::default() };
    let settings = wire::Pool { admission, ..wire::Pool::default() };
    let (engines, envoy) = fleet_of(&[("first", 4.0), ("second", 1.0)], settings, None).await;
    engines.iter().for_each(|engine| engine.set_fault(Fault::hang()));
    let at_first = hang(&envoy, 1);
    has_counts(&envoy, (1, 0)).await;
    let held = hang(&envoy, 4);
    has_counts(&envoy, (4, 1)).await;
    engines[0].set_fault(Fault::reset_before_headers());
    let waits = hang(&envoy, 1);
    eventually("one waits", Duration::from_secs(10), async || {
        let depth = envoy.stats().await?.get("wasmcustom.weighbridge_queue_depth.pool.m");
        ensure!(depth == 1, "{depth}");
        Ok(())
    })
    .await
    .unwrap();
    at_first.iter().for_each(JoinHandle::abort);
    // It is given the slot at the first, fails there, and goes to the second, full as that is.
    has_counts(&envoy, (3, 2)).await;
    waits.iter().for_each(JoinHandle::abort);
    has_counts(&envoy, (3, 1)).await;
    held.iter().for_each(JoinHandle::abort);
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}

// What fails everywhere takes out no more than half of the pool.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_are_ejected_than_may_be() {
    let (engines, envoy) = fleet(&[("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)]).await;
    engines.iter().for_each(|engine| engine.set_fault(Fault::status(500)));
    load::closed_loop(envoy.gateway(), 4, 200, chat).await;
    let outcome = load::send(envoy.gateway(), chat(0).explain()).await;
    let decision = outcome.decision();
    let candidates = decision["candidates"].as_array().unwrap();
    let out = candidates.iter().filter(|candidate| candidate["excluded"] == "ejected").count();
    assert_eq!(out, 2, "{decision:#}");
}

// An error object in a stream of status 200 is a failure, unless the request is to blame.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_inside_a_200_stream_is_a_failure() {
    let (engines, envoy) = fleet(&[("bad", 4.0), ("good", 1.0)]).await;
    engines[0].set_fault(Fault::stream_error(2));
    let report = load::closed_loop(envoy.gateway(), 1, 40, |_| Call::chat_stream("m", "hello", 4)).await;
    assert_eq!(report.by_engine().get("bad"), Some(&5), "{:?}", report.by_engine());
}

// When all are ejected, requests still go out, marked so, and the first success ends it.
#[tokio::test(flavor = "multi_thread")]
async fn when_all_are_ejected_the_least_bad_serves() {
    let all = wire::PassiveHealth { max_ejected_percent: 100, ..wire::PassiveHealth::default() };
    let (engines, envoy) = fleet_with(&[("a", 1.0), ("b", 1.0)], all).await;
    engines.iter().for_each(|engine| engine.set_fault(Fault::status(500)));
    load::closed_loop(envoy.gateway(), 2, 60, chat).await;
    let outcome = load::send(envoy.gateway(), chat(0).explain()).await;
    assert_eq!((outcome.status, &outcome.decision()["reason"]), (Some(500), &"panic".into()), "{outcome:?}");
    engines.iter().for_each(|engine| engine.set_fault(Fault::none()));
    assert_eq!(load::send(envoy.gateway(), chat(0)).await.status, Some(200));
    let reason = load::send(envoy.gateway(), chat(0).explain()).await.decision()["reason"].clone();
    assert_ne!(reason, "panic");
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

// Clients that give up streams without a byte tell of an engine that hangs, if nobody got anything there.
#[tokio::test(flavor = "multi_thread")]
async fn c15_an_endpoint_that_is_silent_is_ejected() {
    let quick = wire::PassiveHealth { silent_after_ms: 300, ..wire::PassiveHealth::default() };
    // Also one that begins its answer, and then sends nothing.
    for fault in [Fault::hang(), Fault { after_tokens: Some(0), ..Fault::hang() }] {
        let (engines, envoy) = fleet_with(&[("hangs", 4.0), ("fine", 1.0)], quick).await;
        engines[0].set_fault(fault);
        let stream = |_| Call::chat_stream("m", "hello", 4).timeout(Duration::from_millis(600));
        let report = load::closed_loop(envoy.gateway(), 1, 20, stream).await;
        let stuck = report.outcomes.iter().filter(|outcome| outcome.error.is_some()).count();
        assert!((5..=6).contains(&stuck) && report.ok() == 20 - stuck, "{report:?}");
    }
    // Clients that leave sooner blame nobody.
    let (engines, envoy) = fleet_with(&[("hangs", 4.0), ("fine", 1.0)], wire::PassiveHealth::default()).await;
    engines[0].set_fault(Fault::hang());
    let hasty = |_| Call::chat_stream("m", "hello", 4).timeout(Duration::from_millis(100));
    // The other answers now and then, where Envoy has not heard yet that the last client left.
    assert!(load::closed_loop(envoy.gateway(), 1, 20, hasty).await.ok() < 10);
    envoy.idle(Duration::from_secs(10)).await.unwrap();
    assert_eq!(envoy.stats().await.unwrap().sum("wasmcustom.weighbridge_ejections."), 0);
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
