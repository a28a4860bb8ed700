//! Is it UTF-8? Faster than the standard library for text beyond ASCII, which looks at each character in turn.
//!
//! Each byte is judged by itself and the three before it (RFC 3629): it continues a character exactly when one of them
//! says so, it is not below or above what the first byte of its character allows, and it is no byte that UTF-8 does not
//! have. That has no branches, so 16 bytes are judged at once.

const BLOCK: usize = 64;

/// The length of some prefix that is valid and ends between two characters; `bytes` begin with one. Not the longest: what
/// comes after it is for a slower judge.
pub(super) fn valid_prefix(bytes: &[u8]) -> usize {
    let Some(first) = bytes.first_chunk::<BLOCK>() else { return 0 };
    let mut window = [0; BLOCK + 3];
    for (to, from) in window.iter_mut().skip(3).zip(first) {
        *to = *from;
    }
    if !is_valid(&window) {
        return 0;
    }
    let mut end = BLOCK;
    while let Some(window) = bytes.get(end - 3..).and_then(|rest| rest.first_chunk()) {
        if !is_valid(window) {
            break;
        }
        end += BLOCK;
    }
    // The last character may go on.
    match bytes.get(end - 3..end) {
        Some([_, _, 0xC0..=0xFF]) => end - 1,
        Some([_, 0xE0..=0xFF, _]) => end - 2,
        Some([0xF0..=0xFF, _, _]) => end - 3,
        _ => end,
    }
}

/// Whether all but the first three bytes are as these and each other allow.
#[expect(clippy::indexing_slicing, reason = "the bounds are constant; iterators keep this from becoming vector code")]
fn is_valid(window: &[u8; BLOCK + 3]) -> bool {
    let mut wrong = 0;
    for nth in 0..BLOCK {
        let (third, second, first, byte) = (window[nth], window[nth + 1], window[nth + 2], window[nth + 3]);
        let due = u8::from(first >= 0xC0) | u8::from(second >= 0xE0) | u8::from(third >= 0xF0);
        wrong |= due ^ u8::from(byte & 0xC0 == 0x80);
        // Overlong forms, surrogates, and what lies beyond the last character.
        wrong |= u8::from(first == 0xE0) & u8::from(byte < 0xA0);
        wrong |= u8::from(first == 0xED) & u8::from(byte >= 0xA0);
        wrong |= u8::from(first == 0xF0) & u8::from(byte < 0x90);
        wrong |= u8::from(first == 0xF4) & u8::from(byte >= 0x90);
        wrong |= u8::from(byte & 0xFE == 0xC0) | u8::from(byte >= 0xF5);
    }
    wrong == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_beginning_of_a_character_is_judged_right() {
        // All pairs of bytes with what may follow, across the boundary of two blocks.
        for first in 0x80..=255u8 {
            for second in 0..=255u8 {
                for tail in [&[][..], &[0x80], &[0xBF, 0x80], &[0x80, 0x80, 0x80]] {
                    for before in [61, 62, 63, 64] {
                        let mut text = vec![b'a'; before];
                        text.extend_from_slice(&[first, second]);
                        text.extend_from_slice(tail);
                        text.resize(192, b'a');
                        let judged = valid_prefix(&text);
                        assert_eq!(judged == 192, std::str::from_utf8(&text).is_ok(), "{first:x} {second:x} {tail:x?}");
                        assert!(std::str::from_utf8(&text[..judged]).is_ok());
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_prefix_is_valid_and_hardly_shorter(text in "[a\u{e9}\u{4e2d}\u{1F600}]{0,120}", at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let bytes = text.as_bytes();
            let fine = valid_prefix(bytes);
            prop_assert!(text.is_char_boundary(fine) && bytes.len() - fine < BLOCK + 3);
            let mut broken = bytes.to_vec();
            if let Some(place) = broken.get_mut(at.index(bytes.len().max(1))) {
                *place = byte;
            }
            prop_assert!(std::str::from_utf8(&broken[..valid_prefix(&broken)]).is_ok());
        }
    }
}
