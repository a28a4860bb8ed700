//! The quick look that tells whether an event is worth reading.
//!
//! A mark is a key with its closing quote, followed by anything but `null`. Inside generated text a quote is always escaped
//! (`\"usage\"`), so text cannot contain one; a string that consists of a key alone can, and is then read for nothing.
//!
//! Cost: three vectorised searches over the event, four when events are typed.

use std::sync::LazyLock;

use memchr::memmem::{Finder, FinderRev};

struct Finders {
    usage: Finder<'static>,
    error: Finder<'static>,
    /// `finish_reason` and `stop_reason`. They stand near the end, so the search begins there.
    reason: FinderRev<'static>,
    response: Finder<'static>,
    delta: Finder<'static>,
}

static FINDERS: LazyLock<Finders> = LazyLock::new(|| Finders {
    usage: Finder::new(b"\"usage\""),
    error: Finder::new(b"\"error\""),
    reason: FinderRev::new(b"_reason\""),
    response: Finder::new(b"\"response\""),
    delta: Finder::new(b"delta\""),
});

/// Whether the event may hold a usage, an error or a reason to stop; when events are `typed`, also a whole response.
pub(super) fn any(data: &[u8], typed: bool) -> bool {
    let finders = &*FINDERS;
    let says = |finder: &Finder<'_>| {
        finder.find_iter(data).any(|at| is_set(data.get(at + finder.needle().len()..).unwrap_or_default()))
    };
    let reason = || {
        let length = finders.reason.needle().len();
        finders.reason.rfind_iter(data).any(|at| is_set(data.get(at + length..).unwrap_or_default()))
    };
    reason() || says(&finders.usage) || says(&finders.error) || (typed && says(&finders.response))
}

/// Whether an event of a typed stream is a delta.
pub(super) fn delta(data: &[u8]) -> bool {
    FINDERS.delta.find(data).is_some()
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
