//! What became of every request, as its client saw it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::load::Outcome;

/// Bytes of a bad answer that are kept, to be shown.
const KEPT_BYTES: usize = 400;

/// What the client meant to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One turn of a conversation, streamed.
    Turn,
    /// An answer in one piece.
    Whole,
    /// A streamed answer.
    Stream,
    /// The client leaves in the middle of a streamed answer.
    Leaves,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Whole, and as asked for.
    Served,
    /// The client left, as it meant to.
    Left,
    /// 200, and then the answer broke off, or was not what was asked for.
    Broken,
    /// A refusal because too many wait, or waited too long: 429 of the gateway's own.
    Refused,
    /// An error of the engine's own, passed on.
    EnginesError,
    /// An error of the gateway's: 5xx.
    GatewaysError,
    /// Another status.
    Other,
    /// The connection was refused or closed before any response headers.
    NoAnswer,
    /// The client gave up waiting for the end.
    GaveUp,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name.
    pub id: String,
    /// The pool that it asked for.
    pub pool: String,
    /// What the client meant to do.
    pub kind: Kind,
    /// When it was sent.
    pub begun: Instant,
    /// How long until its end.
    pub took: Duration,
    /// How long until the first byte of the body.
    pub ttft: Option<Duration>,
    /// How it ended.
    pub end: End,
    /// The endpoint that answered, by the gateway; empty without one.
    pub endpoint: String,
    /// The engine that answered, by itself; empty without one.
    pub engine: String,
    /// The model that the answer names, where it does.
    pub model: Option<String>,
    /// What is wrong, for people; empty when nothing is.
    pub why: String,
}

impl Line {
    /// Reads an outcome.
    #[must_use]
    pub fn new(id: String, pool: &str, kind: Kind, tokens: u32, begun: Instant, outcome: &Outcome) -> Self {
        let (end, why) = judge(kind, tokens, outcome);
        Self {
            id,
            pool: pool.to_owned(),
            kind,
            begun,
            took: outcome.duration,
            ttft: outcome.ttft,
            end,
            endpoint: outcome.endpoint().to_owned(),
            engine: outcome.engine().to_owned(),
            model: model(&outcome.body),
            why,
        }
    }

    /// When it ended.
    #[must_use]
    pub fn ended(&self) -> Instant {
        self.begun + self.took
    }

    /// Whether it ended as its client wished.
    #[must_use]
    pub fn is_good(&self) -> bool {
        matches!(self.end, End::Served | End::Left)
    }
}

fn judge(kind: Kind, tokens: u32, outcome: &Outcome) -> (End, String) {
    let body = || {
        let kept = &outcome.body[outcome.body.len().saturating_sub(KEPT_BYTES)..];
        String::from_utf8_lossy(kept).into_owned()
    };
    match (outcome.status, &outcome.error) {
        _ if outcome.cut => (End::Left, String::new()),
        (Some(200), None) => {
            let streamed = kind != Kind::Whole;
            if streamed && !outcome.body.ends_with(b"data: [DONE]\n\n") {
                (End::Broken, format!("the stream ends without [DONE]: {}", body()))
            } else if outcome.tokens != u64::from(tokens) {
                (End::Broken, format!("{} tokens instead of {tokens}: {}", outcome.tokens, body()))
            } else {
                (End::Served, String::new())
            }
        }
        (_, Some(error)) if error.starts_with("not complete after") => (End::GaveUp, error.clone()),
        (Some(200), Some(error)) => (End::Broken, error.clone()),
        (None, error) => (End::NoAnswer, error.clone().unwrap_or_default()),
        (Some(status), _) => {
            let end = match status {
                429..600 if !outcome.engine().is_empty() => End::EnginesError,
                429 => End::Refused,
                500..600 => End::GatewaysError,
                _ => End::Other,
            };
            (end, format!("{status} {}", body()))
        }
    }
}

/// The model that an answer names, streamed or not. Answers name it early.
fn model(body: &[u8]) -> Option<String> {
    let event = || body.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"data:"));
    let value: Value =
        serde_json::from_slice(body).or_else(|_| serde_json::from_slice(event().unwrap_or_default())).ok()?;
    value["model"].as_str().map(str::to_owned)
}

/// All that have ended.
#[derive(Debug, Default)]
pub struct Ledger {
    lines: Mutex<Vec<Line>>,
}

impl Ledger {
    /// Adds one.
    pub fn enter(&self, line: Line) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Takes what has ended since this was last called.
    #[must_use]
    pub fn take(&self) -> Vec<Line> {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
