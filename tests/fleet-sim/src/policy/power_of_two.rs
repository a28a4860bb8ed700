//! Two different endpoints drawn uniformly; the one with fewer requests in flight, of equals the first drawn.
//!
//! Source: `power_of_two` of smg, sglang-router and vllm-router (Mitzenmacher, 2001). The routers can be told to look at the engines' loads instead of their own counts; by default they do
//! not. Missing signals: own counts only.

use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, to};
use crate::workload::Call;

/// The rule.
#[derive(Debug)]
pub(super) struct PowerOfTwo;

impl Rule for PowerOfTwo {
    fn pick(&mut self, _: &Call, sight: &Sight<'_>, rng: &mut SplitMix64) -> Option<Routed> {
        let count = sight.ready.len() as u64;
        let first = rng.below(count);
        // Anyone but the first.
        let second = if count > 1 { (first + 1 + rng.below(count - 1)) % count } else { first };
        let (first, second) = (sight.ready[first as usize], sight.ready[second as usize]);
        to(if sight.in_flight[second] < sight.in_flight[first] { second } else { first })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::testing::{ask, prompt};
    use super::*;

    #[test]
    fn the_fullest_of_three_is_never_taken() {
        let mut seen = [0; 3];
        (0..600u64).for_each(|seed| seen[ask(&mut PowerOfTwo, &prompt(1, 1), &[2, 1, 0], &[], seed * 31)] += 1);
        // The middle one wins one of the three pairs.
        assert!(seen[0] == 0 && (150..250).contains(&seen[1]), "{seen:?}");
    }
}
