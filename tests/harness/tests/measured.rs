//! The prober measures, Envoy routes by it: weights, cold restarts, idleness, health and signals, with the real programs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use harness::echo::Echo;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle, Fault};
use harness::load::{self, Call};
use harness::{ProberProcess, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use weighbridge_routing::snapshot::Snapshot;

use crate::common::{DEADLINE, Site, applied, chat, engine, even, in_state, last_probe, number};

async fn cold(name: &str, profile: Profile, time_scale: f64) -> EngineHandle {
    let config = EngineConfig { name: name.into(), model: "m".into(), profile, time_scale, ..EngineConfig::default() };
    EngineHandle::start(config).await.unwrap()
}

/// The burst of the published case.
fn full_burst() -> Value {
    json!({"concurrency": 16, "tokens": 128, "prefill_tokens": 0})
}

// The sixteen-request experiment, with weights that nobody has set.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_requests_split_by_measured_weights() {
    let (fast, pair) = (cold("fast", Profile::fast(), 1.0).await, cold("pair", Profile::pair(), 1.0).await);
    let mut site = Site::new(&[&fast, &pair]);
    // The defaults: bursts of 16 x 128 tokens, then the long prompt.
    site.config["probe"] = json!({});
    let prober = site.prober().await;
    let envoy = site.envoy(&prober, 3).await;
    let mut readings = 0;
    eventually("both are measured", Duration::from_secs(120), async || {
        // A burst of sixteen is not to be seen in Envoy.
        let stats = envoy.stats().await?;
        let in_flight = stats.sum("wasmcustom.weighbridge_in_flight.");
        assert_eq!((in_flight, stats.get("cluster.m.upstream_rq_total")), (0, 0));
        readings += 1;
        let (status, answer) = prober.call(Method::GET, "/readyz", None).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(())
    })
    .await
    .unwrap();
    let mut weights = Vec::new();
    for engine in [&fast, &pair] {
        let endpoint = prober.endpoint(engine.name()).await.unwrap();
        let (probe, weight) = (last_probe(&endpoint), number(&endpoint["weight"]));
        let (warmup, counted) = (number(&probe["warmup_tps"]), number(&probe["throughput_tps"]));
        println!("{}: weight {weight}, first burst {warmup:.0} tok/s, second {counted:.0}", engine.name());
        assert_eq!(endpoint["weight_source"], "measured");
        assert!(warmup < 0.6 * counted, "{endpoint}");
        assert_eq!((engine.state().requests_total, engine.state().running_max), (33, 16));
        weights.push(weight);
        let (prefill, speed) = (number(&endpoint["prefill_tps"]), number(&probe["prefill_tps"]));
        let long = engine.records().into_iter().max_by_key(|record| record.prompt_tokens).unwrap();
        println!("{}: prefill {prefill:.0} tok/s of {} tokens", engine.name(), long.prompt_tokens);
        assert!(prefill == speed && probe["prefill_error"].is_null(), "{endpoint}");
        assert!((8_000..9_000).contains(&long.prompt_tokens) && long.output_tokens == 1, "{long:?}");
        // It cannot be read faster than the engine reads; how much slower, the machine's load has a say in.
        let most = long.prompt_tokens as f64 / (long.e2e_ms / 1_000.0);
        assert!(prefill > 0.5 * most && prefill <= 1.001 * most, "{prefill} {most}");
    }
    let snapshot = prober.get("/v1/snapshot").await.unwrap();
    let (pool, endpoints) = (&snapshot["pools"][0], snapshot["pools"][0]["endpoints"].as_array().unwrap());
    assert!(number(&pool["median_tps"]) > 0.0 && endpoints.len() == 2, "{pool}");
    for endpoint in endpoints {
        assert!(number(&endpoint["prefill_tps"]) > 0.0, "{endpoint}");
        assert!(number(&endpoint["kv_tokens"]) > 0.0 && number(&endpoint["epoch"]) > 1e9, "{endpoint}");
    }
    assert!((weights[0] - 1.34).abs() <= 0.05 && (weights[1] - 0.66).abs() <= 0.05, "{weights:?}");
    let stats = envoy.stats().await.unwrap();
    assert_eq!(stats.get("cluster.m.upstream_rq_total"), 0);
    println!("66 requests of the probes: none seen by Envoy, in-flight zero in each of {readings} readings");

    let report = load::burst_at_once(envoy.gateway(), 16, Call::chat("m", "tell me a story", 64)).await;
    assert_eq!(report.ok(), 16, "{report:?}");
    let split = report.by_engine();
    println!("sixteen at once over three worker threads: {split:?}");
    assert!((10..=12).contains(&split["fast"]), "{split:?}");
    // The filter's own counters, which follow a moment later, know of these sixteen only.
    eventually("all are counted", DEADLINE, async || {
        let counted = envoy.stats().await?.requests_by_endpoint("m");
        ensure!(counted.values().sum::<u64>() == 16, "{counted:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(envoy.stats().await.unwrap().get("cluster.m.upstream_rq_total"), 16);
}

/// Waits for the `nth` probe in the history of an endpoint that is back in service.
async fn probed(prober: &ProberProcess, id: &str, nth: usize) -> Value {
    eventually(&format!("probe {nth} of {id}"), Duration::from_secs(60), async || {
        let endpoint = prober.endpoint(id).await?;
        let probes = endpoint["history"].as_array().map_or(0, Vec::len);
        ensure!(probes == nth && endpoint["state"] == "ready" && endpoint["weight_source"] == "measured", "{endpoint}");
        Ok(endpoint)
    })
    .await
    .unwrap()
}

/// A fast endpoint restarts cold: with other launch arguments, then twice with the same.
async fn cold_restart(registers: bool) {
    let (fast, pair) = (cold("fast", Profile::fast(), 4.0).await, cold("pair", Profile::pair(), 4.0).await);
    let mut site = if registers { Site::new(&[&pair]) } else { Site::new(&[&fast, &pair]) };
    site.config["probe"] = full_burst();
    let prober = site.prober().await;
    let registration =
        |launch_args: &str| json!({"pool": "m", "id": "fast", "address": fast.addr(), "launch_args": launch_args});
    let register = async |launch_args: &str| {
        let (status, answer) =
            prober.call(Method::POST, "/v1/endpoints", Some(&registration(launch_args))).await.unwrap();
        assert!(status < 300, "{status} {answer}");
        status
    };
    if registers {
        assert_eq!(register("--max-model-len 65536").await, 201);
    }
    probed(&prober, "pair", 1).await;
    let before = number(&probed(&prober, "fast", 1).await["weight"]);

    let other = "--max-model-len 16384";
    fast.restart(true, Some(other.into()));
    if registers {
        register(other).await;
    }
    let endpoint = probed(&prober, "fast", 2).await;
    let (probe, after) = (last_probe(&endpoint), number(&endpoint["weight"]));
    let (warmup, counted) = (number(&probe["warmup_tps"]), number(&probe["throughput_tps"]));
    println!("other arguments: weight {before} then {after}; first burst {warmup:.0} tok/s, second {counted:.0}");
    assert_eq!((&probe["kind"], &probe["reused"]), (&json!("registration"), &json!(false)), "{probe}");
    assert!((after / before - 1.0).abs() <= 0.05, "{before} {after}");
    assert!(warmup < 0.6 * counted, "{probe}");
    assert_eq!(endpoint["context_window"], 16384);

    let bursts = fast.state().requests_total;
    assert_eq!(bursts, 64);
    fast.restart(true, None);
    if registers {
        assert_eq!(register(other).await, 200);
    }
    // The pool probes one endpoint at a time, registrations first: one of `fast` would be over before the second of these.
    for _ in 0..2 {
        prober.post("/v1/endpoints/pair/probe?wait=true", &Value::Null).await.unwrap();
    }
    let endpoint = prober.endpoint("fast").await.unwrap();
    println!("same arguments: {} requests sent", fast.state().requests_total - bursts);
    assert_eq!(fast.state().requests_total, bursts);
    assert_eq!((&endpoint["state"], &endpoint["weight_source"]), (&json!("ready"), &json!("measured")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_restart_that_registers_anew_is_measured_only_with_other_arguments() {
    cold_restart(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_restart_that_is_noticed_is_measured_only_with_other_arguments() {
    cold_restart(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_waits_until_the_endpoint_is_idle() {
    const STREAM: u32 = 160;
    let only = engine("only", Profile::new("slow", &[(1, 100.0), (16, 1_600.0)])).await;
    let mut site = Site::new(&[&only]);
    let (prober, envoy) = site.start(2).await;
    let prober = Arc::new(prober);
    let mute = Fault { requests: false, metrics: true, ..Fault::status(404) };
    // Past the gateway, through it, and through it to an engine that does not tell what it runs.
    for (case, target, fault) in [
        ("past the gateway", only.addr(), Fault::none()),
        ("through the gateway", envoy.gateway(), Fault::none()),
        ("through the gateway, engine mute", envoy.gateway(), mute),
    ] {
        only.set_fault(fault);
        let met = only.state().requests_total;
        let stream = tokio::spawn(load::send(target, Call::chat_stream("m", "hello", STREAM)));
        eventually("the stream runs", DEADLINE, async || {
            ensure!(only.state().running == 1);
            Ok(())
        })
        .await
        .unwrap();
        let asking = prober.clone();
        let probe = tokio::spawn(async move { asking.post("/v1/endpoints/only/probe?wait=true", &Value::Null).await });
        let outcome = stream.await.unwrap();
        assert!(outcome.is_ok() && outcome.tokens == u64::from(STREAM), "{case}: {outcome:?}");
        let result = probe.await.unwrap().unwrap();
        assert!(number(&result["throughput_tps"]) > 0.0 && result["kind"] == "demand", "{case}: {result}");
        assert_eq!(only.state().requests_total - met, 9, "{case}: a stream and two bursts of four");
        let records = only.records();
        let (long, bursts): (Vec<_>, Vec<_>) =
            records.iter().rev().take(9).partition(|record| record.output_tokens == u64::from(STREAM));
        let end = long[0].start_s + long[0].e2e_ms / 1_000.0;
        let first = bursts.iter().map(|record| record.start_s).fold(f64::MAX, f64::min);
        println!("{case}: the burst began {:.0} ms after the stream's end", (first - end) * 1_000.0);
        assert!(first >= end - 0.001, "{case}: {first} {end}");
    }
    let (status, answer) = prober.call(Method::POST, "/v1/endpoints/only/probe", None).await.unwrap();
    assert_eq!((status, &answer["id"]), (202, &json!("only")), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_probe_does_not_wait() {
    let only = engine("only", Profile::new("slow", &[(1, 100.0), (16, 1_600.0)])).await;
    let mut site = Site::new(&[&only]);
    let prober = site.prober().await;
    probed(&prober, "only", 1).await;
    let stream = tokio::spawn(load::send(only.addr(), Call::chat_stream("m", "hello", 2_000)));
    eventually("the stream runs", DEADLINE, async || {
        ensure!(only.state().running == 1);
        Ok(())
    })
    .await
    .unwrap();
    let met = only.state().requests_total;
    prober.post("/v1/endpoints/only/probe?force=true", &Value::Null).await.unwrap();
    eventually("the burst begins", DEADLINE, async || {
        ensure!(only.state().requests_total > met);
        Ok(())
    })
    .await
    .unwrap();
    assert!(!stream.is_finished());
    stream.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_is_unhealthy_until_it_is_back() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    a.kill().await;
    let killed = Instant::now();
    let endpoint = in_state(&prober, "a", "unhealthy").await;
    let noticed = killed.elapsed();
    assert!(endpoint["health"]["last_error"].is_string() && endpoint["health"]["healthy"] == false, "{endpoint}");
    applied(&prober).await;
    println!("unhealthy after {noticed:?} with a check every 100 ms, in Envoy after {:?}", killed.elapsed());
    let report = load::closed_loop(envoy.gateway(), 4, 100, |_| chat()).await;
    assert_eq!(report.by_engine().into_iter().collect::<Vec<_>>(), [("b".to_owned(), 100)]);
    let met = a.state().requests_total;
    a.revive().await.unwrap();
    let revived = Instant::now();
    in_state(&prober, "a", "ready").await;
    applied(&prober).await;
    println!("back in Envoy after {:?}", revived.elapsed());
    let report = load::closed_loop(envoy.gateway(), 4, 100, |_| chat()).await;
    let split = report.by_engine();
    assert!(report.ok() == 100 && split.len() == 2, "{:?} {split:?}", report.by_status());
    // Back with the same arguments: traffic, no burst.
    assert_eq!(a.state().requests_total - met, split["a"] as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_health_checks_leave_in_flight_alone() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    site.config["health"]["interval"] = "200ms".into();
    let (prober, envoy) = site.start(2).await;
    let streams = tokio::spawn(load::burst_at_once(envoy.gateway(), 8, Call::chat_stream("m", "hello", 900)));
    let in_flight = async || Ok::<_, anyhow::Error>(envoy.stats().await?.sum("wasmcustom.weighbridge_in_flight."));
    eventually("eight in flight", DEADLINE, async || {
        let now = in_flight().await?;
        ensure!(now == 8, "{now}");
        Ok(())
    })
    .await
    .unwrap();
    let (start, mut readings) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(2) {
        assert_eq!(in_flight().await.unwrap(), 8);
        readings += 1;
    }
    assert!(!streams.is_finished(), "the streams were to outlive the checks");
    println!("in-flight at eight in {readings} readings over {:?}, ten health checks", start.elapsed());
    assert_eq!(prober.endpoint("a").await.unwrap()["health"]["checked"], true);
    assert_eq!(streams.await.unwrap().ok(), 8);
    envoy.idle(DEADLINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c18_metrics_that_hang_are_not_ill_health() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    a.set_fault(Fault { requests: false, metrics: true, ..Fault::hang() });
    let endpoint = eventually("three scrapes have timed out", DEADLINE, async || {
        let endpoint = prober.endpoint("a").await?;
        assert_eq!((&endpoint["state"], &endpoint["health"]["healthy"]), (&json!("ready"), &json!(true)), "{endpoint}");
        ensure!(endpoint["signals"]["age_ms"].as_u64().context("never scraped")? > 3_500, "{endpoint}");
        Ok(endpoint)
    })
    .await
    .unwrap();
    println!("signals of an engine whose metrics hang: {}", endpoint["signals"]);
    assert!(endpoint["signals"]["error"].is_string(), "{endpoint}");
    let report = load::closed_loop(envoy.gateway(), 4, 100, |_| chat()).await;
    let split = report.by_engine();
    assert!(report.ok() == 100 && split["a"] >= 20, "{:?} {split:?}", report.by_status());
}

/// Waits until the signals of `id` have an error, and no brand.
async fn of_no_brand(prober: &ProberProcess, id: &str) -> String {
    eventually("the signals say what is wrong", DEADLINE, async || {
        let endpoint = prober.endpoint(id).await?;
        let signals = &endpoint["signals"];
        ensure!(signals["brand"].is_null() && endpoint["state"] == "ready", "{endpoint}");
        Ok(signals["error"].as_str().context("no error")?.to_owned())
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn c19_metrics_that_are_missing_or_foreign_are_reported() {
    let (a, b, echo) = (engine("a", even()).await, engine("b", even()).await, Echo::start().await.unwrap());
    let mut site = Site::new(&[&a, &b]);
    let foreign = echo.addr(1);
    site.config["pools"].as_array_mut().unwrap().push(json!({
        "name": "other", "models": ["other"], "endpoints": [{"id": "foreign", "address": foreign}],
    }));
    let prober = site.prober().await;
    let envoy = site.envoy(&prober, 2).await;
    println!("an engine of another brand: {}", of_no_brand(&prober, "foreign").await);
    probed(&prober, "a", 1).await;
    probed(&prober, "b", 1).await;
    a.set_fault(Fault { requests: false, metrics: true, ..Fault::status(404) });
    let error = of_no_brand(&prober, "a").await;
    println!("an engine without metrics: {error}");
    assert!(error.contains("404"), "{error}");
    applied(&prober).await;
    let report = load::closed_loop(envoy.gateway(), 4, 100, |_| chat()).await;
    let split = report.by_engine();
    assert!(report.ok() == 100 && split["a"] >= 20, "{:?} {split:?}", report.by_status());
    let other = load::closed_loop(envoy.gateway(), 4, 20, |_| Call::chat("other", "hello", 4)).await;
    assert_eq!(other.ok(), 20, "{:?}", other.by_status());
}

// The sweep of a probe, the snapshot, and every pick of a pool that compares by curve, with the real programs.
#[tokio::test(flavor = "multi_thread")]
async fn by_curve_a_request_goes_where_its_tokens_come_fastest() {
    let warm = |name: &str, profile: Profile| EngineConfig {
        name: name.into(),
        model: "m".into(),
        profile,
        cold: false,
        ..EngineConfig::default()
    };
    let fast = EngineHandle::start(warm("fast", Profile::fast())).await.unwrap();
    let small = EngineHandle::start(warm("small", Profile::small())).await.unwrap();
    let mut site = Site::new(&[&fast, &small]);
    site.config["probe"] = json!({"concurrency": 16, "tokens": 32, "prefill_tokens": 0, "sweep_max": 32});
    site.config["pools"][0]["policy"] = json!({"name": "p2c", "choices": "all", "by": "curve"});
    let prober = site.prober().await;
    let envoy = site.envoy(&prober, 2).await;
    prober.ready(Duration::from_secs(120)).await.unwrap();
    applied(&prober).await;

    let snapshot = prober.get("/v1/snapshot").await.unwrap();
    for endpoint in snapshot["pools"][0]["endpoints"].as_array().unwrap() {
        let curve = endpoint["curve"].as_array().unwrap();
        assert_eq!(curve[0][0], 1, "{endpoint}");
        assert!(curve.len() >= 3, "{endpoint}");
    }
    // How those curves, as they were measured, fill up.
    let told = Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap();
    let (pool, mut expected) = (&told.pools[0], [0, 0]);
    for _ in 0..24 {
        let loads = [0, 1].map(|nth| pool.load(&pool.endpoints[nth], expected[nth]));
        expected[usize::from(loads[1] < loads[0])] += 1;
    }

    let call = || Call::chat("m", "tell me a story", 64).explain();
    let report = load::burst_at_once(envoy.gateway(), 24, call()).await;
    assert_eq!(report.ok(), 24, "{report:?}");
    for outcome in &report.outcomes {
        let decision: Value = serde_json::from_str(outcome.header("x-weighbridge-decision")).unwrap();
        let candidates = decision["candidates"].as_array().unwrap();
        let loads: Vec<f64> = candidates.iter().map(|candidate| number(&candidate["load"])).collect();
        for (candidate, load) in candidates.iter().zip(&loads) {
            let weight_left = number(&candidate["weight"]) * number(&candidate["share"]);
            let reckoned = (number(&candidate["in_flight"]) + 1.0) / weight_left;
            // Two and three places are written.
            assert!((reckoned - load).abs() < 0.01 + 0.02 * load, "{candidate}");
        }
        let picked = candidates.iter().find(|candidate| candidate["id"] == decision["picked"]).unwrap();
        let lowest = loads.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(number(&picked["load"]) == lowest || decision["reason"] == "holder", "{decision}");
    }
    let split = report.by_engine();
    println!("twenty-four at once by curve: {split:?}, expected {expected:?}");
    // One may end before the last has come.
    assert!(split["fast"].abs_diff(expected[0] as usize) <= 2, "{split:?} {expected:?}");
}
