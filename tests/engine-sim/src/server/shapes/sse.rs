//! Server-sent events as bytes on the wire: line ends, and into which pieces they are cut.

use bytes::Bytes;

/// How a stream looks on the wire. The default is vLLM's way: LF, each batch of events in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SseStyle {
    /// Lines end with CRLF, as llama.cpp's do in some versions.
    pub crlf: bool,
    /// The stream is cut into pieces of at most so many bytes, of changing sizes, without regard to lines or characters;
    /// each piece is a chunk of its own, written separately. 0: not cut.
    pub piece_bytes: usize,
}

/// Appends an event with a name, whose data is one line of JSON.
pub(super) fn event(name: &str, data: &serde_json::Value, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    data_line(data.to_string().as_bytes(), out);
}

/// Appends an event without a name.
pub(super) fn data_line(data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\n\n");
}

/// Cuts a stream as [`SseStyle`] says.
#[derive(Debug)]
pub(crate) struct Cutter {
    style: SseStyle,
    left: Bytes,
    dice: u64,
}

impl Cutter {
    pub(crate) fn new(style: SseStyle) -> Self {
        Self { style, left: Bytes::new(), dice: 1 }
    }

    /// Nothing is left to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether each piece is to be written by itself.
    pub(crate) fn cuts(&self) -> bool {
        self.style.piece_bytes > 0
    }

    /// Takes events with LF; only when nothing is left.
    pub(crate) fn put(&mut self, events: Vec<u8>) {
        self.left = if self.style.crlf {
            // A line end inside JSON is escaped, so every LF here is one of SSE.
            let mut out = Vec::with_capacity(events.len() + 16);
            for byte in events {
                if byte == b'\n' {
                    out.push(b'\r');
                }
                out.push(byte);
            }
            out.into()
        } else {
            events.into()
        };
    }

    /// The next piece; empty when nothing is left.
    pub(crate) fn take(&mut self) -> Bytes {
        if self.style.piece_bytes == 0 {
            return std::mem::take(&mut self.left);
        }
        // Knuth's multiplier: sizes without a pattern, the same every time.
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = 1 + (self.dice >> 33) as usize % self.style.piece_bytes;
        self.left.split_to(size.min(self.left.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(style: SseStyle) -> Vec<Bytes> {
        let mut cutter = Cutter::new(style);
        cutter.put(b"data: one\n\ndata: two\n\n".to_vec());
        std::iter::from_fn(|| (!cutter.is_empty()).then(|| cutter.take())).collect()
    }

    #[test]
    fn pieces_together_are_the_whole() {
        assert_eq!(cut(SseStyle::default()).len(), 1);
        let pieces = cut(SseStyle { crlf: true, piece_bytes: 5 });
        assert!(pieces.iter().all(|piece| (1..=5).contains(&piece.len())));
        assert!(pieces.iter().any(|piece| piece.len() != pieces[0].len()), "{pieces:?}");
        assert_eq!(pieces.concat(), b"data: one\r\n\r\ndata: two\r\n\r\n");
        assert_eq!(cut(SseStyle { piece_bytes: 1, ..SseStyle::default() }).len(), 22);
    }
}
