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
use super::sse::Script;
use super::subscriber::Progress;

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

/// A stream of tokens.
pub(crate) struct Events {
    script: Script,
    news: mpsc::UnboundedReceiver<Progress>,
    ticket: Ticket,
    _flight: Flight,
    reset: ResetFlag,
    /// Stop after so many tokens, wait, cut.
    fault: Option<(u64, Until)>,
    sent: u64,
    over: bool,
}

impl Events {
    pub(crate) fn new(
        script: Script,
        news: mpsc::UnboundedReceiver<Progress>,
        ticket: Ticket,
        flight: Flight,
        reset: ResetFlag,
        fault: Option<(u64, Until)>,
    ) -> Self {
        Self { script, news, ticket, _flight: flight, reset, fault, sent: 0, over: false }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let limit = self.fault.as_ref().map_or(u64::MAX, |(after, _)| *after);
        if self.sent >= limit
            && let Some((_, until)) = &mut self.fault
        {
            ready!(until.as_mut().poll(cx));
            return Poll::Ready(Some(Err(self.reset.cut())));
        }
        let mut due = 0;
        let mut end = None;
        while let Poll::Ready(news) = self.news.poll_recv(cx) {
            match news {
                Some(Progress::Tokens(count)) => due += count,
                Some(Progress::Done { cached_tokens }) => {
                    end = Some(cached_tokens);
                    break;
                }
                // The engine was restarted.
                None => return Poll::Ready(Some(Err(self.reset.cut()))),
            }
        }
        if end.is_some() {
            self.ticket.done();
        }
        let count = due.min(limit - self.sent);
        let mut out = Vec::with_capacity(512);
        if count > 0 {
            self.script.tokens_event(self.sent, count, &mut out);
            self.sent += count;
        }
        if let Some(cached_tokens) = end
            && self.sent >= self.script.tokens()
            && self.sent < limit
        {
            self.script.end(cached_tokens, &mut out);
            self.over = true;
        }
        if out.is_empty() { Poll::Pending } else { Poll::Ready(Some(Ok(out.into()))) }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Events(events) => events.poll_event(cx).map(|event| event.map(|result| result.map(Frame::data))),
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
            Self::Events(events) => events.over,
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
