//! The requests that the module is run through: what most requests are like.
//!
//! Chat completions of 400 bytes to 64 KB, with and without escapes, known and new, answered whole and in streams, several at a time,
//! on two pools: four endpoints by weight, as everything is by default, and six by curve.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::branches::Count;
use crate::host::{Message, Vm};

const ROOT: u32 = 1;
/// Rounds, and what stays the same in each: so many requests at a time.
const ROUNDS: u32 = 40;
const AT_ONCE: u32 = 8;

/// Runs a counting module with so many branches through the course.
///
/// # Errors
/// When a request does not go well: then it is not what most are like.
pub(crate) fn run(module: &[u8], branches: usize) -> Result<Vec<Count>> {
    let mut vm = Vm::load(module, branches)?;
    vm.world().now_ms = 1_000_000;
    vm.world().configuration = snapshot().to_string().into_bytes();
    let size = vm.world().configuration.len() as u32;
    ensure!(vm.call("proxy_on_configure", &[ROOT, size])? == 1, "the snapshot is refused: {:?}", vm.world().complaints);
    vm.world().check_quiet()?;
    let mut context = ROOT;
    for round in 0..ROUNDS {
        let mut under_way = Vec::new();
        for nth in 0..AT_ONCE {
            context += 1;
            let asked = Asked::of(round, nth);
            under_way.push((context, asked, begin(&mut vm, context, &asked)?));
        }
        for (context, asked, request) in under_way {
            vm.world().request = request;
            end(&mut vm, context, &asked)?;
        }
        vm.world().now_ms += 250;
        vm.call("proxy_on_tick", &[ROOT])?;
    }
    vm.world().check_quiet()?;
    Ok(vm.into_counts())
}

/// One request of the course.
#[derive(Debug, Clone, Copy)]
struct Asked {
    bytes: usize,
    /// Which prompt: the same number, the same prompt.
    prompt: u32,
    /// The line that it is made of.
    line: &'static str,
    stream: bool,
    model: &'static str,
}

impl Asked {
    fn of(round: u32, nth: u32) -> Self {
        const SENTENCE: &str = "The lorry drives over the weighbridge before anyone says what it carries. ";
        const PROSE: &str = "The lorry drives over the weighbridge before anyone says what it \"carries\".\n";
        const CODE: &str = "\tlet load = lorry.load(\"path\", r\"C:\\yard\\lorries\");\n";
        let (bytes, line) = match nth {
            0 | 1 => (4 << 10, SENTENCE),
            2 => (4 << 10, PROSE),
            3 => (4 << 10, CODE),
            4 => (400, SENTENCE),
            5 => (16 << 10, PROSE),
            6 => (1 << 10, SENTENCE),
            _ => (64 << 10, SENTENCE),
        };
        // Every other one has been seen before.
        let prompt = if nth.is_multiple_of(2) { nth } else { round * AT_ONCE + nth };
        Asked {
            bytes,
            prompt,
            line,
            stream: round.is_multiple_of(2),
            model: if round % 4 < 2 { "weights" } else { "curves" },
        }
    }

    /// As clients lay it out: `messages` first, then the rest.
    fn body(&self) -> Vec<u8> {
        let mut messages = vec![json!({"role": "system", "content": "You answer briefly."})];
        let part = (self.bytes / 4).max(300);
        for nth in 0..(self.bytes / part) {
            let text = format!("Request {}: {}", self.prompt, self.line.repeat(part / self.line.len()));
            messages.push(json!({"role": if nth % 2 == 0 { "user" } else { "assistant" }, "content": text}));
        }
        let rest = if self.stream { r#""stream":true,"stream_options":{"include_usage":true},"# } else { "" };
        format!(r#"{{"messages":{},"model":"{}",{rest}"max_tokens":64}}"#, json!(messages), self.model).into_bytes()
    }
}

fn headers(of: &[(&str, &str)]) -> Message {
    let of = of.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()));
    Message { headers: of.collect(), body: Vec::new() }
}

/// From its headers to its endpoint. Returns the request as it goes there.
fn begin(vm: &mut Vm, context: u32, asked: &Asked) -> Result<Message> {
    const PIECE: usize = 16 << 10;
    let path = (":path", "/v1/chat/completions");
    vm.world().request = headers(&[path, (":method", "POST"), ("content-type", "application/json")]);
    vm.world().answer = Message::default();
    vm.call("proxy_on_request_headers", &[context, 4, 0])?;
    for piece in asked.body().chunks(PIECE) {
        vm.world().request.body.extend(piece);
        let arrived = vm.world().request.body.len() as u32;
        vm.call("proxy_on_request_body", &[context, arrived, 0])?;
    }
    let arrived = vm.world().request.body.len() as u32;
    let paused = vm.call("proxy_on_request_body", &[context, arrived, 1])?;
    vm.world().check_quiet()?;
    ensure!(paused == 0, "a request of the course waits: its pool is too small");
    ensure!(vm.world().was_steered(), "a request of the course was let pass as none of the filter's: {asked:?}");
    vm.world().now_ms += 1;
    Ok(std::mem::take(&mut vm.world().request))
}

/// From its answer's headers to its log entry.
fn end(vm: &mut Vm, context: u32, asked: &Asked) -> Result<()> {
    vm.world().answer = headers(&[(":status", "200")]);
    vm.call("proxy_on_response_headers", &[context, 3, 0])?;
    for piece in if asked.stream { stream() } else { vec![ANSWER.to_owned()] } {
        vm.world().now_ms += 1;
        let size = piece.len() as u32;
        vm.world().answer.body = piece.into_bytes();
        vm.call("proxy_on_response_body", &[context, size, 0])?;
    }
    vm.world().answer.body.clear();
    vm.call("proxy_on_response_body", &[context, 0, 1])?;
    vm.call("proxy_on_log", &[context])?;
    ensure!(std::mem::take(&mut vm.world().records) == 1, "a request of the course has no record: {asked:?}");
    vm.world().check_quiet().with_context(|| format!("{asked:?}"))
}

const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"A lorry, and what it carries."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":8,"total_tokens":1008,"prompt_tokens_details":{"cached_tokens":900}}}"#;

/// The pieces of a stream: a role, tokens, a reason to stop, what it took.
fn stream() -> Vec<String> {
    let chunk = |delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let usage = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":16,\"total_tokens\":1016}}\n\n";
    let first = chunk(r#"{"role":"assistant","content":""}"#, "null");
    let tokens = (0..16).map(|_| chunk(r#"{"content":" ton"}"#, "null"));
    std::iter::once(first)
        .chain(tokens)
        .chain([chunk("{}", "\"stop\""), usage.to_owned(), "data: [DONE]\n\n".to_owned()])
        .collect()
}

fn snapshot() -> Value {
    let endpoints = |pool: &str, count: u32, curve: Value| -> Vec<Value> {
        let endpoint = |nth: u32| {
            let (id, address) = (format!("{pool}-{nth}"), format!("127.0.0.{nth}:8000"));
            json!({"id": id, "address": address, "weight": f64::from(nth) / 2.0, "curve": curve})
        };
        (1..=count).map(endpoint).collect()
    };
    let curve = json!([[1, 0.2], [4, 0.6], [16, 1.0]]);
    json!({"format": 1, "version": 1, "pools": [
        {"name": "weights", "models": ["weights"], "endpoints": endpoints("weights", 4, json!([]))},
        {"name": "curves", "models": ["curves"], "policy": {"name": "p2c", "by": "curve"}, "endpoints": endpoints("curves", 6, curve)},
    ]})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter that takes any snapshot and lets every request pass; `extra` comes before it does.
    fn passing(extra: &str) -> Vec<u8> {
        let text = format!(
            r#"(module
            (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "a line")
            (func (export "_initialize"))
            (func (export "proxy_on_memory_allocate") (param i32) (result i32) i32.const 0)
            (func (export "proxy_on_configure") (param i32 i32) (result i32) i32.const 1)
            (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) {extra} i32.const 0)
            (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) i32.const 0))"#
        );
        wat::parse_str(text).unwrap()
    }

    #[test]
    fn a_course_that_is_no_picture_of_requests_fails() {
        let log = "i32.const 2 i32.const 0 i32.const 6 call $log drop";
        for (extra, expected) in [
            ("", "was let pass as none of the filter's: Asked { bytes: 4096, "),
            (log, "the module says: a line"),
            (&format!("{log} unreachable"), "proxy_on_request_headers: a line"),
        ] {
            let error = run(&passing(extra), 0).unwrap_err();
            assert!(error.to_string().contains(expected), "{error:?}");
        }
    }
}
