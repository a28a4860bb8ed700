//! The quick look that tells whether an event is worth reading.
//!
//! A mark is a key with its closing quote, followed by anything but `null`. Inside generated text a quote is always escaped
//! (`\"usage\"`), so text cannot contain one; a string that consists of a key alone can, and is then read for nothing.
//!
//! Cost: one vectorised search for quotes, and a look at the byte before each.

use memchr::memchr_iter;

/// Whether the event may hold a usage, an error or a reason to stop; when events are `typed`, also a whole response.
pub(super) fn any(data: &[u8], typed: bool) -> bool {
    quotes(data).any(|(before, after)| {
        // The last letter leaves few to compare.
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
    quotes(data).any(|(before, _)| before.ends_with(b"delta"))
}

/// What is before and after each quote.
fn quotes(data: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    memchr_iter(b'"', data).filter_map(|at| Some((data.get(..at)?, data.get(at + 1..)?)))
}

/// Whether something other than `: null` follows a key.
fn is_set(after: &[u8]) -> bool {
    let Some(value) = after.trim_ascii_start().strip_prefix(b":") else { return true };
    !value.trim_ascii_start().starts_with(b"null")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn deltas_are_told_by_their_type() {
        assert!(delta(br#"{"delta":"x","type":"response.output_text.delta"}"#));
        assert!(!delta(br#"{"type":"content_block_stop","index":0}"#));
    }
}
