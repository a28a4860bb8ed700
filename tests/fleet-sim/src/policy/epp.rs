//! The weighted scorers of the endpoint picker (EPP) of the Gateway API inference extension, which llm-d builds on.
//!
//! Rule: the highest of `2 x queue + 2 x kv + 3 x prefix` wins, of equals anyone, with
//!
//! | | | |
//! |---|---|---|
//! | queue | `(most - waiting) / (most - fewest)`, 1 where all are equal | requests that wait inside the engine |
//! | kv | `1 - share of the KV cache that is used` | |
//! | prefix | share of the prompt's blocks, of the first 256, that were sent there | 16 tokens each; per endpoint as many blocks as its cache has |
//!
//! The metrics are read every 50 ms. What runs in the batch is not looked at, nor capacity.
//!
//! Source: the default configuration of the project's `inferencepool` chart (weights 2, 2, 3), `scorer/queue.go` and
//! `prefixcachescorer/plugin.go`. Missing signals: an endpoint of which nothing is known scores as if nothing waited
//! and its cache were empty.

use engine_sim::model::Nanos;
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::signals::Share;

use super::Routed;
use super::rule::{Rule, Sight, least};
use super::seen::Seen;
use crate::workload::{BLOCK_TOKENS, Call};

const QUEUE: f64 = 2.0;
const KV: f64 = 2.0;
const PREFIX: f64 = 3.0;
const MOST_BLOCKS: usize = 256;
const READ_EVERY: Nanos = 50_000_000;

/// The rule.
#[derive(Debug)]
pub(super) struct Epp {
    seen: Seen,
    matched: Vec<usize>,
}

impl Epp {
    pub(super) fn new(kv_tokens: Vec<u64>) -> Self {
        let blocks = kv_tokens.into_iter().map(|tokens| (tokens / BLOCK_TOKENS) as usize);
        Self { seen: Seen::new(blocks), matched: Vec::new() }
    }
}

impl Rule for Epp {
    fn pick(&mut self, call: &Call, sight: &Sight<'_>, rng: &mut SplitMix64) -> Option<Routed> {
        let blocks = call.blocks.len().min(MOST_BLOCKS);
        self.seen.matched(call.blocks.iter().take(blocks).copied(), &mut self.matched);
        let signals = |place: usize| sight.signals.get(place).copied().unwrap_or_default();
        let waiting = |place: usize| f64::from(signals(place).waiting.unwrap_or(0));
        let all = || sight.ready.iter().map(|place| waiting(*place));
        let (most, fewest) = (all().fold(0.0, f64::max), all().fold(f64::INFINITY, f64::min));
        let score = |place: usize| {
            let queue = if most > fewest { (most - waiting(place)) / (most - fewest) } else { 1.0 };
            let kv = 1.0 - signals(place).kv.map_or(0.0, Share::get);
            let prefix = if blocks > 0 { self.matched[place] as f64 / blocks as f64 } else { 0.0 };
            QUEUE * queue + KV * kv + PREFIX * prefix
        };
        let endpoint = least(sight.ready, rng, |place| -score(place))?;
        Some(Routed { endpoint, believed_tokens: self.matched[endpoint] as u64 * BLOCK_TOKENS })
    }

    fn sent(&mut self, call: &Call, endpoint: usize, _: Nanos) {
        self.seen.send(call.blocks.iter().take(MOST_BLOCKS).copied(), endpoint);
    }

    fn reads_every(&self) -> Option<Nanos> {
        Some(READ_EVERY)
    }

    fn bytes(&self) -> usize {
        self.seen.bytes()
    }
}

#[cfg(test)]
mod tests {
    use weighbridge_routing::signals::Signals;

    use super::super::rule::testing::{ask, prompt};
    use super::*;

    fn said(waiting: u32, kv: f64) -> Signals {
        Signals { waiting: Some(waiting), kv: Share::try_new(kv), ..Signals::default() }
    }

    #[test]
    fn the_weights_decide() {
        let mut rule = Epp::new(vec![100_000; 2]);
        // 2 + 2 x 0.8 against 0 + 2 x 1.0.
        assert_eq!(ask(&mut rule, &prompt(1, 30), &[0, 0], &[said(0, 0.2), said(3, 0.0)], 1), 0);
        // Its whole prompt is worth 3, so a fuller cache (0.9) does not drive it away, but a queue besides does.
        assert_eq!(ask(&mut rule, &prompt(1, 30), &[0, 0], &[said(0, 0.9), said(0, 0.0)], 1), 0);
        assert_eq!(ask(&mut rule, &prompt(1, 30), &[0, 0], &[said(9, 0.9), said(0, 0.0)], 1), 1);
    }
}
