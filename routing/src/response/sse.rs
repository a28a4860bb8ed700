//! Server-sent events, cut anywhere (WHATWG HTML, "Interpreting an event stream").
//!
//! Lines end with LF, CR or CRLF; an event ends with a blank line; the values of several `data` lines are joined by LF; a byte
//! order mark may come first. One thing is done differently: an event at the end of the stream counts without its blank line.
//!
//! An event that lies in one piece with its only `data` line is handed on in place, without a copy. What a piece cuts is
//! carried over, up to [`MAX_CARRIED`]; a longer event is handed on as it comes, whether it was cut or not, so that the
//! limit does not show in what is learnt.
//!
//! Cost: one vectorised search for line ends.

use memchr::memchr2;

/// The longest data of an event, in bytes, that is handed on whole.
pub(super) const MAX_CARRIED: usize = 64 * 1024;
/// A line longer than this has more than [`MAX_CARRIED`] of data, even after `data: `.
const MAX_LINE: usize = MAX_CARRIED + 16;
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Hears the events of a stream.
pub(super) trait Events {
    /// An event with its data. `named_error` when the stream called it `error`.
    fn event(&mut self, data: &[u8], named_error: bool);
    /// A piece of the data of an event that is too long to be carried.
    fn long(&mut self, piece: &[u8]);
    /// The end of that event.
    fn long_end(&mut self, named_error: bool);
}

/// Splits a stream into events.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// The beginning of a line that a piece cut.
    line: Vec<u8>,
    /// What to do with the rest of a line that was too long to be carried.
    overflow: Overflow,
    /// Data of the event so far, when it could not stay in its piece.
    data: Vec<u8>,
    has_data: bool,
    /// The event is too long and goes on as it comes.
    long: bool,
    named_error: bool,
    /// The last line ended with CR at the end of a piece; an LF may belong to it.
    after_cr: bool,
    /// The first line, which may begin with a byte order mark, is over.
    begun: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    #[default]
    None,
    /// It is data and goes on as it comes.
    Data,
    /// It is something else.
    Skip,
}

impl Splitter {
    /// Takes the next piece.
    pub(super) fn feed(&mut self, piece: &[u8], events: &mut impl Events) {
        let mut rest = piece;
        if self.after_cr && !rest.is_empty() {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            self.after_cr = false;
        }
        // The only data line of the event so far, while it lies in this piece.
        let mut held = None;
        while let Some((line, after)) = memchr2(b'\n', b'\r', rest).and_then(|at| rest.split_at_checked(at)) {
            rest = match after {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
            if self.line.is_empty() && self.overflow == Overflow::None {
                self.complete(line, &mut held, events);
            } else {
                self.carry(line, events);
                self.complete_carried(events);
            }
        }
        if let Some(data) = held {
            self.data.extend_from_slice(data);
        }
        if !rest.is_empty() {
            self.carry(rest, events);
        }
    }

    /// Takes the end of the stream.
    pub(super) fn finish(&mut self, events: &mut impl Events) {
        self.complete_carried(events);
        self.dispatch(None, events);
    }

    /// A line that lies in the piece.
    fn complete<'a>(&mut self, line: &'a [u8], held: &mut Option<&'a [u8]>, events: &mut impl Events) {
        let line = if self.begun { line } else { line.strip_prefix(BOM).unwrap_or(line) };
        self.begun = true;
        if line.is_empty() {
            self.dispatch(held.take(), events);
        } else if let Some(value) = field(line, b"data") {
            if !self.has_data && value.len() <= MAX_CARRIED {
                self.has_data = true;
                *held = Some(value);
            } else {
                if let Some(first) = held.take() {
                    self.data.extend_from_slice(first);
                }
                self.append(value, events);
            }
        } else if let Some(name) = field(line, b"event") {
            self.named_error = name == b"error";
        }
    }

    /// Keeps a part of a line whose end is still to come.
    fn carry(&mut self, part: &[u8], events: &mut impl Events) {
        match self.overflow {
            Overflow::None if self.line.len() + part.len() <= MAX_LINE => self.line.extend_from_slice(part),
            Overflow::None => {
                let take = MAX_LINE - self.line.len();
                let (now, later) = part.split_at_checked(take).unwrap_or((part, &[]));
                self.line.extend_from_slice(now);
                let line = std::mem::take(&mut self.line);
                let text = if self.begun { line.as_slice() } else { line.strip_prefix(BOM).unwrap_or(&line) };
                self.begun = true;
                self.overflow = match field(text, b"data") {
                    Some(value) => {
                        self.append(value, events);
                        events.long(later);
                        Overflow::Data
                    }
                    None => Overflow::Skip,
                };
            }
            Overflow::Data => events.long(part),
            Overflow::Skip => {}
        }
    }

    /// The carried line is complete.
    fn complete_carried(&mut self, events: &mut impl Events) {
        if std::mem::take(&mut self.overflow) != Overflow::None {
            return;
        }
        let mut line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return;
        }
        let mut held = None;
        self.complete(&line, &mut held, events);
        if let Some(data) = held {
            self.data.extend_from_slice(data);
        }
        // Keep the allocation: a stream that cuts one line will cut more.
        line.clear();
        self.line = line;
    }

    /// Adds a data line to an event that does not lie in one piece.
    fn append(&mut self, value: &[u8], events: &mut impl Events) {
        let separator: &[u8] = if self.has_data { b"\n" } else { b"" };
        self.has_data = true;
        if !self.long && self.data.len() + separator.len() + value.len() <= MAX_CARRIED {
            self.data.extend_from_slice(separator);
            self.data.extend_from_slice(value);
            return;
        }
        if !self.long {
            self.long = true;
            events.long(&self.data);
            self.data.clear();
        }
        events.long(separator);
        events.long(value);
    }

    /// The event is complete.
    fn dispatch(&mut self, held: Option<&[u8]>, events: &mut impl Events) {
        let named_error = std::mem::take(&mut self.named_error);
        let has_data = std::mem::take(&mut self.has_data);
        if std::mem::take(&mut self.long) {
            events.long_end(named_error);
        } else if let Some(data) = held {
            events.event(data, named_error);
        } else if has_data {
            events.event(&self.data, named_error);
            self.data.clear();
        }
    }
}

/// The value of a line, if it has this field.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, PartialEq, Debug)]
    struct Heard {
        events: Vec<(String, bool)>,
        long: usize,
        long_ends: usize,
    }

    impl Events for Heard {
        fn event(&mut self, data: &[u8], named_error: bool) {
            self.events.push((String::from_utf8_lossy(data).into_owned(), named_error));
        }
        fn long(&mut self, piece: &[u8]) {
            self.long += piece.len();
        }
        fn long_end(&mut self, _: bool) {
            self.long_ends += 1;
        }
    }

    fn split(text: &[u8], sizes: &[usize]) -> Heard {
        let (mut heard, mut splitter, mut rest) = (Heard::default(), Splitter::default(), text);
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            splitter.feed(piece, &mut heard);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        splitter.finish(&mut heard);
        heard
    }

    #[test]
    fn the_standard_s_rules_whatever_the_line_ends_and_the_cut() {
        let text = "\u{feff}: ping\nid: 7\ndata: one\n\n\n\nevent: error\ndata:two\ndata\ndata:  three\nretry: 5\n\n\
                    data: ä\nevent: x\n\nevent: error\n\nevent:error\ndatum: no\n\ndata: last";
        let expected = [("one", false), ("two\n\n three", true), ("ä", false), ("last", false)];
        for line_end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', line_end);
            for size in 1..text.len() {
                let heard = split(text.as_bytes(), &[size]);
                let events: Vec<_> = heard.events.iter().map(|(data, error)| (data.as_str(), *error)).collect();
                assert_eq!(events, expected, "{line_end:?} cut every {size}");
            }
        }
    }

    #[test]
    fn a_byte_order_mark_counts_only_at_the_beginning() {
        let text = "\u{feff}data: one\n\n\u{feff}data: two\n\n";
        for size in 1..text.len() {
            assert_eq!(split(text.as_bytes(), &[size]).events, [("one".to_owned(), false)], "cut every {size}");
        }
    }

    #[test]
    fn a_long_event_goes_on_as_it_comes_and_a_long_comment_is_dropped() {
        for length in [MAX_CARRIED - 1, MAX_CARRIED, MAX_CARRIED + 1, MAX_CARRIED + 20, 3 * MAX_CARRIED] {
            let text = format!(":{0}\n\ndata: {0}\n\ndata: next\n\n", "x".repeat(length));
            let whole = split(text.as_bytes(), &[text.len()]);
            if length > MAX_CARRIED {
                assert_eq!((whole.long, whole.long_ends, whole.events.len()), (length, 1, 1));
            } else {
                assert_eq!((whole.long, whole.long_ends, whole.events.len()), (0, 0, 2));
            }
            for size in [1_000, 65_530, 65_552, 65_560, 70_001] {
                assert_eq!(split(text.as_bytes(), &[size]), whole, "{length} cut every {size}");
            }
        }
        // Many short lines make a long event too.
        let text = format!("{}\n", "data: 0123456789\n".repeat(MAX_CARRIED / 8));
        let whole = split(text.as_bytes(), &[text.len()]);
        assert_eq!((whole.long, whole.long_ends), (11 * MAX_CARRIED / 8 - 1, 1));
        assert_eq!(split(text.as_bytes(), &[1_001, 3]), whole);
    }
}
