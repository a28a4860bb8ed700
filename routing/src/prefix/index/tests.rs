use super::*;
use crate::snapshot::Snapshot;
use proptest::prelude::*;
use serde_json::json;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Default)]
struct Memory {
    shards: HashMap<u64, Vec<u8>>,
    reads: usize,
}

impl Shards for Memory {
    fn load(&mut self, shard: u64) -> (Option<Vec<u8>>, u32) {
        self.reads += 1;
        (self.shards.get(&shard).cloned(), 1)
    }

    fn store(&mut self, shard: u64, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        assert!(shard < SHARDS);
        self.shards.insert(shard, bytes.to_vec());
        Ok(())
    }
}

fn pool(count: usize) -> Pool {
    let endpoints: Vec<_> = (0..count)
        .map(|nth| json!({"id": format!("e{nth}"), "address": format!("10.0.0.{nth}:80"), "weight": 1.0, "kv_tokens": 64_000}))
        .collect();
    let snapshot =
        json!({"format": 1, "version": 1, "pools": [{"name": "p", "models": ["m"], "endpoints": endpoints}]});
    Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
}

/// The first `count` prefixes of conversation `of`, 100 tokens apart.
fn prefixes(of: u64, count: u64) -> Vec<Prefix> {
    (1..=count).map(|nth| Prefix { hash: xxh3_64_with_seed(&nth.to_le_bytes(), of), tokens: nth * 100 }).collect()
}

fn search(prefixes: Vec<Prefix>, pool: &Pool, clock: u64, memory: &mut Memory) -> Search {
    Search::new(prefixes, None, pool, |_| clock, 0, memory)
}

#[test]
fn a_longer_conversation_matches_what_was_learnt() {
    let (pool, mut memory) = (pool(3), Memory::default());
    let mut first = search(prefixes(1, 10), &pool, 0, &mut memory);
    assert_eq!((first.longest.len(), first.matched_tokens()), (0, 0));
    assert_eq!(first.learn(1, 0, &mut memory), 10);
    memory.reads = 0;
    let mut next = search(prefixes(1, 12), &pool, 0, &mut memory);
    assert_eq!((next.longest.as_slice(), next.matched_tokens(), memory.reads), ([1].as_slice(), 1_000, 3));
    assert_eq!(next.tokens_at(0, &mut memory), 0);
    assert_eq!(next.learn(1, 0, &mut memory), 2);
    // Another conversation, or another endpoint's part of it, is not mistaken for it.
    assert_eq!(search(prefixes(2, 12), &pool, 0, &mut memory).matched_tokens(), 0);
}

#[test]
fn several_hold_and_each_has_its_own_length() {
    let (pool, mut memory) = (pool(3), Memory::default());
    search(prefixes(1, 4), &pool, 0, &mut memory).learn(0, 0, &mut memory);
    search(prefixes(1, 30), &pool, 0, &mut memory).learn(2, 0, &mut memory);
    memory.reads = 0;
    let mut third = search(prefixes(1, 40), &pool, 0, &mut memory);
    assert_eq!((third.longest.as_slice(), third.matched_tokens()), ([2].as_slice(), 3_000));
    assert_eq!(third.tokens_at(0, &mut memory), 400);
    assert!(memory.reads <= 3 + 6 + 6, "{}", memory.reads);
    let mut shared = search(prefixes(1, 4), &pool, 0, &mut memory);
    assert_eq!(shared.longest, [0, 2]);
    assert_eq!(shared.learn(1, 0, &mut memory), 4);
}

// Case C11: the holders of the longest match are out of reach; the next shorter match is found, for few reads.
#[test]
fn c11_the_longest_match_of_those_that_can_be_had() {
    let (pool, mut memory) = (pool(3), Memory::default());
    search(prefixes(1, 40), &pool, 0, &mut memory).learn(0, 0, &mut memory);
    search(prefixes(1, 25), &pool, 0, &mut memory).learn(1, 0, &mut memory);
    search(prefixes(1, 9), &pool, 0, &mut memory).learn(2, 0, &mut memory);
    let mut found = search(prefixes(1, 40), &pool, 0, &mut memory);
    memory.reads = 0;
    let mut holders = found.holders(&mut memory);
    assert_eq!(holders.longest_among(&mut |_| true), (vec![0], 4_000));
    assert_eq!(holders.longest_among(&mut |place| place != 0), (vec![0, 1], 2_500));
    assert_eq!(holders.longest_among(&mut |place| place == 2), (vec![0, 1, 2], 900));
    assert_eq!(holders.longest_among(&mut |_| false), (Vec::new(), 0));
    assert!(memory.reads <= 3 * (3 + 6), "{}", memory.reads);
}

#[test]
fn what_a_whole_cache_of_newer_tokens_has_pushed_out_is_forgotten() {
    let (pool, mut memory) = (pool(1), Memory::default());
    search(prefixes(1, 5), &pool, 0, &mut memory).learn(0, 0, &mut memory);
    assert_eq!(search(prefixes(1, 5), &pool, 64_000, &mut memory).matched_tokens(), 500);
    assert_eq!(search(prefixes(1, 5), &pool, 66_000, &mut memory).matched_tokens(), 0);
    // Used again in time, it lives on; a fresh entry is not written again.
    assert_eq!(search(prefixes(1, 5), &pool, 7_000, &mut memory).learn(0, 7_000, &mut memory), 0);
    assert_eq!(search(prefixes(1, 5), &pool, 60_000, &mut memory).learn(0, 60_000, &mut memory), 5);
    assert_eq!(search(prefixes(1, 5), &pool, 66_000, &mut memory).matched_tokens(), 500);
}

// Another VM's clock may be a few requests behind the one that wrote.
#[test]
fn an_entry_from_a_clock_that_is_ahead_counts() {
    let (pool, mut memory) = (pool(1), Memory::default());
    search(prefixes(1, 5), &pool, 20_000, &mut memory).learn(0, 20_000, &mut memory);
    assert_eq!(search(prefixes(1, 5), &pool, 10_000, &mut memory).matched_tokens(), 500);
}

#[test]
fn an_engine_that_restarted_holds_nothing() {
    let (mut pool, mut memory) = (pool(2), Memory::default());
    search(prefixes(1, 5), &pool, 0, &mut memory).learn(0, 0, &mut memory);
    pool.endpoints[0].holder ^= 1;
    assert_eq!(search(prefixes(1, 5), &pool, 0, &mut memory).matched_tokens(), 0);
    pool.endpoints.remove(0);
    assert_eq!(search(prefixes(1, 5), &pool, 0, &mut memory).matched_tokens(), 0);
}

// Case C14: the index is bounded, and the newest entries are those that stay.
#[test]
fn c14_it_is_bounded_and_keeps_what_is_new() {
    let (pool, mut memory) = (pool(2), Memory::default());
    for of in 0..100_000u64 {
        let mut search = Search::new(prefixes(of, 5), None, &pool, |_| 0, of * 100, &mut memory);
        search.learn((of % 2) as usize, 0, &mut memory);
    }
    assert!(memory.shards.len() <= SHARDS as usize);
    assert!(memory.shards.values().all(|bytes| bytes.len() == SHARD_BYTES));
    let found = |from: u64| {
        (from..from + 1_000)
            .filter(|of| search(prefixes(*of, 5), &pool, 0, &mut memory).matched_tokens() == 500)
            .count()
    };
    let mut found = found;
    let (old, new) = (found(0), found(99_000));
    println!("of 100,000 conversations of 5 checkpoints, 1,000 old ones: {old} found, 1,000 new ones: {new}");
    assert!(new > 990 && old < 20, "{old} {new}");
}

#[test]
fn a_prefix_of_everybody_leaves_room_in_its_set() {
    let (pool, mut memory) = (pool(20), Memory::default());
    for place in 0..20 {
        search(prefixes(1, 1), &pool, 0, &mut memory).learn(place, 0, &mut memory);
    }
    assert_eq!(search(prefixes(1, 1), &pool, 0, &mut memory).longest.len(), HOLDERS_PER_PREFIX);
}

proptest! {
    #[test]
    fn any_bytes_are_read_and_written(bytes in proptest::collection::vec(any::<u8>(), 0..600), fit in any::<bool>(), hash in any::<u64>(), clock in any::<u64>()) {
        let mut bytes = bytes;
        if fit {
            bytes.resize(SHARD_BYTES, 7);
        }
        let (pool, mut memory) = (pool(3), Memory::default());
        memory.shards.insert(locate(hash).0, bytes);
        let mut one = Search::new(vec![Prefix { hash, tokens: 5 }], None, &pool, |_| clock, clock, &mut memory);
        one.learn(1, clock, &mut memory);
        let again = Search::new(vec![Prefix { hash, tokens: 5 }], None, &pool, |_| clock, clock, &mut memory);
        prop_assert!(again.longest.contains(&1));
        prop_assert_eq!(memory.shards[&locate(hash).0].len(), SHARD_BYTES);
    }

    #[test]
    fn bisection_finds_the_border(count in 0usize..50, border in 0usize..50) {
        prop_assert_eq!(last_true(count, |nth| nth < border), count.min(border).checked_sub(1));
    }
}
