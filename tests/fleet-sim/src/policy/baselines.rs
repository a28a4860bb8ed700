//! What others do, reduced to the rule. None of them has a cap: what an engine cannot run yet waits there.

use std::collections::HashMap;

use weighbridge_routing::eligibility::{Ask, Load, View};
use weighbridge_routing::policy::Draw;
use weighbridge_routing::prefix::holders::Nobody;
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::route::decide;
use weighbridge_routing::snapshot::Pool;

use super::{Policy, Routed, Router};
use crate::workload::Call;

pub(super) struct Baseline {
    policy: Policy,
    pool: Pool,
    rng: SplitMix64,
    in_flight: Vec<u32>,
    placed: HashMap<u64, usize>,
    turn: u64,
}

impl Baseline {
    pub(super) fn new(policy: Policy, mut pool: Pool, seed: u64) -> Self {
        pool.draw = Draw::Uniformly;
        let in_flight = vec![0; pool.endpoints.len()];
        Self { policy, pool, rng: SplitMix64::seeded(seed), in_flight, placed: HashMap::new(), turn: 0 }
    }

    fn pick(&mut self, call: &Call) -> Option<usize> {
        let count = self.in_flight.len() as u64;
        let place = match self.policy {
            Policy::Random => self.rng.below(count),
            Policy::Hash => call.first % count,
            Policy::LeastRequest => {
                let first = self.rng.below(count);
                let second = (first + 1 + self.rng.below(count.saturating_sub(1))) % count;
                let load = |place: u64| self.in_flight[place as usize];
                if load(second) < load(first) { second } else { first }
            }
            Policy::Uniform => {
                let loads: Vec<Load> =
                    self.in_flight.iter().map(|n| Load { in_flight: *n, ..Load::default() }).collect();
                let ask = Ask::default();
                let view = View { loads: &loads, ..View::default() };
                let pick = decide(&self.pool, view, &ask, &mut Nobody, &mut self.rng).ok()?;
                pick.chosen() as u64
            }
            _ => {
                self.turn += 1;
                (self.turn - 1) % count
            }
        };
        Some(place as usize)
    }
}

impl Router for Baseline {
    fn route(&mut self, id: u64, call: &Call, _: u64) -> Option<Routed> {
        let endpoint = self.pick(call)?;
        self.in_flight[endpoint] += 1;
        self.placed.insert(id, endpoint);
        Some(Routed { endpoint, believed_tokens: 0 })
    }

    fn first_token(&mut self, _: u64, _: u64) {}

    fn finished(&mut self, id: u64, _: u64, _: u64) {
        if let Some(endpoint) = self.placed.remove(&id) {
            self.in_flight[endpoint] -= 1;
        }
    }
}
