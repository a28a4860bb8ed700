//! What became of the requests.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use serde_json::Value;

/// The end of one request.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Its number in the run.
    pub nth: usize,
    /// Status, when response headers came.
    pub status: Option<u16>,
    /// Why it failed before it was complete, apart from a cut of our own.
    pub error: Option<String>,
    /// We cut it.
    pub cut: bool,
    /// Response headers.
    pub headers: BTreeMap<String, String>,
    /// Whether a 100 (continue) came before the body was sent.
    pub continued: bool,
    /// Chunks of the body that came.
    pub chunks: usize,
    /// When each of them came, from sending.
    pub chunk_times: Vec<Duration>,
    /// From sending to the first byte of the body.
    pub ttft: Option<Duration>,
    /// From sending to the end.
    pub duration: Duration,
    /// Completion tokens by the response's `usage`; 0 where it has none.
    pub tokens: u64,
    /// What the response says about tokens.
    pub usage: Usage,
    /// The body, as far as it came.
    pub body: Bytes,
}

impl Outcome {
    /// A complete 200.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == Some(200) && self.error.is_none() && !self.cut
    }

    /// Nothing, when it is a complete 200.
    ///
    /// # Errors
    /// What came instead.
    pub fn served(&self) -> Result<()> {
        let Outcome { status, error, body, .. } = self;
        ensure!(self.is_ok(), "status {status:?}, {error:?}: {}", String::from_utf8_lossy(body));
        Ok(())
    }

    /// A response header; empty when absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The endpoint that answered, by the gateway.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        self.header("x-weighbridge-endpoint")
    }

    /// The engine that answered, by itself.
    #[must_use]
    pub fn engine(&self) -> &str {
        self.header("x-engine-id")
    }

    /// The decision record, where the request asked for it; null when absent.
    #[must_use]
    pub fn decision(&self) -> Value {
        serde_json::from_str(self.header("x-weighbridge-decision")).unwrap_or(Value::Null)
    }

    /// The text of the first choice of a chat completion, streamed or not.
    #[must_use]
    pub fn reply(&self) -> String {
        let text = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
        match self.json() {
            Value::Null => events(&self.body).filter_map(|event| text(&event, "/choices/0/delta/content")).collect(),
            whole => text(&whole, "/choices/0/message/content").unwrap_or_default(),
        }
    }

    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// What a response says about its tokens, in the words of any of the APIs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// How many of them were found in the prefix cache.
    pub cached_tokens: Option<u64>,
    /// Tokens generated.
    pub completion_tokens: Option<u64>,
}

impl Usage {
    /// The last `usage` of a JSON response, or of the events of a stream.
    pub(super) fn of_body(body: &[u8]) -> Self {
        if let Ok(value) = serde_json::from_slice::<Value>(body) {
            return Self::of(&value).unwrap_or_default();
        }
        // Where several events have one (messages), the later adds to the earlier.
        events(body).filter_map(|event| Self::of(&event)).fold(Self::default(), |earlier, later| Self {
            prompt_tokens: later.prompt_tokens.or(earlier.prompt_tokens),
            cached_tokens: later.cached_tokens.or(earlier.cached_tokens),
            completion_tokens: later.completion_tokens.or(earlier.completion_tokens),
        })
    }

    fn of(value: &Value) -> Option<Self> {
        let places = ["/usage", "/response/usage", "/message/usage"];
        let usage = places.iter().filter_map(|place| value.pointer(place)).find(|usage| usage.is_object())?;
        let first = |paths: &[&str]| paths.iter().find_map(|path| usage.pointer(path).and_then(Value::as_u64));
        Some(Self {
            prompt_tokens: first(&["/prompt_tokens", "/input_tokens"]),
            cached_tokens: first(&[
                "/prompt_tokens_details/cached_tokens",
                "/input_tokens_details/cached_tokens",
                "/cache_read_input_tokens",
            ]),
            completion_tokens: first(&["/completion_tokens", "/output_tokens"]),
        })
    }
}

/// The JSON values in the `data:` lines of a stream.
fn events(body: &[u8]) -> impl Iterator<Item = Value> {
    body.split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"data:"))
        .filter_map(|data| serde_json::from_slice(data).ok())
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Report {
    /// One per request, in the order of their numbers.
    pub outcomes: Vec<Outcome>,
    /// From the first connection to the last byte.
    pub elapsed: Duration,
}

impl Report {
    pub(super) fn new(mut outcomes: Vec<Outcome>, elapsed: Duration) -> Self {
        outcomes.sort_by_key(|outcome| outcome.nth);
        Self { outcomes, elapsed }
    }

    /// How many are complete 200s.
    #[must_use]
    pub fn ok(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.is_ok()).count()
    }

    /// Complete 200s per endpoint.
    #[must_use]
    pub fn by_endpoint(&self) -> BTreeMap<String, usize> {
        count(self.outcomes.iter().filter(|outcome| outcome.is_ok()).map(|outcome| outcome.endpoint().to_owned()))
    }

    /// Complete 200s per engine.
    #[must_use]
    pub fn by_engine(&self) -> BTreeMap<String, usize> {
        count(self.outcomes.iter().filter(|outcome| outcome.is_ok()).map(|outcome| outcome.engine().to_owned()))
    }

    /// Requests per status; without one, the error's text, or `cut`.
    #[must_use]
    pub fn by_status(&self) -> BTreeMap<String, usize> {
        count(self.outcomes.iter().map(|outcome| match (&outcome.error, outcome.status) {
            _ if outcome.cut => "cut".to_owned(),
            (Some(error), _) => error.clone(),
            (None, Some(status)) => status.to_string(),
            (None, None) => "no answer".to_owned(),
        }))
    }

    /// The given share (0..=1) of complete requests took at most this long; zero without any.
    #[must_use]
    pub fn duration_quantile(&self, share: f64) -> Duration {
        quantile(
            self.outcomes.iter().filter(|outcome| outcome.is_ok()).map(|outcome| outcome.duration).collect(),
            share,
        )
    }

    /// The given share (0..=1) of complete requests had their first byte within this time; zero without any.
    #[must_use]
    pub fn ttft_quantile(&self, share: f64) -> Duration {
        quantile(
            self.outcomes.iter().filter(|outcome| outcome.is_ok()).filter_map(|outcome| outcome.ttft).collect(),
            share,
        )
    }
}

fn count(keys: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key).or_insert(0) += 1;
    }
    counts
}

fn quantile(mut values: Vec<Duration>, share: f64) -> Duration {
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1).min(values.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let values: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(quantile(values.clone(), 0.99), Duration::from_millis(99));
        assert_eq!(quantile(values.clone(), 1.0), Duration::from_millis(100));
        assert_eq!(quantile(values, 0.0), Duration::from_millis(1));
        assert_eq!(quantile(Vec::new(), 0.5), Duration::ZERO);
    }

    #[test]
    fn tokens_are_found_in_every_form() {
        let found = |body: &[u8]| {
            let usage = Usage::of_body(body);
            (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        };
        let whole =
            br#"{"usage":{"prompt_tokens":9,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":8}}}"#;
        assert_eq!(found(whole), (Some(9), Some(8), Some(7)));
        let stream =
            b"data: {\"choices\":[]}\r\n\r\ndata: {\"usage\":{\"completion_tokens\":9}}\r\n\r\ndata: [DONE]\r\n\r\n";
        assert_eq!(found(stream), (None, None, Some(9)));
        let messages = b"event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":4}}}\n\n\
            event: message_delta\ndata: {\"usage\":{\"output_tokens\":3}}\n\n";
        assert_eq!(found(messages), (Some(5), Some(4), Some(3)));
        assert_eq!(found(b"oops"), (None, None, None));
    }

    #[test]
    fn a_reply_is_the_same_in_both_forms() {
        let outcome = |body: &'static [u8]| Outcome { body: Bytes::from_static(body), ..Outcome::default() };
        assert_eq!(outcome(br#"{"choices":[{"message":{"content":"ab"}}]}"#).reply(), "ab");
        let stream = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n";
        assert_eq!(outcome(stream).reply(), "ab");
    }
}
