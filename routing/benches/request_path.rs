//! What one request costs in routing, step by step, natively: `cargo bench -p weighbridge-routing --bench request_path`.
//! In Envoy the same code runs as wasm, about twice as slow, and the host calls come on top (`scripts/bench overhead`).

#![allow(missing_docs, reason = "the macro's functions have none")]

use std::collections::HashMap;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use serde_json::json;
use weighbridge_routing::decision::Decision;
use weighbridge_routing::learnt::Learnt;
use weighbridge_routing::live::{
    Admitted, Change, Outcome, Question, Report, Row, SharedValue, StoreError, Table, Verdict,
};
use weighbridge_routing::prefix::index::{Prefix, Search, Shards};
use weighbridge_routing::request::{Reader, Request, Shape};
use weighbridge_routing::response::{Kind, Watcher};
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::snapshot::{Pool, Snapshot};
use weighbridge_routing::window::Need;

/// Shared data without a host.
#[derive(Default)]
struct Memory {
    values: HashMap<u64, Vec<u8>>,
}

impl Shards for Memory {
    fn load(&mut self, shard: u64) -> (Option<Vec<u8>>, u32) {
        (self.values.get(&shard).cloned(), 1)
    }

    fn store(&mut self, shard: u64, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        self.values.insert(shard, bytes.to_vec());
        Ok(())
    }
}

impl SharedValue for Memory {
    fn load(&mut self) -> (Option<Vec<u8>>, u32) {
        (self.values.get(&u64::MAX).cloned(), 1)
    }

    fn store(&mut self, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        self.values.insert(u64::MAX, bytes.to_vec());
        Ok(())
    }
}

fn pool(endpoints: usize) -> Pool {
    let endpoints: Vec<_> = (0..endpoints)
        .map(|nth| json!({"id": format!("e{nth}"), "address": format!("10.0.0.1:{}", nth + 1), "weight": 1.0}))
        .collect();
    let pools = json!([{"name": "p", "models": ["bench"], "endpoints": endpoints}]);
    let snapshot = json!({"format": 1, "version": 1, "pools": pools});
    Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
}

/// A conversation of about so many bytes, `model` last, with a line break (an escape) every `line` bytes.
fn body(bytes: usize, line: usize) -> Vec<u8> {
    let text = "x".repeat(line - 1) + "\n";
    let mut messages = vec![json!({"role": "system", "content": "You answer briefly."})];
    for nth in 0..4 {
        let role = if nth % 2 == 0 { "user" } else { "assistant" };
        messages.push(json!({"role": role, "content": text.repeat((bytes / 4 / line).max(1))}));
    }
    format!(r#"{{"messages":{},"model":"bench","max_tokens":16}}"#, json!(messages)).into_bytes()
}

fn read(body: &[u8]) -> Request {
    let mut reader = Reader::new(Shape::Chat, 64 * 1024);
    for piece in body.chunks(64 * 1024) {
        reader.feed(piece).unwrap();
    }
    reader.finish().unwrap()
}

fn parse(criterion: &mut Criterion) {
    for (name, bytes) in [("4 KB", 4 << 10), ("64 KB", 64 << 10), ("1 MB", 1 << 20)] {
        for (escapes, line) in [("escapes", 90), ("few escapes", bytes / 4)] {
            let body = body(bytes, line);
            criterion
                .bench_function(&format!("parse {name}, {escapes}"), |bench| bench.iter(|| read(black_box(&body))));
        }
        let body = body(bytes, 90);
        criterion.bench_function(&format!("serde_json::IgnoredAny {name}"), |bench| {
            bench.iter(|| serde_json::from_slice::<serde::de::IgnoredAny>(black_box(&body)).unwrap());
        });
    }
}

fn prefixes(request: &Request) -> Vec<Prefix> {
    let seeded = request.prompt.checkpoints.seeded("bench").into_iter();
    seeded.map(|checkpoint| Prefix { hash: checkpoint.hash, tokens: checkpoint.bytes / 4 }).collect()
}

fn admitted(change: Change<Verdict>) -> Admitted {
    match change.result {
        Verdict::Admitted(admitted) => admitted,
        other => panic!("{other:?}"),
    }
}

fn decide(criterion: &mut Criterion) {
    let request = read(&body(4 << 10, 90));
    for endpoints in [4, 64, 1024] {
        let (pool, mut rng, mut row) = (pool(endpoints), SplitMix64::seeded(1), Row::new(1));
        let (mut index, mut live) = (Memory::default(), Memory::default());
        let learnt = Learnt::default();
        criterion.bench_function(&format!("checkpoints and look-up, {endpoints} endpoints"), |bench| {
            Search::new(prefixes(&request), None, &pool, |_| 0, 0, &mut index).learn(1, 0, &mut index);
            bench.iter(|| Search::new(prefixes(black_box(&request)), None, &pool, |_| 0, 0, &mut index));
        });
        let need = Need::of(Shape::Chat, &request.prompt, request.max_output, &learnt);
        let ask = need.ask(0.0);
        let mut search = Search::new(prefixes(&request), None, &pool, |_| 0, 0, &mut index);
        let question = Question { pool: &pool, ask: &ask, signals: &[], now_ms: 0 };
        let report = Report { outcome: Outcome::Success, trial: false, added_tokens: 1 };
        criterion.bench_function(&format!("admit and release, {endpoints} endpoints"), |bench| {
            bench.iter(|| {
                let admitted = admitted(row.admit(&mut live, &question, &mut search.holders(&mut index), &mut rng));
                let endpoint = &pool.endpoints[admitted.pick.chosen()];
                row.release(&mut live, &pool, endpoint, admitted.charge, report, 0)
            });
        });
        let admitted = admitted(row.admit(&mut live, &question, &mut search.holders(&mut index), &mut rng));
        // As a swap does: decode what is shared, sum up every endpoint, change a cell, write.
        let bytes = SharedValue::load(&mut live).0.expect("just written");
        criterion.bench_function(&format!("live table, one swap, {endpoints} endpoints"), |bench| {
            bench.iter_batched(
                || bytes.clone(),
                |bytes| {
                    let mut table = Table::decode(bytes).expect("it was a table");
                    let totals = table.totals();
                    table.set_cell(0, 0, black_box(totals[0]));
                    table.bytes().len()
                },
                BatchSize::SmallInput,
            );
        });
        criterion.bench_function(&format!("decision record, {endpoints} endpoints"), |bench| {
            bench.iter(|| Decision::admitted(&pool, 1, &ask, black_box(&admitted)).to_json());
        });
    }
    criterion.bench_function("need", |bench| {
        let learnt = Learnt::default();
        bench.iter(|| Need::of(Shape::Chat, black_box(&request.prompt), Some(16), &learnt).ask(learnt.long_share()));
    });
    let answer = json!({"id": "chatcmpl-1", "object": "chat.completion", "model": "bench", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "x".repeat(64)}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 16, "total_tokens": 1016}})
    .to_string();
    criterion.bench_function("watch a JSON answer", |bench| {
        bench.iter_batched(
            || Watcher::new(Kind::Json),
            |mut watcher| {
                watcher.feed(black_box(answer.as_bytes()));
                watcher.finish();
                watcher.facts().clone()
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, parse, decide);
criterion_main!(benches);
