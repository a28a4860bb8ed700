//! Who waits for a request, and what is written down about it.

use tokio::sync::{mpsc, oneshot};

use super::api::Generation;
use super::core::unix_seconds;
use super::state::{Outcome, RequestRecord};
use crate::model::{EventKind, Nanos};

/// News of a streaming request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Progress {
    /// So many more tokens.
    Tokens(u64),
    /// That was the last one; so many prompt tokens had been in the cache.
    Done { cached_tokens: u64 },
}

/// Waits for a request. The sender is dropped when the engine restarts.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// All at once; the value is the number of cached prompt tokens.
    Whole(oneshot::Receiver<u64>),
    /// Token by token.
    Stream(mpsc::UnboundedReceiver<Progress>),
}

#[derive(Debug)]
enum Sink {
    Whole(oneshot::Sender<u64>),
    Stream(mpsc::UnboundedSender<Progress>),
}

/// The other end of a [`Waiter`], and the record that the request will leave.
#[derive(Debug)]
pub(crate) struct Subscriber {
    sink: Sink,
    pub(crate) finish_reason: &'static str,
    submitted: Nanos,
    first_token: Option<Nanos>,
    record: RequestRecord,
}

impl Subscriber {
    /// For a request submitted at the model time `submitted`.
    pub(crate) fn new(
        id: u64,
        generation: &Generation,
        request_id: Option<String>,
        submitted: Nanos,
    ) -> (Self, Waiter) {
        let (sink, waiter) = if generation.stream {
            let (sender, receiver) = mpsc::unbounded_channel();
            (Sink::Stream(sender), Waiter::Stream(receiver))
        } else {
            let (sender, receiver) = oneshot::channel();
            (Sink::Whole(sender), Waiter::Whole(receiver))
        };
        let record = RequestRecord {
            id,
            request_id,
            start_s: unix_seconds(),
            stream: generation.stream,
            prompt_tokens: generation.prompt.tokens(),
            cached_tokens: 0,
            output_tokens: generation.reply.tokens,
            ttft_ms: None,
            e2e_ms: 0.0,
            outcome: Outcome::Finished,
        };
        let finish_reason = generation.finish_reason;
        (Self { sink, finish_reason, submitted, first_token: None, record }, waiter)
    }

    /// Something happened short of the end.
    pub(crate) fn note(&mut self, at: Nanos, kind: EventKind) {
        match (kind, &self.sink) {
            (EventKind::Admitted { cached_tokens }, _) => self.record.cached_tokens = cached_tokens,
            (EventKind::FirstToken, _) => self.first_token = Some(at),
            // An error means that the client has just left; its ticket cancels the request.
            (EventKind::Tokens { count }, Sink::Stream(sender)) => drop(sender.send(Progress::Tokens(count))),
            (EventKind::Tokens { .. } | EventKind::Finished { .. }, _) => {}
        }
    }

    /// The end: whoever waits is told if it finished, and otherwise sees the channel close.
    pub(crate) fn close(self, at: Nanos, outcome: Outcome) -> RequestRecord {
        let Self { sink, submitted, first_token, mut record, .. } = self;
        record.e2e_ms = milliseconds(submitted, at);
        record.ttft_ms = first_token.map(|first| milliseconds(submitted, first));
        record.outcome = outcome;
        if outcome == Outcome::Finished {
            let cached_tokens = record.cached_tokens;
            // An error means that the client has just left, which is its business.
            match sink {
                Sink::Whole(sender) => drop(sender.send(cached_tokens)),
                Sink::Stream(sender) => drop(sender.send(Progress::Done { cached_tokens })),
            }
        }
        record
    }
}

fn milliseconds(from: Nanos, to: Nanos) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}
