//! HTTP/2 clients: trailers after the body, and streams that are cancelled.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use futures::stream;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

type Frames = stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;
type Sender = http2::SendRequest<StreamBody<Frames>>;

async fn connect(to: SocketAddr) -> Sender {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(driver);
    sender
}

fn request(to: SocketAddr, pieces: &[&str], trailers: bool) -> Request<StreamBody<Frames>> {
    let mut frames: Vec<_> =
        pieces.iter().map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece.as_bytes())))).collect();
    if trailers {
        let mut map = HeaderMap::new();
        map.insert("x-checksum", "1".parse().unwrap());
        frames.push(Ok(Frame::trailers(map)));
    }
    Request::post(format!("http://{to}/v1/chat/completions"))
        .header("content-type", "application/json")
        .body(StreamBody::new(stream::iter(frames)))
        .unwrap()
}

async fn site(names: &[&str]) -> (Vec<EngineHandle>, Envoy) {
    let mut engines = Vec::new();
    let mut endpoints = Vec::new();
    for name in names {
        let profile = Profile::new("slow", &[(1, 50.0), (32, 1_600.0)]);
        let config =
            EngineConfig { name: (*name).into(), model: "m".into(), profile, cold: false, ..EngineConfig::default() };
        let engine = EngineHandle::start(config).await.unwrap();
        endpoints.push(endpoint(name, engine.addr(), 1.0));
        engines.push(engine);
    }
    let envoy = Envoy::start(EnvoyOptions::fixed(snapshot(vec![pool("m", endpoints)]))).await.unwrap();
    (engines, envoy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_ends_with_trailers_is_read_to_its_end() {
    let (_engines, envoy) = site(&["only"]).await;
    let mut sender = connect(envoy.gateway()).await;
    for size in [0usize, 10, 1_000, 65_000, 66_000, 200_000] {
        let filler = "x".repeat(size);
        let head = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"metadata":""#;
        let pieces = [head, &filler, r#"","model":"#, r#""m"}"#];
        let response = sender.send_request(request(envoy.gateway(), &pieces, true)).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, 200, "{size} bytes: {}", String::from_utf8_lossy(&body));
    }
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}

// Case C17, and the stop button: clients that cancel, before or after the response has begun, blame nobody and leave
// nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn c17_cancelled_streams_eject_nobody_and_leave_nothing_behind() {
    let (engines, envoy) = site(&["a", "b"]).await;
    let mut sender = connect(envoy.gateway()).await;
    let body = r#"{"model":"m","stream":true,"max_tokens":500,"messages":[{"role":"user","content":"hi"}]}"#;
    for nth in 0..30 {
        let sending = sender.send_request(request(envoy.gateway(), &[body], false));
        if nth % 3 == 0 {
            // Dropped before there is a response: cancelled as soon as the engine has it.
            let met: u64 = engines.iter().map(|engine| engine.state().requests_total).sum();
            let sending = tokio::spawn(sending);
            eventually("the engine has it", Duration::from_secs(10), async || {
                ensure!(engines.iter().map(|engine| engine.state().requests_total).sum::<u64>() > met);
                Ok(())
            })
            .await
            .unwrap();
            sending.abort();
        } else {
            let mut response: Response<_> = sending.await.unwrap();
            assert_eq!(response.status(), 200, "after {nth} cancelled streams");
            assert!(response.body_mut().frame().await.unwrap().is_ok());
        }
    }
    eventually("the engines run nothing", Duration::from_secs(10), async || {
        ensure!(engines.iter().all(|engine| engine.state().in_flight == 0));
        Ok(())
    })
    .await
    .unwrap();
    envoy.idle(Duration::from_secs(10)).await.unwrap();
    let stats = envoy.stats().await.unwrap();
    assert_eq!(stats.sum("wasmcustom.weighbridge_ejections."), 0);
    assert!(engines.iter().all(|engine| engine.state().requests_total > 5), "somebody was left out");
}
