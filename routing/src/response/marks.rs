//! The quick look that tells whether an event is worth reading.
//!
//! A mark is a key with its closing quote, followed by anything but `null`. Inside generated text a quote is always escaped
//! (`\"usage\"`), so text cannot contain one; a string that consists of a key alone can, and is then read for nothing.
//!
//! Cost: one vectorised search for quotes behind the last letters of marks, and a look at what is before each.

use crate::json::simd::Block;

/// Whether the event may hold a usage, an error or a reason to stop; when events are `typed`, also a whole response.
pub(super) fn any(data: &[u8], typed: bool) -> bool {
    quotes(data, *b"ern").any(|(before, after)| {
        let is_mark = match before.last() {
            Some(b'e') => before.ends_with(b"\"usage") || (typed && before.ends_with(b"\"response")),
            Some(b'r') => before.ends_with(b"\"error"),
            // `finish_reason` and `stop_reason`.
            Some(b'n') => before.ends_with(b"_reason"),
            _ => false,
        };
        is_mark && is_set(after)
    })
}

/// Whether an event of a typed stream is a delta.
pub(super) fn delta(data: &[u8]) -> bool {
    quotes(data, *b"aaa").any(|(before, _)| before.ends_with(b"delta"))
}

/// What is before and after each quote that stands behind one of these letters.
fn quotes(data: &[u8], letters: [u8; 3]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let (mut from, mut behind, mut found) = (0, 0, 0u64);
    let mut next = 0;
    std::iter::from_fn(move || {
        while found == 0 {
            from = next;
            let rest = data.get(from..).filter(|rest| !rest.is_empty())?;
            let mut padded;
            let block = match rest.first_chunk::<64>() {
                Some(block) => block,
                None => {
                    padded = [0; 64];
                    padded.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                    &padded
                }
            };
            let block = Block::new(block);
            let ends = letters.iter().fold(0, |ends, letter| ends | block.is(*letter));
            found = block.is(b'"') & (ends << 1 | behind);
            behind = ends >> 63;
            next = from + 64;
        }
        let at = from + found.trailing_zeros() as usize;
        found &= found - 1;
        Some((data.get(..at)?, data.get(at + 1..)?))
    })
}

/// Whether something other than `: null` follows a key.
fn is_set(after: &[u8]) -> bool {
    let Some(value) = after.trim_ascii_start().strip_prefix(b":") else { return true };
    !value.trim_ascii_start().starts_with(b"null")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert_eq, proptest};

    #[test]
    fn a_mark_is_a_key_with_a_value() {
        assert!(any(br#"{"usage":{"prompt_tokens":1}}"#, false) && any(b"{\"usage\" :\n{}}", false));
        assert!(any(br#"{"usage":null,"x":{"usage": {}}}"#, false));
        assert!(!any(br#"{"usage":null,"error": null,"finish_reason" : null,"stop_reason":null}"#, true));
        assert!(any(br#"{"finish_reason":"stop","stop_reason":null}"#, false));
        assert!(any(br#"{"type":"error"}"#, true));
        assert!(!any(br#"{"content":"\"usage\": {\"error\": 1, \"finish_reason\": \"stop\""}"#, true));
        assert!(any(br#"{"response":{}}"#, true) && !any(br#"{"response":{}}"#, false));
    }

    #[test]
    fn a_mark_is_found_wherever_it_stands() {
        for before in 0..200 {
            for key in ["usage", "error", "finish_reason"] {
                let text = format!("{{{}\"{key}\":1}}", " ".repeat(before));
                assert!(any(text.as_bytes(), false), "{text}");
                let (cut, _) = text.rsplit_once('"').unwrap();
                assert!(!any(cut.as_bytes(), true), "{cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn quotes_are_those_behind_the_letters(text in "[ern\"x]{0,200}") {
            let data = text.as_bytes();
            let slowly = (1..data.len()).filter(|at| data[*at] == b'"' && b"ern".contains(&data[at - 1]));
            let found = quotes(data, *b"ern").map(|(before, after)| {
                assert_eq!(before.len() + 1 + after.len(), data.len());
                before.len()
            });
            prop_assert_eq!(found.collect::<Vec<_>>(), slowly.collect::<Vec<_>>());
        }
    }

    #[test]
    fn deltas_are_told_by_their_type() {
        assert!(delta(br#"{"delta":"x","type":"response.output_text.delta"}"#));
        assert!(!delta(br#"{"type":"content_block_stop","index":0}"#));
    }
}
