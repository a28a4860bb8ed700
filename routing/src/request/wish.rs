//! What a client may say of how its request waits, in headers that count only where the operator allows them.

use crate::snapshot::admission::MAX_WAIT_MS;

/// `0` (first) to `9` (last).
pub const PRIORITY_HEADER: &str = "x-weighbridge-priority";
/// The longest that the request may wait for a slot, in ms; never longer than the pool's `max_wait`.
pub const MAX_WAIT_HEADER: &str = "x-weighbridge-max-wait-ms";

/// A header with a value that it cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongHeader {
    /// Which.
    pub name: &'static str,
    /// What it could be.
    pub expected: &'static str,
}

/// Reads [`PRIORITY_HEADER`].
///
/// # Errors
/// When it is no digit.
pub fn priority(value: &[u8]) -> Result<u8, WrongHeader> {
    match value {
        [digit @ b'0'..=b'9'] => Ok(digit - b'0'),
        _ => Err(WrongHeader { name: PRIORITY_HEADER, expected: "a digit from 0 (first) to 9 (last)" }),
    }
}

/// Reads [`MAX_WAIT_HEADER`]. 0 means that the request does not wait.
///
/// # Errors
/// When it is no whole number, or above an hour.
pub fn max_wait_ms(value: &[u8]) -> Result<u32, WrongHeader> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits
        .and_then(|text| text.parse().ok())
        .filter(|ms| *ms <= MAX_WAIT_MS)
        .ok_or(WrongHeader { name: MAX_WAIT_HEADER, expected: "a whole number of milliseconds from 0 to 3600000" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_one_digit() {
        assert_eq!((priority(b"0"), priority(b"9")), (Ok(0), Ok(9)));
        for wrong in [&b""[..], b"10", b"-1", b"high", b" 5", b"5 ", b"\xff"] {
            assert_eq!(priority(wrong).unwrap_err().name, PRIORITY_HEADER, "{wrong:?}");
        }
    }

    #[test]
    fn a_wait_is_whole_milliseconds_up_to_an_hour() {
        assert_eq!((max_wait_ms(b"0"), max_wait_ms(b"250"), max_wait_ms(b"3600000")), (Ok(0), Ok(250), Ok(3_600_000)));
        for wrong in [&b""[..], b"3600001", b"-1", b"+1", b"1.5", b"1s", b"99999999999999999999", b"\xff"] {
            assert_eq!(max_wait_ms(wrong).unwrap_err().name, MAX_WAIT_HEADER, "{wrong:?}");
        }
    }
}
