//! Mooncake traces (Qin et al., FAST'25): one JSON object per line, `timestamp` in ms, `input_length` and `output_length` in
//! tokens, `hash_ids` of the prompt's blocks of 512 tokens, where equal leading ids are a shared prefix.
//!
//! A trace does not say where messages end; a checkpoint is assumed at the end of every block, up to what the filter
//! hashes. It does not identify answers either, so an answer is in no cache until the next turn has been computed; and it
//! does not name conversations: a request that repeats the whole of an earlier one, in full blocks, is taken to be its next
//! turn.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use engine_sim::model::{Nanos, nanos};
use serde::Deserialize;
use weighbridge_routing::prefix::index::Prefix;

use super::{BLOCK_TOKENS, Call, PREFIX_TOKENS, Replay, mix};

/// Tokens of a block of the trace.
const TRACE_BLOCK_TOKENS: u64 = 512;

#[derive(Debug, Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// Reads a trace, at most `limit` requests.
///
/// # Errors
/// Names the line that cannot be read.
pub fn read(path: &Path, limit: usize) -> anyhow::Result<Replay> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut seen = Seen::new();
    let mut calls: Vec<(Nanos, Call)> = Vec::new();
    for (nth, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(limit) {
        let line: Line = serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), nth + 1))?;
        let at = nanos(line.timestamp / 1e3);
        calls.push((at, call(nth as u64, &line, &mut seen)));
    }
    calls.sort_by_key(|(at, _)| *at);
    Ok(Replay::new(calls))
}

/// The beginnings that have been seen, with the conversation of which one is the whole last prompt.
type Seen = HashMap<u64, Option<u64>>;

/// A prompt of fewer blocks is no conversation: everybody's system prompt may be as long.
const LEAST_BLOCKS: usize = 2;

fn call(nth: u64, line: &Line, seen: &mut Seen) -> Call {
    let mut chain = 0;
    let chains: Vec<u64> = line
        .hash_ids
        .iter()
        .map(|id| {
            chain = mix(chain, *id);
            chain
        })
        .collect();
    let parts = TRACE_BLOCK_TOKENS / BLOCK_TOKENS;
    let prompt_tokens = line.input_length.max(1);
    let full = (prompt_tokens / BLOCK_TOKENS) as usize;
    let blocks = chains.iter().flat_map(|chain| (0..parts).map(move |part| mix(*chain, part))).take(full).collect();
    let whole = &chains[..chains.len().min((prompt_tokens / TRACE_BLOCK_TOKENS) as usize)];
    let ends = whole.iter().zip(1..).map(|(chain, nth)| Prefix { hash: *chain, tokens: nth * TRACE_BLOCK_TOKENS });
    let known = whole.iter().take_while(|chain| seen.contains_key(chain)).count();
    let goes_on = whole[..known].iter().rev().find_map(|chain| seen.get(chain).copied().flatten());
    let conversation = goes_on.unwrap_or(nth);
    whole.iter().for_each(|chain| _ = seen.entry(*chain).or_default());
    if let Some(last) = whole.last().filter(|_| whole.len() >= LEAST_BLOCKS) {
        seen.insert(*last, Some(conversation));
    }
    Call {
        conversation,
        prompt_tokens,
        output_tokens: line.output_length.max(1),
        blocks,
        output_blocks: Vec::new(),
        prefixes: ends.take_while(|prefix| prefix.tokens <= PREFIX_TOKENS).collect(),
        first: chains.first().copied().unwrap_or_default(),
        known_tokens: known as u64 * TRACE_BLOCK_TOKENS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn leading_ids_are_shared_prefixes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl");
        let lines = [
            r#"{"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 3]}"#,
            r#"{"timestamp": 3000, "input_length": 1600, "output_length": 9, "hash_ids": [1, 2, 4, 5]}"#,
            r#"{"timestamp": 6000, "input_length": 600, "output_length": 0, "hash_ids": [2, 4]}"#,
        ];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let mut replay = read(&path, 10).unwrap();
        assert_eq!((replay.len(), replay.longest(), replay.median_output()), (3, 1_609, 7));
        let calls: Vec<(Nanos, Call)> = std::iter::from_fn(|| Some((replay.next_at()?, replay.take()?))).collect();
        let [(first_at, first), (second_at, second), (_, third)] = &calls[..] else { panic!("three") };
        assert_eq!((*first_at, *second_at), (0, 3_000_000_000));
        assert_eq!((first.blocks.len(), second.blocks.len()), (68, 100));
        assert_eq!(first.blocks[..64], second.blocks[..64]);
        assert_ne!(first.blocks[64], second.blocks[64]);
        assert_eq!((second.known_tokens, third.known_tokens, third.output_tokens), (1_024, 0, 1));
        assert_eq!((first.conversation, second.conversation, third.conversation), (0, 0, 2));
        assert_eq!(second.prefixes[..2], first.prefixes[..]);
        assert_ne!(third.blocks[0], first.blocks[32], "the same block after another beginning");
        assert_eq!(read(&path, 2).unwrap().len(), 2);
        std::fs::write(&path, "{}").unwrap();
        assert!(read(&path, 2).unwrap_err().to_string().ends_with("trace.jsonl:1"));
    }
}
