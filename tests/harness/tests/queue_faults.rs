//! While 200 requests wait, everything else happens: clients leave, a VM dies, an endpoint dies, snapshots arrive. No slot is
//! lost, and no request but those that were cut.

use std::time::{Duration, Instant};

use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::EngineHandle;
use harness::load::{self, Call, Held, Outcome};
use harness::{Envoy, EnvoyOptions, ProberProcess, artifacts, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::common::fleet::instant;
use crate::common::queue::{depth, fill, gateway, named, options, order_of_arrival, until_waiting};
use crate::common::{DEADLINE, Site, applied, chat, engine, in_state};

const WAITING: usize = 200;

/// Sends so many requests together, and waits until all of them wait.
async fn wait_in_line(envoy: &Envoy, count: usize, make: impl Fn(usize) -> Call) -> Vec<JoinHandle<Outcome>> {
    let before = depth(envoy).await.unwrap();
    let target = envoy.gateway();
    let waiting: Vec<_> = (0..count).map(|nth| tokio::spawn(load::send(target, make(nth)))).collect();
    until_waiting(envoy, before + count as u64).await;
    waiting
}

/// How many of these were served, and what became of the others.
async fn served(waiting: Vec<JoinHandle<Outcome>>) -> (usize, Vec<Outcome>) {
    let (mut served, mut others) = (0, Vec::new());
    for request in waiting {
        let outcome = request.await.unwrap();
        if outcome.is_ok() { served += 1 } else { others.push(outcome) }
    }
    (served, others)
}

/// Nothing in flight, nobody waits, and every slot can be taken again.
async fn nothing_is_lost(envoy: &Envoy, engines: &[EngineHandle], slots: usize) {
    envoy.idle(DEADLINE).await.unwrap();
    until_waiting(envoy, 0).await;
    let held = fill(envoy, engines, slots).await;
    assert_eq!(held.len(), slots);
    drop(held);
    envoy.idle(DEADLINE).await.unwrap();
}

// Case C23: waiting clients leave: their turns go to those behind them, and nobody is given a slot who is not there.
#[tokio::test(flavor = "multi_thread")]
async fn c23_clients_that_leave_while_they_wait_take_no_slot() {
    let (engines, mut pool) = instant(&[("a", 1.0), ("b", 1.0)]).await;
    for endpoint in &mut pool.endpoints {
        endpoint.cap = Some(4);
    }
    let envoy = gateway(3, vec![pool]).await;
    let held = fill(&envoy, &engines, 8).await;
    let waiting = wait_in_line(&envoy, WAITING, |nth| named(nth, 2)).await;
    // Every other one leaves, with its connection.
    let mut stayed = Vec::new();
    for (nth, request) in waiting.into_iter().enumerate() {
        if nth % 2 == 0 { request.abort() } else { stayed.push(request) }
    }
    until_waiting(&envoy, WAITING as u64 / 2).await;
    drop(held);
    let (ok, others) = served(stayed).await;
    assert_eq!(ok, WAITING / 2, "{others:?}");
    assert_eq!(order_of_arrival(&engines).len(), WAITING / 2, "a ghost has reached an engine");
    // Those who left are counted, and the log says how long they had waited.
    eventually("ghosts are counted", DEADLINE, async || {
        let left = envoy.stats().await?.get("wasmcustom.weighbridge_requests.pool.m.endpoint.none.reason.client_left");
        ensure!(left == WAITING as u64 / 2, "{left}");
        let logged = envoy.access_log();
        let decisions = logged.iter().filter_map(|line| serde_json::from_str::<Value>(line["decision"].as_str()?).ok());
        let ghosts = decisions.filter(|decision| decision["reason"] == "client_left");
        let waits: Vec<_> = ghosts.map(|decision| decision["queue"]["wait_ms"].as_u64()).collect();
        ensure!(waits.len() == WAITING / 2 && waits.iter().all(Option::is_some), "{waits:?}");
        Ok(())
    })
    .await
    .unwrap();
    nothing_is_lost(&envoy, &engines, 8).await;
}

// Clients leave at the very moment when slots come free: what was granted to a ghost goes on to the next.
#[tokio::test(flavor = "multi_thread")]
async fn c23_clients_that_leave_with_a_slot_on_its_way_hand_it_on() {
    let (engines, mut pool) = instant(&[("only", 1.0)]).await;
    pool.endpoints[0].cap = Some(4);
    let envoy = gateway(3, vec![pool]).await;
    for round in 0..20 {
        let held = fill(&envoy, &engines, 4).await;
        let waiting = wait_in_line(&envoy, 40, |nth| named(format!("{round}-{nth}"), 2)).await;
        drop(held);
        let mut stayed = Vec::new();
        for (nth, request) in waiting.into_iter().enumerate() {
            if nth % 2 == 0 { request.abort() } else { stayed.push(request) }
        }
        let (ok, others) = served(stayed).await;
        assert_eq!(ok, 20, "{others:?}");
        envoy.idle(DEADLINE).await.unwrap();
    }
    nothing_is_lost(&envoy, &engines, 4).await;
}

// A VM dies with what it holds and with those that wait in it: the others get their slots, and its own are handed over.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_dies_hands_over_what_it_held() {
    let (engines, mut pool) = instant(&[("only", 1.0)]).await;
    pool.endpoints[0].cap = Some(8);
    pool.admission.max_wait_ms = 120_000;
    let options = EnvoyOptions { wasm: Some(artifacts::fault_wasm().unwrap()), ..options(2, vec![pool]) };
    let envoy = Envoy::start(options).await.unwrap();
    let held = fill(&envoy, &engines, 8).await;
    // Long enough for the dead VM to be noticed, short enough for those that it took with it.
    let patient = Duration::from_secs(20);
    let waiting = wait_in_line(&envoy, WAITING, |nth| named(nth, 2).timeout(patient)).await;
    let dead = Instant::now();
    let outcome = load::send(envoy.gateway(), chat().header("x-weighbridge-test-panic", "1")).await;
    assert!(!outcome.is_ok(), "the VM was to die: {outcome:?}");
    eventually("the dead VM's waiters are gone", DEADLINE, async || {
        let depth = depth(&envoy).await?;
        ensure!(depth < WAITING as u64, "{depth} wait");
        Ok(())
    })
    .await
    .unwrap();
    println!("the dead VM's waiters were gone after {:?}", dead.elapsed());
    let left = depth(&envoy).await.unwrap() as usize;
    drop(held);
    let (ok, others) = served(waiting).await;
    println!(
        "{ok} of {WAITING} were served, {} went with their VM; {left} were left when it was noticed",
        others.len()
    );
    // Its requests are cut. What was held there came free, so that some of the others may have been served before.
    assert!(ok >= left && ok + others.len() == WAITING, "{ok} {left}");
    assert_eq!(order_of_arrival(&engines).len(), ok);
    nothing_is_lost(&envoy, &engines, 8).await;
}

/// Two endpoints of cap 8 behind a prober, all slots taken.
async fn site(names: [&str; 2]) -> (Site, ProberProcess, Envoy, Vec<EngineHandle>, Vec<Held>) {
    let mut profile = Profile::new("even", &[(1, 1_000.0), (256, 256_000.0)]);
    profile.batch_limit = 256;
    let mut engines = Vec::new();
    for name in names {
        engines.push(engine(name, profile.clone()).await);
    }
    let mut site = Site::new(&engines.iter().collect::<Vec<_>>());
    site.config["pools"][0]["admission"] = json!({"base_cap": 8});
    let (prober, envoy) = site.start(3).await;
    for engine in &engines {
        prober.put(&format!("/v1/endpoints/{}/pin", engine.name()), &json!({"weight": 1.0})).await.unwrap();
    }
    applied(&prober).await;
    let held = fill(&envoy, &engines, 16).await;
    (site, prober, envoy, engines, held)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_dies_takes_nobody_who_waits_with_it() {
    let (_site, prober, envoy, engines, held) = site(["a", "b"]).await;
    let waiting = wait_in_line(&envoy, WAITING, |nth| named(nth, 2)).await;
    engines[0].kill().await;
    in_state(&prober, "a", "unhealthy").await;
    drop(held);
    let (ok, others) = served(waiting).await;
    // Whoever has already got a slot there when it dies goes on to the other one, full as that is.
    assert_eq!((ok, others.len()), (WAITING, 0), "{others:?}");
    envoy.idle(DEADLINE).await.unwrap();
    engines[0].revive().await.unwrap();
    in_state(&prober, "a", "ready").await;
    applied(&prober).await;
    nothing_is_lost(&envoy, &engines, 16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_endpoint_left_is_told_to_those_who_wait() {
    let (_site, prober, envoy, engines, _held) = site(["a", "b"]).await;
    let waiting = wait_in_line(&envoy, 20, |nth| named(nth, 2)).await;
    for engine in &engines {
        prober.put(&format!("/v1/endpoints/{}/drain", engine.name()), &json!({"reason": "test"})).await.unwrap();
    }
    for request in waiting {
        let outcome = request.await.unwrap();
        assert_eq!(
            (outcome.status, &outcome.json()["error"]["code"]),
            (Some(503), &"no_endpoint".into()),
            "{outcome:?}"
        );
    }
    until_waiting(&envoy, 0).await;
}

// A higher cap, and a new endpoint, take waiters at once: no slot has to come free for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_higher_cap_or_a_new_endpoint_takes_waiters_at_once() {
    let (_site, prober, envoy, engines, held) = site(["a", "b"]).await;
    let waiting = wait_in_line(&envoy, WAITING, |nth| named(nth, 2)).await;
    let raised = Instant::now();
    prober.put("/v1/endpoints/a/pin", &json!({"weight": 40.0})).await.unwrap();
    let (ok, others) = served(waiting).await;
    println!("a higher cap took {ok} waiters in {:?}", raised.elapsed());
    assert_eq!(ok, WAITING, "{others:?}");
    prober.put("/v1/endpoints/a/pin", &json!({"weight": 1.0})).await.unwrap();
    applied(&prober).await;
    // The gauge comes with a tick; the next look is to count from nothing.
    until_waiting(&envoy, 0).await;
    let waiting = wait_in_line(&envoy, WAITING, |nth| named(nth, 2)).await;
    let c = engine("c", Profile::instant()).await;
    prober.post("/v1/endpoints", &json!({"pool": "m", "id": "c", "address": c.addr()})).await.unwrap();
    let (ok, others) = served(waiting).await;
    assert_eq!(ok, WAITING, "{others:?}");
    assert_eq!(
        c.records().iter().filter(|record| record.headers.iter().any(|(name, _)| name == "x-test-name")).count(),
        WAITING
    );
    drop(held);
    nothing_is_lost(&envoy, &engines, 16).await;
}

// The trap: a shared queue belongs to the root context that registered it, and each configuration has a new one.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_woken_after_configuration_pushes() {
    let (_site, prober, envoy, engines, held) = site(["a", "b"]).await;
    let waiting = wait_in_line(&envoy, WAITING, |nth| named(nth, 2)).await;
    for nth in 0..10 {
        prober.put("/v1/endpoints/a/pin", &json!({"weight": 1.0 - f64::from(nth % 2) / 100.0})).await.unwrap();
        applied(&prober).await;
    }
    drop(held);
    let (ok, others) = served(waiting).await;
    assert_eq!(ok, WAITING, "{others:?}");
    envoy.idle(DEADLINE).await.unwrap();
    let stats = envoy.stats().await.unwrap();
    // A tick finds what a deaf queue has not told; then waiters are served, but late.
    assert_eq!(stats.sum("wasmcustom.weighbridge_queue_late_wakes"), 0);
    nothing_is_lost(&envoy, &engines, 16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_goes_answers_those_who_wait() {
    let (engines, _) = instant(&[("only", 1.0)]).await;
    let mut site = Site::new(&[&engines[0]]);
    site.config["pools"][0]["admission"] = json!({"base_cap": 1});
    let prober = site.prober().await;
    let envoy = site.envoy(&prober, 2).await;
    prober.ready(DEADLINE).await.unwrap();
    prober.put("/v1/endpoints/only/pin", &json!({"weight": 1.0})).await.unwrap();
    applied(&prober).await;
    let _held = fill(&envoy, &engines, 1).await;
    let waiting = wait_in_line(&envoy, 20, |nth| named(nth, 2)).await;
    prober.terminate().await.unwrap();
    site.config["pools"] = json!([{"name": "other", "models": ["other"], "endpoints": []}]);
    let _prober = site.prober().await;
    for request in waiting {
        let outcome = request.await.unwrap();
        assert_eq!((outcome.status, &outcome.json()["error"]["code"]), (Some(503), &"pool_gone".into()), "{outcome:?}");
    }
}
