//! The writer behind a record: compact JSON, by hand, since it is built for every request and costs a tenth of what a
//! general serialiser takes.
//!
//! What stands before a value comes with its punctuation, as in `,"cap":`, so that nothing has to be looked up or joined.

/// The most of a text that others have written, in bytes.
pub(super) const MAX_FOREIGN_BYTES: usize = 256;

/// JSON under construction.
pub(super) struct Json(Vec<u8>);

impl Json {
    /// With room for so many bytes; more have to be moved.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Json(Vec::with_capacity(bytes))
    }

    /// Only texts went in.
    pub(super) fn finish(self) -> String {
        String::from_utf8(self.0).unwrap_or_default()
    }

    /// Something that is JSON already, or part of it.
    ///
    /// Not inlined, as everything here: a record has a hundred steps, and what runs once per request costs by the code that has to
    /// be fetched for it.
    #[inline(never)]
    pub(super) fn put(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }

    /// An id or a word of ours, neither of which needs an escape; its first quote is in `before`.
    #[inline(never)]
    pub(super) fn text(&mut self, before: &str, text: &str) {
        self.put(before);
        self.put(text);
        self.0.push(b'"');
    }

    /// A text that is not ours, cut to [`MAX_FOREIGN_BYTES`]; what could leave its line or its string is escaped.
    pub(super) fn foreign(&mut self, before: &str, text: &str) {
        self.put(before);
        let text = text.get(..text.floor_char_boundary(MAX_FOREIGN_BYTES)).unwrap_or_default();
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => self.0.extend([b'\\', byte]),
                b'\0'..=b'\x1f' | b'\x7f' => {
                    let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
                    self.0.extend([b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
                }
                _ => self.0.push(byte),
            }
        }
        self.0.push(b'"');
    }

    /// A list of texts as in [`Json::text`]; its bracket is in `before`.
    #[inline(never)]
    pub(super) fn texts(&mut self, before: &str, texts: &[&str]) {
        self.put(before);
        let mut quote = "\"";
        for text in texts {
            self.text(quote, text);
            quote = ",\"";
        }
        self.0.push(b']');
    }

    #[inline(never)]
    pub(super) fn number(&mut self, before: &str, number: u64) {
        self.put(before);
        self.digits(number);
    }

    fn digits(&mut self, number: u64) {
        const EIGHT: u64 = 100_000_000;
        let low = (number % EIGHT) as u32;
        match number / EIGHT {
            0 => self.at_least(1, low),
            high => {
                self.digits(high);
                self.at_least(8, low);
            }
        }
    }

    /// So many digits or more of a number that has at most eight.
    #[inline(never)]
    fn at_least(&mut self, digits: usize, mut number: u32) {
        let (mut eight, mut count) = (0, 0);
        while number > 0 || count < digits {
            eight = eight << 8 | u64::from(b'0' + (number % 10) as u8);
            number /= 10;
            count += 1;
        }
        let end = self.0.len() + count;
        self.0.extend_from_slice(&eight.to_le_bytes());
        self.0.truncate(end);
    }

    /// A number to so many places. What does not fit is cut, what is not a number is 0.
    #[inline(never)]
    pub(super) fn decimal(&mut self, before: &str, number: f64, mut places: usize) {
        self.put(before);
        let scale: u32 = if places == 2 { 100 } else { 1_000 };
        let scaled = number * f64::from(scale);
        // Rounds as `f64::round` does, which is a function of its own in wasm.
        let cut = scaled as i64;
        let rest = scaled - cut as f64;
        let scaled = cut.saturating_add(i64::from(rest >= 0.5) - i64::from(rest <= -0.5));
        if scaled < 0 {
            self.0.push(b'-');
        }
        let scaled = scaled.unsigned_abs();
        self.digits(scaled / u64::from(scale));
        self.0.push(b'.');
        let mut rest = (scaled % u64::from(scale)) as u32;
        while places > 1 && rest.is_multiple_of(10) {
            rest /= 10;
            places -= 1;
        }
        self.at_least(places, rest);
    }
}
