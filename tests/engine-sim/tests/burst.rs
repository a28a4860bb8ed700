//! The published case over HTTP: a warmed burst by wall time, and the cost of an engine that takes no time.

mod common;

use std::time::Instant;

use common::*;
use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle};
use serde_json::Value;

/// `concurrency` chat requests of exactly `tokens` tokens at once; tok/s by wall time, tokens from `usage`.
async fn burst(engine: &EngineHandle, client: &reqwest::Client, concurrency: usize, tokens: u64) -> f64 {
    let url = format!("{}/v1/chat/completions", engine.url());
    let start = Instant::now();
    let requests: Vec<_> = (0..concurrency)
        .map(|n| {
            let body = chat(&format!("Count the wagons that pass, please. Number {n}."), tokens, n % 2 == 0);
            tokio::spawn(client.post(&url).json(&body).send())
        })
        .collect();
    let mut total = 0;
    for request in requests {
        let text = request.await.unwrap().unwrap().text().await.unwrap();
        let usage = match serde_json::from_str::<Value>(&text) {
            Ok(whole) => whole["usage"].clone(),
            Err(_) => events(&text).pop().unwrap()["usage"].clone(),
        };
        total += usage["completion_tokens"].as_u64().unwrap();
    }
    total as f64 / start.elapsed().as_secs_f64()
}

async fn warmed(profile: Profile, cold: Option<f64>, warm: f64) {
    let client = reqwest::Client::new();
    let name = profile.name.clone();
    let config = EngineConfig { profile, model: "m".into(), cold: cold.is_some(), ..Default::default() };
    let engine = EngineHandle::start(config).await.unwrap();
    if let Some(cold) = cold {
        let measured = burst(&engine, &client, 16, 128).await;
        println!("{name}: first burst {measured:.0} tok/s, {cold} published");
        assert!((measured / cold - 1.0).abs() < 0.10, "{measured}");
    }
    let measured = burst(&engine, &client, 16, 128).await;
    println!("{name}: warmed burst {measured:.0} tok/s, {warm} published");
    assert!((measured / warm - 1.0).abs() < 0.06, "{measured}");
    assert_eq!(engine.state().running_max, 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_over_http_shows_the_published_figures() {
    tokio::join!(warmed(Profile::fast(), Some(275.0), 980.0), warmed(Profile::pair(), None, 479.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instant_engine_keeps_up_with_many_connections() {
    let engine = start(Profile::instant()).await;
    let client = reqwest::Client::new();
    let url = format!("{}/v1/chat/completions", engine.url());
    let start = Instant::now();
    let connections: Vec<_> = (0..64)
        .map(|n| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move {
                for turn in 0..50 {
                    let body = chat(&format!("{n} {turn}"), 64, turn % 2 == 0);
                    let response = client.post(&url).json(&body).send().await.unwrap();
                    assert_eq!(response.status(), 200);
                    response.bytes().await.unwrap();
                }
            })
        })
        .collect();
    for connection in connections {
        connection.await.unwrap();
    }
    println!("{:.0} requests/s with client, 64 connections", 3_200.0 / start.elapsed().as_secs_f64());
    let state = engine.state();
    assert_eq!((state.finished_total, state.running, state.in_flight), (3_200, 0, 0));
    assert_eq!(state.generation_tokens_total, 3_200 * 64);
}
