//! Decision records on their way: from a real Envoy to the prober, found there, and explained by the program that an
//! operator would run; in the access log; and nothing of a prompt in any of it.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::engine_sim::server::Fault;
use harness::load::{self, Call};
use harness::{ProberProcess, artifacts, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::common::{DEADLINE, Site, chat, engine, even};

/// What no record and no log may hold.
const SECRET: &str = "the-prompt-that-nobody-may-read";

/// What `weighbridge-prober explain -` says.
async fn explain(input: &str) -> Result<String> {
    let mut command = Command::new(artifacts::prober()?);
    command.args(["explain", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn()?;
    child.stdin.take().context("no stdin")?.write_all(input.as_bytes()).await?;
    let output = child.wait_with_output().await?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// Waits until the prober has exactly so many records that match.
async fn found(prober: &ProberProcess, query: &str, count: usize) -> Value {
    eventually(&format!("{count} records match {query}"), DEADLINE, async || {
        let answer = prober.get(&format!("/v1/decisions?{query}")).await?;
        ensure!(answer["matched"] == count, "{answer}");
        Ok(answer)
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_request_is_found_and_explained() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    for _ in 0..6 {
        assert!(load::send(envoy.gateway(), chat()).await.is_ok());
    }
    for engine in [&a, &b] {
        engine.set_fault(Fault { delay_ms: 2_500, ..Fault::slow(1.0) });
    }
    let slow = load::send(envoy.gateway(), Call::chat_stream("m", SECRET, 8)).await;
    assert!(slow.is_ok(), "{slow:?}");
    for engine in [&a, &b] {
        engine.set_fault(Fault::status(500));
    }
    let failed = load::send(envoy.gateway(), Call::chat("m", SECRET, 8)).await;
    assert_eq!(failed.status, Some(500));

    found(&prober, "limit=1000", 8).await;
    let answer = found(&prober, "pool=m&slow_ms=2000&since=5m", 1).await;
    let record = &answer["decisions"][0];
    assert_eq!(record["envoy"], "weighbridge-gateway-1", "{record}");
    assert_eq!(record["result"]["endpoint"], slow.endpoint());
    assert!(record["result"]["ttft_ms"].as_u64().is_some_and(|ms| ms >= 2_000), "{record}");
    assert!(record["time_ms"].as_u64().is_some_and(|ms| ms > 1_600_000_000_000), "{record}");
    // The id that the access log has finds it, and only it.
    let id = record["request_id"].as_str().unwrap_or_else(|| panic!("no request_id: {record}"));
    assert_eq!(found(&prober, &format!("request_id={id}"), 1).await["decisions"][0], *record);
    found(&prober, &format!("endpoint={}&slow_ms=2000", slow.endpoint()), 1).await;
    found(&prober, "pool=m&request_id=nobody", 0).await;
    // Envoy writes its log when a buffer is full, and every few seconds.
    let logged = eventually("its line of the access log", DEADLINE, async || {
        envoy.access_log().into_iter().find(|line| line["request_id"] == id).context("not yet")
    })
    .await
    .unwrap();

    let said = explain(&answer.to_string()).await.unwrap();
    println!("{said}");
    for word in [id, "waiting for the first token", "docs/operations.md#the-first-token-came-late", slow.endpoint()] {
        assert!(said.contains(word), "{word}: {said}");
    }
    // A line of the access log says the same, but for which Envoy it was.
    let from_log = explain(&logged.to_string()).await.unwrap();
    assert_eq!(from_log, said.replace(" at Envoy weighbridge-gateway-1", ""));

    let everything = prober.get("/v1/decisions?limit=1000").await.unwrap().to_string();
    let log = envoy.log() + &envoy.access_log().iter().map(Value::to_string).collect::<String>();
    assert!(!everything.contains(SECRET) && !log.contains(SECRET));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_sampled_and_the_one_failure_in_it_is_there() {
    let a = engine("a", even()).await;
    let mut site = Site::new(&[&a]);
    site.config["decisions"] = json!({"per_second": 4, "keep": 50});
    site.config["pools"][0]["admission"] = json!({"base_cap": 100});
    let (prober, envoy) = site.start(1).await;
    let report = load::closed_loop(envoy.gateway(), 8, 600, |_| chat()).await;
    assert_eq!(report.ok(), 600, "{:?}", report.by_status());
    a.set_fault(Fault { count: Some(1), ..Fault::status(500) });
    let report = load::closed_loop(envoy.gateway(), 8, 600, |_| chat()).await;
    assert_eq!(report.by_status().get("500"), Some(&1), "{:?}", report.by_status());
    let answer = eventually("the failure is told of", DEADLINE, async || {
        let answer = prober.get("/v1/decisions?limit=1000").await?;
        let failed = answer["decisions"].as_array().context("no list")?.iter();
        ensure!(failed.filter(|record| record["result"]["status"] == 500).count() == 1, "{answer}");
        Ok(answer)
    })
    .await
    .unwrap();
    println!("of 1,200 requests at once the prober has {}", answer["kept"]);
    assert!(answer["kept"].as_u64().is_some_and(|kept| kept <= 50), "{}", answer["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_prober_requests_go_on_and_what_is_lost_is_counted() {
    let a = engine("a", even()).await;
    let mut site = Site::new(&[&a]);
    let (prober, envoy) = site.start(1).await;
    prober.kill().await.unwrap();
    let dropped = eventually("lost records are counted", DEADLINE, async || {
        ensure!(load::closed_loop(envoy.gateway(), 4, 20, |_| chat()).await.ok() == 20);
        let dropped = envoy.stats().await?.get("wasmcustom.weighbridge_decisions_dropped");
        ensure!(dropped > 0);
        Ok(dropped)
    })
    .await
    .unwrap();
    println!("{dropped} records dropped while the prober was away");
    // It hears of them when it is back.
    let prober = site.prober().await;
    prober.ready(DEADLINE).await.unwrap();
    eventually("the prober knows", DEADLINE, async || {
        ensure!(load::send(envoy.gateway(), chat()).await.is_ok());
        let answer = prober.get("/v1/decisions").await?;
        ensure!(answer["kept"].as_u64().is_some_and(|kept| kept > 0), "{answer}");
        Ok(())
    })
    .await
    .unwrap();
}

// The API has a token: Envoys report with one of their own, which comes with the snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_reports_come_through() {
    const TOKEN: &str = "only-operators-know-this";
    let a = engine("a", even()).await;
    let mut site = Site::new(&[&a]);
    let dir = tempfile::TempDir::with_prefix("weighbridge-token-").unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    site.config["api"]["token_file"] = json!(file);
    let (prober, envoy) = site.start(2).await;
    assert_eq!(prober.call(Method::GET, "/v1/decisions", None).await.unwrap().0, 401);
    let prober = prober.with_token(TOKEN);
    assert!(load::send(envoy.gateway(), chat()).await.is_ok());
    found(&prober, "limit=10", 1).await;
    eventually("signals are fresh", DEADLINE, async || {
        let stats = envoy.stats().await?;
        ensure!(stats.get("wasmcustom.weighbridge_signals_calls.result.ok") > 0);
        ensure!(stats.get("wasmcustom.weighbridge_signals_stale") == 0);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(envoy.stats().await.unwrap().get("wasmcustom.weighbridge_decisions_dropped"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_rate_of_nothing_nothing_is_sent() {
    let a = engine("a", even()).await;
    let mut site = Site::new(&[&a]);
    site.config["decisions"] = json!({"per_second": 0});
    let (prober, envoy) = site.start(1).await;
    assert_eq!(load::closed_loop(envoy.gateway(), 4, 50, |_| chat()).await.ok(), 50);
    // Two ticks at least have passed when the statistics have these requests and then those.
    for count in [50, 51] {
        eventually("statistics", Duration::from_secs(15), async || {
            ensure!(envoy.stats().await?.sum("wasmcustom.weighbridge_requests.") >= count);
            Ok(())
        })
        .await
        .unwrap();
        load::send(envoy.gateway(), chat()).await;
    }
    assert_eq!(prober.get("/v1/decisions").await.unwrap()["kept"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_parameters_and_broken_batches_are_told_by_name() {
    let a = engine("a", even()).await;
    let mut site = Site::new(&[&a]);
    let prober = site.prober().await;
    for (query, word) in [
        ("pool=none", "pool"),
        ("slow_ms=soon", "slow_ms"),
        ("since=yesterday", "since"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("what=ever", "what"),
    ] {
        let (status, answer) = prober.call(Method::GET, &format!("/v1/decisions?{query}"), None).await.unwrap();
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(word), "{query}: {status} {answer}");
    }
    let good = json!({"pool": "m", "snapshot": 1, "reason": "only_one", "picked": "a"});
    let body = json!({"envoy": "e", "decisions": [good, {"pool": "m"}, {"pool": "x", "snapshot": 1, "reason": "r"}]});
    let (status, answer) = prober.call(Method::POST, "/v1/decisions", Some(&body)).await.unwrap();
    assert_eq!((status, &answer["kept"], &answer["refused"]), (200, &json!(1), &json!(2)), "{answer}");
    assert_eq!((&answer["errors"][0]["index"], &answer["errors"][1]["index"]), (&json!(1), &json!(2)));
    for (body, word) in [
        (json!({"decisions": []}), "envoy"),
        (json!({"envoy": "e", "decisions": 7}), "decisions"),
        (json!({"envoy": "e", "decisions": vec![0; 1_001]}), "decisions"),
        (json!({"envoy": "e".repeat(300), "decisions": []}), "envoy"),
    ] {
        let (status, answer) = prober.call(Method::POST, "/v1/decisions", Some(&body)).await.unwrap();
        assert!(
            status == 400 && answer["error"]["message"].as_str().is_some_and(|said| said.contains(word)),
            "{answer}"
        );
    }
    let large = json!({"envoy": "e", "decisions": ["x".repeat(2 << 20)]});
    let (status, answer) = prober.call(Method::POST, "/v1/decisions", Some(&large)).await.unwrap();
    assert_eq!((status, &answer["error"]["code"]), (413, &json!("unreadable_body")));
}
