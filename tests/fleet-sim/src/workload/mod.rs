//! What arrives: requests with their lengths, and enough of their content to tell which prefixes they share.
//!
//! Content is never text, only hashes of beginnings: a beginning of so many tokens of the same conversation has the same
//! hash everywhere, in the engines' KV blocks and in the gateway's checkpoints.

pub mod arrivals;
pub mod azure;
pub mod mooncake;
pub mod synthetic;

use std::collections::VecDeque;

use engine_sim::model::Nanos;
use weighbridge_routing::prefix::Checkpoints;
use weighbridge_routing::prefix::checkpoints::{Preamble, Trail};
use weighbridge_routing::prefix::index::Prefix;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens per KV block of the engines.
pub const BLOCK_TOKENS: u64 = 16;

/// Prompt tokens that the filter hashes by default: 64 KiB at 4 bytes each.
pub const PREFIX_TOKENS: u64 = 16_384;

/// One request.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// Which conversation it is a turn of; a request that stands alone has one to itself.
    pub conversation: u64,
    /// Prompt length, at least 1.
    pub prompt_tokens: u64,
    /// Output length, at least 1.
    pub output_tokens: u64,
    /// Chain hashes of the prompt's full KV blocks; empty when it shares nothing with anybody.
    pub blocks: Vec<u64>,
    /// The same for the output.
    pub output_blocks: Vec<u64>,
    /// The checkpoints that the filter would see, shortest first.
    pub prefixes: Vec<Prefix>,
    /// Hash of the first 256 characters.
    pub first: u64,
    /// Prompt tokens that one cache for the whole workload, never full, would have.
    pub known_tokens: u64,
}

/// A source of requests.
pub trait Workload {
    /// When the next one arrives, as far as that does not depend on answers still to come.
    fn next_at(&self) -> Option<Nanos>;
    /// The next one.
    fn take(&mut self) -> Option<Call>;
    /// A request was answered, or (`served` false) refused.
    fn ended(&mut self, conversation: u64, now: Nanos, served: bool);
    /// What a gateway would have learnt to expect: the median of the output lengths.
    fn median_output(&self) -> u64;
}

/// One hash of two numbers; the order matters.
#[must_use]
pub fn mix(left: u64, right: u64) -> u64 {
    xxh3_64_with_seed(&right.to_le_bytes(), left)
}

/// Bytes that stand for a token.
const TOKEN_BYTES: u64 = 4;
/// Length of a message, as a power of two of tokens, at which the filter puts the first checkpoint inside it.
const INSIDE: u32 = 10;

/// The checkpoints that the filter would see in a conversation whose messages end at `boundaries` (ascending, in tokens):
/// at the boundaries and at doubling sizes inside a message, spaced and thinned out by the filter's own code, as far as
/// it hashes. `hash` names a beginning of so many tokens.
pub fn checkpoints(boundaries: &[u64], hash: impl Fn(u64) -> u64) -> Vec<Prefix> {
    let mut trail = Trail::default();
    let mut start = 0;
    for &end in boundaries {
        let inside = (INSIDE..).map(|power| start + (1 << power)).take_while(|at| *at < end);
        for at in inside.chain([end]).filter(|at| *at <= PREFIX_TOKENS) {
            trail.offer(hash(at), at * TOKEN_BYTES, at * TOKEN_BYTES);
        }
        start = end;
    }
    let seeded = Checkpoints::new(Preamble::default(), trail).seeded("m").into_iter();
    seeded.map(|checkpoint| Prefix { hash: checkpoint.hash, tokens: checkpoint.bytes / TOKEN_BYTES }).collect()
}

/// Requests that come at their time, whatever becomes of the others: a trace.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    calls: VecDeque<(Nanos, Call)>,
    median_output: u64,
}

impl Replay {
    /// `calls` in order of time.
    #[must_use]
    pub fn new(calls: Vec<(Nanos, Call)>) -> Self {
        let mut outputs: Vec<u64> = calls.iter().map(|(_, call)| call.output_tokens).collect();
        outputs.sort_unstable();
        let median_output = outputs.get(outputs.len() / 2).copied().unwrap_or(1);
        Self { calls: calls.into(), median_output }
    }

    /// The requests, without their times.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().map(|(_, call)| call)
    }

    /// Requests per second, from the first to the last.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let at = |end: Option<&(Nanos, Call)>| end.map_or(0, |(at, _)| *at);
        let nanos = at(self.calls.back()).saturating_sub(at(self.calls.front()));
        self.calls.len() as f64 / (nanos as f64 / 1e9).max(f64::MIN_POSITIVE)
    }

    /// The same requests, `speed` times as fast.
    #[must_use]
    pub fn faster(&self, speed: f64) -> Self {
        let calls = self.calls.iter().map(|(at, call)| ((*at as f64 / speed) as Nanos, call.clone())).collect();
        Self { calls, median_output: self.median_output }
    }

    /// Number of requests still to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The longest request, prompt and output together, in tokens.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.calls.iter().map(|(_, call)| call.prompt_tokens + call.output_tokens).max().unwrap_or(0)
    }
}

impl Workload for Replay {
    fn next_at(&self) -> Option<Nanos> {
        self.calls.front().map(|(at, _)| *at)
    }

    fn take(&mut self) -> Option<Call> {
        self.calls.pop_front().map(|(_, call)| call)
    }

    fn ended(&mut self, _: u64, _: Nanos, _: bool) {}

    fn median_output(&self) -> u64 {
        self.median_output
    }
}

/// Requests that come as soon as there is room for them: so many at a time, until none is left.
#[derive(Debug, Clone)]
pub struct Saturation {
    calls: VecDeque<Call>,
    free: usize,
    now: Nanos,
}

impl Saturation {
    /// These requests, `at_a_time` of them.
    #[must_use]
    pub fn new(calls: Vec<Call>, at_a_time: usize) -> Self {
        Self { calls: calls.into(), free: at_a_time, now: 0 }
    }
}

impl Workload for Saturation {
    fn next_at(&self) -> Option<Nanos> {
        (self.free > 0 && !self.calls.is_empty()).then_some(self.now)
    }

    fn take(&mut self) -> Option<Call> {
        self.free = self.free.checked_sub(1)?;
        self.calls.pop_front()
    }

    fn ended(&mut self, _: u64, now: Nanos, _: bool) {
        self.free += 1;
        self.now = now;
    }

    fn median_output(&self) -> u64 {
        1
    }
}

#[cfg(test)]
mod tests {
    use weighbridge_routing::prefix::MAX_CHECKPOINTS;

    use super::*;

    fn lengths(boundaries: &[u64]) -> Vec<u64> {
        checkpoints(boundaries, |tokens| tokens).iter().map(|prefix| prefix.tokens).collect()
    }

    #[test]
    fn a_longer_conversation_has_the_checkpoints_of_the_shorter() {
        assert_eq!(lengths(&[300, 320, 2_000]), [300, 1_344, 2_000]);
        let boundaries: Vec<u64> = (1..=120).map(|nth| nth * 100).collect();
        for turns in [3, 20, 40, 41, 60] {
            let (short, long) = (lengths(&boundaries[..turns]), lengths(&boundaries[..turns + 2]));
            assert!(long.len() <= MAX_CHECKPOINTS && long.last() == Some(&(100 * (turns as u64 + 2))));
            let shared = short.iter().rev().find(|at| long.contains(at));
            assert_eq!(shared, short.last(), "the next turn matches at the end of this one");
        }
        assert!(lengths(&[40_000]).iter().all(|at| *at <= PREFIX_TOKENS));
    }
}
