//! What a decision costs under each policy, natively: `cargo bench -p weighbridge-routing --bench policies`. Without the
//! compare-and-swap around it, which `request_path` has ("admit and release").

#![allow(missing_docs, reason = "the macro's functions have none")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use weighbridge_routing::eligibility::{Ask, Load, View};
use weighbridge_routing::prefix::holders::{Holders, Nobody};
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::route::decide;
use weighbridge_routing::signals::{Amount, Share, Signals};
use weighbridge_routing::snapshot::{Pool, Snapshot};

fn pool(endpoints: usize, policy: &Value) -> Pool {
    let endpoints: Vec<_> = (0..endpoints)
        .map(|nth| {
            let weight = 0.25 + (nth % 7) as f64 / 2.0;
            json!({"id": format!("e{nth}"), "address": format!("10.0.0.1:{}", nth + 1), "weight": weight, "cap": 1000})
        })
        .collect();
    let pools = json!([{"name": "p", "models": ["bench"], "policy": policy, "endpoints": endpoints}]);
    let snapshot = json!({"format": 1, "version": 1, "pools": pools});
    Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
}

/// The first endpoint holds 2,000 tokens.
struct First;

impl Holders for First {
    fn longest(&mut self) -> (&[usize], u64) {
        (&[0], 2_000)
    }

    fn longest_among(&mut self, wanted: &mut dyn FnMut(usize) -> bool) -> (Vec<usize>, u64) {
        if wanted(0) { (vec![0], 2_000) } else { (Vec::new(), 0) }
    }

    fn tokens_at(&mut self, endpoint: usize) -> u64 {
        if endpoint == 0 { 2_000 } else { 0 }
    }

    fn home(&self) -> Option<u64> {
        None
    }
}

fn policies(criterion: &mut Criterion) {
    let named = [
        ("p2c", json!({"name": "p2c"})),
        ("p2c, all", json!({"name": "p2c", "choices": "all"})),
        ("score", json!({"name": "score"})),
        ("least_pending_tokens", json!({"name": "least_pending_tokens"})),
        ("least_request", json!({"name": "least_request"})),
        ("round_robin", json!({"name": "round_robin"})),
        ("random", json!({"name": "random"})),
        ("p2c, score in its shadow", json!({"name": "p2c", "shadow": {"name": "score"}})),
    ];
    let ask = Ask { prompt_tokens: 2_500, output_tokens: 128, ..Ask::default() };
    for (name, policy) in named {
        for endpoints in [8, 64, 256, 1_000] {
            let pool = pool(endpoints, &policy);
            let mut rng = SplitMix64::seeded(1);
            let loads: Vec<Load> = (0..endpoints)
                .map(|_| {
                    let in_flight = 1 + rng.below(40) as u32;
                    Load { in_flight, pending_tokens: 300 * in_flight, ..Load::default() }
                })
                .collect();
            let mut share = || rng.below(100) as f64 / 100.0;
            let signals: Vec<Signals> = (0..endpoints)
                .map(|_| Signals {
                    waiting: Some((share() * 4.0) as u32),
                    kv: Share::try_new(share()),
                    gpu: Share::try_new(share()),
                    ttft_ms: Amount::try_new(share() * 1e3),
                    tps: Amount::try_new(share() * 1e2),
                    ..Signals::default()
                })
                .collect();
            let view = View { loads: &loads, signals: &signals, turn: 1, now_ms: 0 };
            criterion.bench_function(&format!("{name}, {endpoints} endpoints"), |bench| {
                bench.iter(|| decide(&pool, black_box(view), &ask, &mut Nobody, &mut rng));
            });
            if name == "score" {
                criterion.bench_function(&format!("{name}, a holder, {endpoints} endpoints"), |bench| {
                    bench.iter(|| decide(&pool, black_box(view), &ask, &mut First, &mut rng));
                });
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = policies
}
criterion_main!(benches);
