//! The REST API in-process: token, foreign origins, errors, and what a restart finds.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weighbridge_prober::config::Config;

struct Prober {
    running: weighbridge_prober::Running,
    shutdown: CancellationToken,
    http: reqwest::Client,
}

async fn start(dir: &std::path::Path, token: Option<&str>) -> Prober {
    let mut api = json!({"listen": "127.0.0.1:0"});
    if let Some(token) = token {
        let file = dir.join("token");
        std::fs::write(&file, format!("{token}\n")).unwrap();
        api["token_file"] = json!(file);
    }
    let config = json!({
        "api": api, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": dir.join("store.redb")},
        "pools": [{"name": "p", "models": ["m"]}, {"name": "q", "models": ["n"]}],
    });
    let shutdown = CancellationToken::new();
    let running = weighbridge_prober::run(Config::parse(&config.to_string()).unwrap(), shutdown.clone()).await.unwrap();
    Prober { running, shutdown, http: reqwest::Client::builder().no_proxy().build().unwrap() }
}

impl Prober {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.api)
    }

    async fn post(&self, body: Value) -> (u16, Value) {
        let answer = self.http.post(self.url("/v1/endpoints")).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.running.stopped().await.unwrap();
    }
}

fn endpoint(id: &str, port: u16) -> Value {
    json!({"pool": "p", "id": id, "address": format!("127.0.0.1:{port}"), "launch_args": "-x"})
}

#[tokio::test]
async fn with_a_token_everything_under_v1_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some("0123456789abcdef")).await;
    let status = async |token: Option<&str>, path: &str| {
        let mut request = prober.http.get(prober.url(path));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(None, "/v1/endpoints").await, 401);
    assert_eq!(status(Some("0123456789abcdeX"), "/v1/endpoints").await, 401);
    assert_eq!(status(Some("0123456789abcdef0"), "/v1/endpoints").await, 401);
    assert_eq!(status(Some("0123456789abcdef"), "/v1/endpoints").await, 200);
    for open in ["/healthz", "/metrics", "/openapi.json"] {
        assert_eq!(status(None, open).await, 200, "{open}");
    }
    prober.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    let send = async |origin: String| {
        let request = prober.http.post(prober.url("/v1/endpoints")).header("origin", origin);
        request.body(endpoint("e", 9).to_string()).send().await.unwrap().status().as_u16()
    };
    assert_eq!(send("http://evil.example".into()).await, 403);
    assert_eq!(send("null".into()).await, 403);
    assert_eq!(send(format!("http://{}", prober.running.api)).await, 201);
    prober.stop().await;
}

#[tokio::test]
async fn wrong_registrations_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    for (field, value) in [
        ("id", json!("a b")),
        ("address", json!("127.0.0.1")),
        ("address", json!("127.0.0.1:0")),
        ("address", json!("0.0.0.0:80")),
        ("address", json!("no-such-host.invalid:80")),
        ("pool", json!("none")),
        ("context_window", json!(0)),
        ("max_in_flight", json!(0)),
        ("max_in_flight", json!("many")),
        ("node", json!(7)),
    ] {
        let mut body = endpoint("e", 9);
        body[field] = value.clone();
        let (status, answer) = prober.post(body).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(field), "{field} {value}: {status} {message}");
    }
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 201);
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 200);
    let mut elsewhere = endpoint("e", 9);
    elsewhere["pool"] = json!("q");
    assert_eq!(prober.post(elsewhere).await.0, 409);
    let gone = prober.http.delete(prober.url("/v1/endpoints/none")).send().await.unwrap();
    assert_eq!(gone.status().as_u16(), 404);
    prober.stop().await;
}

#[tokio::test]
async fn what_is_no_object_or_no_text_is_refused_in_the_apis_own_shape() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    for body in [json!(["p", "e", "127.0.0.1:9"]), json!([]), json!("p"), json!(7), json!(null)] {
        let (status, answer) = prober.post(body.clone()).await;
        assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("invalid_body")), "{body}: {answer}");
    }
    let answer = prober.http.get(prober.url("/v1/endpoints/%ff")).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["error"]["code"], "invalid_path", "{answer}");
    let document: Value = prober.http.get(prober.url("/openapi.json")).send().await.unwrap().json().await.unwrap();
    assert_eq!(document["paths"]["/v1/endpoints/{id}"]["get"]["parameters"][0]["name"], "id");
    prober.stop().await;
}

#[tokio::test]
async fn a_restart_finds_registrations_pins_and_drains() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 201);
    for (what, body) in [("pin", json!({"weight": 2.5, "reason": "why"})), ("drain", json!({}))] {
        let answer = prober.http.put(prober.url(&format!("/v1/endpoints/e/{what}"))).json(&body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
    }
    prober.stop().await;
    let prober = start(dir.path(), None).await;
    let seen: Value = prober.http.get(prober.url("/v1/endpoints/e")).send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&seen["weight"], &seen["weight_source"], &seen["state"]),
        (&json!(2.5), &json!("pinned"), &json!("draining"))
    );
    assert_eq!(seen["pin"]["reason"], "why");
    prober.stop().await;
}
