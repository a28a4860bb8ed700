//! What watching an answer costs: per token event, whole and cut, and per megabyte of embeddings.
//!
//! `cargo bench -p weighbridge-routing --bench response`. The first three report the time of one event.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use weighbridge_routing::response::{Kind, Watcher};

const CHAT: &[u8] = br#"data: {"id":"chatcmpl-0f2e7c11","object":"chat.completion.chunk","created":1764000000,"model":"qwen-27b","choices":[{"index":0,"delta":{"content":" weighs"},"logprobs":null,"finish_reason":null}]}

"#;
const CHAT_USAGE: &[u8] = br#"data: {"id":"chatcmpl-0f2e7c11","object":"chat.completion.chunk","created":1764000000,"model":"qwen-27b","choices":[{"index":0,"delta":{"content":" weighs"},"finish_reason":null}],"usage":{"prompt_tokens":1000,"total_tokens":1001,"completion_tokens":1}}

"#;
const RESPONSES: &[u8] = br#"event: response.output_text.delta
data: {"content_index":0,"delta":" weighs","item_id":"msg_0f2e7c11","logprobs":[],"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}

"#;

/// A watcher that has seen a first event of this stream.
fn begun(event: &[u8]) -> Watcher {
    let mut watcher = Watcher::new(Kind::Sse);
    watcher.feed(event);
    assert!(watcher.facts().first_token);
    watcher
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("event");
    for (name, event) in [("chat", CHAT), ("chat with usage", CHAT_USAGE), ("responses", RESPONSES)] {
        let mut watcher = begun(event);
        group.bench_function(name, |b| b.iter(|| watcher.feed(black_box(event))));
    }
    let mut watcher = begun(CHAT);
    let (head, tail) = CHAT.split_at(100);
    group.bench_function("chat, cut in the middle", |b| {
        b.iter(|| {
            watcher.feed(black_box(head));
            watcher.feed(black_box(tail));
        });
    });
    group.finish();
}

fn embeddings(c: &mut Criterion) {
    let vector = (0..1_024).map(|n| format!("{:.9}", f64::from(n).sin())).collect::<Vec<_>>().join(",");
    let items = vec![format!(r#"{{"object":"embedding","index":0,"embedding":[{vector}]}}"#); 82].join(",");
    let body = format!(r#"{{"object":"list","data":[{items}],"usage":{{"prompt_tokens":5,"total_tokens":5}}}}"#);
    let mut group = c.benchmark_group("json");
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("embeddings, 1 MB in 16 KiB pieces", |b| {
        b.iter(|| {
            let mut watcher = Watcher::new(Kind::Json);
            body.as_bytes().chunks(16_384).for_each(|piece| watcher.feed(black_box(piece)));
            watcher.finish();
            assert_eq!(watcher.facts().prompt_tokens, Some(5));
        });
    });
    group.finish();
}

criterion_group!(benches, events, embeddings);
criterion_main!(benches);
