//! Every shipped configuration starts in the real Envoy, and a gateway whose prober is away serves all the same.

use std::time::{Duration, Instant};

use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::envoy::Shipped;
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::upstream::{Reply, Upstream};
use harness::{Envoy, EnvoyOptions, eventually};

async fn engine(name: &str) -> EngineHandle {
    engine_of("m", name).await
}

async fn engine_of(model: &str, name: &str) -> EngineHandle {
    let config = EngineConfig { name: name.into(), model: model.into(), ..EngineConfig::default() };
    EngineHandle::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shipped_configuration_is_valid() {
    for shipped in [Shipped::Standalone, Shipped::Mesh] {
        Envoy::validate(EnvoyOptions { shipped, ..EnvoyOptions::default() }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn standalone_serves_within_two_seconds_without_the_prober() {
    let engine = engine("only").await;
    let fleet = snapshot(vec![pool("m", vec![endpoint("only", engine.addr(), 1.0)])]);
    let options = EnvoyOptions { shipped_timeouts: true, ..EnvoyOptions::fixed(fleet) };
    let start = Instant::now();
    let envoy = Envoy::start(options).await.unwrap();
    let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
    let took = start.elapsed();
    // How long Envoy itself takes to start is the machine's business; how long it waits for a prober that is away is ours.
    let shipped = include_str!("../../../envoy/envoy.yaml");
    let waits = shipped.lines().filter_map(|line| line.trim().strip_prefix("initial_fetch_timeout: "));
    let waits: Vec<_> = waits.map(|text| humantime::parse_duration(text.trim()).unwrap()).collect();
    println!("first answer {took:?} after the start of Envoy, {waits:?} of it waiting for the prober");
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(outcome.engine(), "only");
    assert_eq!(waits.len(), 2);
    assert!(waits.iter().sum::<Duration>() <= Duration::from_secs(1), "{waits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn standalone_answers_unknown_paths_in_json() {
    let envoy = Envoy::start(EnvoyOptions::default()).await.unwrap();
    let outcome = load::send(envoy.gateway(), Call::get("/nowhere")).await;
    assert_eq!(outcome.status, Some(404));
    assert_eq!(outcome.header("content-type"), "application/json");
    assert_eq!(outcome.json()["error"]["code"], "unknown_path");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_cannot_steer() {
    let (right, wrong) = (engine("right").await, engine("wrong").await);
    let fleet = snapshot(vec![
        pool("m", vec![endpoint("right", right.addr(), 1.0)]),
        pool("other", vec![endpoint("wrong", wrong.addr(), 1.0)]),
    ]);
    let envoy = Envoy::start(EnvoyOptions::fixed(fleet)).await.unwrap();
    let call = Call::chat("m", "hello", 4)
        .header("x-weighbridge-cluster", "other-static")
        .header("x-weighbridge-host", &wrong.addr().to_string());
    let outcome = load::send(envoy.gateway(), call).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(outcome.engine(), "right");
    // The headers alone, on a path that is not the filter's, lead nowhere either.
    let call = Call::get("/nowhere").header("x-weighbridge-cluster", "other-static");
    assert_eq!(load::send(envoy.gateway(), call).await.status, Some(404));
    assert_eq!(wrong.state().requests_total, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoys_own_errors_have_the_openai_shape() {
    let engine = engine("gone").await;
    let fleet = snapshot(vec![pool("m", vec![endpoint("gone", engine.addr(), 1.0)])]);
    let envoy = Envoy::start(EnvoyOptions::fixed(fleet)).await.unwrap();
    engine.kill().await;
    let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
    assert_eq!(outcome.status, Some(503), "{outcome:?}");
    assert_eq!(outcome.header("retry-after"), "1");
    assert_eq!(outcome.json()["error"]["type"], "server_error");
    assert_eq!(outcome.json()["error"]["code"], "upstream_unavailable");
}

/// Answers every connection with something that is no HTTP.
async fn babbling() -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4096];
                // Envoy may have hung up.
                if stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(b"220 this speaks another protocol\r\n\r\n").await;
                }
            });
        }
    });
    addr
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_http_is_an_error_in_the_openai_shape() {
    let addr = babbling().await;
    let fleet = snapshot(vec![pool("m", vec![endpoint("babbles", addr, 1.0)])]);
    let envoy = Envoy::start(EnvoyOptions::fixed(fleet)).await.unwrap();
    let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
    assert_eq!((outcome.status, outcome.header("content-type")), (Some(502), "application/json"), "{outcome:?}");
    let error = &outcome.json()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&"server_error".into(), &"upstream_protocol_error".into()),
        "{error}"
    );
    assert!(error["message"].as_str().unwrap().contains("protocol error"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_cannot_speak_for_the_filter() {
    let headers = vec![("x-weighbridge-endpoint", "forged".to_owned()), ("x-weighbridge-decision", "{}".to_owned())];
    let reply = Reply { headers, ..Reply::json(r#"{"choices":[],"usage":{"completion_tokens":1}}"#) };
    let upstream = Upstream::start(reply).await.unwrap();
    let fleet = snapshot(vec![pool("m", vec![endpoint("true", upstream.addr(), 1.0)])]);
    let envoy = Envoy::start(EnvoyOptions::fixed(fleet)).await.unwrap();
    let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!((outcome.header("x-weighbridge-endpoint"), outcome.header("x-weighbridge-decision")), ("true", ""));
    // The same through a cluster that the prober has made is tested with the prober.
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_mesh_other_paths_follow_the_meshs_own_routes() {
    let options = EnvoyOptions { shipped: Shipped::Mesh, ..EnvoyOptions::default() };
    let envoy = Envoy::start(options).await.unwrap();
    let outcome = load::send(envoy.gateway(), Call::get("/anything")).await;
    assert_eq!((outcome.status, &outcome.body[..]), (Some(200), &b"host"[..]));
    // A model that nobody serves is an error of the filter, not of the mesh.
    let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
    assert_eq!(outcome.status, Some(404));
    assert_eq!(outcome.json()["error"]["code"], "model_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_survive_a_pool_that_is_called_endpoint() {
    let engine = engine_of("endpoint", "reason").await;
    let fleet = snapshot(vec![pool("endpoint", vec![endpoint("reason", engine.addr(), 1.0)])]);
    let envoy = Envoy::start(EnvoyOptions::fixed(fleet)).await.unwrap();
    let outcome = load::send(envoy.gateway(), Call::chat("endpoint", "hello", 4)).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    eventually("the request is counted with its labels", Duration::from_secs(10), async || {
        let page = envoy.prometheus().await?;
        let line = page.lines().find(|line| line.starts_with("weighbridge_requests{"));
        let line = line.unwrap_or_default();
        anyhow::ensure!(line.contains(r#"pool="endpoint""#) && line.contains(r#"endpoint="reason""#), "{line:?}");
        anyhow::ensure!(line.contains(r#"reason=""#), "{line:?}");
        Ok(())
    })
    .await
    .unwrap();
}
