//! What became of the requests.

use std::collections::BTreeMap;
use std::time::Duration;

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
    /// From sending to the first byte of the body.
    pub ttft: Option<Duration>,
    /// From sending to the end.
    pub duration: Duration,
    /// Completion tokens by the response's `usage`; 0 where it has none.
    pub tokens: u64,
    /// The body, as far as it came.
    pub body: Bytes,
}

impl Outcome {
    /// A complete 200.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == Some(200) && self.error.is_none() && !self.cut
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

    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// Completion tokens in a JSON response or in the chunks of an SSE response.
pub(super) fn completion_tokens(body: &[u8]) -> u64 {
    let of = |value: &Value| value.pointer("/usage/completion_tokens").and_then(Value::as_u64);
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        return of(&value).unwrap_or(0);
    }
    let text = String::from_utf8_lossy(body);
    let chunks = text.lines().rev().filter_map(|line| line.strip_prefix("data: "));
    chunks.filter_map(|chunk| serde_json::from_str(chunk).ok()).find_map(|chunk: Value| of(&chunk)).unwrap_or(0)
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
    fn tokens_are_found_in_both_forms() {
        assert_eq!(completion_tokens(br#"{"usage":{"completion_tokens":7}}"#), 7);
        let stream = b"data: {\"choices\":[]}\n\ndata: {\"usage\":{\"completion_tokens\":9}}\n\ndata: [DONE]\n\n";
        assert_eq!(completion_tokens(stream), 9);
        assert_eq!(completion_tokens(b"oops"), 0);
    }
}
