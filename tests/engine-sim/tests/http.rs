//! The HTTP surface.

mod common;

use common::*;
use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle, Outcome};
use serde_json::{Value, json};

#[tokio::test]
async fn json_and_stream_say_the_same() {
    let engine = start(brisk()).await;
    let whole = post_chat(&engine, &chat("hello", 20, false)).await.unwrap();
    assert_eq!(whole.headers()["x-engine-id"], "e1");
    let whole: Value = whole.json().await.unwrap();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let content = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(content.len(), 20 * 4);
    assert_eq!(whole["usage"]["completion_tokens"], 20);

    let streamed = post_chat(&engine, &chat("hello", 20, true)).await.unwrap();
    assert_eq!(streamed.headers()["content-type"], "text/event-stream; charset=utf-8");
    let events = events(&streamed.text().await.unwrap());
    let (usage, chunks) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    assert_eq!(usage["usage"]["completion_tokens"], 20);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let pieces = chunks.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap());
    assert_eq!(pieces.collect::<String>(), content);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(chunks.len() > 5, "tokens arrive one after the other, not {} at once", chunks.len());
}

#[tokio::test]
async fn completions_stop_by_themselves_and_always_alike() {
    let engine = start(Profile::instant()).await;
    let mut lengths = Vec::new();
    for n in 0..40 {
        let body = json!({"prompt": format!("prompt {n}"), "max_tokens": 400});
        let answer: Value = post(&engine, "/v1/completions", &body).await.unwrap().json().await.unwrap();
        let again: Value = post(&engine, "/v1/completions", &body).await.unwrap().json().await.unwrap();
        assert_eq!(answer["object"], "text_completion");
        assert_eq!(answer["choices"], again["choices"]);
        lengths.push(answer["usage"]["completion_tokens"].as_u64().unwrap());
    }
    let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
    assert!((30.0..110.0).contains(&mean), "{mean}");
    let streamed = post(&engine, "/v1/completions", &json!({"prompt": "x", "stream": true})).await.unwrap();
    let events = events(&streamed.text().await.unwrap());
    assert!(events.iter().all(|event| event["usage"].is_null()), "usage only on request");
    assert!(events[0]["choices"][0]["text"].is_string());
}

#[tokio::test]
async fn several_prompts_and_choices_come_with_their_index() {
    let engine = start(brisk()).await;
    let mut body = json!({"prompt": ["first", "second"], "n": 2, "max_tokens": 9, "ignore_eos": true});
    let whole: Value = post(&engine, "/v1/completions", &body).await.unwrap().json().await.unwrap();
    let texts: Vec<&str> = whole["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!((texts.len(), &whole["usage"]["completion_tokens"]), (4, &json!(36)));
    assert_eq!(whole["usage"]["prompt_tokens"], 4);
    assert_ne!(texts[0], texts[1]);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let streamed = post(&engine, "/v1/completions", &body).await.unwrap().text().await.unwrap();
    let events = events(&streamed);
    let (usage, chunks) = events.split_last().unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], 36);
    let mut pieces = vec![String::new(); 4];
    for choice in chunks.iter().map(|chunk| &chunk["choices"][0]) {
        pieces[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(pieces, texts);
    assert_eq!(engine.state().requests_total, 2);
}

#[tokio::test]
async fn records_keep_the_headers_that_gateways_add() {
    let engine = start(Profile::instant()).await;
    let request = reqwest::Client::new().post(format!("{}/v1/chat/completions", engine.url()));
    let request = request.header("X-Request-Id", "r1").header("x-other", "1").header("accept", "*/*");
    request.json(&chat("x", 3, false)).send().await.unwrap();
    let record = engine.records().remove(0);
    assert_eq!(record.request_id.as_deref(), Some("r1"));
    assert!(record.headers.contains(&("x-other".to_owned(), "1".to_owned())), "{record:?}");
    assert_eq!(record.headers.len(), 2);
}

#[tokio::test]
async fn a_conversations_next_turn_finds_prompt_and_reply_in_the_cache() {
    let engine = start(Profile::instant()).await;
    let question = "q".repeat(1_000);
    let first: Value = post_chat(&engine, &chat(&question, 100, false)).await.unwrap().json().await.unwrap();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let reply = &first["choices"][0]["message"]["content"];
    let mut next = chat("", 5, false);
    next["messages"] = json!([{"role": "user", "content": question}, {"role": "assistant", "content": reply},
        {"role": "user", "content": "and then?"}]);
    let second: Value = post_chat(&engine, &next).await.unwrap().json().await.unwrap();
    let known = first["usage"]["total_tokens"].as_u64().unwrap();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > known - 17 && cached <= known, "{cached} of {known}");
    let text = get(&engine, "/metrics").await.unwrap().text().await.unwrap();
    assert_eq!(metric(&text, "vllm:prefix_cache_hits_total"), cached as f64);
}

#[tokio::test]
async fn errors_have_openais_shape() {
    let engine = start(Profile::fast()).await;
    let client = reqwest::Client::new();
    let broken = client.post(format!("{}/v1/chat/completions", engine.url())).body("{").send().await.unwrap();
    assert_eq!(broken.status(), 400);
    let broken: Value = broken.json().await.unwrap();
    assert_eq!((&broken["error"]["type"], &broken["error"]["code"]), (&json!("BadRequestError"), &json!(400)));
    let mut other = chat("x", 1, false);
    other["model"] = json!("gpt");
    let other = post_chat(&engine, &other).await.unwrap();
    assert_eq!(other.status(), 404);
    assert_eq!(other.json::<Value>().await.unwrap()["error"]["type"], "NotFoundError");
    let long = post_chat(&engine, &chat(&"x".repeat(300_000), 1, false)).await.unwrap();
    assert_eq!(long.status(), 400);
    assert!(long.text().await.unwrap().contains("maximum context length is 65536"));
    assert_eq!(get(&engine, "/v1/chat/completions").await.unwrap().status(), 405);
    assert_eq!(get(&engine, "/nothing").await.unwrap().status(), 404);
    assert_eq!(engine.state().refused_total, 3);
}

#[tokio::test]
async fn the_other_paths_answer_as_vllm() {
    let config = EngineConfig { model: "m".into(), max_model_len: 4_096, ..Default::default() };
    let engine = EngineHandle::start(config).await.unwrap();
    assert_eq!(get(&engine, "/health").await.unwrap().status(), 200);
    let models: Value = get(&engine, "/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(models["data"][0]["max_model_len"], 4_096);
    let version: Value = get(&engine, "/version").await.unwrap().json().await.unwrap();
    assert!(version["version"].is_string());
    post_chat(&engine, &chat("x", 7, false)).await.unwrap();
    let text = get(&engine, "/metrics").await.unwrap().text().await.unwrap();
    assert_eq!(metric(&text, "vllm:generation_tokens_total"), 7.0);
    assert_eq!(metric(&text, "vllm:num_requests_running"), 0.0);
    assert!(text.contains(r#"vllm:request_success_total{engine="0",model_name="m",finished_reason="length"} 1.0"#));
    let state: Value = get(&engine, "/sim/state").await.unwrap().json().await.unwrap();
    assert_eq!(state["records"][0]["output_tokens"], 7);
}

#[tokio::test]
async fn what_exceeds_the_batch_waits_and_shows() {
    let mut profile = brisk();
    profile.batch_limit = 4;
    let engine = start(profile).await;
    let requests: Vec<_> = (0..10)
        .map(|n| {
            let (url, body) = (format!("{}/v1/chat/completions", engine.url()), chat(&n.to_string(), 300, false));
            tokio::spawn(async move { reqwest::Client::new().post(url).json(&body).send().await.unwrap().status() })
        })
        .collect();
    until("four run, the others wait", || engine.state().running == 4 && engine.state().waiting >= 4).await;
    let text = get(&engine, "/metrics").await.unwrap().text().await.unwrap();
    assert_eq!(metric(&text, "vllm:num_requests_running"), 4.0);
    assert!(metric(&text, "vllm:num_requests_waiting") >= 1.0);
    assert!(metric(&text, "vllm:kv_cache_usage_perc") > 0.0);
    for request in requests {
        assert_eq!(request.await.unwrap(), 200);
    }
    let state = engine.state();
    assert_eq!((state.running, state.waiting, state.running_max), (0, 0, 4));
    assert_eq!((state.finished_total, state.in_flight), (10, 0));
}

#[tokio::test]
async fn clients_that_leave_free_their_place() {
    let engine = start(Profile::fast()).await;
    for stream in [true, false] {
        let connection = raw_chat(&engine, &chat("x", 30_000, stream)).await;
        until("it runs", || engine.state().running == 1).await;
        drop(connection);
        until("it is gone", || engine.state().running == 0 && engine.state().in_flight == 0).await;
    }
    assert_eq!(engine.state().cancelled_total, 2);
    let records = engine.records();
    assert!(records.iter().all(|record| record.outcome == Outcome::Cancelled), "{records:?}");
    let text = get(&engine, "/metrics").await.unwrap().text().await.unwrap();
    assert!(text.contains(r#"model_name="m",finished_reason="abort"} 2.0"#));
}

#[tokio::test]
async fn connections_are_kept_alive() {
    let engine = start(Profile::instant()).await;
    let client = reqwest::Client::new();
    let mut ports = std::collections::HashSet::new();
    for stream in [false, true, false] {
        let request = client.post(format!("{}/v1/chat/completions", engine.url())).json(&chat("x", 3, stream));
        let response = request.send().await.unwrap();
        ports
            .insert(response.extensions().get::<hyper_util::client::legacy::connect::HttpInfo>().unwrap().local_addr());
        response.bytes().await.unwrap();
    }
    assert_eq!(ports.len(), 1);
}
