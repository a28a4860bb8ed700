//! TLS of the REST API and of xDS: who is let in, and certificates that change.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use harness::eventually;
use harness::tls::{Authority, Issued, get};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weighbridge_prober::Running;
use weighbridge_prober::config::Config;

const DEADLINE: Duration = Duration::from_secs(30);
const NAME: &str = "prober.test";

async fn start(dir: &Path, api: Value, xds: Value) -> (Running, CancellationToken) {
    let config = json!({"api": api, "xds": xds, "store": {"path": dir.join("s.redb")}, "pools": [{"name": "p", "models": ["m"]}]});
    let shutdown = CancellationToken::new();
    let config = Config::parse(&config.to_string()).unwrap();
    (weighbridge_prober::run(config, shutdown.clone()).await.unwrap(), shutdown)
}

fn files(issued: &Issued) -> Value {
    json!({"cert_file": issued.cert, "key_file": issued.key})
}

#[tokio::test]
async fn the_api_speaks_tls_and_takes_new_certificates() {
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let issued = ours.issue(NAME).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let api = json!({"listen": "127.0.0.1:0", "tls": files(&issued)});
    let (running, shutdown) = start(dir.path(), api, json!({"listen": "127.0.0.1:0"})).await;
    let (status, body) = get(running.api, NAME, "/healthz", &ours, None).await.unwrap();
    assert_eq!((status.as_u16(), body.as_str()), (200, "ok\n"));
    assert!(get(running.api, NAME, "/healthz", &theirs, None).await.is_err(), "another authority's word counts");
    let plain = reqwest::Client::builder().no_proxy().build().unwrap();
    assert!(plain.get(format!("http://{}/healthz", running.api)).send().await.is_err(), "it answers plain HTTP");
    // Another authority takes over: files that replace those that are named.
    let next = theirs.issue(NAME).unwrap();
    std::fs::copy(&next.key, &issued.key).unwrap();
    std::fs::copy(&next.cert, &issued.cert).unwrap();
    eventually("the new certificate is in force", DEADLINE, async || {
        get(running.api, NAME, "/healthz", &theirs, None).await.map(|_| ())
    })
    .await
    .unwrap();
    // A key that does not belong to it changes nothing, and is an alarm.
    std::fs::copy(&ours.issue("other.test").unwrap().key, &issued.key).unwrap();
    eventually("an alarm", DEADLINE, async || {
        let (_, body) = get(running.api, NAME, "/v1/endpoints", &theirs, None).await?;
        ensure!(body.contains("api.tls.key_file is") && body.contains("stays in force"), "{body}");
        Ok(())
    })
    .await
    .unwrap();
    shutdown.cancel();
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn with_a_client_authority_only_its_clients_are_let_in() {
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let issued = ours.issue(NAME).unwrap();
    let mut tls = files(&issued);
    tls["client_ca_file"] = json!(ours.file());
    let dir = tempfile::tempdir().unwrap();
    let (running, shutdown) =
        start(dir.path(), json!({"listen": "127.0.0.1:0", "tls": tls}), json!({"listen": "127.0.0.1:0"})).await;
    let (known, stranger) = (ours.issue("operator").unwrap(), theirs.issue("stranger").unwrap());
    let ask = async |client: Option<&Issued>| get(running.api, NAME, "/healthz", &ours, client).await;
    assert_eq!(ask(Some(&known)).await.unwrap().0.as_u16(), 200);
    assert!(ask(None).await.is_err(), "without a certificate");
    assert!(ask(Some(&stranger)).await.is_err(), "with a stranger's");
    let (_, page) = get(running.api, NAME, "/metrics", &ours, Some(&known)).await.unwrap();
    assert!(page.contains(r#"weighbridge_prober_tls_refused_total{listener="api.tls"} 2"#), "{page}");
    shutdown.cancel();
    running.stopped().await.unwrap();
}

#[test]
fn what_is_wrong_with_certificates_is_told_by_the_check() {
    let authority = Authority::new("ours").unwrap();
    let (one, other) = (authority.issue("one").unwrap(), authority.issue("other").unwrap());
    let check = |tls: Value| {
        let config = json!({"xds": {"tls": tls}, "store": {"path": one.cert.with_file_name("s.redb")},
            "pools": [{"name": "p", "models": ["m"]}]});
        Config::check(&config.to_string()).errors
    };
    assert_eq!(check(files(&one)), Vec::<String>::new());
    for (tls, field) in [
        (json!({"cert_file": one.cert, "key_file": other.key}), "xds.tls.key_file"),
        (json!({"cert_file": one.key, "key_file": one.key}), "xds.tls.cert_file"),
        (json!({"cert_file": one.cert, "key_file": one.cert}), "xds.tls.key_file"),
        (json!({"cert_file": one.cert, "key_file": "none"}), "xds.tls.key_file"),
        (json!({"cert_file": one.cert, "key_file": one.key, "client_ca_file": one.key}), "xds.tls.client_ca_file"),
        (json!({"cert_file": one.cert}), "xds.tls.key_file"),
    ] {
        let errors = check(tls.clone());
        assert!(errors.len() == 1 && errors[0].starts_with(field), "{tls}: {errors:?}");
    }
    let warnings = |xds: Value| {
        Config::check(&json!({"xds": xds, "pools": [{"name": "p", "models": ["m"]}]}).to_string()).warnings
    };
    let open = warnings(json!({"listen": "0.0.0.0:7071", "tls": files(&one)}));
    assert!(open.iter().any(|warning| warning.contains("xds.tls.client_ca_file")), "{open:?}");
    assert!(!warnings(json!({"listen": "127.0.0.1:7071"})).iter().any(|warning| warning.contains("client_ca_file")));
}
