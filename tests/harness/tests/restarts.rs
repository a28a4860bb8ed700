//! The gateway itself is replaced: by hot restart, by draining and stopping, by a kill. `docs/upgrade.md` has the recipes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::EngineHandle;
use harness::envoy::Generation;
use harness::load::{self, Call, Outcome};
use harness::snapshot::{pool, snapshot};
use harness::{Envoy, EnvoyOptions, ProberProcess, eventually};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::common::{DEADLINE, Site, applied, chat, engine, explained, free_address};

const CAP: usize = 8;

/// A prober and an engine with [`CAP`] slots that writes 50 tokens/s whatever its load.
async fn site() -> (EngineHandle, Site) {
    let mut profile = Profile::new("steady", &[(1, 50.0), (64, 3_200.0)]);
    profile.batch_limit = 64;
    let engine = engine("a", profile).await;
    let mut site = Site::new(&[&engine]);
    site.config["pools"][0]["endpoints"][0]["max_in_flight"] = json!(CAP);
    site.config["pools"][0]["admission"] = json!({"queue": 200, "max_wait": "60s"});
    (engine, site)
}

async fn start(site: &Site, prober: &ProberProcess, gateway: SocketAddr, generation: Option<Generation>) -> Envoy {
    let options = EnvoyOptions {
        gateway,
        generation,
        snapshot: Some(snapshot(vec![pool("m", Vec::new())])),
        prober: Some(prober.api()),
        admin: if generation.is_some_and(|generation| generation.epoch > 0) { free_address() } else { site.admin },
        ..EnvoyOptions::with_xds(prober.xds())
    };
    Envoy::start(options).await.unwrap()
}

/// Sends one request after another until it is told to stop.
struct Newcomers {
    over: Arc<AtomicBool>,
    task: JoinHandle<Vec<Outcome>>,
}

impl Newcomers {
    fn begin(target: SocketAddr) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let task = tokio::spawn(async move {
            let mut outcomes = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                outcomes.push(load::send(target, chat()).await);
            }
            outcomes
        });
        Self { over, task }
    }

    async fn end(self) -> Vec<Outcome> {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

async fn at_the_engine(engine: &EngineHandle, count: usize) {
    eventually(&format!("{count} requests at the engine"), DEADLINE, async || {
        let found = engine.state().in_flight;
        ensure!(found == count, "{found}");
        Ok(())
    })
    .await
    .unwrap();
}

async fn reported(prober: &ProberProcess, count: usize) {
    eventually(&format!("the prober hears of {count} in flight"), DEADLINE, async || {
        let endpoint = prober.endpoint("a").await?;
        ensure!(endpoint["signals"]["in_flight"] == count, "{endpoint}");
        Ok(())
    })
    .await
    .unwrap();
}

// The new Envoy takes the listener over, the old one finishes what it has; nobody notices, and together they keep the cap.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_restart_loses_nothing_and_keeps_the_cap() {
    const TOKENS: u32 = 400;
    let (engine, mut site) = site().await;
    let prober = site.prober().await;
    let gateway = free_address();
    // Envoy's base id is a name in shared memory: the test's own.
    let generation = Generation { base_id: gateway.port(), epoch: 0, parent_shutdown_s: 30 };
    let mut old = start(&site, &prober, gateway, Some(generation)).await;
    prober.ready(DEADLINE).await.unwrap();
    engine.reset_max();
    // All slots but two are taken for the time of the change.
    let streams = tokio::spawn(load::burst_at_once(gateway, CAP - 2, Call::chat_stream("m", "hello", TOKENS)));
    at_the_engine(&engine, CAP - 2).await;
    let newcomers = Newcomers::begin(gateway);
    let new = start(&site, &prober, gateway, Some(Generation { epoch: 1, ..generation })).await;
    eventually("the new one knows what the old one has", DEADLINE, async || {
        let decision = explained(&new).await.decision();
        let elsewhere = decision["candidates"][0]["elsewhere"].as_u64().unwrap_or_default();
        ensure!(elsewhere >= CAP as u64 - 2, "{decision}");
        Ok(())
    })
    .await
    .unwrap();
    engine.reset_max();
    // Of twelve, two are let in at a time.
    let crowd = tokio::spawn(load::burst_at_once(gateway, 12, Call::chat("m", "hello", 20)));
    let crowd = crowd.await.unwrap();
    assert_eq!(crowd.ok(), 12, "{:?}", crowd.by_status());
    let streams = streams.await.unwrap();
    let newcomers = newcomers.end().await;
    assert_eq!(streams.ok(), CAP - 2, "{:?}", streams.by_status());
    assert!(streams.outcomes.iter().all(|outcome| outcome.tokens == u64::from(TOKENS)));
    let lost: Vec<_> = newcomers.iter().filter(|outcome| !outcome.is_ok()).collect();
    println!(
        "{} newcomers during the restart, {} lost; at most {} at the engine",
        newcomers.len(),
        lost.len(),
        engine.state().in_flight_max
    );
    assert!(lost.is_empty(), "{lost:?}");
    // A newcomer may be let in by what was heard an interval ago.
    assert!(engine.state().in_flight_max <= CAP + 1, "{}", engine.state().in_flight_max);
    new.idle(DEADLINE).await.unwrap();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), old.process().wait()).await;
    assert!(ended.expect("the old one goes").unwrap().success());
    let after = load::burst_at_once(gateway, 2 * CAP, chat()).await;
    assert_eq!(after.ok(), 2 * CAP, "{:?}", after.by_status());
    new.idle(DEADLINE).await.unwrap();
    at_the_engine(&engine, 0).await;
}

// For those who cannot hot restart: drain, wait until nothing is served any more, stop.
#[tokio::test(flavor = "multi_thread")]
async fn drained_and_stopped_it_has_lost_nothing() {
    let (engine, mut site) = site().await;
    let prober = site.prober().await;
    let gateway = free_address();
    let mut envoy = start(&site, &prober, gateway, None).await;
    prober.ready(DEADLINE).await.unwrap();
    let streams = tokio::spawn(load::burst_at_once(gateway, CAP, Call::chat_stream("m", "hello", 200)));
    at_the_engine(&engine, CAP).await;
    let waiting = tokio::spawn(load::burst_at_once(gateway, 2, chat()));
    crate::common::queue::until_waiting(&envoy, 2).await;
    envoy.admin_post("/drain_listeners?graceful&skip_exit").await.unwrap();
    // Whoever asks now is served, and told to connect elsewhere.
    let told = eventually("clients are sent away", DEADLINE, async || {
        let outcome = load::send(gateway, Call::get("/v1/models")).await;
        ensure!(outcome.header("connection") == "close", "{outcome:?}");
        Ok(outcome)
    });
    assert!(told.await.unwrap().is_ok());
    let (streams, waiting) = (streams.await.unwrap(), waiting.await.unwrap());
    assert_eq!((streams.ok(), waiting.ok()), (CAP, 2), "{:?} {:?}", streams.by_status(), waiting.by_status());
    eventually("nothing is served any more", DEADLINE, async || {
        let active = envoy.stats().await?.get("http.gateway.downstream_rq_active");
        ensure!(active == 0, "{active}");
        Ok(())
    })
    .await
    .unwrap();
    envoy.process().terminate(DEADLINE).await.unwrap();
    at_the_engine(&engine, 0).await;
    assert_eq!(engine.state().cancelled_total, 0);
}

// Nobody drains before a kill: what was under way is lost and cancelled at the engine; clients that come back are served, and
// nothing of the dead Envoy's load is left in anybody's count.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_clients_come_back_and_counts_are_true() {
    let (engine, mut site) = site().await;
    let prober = site.prober().await;
    let gateway = free_address();
    let mut envoy = start(&site, &prober, gateway, None).await;
    prober.ready(DEADLINE).await.unwrap();
    let streams = tokio::spawn(load::burst_at_once(gateway, CAP, Call::chat_stream("m", "hello", 10_000)));
    at_the_engine(&engine, CAP).await;
    reported(&prober, CAP).await;
    envoy.process().kill().await.unwrap();
    let streams = streams.await.unwrap();
    assert_eq!(streams.ok(), 0);
    assert!(streams.outcomes.iter().all(|outcome| outcome.error.is_some()), "{:?}", streams.by_status());
    at_the_engine(&engine, 0).await;
    assert_eq!(engine.state().cancelled_total, CAP as u64);
    engine.reset_max();
    let back = std::time::Instant::now();
    let envoy = start(&site, &prober, gateway, None).await;
    applied(&prober).await;
    let first = eventually("served again", DEADLINE, async || {
        let outcome = load::send(gateway, chat()).await;
        ensure!(outcome.is_ok(), "{outcome:?}");
        Ok(())
    });
    first.await.unwrap();
    println!("served {:?} after the new Envoy was started", back.elapsed());
    reported(&prober, 0).await;
    // All slots, and no more.
    let report = load::burst_at_once(gateway, 3 * CAP, Call::chat("m", "hello", 20)).await;
    assert_eq!(report.ok(), 3 * CAP, "{:?}", report.by_status());
    assert_eq!(engine.state().in_flight_max, CAP);
    envoy.idle(DEADLINE).await.unwrap();
}
