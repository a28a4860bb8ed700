//! The writer behind a record: compact JSON, by hand, since it is built for every request and costs a fifth of what a
//! general serialiser takes.

/// The most of a text that others have written, in bytes.
pub(super) const MAX_FOREIGN_BYTES: usize = 256;

/// JSON under construction.
pub(super) struct Json(pub(super) String);

impl Json {
    pub(super) fn open(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    pub(super) fn close(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    /// A comma, unless this is the first of its container.
    pub(super) fn comma(&mut self) {
        if !self.0.ends_with(['{', '[']) {
            self.0.push(',');
        }
    }

    pub(super) fn key(&mut self, key: &str) {
        self.comma();
        self.quoted(key);
        self.0.push(':');
    }

    /// An id or a word of ours, neither of which needs an escape.
    pub(super) fn quoted(&mut self, text: &str) {
        self.0.push('"');
        self.0.push_str(text);
        self.0.push('"');
    }

    pub(super) fn text(&mut self, key: &str, text: &str) {
        self.key(key);
        self.quoted(text);
    }

    /// A text that is not ours, cut to [`MAX_FOREIGN_BYTES`]; what could leave its line or its string is escaped.
    pub(super) fn foreign(&mut self, key: &str, text: &str) {
        self.key(key);
        self.0.push('"');
        let mut left = MAX_FOREIGN_BYTES;
        for character in text.chars() {
            let Some(rest) = left.checked_sub(character.len_utf8()) else { break };
            left = rest;
            match character {
                '"' | '\\' => self.0.extend(['\\', character]),
                '\0'..='\x1f' | '\x7f' => {
                    let digit = |nibble: u32| char::from_digit(nibble & 15, 16).unwrap_or('0');
                    let code = u32::from(character);
                    self.0.push_str("\\u00");
                    self.0.extend([digit(code >> 4), digit(code)]);
                }
                _ => self.0.push(character),
            }
        }
        self.0.push('"');
    }

    pub(super) fn texts(&mut self, key: &str, texts: &[&str]) {
        self.key(key);
        self.open('[');
        for text in texts {
            self.comma();
            self.quoted(text);
        }
        self.close(']');
    }

    pub(super) fn yes(&mut self, key: &str) {
        self.key(key);
        self.0.push_str("true");
    }

    pub(super) fn number(&mut self, key: &str, number: u64) {
        self.key(key);
        self.digits(number);
    }

    fn digits(&mut self, mut number: u64) {
        let mut digits = [b'0'; 20];
        let mut first = digits.len() - 1;
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
            first = place;
            if number == 0 {
                break;
            }
        }
        self.0.push_str(digits.get(first..).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default());
    }

    /// A number to two places. What does not fit is cut, what is not a number is 0.
    pub(super) fn hundredths(&mut self, key: &str, number: f64) {
        self.fixed(key, (number * 100.0).round() as i64, 2);
    }

    /// The same to three places.
    pub(super) fn thousandths(&mut self, key: &str, number: f64) {
        self.fixed(key, (number * 1_000.0).round() as i64, 3);
    }

    /// A number in units of `10^-places`, with one place at least and no zeros after that.
    fn fixed(&mut self, key: &str, units: i64, places: u32) {
        self.key(key);
        if units < 0 {
            self.0.push('-');
        }
        let units = units.unsigned_abs();
        let mut unit = 10_u64.pow(places);
        self.digits(units / unit);
        self.0.push('.');
        loop {
            let rest = units % unit;
            unit /= 10;
            self.0.push(char::from(b'0' + (rest / unit) as u8));
            if unit == 1 || rest.is_multiple_of(unit) {
                break;
            }
        }
    }
}
