//! Drain and removal in the real Envoy: conversations move, streams finish, and an endpoint leaves EDS when it is empty.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use harness::engine_sim::server::{EngineHandle, Fault, FaultKind};
use harness::load::{self, Call, Conversation, Held};
use harness::{Envoy, ProberProcess, artifacts, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::fleet::{text, turn};
use crate::common::{DEADLINE, Site, applied, chat, engine, even, in_state};

/// A stream that never ends by itself, held open at this engine.
async fn hold(envoy: &Envoy, engine: &EngineHandle) -> Held {
    let hang = Fault { kind: FaultKind::Hang, after_tokens: Some(1), ..Fault::default() };
    engine.set_fault(hang);
    loop {
        let stream = load::hold(envoy.gateway(), Call::chat_stream("m", "hold", 400)).await.unwrap();
        if stream.endpoint() == engine.name() {
            engine.set_fault(Fault::none());
            return stream;
        }
    }
}

/// Waits until an operator's drain has got so far.
async fn drain_is(prober: &ProberProcess, id: &str, state: &str) -> Value {
    eventually(&format!("{id} is {state}"), DEADLINE, async || {
        let endpoint = prober.endpoint(id).await?;
        ensure!(endpoint["drain"]["state"] == state, "{endpoint}");
        Ok(endpoint)
    })
    .await
    .unwrap()
}

async fn register(prober: &ProberProcess, engine: &EngineHandle) {
    let registration = json!({"pool": "m", "id": engine.name(), "address": engine.addr()});
    prober.post("/v1/endpoints", &registration).await.unwrap();
    in_state(prober, engine.name(), "ready").await;
    prober.ready(DEADLINE).await.unwrap();
    applied(prober).await;
}

/// Whether Envoy's cluster has this host.
async fn is_a_host(envoy: &Envoy, engine: &EngineHandle) -> Result<bool> {
    Ok(envoy.admin_page("/clusters").await?.contains(&format!("m::{}::", engine.addr())))
}

async fn forgotten(prober: &ProberProcess, id: &str) {
    eventually(&format!("{id} is forgotten"), DEADLINE, async || {
        let (status, answer) = prober.call(Method::GET, &format!("/v1/endpoints/{id}"), None).await?;
        ensure!(status == 404, "{answer}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_moves_conversations_says_how_far_it_is_and_outlives_the_prober() {
    let engines = [engine("a", even()).await, engine("b", even()).await];
    let mut site = Site::new(&[&engines[0], &engines[1]]);
    let (prober, envoy) = site.start(2).await;
    let mut conversation = Conversation::default();
    let first = turn(&envoy, &mut conversation, &text(2_000, 1), 8).await;
    let (home, other) = if first.endpoint() == "a" { (0, 1) } else { (1, 0) };
    let (home, other) = (&engines[home], &engines[other]);
    let held = hold(&envoy, home).await;

    let path = format!("/v1/endpoints/{}/drain", home.name());
    let (status, answer) = prober.call(Method::PUT, &path, Some(&json!({"deadline_s": 604_801}))).await.unwrap();
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_field")), "{answer}");
    let endpoint = prober.put(&path, &json!({"reason": "new fans", "deadline_s": 1})).await.unwrap();
    let drain = &endpoint["drain"];
    assert_eq!((&endpoint["state"], &drain["state"]), (&json!("draining"), &json!("draining")), "{endpoint}");
    assert!(drain["since"].is_string() && drain["deadline"].is_string() && drain["reason"] == "new fans", "{drain}");
    applied(&prober).await;
    eventually("the conversation moves", DEADLINE, async || {
        let moved = load::send(envoy.gateway(), conversation.clone().ask("m", "and then?", 8, false)).await;
        ensure!(moved.endpoint() == other.name(), "{moved:?}");
        Ok(())
    })
    .await
    .unwrap();
    turn(&envoy, &mut conversation, "and then?", 8).await;
    let stays = turn(&envoy, &mut conversation, "and then?", 8).await;
    assert_eq!((stays.endpoint(), &stays.decision()["reason"]), (other.name(), &json!("holder")));

    // Late: it says so, and goes on as before.
    let late = drain_is(&prober, home.name(), "overdue").await;
    assert_eq!((&late["state"], &late["drain"]["in_flight"]), (&json!("draining"), &json!(1)), "{late}");
    // The alarm comes with the prober's next look.
    eventually("the alarm", DEADLINE, async || {
        let endpoint = prober.endpoint(home.name()).await?;
        ensure!(endpoint["alarm"].as_str().is_some_and(|alarm| alarm.contains("1 requests left")), "{endpoint}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(is_a_host(&envoy, home).await.unwrap());

    prober.terminate().await.unwrap();
    let prober = site.prober().await;
    let again = drain_is(&prober, home.name(), "overdue").await;
    for field in ["reason", "since", "deadline"] {
        assert_eq!(again["drain"][field], late["drain"][field], "{field}");
    }
    assert_eq!(again["state"], "draining");
    drop(held);
    let empty = drain_is(&prober, home.name(), "drained").await;
    assert_eq!((&empty["state"], &empty["drain"]["in_flight"]), (&json!("draining"), &json!(0)), "{empty}");
    assert!(is_a_host(&envoy, home).await.unwrap());
    eventually("the alarm is over", DEADLINE, async || {
        let endpoint = prober.endpoint(home.name()).await?;
        ensure!(endpoint["alarm"].is_null(), "{endpoint}");
        Ok(())
    })
    .await
    .unwrap();

    let back = prober.delete(&path).await.unwrap();
    assert_eq!((&back["state"], &back["drain"]), (&json!("ready"), &Value::Null));
    eventually("both serve again", DEADLINE, async || {
        ensure!(load::closed_loop(envoy.gateway(), 4, 40, |_| chat()).await.by_engine().len() == 2);
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_endpoint_leaves_eds_when_it_is_empty() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a]);
    let (prober, envoy) = site.start(2).await;
    register(&prober, &b).await;
    let held = hold(&envoy, &b).await;
    let endpoint = prober.delete("/v1/endpoints/b").await.unwrap();
    assert_eq!((&endpoint["state"], &endpoint["drain"]), (&json!("draining"), &Value::Null));
    applied(&prober).await;
    // Looked at, several times, after every Envoy had heard of it: it is there for as long as the stream is.
    for _ in 0..3 {
        let endpoint = eventually("it is looked at", DEADLINE, async || {
            let endpoint = prober.endpoint("b").await?;
            ensure!(endpoint["removal"]["in_flight"] == 1, "{endpoint}");
            Ok(endpoint)
        });
        let endpoint = endpoint.await.unwrap();
        assert_eq!((&endpoint["state"], &endpoint["removal"]["state"]), (&json!("draining"), &json!("draining")));
        assert!(is_a_host(&envoy, &b).await.unwrap());
        let report = load::closed_loop(envoy.gateway(), 4, 60, |_| chat()).await;
        assert_eq!((report.ok(), report.by_engine().get("b")), (60, None), "{:?}", report.by_engine());
    }
    drop(held);
    let dropped = Instant::now();
    forgotten(&prober, "b").await;
    println!("forgotten {:?} after its last request", dropped.elapsed());
    eventually("Envoy has it no more", DEADLINE, async || {
        ensure!(!is_a_host(&envoy, &b).await?);
        Ok(())
    })
    .await
    .unwrap();
    envoy.idle(DEADLINE).await.unwrap();
}

// At its deadline an endpoint goes, whatever runs there: EDS without it does not touch a stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_outlives_the_removal_of_its_endpoint() {
    const TOKENS: u32 = 2_000;
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a]);
    site.config["drain"] = json!({"deadline": "0s"});
    let (prober, envoy) = site.start(2).await;
    register(&prober, &b).await;
    prober.put("/v1/endpoints/a/pin", &json!({"weight": 0.01})).await.unwrap();
    applied(&prober).await;
    let stream = eventually("a stream runs there", DEADLINE, async || {
        let stream = load::hold(envoy.gateway(), Call::chat_stream("m", "hello", TOKENS)).await?;
        ensure!(stream.endpoint() == "b", "it went to {}", stream.endpoint());
        Ok(stream)
    });
    let stream = tokio::spawn(stream.await.unwrap().finish());
    prober.delete("/v1/endpoints/b").await.unwrap();
    forgotten(&prober, "b").await;
    eventually("Envoy has it no more", DEADLINE, async || {
        ensure!(!is_a_host(&envoy, &b).await?);
        Ok(())
    })
    .await
    .unwrap();
    assert!(!stream.is_finished(), "the stream was to outlive the removal");
    let outcome = stream.await.unwrap();
    assert!(outcome.is_ok() && outcome.tokens == u64::from(TOKENS), "{outcome:?}");
    println!("removed under a stream, which had all of its {} tokens", outcome.tokens);
    assert_eq!(b.state().cancelled_total, 0);
    envoy.idle(DEADLINE).await.unwrap();
}

/// The recipe as the documentation has it.
fn recipe() -> String {
    let page = std::fs::read_to_string(artifacts::root().join("docs/health.md")).unwrap();
    let (_, rest) = page.split_once("\n## Rolling restart\n").unwrap();
    let (_, block) = rest.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

// Every engine is restarted, one by one, under load, with the commands of docs/health.md.
#[tokio::test(flavor = "multi_thread")]
async fn the_rolling_restart_of_the_documentation_loses_nothing() {
    let (a, b) = (engine("rtx6000", even()).await, engine("pair4090", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    let script = recipe().replace("http://127.0.0.1:7070", &format!("http://{}", prober.api()));
    assert!(script.contains(&prober.api().to_string()), "{script}");
    // What stands in for systemd restarts the simulated engine.
    let bin = tempfile::tempdir().unwrap();
    let restart = |engine: &EngineHandle| {
        format!("*@{}) exec curl -fsS -o /dev/null -X POST {}/sim/restart;;\n", engine.name(), engine.url())
    };
    let systemctl = format!("#!/bin/sh\ncase \"$1 $2\" in\n{}{}esac\nexit 1\n", restart(&a), restart(&b));
    let path = bin.path().join("systemctl");
    std::fs::write(&path, systemctl).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();

    let over = Arc::new(AtomicBool::new(false));
    let (stop, target) = (over.clone(), envoy.gateway());
    let load = tokio::spawn(async move {
        let (mut sent, mut failed) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let report = load::closed_loop(target, 8, 40, |_| Call::chat_stream("m", "hello", 20)).await;
            sent += report.outcomes.len();
            failed.extend(report.outcomes.into_iter().filter(|outcome| !outcome.is_ok() || outcome.tokens != 20));
        }
        (sent, failed)
    });
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = tokio::process::Command::new("bash");
    command.args(["-eu", "-c", &script]).env("PATH", path).current_dir(bin.path()).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE * 4, command.output()).await.context("the recipe hangs").unwrap();
    let output = output.unwrap();
    over.store(true, Ordering::Relaxed);
    let (sent, failed) = load.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    println!("{sent} requests during a rolling restart of two engines: {} failed", failed.len());
    assert!(failed.is_empty(), "{failed:?}");
    for engine in [&a, &b] {
        assert_eq!(engine.state().restarts, 1, "{}", engine.name());
        let endpoint = prober.endpoint(engine.name()).await.unwrap();
        assert_eq!((&endpoint["state"], &endpoint["drain"]), (&json!("ready"), &Value::Null));
    }
    envoy.idle(DEADLINE).await.unwrap();
}
