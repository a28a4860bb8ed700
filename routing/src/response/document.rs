//! One JSON document that arrives in pieces.
//!
//! Arrays of numbers that nobody asks for are not worth checking number by number: an answer with embeddings consists of
//! megabytes of them. The scanner is shown such an array without its numbers, which are skipped 64 bytes at a time.

use super::reading::Reading;
use crate::json::Scanner;

/// Reads a document.
#[derive(Debug, Default)]
pub(super) struct Document {
    scanner: Scanner,
    reading: Reading,
    broken: bool,
    /// In an array of no interest, at its beginning or behind one of its numbers.
    skipping: bool,
}

impl Document {
    /// Takes the next piece.
    pub(super) fn feed(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while !rest.is_empty() && !self.broken {
            if self.skipping {
                rest = rest.get(numbers(rest)..).unwrap_or_default();
                if rest.is_empty() {
                    return;
                }
                self.skipping = false;
            }
            match self.scanner.feed_some(rest, &mut self.reading) {
                Ok(took) => rest = rest.get(took..).unwrap_or_default(),
                Err(_) => self.broken = true,
            }
            self.skipping = std::mem::take(&mut self.reading.in_fresh_array);
        }
    }

    /// It cannot be JSON.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Something generated has been seen.
    pub(super) fn has_content(&self) -> bool {
        self.reading.content
    }

    /// It has come to its end.
    pub(super) fn is_whole(&self) -> bool {
        !self.broken && self.scanner.is_done()
    }

    /// What it said, if it was JSON to its end.
    pub(super) fn finish(mut self) -> Option<Reading> {
        let complete = !self.broken && self.scanner.finish(&mut self.reading).is_ok();
        complete.then_some(self.reading)
    }
}

/// How many bytes at the beginning can be numbers, commas and blanks.
fn numbers(bytes: &[u8]) -> usize {
    let other = |byte: &u8| (*byte > b'9' || *byte == b'"') && *byte | 0x20 != b'e';
    let (blocks, _) = bytes.as_chunks::<64>();
    // No early exit inside a block: this form becomes vector compares.
    let none = |block: &&[u8; 64]| block.iter().fold(0, |any, byte| any | u8::from(other(byte))) == 0;
    let skipped = 64 * blocks.iter().take_while(none).count();
    skipped + bytes.iter().skip(skipped).take_while(|byte| !other(byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_something_else_begins() {
        for length in [0, 1, 63, 64, 65, 200] {
            let mut text = b"0.5, -1e+3\n".iter().copied().cycle().take(length).collect::<Vec<_>>();
            assert_eq!(numbers(&text), length);
            for stop in b"][{}\"nt\xc3:" {
                text.push(*stop);
                text.extend([b'1'; 80]);
                assert_eq!(numbers(&text), length, "{stop}");
                text.truncate(length);
            }
        }
    }
}
