//! The engines of a fleet, and the pool as the routing code sees it.

use anyhow::{Context, ensure};
use engine_sim::model::Profile;
use engine_sim::sweep::sweep;
use serde_json::json;
use weighbridge_routing::snapshot::{Pool, Snapshot};
use weighbridge_routing::weight::{Clamp, Weight, median, weights};

use crate::policy::Tuning;

/// Engines, with the throughput that a prober's burst of 16 x 128 tokens would find.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// The machines, warm.
    pub engines: Vec<Profile>,
    /// Tokens/s of each at 16 requests together.
    pub measured_tps: Vec<f64>,
    /// Of each, its throughput at so many requests as a share of that, as a prober's sweep would find it.
    pub curves: Vec<Vec<(u32, f64)>>,
}

/// What every engine of a fleet gets instead of its profile's own value.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Overrides {
    /// Context window in tokens.
    pub max_model_len: Option<u64>,
    /// KV cache in tokens.
    pub kv_tokens: Option<u64>,
    /// Prefill speed in tokens/s.
    pub prefill_tps: Option<f64>,
    /// Decoding speed while a prefill runs, as a share, above 0 and at most 1.
    pub decode_share: Option<f64>,
}

/// A profile `factor` times as fast at every concurrency, prefill included.
#[must_use]
pub fn scaled(base: &Profile, factor: f64) -> Profile {
    let curve = base.curve.iter().map(|(n, tps)| (*n, tps * factor)).collect();
    Profile { curve, prefill_tps: base.prefill_tps * factor, ..base.clone() }.warm()
}

/// Shares of the throughput at 16 requests, at 1, 2, 4, ... up to the first that brings less than 5 %.
fn curve(profile: &Profile, at_16: f64) -> anyhow::Result<Vec<(u32, f64)>> {
    let steps: Vec<usize> = (0..9).map(|power| 1 << power).collect();
    let (mut curve, mut best): (Vec<(u32, f64)>, f64) = (Vec::new(), 0.0);
    for (requests, tps) in sweep(profile, &steps, 128)? {
        curve.push((u32::try_from(requests)?, tps / at_16));
        if tps < 1.05 * best {
            break;
        }
        best = tps;
    }
    Ok(curve)
}

impl Fleet {
    /// From a list such as `980,479,240,240` (the engines of the published case, by their tokens/s at 16 requests) or
    /// `8x,1x,1x,1x` (the small one, so many times as fast).
    ///
    /// # Errors
    /// Names the part that is neither, or the override that makes no sense.
    pub fn parse(text: &str, overrides: Overrides) -> anyhow::Result<Self> {
        let engine = |part: &str| -> anyhow::Result<Profile> {
            if let Some(factor) = part.strip_suffix('x') {
                let factor: f64 = factor.parse().with_context(|| format!("fleet: `{part}` is no factor"))?;
                ensure!(factor.is_finite() && factor > 0.0, "fleet: `{part}` is not above 0");
                return Ok(scaled(&Profile::small(), factor));
            }
            match part {
                "980" => Ok(Profile::fast()),
                "479" => Ok(Profile::pair()),
                "240" => Ok(Profile::small()),
                _ => Profile::named(part).with_context(|| {
                    format!("fleet: `{part}` is none of 980, 479, 240, a profile's name, or a factor such as 2x")
                }),
            }
        };
        let mut engines = Vec::new();
        for part in text.split(',') {
            let mut profile = engine(part.trim())?.warm();
            profile.max_model_len = overrides.max_model_len.unwrap_or(profile.max_model_len);
            let kv_tokens = overrides.kv_tokens.unwrap_or(profile.kv_capacity_tokens);
            profile.kv_capacity_tokens =
                kv_tokens.max(profile.max_model_len.next_multiple_of(profile.block_size_tokens));
            profile.prefill_tps = overrides.prefill_tps.unwrap_or(profile.prefill_tps);
            profile.decode_share_during_prefill = overrides.decode_share.unwrap_or(profile.decode_share_during_prefill);
            engines.push(profile);
        }
        Self::new(engines)
    }

    /// A fleet of these machines.
    ///
    /// # Errors
    /// When a profile makes no sense.
    pub fn new(engines: Vec<Profile>) -> anyhow::Result<Self> {
        let engines: Vec<Profile> = engines.into_iter().map(Profile::warm).collect();
        let measure = |profile: &Profile| Ok(sweep(profile, &[16], 128)?.first().map_or(0.0, |(_, tps)| *tps));
        let measured_tps = engines.iter().map(measure).collect::<anyhow::Result<Vec<f64>>>()?;
        let curves = engines.iter().zip(&measured_tps);
        let curves = curves.map(|(profile, at_16)| curve(profile, *at_16)).collect::<anyhow::Result<_>>()?;
        Ok(Self { engines, measured_tps, curves })
    }

    /// The same machines over and over, until there are so many.
    #[must_use]
    pub fn repeated(&self, endpoints: usize) -> Self {
        fn repeat<T: Clone>(of: &[T], count: usize) -> Vec<T> {
            of.iter().cloned().cycle().take(count).collect()
        }
        Self {
            engines: repeat(&self.engines, endpoints),
            measured_tps: repeat(&self.measured_tps, endpoints),
            curves: repeat(&self.curves, endpoints),
        }
    }

    /// The most tokens/s that each engine generates, however many requests it takes.
    #[must_use]
    pub fn best_tps(&self) -> Vec<f64> {
        let best = |engine: &Profile| engine.curve.iter().map(|(_, tps)| *tps).fold(0.0, f64::max);
        self.engines.iter().map(best).collect()
    }

    /// Each endpoint's part of the fleet's throughput.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        let all: f64 = self.measured_tps.iter().sum();
        self.measured_tps.iter().map(|tps| tps / all).collect()
    }

    /// Each endpoint's weight as a prober would measure it.
    #[must_use]
    pub fn weights(&self) -> Vec<f64> {
        let measured: Vec<Option<f64>> = self.measured_tps.iter().copied().map(Some).collect();
        weights(&measured, Clamp::default()).into_iter().map(|weight| weight.map_or(1.0, Weight::get)).collect()
    }

    /// The snapshot as a prober would send it: weights by throughput over the median, prefill speed, KV size and window, and
    /// how each endpoint stands (ready where nothing is said).
    #[must_use]
    pub fn snapshot(&self, tuning: &Tuning, standing: &[Standing]) -> String {
        // Prompt tokens that count for more are worth more everywhere they are counted.
        let scale = tuning.prompt_weight;
        let endpoints: Vec<_> = self
            .engines
            .iter()
            .zip(self.weights())
            .enumerate()
            .map(|(nth, (engine, weight))| {
                let curve = if tuning.curve { self.curves[nth].clone() } else { Vec::new() };
                let Standing { ready, epoch } = standing.get(nth).copied().unwrap_or_default();
                json!({"id": format!("e{nth}"), "address": format!("127.{}.{}.1:8000", nth / 256, nth % 256),
                    "weight": weight, "curve": curve, "prefill_tps": engine.prefill_tps * scale, "kv_tokens": engine.kv_capacity_tokens,
                    "context_window": (scale == 1.0).then_some(engine.max_model_len), "epoch": epoch,
                    "state": if ready { "ready" } else { "unhealthy" }})
            })
            .collect();
        let choices = tuning.choices.map_or(json!("all"), |count| json!(count));
        let budget = (f64::from(tuning.prefill_budget) * scale) as u32;
        let snapshot = json!({"format": 1, "version": 1, "pools": [{
            "name": "fleet", "models": ["m"], "policy": {"name": tuning.policy, "choices": choices, "by": if tuning.curve { "curve" } else { "weight" }},
            "affinity": {"enabled": tuning.affinity, "k": tuning.k},
            "admission": {"base_cap": tuning.base_cap, "queue": tuning.queue, "max_wait_ms": tuning.max_wait_ms,
                "ageing_ms": tuning.ageing_ms, "prefill_budget_tokens": budget},
            "median_tps": median(self.measured_tps.iter().copied()),
            "endpoints": endpoints}]});
        snapshot.to_string()
    }

    /// The pool of that snapshot.
    ///
    /// # Errors
    /// When the routing code refuses it.
    pub fn pool(&self, tuning: &Tuning, standing: &[Standing]) -> anyhow::Result<Pool> {
        Snapshot::from_json(self.snapshot(tuning, standing).as_bytes())?.pools.pop().context("one pool")
    }
}

/// How an endpoint stands in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Whether it takes traffic.
    pub ready: bool,
    /// Changes when its engine restarts.
    pub epoch: u64,
}

impl Default for Standing {
    fn default() -> Self {
        Standing { ready: true, epoch: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_fleet_has_the_weights_of_its_throughput() {
        let fleet = Fleet::parse("980,479,240,240", Overrides::default()).unwrap();
        let pool = fleet.pool(&Tuning::default(), &[]).unwrap();
        let weights: Vec<u32> = pool.endpoints.iter().map(|endpoint| endpoint.weight.hundredths()).collect();
        assert_eq!(weights, [272, 133, 67, 67]);
        assert!((pool.affinity.median_tps - 359.5).abs() < 1.0);
        assert!(Fleet::parse("980,479.5", Overrides::default()).unwrap_err().to_string().contains("479.5"));
        let scaled = Fleet::parse("8x,1x", Overrides { prefill_tps: Some(500.0), ..Overrides::default() }).unwrap();
        assert!((scaled.shares()[0] - 8.0 / 9.0).abs() < 1e-3);
        assert_eq!(scaled.engines[0].prefill_tps, 500.0);
    }
}
