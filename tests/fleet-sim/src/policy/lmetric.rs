//! LMetric: new prefill tokens times batch size; the lowest wins, of equals anyone.
//!
//! Rule: `(prompt tokens that are not cached there, at least 1) x (requests in flight there + 1)`. What is cached is what was
//! sent there, as far as the engine's KV cache can still have it; the batch size counts the request itself. Capacity is not
//! looked at.
//!
//! Source: Zhang et al., "LMetric: Simple is Better" (2026), abstract and figures; whether tokens queued before it count as
//! new is not said there, and here they do not. Missing signals: own counts only.

use engine_sim::model::Nanos;
use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, least};
use super::seen::Seen;
use crate::workload::{BLOCK_TOKENS, Call};

/// The rule.
#[derive(Debug)]
pub(super) struct LMetric {
    seen: Seen,
    matched: Vec<usize>,
}

impl LMetric {
    pub(super) fn new(kv_tokens: Vec<u64>) -> Self {
        let blocks = kv_tokens.into_iter().map(|tokens| (tokens / BLOCK_TOKENS) as usize);
        Self { seen: Seen::new(blocks), matched: Vec::new() }
    }
}

impl Rule for LMetric {
    fn pick(&mut self, call: &Call, sight: &Sight<'_>, rng: &mut SplitMix64) -> Option<Routed> {
        self.seen.matched(call.blocks.iter().copied(), &mut self.matched);
        let held = |place: usize| self.matched.get(place).map_or(0, |blocks| *blocks as u64 * BLOCK_TOKENS);
        let score = |place: usize| {
            let new_tokens = call.prompt_tokens.saturating_sub(held(place)).max(1);
            new_tokens * (u64::from(sight.in_flight[place]) + 1)
        };
        let endpoint = least(sight.ready, rng, score)?;
        Some(Routed { endpoint, believed_tokens: held(endpoint) })
    }

    fn sent(&mut self, call: &Call, endpoint: usize, _: Nanos) {
        self.seen.send(call.blocks.iter().copied(), endpoint);
    }

    fn restarted(&mut self, endpoint: usize) {
        self.seen.clear(endpoint);
    }

    fn bytes(&self) -> usize {
        self.seen.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::testing::{ask, prompt};
    use super::*;

    #[test]
    fn the_product_decides() {
        let mut rule = LMetric::new(vec![100_000; 2]);
        assert_eq!(ask(&mut rule, &prompt(1, 30), &[0, 1], &[], 1), 0);
        // 10 new blocks x 3 at the holder against 40 x 1 elsewhere, and 10 x 5 against 40 x 1.
        assert_eq!(ask(&mut rule, &prompt(1, 40), &[2, 0], &[], 1), 0);
        let mut rule = LMetric::new(vec![100_000; 2]);
        assert_eq!(ask(&mut rule, &prompt(1, 30), &[0, 1], &[], 1), 0);
        assert_eq!(ask(&mut rule, &prompt(1, 40), &[4, 0], &[], 1), 1);
    }
}
