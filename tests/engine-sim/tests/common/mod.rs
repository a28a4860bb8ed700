//! What the HTTP tests share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::{Duration, Instant};

use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn start(profile: Profile) -> EngineHandle {
    let config = EngineConfig { profile, model: "m".into(), name: "e1".into(), cold: false, ..Default::default() };
    EngineHandle::start(config).await.unwrap()
}

/// One token per millisecond and sequence: slow enough to watch, fast enough to wait for.
pub(crate) fn brisk() -> Profile {
    Profile::new("brisk", &[(1, 1_000.0), (32, 32_000.0)])
}

pub(crate) fn chat(text: &str, max_tokens: u64, stream: bool) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens,
        "min_tokens": max_tokens, "ignore_eos": true, "stream": stream, "stream_options": {"include_usage": true}})
}

pub(crate) async fn post(engine: &EngineHandle, path: &str, body: &Value) -> reqwest::Result<reqwest::Response> {
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
    client.post(format!("{}{path}", engine.url())).json(body).send().await
}

pub(crate) async fn post_chat(engine: &EngineHandle, body: &Value) -> reqwest::Result<reqwest::Response> {
    post(engine, "/v1/chat/completions", body).await
}

pub(crate) async fn get(engine: &EngineHandle, path: &str) -> reqwest::Result<reqwest::Response> {
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).build()?;
    client.get(format!("{}{path}", engine.url())).send().await
}

/// The `data:` events of a stream; `[DONE]` is checked and left out.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let mut events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
    assert_eq!(events.pop(), Some("data: [DONE]"), "{text}");
    events.iter().map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

/// Polls until it is true.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The same for a question that takes a while.
pub(crate) async fn until_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A chat request on a connection of its own, so that one can see how it ends.
pub(crate) async fn raw_chat(engine: &EngineHandle, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(engine.addr()).await.unwrap();
    let body = body.to_string();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    stream
}

/// All bytes until the connection ends, and how it ends.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> (String, std::io::Result<()>) {
    let mut bytes = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the connection ends");
    (String::from_utf8(bytes).unwrap(), end.map(|_| ()))
}

/// Value of a metric, by name and labels beyond `engine` and `model_name`.
pub(crate) fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with(['{', ' ']));
    line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
}
