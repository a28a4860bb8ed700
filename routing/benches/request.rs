//! What reading a request costs, against serde_json, which only checks the syntax.
//!
//! `cargo bench -p weighbridge-routing --bench request` prints microseconds per body: the median of many runs. The same
//! program runs as wasm: build it for wasm32-wasip1 with `--profile wasm`, and start it under any WASI host.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Instant;

use serde::de::IgnoredAny;
use weighbridge_routing::request::{Reader, Shape};

/// As Envoy hands bodies to the filter.
const PIECE_BYTES: usize = 64 * 1024;

fn text(kind: &str, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 200);
    let mut nth = 0;
    while text.len() < bytes {
        nth += 1;
        text.push_str(match kind {
            // A line end every 90 bytes, a quotation now and then.
            "prose" if nth % 5 == 0 => "and he said: \\\"It weighs more than it did before.\\\"\\n",
            "prose" => "The quick brown fox jumps over the lazy dog, and then it lies down in the warm sun again.\\n",
            "code" => "    if x[\\\"key\\\"] == 1:\\n\\treturn {\\\"a\\\": \\\"b\\\"}\\n",
            "plain" => "the quick brown fox jumps over the lazy dog and then it lies down in the warm sun again ",
            "cjk" => "\u{9019}\u{662f}\u{4e00}\u{500b}\u{6e2c}\u{8a66}\u{ff0c}\u{770b}\u{770b}\u{901f}\u{5ea6}\u{5982}\u{4f55}\u{3002}",
            _ => "\\u9019\\u662f\\u4e00\\u500b\\u6e2c\\u8a66\\uff0c\\u770b\\u770b\\u901f\\u5ea6\\u5982\\u4f55\\u3002",
        });
    }
    text
}

fn chat(kind: &str, bytes: usize) -> Vec<u8> {
    // A conversation of messages of up to 8 KB, with the model at the end, where it costs most.
    let mut messages = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let role = if messages.len() % 2 == 0 { "user" } else { "assistant" };
        messages.push(format!(r#"{{"role":"{role}","content":"{}"}}"#, text(kind, left.min(8_000))));
        left = left.saturating_sub(8_000);
    }
    format!(r#"{{"messages":[{}],"max_tokens":128,"stream":true,"model":"qwen-27b"}}"#, messages.join(",")).into_bytes()
}

fn tokens(bytes: usize) -> Vec<u8> {
    let ids: Vec<String> = (0..bytes / 6).map(|nth| (10_000 + nth * 7_919 % 89_999).to_string()).collect();
    format!(r#"{{"prompt":[{}],"model":"m"}}"#, ids.join(",")).into_bytes()
}

fn read(shape: Shape, body: &[u8], prefix_bytes: u64) {
    let mut reader = Reader::new(shape, prefix_bytes);
    for piece in body.chunks(PIECE_BYTES) {
        reader.feed(piece).expect("a valid body");
    }
    black_box(reader.finish().expect("a request"));
}

/// Median microseconds.
fn time(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = Vec::new();
    let start = Instant::now();
    while times.len() < 20 || (start.elapsed().as_millis() < 150 && times.len() < 2_000) {
        let before = Instant::now();
        run();
        times.push(before.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn main() {
    println!("{:24} {:>10} {:>10} {:>10} {:>8}", "body", "no hash", "64 KiB", "serde_json", "ratio");
    for bytes in [4_096, 65_536, 1 << 20] {
        for kind in ["plain", "prose", "code", "cjk", "\\u", "token ids"] {
            let (shape, body) = match kind {
                "token ids" => (Shape::Completions, tokens(bytes)),
                _ => (Shape::Chat, chat(kind, bytes)),
            };
            let without = time(|| read(shape, black_box(&body), 0));
            let with = time(|| read(shape, black_box(&body), 65_536));
            let theirs = time(|| {
                black_box(serde_json::from_slice::<IgnoredAny>(black_box(&body)).expect("valid JSON"));
            });
            let name = format!("{} KB {kind}", bytes / 1024);
            println!("{name:24} {without:10.1} {with:10.1} {theirs:10.1} {:8.2}", with / theirs);
        }
    }
}
