//! Golden answers in the shapes that servers send, and a comparison with a plain reader of whole texts.

use proptest::prelude::*;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::*;

/// Feeds pieces of the given sizes, over and over.
fn watch(kind: Kind, text: &[u8], sizes: &[usize]) -> Facts {
    let (mut watcher, mut rest) = (Watcher::new(kind), text);
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        watcher.feed(piece);
        rest = after;
    }
    watcher.finish();
    watcher.facts().clone()
}

/// The facts of a text that must be the same for every cut into two, and for pieces of every size.
fn facts(kind: Kind, text: &[u8]) -> Facts {
    let whole = watch(kind, text, &[text.len().max(1)]);
    for size in 1..=text.len() {
        assert_eq!(watch(kind, text, &[size, text.len()]), whole, "cut at {size}");
        assert_eq!(watch(kind, text, &[size]), whole, "cut every {size}");
    }
    whole
}

fn sse(text: &str) -> Facts {
    let lf = facts(Kind::Sse, text.as_bytes());
    for line_end in ["\r\n", "\r"] {
        assert_eq!(facts(Kind::Sse, text.replace('\n', line_end).as_bytes()), lf, "{line_end:?}");
    }
    lf
}

fn stopped(prompt: u64, cached: Option<u64>, completion: u64, finish: Finish, events: u64) -> Facts {
    Facts {
        prompt_tokens: Some(prompt),
        cached_tokens: cached,
        completion_tokens: Some(completion),
        finish: Some(finish),
        events,
        first_token: true,
        ..Facts::default()
    }
}

#[test]
fn one_document_in_place_of_a_stream_is_read_too() {
    let document = json!({"object": "chat.completion", "choices": [{"message": {"content": "data: hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3}});
    for before in ["", " ", "\n\n  "] {
        let text = format!("{before}{document}");
        assert_eq!(facts(Kind::Sse, text.as_bytes()), stopped(7, None, 3, Finish::Stop, 0), "{before:?}");
    }
    let error = json!({"error": {"message": "no", "code": 1}}).to_string();
    assert!(facts(Kind::Sse, error.as_bytes()).error);
}

#[test]
fn content_types() {
    assert_eq!(Kind::of_content_type(b"text/event-stream; charset=utf-8"), Some(Kind::Sse));
    assert_eq!(Kind::of_content_type(b"Application/JSON"), Some(Kind::Json));
    assert_eq!(Kind::of_content_type(b" application/json ;x"), Some(Kind::Json));
    assert_eq!(Kind::of_content_type(b"application/jsonl"), None);
    assert_eq!(Kind::of_content_type(b""), None);
}

#[test]
fn c20_vllm_chat_stream_whatever_the_cut() {
    let text = r#"data: {"id":"chatcmpl-9f","object":"chat.completion.chunk","created":1764000000,"model":"qwen","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

data: {"id":"chatcmpl-9f","object":"chat.completion.chunk","created":1764000000,"model":"qwen","choices":[{"index":0,"delta":{"content":"Grüße, 世界 🌍"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-9f","object":"chat.completion.chunk","created":1764000000,"model":"qwen","choices":[{"index":0,"delta":{"content":"{\"error\": {\"usage\": {\"prompt_tokens\": 9}}, \"finish_reason\": \"length\"}"},"logprobs":null,"finish_reason":null}]}

data: {"id":"chatcmpl-9f","object":"chat.completion.chunk","created":1764000000,"model":"qwen","choices":[{"index":0,"delta":{"content":"error"},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-9f","object":"chat.completion.chunk","created":1764000000,"model":"qwen","choices":[{"index":0,"delta":{"content":"."},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}

data: {"id":"chatcmpl-9f","object":"chat.completion.chunk","created":1764000000,"model":"qwen","choices":[],"usage":{"prompt_tokens":31,"total_tokens":35,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":16}}}

data: [DONE]

data: {"error":{"message":"nobody reads this"}}

"#;
    assert_eq!(sse(text), stopped(31, Some(16), 4, Finish::Stop, 4));
}

#[test]
fn an_error_inside_a_stream() {
    let text = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n\
                data: {\"error\": {\"message\": \"CUDA out of memory\", \"type\": \"InternalServerError\", \"code\": 500}}\n\n\
                data: [DONE]\n\n";
    assert_eq!(sse(text), Facts { error: true, events: 1, first_token: true, ..Facts::default() });
    // Before the first token, as a string, and in the old form.
    for (error, client_error) in [
        (r#"{"error":{"message":"x"}}"#, false),
        (r#"{"error":"x"}"#, false),
        (r#"{"error":{"message":"x","type":"InternalServerError","code":500}}"#, false),
        (r#"{"error":{"message":"x","type":"BadRequestError","param":null,"code":400}}"#, true),
        (r#"{"error":{"code":"context_length_exceeded","type":"invalid_request_error"}}"#, true),
        (r#"{"object":"error","message":"x","code":400}"#, true),
    ] {
        let expected = Facts { error: true, client_error, ..Facts::default() };
        assert_eq!(sse(&format!("data: {error}\n\n")), expected);
        assert_eq!(facts(Kind::Json, error.as_bytes()), expected);
    }
    assert!(sse("event: error\ndata: out of memory\n\n").error);
    assert!(!sse("data: {\"error\":null,\"choices\":[]}\n\n").error);
    assert!(!facts(Kind::Json, br#"{"error": null, "x": {"error": {}}}"#).error);
}

#[test]
fn sglang_stream_with_spaces_reasoning_and_usage_in_every_chunk() {
    let text = r#"data: {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant", "content": null, "reasoning_content": null, "tool_calls": null}, "logprobs": null, "finish_reason": null, "matched_stop": null}], "usage": {"prompt_tokens": 12, "total_tokens": 12, "completion_tokens": 0, "prompt_tokens_details": null}}

data: {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": null, "content": null, "reasoning_content": "Hm", "tool_calls": null}, "finish_reason": null}], "usage": {"prompt_tokens": 12, "total_tokens": 13, "completion_tokens": 1}}

data: {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Yes"}, "finish_reason": null}], "usage": {"prompt_tokens": 12, "total_tokens": 14, "completion_tokens": 2}}

data: {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": null}, "finish_reason": "length", "matched_stop": null}], "usage": null}

data: [DONE]

"#;
    assert_eq!(sse(text), stopped(12, None, 2, Finish::Length, 2));
}

#[test]
fn llama_cpp_stream_with_timings_and_tool_call() {
    let text = r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,"id":"chatcmpl-x","model":"m","system_fingerprint":"b1","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{"}}]}}],"object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":"tool_calls","index":0,"delta":{}}],"object":"chat.completion.chunk","timings":{"prompt_n":17,"predicted_n":3,"prompt_per_second":812.5}}

data: {"choices":[],"object":"chat.completion.chunk","usage":{"completion_tokens":3,"prompt_tokens":17,"total_tokens":20},"timings":{"prompt_n":17}}

data: [DONE]

"#;
    assert_eq!(sse(text), stopped(17, None, 3, Finish::ToolCalls, 1));
}

#[test]
fn completions_stream_without_a_last_blank_line() {
    let text = r#": ping

data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null}]}

data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" one","logprobs":null,"finish_reason":null}]}

: ping

data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" two","finish_reason":"content_filter"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
    assert_eq!(sse(text), stopped(5, None, 2, Finish::ContentFilter, 2));
}

#[test]
fn anthropic_stream() {
    let text = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" \"type\":\"error\" "}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

"#;
    assert_eq!(sse(text), stopped(135, Some(100), 15, Finish::Stop, 2));
    let text = text.replace(
        "event: message_delta\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
    );
    let text = text.replace("end_turn", "tool_use");
    assert_eq!(sse(&text), Facts { error: true, ..stopped(135, Some(100), 15, Finish::ToolCalls, 2) });
}

#[test]
fn responses_stream() {
    let text = r#"event: response.created
data: {"response":{"id":"resp_42","object":"response","status":"in_progress","error":null,"incomplete_details":null,"output":[],"usage":null},"sequence_number":0,"type":"response.created"}

event: response.in_progress
data: {"response":{"id":"resp_42","object":"response","status":"in_progress","error":null,"usage":null},"sequence_number":1,"type":"response.in_progress"}

event: response.output_item.added
data: {"item":{"id":"msg_1","content":[],"role":"assistant","status":"in_progress","type":"message"},"output_index":0,"sequence_number":2,"type":"response.output_item.added"}

event: response.output_text.delta
data: {"content_index":0,"delta":"Hi","item_id":"msg_1","logprobs":[],"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}

event: response.output_text.delta
data: {"content_index":0,"delta":" there","item_id":"msg_1","logprobs":[],"output_index":0,"sequence_number":5,"type":"response.output_text.delta"}

event: response.output_text.done
data: {"content_index":0,"text":"Hi there","item_id":"msg_1","output_index":0,"sequence_number":6,"type":"response.output_text.done"}

event: response.completed
data: {"response":{"id":"resp_42","object":"response","status":"completed","error":null,"incomplete_details":null,"output":[{"id":"msg_1","type":"message","content":[{"type":"output_text","text":"Hi there"}]}],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":32},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":43}},"sequence_number":9,"type":"response.completed"}

"#;
    let expected = |finish| Facts { response_id: Some(xxh3_64(b"resp_42")), ..stopped(36, Some(32), 7, finish, 2) };
    assert_eq!(sse(text), expected(Finish::Stop));
    let cut_short = text.replace(
        r#""status":"completed","error":null,"incomplete_details":null"#,
        r#""status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"}"#,
    );
    assert_eq!(sse(&cut_short), expected(Finish::Length));
    let failed = text.replace(
        r#""status":"completed","error":null"#,
        r#""status":"failed","error":{"code":"server_error","message":"x"}"#,
    );
    assert_eq!(sse(&failed), Facts { error: true, ..expected(Finish::Other) });
}

#[test]
fn json_answers() {
    let chat = br#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"\u00e4 \"usage\"","tool_calls":[]},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":0}},"kv_transfer_params":null}"#;
    assert_eq!(facts(Kind::Json, chat), stopped(9, Some(0), 3, Finish::Stop, 0));

    let messages = br#" {"id":"msg_1","type":"message","role":"assistant","content":[{"type":"tool_use","input":{"usage":{"input_tokens":1}}}],"stop_reason":"max_tokens","usage":{"input_tokens":9,"output_tokens":3,"cache_read_input_tokens":null}} "#;
    assert_eq!(facts(Kind::Json, messages), stopped(9, None, 3, Finish::Length, 0));

    let response = br#"{"id":"resp_7","object":"response","status":"completed","error":null,"output":[{"type":"message"}],"usage":{"input_tokens":4,"output_tokens":2,"input_tokens_details":{"cached_tokens":1}}}"#;
    let expected = Facts { response_id: Some(xxh3_64(b"resp_7")), ..stopped(4, Some(1), 2, Finish::Stop, 0) };
    assert_eq!(facts(Kind::Json, response), expected);

    let embeddings = br#"{"id":"embd-1","object":"list","data":[{"index":0,"object":"embedding","embedding":[-0.5,1e-3,0.25]}],"usage":{"prompt_tokens":6,"total_tokens":6,"completion_tokens":0}}"#;
    let expected = Facts { prompt_tokens: Some(6), completion_tokens: Some(0), ..Facts::default() };
    assert_eq!(facts(Kind::Json, embeddings), expected);

    let rerank = br#"{"id":"rerank-1","usage":{"total_tokens":56},"results":[{"index":0,"document":{"text":"x"},"relevance_score":0.9}]}"#;
    assert_eq!(facts(Kind::Json, rerank), Facts { prompt_tokens: Some(56), ..Facts::default() });
}

#[test]
fn numbers_that_are_passed_over_leave_the_rest_in_place() {
    let text = br#"{"data":[[1,-2.5E+3],[ ],[[4]],{"embedding":[0.5 , 1e-3,"] [",{"usage":[1,2]},null, 6]},"[1,2"],"usage":{"x":[3],"prompt_tokens":6}}"#;
    assert_eq!(facts(Kind::Json, text), Facts { prompt_tokens: Some(6), ..Facts::default() });
    assert_eq!(facts(Kind::Json, br#"{"usage":{"prompt_tokens":6},"data":[1,2"#), Facts::default());
    assert_eq!(facts(Kind::Json, br#"{"usage":{"prompt_tokens":6},"data":[1,2}"#), Facts::default());
}

#[test]
fn what_is_not_json_teaches_nothing() {
    let known = Facts { prompt_tokens: Some(7), ..Facts::default() };
    assert_eq!(facts(Kind::Json, br#"{"usage":{"prompt_tokens":7}}"#), known);
    for text in [
        &br#"{"usage":{"prompt_tokens":7}"#[..],
        br#"{"usage":{"prompt_tokens":7}} x"#,
        br#"{"usage":{"prompt_tokens":7.5}}"#,
        br#"{"usage":{"prompt_tokens":-7}}"#,
        br#"{"usage":{"prompt_tokens":"7"}}"#,
        br#"{"usage":{"prompt_tokens":99999999999999999999999}}"#,
        br#"{"usage":[{"prompt_tokens":7}]}"#,
        br#"[{"usage":{"prompt_tokens":7}}]"#,
        b"",
        b"upstream connect error",
    ] {
        assert_eq!(facts(Kind::Json, text), Facts::default(), "{}", String::from_utf8_lossy(text));
    }
    // In a stream only the broken event is lost.
    assert_eq!(sse("data: {\"usage\":{\"prompt_tokens\":8}\n\ndata: {\"usage\":{\"prompt_tokens\":7}}\n\n"), known);
    assert_eq!(sse("data: {\"usage\":\ndata: {\"prompt_tokens\":\ndata:7}}\n\n"), known);
}

#[test]
fn an_event_beyond_the_buffer_is_read_as_it_comes() {
    let text = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}}}}]}}\n\n\
         data: {{\"response\":{{\"id\":\"resp_1\",\"object\":\"response\",\"status\":\"completed\",\"output\":[\"{}\"],\
         \"usage\":{{\"input_tokens\":5,\"output_tokens\":70000}}}},\"type\":\"response.completed\"}}\n\n",
        "long ".repeat(40_000)
    );
    let expected = Facts { response_id: Some(xxh3_64(b"resp_1")), ..stopped(5, None, 70_000, Finish::Stop, 1) };
    for size in [text.len(), 70_000, 65_536, 16_384, 999] {
        assert_eq!(watch(Kind::Sse, text.as_bytes(), &[size]), expected, "cut every {size}");
    }
}

#[test]
fn the_first_token_is_told_as_soon_as_it_is_there() {
    let mut watcher = Watcher::new(Kind::Sse);
    watcher.feed(b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n");
    assert!(!watcher.facts().first_token);
    watcher.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n");
    assert!(!watcher.facts().first_token, "the event is not over");
    watcher.feed(b"\n");
    assert!(watcher.facts().first_token);
    let mut watcher = Watcher::new(Kind::Json);
    watcher.feed(br#"{"choices":[{"message":{"content":"a"#);
    assert!(watcher.facts().first_token && watcher.facts().events == 0);
}

/// Reads a whole stream the plain way: all lines, all events, a tree for each.
fn oracle(text: &str) -> Facts {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let (mut facts, mut data, mut named_error) = (Facts::default(), Vec::new(), false);
    let (mut read, mut created) = (None, None);
    for line in text.split('\n').chain([""]) {
        if let Some(value) = line.strip_prefix("data:") {
            data.push(value.strip_prefix(' ').unwrap_or(value));
        } else if let Some(name) = line.strip_prefix("event:") {
            named_error = name.trim() == "error";
        } else if line.is_empty() && !data.is_empty() {
            let event = std::mem::take(&mut data).join("\n");
            if event == "[DONE]" {
                break;
            }
            facts.error |= std::mem::take(&mut named_error);
            let Ok(event) = serde_json::from_str::<Value>(&event) else { continue };
            let set = |known: &mut Option<u64>, paths: &[&str]| {
                *known = paths.iter().find_map(|path| event.pointer(path)?.as_u64()).or(*known);
            };
            set(
                &mut facts.prompt_tokens,
                &["/usage/prompt_tokens", "/response/usage/input_tokens", "/message/usage/input_tokens"],
            );
            set(
                &mut facts.completion_tokens,
                &[
                    "/usage/completion_tokens",
                    "/usage/output_tokens",
                    "/response/usage/output_tokens",
                    "/message/usage/output_tokens",
                ],
            );
            set(
                &mut facts.cached_tokens,
                &["/usage/prompt_tokens_details/cached_tokens", "/response/usage/input_tokens_details/cached_tokens"],
            );
            set(&mut read, &["/message/usage/cache_read_input_tokens"]);
            set(&mut created, &["/message/usage/cache_creation_input_tokens"]);
            facts.error |= event.get("error").is_some_and(|error| !error.is_null()) || event["type"] == "error";
            let reason = ["/choices/0/finish_reason", "/delta/stop_reason"]
                .iter()
                .find_map(|path| event.pointer(path)?.as_str());
            let status =
                event.pointer("/response/status").and_then(Value::as_str).filter(|status| *status == "completed");
            facts.finish = match reason.or(status) {
                None => facts.finish,
                Some("stop" | "end_turn" | "completed") => Some(Finish::Stop),
                Some("length" | "max_tokens") => Some(Finish::Length),
                Some("tool_calls") => Some(Finish::ToolCalls),
                Some(_) => Some(Finish::Other),
            };
            if let Some(id) = event.pointer("/response/id").and_then(Value::as_str) {
                facts.response_id = Some(xxh3_64(id.as_bytes()));
            }
            let content = ["/choices/0/delta/content", "/choices/0/text", "/delta", "/delta/text"];
            if content
                .iter()
                .any(|path| event.pointer(path).and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
            {
                facts.events += 1;
                facts.first_token = true;
            }
        }
    }
    if let Some(read) = read {
        facts.cached_tokens = Some(read);
        facts.prompt_tokens = facts.prompt_tokens.map(|tokens| tokens + read + created.unwrap_or(0));
    }
    facts
}

/// Text that tries to look like more than text.
fn generated() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{1,12}",
        Just("\"error\": {\"x\": 1}, \"usage\": {\"prompt_tokens\": 4}".to_owned()),
        Just("error".to_owned()),
        Just("usage\": {".to_owned()),
        Just("finish_reason\":\"stop\"\n\ndata: [DONE]\n\n".to_owned()),
        Just("\\\"usage\\\":".to_owned()),
        Just("_reason".to_owned()),
    ]
}

fn chat_event() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => generated().prop_map(|text| json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]})),
        1 => generated().prop_map(|text| json!({"choices": [{"text": text, "finish_reason": "length"}], "usage": null})),
        1 => generated().prop_map(|text| json!({"choices": [{"delta": {"content": text}, "finish_reason": null}], "error": null})),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(prompt, output)| json!({"choices": [], "usage":
            {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": prompt / 2}}})),
        1 => Just(json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})),
        1 => Just(json!({"choices": [{"delta": {"content": ""}, "finish_reason": "abort"}]})),
        1 => Just(json!({"error": {"message": "x"}})),
    ]
}

fn typed_event() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => generated().prop_map(|text| json!({"type": "response.output_text.delta", "delta": text})),
        4 => generated().prop_map(|text| json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}})),
        1 => Just(json!({"type": "ping"})),
        1 => Just(json!({"type": "content_block_stop", "index": 0})),
        1 => any::<u32>().prop_map(|tokens| json!({"type": "message_start", "message": {"usage":
            {"input_tokens": tokens, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 2, "output_tokens": 1}}})),
        1 => any::<u32>().prop_map(|tokens| json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": tokens}})),
        1 => Just(json!({"type": "response.created", "response": {"id": "resp_1", "error": null, "usage": null}})),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(input, output)| json!({"type": "response.completed", "response": {"id": "resp_2",
            "status": "completed", "usage": {"input_tokens": input, "output_tokens": output}}})),
        1 => Just(json!({"type": "error", "error": {"type": "overloaded_error"}})),
    ]
}

/// Whole streams, in any of the ways to write them.
fn stream() -> impl Strategy<Value = String> {
    let events =
        prop_oneof![proptest::collection::vec(chat_event(), 0..20), proptest::collection::vec(typed_event(), 0..20),];
    let frames = proptest::collection::vec(0u8..8, 20);
    (events, frames, 0usize..3, any::<bool>(), any::<bool>()).prop_map(|(events, frames, line_end, done, last)| {
        let mut text = String::new();
        for (event, frame) in events.iter().zip(frames) {
            match frame {
                0 => text.push_str(&format!(": ping\n\ndata:{event}\n\n")),
                1 => text
                    .push_str(&format!("event: {}\nid: 1\ndata: {event}\n\n", event["type"].as_str().unwrap_or("x"))),
                // A line break between tokens: many data lines.
                2 => {
                    let pretty = serde_json::to_string_pretty(event).unwrap();
                    text.push_str(&pretty.lines().map(|line| format!("data: {line}\n")).collect::<String>());
                    text.push('\n');
                }
                3 => text.push_str(&format!("data: {event}\nretry: 3\n\n\n")),
                _ => text.push_str(&format!("data: {event}\n\n")),
            }
        }
        if done {
            text.push_str("data: [DONE]\n\ndata: {\"error\":{}}\n\n");
        }
        if last {
            text.truncate(text.trim_end().len());
        }
        text.replace('\n', ["\n", "\r\n", "\r"][line_end])
    })
}

proptest! {
    #[test]
    fn the_facts_are_those_of_a_plain_reader(text in stream(), sizes in proptest::collection::vec(1usize..400, 1..20)) {
        prop_assert_eq!(watch(Kind::Sse, text.as_bytes(), &sizes), oracle(&text), "{}", text);
    }

    #[test]
    fn no_bytes_panic_and_no_cut_shows(bytes in any::<Vec<u8>>(), sizes in proptest::collection::vec(1usize..9, 1..9)) {
        for kind in [Kind::Sse, Kind::Json] {
            prop_assert_eq!(watch(kind, &bytes, &sizes), watch(kind, &bytes, &[bytes.len().max(1)]));
        }
    }

    #[test]
    fn no_broken_stream_panics_and_no_cut_shows(
        text in stream(), at in any::<prop::sample::Index>(), byte in any::<u8>(), sizes in proptest::collection::vec(1usize..99, 1..9)
    ) {
        let mut bytes = text.into_bytes();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for kind in [Kind::Sse, Kind::Json] {
            prop_assert_eq!(watch(kind, &bytes, &sizes), watch(kind, &bytes, &[bytes.len().max(1)]));
        }
    }
}
