//! Requests that find every endpoint at its cap wait, and get the next slot in their turn.

use std::time::Duration;

use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::eventually;
use harness::load::{self, Call, Outcome};
use harness::wire;
use serde_json::Value;

use crate::common::DEADLINE;
use crate::common::fleet::{fleet, instant};
use crate::common::queue::{fill, gateway, named, order_of_arrival, queue_up, until_waiting};

/// Its answer is an error of this status and code, with a time after which to try again.
fn assert_busy(outcome: &Outcome, code: &str) {
    assert_eq!(outcome.status, Some(429), "{outcome:?}");
    assert_eq!(outcome.json()["error"]["code"], code, "{outcome:?}");
    assert!(outcome.header("retry-after").parse::<u32>().is_ok_and(|seconds| seconds >= 1), "{outcome:?}");
}

// 500 requests at once, 48 slots: never more in an engine than it may have, all served, in the order in which they came.
#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_at_once_through_forty_eight_slots() {
    const CAP: u32 = 12;
    // 100 tokens/s each at any load, more room than the cap.
    let mut profile = Profile::new("even", &[(1, 100.0), (64, 6_400.0)]);
    profile.batch_limit = 64;
    let of: Vec<_> = ["a", "b", "c", "d"].map(|name| (name, profile.clone(), 1.0)).into();
    let (engines, mut pool) = fleet(&of).await;
    // Strictly first come, first served: no holder is worth passing somebody.
    pool.affinity.enabled = false;
    for endpoint in &mut pool.endpoints {
        endpoint.cap = Some(CAP);
    }
    let envoy = gateway(2, vec![pool]).await;
    let call = |nth: usize| {
        let call = Call::chat_stream("m", &format!("question {nth}"), 24).explain();
        call.header("x-test-name", &nth.to_string())
    };
    let report = load::at_once(envoy.gateway(), (0..500).map(call).collect()).await;
    assert_eq!(report.ok(), 500, "{:?}", report.by_status());
    for engine in &engines {
        let state = engine.state();
        assert!(state.running_max <= CAP as usize && state.waiting == 0, "{state:?}");
    }
    let mut waited: Vec<(u64, u64, usize)> = Vec::new();
    for outcome in &report.outcomes {
        let queue = &outcome.decision()["queue"];
        if let Some(ticket) = queue["ticket"].as_u64() {
            waited.push((ticket, queue["wait_ms"].as_u64().unwrap(), outcome.nth));
        }
    }
    waited.sort_unstable();
    assert!((452..500).contains(&waited.len()), "48 go at once, and the rest waits: {}", waited.len());
    // Where each stands in the order of arrival at the engines, and where its ticket would put it.
    let arrived: Vec<String> = order_of_arrival(&engines);
    let place = |nth: usize| arrived.iter().position(|name| *name == nth.to_string()).unwrap();
    let places: Vec<usize> = waited.iter().map(|(.., nth)| place(*nth)).collect();
    let inversions = (0..places.len()).map(|at| places[at..].iter().filter(|later| **later < places[at]).count());
    let first = 500 - waited.len();
    let furthest = places.iter().enumerate().map(|(due, place)| place.abs_diff(first + due)).max().unwrap();
    let mut waits: Vec<u64> = waited.iter().map(|(_, wait_ms, _)| *wait_ms).collect();
    waits.sort_unstable();
    println!(
        "{} waited, at most {} ms; {} of {} pairs reached the engines in another order than they came, none more than \
         {furthest} places off",
        waited.len(),
        waits.last().unwrap(),
        inversions.sum::<usize>(),
        places.len() * (places.len() - 1) / 2,
    );
    // Slots are given in exact order; what remains is the way from two threads to four engines.
    assert!(furthest < 96, "{furthest}");
    println!("a slot free until the next request is there: {}", gaps(&engines, CAP as usize, waited.len()));
    let mut speeds: Vec<f64> = report
        .outcomes
        .iter()
        .map(|outcome| {
            let streaming = outcome.duration - outcome.ttft.unwrap();
            (outcome.tokens - 1) as f64 / streaming.as_secs_f64()
        })
        .collect();
    speeds.sort_by(f64::total_cmp);
    let at = |share: f64| speeds[((share * 500.0) as usize).min(499)];
    println!("tokens/s of each request: 1 of 100 below {:.1}, half below {:.1}", at(0.01), at(0.5));
    envoy.idle(DEADLINE).await.unwrap();
}

/// How long a slot was free before the next request reached the same engine, while somebody waited: by the engines' own
/// clocks. The request after the first `cap` cannot come before one of those has ended, and so on.
fn gaps(engines: &[harness::engine_sim::server::EngineHandle], cap: usize, waited: usize) -> String {
    let mut gaps = Vec::new();
    for engine in engines {
        let records = engine.records();
        let mut starts: Vec<f64> = records.iter().map(|record| record.start_s).collect();
        let mut ends: Vec<f64> = records.iter().map(|record| record.start_s + record.e2e_ms / 1_000.0).collect();
        starts.sort_by(f64::total_cmp);
        ends.sort_by(f64::total_cmp);
        gaps.extend(starts.iter().skip(cap).zip(&ends).map(|(start, end)| (start - end) * 1_000.0));
    }
    gaps.sort_by(f64::total_cmp);
    let at = |share: f64| gaps[((share * gaps.len() as f64) as usize).min(gaps.len() - 1)];
    format!("p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms ({} of {waited})", at(0.5), at(0.99), at(1.0), gaps.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_in_priority_and_then_in_time_goes_first() {
    let (engines, mut pool) = instant(&[("only", 1.0)]).await;
    pool.endpoints[0].cap = Some(1);
    pool.admission.ageing_ms = 0;
    let envoy = gateway(3, vec![pool]).await;
    let held = fill(&envoy, &engines, 1).await;
    let priorities = [5, 9, 0, 5, 2, 9, 0];
    let calls = priorities.iter().enumerate().map(|(nth, priority)| {
        let call = named(format!("{priority}-{nth}"), 2);
        // Who does not say is in the middle.
        if *priority == 5 { call } else { call.header("x-weighbridge-priority", &priority.to_string()) }
    });
    let waiting = queue_up(&envoy, calls.collect()).await;
    drop(held);
    for request in waiting {
        let outcome = request.await.unwrap();
        assert!(outcome.is_ok(), "{outcome:?}");
        let queue = &outcome.decision()["queue"];
        assert!(queue["wait_ms"].is_u64() && queue["position"].is_u64(), "{}", outcome.decision());
    }
    assert_eq!(order_of_arrival(&engines), ["0-2", "0-6", "2-4", "5-0", "5-3", "9-1", "9-5"]);
    until_waiting(&envoy, 0).await;
    envoy.idle(DEADLINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn users_take_turns_where_fairness_says_so() {
    let (engines, mut pool) = instant(&[("only", 1.0)]).await;
    pool.endpoints[0].cap = Some(1);
    for fairness in ["user", "header:x-tenant"] {
        pool.admission.fairness = fairness.into();
        let envoy = gateway(2, vec![pool.clone()]).await;
        let held = fill(&envoy, &engines, 1).await;
        let calls = ["a1", "a2", "a3", "b1", "b2"].map(|name| {
            let user = &name[..1];
            let body = serde_json::json!({
                "model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "user": user,
            });
            let call = Call::json("/v1/chat/completions", &body).header("x-test-name", name);
            if fairness == "user" { call } else { call.header("x-tenant", user) }
        });
        let seen = order_of_arrival(&engines).len();
        let waiting = queue_up(&envoy, calls.into()).await;
        drop(held);
        for request in waiting {
            assert!(request.await.unwrap().is_ok());
        }
        assert_eq!(order_of_arrival(&engines)[seen..], ["a1", "b1", "a2", "b2", "a3"], "{fairness}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_or_finds_the_queue_full_is_told_when_to_come_back() {
    let (engines, mut pool) = instant(&[("only", 1.0)]).await;
    pool.endpoints[0].cap = Some(1);
    pool.admission = wire::Admission { queue: 2, max_wait_ms: 600, ..pool.admission };
    let envoy = gateway(2, vec![pool]).await;
    let held = fill(&envoy, &engines, 1).await;
    let sooner = load::send(envoy.gateway(), named("sooner", 2).header("x-weighbridge-max-wait-ms", "100")).await;
    assert_busy(&sooner, "queue_timeout");
    assert!(sooner.duration >= Duration::from_millis(100), "{:?}", sooner.duration);
    // Its record says how long it waited, and with which number.
    let decision: Value = serde_json::from_str(sooner.header("x-weighbridge-decision")).unwrap();
    assert_eq!(decision["reason"], "queue_timeout", "{decision}");
    assert!(decision["queue"]["wait_ms"].as_u64().is_some_and(|ms| ms >= 100), "{decision}");
    assert!(decision["queue"]["ticket"].is_u64() && decision["queue"]["position"] == 0, "{decision}");
    let never = load::send(envoy.gateway(), named("never", 2).header("x-weighbridge-max-wait-ms", "0")).await;
    assert_busy(&never, "capacity_exhausted");
    let decision: Value = serde_json::from_str(never.header("x-weighbridge-decision")).unwrap();
    assert!(decision["reason"] == "at_cap" && decision["queue"].is_null(), "{decision}");
    // Nobody waits longer than the operator lets them.
    let longer = named("longer", 2).header("x-weighbridge-max-wait-ms", "60000");
    let waiting: Vec<_> = [longer.clone(), longer].map(|call| tokio::spawn(load::send(envoy.gateway(), call))).into();
    until_waiting(&envoy, 2).await;
    assert_busy(&load::send(envoy.gateway(), named("third", 2)).await, "queue_full");
    for request in waiting {
        assert_busy(&request.await.unwrap(), "queue_timeout");
    }
    drop(held);
    envoy.idle(DEADLINE).await.unwrap();
    assert!(load::send(envoy.gateway(), named("after", 2)).await.is_ok());
    // None of those who were refused reached the engine.
    assert_eq!(order_of_arrival(&engines), ["after"]);
    // Each VM hands its counts to Envoy on its own tick.
    eventually("every refusal counted once", DEADLINE, async || {
        let stats = envoy.stats().await?;
        let refused = ["queue_full", "queue_timeout", "at_cap"]
            .map(|reason| stats.get(&format!("wasmcustom.weighbridge_requests.pool.m.endpoint.none.reason.{reason}")));
        ensure!(refused == [1, 3, 1], "{refused:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_wait_are_bounded_too() {
    let (engines, mut pool) = instant(&[("only", 1.0)]).await;
    pool.endpoints[0].cap = Some(1);
    pool.admission.queue_bytes = 4_000;
    let envoy = gateway(2, vec![pool]).await;
    let held = fill(&envoy, &engines, 1).await;
    let waiting = queue_up(&envoy, vec![Call::chat("m", &"word ".repeat(600), 2)]).await;
    assert_busy(&load::send(envoy.gateway(), Call::chat("m", &"word ".repeat(600), 2)).await, "queue_full");
    drop(held);
    for request in waiting {
        assert!(request.await.unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_say_counts_where_it_is_allowed_and_nowhere_else() {
    let (engines, mut pool) = instant(&[("only", 1.0)]).await;
    pool.endpoints[0].cap = Some(1);
    let allowed = gateway(1, vec![pool.clone()]).await;
    for (name, value, expected) in [
        ("x-weighbridge-priority", "10", "a digit from 0 (first) to 9 (last)"),
        ("x-weighbridge-max-wait-ms", "soon", "a whole number of milliseconds from 0 to 3600000"),
    ] {
        let outcome = load::send(allowed.gateway(), named("wrong", 2).header(name, value)).await;
        let error = &outcome.json()["error"];
        assert_eq!(
            (outcome.status, &error["code"], &error["param"]),
            (Some(400), &"invalid_header".into(), &name.into())
        );
        assert_eq!(error["message"], format!("{name} is {value:?}: expected {expected}."));
    }
    drop(allowed);
    let envoy = crate::common::fleet::gateway(vec![pool]).await;
    let held = fill(&envoy, &engines, 1).await;
    let said = |call: Call| call.header("x-weighbridge-priority", "0").header("x-weighbridge-max-wait-ms", "none");
    let waiting = queue_up(&envoy, vec![named("first", 2), said(named("second", 2))]).await;
    drop(held);
    for request in waiting {
        assert!(request.await.unwrap().is_ok());
    }
    assert_eq!(order_of_arrival(&engines), ["first", "second"]);
}

// Envoy's own timeout is for bodies that do not come; a request that waits has all of its body.
#[tokio::test(flavor = "multi_thread")]
async fn envoys_request_timeout_ends_no_wait() {
    let (engines, mut pool) = instant(&[("only", 1.0)]).await;
    pool.endpoints[0].cap = Some(1);
    pool.admission.max_wait_ms = 2_500;
    let edit = |config: &mut serde_json::Value| {
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/request_timeout";
        *config.pointer_mut(manager).unwrap() = "1s".into();
    };
    let options = harness::EnvoyOptions { edit: Some(Box::new(edit)), ..crate::common::queue::options(2, vec![pool]) };
    let envoy = harness::Envoy::start(options).await.unwrap();
    let _held = fill(&envoy, &engines, 1).await;
    assert_busy(&load::send(envoy.gateway(), named("patient", 2)).await, "queue_timeout");
    until_waiting(&envoy, 0).await;
}
