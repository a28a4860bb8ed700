//! How much the holder index remembers: conversations that grow in turn, without engines.

use std::collections::HashMap;

use weighbridge_routing::prefix::index::{Prefix, Search};
use weighbridge_routing::snapshot::Pool;

use crate::policy::Memory;
use crate::workload::mix;

/// What a test of the index found.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Recall {
    /// Look-ups that should have found the whole conversation so far.
    pub asked: u64,
    /// Those that did, at the right endpoint.
    pub found: u64,
    /// Those that found a part of it.
    pub partly: u64,
    /// Look-ups that found an endpoint which never had that prefix.
    pub wrong: u64,
    /// Bytes of the index.
    pub bytes: usize,
}

/// `conversations` that take turns, one after the other, until each has `checkpoints` of them. Each stays at one endpoint.
#[must_use]
pub fn recall(pool: &Pool, conversations: u64, checkpoints: u64) -> Recall {
    let mut memory = Memory::default();
    let mut recall = Recall::default();
    let prefixes = |of: u64, count: u64| -> Vec<Prefix> {
        (1..=count).map(|nth| Prefix { hash: mix(mix(7, of), nth), tokens: nth * 200 }).collect()
    };
    let endpoints = pool.endpoints.len().max(1) as u64;
    let mut now_ms = 0;
    for turn in 1..=checkpoints {
        for of in 0..conversations {
            // A thousand requests per second.
            now_ms += 1;
            let home = (mix(3, of) % endpoints) as usize;
            let mut search = Search::new(prefixes(of, turn), None, pool, |_| 0, now_ms, &mut memory);
            let held: HashMap<usize, u64> =
                (0..pool.endpoints.len()).map(|place| (place, search.tokens_at(place, &mut memory))).collect();
            if held.iter().any(|(place, tokens)| *place != home && *tokens > 0) {
                recall.wrong += 1;
            }
            if turn > 1 {
                recall.asked += 1;
                match held.get(&home).copied().unwrap_or(0) {
                    0 => {}
                    tokens if tokens == (turn - 1) * 200 => recall.found += 1,
                    _ => recall.partly += 1,
                }
            }
            search.learn(home, 0, &mut memory);
        }
    }
    recall.bytes = memory.bytes();
    recall
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, Overrides};
    use crate::policy::Tuning;

    fn pool() -> Pool {
        Fleet::parse("980,479,240,240", Overrides::default()).unwrap().pool(&Tuning::default(), &[]).unwrap()
    }

    #[test]
    fn conversations_that_fit_are_remembered() {
        let found = recall(&pool(), 10_000, 8);
        assert_eq!((found.asked, found.bytes), (70_000, 2 * 1024 * 1024));
        assert!(found.found as f64 > 0.995 * found.asked as f64, "{found:?}");
        assert!(found.wrong < 10, "{found:?}");
    }

    #[test]
    fn far_too_many_cost_matches_and_no_memory() {
        let found = recall(&pool(), 100_000, 6);
        assert_eq!(found.bytes, 2 * 1024 * 1024);
        assert!(found.found < found.asked && found.wrong < 50, "{found:?}");
        assert_eq!(found.asked, 500_000);
    }
}
