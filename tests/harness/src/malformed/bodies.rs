//! Broken bodies: each begins as a good one of a shape.

use std::io::Write;
use std::sync::LazyLock;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use serde_json::{Value, json};

/// A path, the headers that say what its body is, and the body.
pub(super) struct Body {
    pub(super) kind: &'static str,
    pub(super) path: &'static str,
    pub(super) headers: String,
    pub(super) bytes: Vec<u8>,
}

/// What can be wrong with a body.
pub(super) const KINDS: [&str; 12] = [
    "nothing",
    "bytes flipped",
    "cut",
    "doubled",
    "noise inside",
    "wrong types",
    "deep nesting",
    "no UTF-8",
    "numbers",
    "gzip",
    "gzip bomb",
    "multipart",
];

const BOUNDARY: &str = "weighbridge-7d9f2c";

/// A good body of each shape.
fn shapes() -> [(&'static str, Value); 13] {
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
        {"type": "text", "text": "What is it? \u{e9}\u{4e16}"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    [
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": messages, "tools": tools, "max_tokens": 4, "stream": false, "n": 1, "user": "u"}),
        ),
        ("/v1/completions", json!({"model": "m", "prompt": ["once", "upon"], "max_tokens": 4})),
        (
            "/v1/responses",
            json!({"model": "m", "input": [{"role": "user", "content": "hi"}], "instructions": "Be brief.", "max_output_tokens": 4, "previous_response_id": "resp_1"}),
        ),
        (
            "/v1/messages",
            json!({"model": "m", "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
        ),
        ("/v1/messages/count_tokens", json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]})),
        ("/v1/embeddings", json!({"model": "m", "input": ["a", "b"]})),
        ("/v1/rerank", json!({"model": "m", "query": "q", "documents": ["a", {"text": "b"}]})),
        ("/v2/rerank", json!({"model": "m", "query": "q", "documents": ["a"]})),
        ("/v1/score", json!({"model": "m", "text_1": "a", "text_2": ["b", "c"]})),
        ("/tokenize", json!({"model": "m", "prompt": "hi"})),
        ("/detokenize", json!({"model": "m", "tokens": [1, 2, 3]})),
        ("/v1/audio/transcriptions", Value::Null),
        ("/v1/audio/translations", Value::Null),
    ]
}

fn multipart() -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in [("model", "m"), ("language", "en"), ("file\"; filename=\"a.wav", "RIFF....WAVE")] {
        body.extend_from_slice(
            format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").as_bytes(),
        );
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}

/// 64 MiB of a JSON string in 64 KB.
static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    let mut fill = || {
        gzip.write_all(b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"")?;
        let block = vec![b'a'; 1 << 20];
        (0..64).try_for_each(|_| gzip.write_all(&block))?;
        gzip.write_all(b"\"}]}")
    };
    // Writing to memory does not fail.
    let _ = fill();
    gzip.finish().unwrap_or_default()
});

fn compressed(bytes: &[u8], gzip: bool) -> Vec<u8> {
    let (mut gz, mut deflate) =
        (GzEncoder::new(Vec::new(), Compression::fast()), DeflateEncoder::new(Vec::new(), Compression::fast()));
    let _ = if gzip { gz.write_all(bytes) } else { deflate.write_all(bytes) };
    (if gzip { gz.finish() } else { deflate.finish() }).unwrap_or_default()
}

/// A place in the bytes.
fn at(random: &mut StdRng, bytes: &[u8]) -> usize {
    random.random_range(0..=bytes.len())
}

fn flip(random: &mut StdRng, bytes: &mut [u8]) {
    for _ in 0..random.random_range(1..8) {
        let place = random.random_range(0..bytes.len().max(1));
        if let Some(byte) = bytes.get_mut(place) {
            *byte = random.random();
        }
    }
}

/// Puts something else in the place of a value somewhere in the tree.
fn retype(random: &mut StdRng, value: &mut Value) {
    let inside = random.random_bool(0.8);
    match value {
        Value::Object(object) if inside && !object.is_empty() => {
            let nth = random.random_range(0..object.len());
            if let Some(child) = object.values_mut().nth(nth) {
                retype(random, child);
            }
        }
        Value::Array(list) if inside && !list.is_empty() => {
            let nth = random.random_range(0..list.len());
            if let Some(child) = list.get_mut(nth) {
                retype(random, child);
            }
        }
        _ => {
            let others = [
                Value::Null,
                json!(true),
                json!(-1),
                json!(1e308),
                json!(u64::MAX),
                json!(""),
                json!("x".repeat(2_000)),
                json!([]),
                json!({}),
                json!([[[[]]]]),
                json!({"": {"": null}}),
                json!("\u{0}\u{ffff}\u{1f600}"),
            ];
            *value = others.into_iter().nth(random.random_range(0..12)).unwrap_or_default();
        }
    }
}

/// A body with something wrong.
pub(super) fn body(random: &mut StdRng) -> Body {
    let kind = KINDS.into_iter().nth(random.random_range(0..KINDS.len())).unwrap_or("nothing");
    let (path, mut value) = shapes().into_iter().nth(random.random_range(0..13)).unwrap_or(("/", Value::Null));
    let is_form = value.is_null() || kind == "multipart";
    let path = if kind == "multipart" { "/v1/audio/transcriptions" } else { path };
    if kind == "wrong types" && !is_form {
        retype(random, &mut value);
    }
    let mut bytes = if is_form { multipart() } else { value.to_string().into_bytes() };
    let mut headers = match is_form {
        true => format!("content-type: multipart/form-data; boundary={BOUNDARY}\r\n"),
        false => "content-type: application/json\r\n".to_owned(),
    };
    match kind {
        "bytes flipped" => flip(random, &mut bytes),
        "cut" => bytes.truncate(at(random, &bytes)),
        "doubled" => {
            let (from, to) = (at(random, &bytes), at(random, &bytes));
            let part = bytes.get(from.min(to)..from.max(to)).unwrap_or_default().to_vec();
            let place = at(random, &bytes);
            bytes.splice(place..place, part);
        }
        "noise inside" => {
            let mut noise = vec![0; random.random_range(1..200)];
            random.fill_bytes(&mut noise);
            let place = at(random, &bytes);
            bytes.splice(place..place, noise);
        }
        "deep nesting" => {
            let depth = random.random_range(10..60_000);
            let open = if random.random() { "[" } else { "{\"a\":" }.repeat(depth);
            let close = if random.random() { "]".repeat(depth) } else { String::new() };
            bytes = format!("{{\"model\":\"m\",\"messages\":{open}{close}").into_bytes();
        }
        "no UTF-8" => {
            let broken: [&[u8]; 6] =
                [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe4\xb8", b"\"\\ud800\""];
            let place = at(random, &bytes);
            let part = broken.into_iter().nth(random.random_range(0..6)).unwrap_or_default();
            bytes.splice(place..place, part.iter().copied());
        }
        "numbers" => {
            let numbers = ["1e999", "-0", "9".repeat(5_000).as_str(), "0x1", "01", "1.", "NaN", "-"].map(str::to_owned);
            let number = numbers.into_iter().nth(random.random_range(0..8)).unwrap_or_default();
            bytes = format!("{{\"model\":\"m\",\"max_tokens\":{number},\"n\":{number},\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}]}}").into_bytes();
        }
        "gzip" => {
            let gzip = random.random();
            bytes = compressed(&bytes, gzip);
            if random.random() {
                flip(random, &mut bytes);
            } else if random.random() {
                bytes.truncate(at(random, &bytes));
            }
            let named = ["gzip", "deflate", "br", "gzip, gzip", "", "x"].into_iter().nth(random.random_range(0..6));
            headers.push_str(&format!("content-encoding: {}\r\n", named.unwrap_or_default()));
        }
        "gzip bomb" => {
            bytes.clone_from(&BOMB);
            headers.push_str("content-encoding: gzip\r\n");
        }
        "multipart" => match random.random_range(0..4) {
            0 => headers = "content-type: multipart/form-data\r\n".to_owned(),
            1 => {
                headers = format!(
                    "content-type: multipart/form-data; boundary=\"{}\"\r\n",
                    "b".repeat(random.random_range(0..300))
                );
            }
            2 => bytes = format!("--{BOUNDARY}\r\n").repeat(random.random_range(1..2_000)).into_bytes(),
            _ => flip(random, &mut bytes),
        },
        _ => {}
    }
    Body { kind, path, headers, bytes }
}
