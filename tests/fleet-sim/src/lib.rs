//! Discrete-event simulation of one pool behind one gateway.
//!
//! The decisions are those of the filter ([`weighbridge_routing::route::decide`]), the engines are the simulator's
//! model of time ([`engine_sim::model`]), arrivals are Poisson, and everything follows from a seed. Not modelled: the
//! network, the prober, a snapshot that changes, prefix caches (every prompt is new).

use std::collections::HashMap;

use anyhow::Context;
use engine_sim::model::{EventKind, Model, Nanos, Profile, Request, nanos, seconds};
use weighbridge_routing::eligibility::{Ask, Load};
use weighbridge_routing::policy::Draw;
use weighbridge_routing::prefix::holders::Nobody;
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::route::decide;
use weighbridge_routing::snapshot::{Pool, Snapshot};

/// One run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Weight of each endpoint; its engine is the base profile, that many times as fast.
    pub weights: Vec<f64>,
    /// The engine of weight 1.
    pub base: Profile,
    /// Arriving output tokens per second as a share of what all engines generate at 16 requests each.
    pub load: f64,
    /// How many endpoints are drawn and compared.
    pub choices: u32,
    /// How they are drawn.
    pub draw: Draw,
    /// Requests to simulate.
    pub requests: u64,
    /// Everything random follows from it.
    pub seed: u64,
}

/// What came out.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Time per output token after the first, one entry per request with at least two tokens, in ms, ascending.
    pub tpot_ms: Vec<f64>,
    /// Time to first token, in ms, ascending.
    pub ttft_ms: Vec<f64>,
    /// Requests served by each endpoint.
    pub served: Vec<u64>,
    /// Requests refused because all were at their cap.
    pub refused: u64,
}

/// The value below which `q` (0..1) of an ascending list lies; NaN when it is empty.
#[must_use]
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    ascending.get((q * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}

/// A profile `factor` times as fast at every concurrency.
#[must_use]
pub fn scaled(base: &Profile, factor: f64) -> Profile {
    let curve = base.curve.iter().map(|(n, tps)| (*n, tps * factor)).collect();
    Profile { curve, prefill_tps: base.prefill_tps * factor, ..base.clone() }.warm()
}

fn pool(weights: &[f64], choices: u32) -> anyhow::Result<Pool> {
    let endpoints: Vec<_> = weights
        .iter()
        .enumerate()
        .map(|(nth, weight)| {
            serde_json::json!({"id": format!("e{nth}"), "address": format!("127.0.0.1:{}", nth + 1), "weight": weight})
        })
        .collect();
    let snapshot = serde_json::json!({"format": 1, "version": 1, "pools": [{
        "name": "fleet", "models": ["m"], "policy": {"name": "p2c", "choices": choices}, "endpoints": endpoints}]});
    Snapshot::from_json(snapshot.to_string().as_bytes())?.pools.pop().context("one pool")
}

/// A number in (0, 1].
fn unit(rng: &mut SplitMix64) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 1.0) / (1u64 << 53) as f64
}

fn exponential(rng: &mut SplitMix64, mean: f64) -> f64 {
    -mean * unit(rng).ln()
}

/// Simulates.
///
/// # Errors
/// When the run describes no possible fleet.
pub fn run(run: &Run) -> anyhow::Result<Outcome> {
    const MEAN_OUTPUT_TOKENS: f64 = 64.0;
    let pool = pool(&run.weights, run.choices)?;
    let mut engines =
        run.weights.iter().map(|weight| Model::new(scaled(&run.base, *weight))).collect::<Result<Vec<_>, _>>()?;
    let capacity_tps: f64 = run.base.validate()?.total_tps(16) * run.weights.iter().sum::<f64>();
    let gap_s = MEAN_OUTPUT_TOKENS / (capacity_tps * run.load);
    // Arrivals and decisions draw from generators of their own: two runs with one seed see the same requests.
    let (mut arrivals, mut decisions) = (SplitMix64::seeded(run.seed), SplitMix64::seeded(!run.seed));
    let mut in_flight = vec![0u32; engines.len()];
    let mut first_token: HashMap<u64, Nanos> = HashMap::new();
    let mut arrived: HashMap<u64, Nanos> = HashMap::new();
    let mut outcome = Outcome { tpot_ms: Vec::new(), ttft_ms: Vec::new(), served: vec![0; engines.len()], refused: 0 };
    let mut next_arrival = nanos(exponential(&mut arrivals, gap_s));
    let mut id = 0;
    loop {
        let next_event = engines.iter().filter_map(Model::next_event).min();
        let arriving = id < run.requests && next_event.is_none_or(|at| next_arrival <= at);
        let now = match next_event {
            _ if arriving => next_arrival,
            Some(at) => at,
            None => break,
        };
        for (nth, engine) in engines.iter_mut().enumerate() {
            engine.advance(now);
            for event in engine.take_events() {
                let started = arrived.get(&event.id).copied().unwrap_or_default();
                match event.kind {
                    EventKind::FirstToken => {
                        first_token.insert(event.id, event.at);
                        outcome.ttft_ms.push(seconds(event.at - started) * 1e3);
                    }
                    EventKind::Finished { output_tokens } => {
                        let first = first_token.remove(&event.id).unwrap_or(event.at);
                        arrived.remove(&event.id);
                        if output_tokens > 1 {
                            outcome.tpot_ms.push(seconds(event.at - first) * 1e3 / (output_tokens - 1) as f64);
                        }
                        in_flight[nth] -= 1;
                        outcome.served[nth] += 1;
                    }
                    EventKind::Admitted { .. } | EventKind::Tokens { .. } => {}
                }
            }
        }
        if arriving {
            let loads: Vec<Load> = in_flight.iter().map(|n| Load { in_flight: *n, ..Load::default() }).collect();
            let output = (exponential(&mut arrivals, MEAN_OUTPUT_TOKENS).round() as u64).clamp(1, 2_000);
            match decide(&pool, &loads, &Ask::default(), &mut Nobody, 0, run.draw, &mut decisions) {
                Ok(pick) => {
                    engines[pick.chosen()].submit(now, Request::new(id, 60, output))?;
                    arrived.insert(id, now);
                    in_flight[pick.chosen()] += 1;
                }
                Err(_) => outcome.refused += 1,
            }
            id += 1;
            next_arrival = now + nanos(exponential(&mut arrivals, gap_s));
        }
    }
    outcome.tpot_ms.sort_by(f64::total_cmp);
    outcome.ttft_ms.sort_by(f64::total_cmp);
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(draw: Draw) -> Run {
        Run {
            weights: vec![8.0, 1.0, 1.0, 1.0],
            base: scaled(&Profile::small(), 0.5),
            load: 0.3,
            choices: 2,
            draw,
            requests: 20_000,
            seed: 1,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run_and_nobody_is_lost() {
        let (a, b) = (run(&example(Draw::ByWeight)).unwrap(), run(&example(Draw::ByWeight)).unwrap());
        assert_eq!(a.tpot_ms, b.tpot_ms);
        assert_eq!(a.served.iter().sum::<u64>() + a.refused, 20_000);
    }

    // Issue: four endpoints of 8, 1, 1, 1 at 30 % load, candidates drawn by weight against drawn uniformly.
    #[test]
    fn drawing_by_weight_keeps_the_slow_ones_from_filling_up() {
        let (by_weight, uniformly) = (run(&example(Draw::ByWeight)).unwrap(), run(&example(Draw::Uniformly)).unwrap());
        let p99 = |outcome: &Outcome| quantile(&outcome.tpot_ms, 0.99);
        println!(
            "TPOT p99: {:.1} ms drawn by weight, {:.1} ms drawn uniformly; served {:?} and {:?}",
            p99(&by_weight),
            p99(&uniformly),
            by_weight.served,
            uniformly.served
        );
        assert!(p99(&by_weight) < 0.75 * p99(&uniformly));
    }
}
