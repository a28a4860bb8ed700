//! Without the prober, routing goes on; when it is back, nothing else needs a restart.

use std::time::Instant;

use anyhow::ensure;
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually, load};
use serde_json::json;

use crate::common::{DEADLINE, Site, applied, chat, decided_with, engine, even};

#[tokio::test(flavor = "multi_thread")]
async fn envoy_outlives_the_prober_and_starts_without_it() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    prober.put("/v1/endpoints/a/pin", &json!({"weight": 3.0, "reason": "outage"})).await.unwrap();
    decided_with(&envoy, "a", 3.0).await;
    let xds = prober.xds();
    prober.kill().await.unwrap();
    let report = load::closed_loop(envoy.gateway(), 8, 400, |_| chat()).await;
    println!("prober killed: {} of 400 answered, {:?}", report.ok(), report.by_engine());
    assert!(report.ok() == 400 && report.by_engine()["a"] > report.by_engine()["b"], "{:?}", report.by_status());
    decided_with(&envoy, "a", 3.0).await;

    // Another one starts while there is nobody to ask: its static snapshot serves, here of `b` alone.
    let options = EnvoyOptions {
        snapshot: Some(snapshot(vec![pool("m", vec![endpoint("b", b.addr(), 1.0)])])),
        edit: Some(Box::new(|config| config["node"]["id"] = "late".into())),
        ..EnvoyOptions::with_xds(xds)
    };
    let start = Instant::now();
    let late = Envoy::start(options).await.unwrap();
    let outcome = load::send(late.gateway(), chat()).await;
    println!("Envoy without a prober: first answer {:?} after its start", start.elapsed());
    assert!(outcome.is_ok() && outcome.engine() == "b", "{outcome:?}");

    let prober = site.prober().await;
    assert_eq!(prober.xds(), xds);
    let back = Instant::now();
    eventually("both Envoys are connected", DEADLINE, async || {
        let answer = prober.get("/v1/envoys").await?;
        let envoys = answer["envoys"].as_array().map_or(0, |envoys| {
            envoys.iter().filter(|envoy| envoy["connected"] == true && envoy["last_nack"].is_null()).count()
        });
        ensure!(envoys == 2, "{answer}");
        Ok(())
    })
    .await
    .unwrap();
    prober.ready(DEADLINE).await.unwrap();
    applied(&prober).await;
    println!("prober back: both Envoys have its snapshot after {:?}", back.elapsed());
    for envoy in [&envoy, &late] {
        decided_with(envoy, "a", 3.0).await;
        assert_eq!(load::closed_loop(envoy.gateway(), 4, 50, |_| chat()).await.ok(), 50);
    }
    prober.put("/v1/endpoints/a/pin", &json!({"weight": 5.0})).await.unwrap();
    for envoy in [&envoy, &late] {
        decided_with(envoy, "a", 5.0).await;
    }
    prober.terminate().await.unwrap();
}
