//! Every shape of request: who gets it, how it is refused, and that it does not matter how its body travels.

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use harness::Envoy;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::load::{self, Call, Framing, Outcome, Pieces, Version};
use harness::snapshot::{endpoint, pool};
use harness::upstream::{Reply, Upstream};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::common::fleet::{gateway, text};

struct Site {
    envoy: Envoy,
    /// `chat` serves the model `talk` (also called `chatter`) and the adapter `poet`, `embed` the model `numbers`.
    chat: EngineHandle,
    embed: EngineHandle,
}

async fn site() -> Site {
    let engine = async |name: &str, model: &str, adapters: &[&str]| {
        let adapters = adapters.iter().map(ToString::to_string).collect();
        let config = EngineConfig { name: name.into(), model: model.into(), adapters, ..EngineConfig::default() };
        EngineHandle::start(config).await.unwrap()
    };
    let (chat, embed) = (engine("chat", "talk", &["poet"]).await, engine("embed", "numbers", &[]).await);
    let mut talk = pool("talk", vec![endpoint("chat", chat.addr(), 1.0)]);
    talk.models.extend(["chatter".into(), "poet".into()]);
    talk.served_model = Some("talk".into());
    talk.adapters = vec!["poet".into()];
    let numbers = pool("numbers", vec![endpoint("embed", embed.addr(), 1.0)]);
    Site { envoy: gateway(vec![talk, numbers]).await, chat, embed }
}

/// One request of every shape; `model` is put in.
fn every_shape(model: &str) -> Vec<(&'static str, Call)> {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}});
    let said = json!([{"role": "user", "content": "Hello, \"world\"\n\u{1F60A}"}]);
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let bodies = [
        ("chat", "/v1/chat/completions", json!({"messages": said, "max_tokens": 3})),
        ("chat with parts", "/v1/chat/completions", json!({"messages": parts, "max_tokens": 3})),
        ("chat with tools", "/v1/chat/completions", json!({"messages": said, "tools": tools, "max_tokens": 3})),
        ("completion", "/v1/completions", json!({"prompt": "Once upon", "max_tokens": 3})),
        ("completions", "/v1/completions", json!({"prompt": ["Once", "upon"], "max_tokens": 3})),
        ("token ids", "/v1/completions", json!({"prompt": [1, 2, 3], "max_tokens": 3})),
        ("lists of token ids", "/v1/completions", json!({"prompt": [[1, 2], [3]], "max_tokens": 3})),
        ("response", "/v1/responses", json!({"input": "Hello", "max_output_tokens": 3})),
        (
            "response to items",
            "/v1/responses",
            json!({"input": said, "max_output_tokens": 3, "instructions": "Be brief."}),
        ),
        ("messages", "/v1/messages", json!({"messages": said, "system": "Be brief.", "max_tokens": 3})),
        (
            "messages in blocks",
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 3}),
        ),
        ("count of tokens", "/v1/messages/count_tokens", json!({"messages": said})),
        ("embedding", "/v1/embeddings", json!({"input": "Hello"})),
        ("embeddings", "/v1/embeddings", json!({"input": ["Hello", "world"]})),
        ("embedding of token ids", "/v1/embeddings", json!({"input": [1, 2, 3]})),
        ("rerank", "/v1/rerank", json!({"query": "q", "documents": ["a", "b"]})),
        ("rerank, short path", "/rerank", json!({"query": "q", "documents": ["a", "b"]})),
        ("rerank, second version", "/v2/rerank", json!({"query": "q", "documents": ["a", "b"]})),
        ("score", "/v1/score", json!({"text_1": "a", "text_2": ["b", "c"]})),
        ("score, short path", "/score", json!({"text_1": "a", "text_2": "b"})),
        ("tokenize", "/tokenize", json!({"prompt": "Hello"})),
        ("tokenize messages", "/tokenize", json!({"messages": said})),
        ("detokenize", "/detokenize", json!({"tokens": [1, 2, 3]})),
    ];
    let mut shapes: Vec<_> = bodies
        .into_iter()
        .map(|(what, path, mut body)| {
            body["model"] = model.into();
            (what, Call::json(path, &body))
        })
        .collect();
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        let fields = [("response_format", "json"), ("model", model)];
        shapes.push(("audio", Call::multipart(path, &fields, text(200, 1).as_bytes())));
    }
    shapes
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shape_goes_to_the_pool_of_its_model() {
    let Site { envoy, chat, embed } = site().await;
    for (model, engine) in [("talk", &chat), ("numbers", &embed)] {
        for (what, call) in every_shape(model) {
            let outcome = load::send(envoy.gateway(), call).await;
            assert_eq!((outcome.status, outcome.engine()), (Some(200), engine.name()), "{what}: {outcome:?}");
        }
    }
    // An adapter's name is the engine's own and passes; another name of the model becomes its own. The engine refuses
    // what it does not know, and says in its answer what it was asked for.
    for (asked, heard) in [("poet", "poet"), ("chatter", "talk")] {
        for (what, call) in every_shape(asked) {
            let is_form = what == "audio" && asked == "chatter";
            let outcome = load::send(envoy.gateway(), call).await;
            if is_form {
                // A form is not rewritten; the client is told, by us or by the engine.
                assert!(outcome.status.is_some_and(|status| (400..500).contains(&status)), "{what}: {outcome:?}");
                continue;
            }
            assert_eq!((outcome.status, outcome.engine()), (Some(200), "chat"), "{what}: {outcome:?}");
            if let Some(model) = outcome.json().get("model") {
                assert_eq!(model, heard, "{what} for {asked}");
            }
        }
    }
    for (what, call) in every_shape("nobody") {
        let outcome = load::send(envoy.gateway(), call).await;
        assert_eq!(outcome.status, Some(404), "{what}: {outcome:?}");
        assert!(outcome.json()["error"]["message"].as_str().unwrap().contains("nobody"), "{what}");
    }
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}

/// What an error answer says: its shape (`openai` or `anthropic`), its message, the field it blames.
fn complaint(outcome: &Outcome) -> (&'static str, String, Value) {
    let body = outcome.json();
    let error = &body["error"];
    let message = error["message"].as_str().unwrap_or_default().to_owned();
    let style = if body["type"] == "error" && error.get("param").is_none() { "anthropic" } else { "openai" };
    assert!(error["type"].is_string(), "{body}");
    (style, message, error["param"].clone())
}

// Wrong types: 400 by the gateway itself, which names the field, in the words of the API that was spoken.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_body_is_refused_by_the_name_of_its_field() {
    let Site { envoy, chat, .. } = site().await;
    let cases = [
        ("/v1/chat/completions", json!({"model": "talk", "messages": "hi"}), "messages"),
        ("/v1/chat/completions", json!({"model": "talk", "messages": 7}), "messages"),
        ("/v1/chat/completions", json!({"model": 7, "messages": []}), "model"),
        ("/v1/chat/completions", json!({"messages": []}), "model"),
        ("/v1/completions", json!({"model": "talk", "prompt": {"a": 1}}), "prompt"),
        ("/v1/completions", json!({"model": "talk", "prompt": true}), "prompt"),
        ("/v1/responses", json!({"model": "talk", "input": 7}), "input"),
        ("/v1/responses", json!({"model": ["talk"], "input": "x"}), "model"),
        ("/v1/messages", json!({"model": "talk", "messages": "hi", "max_tokens": 1}), "messages"),
        ("/v1/messages", json!({"model": null, "messages": [], "max_tokens": 1}), "model"),
        ("/v1/messages/count_tokens", json!({"model": "talk", "messages": 3}), "messages"),
        ("/v1/embeddings", json!({"model": "talk", "input": 3}), "input"),
        ("/tokenize", json!({"model": "talk", "prompt": 3}), "prompt"),
    ];
    for (path, body, field) in cases {
        let outcome = load::send(envoy.gateway(), Call::json(path, &body)).await;
        assert_eq!((outcome.status, outcome.engine()), (Some(400), ""), "{path} {body}: {outcome:?}");
        let (style, message, param) = complaint(&outcome);
        assert_eq!(style, if path.starts_with("/v1/messages") { "anthropic" } else { "openai" }, "{path} {body}");
        assert!(message.contains(field), "{path} {body}: {message}");
        if style == "openai" {
            assert_eq!(param, field, "{path} {body}");
        }
    }
    let broken = ["", "{", "[]", "{\"model\":\"talk\",\"messages\":[}"];
    for (path, style) in [("/v1/messages", "anthropic"), ("/v1/responses", "openai"), ("/tokenize", "openai")] {
        for body in broken {
            let outcome = load::send(envoy.gateway(), Call::post(path, body)).await;
            assert_eq!((outcome.status, complaint(&outcome).0), (Some(400), style), "{path} {body:?}: {outcome:?}");
        }
    }
    let no_form = Call::post("/v1/audio/transcriptions", "{}").header("content-type", "application/json");
    assert_eq!(load::send(envoy.gateway(), no_form).await.status, Some(400));
    let no_model = Call::multipart("/v1/audio/transcriptions", &[("language", "en")], b"RIFF");
    let outcome = load::send(envoy.gateway(), no_model).await;
    assert_eq!((outcome.status, complaint(&outcome).2), (Some(400), json!("model")), "{outcome:?}");
    let unknown =
        load::send(envoy.gateway(), Call::json("/v1/messages", &json!({"model": "nobody", "messages": []}))).await;
    assert_eq!((unknown.status, unknown.json()["error"]["type"].clone()), (Some(404), json!("not_found_error")));
    assert_eq!(chat.state().requests_total, 0, "the engine was asked");
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_is_read_and_other_encodings_are_415() {
    let upstream = Upstream::start(Reply::json(r#"{"choices":[],"usage":{"completion_tokens":1}}"#)).await.unwrap();
    let envoy = gateway(vec![pool("talk", vec![endpoint("only", upstream.addr(), 1.0)])]).await;
    // As text compresses: some hundred times smaller, and far larger than one window of the decoder.
    let long = json!({"messages": [{"role": "user", "content": "the same again, ".repeat(20_000)}], "model": "talk"});
    let short = json!({"model": "talk", "messages": [{"role": "user", "content": "hi"}]});
    for body in [short.to_string(), long.to_string()] {
        let packed = gzip(body.as_bytes());
        for pieces in [Pieces::Whole, Pieces::Odd] {
            let call =
                Call::post("/v1/chat/completions", packed.clone()).header("content-encoding", "gzip").pieces(pieces);
            let outcome = load::send(envoy.gateway(), call.framing(Framing::Chunked).explain()).await;
            assert!(outcome.is_ok(), "{outcome:?}");
            let seen = upstream.take_seen().pop().unwrap();
            let (packing, got) = (seen.headers.get("content-encoding").cloned().unwrap_or_default(), seen.body);
            match packing.as_str() {
                "gzip" => assert_eq!(got, packed),
                _ => assert_eq!(got, body),
            }
            // What counts is what was read, not what travelled.
            let tokens = outcome.decision()["prompt_tokens"].as_u64().unwrap();
            let least = if body.len() > 1_000 { body.len() as u64 / 8 } else { 1 };
            assert!(tokens >= least, "{tokens} tokens of {} bytes", body.len());
        }
        let mut torn = packed.clone();
        torn.truncate(packed.len() / 2);
        let outcome =
            load::send(envoy.gateway(), Call::post("/v1/chat/completions", torn).header("content-encoding", "gzip"))
                .await;
        assert_eq!(outcome.status, Some(400), "{outcome:?}");
    }
    // The body is no JSON to begin with: JSON that is called something else is still read.
    for encoding in ["zstd", "br", "gzip, gzip"] {
        let packed = [b"\x28\xb5\x2f\xfd".as_slice(), short.to_string().as_bytes()].concat();
        let call = Call::post("/v1/chat/completions", packed).header("content-encoding", encoding);
        let outcome = load::send(envoy.gateway(), call).await;
        assert_eq!(outcome.status, Some(415), "{encoding}: {outcome:?}");
        assert!(complaint(&outcome).1.contains("gzip"), "it says what is taken: {outcome:?}");
    }
    let call = Call::post("/v1/chat/completions", short.to_string()).header("content-encoding", "identity");
    assert!(load::send(envoy.gateway(), call).await.is_ok());
    assert_eq!(upstream.take_seen().len(), 1);
}

/// Every way for a body to travel.
fn ways() -> Vec<(String, impl Fn(Call) -> Call + Send + Clone + 'static)> {
    let mut ways = Vec::new();
    for version in [Version::Http1, Version::Http2] {
        for pieces in [Pieces::Whole, Pieces::Odd, Pieces::Of(1)] {
            for (framing, trailers) in [(Framing::Length, false), (Framing::Chunked, false), (Framing::Chunked, true)] {
                for expect in [false, true] {
                    let name = format!("{version:?} {pieces:?} {framing:?} trailers {trailers} expect {expect}");
                    ways.push((name, move |call: Call| {
                        let mut call = call.version(version).pieces(pieces).framing(framing);
                        if call.body().len() < 1_000 {
                            // Slow enough for Envoy to see each piece alone.
                            call = call.pause(Duration::from_millis(1));
                        }
                        call = if trailers { call.trailers() } else { call };
                        if expect { call.expect_continue() } else { call }
                    }));
                }
            }
        }
    }
    ways
}

#[tokio::test(flavor = "multi_thread")]
async fn it_does_not_matter_how_a_body_travels() {
    let Site { envoy, chat, .. } = site().await;
    let said = format!("Say \"model\": \\ \u{1F60A} {{\"model\":\"no\"}}\n{}", text(10, 1));
    let long = text(18_000, 2);
    let chat_call = |model: &str, said: &str| {
        let body = json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": said}],
            "max_tokens": 5, "min_tokens": 5, "ignore_eos": true, "model": model});
        Call::json("/v1/chat/completions", &body).explain()
    };
    let calls = [
        ("chat", chat_call("talk", &said), 200),
        ("alias", chat_call("chatter", &said), 200),
        ("70 KB", chat_call("talk", &long), 200),
        ("70 KB, alias", chat_call("chatter", &long), 200),
        (
            "messages",
            Call::json(
                "/v1/messages",
                &json!({"messages": [{"role": "user", "content": said}], "max_tokens": 5,
            "model": "chatter"}),
            )
            .explain(),
            200,
        ),
        ("form", Call::multipart("/v1/audio/transcriptions", &[("model", "talk")], said.as_bytes()), 200),
        ("broken", Call::post("/v1/chat/completions", "{\"model\":\"talk\",\"messages\":[}"), 400),
        ("no model", Call::post("/v1/messages", "{\"messages\":[]}"), 400),
        ("unknown", chat_call("nobody", &said), 404),
    ];
    let mut sent = 0;
    for (what, call, status) in calls {
        // The answer, and what the gateway read; that of a second request, since the first one's prefix is new. How
        // many tokens it takes a byte for changes as it learns; what share of the prompt it has seen before does not.
        let told = |outcome: &Outcome| {
            let decision = outcome.decision();
            let matched = decision["prefix"]["matched_tokens"].as_f64().unwrap_or(0.0);
            let read = decision["prompt_tokens"].as_f64().map(|tokens| (matched / tokens * 100.0).round());
            let answer =
                if outcome.is_ok() { json!([outcome.reply(), outcome.json()["content"]]) } else { outcome.json() };
            (outcome.status, answer, read)
        };
        let first = load::send(envoy.gateway(), call.clone()).await;
        assert_eq!(first.status, Some(status), "{what}: {first:?}");
        let expected = told(&load::send(envoy.gateway(), call.clone()).await);
        let mut runs = JoinSet::new();
        for (way, apply) in ways() {
            let (call, to) = (apply(call.clone()), envoy.gateway());
            runs.spawn(async move { (way, load::send(to, call).await) });
        }
        for (way, outcome) in runs.join_all().await {
            assert_eq!(told(&outcome), expected, "{what}, {way}: {outcome:?}");
            if way.contains("Http1") && way.contains("expect true") {
                assert!(outcome.continued, "{what}, {way}: no 100 came");
            }
            sent += usize::from(status == 200);
        }
        sent += if status == 200 { 2 } else { 0 };
    }
    assert_eq!(chat.state().requests_total, sent as u64);
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}

// Case C1 for shapes other than chat: up to the limit, and beyond it 413 in the API's own words.
#[tokio::test(flavor = "multi_thread")]
async fn c1_large_bodies_of_every_shape() {
    let upstream = Upstream::start(Reply::json(r#"{"usage":{"input_tokens":1}}"#)).await.unwrap();
    let envoy = gateway(vec![pool("talk", vec![endpoint("only", upstream.addr(), 1.0)])]).await;
    let limit = 16 << 20;
    for path in ["/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/audio/transcriptions"] {
        for (size, status) in [(128 << 10, 200), (660 << 10, 200), (limit, 200), (limit + 1, 413)] {
            let call = match path {
                "/v1/audio/transcriptions" => {
                    let empty = Call::multipart(path, &[("model", "talk")], b"").body().len();
                    Call::multipart(path, &[("model", "talk")], &vec![0xA5; size - empty])
                }
                _ => {
                    let field = if path == "/v1/messages" { "metadata" } else { "user" };
                    let frame = format!(r#"{{"input":"hi","messages":[],"{field}":"","model":"talk"}}"#);
                    let filler = "x".repeat(size - frame.len());
                    Call::post(path, frame.replace(&format!(r#""{field}":"""#), &format!(r#""{field}":"{filler}""#)))
                }
            };
            assert_eq!(call.body().len(), size);
            let sent = call.body().clone();
            let outcome = load::send(envoy.gateway(), call).await;
            assert_eq!(outcome.status, Some(status), "{path}, {size} bytes: {:?}", outcome.error);
            match status {
                200 => assert!(upstream.take_seen().pop().unwrap().body == sent, "{path}, {size} bytes: changed"),
                _ => {
                    let (style, message, _) = complaint(&outcome);
                    assert_eq!(style, if path == "/v1/messages" { "anthropic" } else { "openai" });
                    assert!(message.contains("16777216"), "{message}");
                }
            }
        }
    }
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}
