//! The KV cache: prefix blocks, reference counts, eviction.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// No slot.
const NIL: u32 = u32::MAX;

/// A cache of blocks keyed by chain hash (the hash of a block includes all that goes before it).
///
/// A block is *referenced* while a running request uses it, and *evictable* afterwards, in order of last use; within one
/// request the tail goes first, so that what remains is a usable prefix. Partial blocks and the output of running requests
/// are *private*: counted, never shared. `referenced + evictable + private <= capacity` holds at all times.
///
/// Cost: constant per block of the request. The evictable ones form a linked list through their slots.
#[derive(Debug, Clone)]
pub struct KvCache {
    capacity: usize,
    index: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    evictable: usize,
    private: usize,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u64,
    references: u32,
    older: u32,
    newer: u32,
}

impl KvCache {
    /// An empty cache of so many blocks.
    pub fn new(capacity_blocks: usize) -> Self {
        Self {
            capacity: capacity_blocks.min(NIL as usize),
            index: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            oldest: NIL,
            newest: NIL,
            evictable: 0,
            private: 0,
        }
    }

    /// How many leading blocks of `hashes` are there.
    pub fn matched(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.index.contains_key(hash)).count()
    }

    /// Takes a reference to every block of `hashes`, plus `private` nameless blocks, evicting as needed. Returns how many
    /// leading blocks were there already, or `None`, with nothing changed, when there is no room.
    pub fn acquire(&mut self, hashes: &[u64], private: usize) -> Option<usize> {
        let found: Vec<u32> = hashes.iter().map(|hash| self.index.get(hash).copied().unwrap_or(NIL)).collect();
        let referenced = |slot: &&u32| **slot != NIL && self.slots[**slot as usize].references > 0;
        let wanted = found.len() - found.iter().filter(referenced).count() + private;
        if wanted > self.capacity - self.in_use() {
            return None;
        }
        // Those that are there first, or making room for the new ones would evict them.
        for &slot in found.iter().filter(|slot| **slot != NIL) {
            self.reference(slot);
        }
        self.private += private;
        let missing = found.iter().filter(|slot| **slot == NIL).count();
        self.evict_down_to(self.capacity.saturating_sub(missing));
        for (&hash, _) in hashes.iter().zip(&found).filter(|(_, slot)| **slot == NIL) {
            match self.index.get(&hash) {
                Some(&slot) => self.reference(slot),
                None => {
                    let slot = self.insert(hash);
                    self.slots[slot as usize].references = 1;
                }
            }
        }
        Some(found.iter().take_while(|slot| **slot != NIL).count())
    }

    /// Gives back what [`Self::acquire`] took. `output` are blocks that were private and are now worth keeping.
    pub fn release(&mut self, hashes: &[u64], private: usize, output: &[u64]) {
        self.private -= private.min(self.private);
        for &hash in output.iter().rev() {
            self.keep(hash);
        }
        for hash in hashes.iter().rev() {
            let Some(&slot) = self.index.get(hash) else {
                continue;
            };
            let references = &mut self.slots[slot as usize].references;
            if *references > 0 {
                *references -= 1;
                if *references == 0 {
                    self.link(slot);
                }
            }
        }
    }

    /// Blocks that cannot be evicted now.
    pub fn in_use(&self) -> usize {
        self.index.len() - self.evictable + self.private
    }

    /// Blocks that are empty or could be evicted.
    pub fn free(&self) -> usize {
        self.capacity - self.in_use().min(self.capacity)
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
        self.index.len()
    }

    /// Adds or refreshes an unreferenced block.
    fn keep(&mut self, hash: u64) {
        match self.index.get(&hash) {
            Some(&slot) if self.slots[slot as usize].references > 0 => {}
            Some(&slot) => {
                self.unlink(slot);
                self.link(slot);
            }
            None => {
                self.evict_down_to(self.capacity.saturating_sub(1));
                if self.index.len() + self.private < self.capacity {
                    let slot = self.insert(hash);
                    self.link(slot);
                }
            }
        }
    }

    fn reference(&mut self, slot: u32) {
        if self.slots[slot as usize].references == 0 {
            self.unlink(slot);
        }
        self.slots[slot as usize].references += 1;
    }

    /// A slot for a new block, neither referenced nor in the list yet.
    fn insert(&mut self, hash: u64) -> u32 {
        let slot = Slot { hash, references: 0, older: NIL, newer: NIL };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.index.insert(hash, at);
        at
    }

    fn evict_down_to(&mut self, limit: usize) {
        while self.index.len() + self.private > limit && self.oldest != NIL {
            let slot = self.oldest;
            self.unlink(slot);
            self.index.remove(&self.slots[slot as usize].hash);
            self.free.push(slot);
        }
    }

    /// Puts a slot at the newest end of the list.
    fn link(&mut self, slot: u32) {
        let older = self.newest;
        let entry = &mut self.slots[slot as usize];
        (entry.older, entry.newer) = (older, NIL);
        match older {
            NIL => self.oldest = slot,
            older => self.slots[older as usize].newer = slot,
        }
        self.newest = slot;
        self.evictable += 1;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, newer, .. } = self.slots[slot as usize];
        match older {
            NIL => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.evictable -= 1;
    }
}

/// The keys are hashes already; one multiplication spreads those that are not (in tests).
#[derive(Debug, Clone, Copy, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        let product = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

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

    /// The order of eviction, kept the slow way.
    fn touch(order: &mut VecDeque<u64>, hash: u64) {
        order.retain(|other| *other != hash);
        order.push_back(hash);
    }

    proptest! {
        /// One request at a time: the survivors are the most recently used, tails first out, and the room is never exceeded.
        #[test]
        fn evicts_as_a_plain_list_would(requests in prop::collection::vec((0..4u64, 1..6usize, 0..3usize), 1..60)) {
            let mut kv = KvCache::new(12);
            let mut order: VecDeque<u64> = VecDeque::new();
            for (family, length, private) in requests {
                let hashes: Vec<u64> = (0..length as u64).map(|n| family << 8 | n).collect();
                let known = hashes.iter().take_while(|hash| order.contains(hash)).count();
                prop_assert_eq!(kv.acquire(&hashes, private), Some(known));
                hashes.iter().for_each(|hash| touch(&mut order, *hash));
                while order.len() + private > 12 {
                    order.pop_front();
                }
                prop_assert_eq!(kv.in_use(), length + private);
                prop_assert!(kv.cached() + private <= 12);
                kv.release(&hashes, private, &[]);
                hashes.iter().rev().for_each(|hash| touch(&mut order, *hash));
                prop_assert_eq!(kv.in_use(), 0);
                prop_assert_eq!(kv.cached(), order.len());
                prop_assert!(order.iter().all(|hash| kv.matched(&[*hash]) == 1));
            }
        }
    }
}
