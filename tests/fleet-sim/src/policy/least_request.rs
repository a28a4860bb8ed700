//! The fewest requests in flight of all endpoints; of equals anyone.
//!
//! Source: `least_conn` of nginx, `leastconn` of haproxy, `least-busy` of LiteLLM. Without weights: an engine of a quarter of
//! the speed gets as many as the others. Missing signals: own counts only.

use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, least, to};
use crate::workload::Call;

/// The rule.
#[derive(Debug)]
pub(super) struct LeastRequest;

impl Rule for LeastRequest {
    fn pick(&mut self, _: &Call, sight: &Sight<'_>, rng: &mut SplitMix64) -> Option<Routed> {
        to(least(sight.ready, rng, |place| sight.in_flight[place])?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::testing::{ask, prompt};
    use super::*;

    #[test]
    fn the_emptiest_takes_it() {
        assert_eq!(ask(&mut LeastRequest, &prompt(1, 1), &[3, 1, 2], &[], 1), 1);
    }
}
