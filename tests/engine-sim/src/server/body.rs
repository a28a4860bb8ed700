//! Response bodies, as hyper polls them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::core::{Flight, Ticket};
use super::shapes::{ApiError, Choice, Cutter, Generation, SseStyle, Writer};
use super::subscriber::{News, Progress};

/// Ends a connection without a proper end of its response.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut on purpose")]
pub(crate) struct Cut;

/// Whether a connection ends with RST when it is dropped; shared by the connection and its responses.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResetFlag(Arc<AtomicBool>);

impl ResetFlag {
    /// The connection shall be reset; return the error from the service or body.
    pub(crate) fn cut(&self) -> Cut {
        self.0.store(true, Ordering::Relaxed);
        Cut
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Something to wait for before a cut.
pub(crate) type Until = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How long a cut waits, so that what was sent before it reaches the client.
pub(crate) const CUT_DELAY: Duration = Duration::from_millis(5);

/// A response body.
pub(crate) enum Answer {
    /// All of it.
    Full(Bytes),
    /// Server-sent events.
    Events(Box<Events>),
    /// A part of it, then a cut.
    Part { bytes: Bytes, until: Until, reset: ResetFlag },
}

/// What a stream does after so many tokens.
pub(crate) enum MidStream {
    /// Waits for something, then cuts the connection.
    Cut(Until),
    /// Tells of an error, and ends.
    Error,
}

/// Called when a stream has ended well.
pub(crate) type AtEnd = Box<dyn FnOnce() + Send>;

/// How a stream is told.
pub(crate) struct Telling {
    pub(crate) writer: Box<dyn Writer>,
    pub(crate) style: SseStyle,
    pub(crate) at_end: Option<AtEnd>,
}

/// A stream of tokens.
pub(crate) struct Events {
    writer: Box<dyn Writer>,
    cutter: Cutter,
    /// The piece before is to be written before the next.
    paused: bool,
    output_tokens: u64,
    at_end: Option<AtEnd>,
    news: mpsc::UnboundedReceiver<Progress>,
    ticket: Ticket,
    _flight: Flight,
    reset: ResetFlag,
    fault: Option<(u64, MidStream)>,
    choices: Vec<Sent>,
    cached_tokens: u64,
    over: bool,
}

/// How far a choice is.
#[derive(Debug, Clone, Copy)]
struct Sent {
    is_first: bool,
    tokens: u64,
    due: u64,
    done: bool,
}

impl Events {
    pub(crate) fn new(
        generation: &Generation,
        Telling { writer, style, at_end }: Telling,
        news: mpsc::UnboundedReceiver<Progress>,
        (ticket, flight): (Ticket, Flight),
        reset: ResetFlag,
        fault: Option<(u64, MidStream)>,
    ) -> Self {
        let unsent = |choice: &Choice| Sent { is_first: choice.is_first, tokens: 0, due: 0, done: false };
        let choices = generation.choices.iter().map(unsent).collect();
        Self {
            writer,
            cutter: Cutter::new(style),
            paused: false,
            output_tokens: generation.output_tokens(),
            at_end,
            news,
            ticket,
            _flight: flight,
            reset,
            fault,
            choices,
            cached_tokens: 0,
            over: false,
        }
    }

    /// The next piece of the stream, each written by itself where the style says so.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        if std::mem::take(&mut self.paused) {
            // Pending makes hyper write out what it has.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.cutter.is_empty() {
            match ready!(self.poll_event(cx)) {
                Some(Ok(events)) => self.cutter.put(events),
                Some(Err(cut)) => return Poll::Ready(Some(Err(cut))),
                None => return Poll::Ready(None),
            }
        }
        self.paused = self.cutter.cuts();
        Poll::Ready(Some(Ok(self.cutter.take())))
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Cut>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let limit = self.fault.as_ref().map_or(u64::MAX, |(after, _)| *after);
        let mut sent: u64 = self.choices.iter().map(|choice| choice.tokens).sum();
        if sent >= limit {
            match &mut self.fault {
                Some((_, MidStream::Cut(until))) => {
                    ready!(until.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(self.reset.cut())));
                }
                Some((_, MidStream::Error)) => {
                    // The ticket, dropped with the rest, cancels what still runs.
                    let mut out = Vec::new();
                    self.writer.error(&ApiError::on_demand(500), &mut out);
                    self.over = true;
                    return Poll::Ready(Some(Ok(out)));
                }
                None => {}
            }
        }
        while !self.choices.iter().all(|choice| choice.done)
            && let Poll::Ready(progress) = self.news.poll_recv(cx)
        {
            // Without a sender, the engine was restarted.
            let Some(Progress { choice, news }) = progress else {
                return Poll::Ready(Some(Err(self.reset.cut())));
            };
            let Some(choice) = self.choices.get_mut(choice) else {
                continue;
            };
            match news {
                News::Tokens(count) => choice.due += count,
                News::Done { cached_tokens } => {
                    choice.done = true;
                    self.cached_tokens += if choice.is_first { cached_tokens } else { 0 };
                }
            }
        }
        let mut out = Vec::with_capacity(512);
        for (index, choice) in self.choices.iter_mut().enumerate() {
            let count = choice.due.min(limit - sent);
            if count > 0 {
                self.writer.tokens(index, choice.tokens, count, &mut out);
                choice.tokens += count;
                choice.due = 0;
                sent += count;
            }
        }
        if self.choices.iter().all(|choice| choice.done) {
            self.ticket.done();
            if sent >= self.output_tokens && sent < limit {
                if let Some(at_end) = self.at_end.take() {
                    at_end();
                }
                self.writer.end(self.cached_tokens, &mut out);
                self.over = true;
            }
        }
        if out.is_empty() { Poll::Pending } else { Poll::Ready(Some(Ok(out))) }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Events(events) => events.poll_piece(cx).map(|event| event.map(|result| result.map(Frame::data))),
            Self::Part { bytes, until, reset } => {
                if !bytes.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))));
                }
                ready!(until.as_mut().poll(cx));
                Poll::Ready(Some(Err(reset.cut())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_empty(),
            Self::Events(events) => events.over && events.cutter.is_empty(),
            Self::Part { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Events(_) | Self::Part { .. } => SizeHint::new(),
        }
    }
}
