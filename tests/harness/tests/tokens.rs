//! Tokens: what the gateway learns from answers, whatever form they have, and that it changes no byte of them.

use std::time::Duration;

use anyhow::{Context, ensure};
use harness::load::{self, Call, Outcome, Pieces};
use harness::snapshot::{endpoint, pool};
use harness::upstream::{Reply, Upstream};
use harness::{Envoy, eventually};
use serde_json::{Value, json};

use crate::common::DEADLINE;
use crate::common::fleet::{gateway, text};

/// Bytes of every prompt's text.
const PROMPT_BYTES: u64 = 8_000;
/// What the upstream's `usage` says of it: 2 bytes a token, where 4 are supposed as long as nothing is known.
const PROMPT_TOKENS: u64 = PROMPT_BYTES / 2;

/// A stream of a chat completion, with `usage` at its end and characters of several bytes.
fn chat_stream(line_end: &str) -> Vec<u8> {
    let chunk = |content: &str, finish: Value| {
        json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": content},
            "finish_reason": finish}]})
    };
    let usage = json!({"id": "c", "choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 3,
        "total_tokens": PROMPT_TOKENS + 3, "prompt_tokens_details": {"cached_tokens": 16}}});
    let events = [chunk("Grüße, ", Value::Null), chunk("世界 ", Value::Null), chunk("\u{1F30D}", json!("stop")), usage];
    let mut stream = format!(": a comment{line_end}{line_end}");
    for event in events {
        stream.push_str(&format!("data: {event}{line_end}{line_end}"));
    }
    stream.push_str(&format!("data: [DONE]{line_end}{line_end}"));
    stream.into_bytes()
}

fn chat_whole() -> Vec<u8> {
    json!({"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant",
        "content": "Grüße, 世界 \u{1F30D}"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 3, "total_tokens": PROMPT_TOKENS + 3, "prompt_tokens_details": {"cached_tokens": 16}}})
    .to_string()
    .into_bytes()
}

fn messages_stream() -> Vec<u8> {
    let events = [
        (
            "message_start",
            json!({"type": "message_start", "message": {"id": "msg", "type": "message", "role": "assistant",
            "content": [], "usage": {"input_tokens": PROMPT_TOKENS - 16, "cache_read_input_tokens": 16, "output_tokens": 0}}}),
        ),
        (
            "content_block_delta",
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta",
            "text": "Grüße"}}),
        ),
        (
            "message_delta",
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 3}}),
        ),
        ("message_stop", json!({"type": "message_stop"})),
    ];
    events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect::<String>().into_bytes()
}

fn responses_stream() -> Vec<u8> {
    let usage = json!({"input_tokens": PROMPT_TOKENS, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 3,
        "total_tokens": PROMPT_TOKENS + 3});
    let events = [
        ("response.created", json!({"type": "response.created", "response": {"id": "resp_1", "usage": null}})),
        ("response.output_text.delta", json!({"type": "response.output_text.delta", "delta": "Grüße"})),
        (
            "response.completed",
            json!({"type": "response.completed", "response": {"id": "resp_1", "status": "completed",
            "usage": usage}}),
        ),
    ];
    events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect::<String>().into_bytes()
}

/// A request whose prompt has `PROMPT_BYTES` of text.
fn ask(path: &str, stream: bool, seed: u64) -> Call {
    let said = json!([{"role": "user", "content": text(PROMPT_BYTES as usize / 4, seed)}]);
    let (messages, limit) = match path {
        "/v1/responses" => ("input", "max_output_tokens"),
        _ => ("messages", "max_tokens"),
    };
    Call::json(path, &json!({"model": "m", messages: said, limit: 50, "stream": stream})).explain()
}

/// Upstream and gateway, for one form of answer.
async fn site(reply: Reply) -> (Upstream, Envoy) {
    let upstream = Upstream::start(reply).await.unwrap();
    let envoy = gateway(vec![pool("m", vec![endpoint("only", upstream.addr(), 1.0)])]).await;
    (upstream, envoy)
}

/// Every form of answer: what it is, to which request, and how it comes.
fn forms() -> Vec<(&'static str, &'static str, Reply)> {
    let chat = "/v1/chat/completions";
    vec![
        ("JSON", chat, Reply::json(chat_whole())),
        ("JSON in pieces", chat, Reply { pieces: Pieces::Odd, ..Reply::json(chat_whole()) }),
        ("LF", chat, Reply::events(chat_stream("\n"), Pieces::Whole)),
        ("CRLF", chat, Reply::events(chat_stream("\r\n"), Pieces::Whole)),
        ("LF, byte by byte", chat, Reply::events(chat_stream("\n"), Pieces::Of(1))),
        ("CRLF, byte by byte", chat, Reply::events(chat_stream("\r\n"), Pieces::Of(1))),
        ("CRLF in odd pieces", chat, Reply::events(chat_stream("\r\n"), Pieces::Odd)),
        ("messages", "/v1/messages", Reply::events(messages_stream(), Pieces::Odd)),
        ("responses", "/v1/responses", Reply::events(responses_stream(), Pieces::Odd)),
    ]
}

/// What the log says of the newest finished request.
async fn last_result(envoy: &Envoy, requests: usize) -> Value {
    eventually("the access log", DEADLINE, async || {
        let log = envoy.access_log();
        ensure!(log.len() >= requests, "{} lines", log.len());
        let decision = log.last().and_then(|line| line["decision"].as_str()).context("no decision")?;
        let decision: Value = serde_json::from_str(decision)?;
        Ok(decision["result"].clone())
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_read_from_every_form_of_answer() {
    for (what, path, reply) in forms() {
        let stream = reply.content_type.starts_with("text/event-stream");
        let (_upstream, envoy) = site(reply).await;
        let estimate = |outcome: &Outcome| outcome.decision()["prompt_tokens"].as_u64().unwrap_or(0);
        let first = load::send(envoy.gateway(), ask(path, stream, 0)).await;
        assert!(first.is_ok(), "{what}: {first:?}");
        let supposed = PROMPT_BYTES / 4;
        assert!(estimate(&first).abs_diff(supposed) < supposed / 10, "{what}: {}", first.decision());
        let result = last_result(&envoy, 1).await;
        assert_eq!(result["prompt_tokens"], PROMPT_TOKENS, "{what}: {result}");
        assert_eq!(result["cached_tokens"], 16, "{what}: {result}");
        assert_eq!(result["completion_tokens"], 3, "{what}: {result}");
        assert_eq!(result["finish"], "stop", "{what}: {result}");
        assert_eq!(result["error"], Value::Null, "{what}: {result}");
        // What was learnt counts for the next prompts.
        let mut seed = 0;
        eventually(&format!("{what}: bytes per token are learnt"), DEADLINE, async || {
            seed += 1;
            let outcome = load::send(envoy.gateway(), ask(path, stream, seed)).await;
            let found = estimate(&outcome);
            ensure!(found.abs_diff(PROMPT_TOKENS) < PROMPT_TOKENS / 10, "{found} tokens");
            Ok(())
        })
        .await
        .unwrap();
    }
}

// Case C20: whatever the cuts, the client gets the engine's bytes, all of them and no others.
#[tokio::test(flavor = "multi_thread")]
async fn c20_not_a_byte_of_an_answer_is_changed() {
    let mut forms = forms();
    let chat = "/v1/chat/completions";
    let not_utf8 = [chat_stream("\n"), b"data: \xff\xfe{\"x\":\xf0\x9f\n\n".to_vec(), chat_stream("\r\n")].concat();
    forms.push(("not UTF-8", chat, Reply::events(not_utf8, Pieces::Of(3))));
    forms.push(("no line end", chat, Reply::events(vec![b'x'; 300_000], Pieces::Of(4_001))));
    forms.push(("not JSON", chat, Reply::json(vec![0, 159, 146, 150, b'{', b'"'])));
    forms.push(("empty", chat, Reply::json(Vec::new())));
    for (what, path, reply) in forms {
        let stream = reply.content_type.starts_with("text/event-stream");
        let (upstream, envoy) = site(reply.clone()).await;
        let direct = load::send(upstream.addr(), ask(path, stream, 1)).await;
        let through = load::send(envoy.gateway(), ask(path, stream, 1)).await;
        assert!(through.is_ok(), "{what}: {through:?}");
        assert!(direct.body == reply.body && through.body == direct.body, "{what}: the bytes differ");
        assert_eq!(through.header("content-type"), direct.header("content-type"), "{what}");
        envoy.idle(Duration::from_secs(10)).await.unwrap();
    }
}

// An error object inside a 200 stream is seen, and is not taken for a good answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_inside_a_stream_is_noticed() {
    let error = json!({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}});
    for line_end in ["\n", "\r\n"] {
        for pieces in [Pieces::Whole, Pieces::Of(1), Pieces::Odd] {
            let stream = format!(
                "data: {{\"choices\":[{{\"delta\":{{\"content\":\"x\"}}}}]}}{line_end}{line_end}\
                data: {error}{line_end}{line_end}data: [DONE]{line_end}{line_end}"
            );
            let (_upstream, envoy) = site(Reply::events(stream, pieces)).await;
            assert!(load::send(envoy.gateway(), ask("/v1/chat/completions", true, 1)).await.is_ok());
            let result = last_result(&envoy, 1).await;
            assert_eq!((&result["status"], &result["error"]), (&json!(200), &json!(true)), "{pieces:?}: {result}");
        }
    }
    let (_upstream, envoy) = site(Reply::events(chat_stream("\n"), Pieces::Whole)).await;
    assert!(load::send(envoy.gateway(), ask("/v1/chat/completions", true, 1)).await.is_ok());
    assert_eq!(last_result(&envoy, 1).await["error"], Value::Null);
}

// A response's id leads its next turn to the endpoint that remembers it.
#[tokio::test(flavor = "multi_thread")]
async fn a_previous_response_is_found_where_it_was_made() {
    let (_engines, pool) = crate::common::fleet::instant(&[("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)]).await;
    let envoy = gateway(vec![pool]).await;
    let mut used = std::collections::BTreeSet::new();
    for seed in 0..12 {
        for stream in [false, true] {
            let first = json!({"model": "m", "input": text(50, seed), "max_output_tokens": 8, "stream": stream});
            let outcome = load::send(envoy.gateway(), Call::json("/v1/responses", &first)).await;
            assert!(outcome.is_ok(), "{outcome:?}");
            let body = String::from_utf8_lossy(&outcome.body).into_owned();
            let id =
                body.split("\"id\":\"").find(|part| part.starts_with("resp")).and_then(|part| part.split('"').next());
            let next = json!({"model": "m", "input": "and then?", "previous_response_id": id.unwrap(), "max_output_tokens": 8});
            let second = load::send(envoy.gateway(), Call::json("/v1/responses", &next).explain()).await;
            // Anywhere else it would be a 404.
            assert_eq!((second.status, second.endpoint()), (Some(200), outcome.endpoint()), "{}", second.decision());
            used.insert(outcome.endpoint().to_owned());
        }
    }
    assert!(used.len() > 1, "{used:?}");
}
