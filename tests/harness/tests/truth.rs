//! In-flight tells the truth: at zero after everything that can go wrong, never above a cap, and right again after a VM
//! has died with requests in flight.

use std::time::{Duration, Instant};

use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle, Fault};
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, artifacts, eventually};

async fn engine(name: &str, profile: Profile) -> EngineHandle {
    let config = EngineConfig { name: name.into(), model: "m".into(), profile, cold: false, ..EngineConfig::default() };
    EngineHandle::start(config).await.unwrap()
}

/// Waits until the gauges have been published after this call, so that what they say is about now.
async fn fresh_gauges(envoy: &Envoy) {
    let age = "wasmcustom.weighbridge_snapshot_age_s";
    let before = envoy.stats().await.unwrap().get(age);
    eventually("the gauges are published anew", Duration::from_secs(20), async || {
        let now = envoy.stats().await?.get(age);
        ensure!(now >= before + 2, "age {before} then {now}");
        Ok(())
    })
    .await
    .unwrap();
}

// One request's failure says nothing of where another is.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_500_moves_no_other_count() {
    let (mut engines, mut endpoints) = (Vec::new(), Vec::new());
    for (name, weight) in [("a", 8.0), ("b", 1.0)] {
        let engine = engine(name, Profile::new("brisk", &[(1, 2_000.0)])).await;
        endpoints.push(endpoint(name, engine.addr(), weight));
        engines.push(engine);
    }
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool("m", endpoints)]))).await.unwrap();
    let target = envoy.gateway();
    // The first goes to the heavier one, the second to the idle one, and two more to the heavier one.
    engines.iter().for_each(|engine| engine.set_fault(Fault::hang()));
    let waiting: Vec<_> = (0..4).map(|_| tokio::spawn(load::send(target, Call::chat("m", "hello", 4)))).collect();
    eventually("they wait", Duration::from_secs(20), async || {
        let counts = (engines[0].state().in_flight, engines[1].state().in_flight);
        ensure!(counts == (3, 1), "{counts:?}");
        Ok(())
    })
    .await
    .unwrap();
    engines[0].set_fault(Fault::status(500));
    let report = load::closed_loop(target, 1, 4, |_| Call::chat("m", "hello", 4)).await;
    assert_eq!(report.by_status().get("500"), Some(&4), "{report:?}");
    fresh_gauges(&envoy).await;
    let stats = envoy.stats().await.unwrap();
    assert_eq!((stats.in_flight("m", "a"), stats.in_flight("m", "b")), (3, 1));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    envoy.idle(Duration::from_secs(20)).await.unwrap();
}

// 20,000 requests at 64 connections over 4 worker threads; a twentieth cut by the client in mid-stream, some answered
// 5xx, some reset before and some after the response has begun.
#[tokio::test(flavor = "multi_thread")]
async fn in_flight_ends_at_zero_and_never_passes_a_cap() {
    const CAP: u32 = 18;
    let profile = Profile::new("brisk", &[(1, 2_000.0), (32, 64_000.0)]);
    let mut engines = Vec::new();
    let mut endpoints = Vec::new();
    for (nth, name) in ["errors", "resets", "breaks"].into_iter().enumerate() {
        let engine = engine(name, profile.clone()).await;
        let mut endpoint = endpoint(name, engine.addr(), [2.0, 1.0, 0.5][nth]);
        endpoint.cap = Some(CAP);
        endpoints.push(endpoint);
        engines.push(engine);
    }
    engines[0].set_fault(Fault { probability: 0.03, ..Fault::status(500) });
    engines[1].set_fault(Fault { probability: 0.03, ..Fault::reset_before_headers() });
    engines[2].set_fault(Fault { probability: 0.03, ..Fault::reset_mid_stream(3) });
    let options = EnvoyOptions { concurrency: 4, ..EnvoyOptions::fixed(snapshot(vec![pool("m", endpoints)])) };
    let envoy = Envoy::start(options).await.unwrap();
    let target = envoy.gateway();
    let running = tokio::spawn(load::closed_loop(target, 64, 20_000, |nth| {
        let call = Call::chat_stream("m", "hello", if nth % 20 == 0 { 40 } else { 6 });
        if nth % 20 == 0 { call.cut_after(2) } else { call }
    }));
    let mut highest = 0;
    while !running.is_finished() {
        let stats = envoy.stats().await.unwrap();
        for (name, in_flight) in stats.with_prefix("wasmcustom.weighbridge_in_flight.") {
            // A count that went below zero would show as a huge one.
            assert!(in_flight <= u64::from(CAP) + 8, "{name} {in_flight}");
            highest = highest.max(in_flight);
        }
        tokio::task::yield_now().await;
    }
    let report = running.await.unwrap();
    println!(
        "by status {:?}, cut {}",
        report.by_status(),
        report.outcomes.iter().filter(|outcome| outcome.cut).count()
    );
    assert!(report.outcomes.iter().filter(|outcome| outcome.cut).count() > 700);
    assert!(report.ok() > 15_000, "{:?}", report.by_status());
    assert!(highest > 0, "the gauges never moved");
    fresh_gauges(&envoy).await;
    let stats = envoy.stats().await.unwrap();
    for (name, in_flight) in stats.with_prefix("wasmcustom.weighbridge_in_flight.") {
        assert_eq!(in_flight, 0, "{name}");
    }
    let retries = stats.get("cluster.m-static.upstream_rq_retry");
    for engine in &engines {
        let state = engine.state();
        println!(
            "{}: at most {} at once with a cap of {CAP}, {} faults, {} cancelled; {retries} retries in all",
            engine.name(),
            state.in_flight_max,
            state.faults_total,
            state.cancelled_total
        );
        assert_eq!((state.running, state.waiting, state.in_flight), (0, 0, 0), "{}", engine.name());
        // Retries, and requests whose client has left while the engine has not heard of it yet, come on top.
        assert!(state.in_flight_max <= CAP as usize + 12, "{}: {}", engine.name(), state.in_flight_max);
    }
}

// A VM that dies takes its in-flight counts with it: they are gone within 5 s, and its worker serves within 2 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_panics_leaves_nothing_behind() {
    let engine = engine("slow", Profile::new("slow", &[(1, 20.0), (32, 640.0)])).await;
    let fleet = snapshot(vec![pool("m", vec![endpoint("slow", engine.addr(), 1.0)])]);
    let wasm = Some(artifacts::fault_wasm().unwrap());
    let options = EnvoyOptions { concurrency: 1, wasm, ..EnvoyOptions::fixed(fleet) };
    let envoy = Envoy::start(options).await.unwrap();
    let target = envoy.gateway();
    let streams = tokio::spawn(load::burst_at_once(target, 8, Call::chat_stream("m", "hello", 4_000)));
    eventually("eight in flight", Duration::from_secs(20), async || {
        let in_flight = envoy.stats().await?.in_flight("m", "slow");
        ensure!(in_flight == 8, "{in_flight}");
        Ok(())
    })
    .await
    .unwrap();
    let panicked = Instant::now();
    let _ = load::send(target, Call::chat("m", "x", 1).header("x-weighbridge-test-panic", "1")).await;
    eventually("the worker serves again", Duration::from_secs(20), async || {
        let outcome = load::send(target, Call::chat("m", "hello", 1)).await;
        ensure!(outcome.is_ok(), "{outcome:?}");
        Ok(())
    })
    .await
    .unwrap();
    let served = panicked.elapsed();
    eventually("the leaked requests are gone", Duration::from_secs(20), async || {
        let in_flight = envoy.stats().await?.in_flight("m", "slow");
        ensure!(in_flight == 0, "{in_flight}");
        Ok(())
    })
    .await
    .unwrap();
    println!("after the panic: served again in {served:?}, in-flight at zero in {:?}", panicked.elapsed());
    streams.abort();
    assert_eq!(envoy.stats().await.unwrap().get("wasm.weighbridge.vm_reload_success"), 1);
    // And the new VM counts as it should.
    let again = tokio::spawn(load::burst_at_once(target, 3, Call::chat_stream("m", "hello", 40)));
    eventually("three in flight", Duration::from_secs(20), async || {
        let in_flight = envoy.stats().await?.in_flight("m", "slow");
        ensure!(in_flight == 3, "{in_flight}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(again.await.unwrap().ok(), 3);
    envoy.idle(Duration::from_secs(20)).await.unwrap();
}
