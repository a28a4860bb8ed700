//! What operators do: pin a weight, drain an endpoint; and what thousands of pins do to Envoy's memory.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use harness::engine_sim::model::Profile;
use harness::load::{self, Call};
use harness::{Envoy, ProberProcess, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::{DEADLINE, Site, applied, chat, decided_with, engine, even, number, weight_in_decision};

async fn pin(prober: &ProberProcess, weight: f64) {
    let endpoint = prober.put("/v1/endpoints/a/pin", &json!({"weight": weight, "reason": "test"})).await.unwrap();
    assert_eq!((number(&endpoint["weight"]), &endpoint["weight_source"]), (weight, &json!("pinned")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_rules_until_it_is_cleared_restarts_included() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    let measured = prober.endpoint("a").await.unwrap();
    let met = || a.state().requests_total + b.state().requests_total;
    let bursts = met();
    // Outside the clamp of measured weights, on purpose.
    pin(&prober, 12.34).await;
    decided_with(&envoy, "a", 12.34).await;

    prober.terminate().await.unwrap();
    let prober = site.prober().await;
    prober.ready(DEADLINE).await.unwrap();
    let endpoint = prober.endpoint("a").await.unwrap();
    assert_eq!((number(&endpoint["weight"]), &endpoint["weight_source"]), (12.34, &json!("pinned")), "{endpoint}");
    assert_eq!(endpoint["pin"]["reason"], "test");
    applied(&prober).await;
    let version = prober.get("/v1/envoys").await.unwrap()["version"].as_u64();
    eventually("Envoy decides by the restarted prober's snapshot", DEADLINE, async || {
        let outcome = crate::common::explained(&envoy).await;
        let decision = outcome.header("x-weighbridge-decision");
        ensure!(weight_in_decision(decision, "a")? == 12.34, "{decision}");
        let snapshot = serde_json::from_str::<Value>(decision)?["snapshot"].as_u64();
        ensure!(snapshot >= version, "{snapshot:?} {version:?}");
        Ok(())
    })
    .await
    .unwrap();

    let endpoint = prober.delete("/v1/endpoints/a/pin").await.unwrap();
    assert_eq!((&endpoint["weight"], &endpoint["weight_source"]), (&measured["weight"], &json!("measured")));
    assert!(endpoint["pin"].is_null(), "{endpoint}");
    decided_with(&envoy, "a", number(&measured["weight"])).await;
    let through_envoy = envoy.stats().await.unwrap().get("cluster.m.upstream_rq_total");
    println!("pin, restart and clearing: {} requests of bursts", met() - bursts - through_envoy);
    assert_eq!(met() - bursts, through_envoy);
}

/// Each body is refused with 400, in the API's shape, by the name of the field, and changes nothing.
async fn refused(bodies: &[(Value, &str)]) {
    let a = engine("a", even()).await;
    let mut site = Site::new(&[&a]);
    let prober = site.prober().await;
    for (body, field) in bodies {
        let (status, answer) = prober.call(Method::PUT, "/v1/endpoints/a/pin", Some(body)).await.unwrap();
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(field), "{body}: {status} {answer}");
        assert!(answer["error"]["code"].is_string(), "{answer}");
    }
    let unknown = prober.call(Method::PUT, "/v1/endpoints/nobody/pin", Some(&json!({"weight": 1}))).await.unwrap();
    assert_eq!(unknown.0, 404, "{}", unknown.1);
    assert!(prober.endpoint("a").await.unwrap()["pin"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_pin_is_refused_by_the_name_of_its_field() {
    refused(&[
        (json!({"weight": 0}), "weight"),
        (json!({"weight": -1}), "weight"),
        (json!({"weight": 0.009}), "weight"),
        (json!({"weight": 100.1}), "weight"),
        (json!({}), "weight"),
        (json!({"reason": "no weight"}), "weight"),
        (json!({"weight": 1, "reason": "x".repeat(10_000)}), "reason"),
        (json!({"weight": 1, "wieght": 2}), "wieght"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_of_another_type_is_refused_by_the_name_of_its_field() {
    refused(&[
        (json!({"weight": "heavy"}), "weight"),
        (json!({"weight": null}), "weight"),
        (json!({"weight": 1, "reason": 7}), "reason"),
    ])
    .await;
}

/// One keep-alive connection, which stays with one worker thread.
fn connection() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().pool_max_idle_per_host(1).build().unwrap()
}

/// The weight of `a` that the connection's worker thread decides with.
async fn weight_seen(connection: &reqwest::Client, envoy: &Envoy) -> anyhow::Result<f64> {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
    let request = connection.post(envoy.url("/v1/chat/completions")).header("x-weighbridge-explain", "1").json(&body);
    let response = request.send().await?.error_for_status()?;
    let decision = response.headers().get("x-weighbridge-decision").context("no decision")?.to_str()?.to_owned();
    response.bytes().await?;
    weight_in_decision(&decision, "a")
}

/// Connections until every worker thread has at least one.
async fn connections_to_all_workers(envoy: &Envoy, workers: usize) -> Vec<reqwest::Client> {
    let mut connections = Vec::new();
    while connections.len() < 64 {
        let connection = connection();
        weight_seen(&connection, envoy).await.unwrap();
        connections.push(connection);
        let stats = envoy.stats().await.unwrap();
        let listeners = stats.with_prefix("listener.").filter(|(_, value)| *value > 0);
        let busy = listeners.filter(|(name, _)| name.contains(".worker_") && name.ends_with(".downstream_cx_active"));
        if busy.count() == workers {
            return connections;
        }
    }
    panic!("64 connections, and not every worker thread has one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_reaches_every_worker_thread_at_once() {
    const WORKERS: u32 = 4;
    let (a, b) = (engine("a", Profile::instant()).await, engine("b", Profile::instant()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(WORKERS).await;
    let connections = connections_to_all_workers(&envoy, WORKERS as usize).await;
    let mut latencies = Vec::new();
    for round in 1..=20 {
        let weight = 1.0 + f64::from(round);
        let start = Instant::now();
        pin(&prober, weight).await;
        let answered = start.elapsed();
        let seen = connections.iter().map(|connection| {
            eventually("the worker uses the pin", DEADLINE, async || {
                let found = weight_seen(connection, &envoy).await?;
                ensure!(found == weight, "{found}");
                Ok(())
            })
        });
        futures::future::try_join_all(seen).await.unwrap();
        latencies.push((start.elapsed(), answered));
    }
    latencies.sort_unstable();
    let (median, worst) = (latencies[latencies.len() / 2].0, latencies[latencies.len() - 1].0);
    println!(
        "from PUT to all {WORKERS} worker threads ({} connections): median {median:?}, worst of 20 {worst:?}; \
         the PUT's own answer took {:?}",
        connections.len(),
        latencies[latencies.len() / 2].1
    );
    // Printed, since a busy machine is slow; but pushed, and not polled for.
    assert!(median < Duration::from_secs(1), "{latencies:?}");
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

// 2,000 in a row, as fast as the prober takes them; then case C25: 300 more, each of which Envoy applies.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_pushes_leave_envoys_memory_flat() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    load::closed_loop(envoy.gateway(), 4, 100, |_| chat()).await;
    let before = envoy.rss_bytes().unwrap();
    let start = Instant::now();
    for nth in 1..=2_000 {
        pin(&prober, f64::from(nth) / 100.0).await;
    }
    let took = start.elapsed();
    decided_with(&envoy, "a", 20.0).await;
    applied(&prober).await;
    let after = envoy.rss_bytes().unwrap();
    let updates = async || {
        Ok::<_, anyhow::Error>(
            envoy.stats().await?.sum("extension_config_discovery.http_filter.weighbridge.config_reload"),
        )
    };
    println!(
        "2,000 pins in {took:?}, the last one applied; Envoy took {} updates; RSS {:.1} MiB then {:.1} MiB",
        updates().await.unwrap(),
        mib(before),
        mib(after)
    );
    assert!(after < before + (64 << 20), "{before} {after}");

    for nth in 1..=300 {
        pin(&prober, 30.0 + f64::from(nth) / 100.0).await;
        applied(&prober).await;
    }
    decided_with(&envoy, "a", 33.0).await;
    let flat = envoy.rss_bytes().unwrap();
    println!("300 more, each applied: RSS {:.1} MiB", mib(flat));
    assert!(flat < after + (16 << 20), "{after} {flat}");
    assert_eq!(load::closed_loop(envoy.gateway(), 4, 100, |_| chat()).await.ok(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_endpoint_ends_what_it_has_and_gets_nothing_new() {
    const TOKENS: u32 = 600;
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    let stream = tokio::spawn(load::send(envoy.gateway(), Call::chat_stream("m", "hello", TOKENS)));
    let drained = eventually("the stream runs", DEADLINE, async || {
        [&a, &b].into_iter().find(|engine| engine.state().running == 1).context("nobody runs anything")
    })
    .await
    .unwrap();
    let path = format!("/v1/endpoints/{}/drain", drained.name());
    let endpoint = prober.put(&path, &json!({"reason": "new fans"})).await.unwrap();
    assert_eq!((&endpoint["state"], &endpoint["drain"]["reason"]), (&json!("draining"), &json!("new fans")));
    applied(&prober).await;
    // An acknowledgement does not prove that every worker has it: the next decision does.
    eventually("no new requests", DEADLINE, async || {
        ensure!(load::closed_loop(envoy.gateway(), 4, 20, |_| chat()).await.by_engine().len() == 1);
        Ok(())
    })
    .await
    .unwrap();
    let met = drained.state().requests_total;
    let report = load::closed_loop(envoy.gateway(), 4, 100, |_| chat()).await;
    assert_eq!(report.ok(), 100, "{:?}", report.by_status());
    assert_eq!(drained.state().requests_total, met, "new requests on a draining endpoint");
    assert!(!stream.is_finished(), "the stream was to outlive the drain");
    let outcome = stream.await.unwrap();
    assert!(outcome.is_ok() && outcome.tokens == u64::from(TOKENS), "{outcome:?}");
    println!("drained: 100 requests went elsewhere, the stream had all of its {} tokens", outcome.tokens);

    let endpoint = prober.delete(&path).await.unwrap();
    assert_eq!((&endpoint["state"], &endpoint["drain"]), (&json!("ready"), &Value::Null));
    eventually("both serve again", DEADLINE, async || {
        let split = load::closed_loop(envoy.gateway(), 4, 40, |_| chat()).await.by_engine();
        ensure!(split.len() == 2, "{split:?}");
        Ok(())
    })
    .await
    .unwrap();
    envoy.idle(DEADLINE).await.unwrap();
}
