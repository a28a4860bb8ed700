//! What is logged holds no secret.
//!
//! A program of its own with this one test: what logs is asked once, when it is first reached, whether anybody wants it, and a thread of
//! another test that reaches it at the wrong moment would have it silent for good.

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{endpoint, start};
use harness::eventually;
use reqwest::Method;
use serde_json::json;

const TOKEN: &str = "0123456789abcdef";
const DEADLINE: Duration = Duration::from_secs(20);

/// Everything that is logged, at the finest level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn said(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn neither_token_nor_cookie_is_logged() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).init();
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some(TOKEN)).await;
    let signed_in = prober.http.post(prober.url("/v1/session")).json(&json!({"token": TOKEN})).send().await.unwrap();
    let cookie = signed_in.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let ask = |method: Method, path: &str| prober.http.request(method, prober.url(path)).header("cookie", &cookie);
    let status = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();
    assert_eq!(status(ask(Method::GET, "/v1/fleet")).await, 200);
    assert_eq!(status(ask(Method::DELETE, "/v1/session")).await, 403);
    let register = ask(Method::POST, "/v1/endpoints").header("x-weighbridge-page", "1");
    let register = register.header("origin", format!("http://{}", prober.running.api));
    assert_eq!(status(register.json(&endpoint("e", 9))).await, 201);
    // The client in this process logs what it does, too.
    eventually("the endpoint is logged", DEADLINE, async || {
        anyhow::ensure!(log.said().contains("unhealthy"), "not yet");
        Ok(())
    })
    .await
    .unwrap();
    let value = cookie.split('=').next_back().unwrap();
    assert_eq!(value.len(), 64);
    for secret in [TOKEN, value] {
        assert!(!log.said().contains(secret), "{secret} is in the log");
    }
    prober.stop().await;
}
