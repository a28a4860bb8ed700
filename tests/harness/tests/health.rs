//! Active health: hangs behind a healthy answer, metrics that fail, all gone and back; with the real programs.

use std::time::Instant;

use anyhow::{Context, ensure};
use harness::engine_sim::server::{EngineHandle, Fault, FaultKind};
use harness::load::{self, Call, Held};
use harness::{Envoy, ProberProcess, eventually};
use serde_json::{Value, json};

use crate::common::{DEADLINE, Site, applied, chat, engine, even, in_state};

/// Waits until requests are answered by exactly these.
async fn answered_by(envoy: &Envoy, names: &[&str]) {
    eventually(&format!("{names:?} answer"), DEADLINE, async || {
        let report = load::closed_loop(envoy.gateway(), 4, 40, |_| chat()).await;
        let by: Vec<String> = report.by_engine().into_keys().collect();
        ensure!(report.ok() == 40 && by == names, "{by:?} {:?}", report.by_status());
        Ok(())
    })
    .await
    .unwrap();
}

/// Requests for one token with this result, as the prober counts them.
async fn token_checks(prober: &ProberProcess, result: &str) -> u64 {
    let metrics = reqwest::get(format!("http://{}/metrics", prober.api())).await.unwrap().text().await.unwrap();
    let line = format!("weighbridge_prober_token_checks_total{{pool=\"m\",result=\"{result}\"}} ");
    let count = metrics.lines().find_map(|known| known.strip_prefix(&line)?.parse().ok());
    count.unwrap_or(0)
}

/// Streams that never end by themselves, held open at an engine.
async fn hold(envoy: &Envoy, engines: [&EngineHandle; 2], at: &str, count: usize) -> Vec<Held> {
    for engine in engines {
        engine.set_fault(Fault { kind: FaultKind::Hang, after_tokens: Some(1), ..Fault::default() });
    }
    // Those elsewhere are held meanwhile: else the next would go there again.
    let mut held: Vec<Held> = Vec::new();
    while held.iter().filter(|stream| stream.endpoint() == at).count() < count {
        held.push(load::hold(envoy.gateway(), Call::chat_stream("m", "hold", 8)).await.unwrap());
    }
    held.retain(|stream| stream.endpoint() == at);
    for engine in engines {
        engine.set_fault(Fault::none());
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_answers_and_generates_nothing_is_out_until_a_token_comes() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    site.config["health"] = json!({"interval": "100ms", "generate_every": "300ms", "generate_timeout": "2s"});
    let (prober, envoy) = site.start(2).await;
    a.set_fault(Fault::hang());
    let hangs = Instant::now();
    let endpoint = in_state(&prober, "a", "unhealthy").await;
    println!("unhealthy {:?} after generation hung, with a check every 300 ms that may take 2 s", hangs.elapsed());
    let health = &endpoint["health"];
    assert_eq!(health["last_error"], "answers /health, but generated no token within 2s");
    assert_eq!((&health["healthy"], &health["answers"]), (&json!(false), &json!(true)), "{endpoint}");
    assert!(health["last_token"].is_string(), "{endpoint}");
    applied(&prober).await;
    assert_eq!(envoy.stats().await.unwrap().get("cluster.m.upstream_rq_total"), 0, "checks never pass the gateway");
    answered_by(&envoy, &["b"]).await;

    // It stays out while it hangs, and is asked again and again.
    let asked = token_checks(&prober, "nothing").await;
    eventually("it is asked again", DEADLINE, async || {
        assert_eq!(prober.endpoint("a").await?["state"], "unhealthy");
        ensure!(token_checks(&prober, "nothing").await > asked);
        Ok(())
    })
    .await
    .unwrap();
    a.set_fault(Fault::none());
    let well = Instant::now();
    let endpoint = in_state(&prober, "a", "ready").await;
    println!("ready {:?} after it generated again", well.elapsed());
    assert!(endpoint["health"]["last_error"].is_null(), "{endpoint}");
    applied(&prober).await;
    answered_by(&envoy, &["a", "b"]).await;

    // Checks and bursts keep out of each other's way.
    let probe = prober.post("/v1/endpoints/a/probe?wait=true", &Value::Null).await.unwrap();
    assert!(probe["throughput_tps"].is_f64() && probe["error"].is_null(), "{probe}");
    envoy.idle(DEADLINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_restarts_out_of_a_hang_is_back_with_its_first_token() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    site.config["health"] = json!({"interval": "100ms", "generate_every": "300ms", "generate_timeout": "2s"});
    let (prober, envoy) = site.start(2).await;
    let epoch = prober.endpoint("a").await.unwrap()["epoch"].clone();
    a.set_fault(Fault::hang());
    in_state(&prober, "a", "unhealthy").await;
    a.kill().await;
    eventually("it does not answer", DEADLINE, async || {
        ensure!(prober.endpoint("a").await?["health"]["answers"] == false);
        Ok(())
    })
    .await
    .unwrap();
    a.set_fault(Fault::none());
    a.revive().await.unwrap();
    let revived = Instant::now();
    let endpoint = in_state(&prober, "a", "ready").await;
    println!("ready {:?} after the restart", revived.elapsed());
    // The same arguments: the weight is kept, what it held in its cache is not.
    assert_eq!(endpoint["weight_source"], "measured");
    eventually("another life of the engine", DEADLINE, async || {
        let endpoint = prober.endpoint("a").await?;
        ensure!(endpoint["epoch"] != epoch, "{endpoint}");
        Ok(())
    })
    .await
    .unwrap();
    applied(&prober).await;
    answered_by(&envoy, &["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_asked_for_only_where_none_come() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    site.config["health"] = json!({"interval": "100ms", "generate_every": "2s"});
    let (prober, envoy) = site.start(2).await;
    let busy = async |requests| {
        let report = load::closed_loop(envoy.gateway(), 4, requests, |_| Call::chat("m", "hello", 40)).await;
        assert_eq!(report.ok(), requests, "{:?}", report.by_status());
        report.by_engine()
    };
    busy(20).await;
    let met = [&a, &b].map(|engine| engine.state().requests_total);
    // 200 tokens/s each: six seconds at least.
    let by = busy(120).await;
    for (engine, met) in [&a, &b].into_iter().zip(met) {
        assert_eq!(engine.state().requests_total - met, by[engine.name()] as u64, "{} was asked", engine.name());
    }
    eventually("a quiet engine is asked for one token", DEADLINE, async || {
        let last = a.records().pop().context("no record")?;
        ensure!(last.output_tokens == 1, "{last:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(token_checks(&prober, "token").await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_generates_nothing_by_design_stays_in_service() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    site.config["health"] = json!({"path": "/ping", "interval": "100ms", "generate_every": "200ms"});
    let (prober, _envoy) = site.start(2).await;
    // As an engine of embeddings answers to a chat.
    a.set_fault(Fault::status(400));
    eventually("it has declined several times", DEADLINE, async || {
        assert_eq!(prober.endpoint("a").await?["state"], "ready");
        let declined = token_checks(&prober, "declined").await;
        ensure!(declined >= 3, "{declined}");
        Ok(())
    })
    .await
    .unwrap();
}

// Case C3: checks of every outcome, while requests are in flight.
#[tokio::test(flavor = "multi_thread")]
async fn c3_health_checks_leave_what_is_in_flight_alone() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    site.config["health"] = json!({"interval": "50ms"});
    let (prober, envoy) = site.start(2).await;
    let held = hold(&envoy, [&a, &b], "a", 3).await;
    let three = async || {
        eventually("three are in flight", DEADLINE, async || {
            ensure!(envoy.stats().await?.in_flight("m", "a") == 3);
            ensure!(prober.endpoint("a").await?["signals"]["in_flight"] == 3);
            Ok(())
        })
        .await
        .unwrap();
    };
    three().await;
    for (fault, state) in [
        (Fault { requests: false, health: true, ..Fault::status(503) }, "unhealthy"),
        (Fault::none(), "ready"),
        (Fault { requests: false, health: true, ..Fault::reset_before_headers() }, "unhealthy"),
        (Fault::none(), "ready"),
    ] {
        a.set_fault(fault);
        eventually(&format!("a is {state}"), DEADLINE, async || {
            assert_eq!(envoy.stats().await?.in_flight("m", "a"), 3);
            let endpoint = prober.endpoint("a").await?;
            ensure!(endpoint["state"] == state, "{endpoint}");
            Ok(())
        })
        .await
        .unwrap();
        applied(&prober).await;
        three().await;
    }
    drop(held);
    envoy.idle(DEADLINE).await.unwrap();
}

// Case C18: an engine whose metrics fail is neither unhealthy nor full.
#[tokio::test(flavor = "multi_thread")]
async fn c18_metrics_that_fail_change_no_health() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    for fault in [Fault::hang(), Fault::status(500), Fault::reset_before_headers()] {
        a.set_fault(Fault { requests: false, metrics: true, ..fault });
        eventually("its figures are stale", DEADLINE, async || {
            let endpoint = prober.endpoint("a").await?;
            assert_eq!((&endpoint["state"], &endpoint["health"]["healthy"]), (&json!("ready"), &json!(true)));
            ensure!(endpoint["signals"]["stale"] == true && endpoint["signals"]["error"].is_string(), "{endpoint}");
            Ok(())
        })
        .await
        .unwrap();
        let report = load::closed_loop(envoy.gateway(), 4, 80, |_| chat()).await;
        assert_eq!((report.ok(), report.by_engine().len()), (80, 2), "{:?}", report.by_engine());
        assert_eq!(prober.endpoint("a").await.unwrap()["state"], "ready");
        a.set_fault(Fault::none());
        eventually("its figures are fresh", DEADLINE, async || {
            ensure!(prober.endpoint("a").await?["signals"]["stale"] == false);
            Ok(())
        })
        .await
        .unwrap();
    }
}

// Case C16 with the prober and its default settings: all engines are killed and come back.
#[tokio::test(flavor = "multi_thread")]
async fn c16_all_gone_and_back_with_a_prober() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    site.config["health"] = json!({});
    let (prober, envoy) = site.start(2).await;
    assert_eq!(load::closed_loop(envoy.gateway(), 8, 100, |_| chat()).await.ok(), 100);
    for engine in [&a, &b] {
        engine.kill().await;
    }
    let killed = Instant::now();
    for engine in [&a, &b] {
        in_state(&prober, engine.name(), "unhealthy").await;
    }
    println!("both unhealthy {:?} after they were killed", killed.elapsed());
    applied(&prober).await;
    let down = load::closed_loop(envoy.gateway(), 8, 100, |_| chat()).await;
    assert_eq!(down.by_status().into_iter().collect::<Vec<_>>(), [("503".to_owned(), 100)]);
    assert!(down.outcomes.iter().all(|outcome| outcome.json()["error"]["message"].is_string()));
    a.revive().await.unwrap();
    let revived = Instant::now();
    eventually("one answer", DEADLINE, async || {
        ensure!(load::send(envoy.gateway(), chat()).await.is_ok());
        Ok(())
    })
    .await
    .unwrap();
    println!("first answer {:?} after the first engine was back", revived.elapsed());
    b.revive().await.unwrap();
    answered_by(&envoy, &["a", "b"]).await;
    envoy.idle(DEADLINE).await.unwrap();
}

// What refuses connections is out with the first check, what is merely late is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_proof_and_a_late_answer_is_not() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    // Nobody is unhealthy by failures in a row here.
    site.config["health"] = json!({"interval": "100ms", "timeout": "100ms", "unhealthy_after": 1_000_000});
    let (prober, _envoy) = site.start(2).await;
    a.set_fault(Fault { requests: false, health: true, ..Fault::hang() });
    eventually("a check is late", DEADLINE, async || {
        let endpoint = prober.endpoint("a").await?;
        assert_eq!(endpoint["state"], "ready");
        ensure!(endpoint["health"]["last_error"].is_string());
        Ok(())
    })
    .await
    .unwrap();
    b.kill().await;
    in_state(&prober, "b", "unhealthy").await;
    assert_eq!(prober.endpoint("a").await.unwrap()["state"], "ready");
}

// A prober that has lost its way to an engine must not close what serves.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_completes_answers_is_not_closed_for_silent_checks() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    // Two seconds of silence close it.
    site.config["health"] = json!({"interval": "100ms", "timeout": "100ms", "unhealthy_after": 20});
    let (prober, envoy) = site.start(2).await;
    a.set_fault(Fault { requests: false, health: true, ..Fault::hang() });
    let mut served = 0;
    // A sixth of a second each, two at a time there: three times as long as silence may last.
    while served < 80 {
        let report = load::closed_loop(envoy.gateway(), 4, 24, |_| Call::chat("m", "hello", 32)).await;
        assert_eq!(report.ok(), 24, "{:?}", report.by_status());
        let by_a = report.by_engine().get("a").copied().unwrap_or_default();
        assert!(by_a > 0, "a was closed after {served} answers");
        served += by_a;
    }
    assert!(prober.endpoint("a").await.unwrap()["health"]["last_error"].is_string(), "its checks were late meanwhile");
    // Nothing comes from it any more.
    in_state(&prober, "a", "unhealthy").await;
    answered_by(&envoy, &["b"]).await;
}
