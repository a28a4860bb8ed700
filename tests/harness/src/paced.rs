//! A body that is handed to the connection piece by piece, each flushed before the next: how the bytes are cut is how they
//! travel, as far as the kernel lets them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::Sleep;

/// Sizes of [`Pieces::Odd`], in turn.
const ODD_SIZES: [usize; 8] = [1, 7, 2, 31, 3, 127, 5, 13];

/// How a body is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pieces {
    /// Not at all.
    #[default]
    Whole,
    /// Into pieces of so many bytes; 0 counts as 1.
    Of(usize),
    /// Into pieces of several odd sizes in turn.
    Odd,
}

impl Pieces {
    /// The pieces of a body, none of them empty.
    #[must_use]
    pub fn cut(self, body: &Bytes) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        let mut from = 0;
        while from < body.len() {
            let size = match self {
                Self::Whole => body.len(),
                Self::Of(size) => size.max(1),
                Self::Odd => ODD_SIZES[pieces.len() % ODD_SIZES.len()],
            };
            let to = (from + size).min(body.len());
            pieces.push(body.slice(from..to));
            from = to;
        }
        pieces
    }
}

/// A body in pieces.
#[derive(Debug, Default)]
pub struct Paced {
    pieces: VecDeque<Bytes>,
    /// Bytes in `pieces`, where the receiver is told the length first.
    left: Option<u64>,
    trailers: Option<HeaderMap>,
    /// Nothing is sent before this.
    gate: Option<oneshot::Receiver<()>>,
    pause: Duration,
    /// What is waited for before the next piece.
    waiting: Waiting,
}

#[derive(Debug, Default)]
enum Waiting {
    /// Nothing: this is the first piece, or the wait is over.
    #[default]
    Not,
    /// The connection, to flush what it has.
    Flush,
    Pause(Pin<Box<Sleep>>),
}

impl Paced {
    /// A body whose length is announced.
    #[must_use]
    pub fn sized(pieces: Vec<Bytes>) -> Self {
        let left = Some(pieces.iter().map(|piece| piece.len() as u64).sum());
        Self { pieces: pieces.into(), left, ..Self::default() }
    }

    /// A body whose end is only known when it comes.
    #[must_use]
    pub fn open_ended(pieces: Vec<Bytes>) -> Self {
        Self { pieces: pieces.into(), ..Self::default() }
    }

    /// Ends with these trailers.
    #[must_use]
    pub fn trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }

    /// Sends nothing before the other end of the channel says so; when it is dropped, too.
    #[must_use]
    pub fn after(mut self, gate: oneshot::Receiver<()>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Waits so long before every piece but the first.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if let Some(gate) = &mut this.gate {
            let _ = ready!(Pin::new(gate).poll(cx));
            this.gate = None;
        }
        match &mut this.waiting {
            Waiting::Not => {}
            Waiting::Flush => {
                // Not ready for a moment: then the connection writes out what it has.
                this.waiting = Waiting::Not;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Waiting::Pause(sleep) => {
                ready!(sleep.as_mut().poll(cx));
                this.waiting = Waiting::Not;
            }
        }
        let Some(piece) = this.pieces.pop_front() else {
            return Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        };
        if let Some(left) = &mut this.left {
            *left -= piece.len() as u64;
        }
        if !this.pieces.is_empty() {
            this.waiting = match this.pause {
                Duration::ZERO => Waiting::Flush,
                pause => Waiting::Pause(Box::pin(tokio::time::sleep(pause))),
            };
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn nothing_is_lost_however_it_is_cut() {
        let body = Bytes::from((0..=255).collect::<Vec<u8>>());
        for (pieces, count) in [(Pieces::Whole, 1), (Pieces::Of(1), 256), (Pieces::Of(100), 3), (Pieces::Odd, 14)] {
            let cut = pieces.cut(&body);
            assert_eq!(cut.len(), count, "{pieces:?}");
            assert_eq!(Paced::sized(cut).collect().await.unwrap().to_bytes(), body, "{pieces:?}");
        }
        assert!(Pieces::Of(1).cut(&Bytes::new()).is_empty());
    }

    #[tokio::test]
    async fn it_waits_at_the_gate_and_ends_with_trailers() {
        let (open, gate) = oneshot::channel();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-end", hyper::header::HeaderValue::from_static("1"));
        let mut body = Paced::open_ended(vec![Bytes::from_static(b"a")]).trailers(trailers).after(gate);
        assert!(futures::poll!(body.frame()).is_pending());
        open.send(()).unwrap();
        let collected = body.collect().await.unwrap();
        assert!(collected.trailers().is_some_and(|trailers| trailers.contains_key("x-end")));
        assert_eq!(collected.to_bytes(), "a");
    }
}
