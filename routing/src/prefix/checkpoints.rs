//! The checkpoints of a prompt: places at which a prefix may end, each with a hash of everything before it.
//!
//! `h(0) = 0`, `h(k) = mix(h(k-1), hash of message k)`: a chain, so `[A, B, B]` is not `[A]` (with a sum or XOR of the messages
//! it would be). A checkpoint at every message boundary and, inside a long text, at doubling sizes of the message; one is
//! kept only when [`MIN_SPACING_BYTES`] came since the last. All of that depends on nothing but the prefix itself, so two
//! prompts that share their first k messages share the checkpoints in them.
//!
//! Model, `cache_salt`, tools and the system prompt come before the messages in what the engine sees, but anywhere in the
//! body. So the chain begins unseeded, and [`Checkpoints::seeded`] mixes them in at the end: the same text for another
//! model, LoRA adapter or salt never matches.
//!
//! At most [`MAX_CHECKPOINTS`], however long the prompt: the first 8 and the last 24 stay; between them those go first whose
//! ordinal has the fewest trailing zero bits, oldest first, so that what is left lies ever wider apart, and at the same
//! places in both of two conversations that share them. Cost: 40 comparisons for each checkpoint beyond 40.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The most checkpoints of a prompt.
pub const MAX_CHECKPOINTS: usize = 40;

/// Prompt text between two checkpoints, at least.
pub const MIN_SPACING_BYTES: u64 = 256;

/// These stay, whatever comes after.
const FIRST: usize = 8;

/// These stay, whatever came before.
const LAST: usize = 24;

/// A place in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Hash of everything before it; never 0.
    pub hash: u64,
    /// Prompt bytes before it, as JSON has them, escapes included, plus 4 for each token id.
    pub bytes: u64,
}

/// One hash out of two; the order matters.
#[must_use]
pub fn mix(left: u64, right: u64) -> u64 {
    xxh3_64_with_seed(&right.to_le_bytes(), left)
}

/// Gathers checkpoints as a prompt is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trail {
    /// With their ordinals, which count the dropped ones too.
    kept: Vec<(u64, Checkpoint)>,
    ordinal: u64,
    last_text: u64,
    /// Hash up to the end of the first message that is no system prompt.
    home: Option<u64>,
}

impl Trail {
    /// Room for the preamble's own checkpoint.
    const CAPACITY: usize = MAX_CHECKPOINTS - 1;

    /// A message that is no system prompt ends here. The first one makes a conversation what it is: its later turns begin
    /// with it, and conversations that share a system prompt do not.
    pub fn offer_home(&mut self, hash: u64) {
        self.home.get_or_insert(hash);
    }

    /// A possible checkpoint: `hash` of everything before it, `text` bytes of canonical prompt text before it (which
    /// decides about the spacing), `bytes` as [`Checkpoint::bytes`] has it.
    pub fn offer(&mut self, hash: u64, text: u64, bytes: u64) {
        if text < self.last_text + MIN_SPACING_BYTES {
            return;
        }
        self.last_text = text;
        self.ordinal += 1;
        if self.kept.capacity() == 0 {
            self.kept.reserve_exact(8);
        }
        self.kept.push((self.ordinal, Checkpoint { hash, bytes }));
        if self.kept.len() > Self::CAPACITY {
            let middle = self.kept.iter().enumerate().take(Self::CAPACITY + 1 - LAST).skip(FIRST);
            if let Some((at, _)) = middle.min_by_key(|(_, (ordinal, _))| ordinal.trailing_zeros()) {
                self.kept.remove(at);
            }
        }
    }
}

/// What the engine sees before the first message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preamble {
    /// Hash of tools, system prompt and salt.
    pub hash: u64,
    /// Their canonical text: decides whether they get a checkpoint.
    pub text: u64,
    /// Their bytes in the body.
    pub bytes: u64,
    /// Hash of the response that the conversation continues, 0 for none: what the engine adds from its memory comes
    /// between preamble and messages.
    pub previous: u64,
}

/// The checkpoints of one prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoints {
    preamble: Preamble,
    trail: Trail,
    enabled: bool,
}

impl Checkpoints {
    /// The checkpoints of `trail`, after `preamble`.
    #[must_use]
    pub fn new(preamble: Preamble, trail: Trail) -> Self {
        Checkpoints { preamble, trail, enabled: true }
    }

    /// For `model` as the engine calls it, shortest prefix first; at most [`MAX_CHECKPOINTS`]. Cost: one hash of 8 bytes
    /// each.
    #[must_use]
    pub fn seeded(&self, model: &str) -> Vec<Checkpoint> {
        if !self.enabled {
            return Vec::new();
        }
        let before = self.before(model);
        let mut checkpoints = Vec::with_capacity(self.trail.kept.len() + 1);
        if self.preamble.text >= MIN_SPACING_BYTES {
            checkpoints.push(Checkpoint { hash: before.max(1), bytes: self.preamble.bytes });
        }
        let seed = self.seed(before);
        checkpoints.extend(self.trail.kept.iter().map(|(_, checkpoint)| Checkpoint {
            hash: mix(seed, checkpoint.hash).max(1),
            bytes: self.preamble.bytes + checkpoint.bytes,
        }));
        checkpoints
    }

    /// What a conversation is known by in all its turns, for [`crate::prefix::holders::home`]; `None` when nothing was
    /// hashed, or not to the end of its first message.
    #[must_use]
    pub fn home(&self, model: &str) -> Option<u64> {
        let home = self.trail.home.filter(|_| self.enabled)?;
        Some(mix(self.seed(self.before(model)), home))
    }

    fn before(&self, model: &str) -> u64 {
        mix(xxh3_64(model.as_bytes()), self.preamble.hash)
    }

    fn seed(&self, before: u64) -> u64 {
        if self.preamble.previous == 0 { before } else { mix(before, self.preamble.previous) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trail(of: impl IntoIterator<Item = u64>) -> Trail {
        let mut trail = Trail::default();
        for nth in of {
            trail.offer(mix(7, nth), 256 * nth, 300 * nth);
        }
        trail
    }

    #[test]
    fn close_ones_are_left_out() {
        let mut trail = Trail::default();
        for text in [100, 256, 300, 511, 512, 513, 10_000] {
            trail.offer(text, text, text);
        }
        assert_eq!(trail.kept.iter().map(|(_, c)| c.bytes).collect::<Vec<_>>(), [256, 512, 10_000]);
    }

    #[test]
    fn a_long_trail_keeps_its_ends_and_thins_its_middle() {
        let checkpoints = Checkpoints::new(Preamble { text: 256, ..Preamble::default() }, trail(1..=10_000));
        let seeded = checkpoints.seeded("m");
        assert_eq!(seeded.len(), MAX_CHECKPOINTS);
        let ordinals: Vec<u64> = seeded.iter().skip(1).map(|checkpoint| checkpoint.bytes / 300).collect();
        assert_eq!(ordinals[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ordinals[15..], (9_977..=10_000).collect::<Vec<_>>());
        let middle = &ordinals[8..15];
        assert!(middle.is_sorted() && middle.iter().all(|ordinal| ordinal.trailing_zeros() >= 9), "{middle:?}");
    }

    #[test]
    fn another_model_salt_or_previous_response_never_matches() {
        let of = |preamble, model| Checkpoints::new(preamble, trail(1..=5)).seeded(model);
        let plain = of(Preamble::default(), "a");
        assert_eq!(plain.len(), 5);
        for other in [
            of(Preamble::default(), "b"),
            of(Preamble { hash: 1, ..Preamble::default() }, "a"),
            of(Preamble { previous: 1, ..Preamble::default() }, "a"),
        ] {
            assert!(other.iter().all(|checkpoint| plain.iter().all(|of_plain| of_plain.hash != checkpoint.hash)));
        }
        assert!(Checkpoints::default().seeded("a").is_empty());
    }

    proptest! {
        /// However two conversations go on, most of what they share is still there to be found.
        #[test]
        fn a_shared_prefix_is_found(shared in 1u64..500, one in 0u64..30, other in 0u64..30) {
            let kept = |more: u64, salt: u64| {
                let mut trail = trail(1..=shared);
                for nth in 1..=more {
                    trail.offer(mix(salt, nth), 256 * (shared + nth), 0);
                }
                trail.kept.iter().map(|(_, checkpoint)| checkpoint.hash).collect::<Vec<_>>()
            };
            let (one, other) = (kept(one, 1), kept(other, 2));
            let longest = (1..=shared).rev().find(|nth| one.contains(&mix(7, *nth)) && other.contains(&mix(7, *nth)));
            // Nothing is lost within the last 24, and beyond them less than the half.
            prop_assert!(longest.is_some_and(|longest| longest * 2 >= shared), "{longest:?} of {shared}");
        }
    }
}
