//! A real engine, llama.cpp with a small random model, behind the real prober and the real Envoy: what the simulated engine
//! only imitates is read, measured and routed right.

use anyhow::{Context, ensure};
use harness::llama::{LlamaOptions, LlamaServer, MODEL};
use harness::load::{self, Call, Conversation, Outcome};
use harness::{Envoy, ProberProcess, artifacts, eventually};
use serde_json::{Value, json};

use crate::common::{DEADLINE, Site, number};

const SLOTS: usize = 4;
const WINDOW: usize = 2_048;

struct Real {
    engine: LlamaServer,
    prober: ProberProcess,
    envoy: Envoy,
}

async fn real() -> Real {
    let engine = LlamaServer::start(&LlamaOptions {
        name: "llama".into(),
        model: artifacts::real("model.gguf").unwrap(),
        slots: SLOTS,
        window: WINDOW,
        threads: 1,
        cpus: None,
        cache_mib: 0,
    })
    .await
    .unwrap();
    let mut site = Site::new(&[]);
    site.config["probe"] = json!({"concurrency": 4, "tokens": 16, "prefill_tokens": 256});
    let endpoint = json!({"id": "llama", "address": engine.address().to_string()});
    site.config["pools"] = json!([{"name": "m", "models": ["m"], "served_model": MODEL, "endpoints": [endpoint]}]);
    let (prober, envoy) = site.start(1).await;
    Real { engine, prober, envoy }
}

/// What the filter has logged of the newest request, when there are so many.
async fn logged(envoy: &Envoy, requests: usize) -> Value {
    eventually("the request is logged", DEADLINE, async || {
        let log = envoy.access_log();
        ensure!(log.len() >= requests, "{} of {requests}", log.len());
        let decision = log.last().and_then(|line| line["decision"].as_str()).context("no decision")?;
        Ok(serde_json::from_str::<Value>(decision)?["result"].clone())
    })
    .await
    .unwrap()
}

fn complete(outcome: &Outcome) {
    let body = String::from_utf8_lossy(&outcome.body);
    assert!(outcome.is_ok(), "{:?} {:?} {body}", outcome.status, outcome.error);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_measured_and_its_pages_are_read() {
    let real = real().await;
    let endpoint = real.prober.endpoint("llama").await.unwrap();
    println!("{endpoint:#}");
    assert_eq!((&endpoint["weight_source"], &endpoint["state"]), (&json!("measured"), &json!("ready")));
    assert!(number(&endpoint["throughput_tps"]) > 0.0 && number(&endpoint["prefill_tps"]) > 0.0);
    assert_eq!(endpoint["context_window"], WINDOW);
    let snapshot = real.prober.get("/v1/snapshot").await.unwrap();
    assert_eq!(snapshot["pools"][0]["endpoints"][0]["kv_tokens"], SLOTS * WINDOW);
    let signals = &endpoint["signals"];
    assert_eq!(
        (&signals["brand"], &signals["error"], &signals["alarm"]),
        (&json!("llamacpp"), &Value::Null, &Value::Null)
    );
    // Every request of the bursts had exactly as many tokens as it asked for, though this model likes to stop.
    let generated = real.engine.metric("llamacpp:tokens_predicted_total").await.unwrap();
    assert!(generated >= 2.0 * 4.0 * 16.0, "{generated}");
    assert_eq!(endpoint["history"][0]["prefill_error"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_streamed_and_its_prefix_is_found_by_both() {
    let real = real().await;
    let mut talk = Conversation::new("count the load");
    let first =
        load::send(real.envoy.gateway(), talk.ask("m", &"how the far road ".repeat(20), 12, true).explain()).await;
    complete(&first);
    assert_eq!((first.tokens, first.usage.cached_tokens.is_some()), (12, true));
    // A word is a token, which is what lengths of prompts in the benchmarks rely on.
    assert!((100..130).contains(&first.usage.prompt_tokens.unwrap()), "{:?}", first.usage);
    talk.hear(&first);
    let second = load::send(real.envoy.gateway(), talk.ask("m", "and back", 12, true).explain()).await;
    complete(&second);
    // The filter knew of it, and the engine had it: all of the first turn, the answer included.
    assert_eq!(second.decision()["reason"], "holder", "{}", second.decision());
    let (had, found) = (first.usage.prompt_tokens.unwrap() + 12, second.usage.cached_tokens.unwrap());
    assert!(found >= had - 2, "{found} of {had}");
    let result = logged(&real.envoy, 2).await;
    let usage = second.usage;
    assert_eq!(result["completion_tokens"].as_u64(), usage.completion_tokens, "{result}");
    assert_eq!(
        (result["prompt_tokens"].as_u64(), result["cached_tokens"].as_u64()),
        (usage.prompt_tokens, usage.cached_tokens)
    );
    let metric = async |name: &str| real.engine.metric(name).await.unwrap();
    let (computed, hits) =
        (metric("llamacpp:prompt_tokens_total").await, metric("llamacpp:prompt_tokens_cached_total").await);
    let rate = hits / (computed + hits);
    eventually("the prober sees the hits", DEADLINE, async || {
        let signals = real.prober.endpoint("llama").await?["signals"].clone();
        let told = signals["prefix_hit_rate"].as_f64().context("no hit rate")?;
        ensure!((told - rate).abs() < 1e-6, "{signals} {rate}");
        Ok(())
    })
    .await
    .unwrap();
}

// llama.cpp speaks four APIs, each with its own words for what an answer cost.
#[tokio::test(flavor = "multi_thread")]
async fn every_api_is_understood_in_both_forms() {
    let real = real().await;
    let said = json!([{"role": "user", "content": "say the way to the port"}]);
    let mut sent = 0;
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": said, "max_tokens": 5, "stream_options": {"include_usage": true}})),
        (
            "/v1/completions",
            json!({"prompt": "say the way", "max_tokens": 5, "stream_options": {"include_usage": true}}),
        ),
        ("/v1/messages", json!({"messages": said, "max_tokens": 5})),
        ("/v1/responses", json!({"input": "say the way", "max_output_tokens": 5})),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            (body["model"], body["stream"], body["ignore_eos"]) = (json!("m"), json!(stream), json!(true));
            if !stream {
                body.as_object_mut().unwrap().remove("stream_options");
            }
            let outcome = load::send(real.envoy.gateway(), Call::json(path, &body)).await;
            complete(&outcome);
            sent += 1;
            let result = logged(&real.envoy, sent).await;
            println!("{path} stream {stream}: {:?} {result}", outcome.usage);
            assert_eq!(outcome.endpoint(), "llama");
            assert_eq!(result["completion_tokens"].as_u64(), Some(5), "{path} {stream}: {result}");
            // Anthropic's `input_tokens` are those that were not cached; ours are all of them.
            let beside = if path == "/v1/messages" { outcome.usage.cached_tokens } else { None };
            let prompt = outcome.usage.prompt_tokens.map(|tokens| tokens + beside.unwrap_or(0));
            assert_eq!(result["prompt_tokens"].as_u64(), prompt, "{path} {stream}: {result}");
            assert_eq!(result["cached_tokens"].as_u64(), outcome.usage.cached_tokens, "{path} {stream}: {result}");
        }
    }
}
