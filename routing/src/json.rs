//! A JSON reader that takes its text in pieces and builds nothing.
//!
//! [`Scanner::feed`] checks every byte against RFC 8259 and tells a [`Sink`] what it saw; no tree, no copies, nothing
//! kept between pieces but a few words of state. A request body can therefore be read while it arrives, and the
//! answer does not depend on how it was cut (a property test says so).
//!
//! Cost: one pass. Inside strings, which is where the bytes of a prompt are, 64 bytes are looked at together for a
//! quote, a backslash or a control character; with simd128 that is four vector steps. UTF-8 is checked where a string
//! piece has a byte above 127 or somebody wants the text.
//!
//! Accepts what Python's and serde's readers accept for requests, with these bounds: nesting up to [`MAX_DEPTH`], and
//! no byte order mark. A lone surrogate escape (`\ud800`) is accepted as U+FFFD, as lenient readers do.

/// The deepest nesting.
pub const MAX_DEPTH: usize = 256;

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `{...}`
    Object,
    /// `[...]`
    Array,
    /// `"..."`
    String,
    /// `1.5e3`
    Number,
    /// `true` or `false`
    Bool(bool),
    /// `null`
    Null,
}

impl Kind {
    /// The word used in error messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Object => "an object",
            Kind::Array => "an array",
            Kind::String => "a string",
            Kind::Number => "a number",
            Kind::Bool(_) => "a boolean",
            Kind::Null => "null",
        }
    }
}

/// Hears what a scanner sees. Offsets count bytes from the start of the text.
pub trait Sink {
    /// A value begins; `depth` is the number of containers around it. Not called for keys.
    fn value(&mut self, kind: Kind, depth: usize, offset: u64);
    /// A key of an object begins; `depth` is the number of containers around it.
    fn key(&mut self, depth: usize);
    /// Whether [`Sink::text`] of the key or string that began last is of any use.
    fn wants_text(&self) -> bool {
        true
    }
    /// Text of the key or string value that began last, without escapes; may come in several pieces.
    fn text(&mut self, piece: &str);
    /// Digits and signs of the number that began last; may come in several pieces.
    fn number(&mut self, piece: &str);
    /// The key, string or number that began last is complete; `offset` is the first byte after it.
    fn end(&mut self, offset: u64);
}

/// Why a text is not JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {offset}")]
pub struct JsonError {
    /// Where, from the start of the text.
    pub offset: u64,
    /// What.
    pub problem: Problem,
}

/// What is wrong with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Something else stands where this was expected.
    #[error("expected {0}")]
    Expected(&'static str),
    /// The text ends inside a value.
    #[error("the text ends inside a value")]
    Ends,
    /// The text is empty or blank.
    #[error("the text is empty")]
    Empty,
    /// A raw control character in a string.
    #[error("a control character in a string (it must be escaped)")]
    Control,
    /// An escape that JSON does not have.
    #[error("an unknown escape in a string")]
    Escape,
    /// Bytes that are not UTF-8.
    #[error("invalid UTF-8 in a string")]
    Utf8,
    /// Too many containers inside each other.
    #[error("nesting deeper than 256")]
    Depth,
    /// A byte order mark.
    #[error("a byte order mark (JSON has none)")]
    Bom,
    /// Something after the value.
    #[error("text after the end of the value")]
    Trailing,
}

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

/// Where in a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Sign,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    fn next(self, byte: u8) -> Option<Number> {
        match (self, byte) {
            (Number::Sign, b'0') => Some(Number::Zero),
            (Number::Sign, b'1'..=b'9') | (Number::Integer, b'0'..=b'9') => Some(Number::Integer),
            (Number::Zero | Number::Integer, b'.') => Some(Number::Point),
            (Number::Point | Number::Fraction, b'0'..=b'9') => Some(Number::Fraction),
            (Number::Zero | Number::Integer | Number::Fraction, b'e' | b'E') => Some(Number::Exponent),
            (Number::Exponent, b'+' | b'-') => Some(Number::ExponentSign),
            (Number::Exponent | Number::ExponentSign | Number::ExponentDigits, b'0'..=b'9') => {
                Some(Number::ExponentDigits)
            }
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Number::Zero | Number::Integer | Number::Fraction | Number::ExponentDigits)
    }
}

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
        while let Some((&byte, after)) = rest.split_first() {
            let took = match self.state {
                State::Text { key } => self.text(rest, key, sink)?,
                State::Number(number) => match number.next(byte) {
                    Some(next) => {
                        self.state = State::Number(next);
                        self.number_byte(byte, sink);
                        1
                    }
                    None if number.may_end() => {
                        sink.end(self.offset);
                        self.state = self.after_value();
                        0
                    }
                    None => return self.fail(Problem::Expected("a digit")),
                },
                _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') && self.between_tokens() => {
                    1 + after.iter().take_while(|byte| matches!(**byte, b' ' | b'\t' | b'\n' | b'\r')).count()
                }
                _ => {
                    self.byte(byte, sink)?;
                    1
                }
            };
            self.offset += took as u64;
            rest = rest.get(took..).unwrap_or_default();
        }
        Ok(())
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

    fn fail<T>(&self, problem: Problem) -> Result<T, JsonError> {
        Err(JsonError { offset: self.offset, problem })
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

    fn close(&mut self) {
        self.depth -= 1;
        self.state = self.after_value();
    }

    /// One byte of structure, of a word or of an escape.
    fn byte(&mut self, byte: u8, sink: &mut impl Sink) -> Result<(), JsonError> {
        match (self.state, byte) {
            (State::Value { or_end: true }, b']') | (State::Key { or_end: true }, b'}') => self.close(),
            (State::Value { .. }, _) => self.begin(byte, sink)?,
            (State::Key { .. }, b'"') => {
                sink.key(self.depth);
                self.state = State::Text { key: true };
            }
            (State::Key { or_end: true }, _) => return self.fail(Problem::Expected("a key or }")),
            (State::Key { .. }, _) => return self.fail(Problem::Expected("a key")),
            (State::Colon, b':') => self.state = State::Value { or_end: false },
            (State::Colon, _) => return self.fail(Problem::Expected(":")),
            (State::CommaOrEnd, b',') if self.in_object() => self.state = State::Key { or_end: false },
            (State::CommaOrEnd, b',') => self.state = State::Value { or_end: false },
            (State::CommaOrEnd, b'}') if self.in_object() => self.close(),
            (State::CommaOrEnd, b']') if !self.in_object() => self.close(),
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
        Ok(())
    }

    fn begin(&mut self, byte: u8, sink: &mut impl Sink) -> Result<(), JsonError> {
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
            Kind::String => self.state = State::Text { key: false },
            Kind::Bool(true) => self.state = State::Word { rest: b"rue" },
            Kind::Bool(false) => self.state = State::Word { rest: b"alse" },
            Kind::Null => self.state = State::Word { rest: b"ull" },
            Kind::Number => {
                self.state = State::Number(match byte {
                    b'-' => Number::Sign,
                    b'0' => Number::Zero,
                    _ => Number::Integer,
                });
                self.number_byte(byte, sink);
            }
        }
        Ok(())
    }

    fn number_byte(&self, byte: u8, sink: &mut impl Sink) {
        // Every byte of a number is ASCII.
        if let Ok(digit) = std::str::from_utf8(&[byte]) {
            sink.number(digit);
        }
    }

    /// Text up to its closing quote, an escape that is not of one letter, or the end of the piece. Returns how many
    /// bytes it took.
    fn text(&mut self, rest: &[u8], key: bool, sink: &mut impl Sink) -> Result<usize, JsonError> {
        let start = self.offset;
        let mut took = 0;
        loop {
            self.offset = start + took as u64;
            let ahead = rest.get(took..).unwrap_or_default();
            let Plain { length, ascii } = plain(ahead);
            let (text, after) = ahead.split_at_checked(length).unwrap_or((ahead, &[]));
            if !text.is_empty() {
                self.flush_high(sink);
                // Most bytes of a request are text that nobody wants, and plain ASCII needs no further check.
                if !ascii || self.cut_len > 0 || sink.wants_text() {
                    self.utf8(text, sink)?;
                }
            }
            took += length;
            let Some((&stop, after)) = after.split_first() else { break };
            self.offset = start + took as u64;
            if self.cut_len > 0 {
                return self.fail(Problem::Utf8);
            }
            took += 1;
            match (stop, after.first()) {
                (b'"', _) => {
                    self.flush_high(sink);
                    sink.end(self.offset + 1);
                    self.state = if key { State::Colon } else { self.after_value() };
                    break;
                }
                (b'\\', Some(letter)) if *letter != b'u' => {
                    // Almost every escape of a prompt: handled here, without a round through the state machine.
                    self.offset += 1;
                    self.escape(*letter, key, sink)?;
                    took += 1;
                }
                (b'\\', _) => {
                    self.state = State::Escape { key };
                    break;
                }
                _ => return self.fail(Problem::Control),
            }
        }
        self.offset = start;
        Ok(took)
    }

    /// Hands text on, keeping back the first bytes of a character that the piece cut.
    fn utf8(&mut self, mut plain: &[u8], sink: &mut impl Sink) -> Result<(), JsonError> {
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
                    sink.text(character);
                    self.cut_len = 0;
                }
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return self.fail(Problem::Utf8),
            }
        }
        match std::str::from_utf8(plain) {
            Ok(text) => {
                if !text.is_empty() {
                    sink.text(text);
                }
            }
            Err(error) if error.error_len().is_none() => {
                let (valid, tail) = plain.split_at_checked(error.valid_up_to()).unwrap_or((plain, &[]));
                if let Ok(text) = std::str::from_utf8(valid)
                    && !text.is_empty()
                {
                    sink.text(text);
                }
                for (place, byte) in self.cut.iter_mut().zip(tail) {
                    *place = *byte;
                }
                self.cut_len = tail.len();
            }
            Err(_) => return self.fail(Problem::Utf8),
        }
        Ok(())
    }

    fn escape(&mut self, byte: u8, key: bool, sink: &mut impl Sink) -> Result<(), JsonError> {
        let text = match byte {
            b'"' => "\"",
            b'\\' => "\\",
            b'/' => "/",
            b'b' => "\u{8}",
            b'f' => "\u{c}",
            b'n' => "\n",
            b'r' => "\r",
            b't' => "\t",
            b'u' => {
                self.state = State::Hex { key, digits: 0, code: 0 };
                return Ok(());
            }
            _ => return self.fail(Problem::Escape),
        };
        self.flush_high(sink);
        sink.text(text);
        self.state = State::Text { key };
        Ok(())
    }

    fn hex(&mut self, byte: u8, key: bool, digits: u8, code: u16, sink: &mut impl Sink) -> Result<(), JsonError> {
        let Some(digit) = char::from(byte).to_digit(16) else { return self.fail(Problem::Escape) };
        let code = code << 4 | digit as u16;
        if digits < 3 {
            self.state = State::Hex { key, digits: digits + 1, code };
            return Ok(());
        }
        self.state = State::Text { key };
        match (self.high.take(), code) {
            (Some(high), 0xDC00..=0xDFFF) => {
                let pair = 0x10000 + ((u32::from(high) & 0x3FF) << 10 | u32::from(code) & 0x3FF);
                self.char(char::from_u32(pair), sink);
            }
            (earlier, _) => {
                if earlier.is_some() {
                    self.char(None, sink);
                }
                match code {
                    0xD800..=0xDBFF => self.high = Some(code),
                    _ => self.char(char::from_u32(code.into()), sink),
                }
            }
        }
        Ok(())
    }

    fn char(&self, character: Option<char>, sink: &mut impl Sink) {
        sink.text(character.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut [0; 4]));
    }

    /// A high surrogate that no low one follows.
    fn flush_high(&mut self, sink: &mut impl Sink) {
        if self.high.take().is_some() {
            self.char(None, sink);
        }
    }
}

/// 1 for a byte at which plain text ends, else 0.
fn stops(byte: u8) -> u8 {
    u8::from(byte == b'"') | u8::from(byte == b'\\') | u8::from(byte < 0x20)
}

/// The high bit of each byte of `word` at which plain text ends. Exact for the lowest such byte, which is the one that is
/// asked for; a borrow can set bits above it. (Anderson, "Bit Twiddling Hacks": haszero and hasless.)
fn stops_of_word(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 0x80;
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let control = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
    zero(word ^ (ONES * u64::from(b'"'))) | zero(word ^ (ONES * u64::from(b'\\'))) | control
}

/// 0x80 when a byte of `word` is above 127, else 0.
fn fold_high_bits(word: u64) -> u8 {
    if word & (u64::MAX / 255 * 0x80) == 0 { 0 } else { 0x80 }
}

/// Text without anything special in it.
struct Plain {
    /// How many bytes come before a quote, a backslash or a control character.
    length: usize,
    /// Whether none of them is above 127.
    ascii: bool,
}

fn plain(bytes: &[u8]) -> Plain {
    let (mut length, mut bits) = (0, 0);
    let (blocks, _) = bytes.as_chunks::<64>();
    for block in blocks {
        // No early exit and no branch inside the block: this form becomes vector compares.
        let (mut stop, mut high) = (0, 0);
        for byte in block {
            stop |= stops(*byte);
            high |= *byte;
        }
        if stop != 0 {
            break;
        }
        bits |= high;
        length += 64;
    }
    let (words, _) = bytes.get(length..).unwrap_or_default().as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        let stops = stops_of_word(word);
        if stops != 0 {
            let before = stops.trailing_zeros() & !7;
            // The bytes before the first stop; a shift by the full width cannot be, since a stop has its own byte.
            bits |= fold_high_bits(word & !(u64::MAX << before));
            return Plain { length: length + before as usize / 8, ascii: bits < 0x80 };
        }
        bits |= fold_high_bits(word);
        length += 8;
    }
    for byte in bytes.iter().skip(length).take_while(|byte| stops(**byte) == 0) {
        bits |= *byte;
        length += 1;
    }
    Plain { length, ascii: bits < 0x80 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Writes down what it hears in a form that does not depend on how the text was cut.
    #[derive(Default, PartialEq, Debug)]
    struct Log(Vec<String>, bool);

    impl Log {
        fn join(&mut self, piece: &str) {
            if let (true, Some(last)) = (self.1, self.0.last_mut()) {
                last.push_str(piece);
            } else {
                self.0.push(piece.into());
                self.1 = true;
            }
        }
    }

    impl Sink for Log {
        fn value(&mut self, kind: Kind, depth: usize, offset: u64) {
            self.0.push(format!("{kind:?}@{depth}:{offset}"));
            self.1 = false;
        }
        fn key(&mut self, depth: usize) {
            self.0.push(format!("key@{depth}"));
            self.1 = false;
        }
        fn text(&mut self, piece: &str) {
            self.join(piece);
        }
        fn number(&mut self, piece: &str) {
            self.join(piece);
        }
        fn end(&mut self, offset: u64) {
            self.0.push(format!("end:{offset}"));
            self.1 = false;
        }
    }

    fn scan(text: &[u8], cut: usize) -> Result<Log, JsonError> {
        let (mut scanner, mut log) = (Scanner::default(), Log::default());
        for piece in text.chunks(cut.max(1)) {
            scanner.feed(piece, &mut log)?;
        }
        scanner.finish(&mut log)?;
        Ok(log)
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let cases: [(&[u8], &str); 22] = [
            (b"", "the text is empty at byte 0"),
            (b"  \n", "the text is empty at byte 3"),
            (b"\xef\xbb\xbf{}", "a byte order mark (JSON has none) at byte 0"),
            (b"{", "the text ends inside a value at byte 1"),
            (b"{\"a\":1", "the text ends inside a value at byte 6"),
            (b"[1,]", "expected a value at byte 3"),
            (b"{,}", "expected a key or } at byte 1"),
            (b"{\"a\":1,}", "expected a key at byte 7"),
            (b"{\"a\" 1}", "expected : at byte 5"),
            (b"[1 2]", "expected , or ] at byte 3"),
            (b"{\"a\":1]", "expected , or } at byte 6"),
            (b"[01]", "expected , or ] at byte 2"),
            (b"[-]", "expected a digit at byte 2"),
            (b"[1.]", "expected a digit at byte 3"),
            (b"[nul]", "expected true, false or null at byte 4"),
            (b"{} {}", "text after the end of the value at byte 3"),
            (b"\"\x00\"", "a control character in a string (it must be escaped) at byte 1"),
            (b"\"\\x\"", "an unknown escape in a string at byte 2"),
            (b"\"\xff\"", "invalid UTF-8 in a string at byte 1"),
            (b"\"\xe2\x82\"", "invalid UTF-8 in a string at byte 3"),
            (b"\x00", "expected a value at byte 0"),
            (b"NaN", "expected a value at byte 0"),
        ];
        for (text, message) in cases {
            assert_eq!(scan(text, 100).unwrap_err().to_string(), message, "{text:?}");
            assert!(scan(text, 1).is_err(), "{text:?}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(scan("[".repeat(MAX_DEPTH).as_bytes(), 7).unwrap_err().problem == Problem::Ends);
        assert!(scan("[".repeat(MAX_DEPTH + 1).as_bytes(), 7).unwrap_err().problem == Problem::Depth);
        let fine = format!("{}{}", "[{\"a\":".repeat(100) + "1", "}]".repeat(100));
        assert!(scan(fine.as_bytes(), 3).is_ok());
    }

    #[test]
    fn escapes_and_pairs_become_text() {
        let log = scan(br#""a\n\u00e9\ud83d\ude00\ud800x\ud800""#, 5).unwrap();
        assert_eq!(log.0[1], "a\n\u{e9}\u{1F600}\u{FFFD}x\u{FFFD}");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e15f64..1e15).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[a-z \\\\\"\n\u{e9}\u{4e2d}]{0,80}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map("[a-z\\\\\"]{0,9}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_cut_makes_no_difference(value in any_json(), pretty in any::<bool>(), cut in 1usize..40) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let whole = scan(text.as_bytes(), text.len()).unwrap();
            prop_assert_eq!(&scan(text.as_bytes(), 1).unwrap(), &whole);
            prop_assert_eq!(&scan(text.as_bytes(), cut).unwrap(), &whole);
        }

        #[test]
        fn it_accepts_what_serde_json_accepts(value in any_json(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 1usize..40) {
            let mut text = serde_json::to_vec(&value).unwrap();
            let at = at.index(text.len());
            text[at] = byte;
            let theirs = serde_json::from_slice::<Value>(&text);
            let ours = scan(&text, cut);
            // serde_json refuses lone surrogates and numbers beyond f64; everything else must agree.
            let lenient = theirs.as_ref().is_err_and(|error| {
                let message = error.to_string();
                message.contains("surrogate") || message.contains("out of range") || message.contains("hex escape")
            });
            prop_assert!(lenient || ours.is_ok() == theirs.is_ok(), "{:?} {:?} {:?}", String::from_utf8_lossy(&text), ours, theirs);
        }

        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>(), cut in 1usize..9) {
            let _ = scan(&bytes, cut);
        }
    }
}
