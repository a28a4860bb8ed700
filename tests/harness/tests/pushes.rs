//! Configuration pushes under traffic: nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use harness::engine_sim::model::Profile;
use harness::load::{self, Call};
use serde_json::json;

use crate::common::{DEADLINE, Site, applied, chat, decided_with, engine, in_state};

#[tokio::test(flavor = "multi_thread")]
async fn a_push_while_requests_stream_loses_none() {
    const TOKENS: u32 = 600;
    // 50 tokens/s each, so that the streams outlive the pushes and two cores can carry them; nobody waits in an engine.
    let steady = || {
        let mut profile = Profile::new("steady", &[(1, 50.0), (256, 12_800.0)]);
        profile.batch_limit = 256;
        profile
    };
    let (a, b, c) = (engine("a", steady()).await, engine("b", steady()).await, engine("c", steady()).await);
    let mut site = Site::new(&[&a, &b]);
    site.config["pools"][0]["admission"] = json!({"base_cap": 400});
    let (prober, envoy) = site.start(3).await;
    let target = envoy.gateway();
    let streams = tokio::spawn(load::burst_at_once(target, 64, Call::chat_stream("m", "hello", TOKENS)));
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let newcomers = tokio::spawn(async move {
        let (mut sent, mut failed) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let report = load::burst_at_once(target, 16, Call::chat("m", "hello", 2)).await;
            sent += report.outcomes.len();
            failed.extend(report.outcomes.into_iter().filter(|outcome| !outcome.is_ok() || outcome.tokens != 2));
        }
        (sent, failed)
    });
    let start = Instant::now();
    // In a row, as fast as they go; then again, each after the one before has been applied.
    for nth in 0..100 {
        let weight = 1.0 + f64::from(nth) / 100.0;
        prober.put("/v1/endpoints/a/pin", &json!({"weight": weight})).await.unwrap();
        if nth == 25 {
            let registration = json!({"pool": "m", "id": "c", "address": c.addr()});
            prober.post("/v1/endpoints", &registration).await.unwrap();
        }
        if nth >= 50 {
            applied(&prober).await;
        }
    }
    decided_with(&envoy, "a", 1.99).await;
    let endpoint = in_state(&prober, "c", "ready").await;
    assert_eq!(endpoint["weight_source"], "measured");
    applied(&prober).await;
    let pushing = start.elapsed();
    assert!(!streams.is_finished(), "the streams were to outlive the pushes");
    over.store(true, Ordering::Relaxed);
    let (sent, failed) = newcomers.await.unwrap();
    let streams = streams.await.unwrap();
    println!(
        "{sent} requests and {} streams met 100 pins and a newcomer in {pushing:?}: {} and {} lost",
        streams.outcomes.len(),
        failed.len(),
        64 - streams.ok()
    );
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(streams.ok(), 64, "{:?}", streams.by_status());
    assert!(streams.outcomes.iter().all(|outcome| outcome.tokens == u64::from(TOKENS)));
    envoy.idle(DEADLINE).await.unwrap();
    let after = load::burst_at_once(target, 30, chat()).await;
    assert!(after.ok() == 30 && after.by_engine().len() == 3, "{:?}", after.by_engine());
    envoy.idle(DEADLINE).await.unwrap();
    for engine in [&a, &b, &c] {
        assert_eq!((engine.state().in_flight, engine.state().cancelled_total), (0, 0), "{}", engine.name());
    }
    assert!(envoy.log().lines().all(|line| !line.contains("panicked")), "{}", envoy.log());
}
