//! The shipped configurations against a real xDS server: what the prober says goes, before, during and after its absence.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::envoy::Shipped;
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, artifacts, eventually, wire};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use weighbridge_xds::{FilterSource, XdsServer};

const DEADLINE: Duration = Duration::from_secs(20);

/// An xDS server on a listener of the test's choice; dropped, it stops.
struct Xds {
    server: XdsServer,
    addr: SocketAddr,
    _stop: DropGuard,
}

impl Xds {
    async fn start(addr: SocketAddr) -> Self {
        // The port of a server that has just gone may still be in its last seconds.
        let listener = eventually("the xDS port", DEADLINE, async || Ok(TcpListener::bind(addr).await?)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let wasm_path = artifacts::wasm().unwrap().to_str().unwrap().to_owned();
        let server = XdsServer::new(FilterSource { wasm_path });
        let stop = CancellationToken::new();
        let (serving, token) = (server.clone(), stop.clone());
        tokio::spawn(async move { serving.serve(listener, token).await });
        Self { server, addr, _stop: stop.drop_guard() }
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn engine(name: &str) -> EngineHandle {
    let config = EngineConfig { name: name.into(), model: "m".into(), ..EngineConfig::default() };
    EngineHandle::start(config).await.unwrap()
}

/// A fleet of one endpoint.
fn fleet(version: u64, engine: &EngineHandle) -> wire::Snapshot {
    let endpoints = vec![endpoint(engine.name(), engine.addr(), 1.0)];
    wire::Snapshot { version, ..snapshot(vec![pool("m", endpoints)]) }
}

async fn answered_by(envoy: &Envoy, name: &str) {
    eventually(&format!("answers from {name}"), DEADLINE, async || {
        let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
        ensure!(outcome.is_ok() && outcome.engine() == name, "{:?} from {:?}", outcome.status, outcome.engine());
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn both_shipped_configurations_take_what_the_prober_says() {
    let (first, second) = (engine("first").await, engine("second").await);
    for shipped in [Shipped::Standalone, Shipped::Mesh] {
        let xds = Xds::start(any_port()).await;
        xds.server.publish(Arc::new(fleet(10, &first)));
        // The static part knows the pool's name only; its endpoints come from the prober.
        let options = EnvoyOptions {
            shipped,
            snapshot: Some(wire::Snapshot { version: 0, ..snapshot(vec![pool("m", Vec::new())]) }),
            ..EnvoyOptions::with_xds(xds.addr)
        };
        let envoy = Envoy::start(options).await.unwrap();
        answered_by(&envoy, "first").await;
        xds.server.publish(Arc::new(fleet(11, &second)));
        assert!(xds.server.wait_applied(11, DEADLINE).await, "{shipped:?}: {:#?}", xds.server.envoys());
        answered_by(&envoy, "second").await;
        let status = xds.server.envoys();
        assert!(status.iter().all(|envoy| envoy.last_nack.is_none()), "{shipped:?}: {status:#?}");
        println!("{shipped:?}: {} streams", status[0].streams);
        eventually("the decision is logged, and statistics have their buckets", DEADLINE, async || {
            let picked = |line: &Value| -> Option<String> {
                let decision: Value = serde_json::from_str(line["decision"].as_str()?).ok()?;
                Some(decision["picked"].as_str()?.to_owned())
            };
            let log = envoy.access_log();
            ensure!(log.iter().filter_map(picked).any(|picked| picked == "second"), "{log:?}");
            let page = envoy.prometheus().await?;
            let mut buckets = page.lines().filter(|line| line.starts_with("weighbridge_ttft_ms_bucket{"));
            ensure!(buckets.any(|line| line.contains(r#"pool="m""#) && line.contains(r#"le="120000""#)), "{page}");
            Ok(())
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prober_that_comes_late_goes_and_comes_back_needs_no_restart() {
    let (fallback, live, newest) = (engine("fallback").await, engine("live").await, engine("newest").await);
    // A port that is known and free: nobody listens yet.
    let xds = Xds::start(any_port()).await;
    let addr = xds.addr;
    drop(xds);
    let options = EnvoyOptions { xds: Some(addr), ..EnvoyOptions::fixed(fleet(0, &fallback)) };
    let envoy = Envoy::start(options).await.unwrap();
    answered_by(&envoy, "fallback").await;

    let xds = Xds::start(addr).await;
    xds.server.publish(Arc::new(fleet(10, &live)));
    answered_by(&envoy, "live").await;
    // Gone: what it said stays.
    drop(xds);
    for _ in 0..20 {
        let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
        assert!(outcome.is_ok() && outcome.engine() == "live", "{outcome:?}");
    }
    let xds = Xds::start(addr).await;
    xds.server.publish(Arc::new(fleet(11, &newest)));
    answered_by(&envoy, "newest").await;
}
