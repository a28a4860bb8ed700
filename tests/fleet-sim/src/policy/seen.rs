//! Which blocks of prompts were sent to which endpoint, each endpoint's least recently used forgotten first.

use std::collections::{HashMap, VecDeque};

/// An approximate copy of the engines' caches, made of what was sent there.
#[derive(Debug)]
pub(super) struct Seen {
    /// Who was sent a block, and when last (a number that only grows).
    at: HashMap<u64, Vec<(u32, u64)>>,
    of: Vec<Sent>,
    clock: u64,
}

/// What one endpoint was sent.
#[derive(Debug, Default)]
struct Sent {
    blocks: usize,
    most: usize,
    /// Blocks by last use, with the time; what has been used since is passed over.
    order: VecDeque<(u64, u64)>,
}

impl Seen {
    /// With room for so many blocks of each endpoint.
    pub(super) fn new(most: impl IntoIterator<Item = usize>) -> Self {
        let of = most.into_iter().map(|most| Sent { most, ..Sent::default() }).collect();
        Self { at: HashMap::new(), of, clock: 0 }
    }

    /// How many leading blocks of a prompt each endpoint was sent.
    pub(super) fn matched(&self, blocks: impl Iterator<Item = u64>, into: &mut Vec<usize>) {
        into.clear();
        into.resize(self.of.len(), 0);
        for (nth, block) in blocks.enumerate() {
            let mut any = false;
            for (endpoint, _) in self.at.get(&block).into_iter().flatten() {
                let matched = &mut into[*endpoint as usize];
                // Not those that have a hole before it.
                if *matched == nth {
                    *matched += 1;
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    }

    /// How many leading blocks anybody was sent, and who was sent the last of these most recently.
    pub(super) fn longest(&self, blocks: impl Iterator<Item = u64>) -> (usize, Option<usize>) {
        let (mut count, mut last) = (0, None);
        for block in blocks {
            let Some(holders) = self.at.get(&block) else { break };
            count += 1;
            last = holders.iter().max_by_key(|(_, at)| *at).map(|(endpoint, _)| *endpoint as usize);
        }
        (count, last)
    }

    /// These blocks have been sent to an endpoint. Of what was used at the same time the end of a prompt is forgotten first.
    pub(super) fn send(&mut self, blocks: impl DoubleEndedIterator<Item = u64>, endpoint: usize) {
        for block in blocks.rev() {
            self.clock += 1;
            let now = self.clock;
            let holders = self.at.entry(block).or_default();
            match holders.iter_mut().find(|(holder, _)| *holder == endpoint as u32) {
                Some((_, at)) => *at = now,
                None => {
                    holders.push((endpoint as u32, now));
                    self.of[endpoint].blocks += 1;
                }
            }
            self.of[endpoint].order.push_back((block, now));
        }
        while self.of[endpoint].blocks > self.of[endpoint].most {
            let Some((block, then)) = self.of[endpoint].order.pop_front() else { return };
            self.forget(block, then, endpoint);
        }
    }

    /// An endpoint has nothing any more.
    pub(super) fn clear(&mut self, endpoint: usize) {
        for (block, then) in std::mem::take(&mut self.of[endpoint].order) {
            self.forget(block, then, endpoint);
        }
    }

    /// Blocks that an endpoint was sent.
    pub(super) fn blocks(&self, endpoint: usize) -> usize {
        self.of[endpoint].blocks
    }

    /// Bytes of the entries, without what the maps need around them.
    pub(super) fn bytes(&self) -> usize {
        self.at.values().map(|holders| 8 + 16 * holders.len()).sum()
    }

    fn forget(&mut self, block: u64, then: u64, endpoint: usize) {
        let Some(holders) = self.at.get_mut(&block) else { return };
        let Some(place) = holders.iter().position(|holder| *holder == (endpoint as u32, then)) else { return };
        holders.swap_remove(place);
        self.of[endpoint].blocks -= 1;
        if holders.is_empty() {
            self.at.remove(&block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_sent_what() {
        let mut seen = Seen::new([4, 4, 4]);
        seen.send([1, 2, 3].into_iter(), 0);
        seen.send([1, 2].into_iter(), 2);
        let mut matched = Vec::new();
        seen.matched([1, 2, 3, 4].into_iter(), &mut matched);
        assert_eq!(matched, [3, 0, 2]);
        assert_eq!(seen.longest([1, 2].into_iter()), (2, Some(2)));
        assert_eq!(seen.longest([1, 2, 3, 9].into_iter()), (3, Some(0)));
        assert_eq!(seen.longest([8].into_iter()), (0, None));
    }

    #[test]
    fn the_oldest_goes_first_and_tails_before_beginnings() {
        let mut seen = Seen::new([4]);
        let matched = |seen: &Seen, blocks: &[u64]| seen.longest(blocks.iter().copied()).0;
        seen.send([1, 2, 3].into_iter(), 0);
        seen.send([7, 8].into_iter(), 0);
        assert_eq!((matched(&seen, &[1, 2, 3]), matched(&seen, &[7, 8]), seen.blocks(0)), (2, 2, 4));
        seen.send([1, 2].into_iter(), 0);
        seen.send([9].into_iter(), 0);
        assert_eq!((matched(&seen, &[1, 2]), matched(&seen, &[7, 8])), (2, 1));
        seen.clear(0);
        assert_eq!((matched(&seen, &[1]), seen.blocks(0), seen.bytes()), (0, 0, 0));
    }
}
