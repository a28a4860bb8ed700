//! Who may ask the prober, and where it may be led: tokens that turn, networks, addresses that are taken.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use harness::eventually;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weighbridge_prober::Running;
use weighbridge_prober::config::Config;

const DEADLINE: Duration = Duration::from_secs(30);

struct Prober {
    running: Running,
    shutdown: CancellationToken,
    http: reqwest::Client,
}

impl Prober {
    async fn start(dir: &Path, more: Value) -> Prober {
        let mut config = json!({
            "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": dir.join("store.redb")},
            "pools": [{"name": "p", "models": ["m"]}, {"name": "q", "models": ["n"]}],
        });
        for (field, value) in more.as_object().unwrap() {
            config[field] = value.clone();
        }
        let shutdown = CancellationToken::new();
        let config = Config::parse(&config.to_string()).unwrap();
        let running = weighbridge_prober::run(config, shutdown.clone()).await.unwrap();
        Prober { running, shutdown, http: reqwest::Client::builder().no_proxy().build().unwrap() }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.api)
    }

    async fn get(&self, path: &str, token: &str) -> (u16, Value) {
        let answer = self.http.get(self.url(path)).bearer_auth(token).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or_default())
    }

    async fn register(&self, body: Value) -> (u16, String) {
        let answer = self.http.post(self.url("/v1/endpoints")).json(&body).send().await.unwrap();
        let (status, answer) = (answer.status().as_u16(), answer.json::<Value>().await.unwrap());
        (status, answer["error"]["message"].as_str().unwrap_or_default().to_owned())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.running.stopped().await.unwrap();
    }
}

#[tokio::test]
async fn a_token_that_changes_is_in_force_soon_and_one_that_is_none_is_an_alarm() {
    let (old, new) = ("0123456789abcdef", "fedcba9876543210");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, old).unwrap();
    let prober = Prober::start(dir.path(), json!({"api": {"listen": "127.0.0.1:0", "token_file": file}})).await;
    let reports = async |token: &str| prober.get("/v1/snapshot", token).await.1["filter"]["reports_token"].clone();
    let before = reports(old).await;
    // As a mounted secret changes: another file takes its place.
    std::fs::write(dir.path().join("next"), format!("{new}\n")).unwrap();
    std::fs::rename(dir.path().join("next"), &file).unwrap();
    eventually("the new token is in force", DEADLINE, async || {
        let (status, _) = prober.get("/v1/endpoints", new).await;
        ensure!(status == 200, "{status}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(prober.get("/v1/endpoints", old).await.0, 401);
    let after = reports(new).await;
    assert!(after.as_str().is_some_and(|token| token.len() == 64) && after != before, "{before} {after}");
    for (content, said) in [(Some("short"), "it has 5"), (None, "a file that can be read")] {
        match content {
            Some(content) => std::fs::write(&file, content).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        eventually("an alarm", DEADLINE, async || {
            let (status, answer) = prober.get("/v1/endpoints", new).await;
            let alarms = answer["alarms"].to_string();
            ensure!(status == 200 && alarms.contains("api.token_file") && alarms.contains(said), "{status} {alarms}");
            Ok(())
        })
        .await
        .unwrap();
    }
    let page = prober.http.get(prober.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for (result, count) in [("changed", 1), ("failed", 2)] {
        let line = format!(r#"weighbridge_prober_reloads_total{{file="api.token_file",result="{result}"}} {count}"#);
        assert!(page.contains(&line), "{line} is not in\n{page}");
    }
    std::fs::write(&file, new).unwrap();
    eventually("no alarm", DEADLINE, async || {
        let alarms = prober.get("/v1/endpoints", new).await.1["alarms"].clone();
        ensure!(alarms == json!([]), "{alarms}");
        Ok(())
    })
    .await
    .unwrap();
    prober.stop().await;
}

#[tokio::test]
async fn endpoints_are_only_where_they_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let prober = Prober::start(dir.path(), json!({})).await;
    let of = |id: &str, address: &str| json!({"pool": "p", "id": id, "address": address});
    for metadata in ["169.254.169.254:80", "[fe80::1]:80", "[::ffff:169.254.169.254]:80"] {
        let (status, said) = prober.register(of("a", metadata)).await;
        assert!(
            status == 400 && said.contains("address is") && said.contains("169.254.0.0/16"),
            "{metadata}: {status} {said}"
        );
    }
    prober.stop().await;
    let dir = tempfile::tempdir().unwrap();
    let prober = Prober::start(dir.path(), json!({"networks": ["10.0.0.0/8"]})).await;
    // The name passes as text, and leads elsewhere.
    for elsewhere in ["127.0.0.1:9", "localhost:9", "[::1]:9"] {
        let (status, said) = prober.register(of("a", elsewhere)).await;
        assert!(
            status == 400 && said.contains("address is") && said.contains("10.0.0.0/8"),
            "{elsewhere}: {status} {said}"
        );
    }
    assert_eq!(prober.register(of("a", "10.1.2.3:9")).await.0, 201);
    prober.stop().await;
}

#[tokio::test]
async fn a_name_of_the_file_that_leads_elsewhere_is_an_alarm_and_no_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let pools = json!([{"name": "p", "models": ["m"], "endpoints": [{"id": "a", "address": "localhost:9"}]}]);
    let prober = Prober::start(dir.path(), json!({"networks": ["10.0.0.0/8"], "pools": pools})).await;
    let (_, answer) = prober.get("/v1/endpoints", "").await;
    assert_eq!(answer["endpoints"], json!([]));
    let alarms = answer["alarms"].to_string();
    assert!(alarms.contains("a: localhost:9: it is ") && alarms.contains("10.0.0.0/8"), "{alarms}");
    prober.stop().await;
    // Written as it is, it is an error of the file.
    let config =
        "networks: [10.0.0.0/8]\npools: [{name: p, models: [m], endpoints: [{id: a, address: '127.0.0.1:9'}]}]";
    let error = Config::parse(config).unwrap_err().to_string();
    assert!(error.starts_with("pools[0].endpoints[0].address is \"127.0.0.1:9\": expected"), "{error}");
}

#[tokio::test]
async fn an_address_belongs_to_one_endpoint_of_a_pool() {
    let dir = tempfile::tempdir().unwrap();
    let prober = Prober::start(dir.path(), json!({})).await;
    let of = |pool: &str, id: &str| json!({"pool": pool, "id": id, "address": "127.0.0.1:9"});
    assert_eq!(prober.register(of("p", "a")).await.0, 201);
    let (status, said) = prober.register(of("p", "b")).await;
    assert!(status == 409 && said.contains("address is 127.0.0.1:9") && said.contains("a has it"), "{status} {said}");
    // The same engine may serve another pool's model, and come back as it is.
    assert_eq!(prober.register(of("q", "c")).await.0, 201);
    assert_eq!(prober.register(of("p", "a")).await.0, 200);
    // Once it leaves, its successor takes over, and it cannot come back beside that.
    let gone = prober.http.delete(prober.url("/v1/endpoints/a")).send().await.unwrap();
    assert_eq!(gone.status().as_u16(), 202);
    assert_eq!(prober.register(of("p", "b")).await.0, 201);
    assert_eq!(prober.register(of("p", "a")).await.0, 409);
    prober.stop().await;
    let twice =
        "pools: [{name: p, models: [m], endpoints: [{id: a, address: '[::1]:9'}, {id: b, address: '[0:0::1]:9'}]}]";
    let error = Config::parse(twice).unwrap_err().to_string();
    assert!(
        error.starts_with("pools[0].endpoints[1].address is \"[0:0::1]:9\": expected an address that no other"),
        "{error}"
    );
}
