//! What a request costs: CPU of the router by the size of the body, at light load, in front of engines that answer at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use tokio::task::JoinSet;

use super::results::Cost;
use super::routers::{Front, Running};
use crate::load::{Call, Client};
use crate::workload::{HASH_HEADER, MODEL, prose, quantile};

/// What bodies are measured: a name and about so many bytes.
pub const SIZES: [(&str, usize); 3] = [("4 KB", 4 << 10), ("64 KB", 64 << 10), ("1 MB", 1 << 20)];
/// Distinct bodies per size.
const BODIES: usize = 16;
/// Keep-alive connections, each with one request at a time.
const CONNECTIONS: usize = 4;
/// Bytes that a simulated engine counts as a token.
const TOKEN_BYTES: usize = 4;

/// Routers take turns of so many seconds with every size, in `rounds` rounds; the first turn of each is not looked at.
///
/// # Errors
/// When a request is not answered, or a router has ended.
pub async fn cost(routers: &mut [(&str, Running)], turn: Duration, rounds: usize) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for (size, bytes) in SIZES {
        let bodies: Arc<Vec<Call>> = Arc::new((0..BODIES).map(|nth| body(bytes, nth as u64)).collect());
        let mut turns: BTreeMap<usize, Vec<Turn>> = BTreeMap::new();
        for round in 0..=rounds {
            for nth in 0..routers.len() {
                // Somebody else begins every time, so that a noisy machine hurts all alike.
                let place = (nth + round) % routers.len();
                let (name, router) = &mut routers[place];
                let taken = Turn::take(router, &bodies, turn).await;
                let taken = taken.map_err(|error| error.context(format!("{name}, {size}")))?;
                if round > 0 {
                    turns.entry(place).or_default().push(taken);
                }
            }
        }
        for (place, turns) in turns {
            costs.push(summary(routers[place].0, size, &turns));
        }
    }
    Ok(costs)
}

struct Turn {
    cpu_us: BTreeMap<&'static str, f64>,
    latency_us: f64,
}

impl Turn {
    async fn take(router: &mut Running, bodies: &Arc<Vec<Call>>, length: Duration) -> Result<Self> {
        let before = router.cpu_seconds()?;
        let until = Instant::now() + length;
        let mut clients = JoinSet::new();
        for first in 0..CONNECTIONS {
            let (bodies, front) = (bodies.clone(), router.front.clone());
            clients.spawn(client(first, until, bodies, front));
        }
        let mut took = Vec::new();
        while let Some(client) = clients.join_next().await {
            took.extend(client??);
        }
        let after = router.cpu_seconds()?;
        let each = |(part, seconds): (&'static str, f64)| {
            (part, (seconds - before.get(part).unwrap_or(&0.0)) * 1e6 / took.len() as f64)
        };
        Ok(Self { cpu_us: after.into_iter().map(each).collect(), latency_us: quantile(&took, 0.5) })
    }
}

/// Sends one request after the other; what each took, in microseconds.
async fn client(first: usize, until: Instant, bodies: Arc<Vec<Call>>, front: Front) -> Result<Vec<f64>> {
    let (mut client, mut took) = (Client::new(front.target(0)), Vec::new());
    let mut nth = first;
    while took.is_empty() || Instant::now() < until {
        let mut call = bodies[nth % bodies.len()].clone();
        for (name, value) in &front.headers {
            call = call.header(name, value);
        }
        let outcome = client.send(call).await;
        outcome.served()?;
        took.push(outcome.duration.as_secs_f64() * 1e6);
        nth += CONNECTIONS;
    }
    Ok(took)
}

fn summary(router: &str, size: &str, turns: &[Turn]) -> Cost {
    let median = |of: &dyn Fn(&Turn) -> f64| quantile(&turns.iter().map(of).collect::<Vec<_>>(), 0.5);
    let total = |turn: &Turn| turn.cpu_us.values().sum::<f64>();
    let totals: Vec<f64> = turns.iter().map(total).collect();
    let parts = turns.first().map(|turn| turn.cpu_us.keys().copied().collect::<Vec<_>>()).unwrap_or_default();
    Cost {
        command: 0,
        router: router.to_owned(),
        size: size.to_owned(),
        cpu_us: parts.into_iter().map(|part| (part.to_owned(), median(&|turn| turn.cpu_us[part]))).collect(),
        total_us: [0.5, 0.0, 1.0].map(|share| quantile(&totals, share)),
        latency_us: median(&|turn| turn.latency_us),
    }
}

/// A conversation of four messages of prose, as clients send it.
fn body(bytes: usize, seed: u64) -> Call {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut message = |role: &str| json!({"role": role, "content": prose(&mut rng, bytes / 4 / TOKEN_BYTES)});
    let messages = [message("system"), message("user"), message("assistant"), message("user")];
    Call::json("/v1/chat/completions", &json!({"messages": messages, "model": MODEL, "max_tokens": 16}))
        .header(HASH_HEADER, &format!("{seed:016x}"))
}
