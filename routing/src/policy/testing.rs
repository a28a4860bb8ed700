//! What tests of policies share.

use serde_json::json;

use crate::eligibility::{Ask, Load, View};
use crate::prefix::holders::Nobody;
use crate::rng::SplitMix64;
use crate::route::{Pick, Refused, decide};
use crate::signals::Signals;
use crate::snapshot::{Pool, Snapshot};

/// A pool of ready endpoints of these weights, with caps by weight; `policy` is a name, or the whole section as JSON.
pub(crate) fn pool(policy: &str, weights: &[f64]) -> Pool {
    let endpoints: Vec<_> = weights
        .iter()
        .enumerate()
        .map(|(nth, weight)| {
            json!({"id": format!("e{nth}"), "address": format!("10.0.{}.{}:80", nth / 250, nth % 250), "weight": weight,
                "cap": 10_000, "prefill_tps": 6_000.0})
        })
        .collect();
    let policy = serde_json::from_str(policy).unwrap_or_else(|_| json!({"name": policy}));
    let pool = json!({"name": "p", "models": ["m"], "policy": policy, "median_tps": 730.0, "endpoints": endpoints});
    let snapshot = json!({"format": 1, "version": 1, "pools": [pool]});
    Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
}

/// One decision about a request that needs nothing.
pub(crate) fn run(pool: &Pool, loads: &[Load], signals: &[Signals], seed: u64) -> Result<Pick, Refused> {
    let view = View { loads, signals, ..View::default() };
    decide(pool, view, &Ask::default(), &mut Nobody, &mut SplitMix64::seeded(seed))
}
