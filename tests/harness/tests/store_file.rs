//! The embedded store of a running prober: a disk that is full, and then is not.

use std::time::Duration;

use anyhow::ensure;
use harness::{ProberProcess, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::DEADLINE;

/// The longest text that a registration may have, or nearly: a new file has room for some hundred of them.
const TEXT_BYTES: usize = 4_000;

async fn alarms(prober: &ProberProcess) -> anyhow::Result<String> {
    Ok(prober.get("/v1/endpoints").await?["alarms"].to_string())
}

async fn pin(prober: &ProberProcess) -> (u16, Value) {
    let body = json!({"weight": 2.5, "reason": "disk full"});
    prober.call(Method::PUT, "/v1/endpoints/e0/pin", Some(&body)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_an_alarm_and_what_waits_is_stored_when_there_is_room() {
    let dir = tempfile::TempDir::with_prefix("weighbridge-store-").unwrap();
    let config = json!({
        "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": "s.redb"},
        // Nobody is there.
        "health": {"interval": "60s"}, "signals": {"interval": "10s"},
        "pools": [{"name": "m", "models": ["m"]}],
    })
    .to_string();
    // So large a new file is; it cannot grow.
    let prober = ProberProcess::start(&config, dir.path()).await.unwrap();
    prober.terminate().await.unwrap();
    let bytes = std::fs::metadata(dir.path().join("s.redb")).unwrap().len();
    let prober = ProberProcess::start_cramped(&config, dir.path(), bytes / 512).await.unwrap();
    let mut sent = 0;
    while metric_is(&prober, "weighbridge_store_up 1").await {
        assert!(sent < 900, "the store never fills: {bytes} bytes");
        let registration = json!({
            "pool": "m", "id": format!("e{sent}"), "address": format!("127.0.0.1:{}", 9 + sent), "node": "n".repeat(TEXT_BYTES),
            "launch_args": "x".repeat(TEXT_BYTES),
        });
        let (status, answer) = prober.call(Method::POST, "/v1/endpoints", Some(&registration)).await.unwrap();
        // The last one is in force, and waits.
        assert!(status == 201 || (status == 202 && !metric_is(&prober, "weighbridge_store_up 1").await), "{answer}");
        sent += 1;
    }
    // In force, and said to be nothing more.
    assert_eq!(pin(&prober).await.0, 202);
    let alarm = alarms(&prober).await.unwrap();
    assert!(alarm.contains("s.redb") && alarm.contains("wait to be stored"), "{alarm}");
    assert_eq!(prober.endpoint("e0").await.unwrap()["weight"], 2.5);
    prober.make_room().await.unwrap();
    eventually("everything is stored", DEADLINE, async || {
        ensure!(metric_is(&prober, "weighbridge_store_up 1").await && alarms(&prober).await? == "[]");
        ensure!(metric_is(&prober, "weighbridge_store_pending_writes 0").await);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(pin(&prober).await.0, 200);
    prober.kill().await.unwrap();
    let prober = ProberProcess::start(&config, dir.path()).await.unwrap();
    eventually("registrations and pin are there again", Duration::from_secs(10), async || {
        let answer = prober.get("/v1/endpoints").await?;
        ensure!(answer["endpoints"].as_array().is_some_and(|all| all.len() == sent), "{}", answer["alarms"]);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(prober.endpoint("e0").await.unwrap()["pin"]["reason"], "disk full");
    prober.terminate().await.unwrap();
}

async fn metric_is(prober: &ProberProcess, line: &str) -> bool {
    let text = reqwest::get(format!("http://{}/metrics", prober.api())).await.unwrap().text().await.unwrap();
    text.lines().any(|found| found == line)
}
