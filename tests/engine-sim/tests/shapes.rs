//! Every shape of request over HTTP, and what a stream looks like on the wire.

mod common;

use common::*;
use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle, Fault, SseStyle};
use serde_json::{Value, json};

async fn answer(engine: &EngineHandle, path: &str, body: &Value) -> (u16, Value) {
    let response = post(engine, path, body).await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Name (`""` without) and data of each event of a stream.
fn named_events(text: &str) -> Vec<(String, String)> {
    let event = |block: &str| {
        let (name, data) = match block.strip_prefix("event: ") {
            Some(rest) => rest.split_once('\n').unwrap(),
            None => ("", block),
        };
        (name.to_owned(), data.strip_prefix("data: ").unwrap().to_owned())
    };
    text.split("\n\n").filter(|block| !block.is_empty()).map(event).collect()
}

fn names(events: &[(String, String)]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    names
}

fn data(events: &[(String, String)], name: &str) -> Vec<Value> {
    let wanted = events.iter().filter(|(found, _)| found == name);
    wanted.map(|(_, data)| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test]
async fn responses_go_on_where_this_engine_stopped() {
    let (engine, other) = (start(brisk()).await, start(brisk()).await);
    let body = json!({"model": "m", "input": "q".repeat(400), "max_output_tokens": 50, "ignore_eos": true});
    let (status, first) = answer(&engine, "/v1/responses", &body).await;
    assert_eq!((status, &first["object"], &first["status"]), (200, &json!("response"), &json!("incomplete")));
    let text = first["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!((text.len(), &first["usage"]["output_tokens"]), (200, &json!(50)));
    let total = first["usage"]["total_tokens"].as_u64().unwrap();

    let next = json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "go on"}]}], "stream": true,
        "previous_response_id": first["id"], "max_output_tokens": 20, "ignore_eos": true});
    let streamed = post(&engine, "/v1/responses", &next).await.unwrap().text().await.unwrap();
    let events = named_events(&streamed);
    let wanted = ["response.created", "response.in_progress", "response.output_item.added"];
    assert_eq!(names(&events)[..3], wanted);
    let deltas = data(&events, "response.output_text.delta");
    assert!(deltas.len() > 3);
    let completed = data(&events, "response.completed").remove(0);
    let text: String = deltas.iter().map(|delta| delta["delta"].as_str().unwrap()).collect();
    assert_eq!(completed["response"]["output"][0]["content"][0]["text"], text);
    assert_eq!(completed["response"]["id"], data(&events, "response.created")[0]["response"]["id"]);
    let cached = completed["response"]["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > total - 20 && cached <= total, "{cached} of {total}");

    // The streamed one is known too; the other engine knows neither, and a restart forgets both.
    let third = json!({"input": "x", "previous_response_id": completed["response"]["id"], "max_output_tokens": 1});
    assert_eq!(answer(&engine, "/v1/responses", &third).await.0, 200);
    let (status, error) = answer(&other, "/v1/responses", &third).await;
    assert_eq!((status, &error["error"]["param"]), (404, &json!("previous_response_id")));
    let unstored = json!({"input": "x", "store": false, "max_output_tokens": 1});
    let (_, unstored) = answer(&engine, "/v1/responses", &unstored).await;
    let fourth = json!({"input": "x", "previous_response_id": unstored["id"]});
    assert_eq!(answer(&engine, "/v1/responses", &fourth).await.0, 404);
    engine.restart(false, None);
    assert_eq!(answer(&engine, "/v1/responses", &third).await.0, 404);
}

#[tokio::test]
async fn messages_speak_anthropic() {
    let engine = start(brisk()).await;
    let question = "q".repeat(400);
    let mut body = json!({"model": "m", "max_tokens": 20, "ignore_eos": true, "system": "be brief",
        "messages": [{"role": "user", "content": question}]});
    let (status, whole) = answer(&engine, "/v1/messages", &body).await;
    assert_eq!((status, &whole["type"], &whole["stop_reason"]), (200, &json!("message"), &json!("max_tokens")));
    let input = whole["usage"]["input_tokens"].as_u64().unwrap();
    let (_, count) = answer(&engine, "/v1/messages/count_tokens", &body).await;
    assert_eq!(count["input_tokens"], input);

    body["messages"] = json!([{"role": "user", "content": question}, {"role": "assistant", "content": whole["content"]},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]}]);
    body["stream"] = json!(true);
    let events = named_events(&post(&engine, "/v1/messages", &body).await.unwrap().text().await.unwrap());
    assert_eq!(
        names(&events),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
            ""
        ]
    );
    let text: usize =
        data(&events, "content_block_delta").iter().map(|delta| delta["delta"]["text"].as_str().unwrap().len()).sum();
    let usage = &data(&events, "message_delta")[0]["usage"];
    assert_eq!((text, &usage["output_tokens"]), (80, &json!(20)));
    let cached = usage["cache_read_input_tokens"].as_u64().unwrap();
    assert!(cached > input && cached <= input + 20, "prompt and reply, not {cached} of {input}");

    let (status, error) = answer(&engine, "/v1/messages", &json!({"model": "x", "messages": []})).await;
    assert_eq!((status, &error["type"], &error["error"]["type"]), (404, &json!("error"), &json!("not_found_error")));
}

#[tokio::test]
async fn pooling_shapes_use_the_prefix_cache_too() {
    let engine = start(Profile::instant()).await;
    let body = json!({"model": "m", "input": ["a".repeat(400), "b".repeat(400)]});
    let (_, embeddings) = answer(&engine, "/v1/embeddings", &body).await;
    assert_eq!((embeddings["data"].as_array().unwrap().len(), &embeddings["usage"]["prompt_tokens"]), (2, &json!(200)));
    assert_eq!(answer(&engine, "/v1/embeddings", &body).await.1["data"], embeddings["data"]);
    for path in ["/v1/rerank", "/rerank", "/v2/rerank"] {
        let (status, ranked) = answer(&engine, path, &json!({"query": "q", "documents": ["x", "y", "z"]})).await;
        let results = ranked["results"].as_array().unwrap();
        let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
        assert!(status == 200 && scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{path} {ranked}");
    }
    for path in ["/v1/score", "/score"] {
        let (status, scores) = answer(&engine, path, &json!({"text_1": "q", "text_2": ["x", "y"]})).await;
        assert_eq!((status, scores["data"].as_array().unwrap().len()), (200, 2), "{path}");
    }
    assert!(engine.state().prefix_cache_hits_total >= 2 * 96);
}

#[tokio::test]
async fn tokens_are_counted_without_the_model() {
    let engine = start(Profile::instant()).await;
    let (_, tokens) = answer(&engine, "/tokenize", &json!({"model": "m", "prompt": "hello"})).await;
    assert_eq!(tokens["count"], 2);
    let (_, text) = answer(&engine, "/detokenize", &json!({"model": "m", "tokens": tokens["tokens"]})).await;
    assert_eq!(text["prompt"], "hello");
    assert_eq!(get(&engine, "/tokenize").await.unwrap().status(), 405);
    assert_eq!((engine.state().requests_total, engine.state().finished_total), (2, 0));
}

#[tokio::test]
async fn audio_comes_as_a_form() {
    let engine = start(Profile::instant()).await;
    let form = |model: &str, stream: bool| {
        let field = |name: &str, value: &str| {
            format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let model = if model.is_empty() { String::new() } else { field("model", model) };
        let file = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF";
        format!("{model}{}{file}{}\r\n--b--\r\n", field("stream", &stream.to_string()), "x".repeat(4_000))
    };
    let client = reqwest::Client::new();
    let send = async |path: &str, body: String| {
        let request = client.post(format!("{}{path}", engine.url())).body(body);
        request.header("content-type", "multipart/form-data; boundary=b").send().await.unwrap()
    };
    let answer: Value = send("/v1/audio/transcriptions", form("m", false)).await.json().await.unwrap();
    let text = answer["text"].as_str().unwrap();
    assert!(!text.is_empty() && answer["usage"]["type"] == "duration", "{answer}");
    let streamed = send("/v1/audio/translations", form("m", true)).await.text().await.unwrap();
    let pieces: String =
        events(&streamed).iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(pieces, text);
    let nameless = send("/v1/audio/transcriptions", form("", false)).await;
    assert_eq!(nameless.status(), 400);
    assert_eq!(nameless.json::<Value>().await.unwrap()["error"]["param"], "model");
    assert_eq!(send("/v1/audio/transcriptions", form("x", false)).await.status(), 404);
}

#[tokio::test]
async fn adapters_are_models_with_caches_of_their_own() {
    let config = EngineConfig { model: "m".into(), adapters: vec!["lora".into()], cold: false, ..Default::default() };
    let engine = EngineHandle::start(config).await.unwrap();
    let models: Value = get(&engine, "/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("lora"), &json!("m")));
    let mut cached = Vec::new();
    for (model, salt) in [("m", ""), ("lora", ""), ("lora", "s"), ("lora", "s"), ("m", "")] {
        let mut body = chat(&"x".repeat(1_000), 2, false);
        body["model"] = json!(model);
        body["cache_salt"] = json!(salt);
        let (_, answer) = answer(&engine, "/v1/chat/completions", &body).await;
        assert_eq!(answer["model"], model);
        cached.push(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
    }
    assert_eq!((&cached[..3], cached[3] > 200, cached[4] > 200), ([0, 0, 0].as_slice(), true, true), "{cached:?}");
    let text = get(&engine, "/metrics").await.unwrap().text().await.unwrap();
    assert_eq!(metric(&text, "vllm:prefix_cache_hits_total"), (cached[3] + cached[4]) as f64);
    assert_eq!(metric(&text, "vllm:prefix_cache_queries_total"), metric(&text, "vllm:prompt_tokens_total"));
    let records: Vec<_> = engine.records().into_iter().map(|record| (record.path, record.model)).collect();
    assert_eq!(records[1], ("/v1/chat/completions".to_owned(), "lora".to_owned()));
}

#[tokio::test]
async fn compressed_bodies_are_not_understood() {
    let engine = start(Profile::instant()).await;
    let request = reqwest::Client::new().post(format!("{}/v1/chat/completions", engine.url()));
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    let response = request.header("content-encoding", "gzip").body(gzip).send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert_eq!(engine.state().refused_total, 1);
}

#[tokio::test]
async fn a_stream_may_tell_of_an_error() {
    let engine = start(brisk()).await;
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"] {
        let mut body = chat("x", 500, true);
        body["prompt"] = json!("x");
        body["input"] = json!("x");
        body["max_output_tokens"] = json!(500);
        engine.set_fault(Fault::stream_error(3));
        let response = post(&engine, path, &body).await.unwrap();
        assert_eq!(response.status(), 200);
        let text = response.text().await.unwrap();
        let wanted = if path == "/v1/messages" { r#""type":"error""# } else { "fault on demand" };
        assert!(text.contains(wanted) && text.contains("error"), "{path}: {text}");
        assert!(text.len() < 4_000, "it ends there: {text}");
        body["stream"] = json!(false);
        assert_eq!(post(&engine, path, &body).await.unwrap().status(), 500);
        until("nothing is left", || engine.state().in_flight == 0 && engine.state().running == 0).await;
    }
}

#[tokio::test]
async fn streams_come_with_any_line_end_and_in_any_pieces() {
    let mut texts = Vec::new();
    for sse in [SseStyle::default(), SseStyle { crlf: true, piece_bytes: 0 }, SseStyle { crlf: true, piece_bytes: 7 }] {
        let config = EngineConfig { model: "m".into(), sse, ..Default::default() };
        let engine = EngineHandle::start(config).await.unwrap();
        let body = json!({"model": "m", "max_tokens": 40, "ignore_eos": true, "stream": true,
            "messages": [{"role": "user", "content": "x"}]});
        let mut response = post(&engine, "/v1/messages", &body).await.unwrap();
        let (mut bytes, mut chunks) = (Vec::new(), 0);
        while let Some(chunk) = response.chunk().await.unwrap() {
            bytes.extend_from_slice(&chunk);
            chunks += 1;
        }
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.contains("\r\n\r\n"), sse.crlf);
        assert_eq!(
            text.matches('\n').count(),
            if sse.crlf { text.matches("\r\n").count() } else { text.matches('\n').count() }
        );
        if sse.piece_bytes > 0 {
            assert!(chunks > 50, "{chunks} chunks of {} bytes", text.len());
        }
        // The ids differ between engines.
        let id = text.split("msg_").nth(1).unwrap()[..24].to_owned();
        texts.push(text.replace("\r\n", "\n").replace(&id, ""));
    }
    assert!(texts.iter().all(|text| *text == texts[0]));
}

#[tokio::test]
async fn a_prompt_beyond_the_window_is_refused_in_every_shape() {
    let config = EngineConfig { model: "m".into(), max_model_len: 256, ..Default::default() };
    let engine = EngineHandle::start(config).await.unwrap();
    let long = "x".repeat(2_000);
    let body = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": long}], "prompt": long,
        "input": long, "query": long, "documents": ["x"], "text_1": long, "text_2": "x"});
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
    ] {
        let (status, error) = answer(&engine, path, &body).await;
        let message = error["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("maximum context length is 256 tokens"), "{path}: {error}");
    }
}
