//! Who waits for a request, and what is written down about it.

use tokio::sync::{mpsc, oneshot};

use super::core::unix_seconds;
use super::shapes::Generation;
use super::state::{Outcome, RequestRecord};
use crate::model::{EventKind, Nanos};

/// News of one choice of a streaming request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) choice: usize,
    pub(crate) news: News,
}

/// What is new.
#[derive(Debug, Clone, Copy)]
pub(crate) enum News {
    /// So many more tokens.
    Tokens(u64),
    /// That was the last one; so many prompt tokens had been in the cache.
    Done { cached_tokens: u64 },
}

/// Waits for a request. Senders are dropped when the engine restarts.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// All at once, by choice; the value is the number of cached prompt tokens.
    Whole(Vec<oneshot::Receiver<u64>>),
    /// Token by token.
    Stream(mpsc::UnboundedReceiver<Progress>),
}

#[derive(Debug)]
enum Sink {
    Whole(oneshot::Sender<u64>),
    Stream(usize, mpsc::UnboundedSender<Progress>),
}

impl Sink {
    /// One per choice, and their other end.
    fn pairs(generation: &Generation) -> (Vec<Self>, Waiter) {
        let count = generation.choices.len();
        if generation.stream {
            let (sender, receiver) = mpsc::unbounded_channel();
            ((0..count).map(|n| Self::Stream(n, sender.clone())).collect(), Waiter::Stream(receiver))
        } else {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| oneshot::channel()).unzip();
            (senders.into_iter().map(Self::Whole).collect(), Waiter::Whole(receivers))
        }
    }
}

/// The other end of a [`Waiter`] for one choice, and the record that it will leave.
#[derive(Debug)]
pub(crate) struct Subscriber {
    sink: Sink,
    pub(crate) finish_reason: &'static str,
    submitted: Nanos,
    first_token: Option<Nanos>,
    record: RequestRecord,
}

impl Subscriber {
    /// One per choice of a request submitted at the model time `submitted`; ids count up from `first_id`.
    pub(crate) fn all(
        first_id: u64,
        generation: &Generation,
        path: &str,
        headers: &[(String, String)],
        submitted: Nanos,
    ) -> (Vec<Self>, Waiter) {
        let (sinks, waiter) = Sink::pairs(generation);
        let start_s = unix_seconds();
        let request_id = headers.iter().find(|(name, _)| name == "x-request-id").map(|(_, value)| value);
        let choices = (first_id..).zip(sinks).zip(&generation.choices);
        let subscribers = choices.map(|((id, sink), choice)| Self {
            sink,
            finish_reason: choice.finish_reason,
            submitted,
            first_token: None,
            record: RequestRecord {
                id,
                request_id: request_id.cloned(),
                headers: headers.to_vec(),
                start_s,
                path: path.to_owned(),
                model: generation.model.clone(),
                stream: generation.stream,
                prompt_tokens: choice.prompt.tokens(),
                cached_tokens: 0,
                output_tokens: choice.reply.tokens,
                ttft_ms: None,
                e2e_ms: 0.0,
                outcome: Outcome::Finished,
            },
        });
        (subscribers.collect(), waiter)
    }

    /// The id of its sequence in the model.
    pub(crate) fn id(&self) -> u64 {
        self.record.id
    }

    /// Something happened short of the end.
    pub(crate) fn note(&mut self, at: Nanos, kind: EventKind) {
        match (kind, &self.sink) {
            (EventKind::Admitted { cached_tokens }, _) => self.record.cached_tokens = cached_tokens,
            (EventKind::FirstToken, _) => self.first_token = Some(at),
            // An error means that the client has just left; its ticket cancels the request.
            (EventKind::Tokens { count }, Sink::Stream(choice, sender)) => {
                let _ = sender.send(Progress { choice: *choice, news: News::Tokens(count) });
            }
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
                Sink::Stream(choice, sender) => {
                    let _ = sender.send(Progress { choice, news: News::Done { cached_tokens } });
                }
            }
        }
        record
    }
}

fn milliseconds(from: Nanos, to: Nanos) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}
