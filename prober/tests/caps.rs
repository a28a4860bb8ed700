//! Measured caps against simulated engines, whose knees are known.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle, Fault};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weighbridge_prober::config::Config;

async fn engine(name: &str, profile: Profile, time_scale: f64) -> EngineHandle {
    let config = EngineConfig {
        name: name.into(),
        model: "m".into(),
        profile,
        time_scale,
        cold: false,
        ..EngineConfig::default()
    };
    EngineHandle::start(config).await.unwrap()
}

struct Prober {
    running: weighbridge_prober::Running,
    shutdown: CancellationToken,
    http: reqwest::Client,
}

/// A prober whose pool has measured caps. What `time_scale` does to speeds is to be told by the caller, in `min_tps`.
async fn start(dir: &std::path::Path, min_tps: f64, probe: Value, engines: &[&EngineHandle]) -> Prober {
    let endpoints: Vec<_> =
        engines.iter().map(|engine| json!({"id": engine.name(), "address": engine.addr()})).collect();
    let config = json!({
        "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": dir.join("s.redb")},
        "health": {"interval": "50ms"}, "signals": {"interval": "50ms"}, "probe": probe,
        "pools": [{
            "name": "p", "models": ["m"], "admission": {"cap": "measured", "min_tps": min_tps}, "endpoints": endpoints,
        }],
    });
    let shutdown = CancellationToken::new();
    let running = weighbridge_prober::run(Config::parse(&config.to_string()).unwrap(), shutdown.clone()).await.unwrap();
    Prober { running, shutdown, http: reqwest::Client::builder().no_proxy().build().unwrap() }
}

impl Prober {
    async fn get(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.running.api);
        self.http.get(url).send().await.unwrap().text().await.unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.get(path).await).unwrap()
    }

    /// Waits until the endpoint is as wanted.
    async fn seen(&self, id: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let endpoint = self.json(&format!("/v1/endpoints/{id}")).await;
            if wanted(&endpoint) {
                return endpoint;
            }
            assert!(Instant::now() < deadline, "{id} is not {what}: {endpoint}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn swept(&self, id: &str) -> Value {
        self.seen(id, "measured", |endpoint| endpoint["weight_source"] == "measured").await
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.running.stopped().await.unwrap();
    }
}

fn small_bursts() -> Value {
    json!({"concurrency": 4, "tokens": 32, "prefill_tokens": 0})
}

fn column(endpoint: &Value, name: &str) -> Vec<f64> {
    let steps = endpoint["curve"].as_array().unwrap_or_else(|| panic!("no curve in {endpoint}"));
    steps.iter().map(|step| step[name].as_f64().unwrap_or_else(|| panic!("no {name} in {step}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_finds_the_knee_and_says_how() {
    // 94/400/479/465 tokens/s at 1/8/16/32 sequences: nine tenths of the best at 11.2, 30 tokens/s each up to 15.9.
    let (pair, dir) = (engine("pair", Profile::pair(), 1.0).await, tempfile::tempdir().unwrap());
    let probe = json!({"concurrency": 4, "tokens": 96, "prefill_tokens": 0});
    let prober = start(dir.path(), 30.0, probe, &[&pair]).await;
    let endpoint = prober.swept("pair").await;
    println!("{:#}", json!({"curve": endpoint["curve"], "knee": endpoint["knee"]}));
    let concurrency = column(&endpoint, "concurrency");
    assert_eq!(concurrency[..5], [1.0, 2.0, 4.0, 8.0, 16.0]);
    assert_eq!(pair.state().running_max, 32);
    let cap = endpoint["max_in_flight"].as_u64().unwrap();
    assert!(cap.abs_diff(12) <= 2, "{endpoint}");
    assert_eq!((&endpoint["cap_source"], &endpoint["knee"]["concurrency"]), (&json!("measured"), &json!(cap)));
    assert_eq!((&endpoint["knee"]["bound"], &endpoint["knee"]["min_tps"]), (&json!("throughput"), &json!(30.0)));
    // The engine's own curve is the truth: what is measured over HTTP lies below it, by what HTTP costs.
    let throughput = column(&endpoint, "throughput_tps");
    for (step, (n, tps)) in [(1, 94.0), (8, 400.0), (16, 479.0)].into_iter().enumerate() {
        let at = concurrency.iter().position(|concurrency| *concurrency == f64::from(n)).unwrap();
        assert!(throughput[at] <= 1.05 * tps && throughput[at] > 0.8 * tps, "step {step}: {}", throughput[at]);
    }
    assert!(column(&endpoint, "ttft_ms").iter().all(|ms| *ms > 5.0), "{endpoint}");
    let each = column(&endpoint, "per_request_tps");
    assert!(each.windows(2).all(|pair| pair[0] > 0.95 * pair[1]), "{each:?}");
    let snapshot = prober.json("/v1/snapshot").await;
    assert_eq!(snapshot["pools"][0]["endpoints"][0]["cap"], cap);
    // The last scrape may still be one of the sweep.
    prober.seen("pair", "idle", |endpoint| endpoint["signals"]["running"] == 0).await;
    let metrics = prober.get("/metrics").await;
    for line in [
        format!("weighbridge_prober_cap{{pool=\"p\",endpoint=\"pair\"}} {cap}.0"),
        "weighbridge_prober_cap_source{pool=\"p\",endpoint=\"pair\",source=\"measured\"} 1.0".into(),
        format!("weighbridge_prober_pool_capacity{{pool=\"p\"}} {cap}.0"),
        format!("weighbridge_prober_pool_headroom{{pool=\"p\"}} {cap}.0"),
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line} is not in\n{metrics}");
    }
    // What is shown is what the document says.
    let document = prober.json("/openapi.json").await;
    let described = |schema: &str| document["components"]["schemas"][schema]["properties"].clone();
    for (schema, shown) in
        [("EndpointView", &endpoint), ("StepView", &endpoint["curve"][0]), ("KneeView", &endpoint["knee"])]
    {
        for field in shown.as_object().unwrap().keys() {
            assert!(described(schema).get(field).is_some(), "{schema} does not describe {field}");
        }
    }
    // The list has no room for curves.
    assert!(prober.json("/v1/endpoints").await["endpoints"][0].get("curve").is_none());
    prober.stop().await;

    // A restart costs no sweep.
    let met = pair.state().requests_total;
    let prober = start(dir.path(), 30.0, small_bursts(), &[&pair]).await;
    let again = prober.swept("pair").await;
    assert_eq!((&again["curve"], &again["max_in_flight"]), (&endpoint["curve"], &endpoint["max_in_flight"]));
    assert_eq!(pair.state().requests_total, met);
    // Another floor is another knee of the same curve, and costs none either.
    prober.stop().await;
    let prober = start(dir.path(), 60.0, small_bursts(), &[&pair]).await;
    let slower = prober.swept("pair").await;
    assert_eq!((&slower["curve"], &slower["knee"]["bound"]), (&endpoint["curve"], &json!("floor")));
    assert!(slower["max_in_flight"].as_u64().unwrap() < cap, "{slower}");
    assert_eq!(pair.state().requests_total, met);
    prober.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_ends_at_the_largest_step_that_it_may_take() {
    let even = engine("even", Profile::new("even", &[(1, 400.0), (64, 25_600.0)]), 1.0).await;
    let dir = tempfile::tempdir().unwrap();
    let mut probe = small_bursts();
    probe["sweep_max"] = json!(6);
    let prober = start(dir.path(), 0.0, probe, &[&even]).await;
    let endpoint = prober.swept("even").await;
    assert_eq!(column(&endpoint, "concurrency"), [1.0, 2.0, 4.0, 6.0]);
    assert_eq!(even.state().running_max, 6);
    let cap = endpoint["max_in_flight"].as_u64().unwrap();
    assert!((5..=6).contains(&cap), "{endpoint}");
    prober.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_leaves_the_weight_and_says_why() {
    let pair = engine("pair", Profile::pair(), 4.0).await;
    let dir = tempfile::tempdir().unwrap();
    // After two bursts of four and the first step of the sweep, every request is refused.
    let prober = start(dir.path(), 30.0, json!({"concurrency": 4, "tokens": 64, "prefill_tokens": 0}), &[&pair]).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    while pair.state().requests_total < 10 {
        assert!(Instant::now() < deadline, "no sweep");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    pair.set_fault(Fault { requests: true, metrics: false, ..Fault::status(429) });
    let endpoint = prober.swept("pair").await;
    assert_eq!((&endpoint["cap_source"], &endpoint["max_in_flight"]), (&json!("weight"), &json!(24)), "{endpoint}");
    assert!(endpoint.get("curve").is_none() && endpoint["throughput_tps"].as_f64().unwrap() > 0.0, "{endpoint}");
    for why in [&endpoint["alarm"], &endpoint["history"][0]["sweep_error"]] {
        let why = why.as_str().unwrap_or_else(|| panic!("{endpoint}"));
        assert!(why.contains("at concurrency") && why.contains("429"), "{why}");
    }
    // A fresh probe cures it.
    pair.set_fault(Fault::none());
    let url = format!("http://{}/v1/endpoints/pair/probe?wait=true", prober.running.api);
    prober.http.post(url).send().await.unwrap().error_for_status().unwrap();
    let endpoint = prober.json("/v1/endpoints/pair").await;
    assert_eq!((&endpoint["cap_source"], &endpoint["alarm"]), (&json!("measured"), &Value::Null), "{endpoint}");
    prober.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cap_by_hand_goes_before_a_measured_one() {
    let pair = engine("pair", Profile::pair(), 8.0).await;
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), 30.0, small_bursts(), &[]).await;
    let register = async |max_in_flight: Option<u32>| {
        let address: SocketAddr = pair.addr();
        let mut body = json!({"pool": "p", "id": "pair", "address": address});
        if let Some(cap) = max_in_flight {
            body["max_in_flight"] = json!(cap);
        }
        let url = format!("http://{}/v1/endpoints", prober.running.api);
        prober.http.post(url).json(&body).send().await.unwrap().error_for_status().unwrap();
    };
    register(Some(3)).await;
    let endpoint = prober.swept("pair").await;
    assert_eq!((&endpoint["cap_source"], &endpoint["max_in_flight"]), (&json!("hand"), &json!(3)), "{endpoint}");
    assert!(endpoint["curve"].is_array(), "the curve shows what the hand has given away: {endpoint}");
    let met = pair.state().requests_total;
    register(None).await;
    let endpoint = prober.swept("pair").await;
    assert_eq!((&endpoint["cap_source"], pair.state().requests_total), (&json!("measured"), met), "{endpoint}");
    prober.stop().await;
}
