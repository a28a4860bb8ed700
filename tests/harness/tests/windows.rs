//! Context windows of different sizes in one pool.

use anyhow::ensure;
use harness::engine_sim::server::{EngineConfig, EngineHandle, Fault, FaultKind};
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool};
use harness::{Envoy, eventually};
use serde_json::json;

use crate::common::DEADLINE;
use crate::common::fleet::{gateway, text};

/// `small` has a window of 4,096 tokens, `big` one of 32,768.
async fn site(big_weight: f64, cap: Option<u32>) -> (Vec<EngineHandle>, Envoy) {
    let (mut engines, mut endpoints) = (Vec::new(), Vec::new());
    for (name, window, weight) in [("small", 4_096, 1.0), ("big", 32_768, big_weight)] {
        let config =
            EngineConfig { name: name.into(), model: "m".into(), max_model_len: window, ..EngineConfig::default() };
        let engine = EngineHandle::start(config).await.unwrap();
        endpoints.push(endpoint(name, engine.addr(), weight));
        let last = endpoints.last_mut().unwrap();
        (last.context_window, last.cap) = (Some(window), cap);
        engines.push(engine);
    }
    (engines, gateway(vec![pool("m", endpoints)]).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_goes_to_the_endpoint_that_can_hold_it() {
    // The small one is the faster by far, and idle: only its window keeps the long prompts away.
    let (_engines, envoy) = site(0.25, None).await;
    for seed in 0..10 {
        let outcome = load::send(envoy.gateway(), Call::chat("m", &text(8_000, seed), 4).explain()).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(outcome.endpoint(), "big");
        let decision = outcome.decision();
        let candidates = decision["candidates"].as_array().unwrap();
        let small = candidates.iter().find(|candidate| candidate["id"] == "small").unwrap();
        assert_eq!(small["excluded"], "window", "{decision}");
    }
    // What is asked for beyond the prompt counts as well.
    let outcome = load::send(envoy.gateway(), Call::chat("m", "a short question", 6_000)).await;
    assert_eq!((outcome.status, outcome.endpoint()), (Some(200), "big"));
    let outcome = load::send(envoy.gateway(), Call::chat("m", "a short question", 60)).await;
    assert_eq!((outcome.status, outcome.endpoint()), (Some(200), "small"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_window_can_hold_is_refused_with_the_numbers() {
    let (engines, envoy) = site(1.0, None).await;
    let chat = |prompt: &str, tokens: u32| Call::chat("m", prompt, tokens);
    let messages = |prompt: &str, tokens: u32| {
        let said = json!([{"role": "user", "content": prompt}]);
        Call::json("/v1/messages", &json!({"model": "m", "messages": said, "max_tokens": tokens}))
    };
    let long = text(500_000, 1);
    for call in [chat(&long, 4), chat("short", 40_000)] {
        let outcome = load::send(envoy.gateway(), call).await;
        assert_eq!(outcome.status, Some(400), "{:?}", outcome.error);
        let error = &outcome.json()["error"];
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("context_length_exceeded"), &json!("invalid_request_error"))
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("32768"), "{message}");
        let numbers = message.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty()).count();
        assert!(numbers >= 2, "the window and what was asked for: {message}");
    }
    for call in [messages(&long, 4), messages("short", 40_000)] {
        let outcome = load::send(envoy.gateway(), call).await;
        assert_eq!((outcome.status, &outcome.json()["type"]), (Some(400), &json!("error")), "{outcome:?}");
        let message = outcome.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("32768"), "{message}");
    }
    assert!(engines.iter().all(|engine| engine.state().requests_total == 0), "an engine was asked");
}

// Where long prompts are rare, short ones use the big window like any other endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn short_prompts_are_not_kept_from_a_big_window() {
    let (_engines, envoy) = site(1.0, None).await;
    let report = load::closed_loop(envoy.gateway(), 1, 100, |nth| Call::chat("m", &text(50, nth as u64), 2)).await;
    let split = report.by_endpoint();
    assert!(split.len() == 2 && split.values().all(|count| (25..=75).contains(count)), "{split:?}");
}

// Where they are common, its last slots are theirs; and nothing stands idle that could serve.
#[tokio::test(flavor = "multi_thread")]
async fn where_long_prompts_are_common_the_last_slots_of_the_big_window_are_theirs() {
    let (engines, envoy) = site(1.0, Some(8)).await;
    let short = |nth: u64| Call::chat_stream("m", &text(50, 1_000 + nth), 8).explain();
    let reserved = |outcome: &load::Outcome| {
        let decision = outcome.decision();
        let candidates = decision["candidates"].as_array().cloned().unwrap_or_default();
        candidates.iter().any(|candidate| candidate["id"] == "big" && candidate["excluded"] == "reserved")
    };
    let hang = |after_tokens| {
        for engine in &engines {
            engine.set_fault(match after_tokens {
                Some(_) => Fault { kind: FaultKind::Hang, after_tokens, ..Fault::default() },
                None => Fault::default(),
            });
        }
    };
    hang(Some(1));
    let mut held = Vec::new();
    for nth in 0..4 {
        let stream = load::hold(envoy.gateway(), Call::chat_stream("m", &text(8_000, 2_000 + nth), 8)).await.unwrap();
        assert_eq!(stream.endpoint(), "big");
        held.push(stream);
    }
    hang(None);
    // Half of what comes is long: half of the big one's eight slots, the most there can be, are kept.
    let mut seed = 0;
    eventually("the gateway knows how common they are", DEADLINE, async || {
        for tokens in [8_000, 50, 8_000, 8_000, 50, 8_000, 50, 8_000] {
            seed += 1;
            let outcome = load::send(envoy.gateway(), Call::chat("m", &text(tokens, seed), 2)).await;
            ensure!(outcome.is_ok(), "{outcome:?}");
        }
        let outcome = load::send(envoy.gateway(), short(10_000 + seed)).await;
        ensure!(reserved(&outcome), "{}", outcome.decision());
        Ok(())
    })
    .await
    .unwrap();
    hang(Some(1));
    envoy_counts(&envoy, 0, 4).await;
    for nth in 0..8 {
        let stream = load::hold(envoy.gateway(), short(nth)).await.unwrap();
        assert_eq!(stream.endpoint(), "small", "{}", stream.outcome().decision());
        held.push(stream);
    }
    // A long one still finds a slot; and so do short ones, once the small endpoint has no more.
    let long = load::hold(envoy.gateway(), Call::chat_stream("m", &text(8_000, 3_000), 8)).await.unwrap();
    assert_eq!(long.endpoint(), "big");
    assert_eq!(load::hold(envoy.gateway(), short(100)).await.unwrap().endpoint(), "big");
}

async fn envoy_counts(envoy: &Envoy, small: u64, big: u64) {
    eventually("the gateway counts what is held", DEADLINE, async || {
        let stats = envoy.stats().await?;
        let found = (stats.in_flight("m", "small"), stats.in_flight("m", "big"));
        ensure!(found == (small, big), "{found:?}");
        Ok(())
    })
    .await
    .unwrap();
}
