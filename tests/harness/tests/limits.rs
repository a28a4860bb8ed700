//! Breakers, retries and overload: Envoy's breakers stay out of admission's way, retries are budgeted and can be declined, and
//! an Envoy that runs out of memory says so in our words and keeps what it serves.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use harness::load::{self, Call};
use harness::raw::{self, Behaviour, Recorder, Request};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, artifacts, eventually, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::common::DEADLINE;

async fn recorders(count: usize, behaviour: Behaviour) -> (Vec<Recorder>, wire::Pool) {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(Recorder::start(behaviour).await.unwrap());
    }
    let endpoints = engines.iter().enumerate().map(|(nth, engine)| endpoint(&format!("e{nth}"), engine.addr(), 1.0));
    let pool = pool("m", endpoints.collect());
    (engines, pool)
}

fn chat() -> Call {
    Call::chat("m", "hello", 4)
}

fn attempts(engines: &[Recorder]) -> usize {
    engines.iter().map(|engine| engine.seen().len()).sum()
}

// Envoy's default breakers stop at 1,024 requests. Here, the cap decides, and after it the queue.
#[tokio::test(flavor = "multi_thread")]
async fn no_breaker_opens_before_the_cap_is_reached() {
    const CAP: usize = 1_200;
    const WAIT: usize = 100;
    let (engines, mut pool) = recorders(1, Behaviour::Hold).await;
    pool.admission = wire::Admission {
        base_cap: u32::try_from(CAP).unwrap(),
        queue: 4096,
        max_wait_ms: 60_000,
        ..wire::Admission::default()
    };
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    let target = envoy.gateway();
    let all = tokio::spawn(load::burst_at_once(target, CAP + WAIT, chat()));
    eventually("the cap is full and the others wait", DEADLINE, async || {
        let (met, stats) = (attempts(&engines), envoy.stats().await?);
        let waiting = stats.get("wasmcustom.weighbridge_queue_depth.pool.m");
        ensure!((met, waiting) == (CAP, WAIT as u64), "{met} at the engine, {waiting} wait");
        Ok(())
    })
    .await
    .unwrap();
    engines[0].set(Behaviour::Answer);
    let report = all.await.unwrap();
    assert_eq!(report.ok(), CAP + WAIT, "{:?}", report.by_status());
    let stats = envoy.stats().await.unwrap();
    for breaker in ["upstream_cx_overflow", "upstream_rq_pending_overflow", "upstream_rq_active_overflow"] {
        assert_eq!(stats.get(&format!("cluster.m-static.{breaker}")), 0, "{breaker}");
    }
    envoy.idle(DEADLINE).await.unwrap();
}

// When everybody hangs up, retries stay within the budget instead of tripling the load.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_retries_is_cut_by_the_budget() {
    const REQUESTS: usize = 400;
    let (engines, mut pool) = recorders(3, Behaviour::Hold).await;
    pool.admission.base_cap = 1_000;
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    let all = tokio::spawn(load::burst_at_once(envoy.gateway(), REQUESTS, chat()));
    eventually("all are at the engines", DEADLINE, async || {
        let met = attempts(&engines);
        ensure!(met == REQUESTS, "{met}");
        Ok(())
    })
    .await
    .unwrap();
    engines.iter().for_each(|engine| engine.set(Behaviour::Hangup));
    let report = all.await.unwrap();
    assert_eq!(report.by_status().get("503"), Some(&REQUESTS), "{:?}", report.by_status());
    let (attempts, stats) = (attempts(&engines), envoy.stats().await.unwrap());
    let cut = stats.get("cluster.m-static.upstream_rq_retry_overflow");
    println!("{REQUESTS} requests met engines that hang up: {attempts} attempts, {cut} retries cut by the budget");
    assert!(cut > 0, "no retry was cut");
    // Two retries each would be three times as many. The budget is half of what is under way, and 32.
    assert!(attempts < REQUESTS * 2 + 32, "{attempts}");
    envoy.idle(DEADLINE).await.unwrap();
}

// One of four that hangs up on its share of 64 is within the budget: nobody notices.
#[tokio::test(flavor = "multi_thread")]
async fn the_share_of_one_endpoint_is_retried() {
    let (engines, pool) = recorders(4, Behaviour::Hold).await;
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    let all = tokio::spawn(load::burst_at_once(envoy.gateway(), 64, chat()));
    eventually("all are at the engines", DEADLINE, async || {
        let met = attempts(&engines);
        ensure!(met == 64, "{met}");
        Ok(())
    })
    .await
    .unwrap();
    engines[0].set(Behaviour::Hangup);
    engines[1..].iter().for_each(|engine| engine.set(Behaviour::Answer));
    let report = all.await.unwrap();
    assert_eq!(report.ok(), 64, "{:?}", report.by_status());
    assert_eq!(envoy.stats().await.unwrap().get("cluster.m-static.upstream_rq_retry_overflow"), 0);
}

// What must not be done twice says so, and is not; the engine does not hear of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_declines_retries_is_tried_once() {
    let (engines, pool) = recorders(3, Behaviour::Hangup).await;
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool]))).await.unwrap();
    for (retry, expected) in [(None, 3), (Some("never"), 1), (Some("Never"), 1), (Some("always"), 3)] {
        let call = retry.map_or_else(chat, |value| chat().header("x-weighbridge-retry", value));
        assert_eq!(load::send(envoy.gateway(), call).await.status, Some(503));
        let attempts: Vec<_> = engines.iter().flat_map(Recorder::take).collect();
        assert_eq!(attempts.len(), expected, "{retry:?}");
        for attempt in attempts {
            let request = Request::parse(&attempt).unwrap().unwrap();
            assert!(
                request.headers.iter().all(|(name, _)| !name.starts_with("x-weighbridge-")),
                "{:?}",
                request.headers
            );
        }
    }
    envoy.idle(DEADLINE).await.unwrap();
}

// Clients that Envoy knows as its own may use Envoy's own header; others may not.
#[tokio::test(flavor = "multi_thread")]
async fn internal_clients_may_say_max_retries() {
    let (engines, pool) = recorders(3, Behaviour::Hangup).await;
    for (internal, expected) in [(false, 3), (true, 1)] {
        let mut options = EnvoyOptions::fixed(snapshot(vec![pool.clone()]));
        options.edit = Some(Box::new(move |config| {
            if internal {
                let manager =
                    &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
                manager["internal_address_config"] =
                    json!({"cidr_ranges": [{"address_prefix": "127.0.0.0", "prefix_len": 8}]});
            }
        }));
        let envoy = Envoy::start(options).await.unwrap();
        load::send(envoy.gateway(), chat().header("x-envoy-max-retries", "0")).await;
        let attempts: usize = engines.iter().map(|engine| engine.take().len()).sum();
        assert_eq!(attempts, expected, "internal: {internal}");
    }
}

/// Every file that makes clusters of pools, and what the prober makes, has the same limits.
#[test]
fn static_clusters_and_the_snippet_have_the_same_limits() {
    let limits = |file: &str| {
        let text = std::fs::read_to_string(artifacts::root().join(file)).unwrap();
        let config: Value = serde_yaml_ng::from_str(&text).unwrap();
        let clusters = config
            .pointer("/static_resources/clusters")
            .or(config.get("clusters"))
            .unwrap()
            .as_array()
            .unwrap()
            .clone();
        let cluster = clusters.into_iter().find(|cluster| cluster.get("circuit_breakers").is_some()).unwrap();
        let fields = [
            "circuit_breakers",
            "upstream_connection_options",
            "per_connection_buffer_limit_bytes",
            "typed_extension_protocol_options",
            "connect_timeout",
        ];
        fields.map(|field| cluster[field].clone())
    };
    let (standalone, snippet) = (limits("envoy/envoy.yaml"), limits("envoy/mesh/envoy-snippet.yaml"));
    assert!(standalone.iter().all(|field| !field.is_null()));
    assert_eq!(standalone, snippet);
}

/// The shipped overload manager, with its measure of memory replaced by a number in a file.
fn with_pressure_of(file: &Path) -> harness::envoy::Edit {
    let file = file.to_path_buf();
    Box::new(move |config| {
        let monitor = &mut config["overload_manager"]["resource_monitors"][0];
        assert_eq!(monitor["name"], "envoy.resource_monitors.fixed_heap");
        monitor["typed_config"] = json!({
            "@type": "type.googleapis.com/envoy.extensions.resource_monitors.injected_resource.v3.InjectedResourceConfig",
            "filename": file,
        });
    })
}

async fn press(envoy: &Envoy, file: &Path, pressure: f64) {
    let new = file.with_extension("new");
    std::fs::write(&new, pressure.to_string()).unwrap();
    std::fs::rename(&new, file).unwrap();
    eventually("Envoy feels the pressure", DEADLINE, async || {
        let felt = envoy.stats().await?.get("overload.envoy.resource_monitors.fixed_heap.pressure");
        ensure!(felt == (pressure * 100.0) as u64, "{felt}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn under_memory_pressure_newcomers_are_told_and_streams_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pressure");
    std::fs::write(&file, "0").unwrap();
    let (engines, pool) = recorders(1, Behaviour::Hold).await;
    let options = EnvoyOptions { edit: Some(with_pressure_of(&file)), ..EnvoyOptions::fixed(snapshot(vec![pool])) };
    let envoy = Envoy::start(options).await.unwrap();
    let target = envoy.gateway();
    let served = tokio::spawn(load::send(target, chat()));
    eventually("a request is being served", DEADLINE, async || {
        ensure!(attempts(&engines) == 1);
        Ok(())
    })
    .await
    .unwrap();
    // An upload that has begun, and a connection that idles.
    let mut upload = TcpStream::connect(target).await.unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{";
    tokio::io::AsyncWriteExt::write_all(&mut upload, head.as_bytes()).await.unwrap();
    let mut idle = TcpStream::connect(target).await.unwrap();
    let ask = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut idle, ask).await.unwrap();
    assert_eq!(raw::status(&raw::read_until(&mut idle, raw::is_complete).await), Some(200));

    press(&envoy, &file, 0.93).await;
    let outcome = load::send(target, Call::get("/v1/models")).await;
    assert_eq!((outcome.status, outcome.header("connection")), (Some(200), "close"), "keep-alive ends: {outcome:?}");
    // The idle time is down to 2 s.
    assert_eq!(raw::read_until(&mut idle, |_| false).await, b"");

    press(&envoy, &file, 0.96).await;
    let outcome = load::send(target, chat()).await;
    assert_eq!((outcome.status, outcome.header("retry-after")), (Some(503), "1"), "{outcome:?}");
    assert_eq!(outcome.json()["error"]["code"], "gateway_unavailable", "{outcome:?}");
    assert_eq!(attempts(&engines), 1);

    press(&envoy, &file, 0.98).await;
    tokio::io::AsyncWriteExt::write_all(&mut upload, b"more").await.unwrap();
    let answer = raw::read_until(&mut upload, |_| false).await;
    assert_eq!(raw::status(&answer), Some(503), "{}", String::from_utf8_lossy(&answer));
    assert!(String::from_utf8_lossy(&answer).contains("gateway_unavailable"));

    // What was being served all the while is not harmed, and afterwards all is as before.
    engines[0].set(Behaviour::Answer);
    assert!(served.await.unwrap().is_ok());
    press(&envoy, &file, 0.1).await;
    eventually("requests are taken again", DEADLINE, async || {
        ensure!(load::send(target, chat()).await.is_ok());
        Ok(())
    })
    .await
    .unwrap();
    envoy.idle(DEADLINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_have_a_limit_too() {
    let options = EnvoyOptions {
        edit: Some(Box::new(|config| {
            let limit = &mut config["overload_manager"]["resource_monitors"][1]["typed_config"]["max_active_downstream_connections"];
            assert!(limit.is_u64());
            *limit = json!(3);
        })),
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start(options).await.unwrap();
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(envoy.gateway()).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(raw::status(&raw::read_until(&mut stream, raw::is_complete).await), Some(200));
        open.push(stream);
    }
    let over = load::send(envoy.gateway(), Call::get("/v1/models").timeout(Duration::from_secs(5))).await;
    assert!(over.status.is_none() && over.error.is_some(), "{over:?}");
    open.pop();
    eventually("a place is free again", DEADLINE, async || {
        ensure!(load::send(envoy.gateway(), Call::get("/v1/models")).await.is_ok());
        Ok(())
    })
    .await
    .unwrap();
}
