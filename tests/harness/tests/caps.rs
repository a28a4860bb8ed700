//! Measured caps from the sweep to the engines: nobody runs more than its knee, and a newcomer changes nobody else's.

use std::time::Duration;

use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::load::{self, Call};
use harness::upstream::{Reply, Upstream};
use harness::{Envoy, ProberProcess, eventually};
use serde_json::{Value, json};

use crate::common::{DEADLINE, Site, applied, number};

/// Four times as fast as its profile.
const SCALE: f64 = 4.0;

async fn engine(name: &str, profile: Profile) -> EngineHandle {
    let config = EngineConfig {
        name: name.into(),
        model: "m".into(),
        profile,
        time_scale: SCALE,
        cold: false,
        ..EngineConfig::default()
    };
    EngineHandle::start(config).await.unwrap()
}

/// Waits until an endpoint is swept and in service.
async fn swept(prober: &ProberProcess, id: &str) -> Value {
    eventually(&format!("{id} is swept"), Duration::from_secs(90), async || {
        let endpoint = prober.endpoint(id).await?;
        ensure!(endpoint["weight_source"] == "measured" && endpoint["state"] == "ready", "{endpoint}");
        Ok(endpoint)
    })
    .await
    .unwrap()
}

fn cap(endpoint: &Value) -> u64 {
    assert_eq!(endpoint["cap_source"], "measured", "{endpoint}");
    endpoint["max_in_flight"].as_u64().unwrap()
}

/// Many more requests at once than the caps let in; the most that each engine ran.
async fn overload(envoy: &Envoy, engines: &[&EngineHandle]) -> Vec<usize> {
    for engine in engines {
        engine.reset_max();
    }
    let report = load::closed_loop(envoy.gateway(), 96, 600, |_| Call::chat("m", "tell me a story", 64)).await;
    println!("600 requests, 96 at once: {:?}", report.by_status());
    assert!(report.ok() > 0 && report.by_status().keys().all(|status| ["200", "429"].contains(&status.as_str())));
    // Not what is under way at the HTTP level: the gateway may hear of an answer's end before the engine has closed its books.
    engines.iter().map(|engine| engine.state().running_max).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_engine_runs_more_than_its_measured_cap_and_a_newcomer_changes_nobodys() {
    let (fast, pair) = (engine("fast", Profile::fast()).await, engine("pair", Profile::pair()).await);
    let mut site = Site::new(&[&fast, &pair]);
    site.config["probe"] = json!({"concurrency": 8, "tokens": 48, "prefill_tokens": 0, "sweep_max": 64});
    site.config["pools"][0]["admission"] = json!({"cap": "measured", "min_tps": 30.0 * SCALE});
    let prober = site.prober().await;
    let envoy = site.envoy(&prober, 2).await;
    let (first, second) = (swept(&prober, "fast").await, swept(&prober, "pair").await);
    let (of_fast, of_pair) = (cap(&first), cap(&second));
    applied(&prober).await;
    let ran = overload(&envoy, &[&fast, &pair]).await;
    println!("caps {of_fast} and {of_pair}; the most that the engines ran: {ran:?}");
    assert!(ran[0] as u64 <= of_fast && ran[1] as u64 <= of_pair, "{ran:?}");
    assert!(ran[0] as u64 * 2 > of_fast && ran[1] as u64 * 2 > of_pair, "it was no overload: {ran:?}");

    let small = engine("small", Profile::small()).await;
    prober.post("/v1/endpoints", &json!({"pool": "m", "id": "small", "address": small.addr()})).await.unwrap();
    let of_small = cap(&swept(&prober, "small").await);
    for (id, before) in [("fast", &first), ("pair", &second)] {
        let after = prober.endpoint(id).await.unwrap();
        assert_eq!((&after["knee"], &after["curve"]), (&before["knee"], &before["curve"]));
        assert_ne!(after["weight"], before["weight"], "weights are relative");
        // Unless serving has refined it meanwhile, which takes a minute of it.
        if after["observed"] == json!([]) {
            assert_eq!(cap(&after), cap(before));
        }
    }
    applied(&prober).await;
    let caps = [of_fast, of_pair, of_small];
    let ran = overload(&envoy, &[&fast, &pair, &small]).await;
    println!("caps {caps:?}; the most that the engines ran: {ran:?}");
    for (ran, (cap, name)) in ran.iter().zip(caps.iter().zip(["fast", "pair", "small"])) {
        let now = self::cap(&prober.endpoint(name).await.unwrap());
        assert!(*ran as u64 <= *cap.max(&now), "{name}: {ran} of {cap}");
    }
}

// What an engine sends under the filter's names does not pass the cluster that the prober has made.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_cannot_speak_for_the_filter() {
    let headers = vec![("x-weighbridge-endpoint", "forged".to_owned()), ("x-weighbridge-decision", "{}".to_owned())];
    let reply = Reply { headers, ..Reply::json(r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#) };
    let upstream = Upstream::start(reply).await.unwrap();
    let mut site = Site::new(&[]);
    site.config["pools"][0]["endpoints"] = json!([{"id": "true", "address": upstream.addr(), "max_in_flight": 3}]);
    let (prober, envoy) = site.start(2).await;
    let endpoint = prober.endpoint("true").await.unwrap();
    assert_eq!((&endpoint["cap_source"], number(&endpoint["max_in_flight"])), (&json!("hand"), 3.0));
    let answered = eventually("an answer through the prober's cluster", DEADLINE, async || {
        let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
        ensure!(outcome.is_ok(), "{outcome:?}");
        Ok(outcome)
    });
    let outcome = answered.await.unwrap();
    assert_eq!((outcome.header("x-weighbridge-endpoint"), outcome.header("x-weighbridge-decision")), ("true", ""));
}
