//! A prober in this process, and what tests ask it.
#![allow(dead_code)]

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weighbridge_prober::config::Config;

pub(crate) struct Prober {
    pub(crate) running: weighbridge_prober::Running,
    pub(crate) shutdown: CancellationToken,
    pub(crate) http: reqwest::Client,
}

/// With the pools `p` and `q`, without endpoints.
pub(crate) async fn start(dir: &std::path::Path, token: Option<&str>) -> Prober {
    let mut api = json!({"listen": "127.0.0.1:0"});
    if let Some(token) = token {
        let file = dir.join("token");
        std::fs::write(&file, format!("{token}\n")).unwrap();
        api["token_file"] = json!(file);
    }
    let config = json!({
        "api": api, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": dir.join("store.redb")},
        // What Envoys report is to outlast a busy machine.
        "signals": {"interval": "5s"},
        "pools": [{"name": "p", "models": ["m"]}, {"name": "q", "models": ["n"]}],
    });
    let shutdown = CancellationToken::new();
    let running = weighbridge_prober::run(Config::parse(&config.to_string()).unwrap(), shutdown.clone()).await.unwrap();
    Prober { running, shutdown, http: reqwest::Client::builder().no_proxy().build().unwrap() }
}

impl Prober {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.api)
    }

    pub(crate) async fn post(&self, body: Value) -> (u16, Value) {
        let answer = self.http.post(self.url("/v1/endpoints")).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.http.get(self.url(path)).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        answer.json().await.unwrap()
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.running.stopped().await.unwrap();
    }
}

/// One of pool `p`, as it registers; nobody is there.
pub(crate) fn endpoint(id: &str, port: u16) -> Value {
    json!({"pool": "p", "id": id, "address": format!("127.0.0.1:{port}"), "launch_args": "-x"})
}

/// A stream of server-sent events.
pub(crate) struct Events {
    answer: reqwest::Response,
    buffer: Vec<u8>,
}

impl Events {
    /// What `/v1/events` answers; the status when that is no stream.
    pub(crate) async fn open(request: reqwest::RequestBuilder) -> Result<Self, u16> {
        let answer = request.send().await.unwrap();
        match answer.status().as_u16() {
            200 => Ok(Events { answer, buffer: Vec::new() }),
            status => Err(status),
        }
    }

    /// The next document; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let text = String::from_utf8(event).unwrap();
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
                let Some(data) = field("data: ") else { continue };
                let document: Value = serde_json::from_str(data).unwrap();
                assert_eq!(field("event: "), Some("fleet"));
                assert_eq!(field("id: ").unwrap(), document["now_ms"].to_string());
                return Some(document);
            }
            match self.answer.chunk().await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) => return None,
                Err(error) => panic!("the stream broke off: {error}"),
            }
        }
    }

    /// The first document of which this is true.
    pub(crate) async fn until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let document = self.next().await.unwrap_or_else(|| panic!("the stream ended before {what}"));
                if is_so(&document) {
                    return document;
                }
            }
        };
        let patience = std::time::Duration::from_secs(60);
        tokio::time::timeout(patience, wait).await.unwrap_or_else(|_| panic!("never: {what}"))
    }
}
