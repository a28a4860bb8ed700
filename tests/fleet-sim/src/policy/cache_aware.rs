//! An approximate prefix tree and a balance check, as `cache_aware` of sglang-router and vllm-router have it.
//!
//! Rule:
//! 1. When the loads are out of balance (`max - min > 64` and `max > 1.5 x min` requests in flight), the least loaded.
//! 2. Otherwise the longest prefix of the prompt that was ever sent anywhere: when it is more than 0.3 of the prompt, whoever
//!    was sent it last.
//! 3. Otherwise whoever has the smallest tree, that is, was sent the fewest different characters.
//!
//! The prompt is then entered into the tree of the one chosen. A tree has 2^26 characters at most; every two minutes the least
//! recently used beyond that are dropped. Capacity is not looked at.
//!
//! Source: the module documentation and defaults of `sgl-router/src/policies/cache_aware.rs` and `router_args.py`; vllm-router
//! has the same. Here a character is a quarter of a token, prefixes end at every 64th token, and eviction is at once. Missing
//! signals: own counts only.

use engine_sim::model::Nanos;
use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, least, to};
use super::seen::Seen;
use crate::workload::{BLOCK_TOKENS, Call};

const CACHE_THRESHOLD: f64 = 0.3;
const BALANCE_ABS: u32 = 64;
const BALANCE_REL: f64 = 1.5;
const MOST_CHARACTERS: u64 = 1 << 26;
const CHARACTERS_PER_TOKEN: u64 = 4;
/// Blocks of the engine that make one of the tree.
const COARSE: usize = 4;

/// The rule.
#[derive(Debug)]
pub(super) struct CacheAware {
    seen: Seen,
    /// Tokens of prompts that share nothing with anybody, which nobody looks for.
    alone_tokens: Vec<u64>,
}

impl CacheAware {
    pub(super) fn new(endpoints: usize) -> Self {
        let most = MOST_CHARACTERS / CHARACTERS_PER_TOKEN / (COARSE as u64 * BLOCK_TOKENS);
        Self { seen: Seen::new(vec![most as usize; endpoints]), alone_tokens: vec![0; endpoints] }
    }

    fn size(&self, endpoint: usize) -> u64 {
        let shared = self.seen.blocks(endpoint) as u64 * COARSE as u64 * BLOCK_TOKENS;
        (shared + self.alone_tokens[endpoint]).min(MOST_CHARACTERS / CHARACTERS_PER_TOKEN)
    }
}

fn coarse(call: &Call) -> impl DoubleEndedIterator<Item = u64> + '_ {
    call.blocks.chunks_exact(COARSE).filter_map(|blocks| blocks.last().copied())
}

impl Rule for CacheAware {
    fn pick(&mut self, call: &Call, sight: &Sight<'_>, rng: &mut SplitMix64) -> Option<Routed> {
        let loads = || sight.ready.iter().map(|place| sight.in_flight[*place]);
        let (most, fewest) = (loads().max()?, loads().min()?);
        if most - fewest > BALANCE_ABS && f64::from(most) > BALANCE_REL * f64::from(fewest) {
            return to(least(sight.ready, rng, |place| sight.in_flight[place])?);
        }
        let (matched, who) = self.seen.longest(coarse(call));
        let matched_tokens = matched as u64 * COARSE as u64 * BLOCK_TOKENS;
        let who = who.filter(|who| sight.ready.binary_search(who).is_ok());
        match who.filter(|_| matched_tokens as f64 > CACHE_THRESHOLD * call.prompt_tokens as f64) {
            Some(endpoint) => Some(Routed { endpoint, believed_tokens: matched_tokens }),
            None => to(least(sight.ready, rng, |place| self.size(place))?),
        }
    }

    fn sent(&mut self, call: &Call, endpoint: usize, _: Nanos) {
        if call.blocks.is_empty() {
            self.alone_tokens[endpoint] += call.prompt_tokens;
        }
        self.seen.send(coarse(call), endpoint);
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
    fn a_conversation_stays_until_the_loads_are_out_of_balance() {
        let mut rule = CacheAware::new(3);
        let first = ask(&mut rule, &prompt(1, 40), &[0; 3], &[], 1);
        let elsewhere = ask(&mut rule, &prompt(2, 80), &[0; 3], &[], 1);
        assert_ne!(first, elsewhere, "the smallest tree");
        let mut busy = [0; 3];
        busy[first] = 64;
        assert_eq!(ask(&mut rule, &prompt(1, 60), &busy, &[], 1), first, "64 are no imbalance");
        busy[first] = 65;
        assert_ne!(ask(&mut rule, &prompt(1, 60), &busy, &[], 1), first);
    }

    #[test]
    fn less_than_the_threshold_is_no_match() {
        let mut rule = CacheAware::new(2);
        let first = ask(&mut rule, &prompt(1, 40), &[0; 2], &[], 1);
        assert_eq!(ask(&mut rule, &prompt(1, 132), &[0; 2], &[], 1), first, "0.303");
        let mut rule = CacheAware::new(2);
        let first = ask(&mut rule, &prompt(1, 40), &[0; 2], &[], 1);
        assert_ne!(ask(&mut rule, &prompt(1, 136), &[0; 2], &[], 1), first, "0.294");
    }
}
