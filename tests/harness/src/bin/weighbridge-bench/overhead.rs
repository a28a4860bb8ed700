//! What the filter costs: CPU time of the whole Envoy process per request, without and with the filter.
//!
//! Both Envoys run all the time and take turns (A B, then B A, ...) against the same upstream, so that a noisy machine
//! hurts both alike. Read the ratios; the absolute figures belong to the machine.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use harness::echo::Echo;
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};
use serde_json::json;

const MODEL: &str = "bench";
const ENDPOINTS: u8 = 4;
/// Distinct bodies per size, so that no cache sees only one prompt.
const BODIES: usize = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds per body size; each gives one ratio.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Requests per turn with 4 KB bodies; half at 64 KB, a tenth at 1 MB.
    #[arg(long, default_value_t = 4000)]
    requests: usize,
    /// Keep-alive connections.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Worker threads of each Envoy.
    #[arg(long, default_value_t = 2)]
    concurrency: u32,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let echo = Echo::start().await?;
    let plain = start(&echo, options.concurrency, false).await?;
    let filtered = start(&echo, options.concurrency, true).await?;
    println!("CPU per request of the Envoy process, {} rounds, {} connections", options.rounds, options.connections);
    println!("{:>8} {:>14} {:>14} {:>8} {:>15}", "body", "no filter (us)", "filter (us)", "ratio", "(min .. max)");
    for (label, bytes, requests) in [
        ("4 KB", 4 << 10, options.requests),
        ("64 KB", 64 << 10, options.requests / 2),
        ("1 MB", 1 << 20, options.requests / 10),
    ] {
        let requests = requests.max(options.connections);
        let bodies: Vec<Call> = (0..BODIES).map(|nth| chat(bytes, nth)).collect();
        // Connections, buffers and the engine's code are warm before anything counts.
        for envoy in [&plain, &filtered] {
            cost_us(envoy, options.connections, requests / 4 + 1, &bodies).await?;
        }
        let mut pairs = Vec::new();
        for round in 0..options.rounds {
            let (a, b);
            if round % 2 == 0 {
                a = cost_us(&plain, options.connections, requests, &bodies).await?;
                b = cost_us(&filtered, options.connections, requests, &bodies).await?;
            } else {
                b = cost_us(&filtered, options.connections, requests, &bodies).await?;
                a = cost_us(&plain, options.connections, requests, &bodies).await?;
            }
            pairs.push((a, b));
        }
        let (a, _, _) = spread(pairs.iter().map(|(a, _)| *a).collect());
        let (b, _, _) = spread(pairs.iter().map(|(_, b)| *b).collect());
        let (ratio, min, max) = spread(pairs.iter().map(|(a, b)| b / a).collect());
        println!("{label:>8} {a:>14.1} {b:>14.1} {ratio:>8.2} {:>15}", format!("({min:.2} .. {max:.2})"));
    }
    Ok(())
}

async fn start(echo: &Echo, concurrency: u32, filter: bool) -> Result<Envoy> {
    let address = |nth| -> SocketAddr { echo.addr(nth) };
    let endpoints = (1..=ENDPOINTS).map(|nth| endpoint(&format!("e{nth}"), address(nth), 1.0)).collect();
    let fleet = snapshot(vec![pool(MODEL, endpoints)]);
    Envoy::start(EnvoyOptions { concurrency, filter, ..EnvoyOptions::fixed(fleet) }).await
}

/// Microseconds of CPU per request.
async fn cost_us(envoy: &Envoy, connections: usize, requests: usize, bodies: &[Call]) -> Result<f64> {
    let bodies = bodies.to_vec();
    let before = envoy.cpu_seconds()?;
    let report =
        load::closed_loop(envoy.gateway(), connections, requests, move |nth| bodies[nth % BODIES].clone()).await;
    let used = envoy.cpu_seconds()? - before;
    ensure!(report.ok() == requests, "not every request was answered: {:?}", report.by_status());
    Ok(used * 1e6 / requests as f64)
}

/// A conversation of about this many bytes, laid out as the common clients do: `messages` first, then `model`; prose with
/// a line break (an escape in JSON) about every 80 characters.
fn chat(bytes: usize, nth: usize) -> Call {
    let line = format!("Request {nth}: the lorry drives over the weighbridge before anyone says what it carries.\n");
    let mut messages = vec![json!({"role": "system", "content": "You answer briefly."})];
    let per_message = (bytes / 4).max(512);
    let mut written = 0;
    while written < bytes {
        let text = line.repeat((per_message.min(bytes - written) / line.len()).max(1));
        written += text.len();
        let role = if messages.len() % 2 == 1 { "user" } else { "assistant" };
        messages.push(json!({"role": role, "content": text}));
    }
    // Written by hand: a JSON map would sort the keys.
    let body = format!(r#"{{"messages":{},"model":"{MODEL}","max_tokens":16}}"#, json!(messages));
    Call::post("/v1/chat/completions", body)
}

/// Median, least and greatest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}
