//! The grammar of a number.

/// Where in a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
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
    /// After its first byte, which is a minus or a digit.
    pub(super) fn begin(byte: u8) -> Number {
        match byte {
            b'-' => Number::Sign,
            b'0' => Number::Zero,
            _ => Number::Integer,
        }
    }

    /// After one byte more; `None` when the byte does not belong to the number.
    pub(super) fn next(self, byte: u8) -> Option<Number> {
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

    /// Whether what has come is a whole number already.
    pub(super) fn may_end(self) -> bool {
        matches!(self, Number::Zero | Number::Integer | Number::Fraction | Number::ExponentDigits)
    }
}
