//! A JSON reader that takes its text in pieces and builds nothing.
//!
//! [`Scanner::feed`] checks every byte against RFC 8259 and tells a [`Sink`] what it saw; no tree, no copies, nothing
//! kept between pieces but a few words of state. A request body can therefore be read while it arrives, and the
//! answer does not depend on how it was cut (a property test says so).
//!
//! Cost: one pass. Inside strings, which is where the bytes of a prompt are, 64 bytes are looked at together for a
//! quote, a backslash or a control character; with simd128 that is four vector steps. Escapes of one letter do not
//! interrupt that unless somebody wants the text [decoded](Mode). UTF-8 is checked where a string piece has a byte above
//! 127 or somebody wants the text.
//!
//! Accepts what Python's and serde's readers accept for requests, with these bounds: nesting up to [`MAX_DEPTH`], and
//! no byte order mark. A lone surrogate escape (`\ud800`) is accepted as U+FFFD, as lenient readers do.

mod number;
mod scanner;
pub(crate) mod simd;
mod text;
mod utf8;

pub use scanner::Scanner;

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

/// In which form a sink wants the text of the key or string that began last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Not at all: it is only checked.
    Skip,
    /// As it stands in JSON, which costs least, but so that equal text has equal bytes whoever wrote it: `\uXXXX` is
    /// decoded to UTF-8 and `\/` to `/`, while `\"`, `\\`, `\b`, `\f`, `\n`, `\r` and `\t` stay two letters (and `\u000a`
    /// becomes `\n`).
    Raw,
    /// Without escapes.
    Decoded,
}

/// Hears what a scanner sees. Offsets count bytes from the start of the text.
pub trait Sink {
    /// A value begins; `depth` is the number of containers around it. Not called for keys.
    fn value(&mut self, kind: Kind, depth: usize, offset: u64);
    /// A key of an object begins, with its quote at `offset`; `depth` is the number of containers around it.
    fn key(&mut self, depth: usize, offset: u64);
    /// The form in which text is wanted; asked again for each piece. Within a string it may change to [`Mode::Skip`], and in
    /// no other way.
    fn mode(&self) -> Mode;
    /// Decoded text of the key or string value that began last; may come in several pieces.
    fn text(&mut self, piece: &str);
    /// Raw text of the same; a character may be cut between two pieces. `source` is the number of bytes of JSON it stands
    /// for, the same number for each byte of the piece.
    fn raw(&mut self, piece: &[u8], source: usize);
    /// Digits and signs (ASCII) of the number that began last; may come in several pieces.
    fn number(&mut self, piece: &[u8]);
    /// The key, string or number that began last is complete; `offset` is the first byte after it.
    fn end(&mut self, offset: u64);
    /// A key or string that is short, without escapes and ASCII, from its beginning to its end: instead of a piece of text
    /// and an end.
    fn word(&mut self, word: &[u8], offset: u64) {
        match self.mode() {
            _ if word.is_empty() => {}
            Mode::Skip => {}
            Mode::Raw => self.raw(word, word.len()),
            Mode::Decoded => self.text(std::str::from_utf8(word).unwrap_or_default()),
        }
        self.end(offset);
    }
    /// A container ends; `depth` is the number of containers around it, `offset` the first byte after it.
    fn close(&mut self, depth: usize, offset: u64);
    /// Whether [`Scanner::feed_some`] is to stop here, for a look at what comes.
    fn pauses(&self) -> bool {
        false
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Writes down what it hears in a form that does not depend on how the text was cut.
    #[derive(PartialEq, Debug)]
    struct Log {
        lines: Vec<String>,
        bytes: Option<Vec<u8>>,
        source: usize,
        mode: Mode,
    }

    impl Log {
        fn join(&mut self, piece: &[u8], source: usize) {
            self.bytes.get_or_insert_default().extend_from_slice(piece);
            self.source += source;
        }
        fn line(&mut self, line: String) {
            if let Some(bytes) = self.bytes.take() {
                self.lines.push(String::from_utf8(bytes).unwrap());
            }
            self.lines.push(line);
        }
    }

    impl Sink for Log {
        fn value(&mut self, kind: Kind, depth: usize, offset: u64) {
            self.line(format!("{kind:?}@{depth}:{offset}"));
            self.source = 0;
        }
        fn key(&mut self, depth: usize, offset: u64) {
            self.line(format!("key@{depth}:{offset}"));
            self.source = 0;
        }
        fn mode(&self) -> Mode {
            self.mode
        }
        fn text(&mut self, piece: &str) {
            assert_eq!(self.mode, Mode::Decoded);
            self.join(piece.as_bytes(), 0);
        }
        fn raw(&mut self, piece: &[u8], source: usize) {
            assert_eq!(self.mode, Mode::Raw);
            self.join(piece, source);
        }
        fn number(&mut self, piece: &[u8]) {
            self.join(piece, 0);
        }
        fn end(&mut self, offset: u64) {
            self.line(format!("end:{offset} of {}", self.source));
        }
        fn close(&mut self, depth: usize, offset: u64) {
            self.line(format!("close@{depth}:{offset}"));
        }
    }

    fn scan_as(text: &[u8], cut: usize, mode: Mode) -> Result<Log, JsonError> {
        let mut log = Log { lines: Vec::new(), bytes: None, source: 0, mode };
        let mut scanner = Scanner::default();
        for piece in text.chunks(cut.max(1)) {
            scanner.feed(piece, &mut log)?;
        }
        scanner.finish(&mut log)?;
        Ok(log)
    }

    fn scan(text: &[u8], cut: usize) -> Result<Log, JsonError> {
        scan_as(text, cut, Mode::Decoded)
    }

    #[test]
    fn what_comes_before_a_fault_is_told_however_it_is_cut() {
        for text in [b"\"ab\xff".as_slice(), b"\"ab\xc3\"", b"\"ab\x01", b"\"\\u0061\\u0062\\ux", b"\"ab\\x"] {
            for cut in [1, 2, 3, 100] {
                let mut log = Log { lines: Vec::new(), bytes: None, source: 0, mode: Mode::Decoded };
                let mut scanner = Scanner::default();
                // Enough after the fault for the scanner to take it in one step.
                let text = [text, b"      "].concat();
                assert!(text.chunks(cut).any(|piece| scanner.feed(piece, &mut log).is_err()), "{text:?}");
                assert_eq!(log.bytes.as_deref(), Some(b"ab".as_slice()), "{text:?} in pieces of {cut}");
            }
        }
    }

    #[test]
    fn raw_text_is_the_same_whoever_wrote_it() {
        let text = "a\nb\"\\/\u{e9}\u{4e2d}\u{1F600}\t";
        let ways = [
            serde_json::to_string(text).unwrap(),
            r#""a\u000ab\u0022\u005c\/\u00e9\u4E2D\ud83d\ude00\u0009""#.to_owned(),
        ];
        for way in ways {
            for cut in [1, 2, 3, 5, 100] {
                let log = scan_as(way.as_bytes(), cut, Mode::Raw).unwrap();
                assert_eq!(log.lines[1], "a\\nb\\\"\\\\/\u{e9}\u{4e2d}\u{1F600}\\t", "{way}");
                assert_eq!(log.lines[2], format!("end:{} of {}", way.len(), way.len() - 2));
            }
        }
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
            (b"\"\xe2\x82\"", "invalid UTF-8 in a string at byte 1"),
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
        assert_eq!(log.lines[1], "a\n\u{e9}\u{1F600}\u{FFFD}x\u{FFFD}");
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
            for mode in [Mode::Raw, Mode::Skip] {
                let whole = scan_as(text.as_bytes(), text.len(), mode).unwrap();
                prop_assert_eq!(&scan_as(text.as_bytes(), 1, mode).unwrap(), &whole);
                prop_assert_eq!(&scan_as(text.as_bytes(), cut, mode).unwrap(), &whole);
            }
        }

        #[test]
        fn it_accepts_what_serde_json_accepts(value in any_json(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 1usize..40) {
            let mut text = serde_json::to_vec(&value).unwrap();
            let at = at.index(text.len());
            text[at] = byte;
            let theirs = serde_json::from_slice::<Value>(&text);
            let ours = scan(&text, cut);
            for mode in [Mode::Raw, Mode::Skip] {
                prop_assert_eq!(scan_as(&text, 7, mode).is_ok(), ours.is_ok());
            }
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
