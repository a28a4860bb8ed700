//! Numbers, times and lists as people read them.

use std::time::{Duration, UNIX_EPOCH};

/// With a comma every three digits.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 token`, `8,100 tokens`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// To one place, without one where it is whole.
pub(super) fn tenths(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

/// `850 ms`, `1.2 s`, `3 min 5 s`.
pub(super) fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{} s", tenths(ms as f64 / 1e3)),
        _ => format!("{} min {} s", count(ms / 60_000), ms % 60_000 / 1_000),
    }
}

/// A point in time, in UTC; nothing for 0 and for what is beyond the calendar.
pub(super) fn time(ms: u64) -> Option<String> {
    // The last year that RFC 3339 can write is 9999.
    let known = (1..253_402_300_800_000).contains(&ms);
    known.then(|| humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string())
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// A text from elsewhere without anything that a terminal might obey.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1, 2].map(|number| counted(number, "token")), ["1 token", "2 tokens"]);
        assert_eq!([7.46, 7.0, -3.04].map(tenths), ["7.5", "7", "-3"]);
        assert_eq!([7, 1_250, 3_000, 185_900].map(duration), ["7 ms", "1.2 s", "3 s", "3 min 5 s"]);
        assert_eq!(time(1_764_000_000_123).as_deref(), Some("2025-11-24T16:00:00.123Z"));
        assert_eq!([time(0), time(u64::MAX)], [None, None]);
        assert_eq!(list(&["a".into(), "b".into(), "c".into()]), "a, b and c");
        assert_eq!(plain("a\u{1b}[2J"), "a\u{fffd}[2J");
    }
}
