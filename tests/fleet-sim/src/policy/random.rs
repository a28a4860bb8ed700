//! Anyone, each as likely.
//!
//! Source: `random` of Envoy, smg, sglang-router and vllm-router. Missing signals: needs none.

use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, to};
use crate::workload::Call;

/// The rule.
#[derive(Debug)]
pub(super) struct Random;

impl Rule for Random {
    fn pick(&mut self, _: &Call, sight: &Sight<'_>, rng: &mut SplitMix64) -> Option<Routed> {
        to(*sight.ready.get(rng.below(sight.ready.len() as u64) as usize)?)
    }
}
