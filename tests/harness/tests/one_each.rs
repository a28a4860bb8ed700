//! Pick and count are one step: idle endpoints that are asked at the same moment from several threads get one request each.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, wire};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

const ANSWER: &str = r#"{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;

/// An endpoint that answers when all the requests of a round are there, wherever they went.
struct Together {
    addr: SocketAddr,
    got: Arc<AtomicUsize>,
}

impl Together {
    async fn start(barrier: Arc<Barrier>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let got = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&got);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (barrier, counted) = (Arc::clone(&barrier), Arc::clone(&counted));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (barrier, counted) = (Arc::clone(&barrier), Arc::clone(&counted));
                    async move {
                        let _ = request.into_body().collect().await;
                        counted.fetch_add(1, Ordering::Relaxed);
                        barrier.wait().await;
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(ANSWER.as_bytes()))))
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move { drop(connection.serve_connection(TokioIo::new(stream), service).await) });
            }
        });
        Self { addr, got }
    }
}

// Four idle endpoints, four requests at once, four worker threads, 500 rounds: one each, every round.
#[tokio::test(flavor = "multi_thread")]
async fn four_at_once_take_one_endpoint_each_every_round() {
    const ROUNDS: usize = 500;
    let barrier = Arc::new(Barrier::new(4));
    let mut fleet = Vec::new();
    for _ in 0..4 {
        fleet.push(Together::start(Arc::clone(&barrier)).await);
    }
    let endpoints = fleet.iter().enumerate().map(|(nth, each)| endpoint(&format!("e{nth}"), each.addr, 1.0)).collect();
    let mut pool = pool("m", endpoints);
    pool.policy.choices = wire::Choices::Word("all".into());
    let options = EnvoyOptions { concurrency: 4, ..EnvoyOptions::fixed(snapshot(vec![pool])) };
    let envoy = Envoy::start(options).await.unwrap();
    let mut uneven = Vec::new();
    for round in 0..ROUNDS {
        let report = load::burst_at_once(envoy.gateway(), 4, Call::chat("m", "hello", 2)).await;
        assert_eq!(report.ok(), 4, "{:?}", report.by_status());
        let got: Vec<usize> = fleet.iter().map(|each| each.got.swap(0, Ordering::Relaxed)).collect();
        if got != [1; 4] {
            uneven.push((round, got));
        }
    }
    assert!(uneven.is_empty(), "{} of {ROUNDS} rounds were uneven: {uneven:?}", uneven.len());
}
