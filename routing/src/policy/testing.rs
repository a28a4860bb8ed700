//! What tests of policies share.

use serde_json::json;

use crate::eligibility::{Ask, Load, View};
use crate::prefix::holders::{Holders, Nobody};
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

/// Which endpoint holds how many tokens of the prompt.
pub(crate) struct Fixed(Vec<(usize, u64)>, Vec<usize>);

impl Fixed {
    pub(crate) fn new(of: &[(usize, u64)]) -> Self {
        let most = of.iter().map(|(_, tokens)| *tokens).max().unwrap_or_default();
        Fixed(of.to_vec(), of.iter().filter(|(_, tokens)| *tokens == most).map(|(index, _)| *index).collect())
    }
}

impl Holders for Fixed {
    fn longest(&mut self) -> (&[usize], u64) {
        (&self.1, self.0.iter().map(|(_, tokens)| *tokens).max().unwrap_or_default())
    }

    fn longest_among(&mut self, wanted: &mut dyn FnMut(usize) -> bool) -> (Vec<usize>, u64) {
        let wanted = self.0.iter().filter(|(index, _)| wanted(*index));
        let most = wanted.map(|(_, tokens)| *tokens).max().unwrap_or_default();
        let holders = self.0.iter().filter(|(_, tokens)| *tokens >= most && most > 0);
        (holders.map(|(index, _)| *index).collect(), most)
    }

    fn tokens_at(&mut self, endpoint: usize) -> u64 {
        self.0.iter().find(|(index, _)| *index == endpoint).map_or(0, |(_, tokens)| *tokens)
    }

    fn home(&self) -> Option<u64> {
        Some(7)
    }
}
