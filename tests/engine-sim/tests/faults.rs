//! Faults on demand, restarts, death and revival.

mod common;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use common::*;
use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle, Fault, Outcome};
use serde_json::{Value, json};
use tokio::net::TcpStream;

#[tokio::test]
async fn errors_come_with_status_and_count() {
    let engine = start(Profile::instant()).await;
    let fault = json!({"kind": "status", "status": 429, "retry_after": 2, "count": 2});
    assert_eq!(post(&engine, "/sim/fault", &fault).await.unwrap().status(), 200);
    for wanted in [429, 429, 200] {
        let response = post_chat(&engine, &chat("x", 3, false)).await.unwrap();
        assert_eq!(response.status(), wanted);
        assert_eq!(response.headers()["x-engine-id"], "e1");
        if wanted == 429 {
            assert_eq!(response.headers()["retry-after"], "2");
            assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], 429);
        }
    }
    assert_eq!((engine.state().requests_total, engine.state().faults_total), (3, 2));
    let wrong = post(&engine, "/sim/fault", &json!({"kind": "status", "status": 200})).await.unwrap();
    assert_eq!(wrong.status(), 400);
}

#[tokio::test]
async fn a_stream_is_reset_after_its_tokens() {
    for profile in [Profile::instant(), brisk()] {
        let engine = start(profile).await;
        engine.set_fault(Fault::reset_mid_stream(3));
        let mut connection = raw_chat(&engine, &chat("x", 50, true)).await;
        let (text, end) = read_to_end(&mut connection).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let content: usize = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|event| serde_json::from_str::<Value>(event).unwrap())
            .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap().len())
            .sum();
        assert_eq!(content, 3 * 4, "{text}");
        until("nothing is left", || engine.state().in_flight == 0 && engine.state().running == 0).await;
    }
}

#[tokio::test]
async fn a_json_body_is_reset_in_the_middle() {
    let engine = start(Profile::instant()).await;
    engine.set_fault(Fault::reset_mid_stream(3));
    let mut connection = raw_chat(&engine, &chat("x", 50, false)).await;
    let (text, end) = read_to_end(&mut connection).await;
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"content\""), "{text}");
}

#[tokio::test]
async fn a_reset_comes_before_any_byte() {
    let engine = start(Profile::instant()).await;
    engine.set_fault(Fault::reset_before_headers());
    let mut connection = raw_chat(&engine, &chat("x", 5, true)).await;
    let (text, end) = read_to_end(&mut connection).await;
    assert_eq!((text.as_str(), end.unwrap_err().kind()), ("", ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn a_hang_lasts_until_the_client_leaves_or_the_engine_restarts() {
    let engine = start(Profile::instant()).await;
    for fault in [Fault::hang(), Fault { after_tokens: Some(2), ..Fault::hang() }] {
        engine.set_fault(fault);
        let leaving = raw_chat(&engine, &chat("x", 5, true)).await;
        let mut staying = raw_chat(&engine, &chat("x", 5, true)).await;
        until("both hang", || engine.state().in_flight == 2).await;
        if engine.state().hanging > 0 {
            let text = get(&engine, "/metrics").await.unwrap().text().await.unwrap();
            assert_eq!(metric(&text, "vllm:num_requests_running"), 2.0);
        }
        drop(leaving);
        until("one has left", || engine.state().in_flight == 1).await;
        engine.restart(true, None);
        let (_, end) = read_to_end(&mut staying).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn health_and_metrics_fail_only_when_told_to() {
    let engine = start(Profile::instant()).await;
    engine.set_fault(Fault::status(503));
    assert_eq!(get(&engine, "/health").await.unwrap().status(), 200);
    engine.set_fault(Fault { health: true, requests: false, ..Fault::status(503) });
    assert_eq!(get(&engine, "/health").await.unwrap().status(), 503);
    assert_eq!(get(&engine, "/metrics").await.unwrap().status(), 200);
    assert_eq!(post_chat(&engine, &chat("x", 3, false)).await.unwrap().status(), 200);
    engine.set_fault(Fault { metrics: true, ..Fault::status(404) });
    assert_eq!(get(&engine, "/metrics").await.unwrap().status(), 404);
    engine.set_fault(Fault { health: true, ..Fault::reset_mid_stream(1) });
    assert!(get(&engine, "/health").await.is_err());
    engine.set_fault(Fault { health: true, ..Fault::hang() });
    let hanging = tokio::time::timeout(Duration::from_millis(100), get(&engine, "/health")).await;
    assert!(hanging.is_err(), "no answer");
    engine.set_fault(Fault::none());
    assert_eq!(get(&engine, "/health").await.unwrap().status(), 200);
}

#[tokio::test]
async fn slow_is_slower() {
    let engine = start(brisk()).await;
    engine.set_fault(Fault { delay_ms: 50, ..Fault::slow(4.0) });
    let start = Instant::now();
    post_chat(&engine, &chat("x", 50, false)).await.unwrap().bytes().await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_restart_loses_requests_cache_and_counters() {
    let config =
        EngineConfig { profile: Profile::fast(), launch_args: "--a".into(), cold: false, ..Default::default() };
    let engine = EngineHandle::start(EngineConfig { model: "m".into(), ..config }).await.unwrap();
    let before = engine.state();
    assert_eq!(before.cold_tokens_left, 0);
    let mut running =
        [raw_chat(&engine, &chat("x", 9_000, true)).await, raw_chat(&engine, &chat("y", 9_000, false)).await];
    until("they run", || engine.state().running == 2).await;
    let restarted = post(&engine, "/sim/restart", &json!({"cold": true, "launch_args": "--b"})).await.unwrap();
    assert_eq!(restarted.status(), 200);
    for connection in &mut running {
        let (_, end) = read_to_end(connection).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    let after = engine.state();
    assert_eq!((after.running, after.finished_total, after.restarts), (0, 0, 1));
    assert_eq!((after.launch_args.as_str(), after.cold_tokens_left), ("--b", 16 * 128));
    assert!(after.process_start_time_seconds > before.process_start_time_seconds);
    assert!(engine.records().iter().all(|record| record.outcome == Outcome::Lost));
    until("nothing is left", || engine.state().in_flight == 0).await;
    assert_eq!(engine.state().cancelled_total, 0, "the new process knows nothing of the old one's requests");
}

#[tokio::test]
async fn a_restart_with_other_arguments_is_another_machine() {
    let engine = start(Profile::fast()).await;
    let asked = json!({"launch_args": "--max-model-len 4096 --gpu-memory-utilization=0.5"});
    assert_eq!(post(&engine, "/sim/restart", &asked).await.unwrap().status(), 200);
    let models: Value = get(&engine, "/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!(models["data"][0]["max_model_len"], 4_096);
    let text = get(&engine, "/metrics").await.unwrap().text().await.unwrap();
    assert!(text.contains(r#"gpu_memory_utilization="0.5""#), "{text}");
    assert_eq!(post_chat(&engine, &chat("x", 5_000, false)).await.unwrap().status(), 400);
}

#[tokio::test]
async fn refused_connections_come_back_by_time_or_when_cleared() {
    let engine = start(Profile::instant()).await;
    let client = reqwest::Client::new();
    let url = format!("{}/v1/chat/completions", engine.url());
    let ask = async || client.post(&url).json(&chat("x", 3, false)).send().await.unwrap().bytes().await.unwrap();
    ask().await;
    let asked = json!({"kind": "refuse", "seconds": 0.3});
    client.post(format!("{}/sim/fault", engine.url())).json(&asked).send().await.unwrap().bytes().await.unwrap();
    until_async("refused", async || TcpStream::connect(engine.addr()).await.is_err()).await;
    let error = TcpStream::connect(engine.addr()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    ask().await;
    until_async("back by time", async || TcpStream::connect(engine.addr()).await.is_ok()).await;
    assert_eq!(engine.state().fault, Fault::none());
    engine.set_fault(Fault::refuse());
    until_async("refused again", async || TcpStream::connect(engine.addr()).await.is_err()).await;
    engine.set_fault(Fault::none());
    until_async("back when cleared", async || TcpStream::connect(engine.addr()).await.is_ok()).await;
    let wrong = post(&engine, "/sim/fault", &json!({"kind": "refuse", "count": 2})).await.unwrap();
    assert_eq!(wrong.status(), 400);
}

#[tokio::test]
async fn a_shutdown_lets_requests_end() {
    let engine = start(brisk()).await;
    let addr = engine.addr();
    let mut running = raw_chat(&engine, &chat("x", 100, true)).await;
    until("it runs", || engine.state().running == 1).await;
    engine.shutdown(PATIENCE).await;
    let (text, end) = read_to_end(&mut running).await;
    end.unwrap();
    assert!(text.contains("data: [DONE]"), "{text}");
    assert_eq!(TcpStream::connect(addr).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn killed_and_revived_on_the_same_port() {
    let engine = start(brisk()).await;
    let addr = engine.addr();
    for round in 1..=3 {
        let mut running = raw_chat(&engine, &chat("x", 9_000, true)).await;
        until("it runs", || engine.state().running == 1).await;
        engine.kill().await;
        let (text, _) = read_to_end(&mut running).await;
        assert!(!text.ends_with("0\r\n\r\n"), "the stream has no proper end");
        assert!(!engine.state().alive);
        assert_eq!(TcpStream::connect(addr).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        engine.kill().await;
        engine.revive().await.unwrap();
        engine.revive().await.unwrap();
        assert_eq!(engine.addr(), addr);
        assert_eq!(post_chat(&engine, &chat("x", 3, false)).await.unwrap().status(), 200);
        assert_eq!((engine.state().restarts, engine.state().alive), (round, true));
    }
}

#[tokio::test]
async fn dropping_the_handle_stops_it() {
    let engine = start(Profile::fast()).await;
    let addr = engine.addr();
    let mut running = raw_chat(&engine, &chat("x", 9_000, true)).await;
    until("it runs", || engine.state().running == 1).await;
    drop(engine);
    let _ = read_to_end(&mut running).await;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(addr).await.is_ok() {
        assert!(Instant::now() < deadline, "still listening");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_at_once_leaves_nothing_behind() {
    let engine = start(brisk()).await;
    let clients: Vec<_> = (0..64)
        .map(|n: u64| {
            let (addr, url) = (engine.addr(), format!("{}/v1/chat/completions", engine.url()));
            tokio::spawn(async move {
                let client = reqwest::Client::new();
                for turn in 0..10 {
                    let body = chat(&format!("{n} {turn}"), 20 + n, turn % 2 == 0);
                    let request = client.post(&url).json(&body).send();
                    // Some leave early, some at once; the others take whatever comes.
                    match (n + turn) % 5 {
                        0 => drop(tokio::time::timeout(Duration::from_millis(5), request).await),
                        1 => drop(TcpStream::connect(addr).await),
                        _ => {
                            if let Ok(response) = request.await {
                                let _ = response.bytes().await;
                            }
                        }
                    }
                }
            })
        })
        .collect();
    let kinds = [Fault::status(500), Fault::reset_mid_stream(2), Fault::reset_before_headers(), Fault::slow(2.0)];
    for fault in kinds.into_iter().cycle() {
        if clients.iter().all(|client| client.is_finished()) {
            break;
        }
        engine.set_fault(Fault { probability: 0.3, ..fault });
        engine.restart(false, None);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until("nothing is left", || engine.state().in_flight == 0).await;
    let state = engine.state();
    assert_eq!((state.running, state.waiting, state.kv_cache_usage), (0, 0, 0.0));
    assert!(state.faults_total > 0);
}
