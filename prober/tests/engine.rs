//! Probing and watching an engine that does as the test says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use weighbridge_prober::config::{Config, Probe};
use weighbridge_prober::engine::Client;
use weighbridge_prober::probe::{Company, ProbeError, Target, measure};
use weighbridge_prober::registry::{Phase, Step};

/// A prompt of more bytes than this is a long one.
const LONG: usize = 200;

/// What becomes of a long prompt.
#[derive(Clone, Copy, PartialEq)]
enum Long {
    Answer,
    Refuse,
    /// Never answered; the engine tells that it runs so many requests meanwhile.
    Hold {
        running: usize,
    },
}

struct Engine {
    long: Long,
    held: AtomicUsize,
    prompts: Mutex<Vec<String>>,
}

async fn chat(State(engine): State<Arc<Engine>>, Json(body): Json<Value>) -> Response {
    let prompt = body["messages"][0]["content"].as_str().unwrap().to_owned();
    let long = prompt.len() > LONG;
    engine.prompts.lock().unwrap().push(prompt);
    match engine.long {
        Long::Refuse if long => {
            let said = json!({"error": {"message": "the context is full", "code": 400}});
            return (StatusCode::BAD_REQUEST, Json(said)).into_response();
        }
        Long::Hold { running } if long => {
            engine.held.store(running, Ordering::SeqCst);
            return std::future::pending().await;
        }
        _ => {}
    }
    let usage = json!({"prompt_tokens": if long { 5_000 } else { 9 }, "completion_tokens": body["max_tokens"]});
    Json(json!({"choices": [], "usage": usage})).into_response()
}

async fn metrics(State(engine): State<Arc<Engine>>) -> String {
    format!("llamacpp:requests_processing {}\n", engine.held.load(Ordering::SeqCst))
}

async fn props() -> Json<Value> {
    Json(json!({"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4}))
}

/// An engine in a runtime of its own: when that ends, so do its connections, as those of a process would.
struct Process {
    runtime: Option<Runtime>,
    address: SocketAddr,
    engine: Arc<Engine>,
}

impl Process {
    fn start(address: SocketAddr, long: Long) -> Self {
        let engine = Arc::new(Engine { long, held: AtomicUsize::new(0), prompts: Mutex::default() });
        let router = Router::new()
            .route("/health", get(|| async { "ok" }))
            .route("/metrics", get(metrics))
            .route("/props", get(props))
            .route("/v1/models", get(|| async { Json(json!({"data": [{"id": "m"}]})) }))
            .route("/v1/chat/completions", post(chat))
            .with_state(Arc::clone(&engine));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (bound, listening) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::bind(address).await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        let address = listening.recv().unwrap();
        Process { runtime: Some(runtime), address, engine }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn settings() -> Probe {
    Probe {
        concurrency: 2,
        tokens: 4,
        prefill_tokens: 1_000,
        ..Config::parse("pools: [{name: p, models: [m]}]").unwrap().probe
    }
}

async fn probe(process: &Process, settings: Probe) -> Result<weighbridge_prober::probe::Bursts, ProbeError> {
    let client = Client::new().unwrap();
    let target = Target { engine: process.address, model: "m", window: Some(1_000), sweep: false };
    measure(&client, target, &settings, Company::Refused, 7, &|_| ()).await
}

#[tokio::test]
async fn a_probe_says_how_far_it_is() {
    let process = Process::start(anywhere(), Long::Answer);
    let client = Client::new().unwrap();
    let target = Target { engine: process.address, model: "m", window: Some(1_000), sweep: false };
    let said = std::sync::Mutex::new(Vec::new());
    let report = |step: Step| said.lock().unwrap().push(step);
    let bursts = measure(&client, target, &settings(), Company::Refused, 7, &report).await.unwrap();
    let expected = [
        Step::Begins(Phase::Warmup, 2),
        Step::Done,
        Step::Done,
        Step::Warmed(bursts.warmup_tps),
        Step::Begins(Phase::Settling, 0),
        Step::Begins(Phase::Kept, 2),
        Step::Done,
        Step::Done,
        Step::Measured(bursts.throughput_tps),
        Step::Begins(Phase::Settling, 0),
        Step::Begins(Phase::Prefill, 1),
    ];
    assert_eq!(*said.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_long_prompt_of_half_the_window_follows_the_bursts() {
    let process = Process::start(anywhere(), Long::Answer);
    let bursts = probe(&process, settings()).await.unwrap();
    // 5,000 tokens against bursts of 8: by what the engine counts, not by the length of the prompt.
    assert!(bursts.prefill_tps.unwrap().unwrap() > bursts.throughput_tps);
    let prompts = process.engine.prompts.lock().unwrap();
    assert_eq!(prompts.len(), 5);
    assert_eq!(prompts[4].len(), 4 * 500);
    assert!(prompts[..4].iter().all(|prompt| prompt.len() < LONG));
}

#[tokio::test]
async fn without_prefill_tokens_there_is_no_long_prompt() {
    let process = Process::start(anywhere(), Long::Refuse);
    let bursts = probe(&process, Probe { prefill_tokens: 0, ..settings() }).await.unwrap();
    assert_eq!((bursts.prefill_tps, process.engine.prompts.lock().unwrap().len()), (None, 4));
}

#[tokio::test]
async fn a_refused_long_prompt_leaves_the_throughput() {
    let process = Process::start(anywhere(), Long::Refuse);
    let bursts = probe(&process, settings()).await.unwrap();
    let why = bursts.prefill_tps.unwrap().unwrap_err();
    assert!(bursts.throughput_tps > 0.0);
    assert!(why.contains("400") && why.contains("the context is full"), "{why}");
}

#[tokio::test]
async fn a_long_prompt_that_takes_too_long_leaves_the_throughput() {
    let process = Process::start(anywhere(), Long::Hold { running: 1 });
    let bursts = probe(&process, Probe { timeout: Duration::from_secs(1), ..settings() }).await.unwrap();
    let why = bursts.prefill_tps.unwrap().unwrap_err();
    assert!(why.contains("longer than 1s"), "{why}");
}

#[tokio::test]
async fn somebody_elses_request_beside_the_long_prompt_voids_the_probe() {
    let process = Process::start(anywhere(), Long::Hold { running: 2 });
    let result = probe(&process, settings()).await;
    assert!(matches!(result, Err(ProbeError::Disturbed(2))), "{result:?}");
}

/// Waits until the endpoint is as wanted.
async fn seen(http: &reqwest::Client, api: SocketAddr, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = http.get(format!("http://{api}/v1/endpoints/e")).send().await.unwrap();
        let endpoint: Value = answer.json().await.unwrap();
        if wanted(&endpoint) {
            return endpoint;
        }
        assert!(Instant::now() < deadline, "not {what}: {endpoint}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// llama.cpp tells neither a window in its list of models, nor its cache in its metrics, nor when it started.
#[tokio::test]
async fn an_engine_that_tells_little_has_a_window_a_capacity_and_an_epoch() {
    let process = Process::start(anywhere(), Long::Answer);
    let address = process.address;
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": dir.path().join("s.redb")},
        "health": {"interval": "50ms"}, "signals": {"interval": "50ms"},
        "probe": {"concurrency": 2, "tokens": 4, "prefill_tokens": 1000},
        "pools": [{"name": "p", "models": ["m"], "endpoints": [{"id": "e", "address": address}]}],
    });
    let config = || Config::parse(&config.to_string()).unwrap();
    let shutdown = CancellationToken::new();
    let running = weighbridge_prober::run(config(), shutdown.clone()).await.unwrap();
    let (http, api) = (reqwest::Client::builder().no_proxy().build().unwrap(), running.api);
    let endpoint = seen(&http, api, "measured", |endpoint| endpoint["weight_source"] == "measured").await;
    assert_eq!((&endpoint["context_window"], &endpoint["kv_tokens"]), (&json!(8192), &json!(32_768)), "{endpoint}");
    assert!(endpoint["prefill_tps"].as_f64().unwrap() > 0.0 && endpoint["epoch"] == 0, "{endpoint}");

    drop(process);
    seen(&http, api, "missed", |endpoint| endpoint["health"]["last_error"].is_string()).await;
    let _again = Process::start(address, Long::Answer);
    let endpoint = seen(&http, api, "in another epoch", |endpoint| endpoint["epoch"] != 0).await;
    let epoch = endpoint["epoch"].clone();
    let snapshot: Value = http.get(format!("http://{api}/v1/snapshot")).send().await.unwrap().json().await.unwrap();
    let told = &snapshot["pools"][0]["endpoints"][0];
    assert_eq!((&told["epoch"], &told["kv_tokens"]), (&epoch, &json!(32_768)), "{snapshot}");
    shutdown.cancel();
    running.stopped().await.unwrap();

    // A prober that restarts makes nobody forget anything.
    let shutdown = CancellationToken::new();
    let running = weighbridge_prober::run(config(), shutdown.clone()).await.unwrap();
    let endpoint = seen(&http, running.api, "known", |endpoint| endpoint["kv_tokens"] == 32_768).await;
    assert_eq!(endpoint["epoch"], epoch);
    let metrics = http.get(format!("http://{}/metrics", running.api)).send().await.unwrap().text().await.unwrap();
    assert!(
        metrics.contains(r#"weighbridge_prober_probes_total{pool="p",kind="registration",result="reused"} 1"#),
        "{metrics}"
    );
    shutdown.cancel();
    running.stopped().await.unwrap();
}
