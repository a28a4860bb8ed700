//! Runs of text inside a string, and what `\u` escapes become.

use super::Mode;
use super::simd::{Block, behind_backslashes, first_special};

/// Text in which nothing has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// How many bytes it has.
    pub(super) length: usize,
    /// Whether no byte is above 127. May be false when the run is, in fact, ASCII.
    pub(super) ascii: bool,
}

/// Escapes in a block of 64 bytes that are looked at one by one: prose has a line end now and then, code an escape every few
/// bytes.
const FEW: u32 = 3;

/// Of a [`word`], in 16 bytes: an id has about 40.
const WORD_CHUNKS: usize = 4;

/// The run at the start of `bytes`: up to a quote, a control character, or an escape that `mode` has to see. Where no
/// text is wanted, or raw text, the escapes of one letter belong to the run, so a prompt full of `\n` is still one.
pub(super) fn run(bytes: &[u8], mode: Mode) -> Run {
    // `letter_ahead`: the block begins with the letter of an escape, which passes.
    let (mut at, mut ascii, mut letter_ahead) = (0, true, false);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        // Most blocks have nothing to look at; the first decides by itself whether the letter of an escape is one.
        if !letter_ahead {
            let (blocks, _) = rest.as_chunks::<64>();
            at += 64 * blocks.iter().take_while(|block| Block::new(block).is_plain()).count();
        }
        let rest = bytes.get(at..).unwrap_or_default();
        if rest.is_empty() {
            return Run { length: at, ascii };
        }
        let mut padded;
        let (block, is_whole) = match rest.first_chunk::<64>() {
            Some(block) => (block, true),
            None => {
                padded = [b'"'; 64];
                for (to, from) in padded.iter_mut().zip(rest) {
                    *to = *from;
                }
                (&padded, false)
            }
        };
        let block = Block::new(block);
        ascii &= !block.is_high();
        let mut stops = block.stops() & !u64::from(letter_ahead);
        let mut stretch = Stretch { length: 64, letter_ahead: false, ascii, ended: false };
        let mut looked_at = 0;
        while stops != 0 {
            if looked_at == FEW && is_whole {
                stretch = many(rest, mode, Stretch { length: 0, letter_ahead, ..stretch });
                break;
            }
            looked_at += 1;
            let place = stops.trailing_zeros() as usize;
            match rest.get(place..) {
                Some([b'\\', letter, ..]) if passes(*letter, mode) => {
                    stretch.letter_ahead = place == 63;
                    // The backslash and its letter, which may be a stop by itself.
                    stops &= !(3 << place);
                }
                _ => return Run { length: at + place.min(rest.len()), ascii },
            }
        }
        at += stretch.length;
        (letter_ahead, ascii) = (stretch.letter_ahead, stretch.ascii);
        if stretch.ended {
            return Run { length: at, ascii };
        }
    }
}

/// What stands before the quote that ends a text, where that comes soon and everything before it is ASCII without escapes.
pub(super) fn word(bytes: &[u8]) -> Option<&[u8]> {
    let (chunks, _) = bytes.as_chunks::<16>();
    for (nth, chunk) in chunks.iter().take(WORD_CHUNKS).enumerate() {
        let at = first_special(chunk);
        if at < 16 {
            let (word, after) = bytes.split_at_checked(16 * nth + at)?;
            return (after.first() == Some(&b'"')).then_some(word);
        }
    }
    None
}

/// Part of a run.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    length: usize,
    /// The letter of an escape comes next, and it passes.
    letter_ahead: bool,
    ascii: bool,
    /// The run ends here.
    ended: bool,
}

/// Takes whole blocks of 64 bytes, each at once, as long as they have many escapes; `from` has no length yet.
///
/// A function of its own: inlined, its vectors would be kept at hand for every block that has hardly any.
#[inline(never)]
fn many(bytes: &[u8], mode: Mode, from: Stretch) -> Stretch {
    let (mut ascii, mut behind) = (from.ascii, u64::from(from.letter_ahead));
    let (blocks, _) = bytes.as_chunks::<64>();
    let mut length = 0;
    for block in blocks {
        let block = Block::new(block);
        ascii &= !block.is_high();
        let backslashes = block.backslashes();
        let escaped = behind_backslashes(backslashes, &mut behind);
        let letters = if mode == Mode::Skip { block.letters() | block.slashes() } else { block.letters() };
        let (ends, wrong) = (block.ends() & !escaped, escaped & !letters);
        if ends | wrong != 0 {
            // An escape that does not pass begins one before its letter, which may be in the block before.
            let place = (ends.trailing_zeros() as usize + 1).min(wrong.trailing_zeros() as usize);
            return Stretch { length: (length + place).saturating_sub(1), letter_ahead: false, ascii, ended: true };
        }
        length += 64;
        if backslashes.count_ones() <= FEW {
            break;
        }
    }
    let letter_ahead = behind == 1;
    if letter_ahead && !bytes.get(length).is_some_and(|letter| passes(*letter, mode)) {
        return Stretch { length: length - 1, letter_ahead: false, ascii, ended: true };
    }
    Stretch { length, letter_ahead, ascii, ended: false }
}

/// Whether an escape of this letter belongs to a run.
fn passes(letter: u8, mode: Mode) -> bool {
    match mode {
        Mode::Decoded => false,
        Mode::Raw => matches!(letter, b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't'),
        Mode::Skip => matches!(letter, b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't' | b'/'),
    }
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
        fn a_word_is_what_a_slow_reader_takes_for_one(bytes in proptest::collection::vec(prop_oneof![4 => 32u8..128, 1 => Just(b'"'), 1 => any::<u8>()], 0..90)) {
            let length = bytes.iter().position(|byte| !byte.is_ascii() || matches!(byte, b'"' | b'\\' | 0..0x20));
            let length = length.filter(|length| *length < (bytes.len() & !15).min(64) && bytes[*length] == b'"');
            prop_assert_eq!(word(&bytes), length.map(|length| &bytes[..length]));
        }

        #[test]
        fn a_run_ends_where_a_slow_reader_ends(text in "([a-z\u{e9}]{1,70}|\\\\|n|\"|\\\\\"|\n|u){0,12}", at in 0usize..9) {
            for mode in [Mode::Skip, Mode::Raw, Mode::Decoded] {
                let bytes = text.as_bytes().get(at..).unwrap_or_default();
                let found = run(bytes, mode);
                prop_assert_eq!(found.length, slowly(bytes, mode));
                prop_assert!(!found.ascii || bytes[..found.length].is_ascii());
            }
        }

        #[test]
        fn and_among_many_escapes(
            text in r#"([a-z\u{e9}]{1,6}|\\["\\nt]){0,120}(\\[u/x]|"|\n|\\)?([a-z]{1,6}|\\["\\nt]){0,60}"#, at in 0usize..70
        ) {
            for mode in [Mode::Skip, Mode::Raw, Mode::Decoded] {
                let bytes = text.as_bytes().get(at..).unwrap_or_default();
                let found = run(bytes, mode);
                prop_assert_eq!(found.length, slowly(bytes, mode));
                prop_assert!(!found.ascii || bytes[..found.length].is_ascii());
            }
        }
    }
}
