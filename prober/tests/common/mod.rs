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
