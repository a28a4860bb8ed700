//! From a request's text to tokens and block hashes, and the text that answers it.
//!
//! There is no tokenizer: 4 bytes are a token. What counts is that the same beginning gives the same blocks, and that a
//! conversation's next turn, which repeats the reply, finds the reply's blocks too. So a reply is a function of its
//! prompt, 4 bytes per token, and the chain of block hashes runs over prompt and reply together.
//!
//! Cost: one pass of xxh3 over prompt and reply.

use std::sync::LazyLock;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes per token.
pub(crate) const TOKEN_BYTES: usize = 4;

const FILLER_TOKENS: usize = 4096;

/// Words of one token each, in an order without a pattern.
static FILLER: LazyLock<String> = LazyLock::new(|| {
    const WORDS: [&str; 16] = [
        " the", " and", " ton", " axe", " bay", " car", " dry", " gas", " hub", " log", " mat", " ore", " pan", " rig",
        " tar", " way",
    ];
    (0..FILLER_TOKENS as u64).map(|n| WORDS[(xxh3_64_with_seed(&n.to_le_bytes(), 1) % 16) as usize]).collect()
});

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prompt {
    bytes: Vec<u8>,
    seed: u64,
}

/// The hashes of the full blocks of prompt and reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) prompt: Vec<u64>,
    pub(crate) output: Vec<u64>,
}

impl Prompt {
    /// `salt` (model, `cache_salt`) separates caches: nothing is shared between different salts.
    pub(crate) fn new(bytes: Vec<u8>, salt: &[&str]) -> Self {
        let seed = salt.iter().fold(0, |seed, part| xxh3_64_with_seed(part.as_bytes(), seed + 1));
        Self { bytes, seed }
    }

    /// The rendered text.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length in tokens, at least 1.
    pub(crate) fn tokens(&self) -> u64 {
        self.bytes.len().div_ceil(TOKEN_BYTES).max(1) as u64
    }

    /// A number that depends on all of it.
    pub(crate) fn hash(&self) -> u64 {
        xxh3_64_with_seed(&self.bytes, self.seed)
    }

    /// The hashes of the full blocks, `block_tokens` each, of this prompt and then `reply`.
    pub(crate) fn blocks(&self, reply: &Reply, block_tokens: u64) -> Blocks {
        let block = usize::try_from(block_tokens).unwrap_or(usize::MAX).saturating_mul(TOKEN_BYTES).max(TOKEN_BYTES);
        let whole = self.bytes.len() / block * block;
        let mut chain = self.seed;
        let mut link = |bytes: &[u8]| {
            chain = xxh3_64_with_seed(bytes, chain);
            chain
        };
        let prompt = self.bytes[..whole].chunks_exact(block).map(&mut link).collect();
        let mut tail = self.bytes[whole..].to_vec();
        reply.write(0, reply.tokens, &mut tail);
        let output = tail.chunks_exact(block).map(&mut link).collect();
        Blocks { prompt, output }
    }
}

/// The text of a reply: any range of tokens, without generating those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    offset: usize,
    pub(crate) tokens: u64,
}

impl Reply {
    /// The reply of so many tokens to the prompt with this hash.
    pub(crate) fn new(prompt_hash: u64, tokens: u64) -> Self {
        Self { offset: (prompt_hash % FILLER_TOKENS as u64) as usize, tokens }
    }

    /// A number below 4,096 that depends on the prompt.
    pub(crate) fn seed(&self) -> u64 {
        self.offset as u64
    }

    /// Appends the text of `count` tokens from `from`: ASCII, safe in JSON strings, 4 bytes each.
    pub(crate) fn write(&self, from: u64, count: u64, out: &mut Vec<u8>) {
        let mut at = (self.offset + (from % FILLER_TOKENS as u64) as usize) % FILLER_TOKENS;
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        while left > 0 {
            let run = left.min(FILLER_TOKENS - at);
            out.extend_from_slice(&FILLER.as_bytes()[at * TOKEN_BYTES..(at + run) * TOKEN_BYTES]);
            left -= run;
            at = 0;
        }
    }
}

/// Where a model left to itself would stop: drawn from the prompt, exponentially distributed, at least 1.
pub(crate) fn natural_length(prompt_hash: u64, mean_tokens: f64) -> u64 {
    let uniform = (xxh3_64_with_seed(&prompt_hash.to_le_bytes(), 2) >> 11) as f64 / (1u64 << 53) as f64;
    // A geometric variable with this mean: 1 plus an exponential one, rounded down.
    let rate = if mean_tokens > 1.0 { -(1.0 - 1.0 / mean_tokens).ln() } else { f64::INFINITY };
    1 + (-(1.0 - uniform).ln() / rate) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_turn_contains_the_blocks_of_the_turn_before() {
        let first = Prompt::new(vec![b'a'; 333], &["model"]);
        let reply = Reply::new(first.hash(), 100);
        let blocks = first.blocks(&reply, 16);
        assert_eq!((blocks.prompt.len(), blocks.output.len()), (5, 6));
        let mut next = vec![b'a'; 333];
        reply.write(0, 100, &mut next);
        next.extend_from_slice(b"and then?");
        let next = Prompt::new(next, &["model"]);
        let known = [blocks.prompt, blocks.output].concat();
        assert_eq!(next.blocks(&Reply::new(0, 1), 16).prompt, known);
        let other = Prompt::new(vec![b'a'; 333], &["model", "salt"]);
        assert_ne!(other.blocks(&reply, 16).prompt[0], known[0]);
    }

    #[test]
    fn a_reply_is_the_same_in_pieces() {
        let reply = Reply::new(12_345, 9_000);
        let mut whole = Vec::new();
        reply.write(0, 9_000, &mut whole);
        assert_eq!(whole.len(), 36_000);
        let mut pieces = Vec::new();
        for from in (0..9_000).step_by(7) {
            reply.write(from, 7.min(9_000 - from), &mut pieces);
        }
        assert_eq!(whole, pieces);
        assert!(whole.iter().all(|byte| byte.is_ascii_alphabetic() || *byte == b' '));
    }

    #[test]
    fn natural_lengths_have_the_mean() {
        for mean in [1.0, 8.0, 64.0] {
            let sum: u64 = (0..20_000).map(|n| natural_length(n, mean)).sum();
            let measured = sum as f64 / 20_000.0;
            assert!((measured / mean - 1.0).abs() < 0.03, "{measured} for {mean}");
        }
    }
}
