//! The KV cache: prefix blocks, reference counts, eviction.

use std::collections::{BTreeMap, HashMap};

/// A cache of blocks keyed by chain hash (the hash of a block includes all that goes before it).
///
/// A block is *referenced* while a running request uses it, and *evictable* afterwards, in order of last use; within one
/// request the tail goes first, so that what remains is a usable prefix. Partial blocks and the output of running requests
/// are *private*: counted, never shared. `referenced + evictable + private <= capacity` holds at all times.
///
/// Cost: O(blocks of the request x log(evictable blocks)).
#[derive(Debug, Clone)]
pub struct KvCache {
    capacity: usize,
    blocks: HashMap<u64, Block>,
    evictable: BTreeMap<u64, u64>,
    private: usize,
    tick: u64,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    references: u32,
    /// Key in `evictable` while `references` is zero.
    tick: u64,
}

impl KvCache {
    /// An empty cache of so many blocks.
    pub fn new(capacity_blocks: usize) -> Self {
        Self { capacity: capacity_blocks, blocks: HashMap::new(), evictable: BTreeMap::new(), private: 0, tick: 0 }
    }

    /// How many leading blocks of `hashes` are there.
    pub fn matched(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.blocks.contains_key(hash)).count()
    }

    /// Takes a reference to every block of `hashes`, plus `private` nameless blocks, evicting as needed. Returns how many
    /// leading blocks were there already, or `None`, with nothing changed, when there is no room.
    pub fn acquire(&mut self, hashes: &[u64], private: usize) -> Option<usize> {
        let referenced = |hash: &u64| self.blocks.get(hash).is_some_and(|block| block.references > 0);
        let wanted = hashes.iter().filter(|hash| !referenced(hash)).count() + private;
        if wanted > self.capacity - self.in_use() {
            return None;
        }
        let matched = self.matched(hashes);
        // Those that are there first, or making room for the new ones would evict them.
        let mut missing = Vec::new();
        for &hash in hashes {
            match self.blocks.get_mut(&hash) {
                Some(block) => {
                    if block.references == 0 {
                        self.evictable.remove(&block.tick);
                    }
                    block.references += 1;
                }
                None => missing.push(hash),
            }
        }
        self.private += private;
        self.evict_down_to(self.capacity - missing.len().min(self.capacity));
        for hash in missing {
            let block = self.blocks.entry(hash).or_insert(Block { references: 0, tick: 0 });
            block.references += 1;
        }
        Some(matched)
    }

    /// Gives back what [`Self::acquire`] took. `output` are blocks that were private and are now worth keeping.
    pub fn release(&mut self, hashes: &[u64], private: usize, output: &[u64]) {
        self.private -= private.min(self.private);
        for &hash in output.iter().rev() {
            self.keep(hash);
        }
        for hash in hashes.iter().rev() {
            let Some(block) = self.blocks.get_mut(hash) else {
                continue;
            };
            block.references = block.references.saturating_sub(1);
            if block.references == 0 {
                self.tick += 1;
                block.tick = self.tick;
                self.evictable.insert(self.tick, *hash);
            }
        }
    }

    /// Blocks that cannot be evicted now.
    pub fn in_use(&self) -> usize {
        self.blocks.len() - self.evictable.len() + self.private
    }

    /// Referenced plus private blocks, without `unfilled` private ones, as a share of the capacity, 0 to 1.
    pub fn usage(&self, unfilled: usize) -> f64 {
        if self.capacity == 0 {
            return 0.0;
        }
        self.in_use().saturating_sub(unfilled) as f64 / self.capacity as f64
    }

    /// Blocks that would be found, referenced or evictable.
    pub fn cached(&self) -> usize {
        self.blocks.len()
    }

    /// Adds or refreshes an unreferenced block.
    fn keep(&mut self, hash: u64) {
        self.tick += 1;
        let tick = self.tick;
        match self.blocks.get_mut(&hash) {
            Some(block) if block.references > 0 => {}
            Some(block) => {
                self.evictable.remove(&block.tick);
                block.tick = tick;
                self.evictable.insert(tick, hash);
            }
            None => {
                self.evict_down_to(self.capacity.saturating_sub(1));
                if self.blocks.len() + self.private < self.capacity {
                    self.blocks.insert(hash, Block { references: 0, tick });
                    self.evictable.insert(tick, hash);
                }
            }
        }
    }

    fn evict_down_to(&mut self, limit: usize) {
        while self.blocks.len() + self.private > limit {
            let Some((_, hash)) = self.evictable.pop_first() else {
                return;
            };
            self.blocks.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_request_finds_the_first_ones_prefix() {
        let mut kv = KvCache::new(10);
        assert_eq!(kv.acquire(&[1, 2, 3], 1), Some(0));
        assert_eq!(kv.acquire(&[1, 2, 9], 1), Some(2));
        assert_eq!(kv.in_use(), 4 + 2);
        kv.release(&[1, 2, 3], 1, &[]);
        assert_eq!(kv.in_use(), 3 + 1);
        assert_eq!(kv.matched(&[1, 2, 3]), 3);
    }

    #[test]
    fn evicts_the_least_recently_used_and_tails_first() {
        let mut kv = KvCache::new(4);
        kv.acquire(&[1, 2], 0).unwrap();
        kv.release(&[1, 2], 0, &[]);
        kv.acquire(&[5, 6], 0).unwrap();
        kv.release(&[5, 6], 0, &[]);
        kv.acquire(&[7], 0).unwrap();
        assert_eq!(kv.matched(&[1, 2]), 1, "the tail of the older one went");
        assert_eq!(kv.matched(&[5, 6]), 2);
        kv.acquire(&[1], 0).unwrap();
        kv.release(&[1], 0, &[]);
        kv.acquire(&[8], 0).unwrap();
        assert_eq!(kv.matched(&[1]), 1, "used again, so it stays");
        assert_eq!(kv.matched(&[5, 6]), 1);
    }

    #[test]
    fn refuses_what_does_not_fit_and_changes_nothing() {
        let mut kv = KvCache::new(4);
        kv.acquire(&[1, 2], 1).unwrap();
        assert_eq!(kv.acquire(&[3], 1), None);
        assert_eq!(kv.in_use(), 3);
        assert_eq!(kv.acquire(&[1, 2], 1), Some(2), "shared blocks cost nothing");
    }

    #[test]
    fn output_is_kept_for_the_next_turn() {
        let mut kv = KvCache::new(8);
        kv.acquire(&[1], 2).unwrap();
        kv.release(&[1], 2, &[2, 3]);
        assert_eq!(kv.matched(&[1, 2, 3, 4]), 3);
        assert_eq!(kv.in_use(), 0);
    }
}
