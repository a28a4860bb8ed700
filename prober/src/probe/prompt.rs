//! A long prompt that nobody's prefix cache holds: common words in random order, from the first one on.
//!
//! The words are short and frequent, so tokenizers have a token for each, and with its space a word is four bytes: the
//! usual measure of a token. How many tokens they really are is for the engine to say. Six random bits a word make two
//! prompts differ within the first few, hence in the first block of any cache.

use std::net::SocketAddr;

use weighbridge_routing::rng::SplitMix64;

/// Bytes of a word with its space.
const WORD: usize = 4;

#[rustfmt::skip]
const WORDS: [&str; 64] = [
    "act", "add", "age", "air", "all", "and", "any", "are", "arm", "art", "ask", "bad", "bag", "bed", "big", "box",
    "boy", "bus", "but", "buy", "car", "cat", "cut", "day", "dog", "dry", "ear", "eat", "end", "eye", "far", "few",
    "fit", "fly", "for", "fun", "get", "hat", "her", "him", "hot", "how", "ice", "job", "key", "law", "leg", "let",
    "man", "map", "new", "now", "old", "one", "our", "out", "own", "pay", "red", "run", "sea", "sun", "top", "way",
];

/// About `tokens` tokens, which differ between rounds and between engines.
pub(super) fn long(tokens: u32, round: u64, engine: SocketAddr) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut seed = DefaultHasher::new();
    (round, engine).hash(&mut seed);
    let mut random = SplitMix64::seeded(seed.finish());
    let mut prompt = String::with_capacity(tokens as usize * WORD);
    for _ in 0..tokens {
        prompt.push_str(WORDS.get(random.below(WORDS.len() as u64) as usize).unwrap_or(&"and"));
        prompt.push(' ');
    }
    prompt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_as_long_as_asked_and_differ_from_the_first_words_on() {
        let engines: [SocketAddr; 2] = ["10.0.0.1:80".parse().unwrap(), "10.0.0.2:80".parse().unwrap()];
        let prompts: Vec<String> = (0..50).flat_map(|round| engines.map(|engine| long(8192, round, engine))).collect();
        assert!(prompts.iter().all(|prompt| prompt.len() == 4 * 8192));
        // A block of sixteen tokens, some of which a chat template may have taken.
        let starts: std::collections::HashSet<&str> = prompts.iter().map(|prompt| &prompt[..8 * WORD]).collect();
        assert_eq!(starts.len(), prompts.len());
        assert_eq!(long(100, 7, engines[0]), long(100, 7, engines[0]));
    }
}
