//! Runs of text inside a string, and what `\u` escapes become.

use super::Mode;
use super::simd::{Block, Stops, behind_backslashes};

/// Text in which nothing has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// How many bytes it has.
    pub(super) length: usize,
    /// Whether no byte is above 127. May be false when the run is, in fact, ASCII.
    pub(super) ascii: bool,
}

/// The run at the start of `bytes`: up to a quote, a control character, or an escape that `mode` has to see. Where no
/// text is wanted, or raw text, the escapes of one letter belong to the run, so a prompt full of `\n` is still one, and costs
/// hardly more than one without: no escape is looked at by itself.
pub(super) fn run(bytes: &[u8], mode: Mode) -> Run {
    // 1 when a backslash ends what is before `at`, and its letter comes next.
    let mut behind = 0;
    let (mut at, mut ascii) = (0, true);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        if rest.is_empty() {
            return Run { length: at - behind as usize, ascii };
        }
        let mut padded;
        let block = match rest.first_chunk::<64>() {
            Some(block) => block,
            None => {
                // What follows the text ends it, and is no letter for a backslash.
                padded = [0; 64];
                for (to, from) in padded.iter_mut().zip(rest) {
                    *to = *from;
                }
                &padded
            }
        };
        let block = Block::new(block);
        ascii &= !block.is_high();
        let end = match block.stops() {
            None if behind == 0 => None,
            stops => first_stop(&block, stops.unwrap_or_default(), mode, &mut behind),
        };
        if let Some(end) = end {
            return Run { length: (at + end).saturating_sub(1).min(bytes.len()), ascii };
        }
        at += 64;
    }
}

/// One more than the place of the first byte that does not belong to a run; 0 when that is the last of the block before,
/// a backslash whose letter does not pass.
#[inline]
fn first_stop(block: &Block, stops: Stops, mode: Mode, behind: &mut u64) -> Option<usize> {
    let Stops { ends, backslashes } = stops;
    let (end, backslash) = (ends.trailing_zeros(), backslashes.trailing_zeros());
    // Most strings are short, and end before any escape.
    if *behind == 0 && (end < backslash || mode == Mode::Decoded) {
        return (ends | backslashes != 0).then_some(end.min(backslash) as usize + 1);
    }
    let escaped = behind_backslashes(backslashes, behind);
    let mut letters = block.letters();
    if mode == Mode::Skip {
        letters |= block.slashes();
    }
    let (ends, wrong) = (ends & !escaped, escaped & !letters);
    // An escape that does not pass begins one before its letter.
    let first = (ends.trailing_zeros() as usize + 1).min(wrong.trailing_zeros() as usize);
    (ends | wrong != 0).then_some(first)
}

/// What the letter after a backslash stands for, when it is one letter.
pub(super) fn escaped(letter: u8) -> Option<char> {
    Some(match letter {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        _ => return None,
    })
}

/// The letter that stands for a character after a backslash, where canonical raw text has it that way.
fn letter(character: char) -> Option<u8> {
    Some(match character {
        '"' => b'"',
        '\\' => b'\\',
        '\u{8}' => b'b',
        '\u{c}' => b'f',
        '\n' => b'n',
        '\r' => b'r',
        '\t' => b't',
        _ => return None,
    })
}

/// The value of a hexadecimal digit.
pub(super) fn hex(byte: u8) -> Option<u16> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        _ => return None,
    };
    Some(digit.into())
}

/// Four hexadecimal digits.
pub(super) fn hex4(digits: &[u8; 4]) -> Option<u16> {
    digits.iter().try_fold(0, |code, digit| Some(code << 4 | hex(*digit)?))
}

/// Characters that came as escapes, gathered so that the sink hears of them in batches.
#[derive(Debug)]
pub(super) struct Batch<const N: usize> {
    bytes: [u8; N],
    length: usize,
    /// How many bytes of the JSON text they stand for.
    source: usize,
}

impl<const N: usize> Batch<N> {
    pub(super) fn new() -> Self {
        Batch { bytes: [0; N], length: 0, source: 0 }
    }

    /// Adds a character that was `source` bytes of JSON; false when the batch has to be taken first. All bytes of a batch
    /// stand for the same number of bytes of JSON, so that a sink may divide it.
    #[must_use]
    pub(super) fn push(&mut self, character: char, mode: Mode, source: usize) -> bool {
        let length = if mode == Mode::Raw && letter(character).is_some() { 2 } else { character.len_utf8() };
        if self.length > 0 && self.source * length != source * self.length {
            return false;
        }
        let Some(room) = self.bytes.get_mut(self.length..).filter(|room| room.len() >= 4) else { return false };
        match (letter(character).filter(|_| mode == Mode::Raw), &mut *room) {
            (Some(letter), [first, second, ..]) => (*first, *second) = (b'\\', letter),
            _ => {
                character.encode_utf8(room);
            }
        }
        self.length += length;
        self.source += source;
        true
    }

    /// What has been gathered, and how many bytes of JSON it was; empties the batch.
    pub(super) fn take(&mut self) -> (&[u8], usize) {
        let taken = (self.bytes.get(..self.length).unwrap_or_default(), self.source);
        (self.length, self.source) = (0, 0);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn passes(letter: u8, mode: Mode) -> bool {
        match mode {
            Mode::Decoded => false,
            Mode::Raw => matches!(letter, b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't'),
            Mode::Skip => matches!(letter, b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' | b'/'),
        }
    }

    fn slowly(bytes: &[u8], mode: Mode) -> usize {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'\\' if bytes.get(at + 1).is_some_and(|letter| passes(*letter, mode)) => at += 2,
                b'"' | b'\\' | 0..0x20 => break,
                _ => at += 1,
            }
        }
        at
    }

    proptest! {
        #[test]
        fn a_run_ends_where_a_slow_reader_ends(text in "([a-z\u{e9}]{1,70}|\\\\|n|\"|\\\\\"|\n|u){0,12}", at in 0usize..9) {
            for mode in [Mode::Skip, Mode::Raw, Mode::Decoded] {
                let bytes = text.as_bytes().get(at..).unwrap_or_default();
                let found = run(bytes, mode);
                prop_assert_eq!(found.length, slowly(bytes, mode));
                prop_assert!(!found.ascii || bytes[..found.length].is_ascii());
            }
        }
    }
}
