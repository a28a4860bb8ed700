//! The state machine.

use super::number::Number;
use super::text::{Batch, Run, escaped, hex, hex4, run, word};
use super::utf8::valid_prefix;
use super::{JsonError, Kind, MAX_DEPTH, Mode, Problem, Sink};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value must come; in a fresh array `]` may as well.
    Value {
        or_end: bool,
    },
    /// A key must come; in a fresh object `}` may as well.
    Key {
        or_end: bool,
    },
    Colon,
    /// After a value inside a container.
    CommaOrEnd,
    Text {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        digits: u8,
        code: u16,
    },
    Number(Number),
    Word {
        rest: &'static [u8],
    },
    Done,
}

/// Bytes of a batch for one escape (which may end a lone surrogate before it), and for a row of them.
const ONE: usize = 8;
const MANY: usize = 256;

/// The reader.
#[derive(Debug)]
pub struct Scanner {
    state: State,
    /// One bit per container: set for an object.
    stack: [u64; MAX_DEPTH / 64],
    depth: usize,
    offset: u64,
    /// First bytes of a character that the last piece cut.
    cut: [u8; 4],
    cut_len: usize,
    /// The first half of a surrogate pair.
    high: Option<u16>,
}

impl Default for Scanner {
    fn default() -> Self {
        Scanner {
            state: State::Value { or_end: false },
            stack: [0; MAX_DEPTH / 64],
            depth: 0,
            offset: 0,
            cut: [0; 4],
            cut_len: 0,
            high: None,
        }
    }
}

impl Scanner {
    /// Reads the next piece.
    ///
    /// # Errors
    /// When the text so far cannot be the beginning of JSON; the scanner must not be fed again.
    pub fn feed(&mut self, piece: &[u8], sink: &mut impl Sink) -> Result<(), JsonError> {
        let mut rest = piece;
        while !rest.is_empty() {
            let took = self.feed_some(rest, sink)?;
            rest = rest.get(took..).unwrap_or_default();
        }
        Ok(())
    }

    /// Reads the next piece, or as much of it as the sink wants. Returns how many bytes that is.
    ///
    /// # Errors
    /// As [`Scanner::feed`].
    pub fn feed_some(&mut self, piece: &[u8], sink: &mut impl Sink) -> Result<usize, JsonError> {
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first() {
            let took = match self.state {
                State::Text { key } => self.text(rest, key, sink)?,
                State::Number(number) => self.number(rest, number, sink)?,
                _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') && self.between_tokens() => {
                    1 + after.iter().take_while(|byte| matches!(**byte, b' ' | b'\t' | b'\n' | b'\r')).count()
                }
                _ => 1 + self.byte(byte, after, sink)?,
            };
            self.offset += took as u64;
            rest = rest.get(took..).unwrap_or_default();
            if sink.pauses() {
                break;
            }
        }
        Ok(piece.len() - rest.len())
    }

    /// Says that the text is complete.
    ///
    /// # Errors
    /// When it is not.
    pub fn finish(&mut self, sink: &mut impl Sink) -> Result<(), JsonError> {
        match self.state {
            State::Done => Ok(()),
            State::Number(number) if self.depth == 0 && number.may_end() => {
                sink.end(self.offset);
                self.state = State::Done;
                Ok(())
            }
            State::Value { .. } if self.depth == 0 => self.fail(Problem::Empty),
            _ => self.fail(Problem::Ends),
        }
    }

    /// Whether the text could end here, and nothing but blanks could follow.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    fn fail<T>(&self, problem: Problem) -> Result<T, JsonError> {
        Err(JsonError { offset: self.offset, problem })
    }

    /// A character is broken, `after` bytes from here, less those of it that came before. The place is its first byte,
    /// wherever the pieces were cut.
    fn fail_utf8(&self, after: usize) -> Result<(), JsonError> {
        let offset = (self.offset + after as u64).saturating_sub(self.cut_len as u64);
        Err(JsonError { offset, problem: Problem::Utf8 })
    }

    fn between_tokens(&self) -> bool {
        matches!(self.state, State::Value { .. } | State::Key { .. } | State::Colon | State::CommaOrEnd | State::Done)
    }

    fn after_value(&self) -> State {
        if self.depth == 0 { State::Done } else { State::CommaOrEnd }
    }

    fn in_object(&self) -> bool {
        let top = self.depth.wrapping_sub(1);
        self.stack.get(top / 64).is_some_and(|word| word >> (top % 64) & 1 == 1)
    }

    fn open(&mut self, object: bool) -> Result<(), JsonError> {
        if self.depth >= MAX_DEPTH {
            return self.fail(Problem::Depth);
        }
        if let Some(word) = self.stack.get_mut(self.depth / 64) {
            let bit = 1 << (self.depth % 64);
            *word = if object { *word | bit } else { *word & !bit };
        }
        self.depth += 1;
        self.state = if object { State::Key { or_end: true } } else { State::Value { or_end: true } };
        Ok(())
    }

    fn close(&mut self, sink: &mut impl Sink) {
        self.depth -= 1;
        self.state = self.after_value();
        sink.close(self.depth, self.offset + 1);
    }

    /// One byte of structure, of a word or of an escape. Returns how many of those after it went with it: a word in
    /// quotes, the colon behind a key, the key behind a comma.
    fn byte(&mut self, byte: u8, after: &[u8], sink: &mut impl Sink) -> Result<usize, JsonError> {
        match (self.state, byte) {
            (State::Value { or_end: true }, b']') | (State::Key { or_end: true }, b'}') => self.close(sink),
            (State::Value { .. }, _) => return self.begin(byte, after, sink),
            (State::Key { .. }, b'"') => return Ok(self.open_key(self.offset, after, sink)),
            (State::Key { or_end: true }, _) => return self.fail(Problem::Expected("a key or }")),
            (State::Key { .. }, _) => return self.fail(Problem::Expected("a key")),
            (State::Colon, b':') => self.state = State::Value { or_end: false },
            (State::Colon, _) => return self.fail(Problem::Expected(":")),
            (State::CommaOrEnd, b',') if self.in_object() => match after {
                [b'"', after @ ..] => return Ok(1 + self.open_key(self.offset + 1, after, sink)),
                _ => self.state = State::Key { or_end: false },
            },
            (State::CommaOrEnd, b',') => self.state = State::Value { or_end: false },
            (State::CommaOrEnd, b'}') if self.in_object() => self.close(sink),
            (State::CommaOrEnd, b']') if !self.in_object() => self.close(sink),
            (State::CommaOrEnd, _) if self.in_object() => return self.fail(Problem::Expected(", or }")),
            (State::CommaOrEnd, _) => return self.fail(Problem::Expected(", or ]")),
            (State::Word { rest }, _) => match rest.split_first() {
                Some((expected, rest)) if *expected == byte => {
                    self.state = if rest.is_empty() { self.after_value() } else { State::Word { rest } };
                }
                _ => return self.fail(Problem::Expected("true, false or null")),
            },
            (State::Escape { key }, _) => self.escape(byte, key, sink)?,
            (State::Hex { key, digits, code }, _) => self.hex(byte, key, digits, code, sink)?,
            (State::Done, _) => return self.fail(Problem::Trailing),
            (State::Text { .. } | State::Number(_), _) => {}
        }
        Ok(0)
    }

    /// A key whose quote is at `offset`, with `after` behind it. Returns how many bytes of that it took, its colon included.
    fn open_key(&mut self, offset: u64, after: &[u8], sink: &mut impl Sink) -> usize {
        sink.key(self.depth, offset);
        let Some(took) = quoted_word(offset, after, sink) else {
            self.state = State::Text { key: true };
            return 0;
        };
        if after.get(took) == Some(&b':') {
            self.state = State::Value { or_end: false };
            return took + 1;
        }
        self.state = State::Colon;
        took
    }

    fn begin(&mut self, byte: u8, after: &[u8], sink: &mut impl Sink) -> Result<usize, JsonError> {
        let kind = match byte {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' => Kind::Bool(true),
            b'f' => Kind::Bool(false),
            b'n' => Kind::Null,
            b'-' | b'0'..=b'9' => Kind::Number,
            0xEF if self.offset == 0 => return self.fail(Problem::Bom),
            _ => return self.fail(Problem::Expected("a value")),
        };
        sink.value(kind, self.depth, self.offset);
        match kind {
            Kind::Object => self.open(true)?,
            Kind::Array => self.open(false)?,
            Kind::String => match quoted_word(self.offset, after, sink) {
                Some(took) => {
                    self.state = self.after_value();
                    return Ok(took);
                }
                None => self.state = State::Text { key: false },
            },
            Kind::Bool(true) => return Ok(self.literal(b"rue", after)),
            Kind::Bool(false) => return Ok(self.literal(b"alse", after)),
            Kind::Null => return Ok(self.literal(b"ull", after)),
            Kind::Number => {
                sink.number(&[byte]);
                self.state = State::Number(Number::begin(byte));
            }
        }
        Ok(0)
    }

    /// The rest of `true`, `false` or `null`, at once where all of it is here. Returns how many bytes that took.
    fn literal(&mut self, rest: &'static [u8], after: &[u8]) -> usize {
        if after.starts_with(rest) {
            self.state = self.after_value();
            return rest.len();
        }
        self.state = State::Word { rest };
        0
    }

    /// The bytes of a number that are here. Returns how many.
    fn number(&mut self, rest: &[u8], mut number: Number, sink: &mut impl Sink) -> Result<usize, JsonError> {
        let mut took = 0;
        for byte in rest {
            let Some(next) = number.next(*byte) else { break };
            number = next;
            took += 1;
        }
        let (digits, after) = rest.split_at_checked(took).unwrap_or((rest, &[]));
        if !digits.is_empty() {
            sink.number(digits);
        }
        self.state = State::Number(number);
        if !after.is_empty() {
            if !number.may_end() {
                self.offset += took as u64;
                return self.fail(Problem::Expected("a digit"));
            }
            sink.end(self.offset + took as u64);
            self.state = self.after_value();
        }
        Ok(took)
    }

    /// Text up to its closing quote, an escape that the piece cuts, or the end of the piece. Returns how many bytes it
    /// took.
    fn text(&mut self, rest: &[u8], key: bool, sink: &mut impl Sink) -> Result<usize, JsonError> {
        let start = self.offset;
        let mode = sink.mode();
        let mut took = 0;
        loop {
            self.offset = start + took as u64;
            let ahead = rest.get(took..).unwrap_or_default();
            let Run { length, ascii } = run(ahead, mode);
            let (text, after) = ahead.split_at_checked(length).unwrap_or((ahead, &[]));
            if !text.is_empty() {
                self.plain(text, ascii, mode, sink)?;
            }
            took += length;
            self.offset = start + took as u64;
            if self.cut_len > 0 && !after.is_empty() {
                return self.fail_utf8(0).map(|()| took);
            }
            match after {
                [] => break,
                [b'"', ..] => {
                    self.flush_high(mode, sink);
                    took += 1;
                    sink.end(self.offset + 1);
                    self.state = if key { State::Colon } else { self.after_value() };
                    break;
                }
                [b'\\', b'u', _, _, _, _, ..] => took += self.units(after, mode, sink)?,
                [b'\\', letter, ..] if *letter != b'u' => {
                    self.offset += 1;
                    self.escape(*letter, key, sink)?;
                    took += 2;
                }
                [b'\\', ..] => {
                    took += 1;
                    self.state = State::Escape { key };
                    break;
                }
                _ => return self.fail(Problem::Control),
            }
        }
        self.offset = start;
        Ok(took)
    }

    /// Text without anything special in it, or with escapes that the sink takes as they are.
    fn plain(&mut self, text: &[u8], ascii: bool, mode: Mode, sink: &mut impl Sink) -> Result<(), JsonError> {
        self.flush_high(mode, sink);
        match mode {
            Mode::Decoded => self.utf8(text, false, |text| sink.text(text)),
            _ => {
                // Plain ASCII needs no check, and it is most of what comes.
                if !ascii || self.cut_len > 0 {
                    self.utf8(text, true, |_| {})?;
                }
                if mode == Mode::Raw {
                    sink.raw(text, text.len());
                }
                Ok(())
            }
        }
    }

    /// Checks text and hands it on, keeping back the first bytes of a character that the piece cut. With `only_check`, what
    /// is quickly found to be valid is not handed on.
    fn utf8(&mut self, mut plain: &[u8], only_check: bool, mut hand_on: impl FnMut(&str)) -> Result<(), JsonError> {
        let length = plain.len();
        while self.cut_len > 0 {
            let Some((&byte, after)) = plain.split_first() else { return Ok(()) };
            if let Some(place) = self.cut.get_mut(self.cut_len) {
                *place = byte;
                self.cut_len += 1;
            }
            plain = after;
            let cut = self.cut;
            let so_far = cut.get(..self.cut_len).unwrap_or_default();
            match std::str::from_utf8(so_far) {
                Ok(character) => {
                    hand_on(character);
                    self.cut_len = 0;
                }
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return self.fail_utf8(length - plain.len()),
            }
        }
        if only_check {
            plain = plain.get(valid_prefix(plain)..).unwrap_or_default();
        }
        match std::str::from_utf8(plain) {
            Ok(text) => {
                if !text.is_empty() {
                    hand_on(text);
                }
            }
            Err(error) if error.error_len().is_none() => {
                let (valid, tail) = plain.split_at_checked(error.valid_up_to()).unwrap_or((plain, &[]));
                if let Ok(text) = std::str::from_utf8(valid)
                    && !text.is_empty()
                {
                    hand_on(text);
                }
                for (place, byte) in self.cut.iter_mut().zip(tail) {
                    *place = *byte;
                }
                self.cut_len = tail.len();
            }
            Err(error) => {
                // What was right before it is told, as it would have been had it come alone.
                let (valid, _) = plain.split_at_checked(error.valid_up_to()).unwrap_or_default();
                if let Ok(text) = std::str::from_utf8(valid)
                    && !text.is_empty()
                {
                    hand_on(text);
                }
                return self.fail_utf8(length - plain.len() + valid.len());
            }
        }
        Ok(())
    }

    /// The letter after a backslash.
    fn escape(&mut self, letter: u8, key: bool, sink: &mut impl Sink) -> Result<(), JsonError> {
        if letter == b'u' {
            self.state = State::Hex { key, digits: 0, code: 0 };
            return Ok(());
        }
        let Some(character) = escaped(letter) else { return self.fail(Problem::Escape) };
        self.state = State::Text { key };
        let mode = sink.mode();
        self.flush_high(mode, sink);
        let mut batch = Batch::<ONE>::new();
        add(&mut batch, character, mode, 2, sink);
        hand_over(&mut batch, mode, sink);
        Ok(())
    }

    /// A digit of a `\u` escape that a piece has cut.
    fn hex(&mut self, byte: u8, key: bool, digits: u8, code: u16, sink: &mut impl Sink) -> Result<(), JsonError> {
        let Some(digit) = hex(byte) else { return self.fail(Problem::Escape) };
        let code = code << 4 | digit;
        if digits < 3 {
            self.state = State::Hex { key, digits: digits + 1, code };
            return Ok(());
        }
        self.state = State::Text { key };
        let (mode, mut batch) = (sink.mode(), Batch::<ONE>::new());
        self.unit(code, mode, &mut batch, sink);
        hand_over(&mut batch, mode, sink);
        Ok(())
    }

    /// As many `\u` escapes as stand here in one row. Returns how many bytes they take.
    fn units(&mut self, bytes: &[u8], mode: Mode, sink: &mut impl Sink) -> Result<usize, JsonError> {
        let mut batch = Batch::<MANY>::new();
        let mut took = 0;
        while let Some([b'\\', b'u', digits @ ..]) = bytes.get(took..)
            && let Some(digits) = digits.first_chunk::<4>()
        {
            let Some(code) = hex4(digits) else {
                hand_over(&mut batch, mode, sink);
                let wrong = digits.iter().take_while(|digit| digit.is_ascii_hexdigit()).count();
                self.offset += (took + 2 + wrong) as u64;
                return self.fail(Problem::Escape);
            };
            took += 6;
            if mode != Mode::Skip {
                self.unit(code, mode, &mut batch, sink);
            }
        }
        hand_over(&mut batch, mode, sink);
        Ok(took)
    }

    /// One UTF-16 unit.
    fn unit<const N: usize>(&mut self, code: u16, mode: Mode, batch: &mut Batch<N>, sink: &mut impl Sink) {
        match (self.high.take(), code) {
            (Some(high), 0xDC00..=0xDFFF) => {
                let pair = 0x10000 + ((u32::from(high) & 0x3FF) << 10 | u32::from(code) & 0x3FF);
                add(batch, char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER), mode, 12, sink);
            }
            (earlier, _) => {
                if earlier.is_some() {
                    add(batch, char::REPLACEMENT_CHARACTER, mode, 6, sink);
                }
                match code {
                    0xD800..=0xDBFF => self.high = Some(code),
                    _ => add(batch, char::from_u32(code.into()).unwrap_or(char::REPLACEMENT_CHARACTER), mode, 6, sink),
                }
            }
        }
    }

    /// A high surrogate that no low one follows.
    fn flush_high(&mut self, mode: Mode, sink: &mut impl Sink) {
        if self.high.take().is_some() {
            let mut batch = Batch::<ONE>::new();
            add(&mut batch, char::REPLACEMENT_CHARACTER, mode, 6, sink);
            hand_over(&mut batch, mode, sink);
        }
    }
}

/// A short text without anything special in it, behind the quote at `offset`: most keys, and many values. Returns how many
/// bytes it has with its other quote; `None` where it has to be looked at in earnest.
fn quoted_word(offset: u64, after: &[u8], sink: &mut impl Sink) -> Option<usize> {
    let word = word(after)?;
    let took = word.len() + 1;
    sink.word(word, offset + 1 + took as u64);
    Some(took)
}

fn add<const N: usize>(batch: &mut Batch<N>, character: char, mode: Mode, source: usize, sink: &mut impl Sink) {
    if !batch.push(character, mode, source) {
        hand_over(batch, mode, sink);
        // An empty batch takes anything.
        let _ = batch.push(character, mode, source);
    }
}

fn hand_over<const N: usize>(batch: &mut Batch<N>, mode: Mode, sink: &mut impl Sink) {
    let (bytes, source) = batch.take();
    if bytes.is_empty() {
        return;
    }
    match mode {
        Mode::Skip => {}
        Mode::Raw => sink.raw(bytes, source),
        Mode::Decoded => {
            // Whole characters went in.
            if let Ok(text) = std::str::from_utf8(bytes) {
                sink.text(text);
            }
        }
    }
}
