//! One after the other, whoever is there.
//!
//! Source: the default of nginx, Envoy, haproxy, and of vllm-router. Missing signals: needs none.

use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, to};
use crate::workload::Call;

/// The rule.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    turn: usize,
}

impl Rule for RoundRobin {
    fn pick(&mut self, _: &Call, sight: &Sight<'_>, _: &mut SplitMix64) -> Option<Routed> {
        let endpoint = *sight.ready.get(self.turn % sight.ready.len().max(1))?;
        self.turn += 1;
        to(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::testing::{ask, prompt};
    use super::*;

    #[test]
    fn everybody_in_turn() {
        let mut rule = RoundRobin::default();
        let order: Vec<usize> = (0..5).map(|_| ask(&mut rule, &prompt(1, 1), &[9, 0, 4], &[], 1)).collect();
        assert_eq!(order, [0, 1, 2, 0, 1]);
    }
}
