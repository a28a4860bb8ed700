//! The fleet as people watch it, with the real Envoy: a probe on its way, and an ejection.

use std::time::Duration;

use harness::engine_sim::model::Profile;
use harness::engine_sim::server::Fault;
use harness::{Events, ProberProcess, load};
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::{Site, chat, engine, number};

/// 50 tokens/s each, whatever the load.
fn slow() -> Profile {
    Profile::new("slow", &[(1, 50.0), (64, 3_200.0)])
}

fn of<'a>(fleet: &'a Value, id: &str) -> &'a Value {
    let endpoints = fleet["endpoints"].as_array().unwrap();
    endpoints.iter().find(|endpoint| endpoint["id"] == id).unwrap_or(&Value::Null)
}

/// Asks for a probe, and watches it until it is over: what was seen of it.
async fn watched(prober: &ProberProcess, events: &mut Events, id: &str) -> Vec<Value> {
    let (status, answer) = prober.call(Method::POST, &format!("/v1/endpoints/{id}/probe"), None).await.unwrap();
    assert_eq!(status, 202, "{answer}");
    let mut seen = Vec::new();
    events
        .until("the probe is over", |fleet| {
            let burst = &of(fleet, id)["burst"];
            if !burst.is_null() {
                assert_eq!(of(fleet, id)["state"], "probing", "{fleet}");
                seen.push(burst.clone());
            }
            burst.is_null() && !seen.is_empty()
        })
        .await
        .unwrap();
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_and_an_ejection_are_seen_as_they_happen() {
    let (good, bad) = (engine("good", slow()).await, engine("bad", slow()).await);
    let mut site = Site::new(&[&good, &bad]);
    // Bursts of a good two seconds, and a prompt of half as long.
    site.config["probe"] = json!({"concurrency": 4, "tokens": 100, "prefill_tokens": 1_000});
    let (prober, envoy) = site.start(2).await;
    let mut events = prober.events().await.unwrap();
    let first = events.next().await.unwrap().unwrap();
    assert!(first["ready"] == true && first["envoys"].as_array().unwrap().len() == 1, "{first}");
    assert_eq!((&of(&first, "good")["burst"], &of(&first, "good")["ejected"]), (&Value::Null, &json!(0)));

    let seen = watched(&prober, &mut events, "good").await;
    let mut phases: Vec<&str> = seen.iter().map(|burst| burst["phase"].as_str().unwrap()).collect();
    phases.dedup();
    println!("{} documents during the probe: {phases:?}", seen.len());
    let place = |phase: &str| phases.iter().position(|seen| *seen == phase);
    assert!(place("warmup").unwrap() < place("kept").unwrap(), "{phases:?}");
    assert!(seen.iter().all(|burst| burst["kind"] == "demand" && burst["forced"] == false), "{seen:?}");
    for burst in seen.iter().filter(|burst| ["warmup", "kept"].contains(&burst["phase"].as_str().unwrap())) {
        assert_eq!((&burst["of"], burst["warmup_tps"].is_null()), (&json!(4), burst["phase"] == "warmup"), "{burst}");
        // It was measured before: a burst is expected to take as long as it did then.
        let endpoint = of(&first, "good");
        let last_ms = 400.0 / number(&endpoint["throughput_tps"]) * 1e3;
        assert!((number(&burst["expected_ms"]) - last_ms).abs() <= 1.0, "{burst} {endpoint}");
    }

    bad.set_fault(Fault::status(500));
    let gateway = envoy.gateway();
    let requests = tokio::spawn(load::closed_loop(gateway, 4, 60, |_| chat()));
    let is = |count: u64| move |fleet: &Value| of(fleet, "bad")["ejected"] == count;
    let fleet = events.until("it is ejected", is(1)).await.unwrap();
    assert_eq!((&of(&fleet, "bad")["state"], &of(&fleet, "good")["ejected"]), (&json!("ready"), &json!(0)), "{fleet}");
    requests.await.unwrap();
    bad.set_fault(Fault::none());
    harness::eventually("it serves again", Duration::from_secs(60), async || {
        let outcome = load::closed_loop(gateway, 8, 16, |_| chat()).await;
        anyhow::ensure!(outcome.by_engine().contains_key("bad"), "{outcome:?}");
        Ok(())
    })
    .await
    .unwrap();
    let fleet = events.until("it is back", is(0)).await.unwrap();
    // What the Envoy has in flight is the page's figure, too.
    assert!(of(&fleet, "bad")["in_flight"].is_u64() && fleet["pools"][0]["in_flight"].is_u64(), "{fleet}");
    prober_stops_while_watched(prober, events).await;
}

/// Streams do not hold a prober up that is told to stop.
async fn prober_stops_while_watched(prober: ProberProcess, mut events: Events) {
    let ends = async { while events.next().await.is_ok_and(|document| document.is_some()) {} };
    let (stopped, ()) = tokio::join!(prober.terminate(), ends);
    stopped.unwrap();
}
