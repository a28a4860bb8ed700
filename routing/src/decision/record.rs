//! A record as its readers see it: the prober, which keeps it, and whoever explains it.
//!
//! The writer ([`super::Decision`]) and this reader are held together by a test. Fields that a newer filter may add are
//! ignored; fields that are missing have their defaults, so that an older filter's records can be read too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Fields that are added to a record on its way.
pub const ADDED: [&str; 3] = ["request_id", "envoy", "received_ms"];

/// The largest record in bytes of JSON. What a filter writes is below 6 KB.
pub const MAX_BYTES: usize = 16 * 1024;
/// The longest text in a record, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;
/// The most elements that a list in a record may have.
pub const MAX_ELEMENTS: usize = 64;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One decision, from arrival to end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When the request had arrived, in ms since 1970.
    #[serde(default, skip_serializing_if = "is_default")]
    pub time_ms: u64,
    /// `x-request-id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Which Envoy decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envoy: Option<String>,
    /// When the prober got it, in ms since 1970.
    #[serde(default, skip_serializing_if = "is_default")]
    pub received_ms: u64,
    /// The pool.
    pub pool: String,
    /// The snapshot in force.
    pub snapshot: u64,
    /// The pool's policy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// Why.
    pub reason: String,
    /// Where it was to go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picked: Option<String>,
    /// In which order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Each endpoint's terms.
    #[serde(default)]
    pub candidates: Vec<Candidate>,
    /// Endpoints that are not in `candidates`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub omitted: u64,
    /// Of these, those that could not take the request, by why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub omitted_excluded: BTreeMap<String, u64>,
    /// Tokens of the prompt, by estimate.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Tokens that the answer was expected to have.
    #[serde(default)]
    pub output_tokens: u64,
    /// What affinity weighed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Prefix>,
    /// How it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// The pool that was asked for, where this one takes what that one would have refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spilled_from: Option<String>,
    /// `fresh` or `stale`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signals: Option<String>,
    /// What a second policy said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Shadow>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Outcome>,
}

/// One endpoint as the decision saw it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Which.
    pub id: String,
    /// Its weight.
    pub weight: f64,
    /// Requests in flight before this one.
    pub in_flight: u32,
    /// The most it may have.
    pub cap: u32,
    /// Tokens under way, by estimate.
    #[serde(default)]
    pub pending_tokens: u64,
    /// What the policy compares, per weight.
    #[serde(default)]
    pub load: f64,
    /// By curve: the share of its weight that it has with this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Whether it was among those compared.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drawn: bool,
    /// Why it was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded: Option<String>,
    /// Of `in_flight`, requests that others sent there.
    #[serde(default, skip_serializing_if = "is_default")]
    pub elsewhere: u32,
    /// The sum of `terms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// What each term adds to the score.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, f64>,
}

/// What affinity weighed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Prefix {
    /// Endpoints that hold the longest known prefix.
    pub holders: Vec<String>,
    /// Its tokens.
    pub matched_tokens: u64,
    /// Tokens of the longest known prefix, where no endpoint that holds it could take the request.
    #[serde(default, skip_serializing_if = "is_default")]
    pub out_of_reach_tokens: u64,
    /// Of these, tokens that the alternative, which the policy would have picked, does not have; absent where that was not weighed:
    /// the holder was no fuller than the alternative, or could not take the request, or the request waited.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missing_tokens: Option<u64>,
    /// How much fuller than the alternative a holder could be, in requests per weight; absent likewise.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allowance: Option<f64>,
}

/// How a request waited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its number: later arrivals of the pool have higher ones.
    #[serde(default)]
    pub ticket: u64,
    /// Waiters before it when it came.
    #[serde(default)]
    pub position: u64,
    /// From its arrival to its slot, in ms.
    pub wait_ms: u64,
}

/// What a second policy said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Shadow {
    /// Which.
    pub policy: String,
    /// Where it would have sent the request, or did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picked: Option<String>,
    /// Whether its pick counted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub routed: bool,
    /// How much fuller the real choice is, in requests per weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_difference: Option<f64>,
    /// How much dearer the real choice is, as the second policy reckons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_difference: Option<f64>,
}

/// How a request ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Who answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// HTTP status; 0 when there was none.
    pub status: u16,
    /// Attempts that Envoy made.
    pub attempts: u32,
    /// From its arrival to the first token, the wait for a slot included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<u64>,
    /// From its arrival to the end, the wait for a slot included.
    pub duration_ms: u64,
    /// As the engine counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Of these, found in its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    /// An error object in an answer whose status was fine.
    #[serde(default, skip_serializing_if = "is_default")]
    pub error: bool,
    /// The endpoints tried, in order, where the first did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<String>,
    /// What Envoy says of an answer that is not the engine's, or not whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

/// Why a text is no record.
#[derive(Debug, thiserror::Error)]
pub enum NotARecord {
    /// It is too long.
    #[error("{0} bytes long: expected at most {MAX_BYTES}")]
    TooLong(usize),
    /// It is not JSON, or not a record.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A field has a value that no filter writes.
    #[error("{field} has {stands}: expected {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it has.
        stands: String,
        /// What it could have.
        expected: String,
    },
}

impl Record {
    /// Reads one record from others, with every size checked.
    ///
    /// # Errors
    /// What is wrong with it, with the field.
    pub fn from_json(json: &str) -> Result<Self, NotARecord> {
        if json.len() > MAX_BYTES {
            return Err(NotARecord::TooLong(json.len()));
        }
        let record: Record = serde_json::from_str(json)?;
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<(), NotARecord> {
        let elements = |field, count: usize| match count {
            0..=MAX_ELEMENTS => Ok(()),
            _ => Err(NotARecord::Field {
                field,
                stands: format!("{count} elements"),
                expected: format!("at most {MAX_ELEMENTS}"),
            }),
        };
        let text = |field, text: &str| match text.len() {
            0..=MAX_TEXT_BYTES => Ok(()),
            length => Err(NotARecord::Field {
                field,
                stands: format!("a text of {length} bytes"),
                expected: format!("at most {MAX_TEXT_BYTES}"),
            }),
        };
        elements("candidates", self.candidates.len())?;
        elements("hosts", self.hosts.len())?;
        elements("omitted_excluded", self.omitted_excluded.len())?;
        text("pool", &self.pool)?;
        text("reason", &self.reason)?;
        text("picked", self.picked.as_deref().unwrap_or_default())?;
        text("request_id", self.request_id.as_deref().unwrap_or_default())?;
        for candidate in &self.candidates {
            text("candidates[].id", &candidate.id)?;
            elements("candidates[].terms", candidate.terms.len())?;
        }
        if let Some(prefix) = &self.prefix {
            elements("prefix.holders", prefix.holders.len())?;
        }
        if let Some(result) = &self.result {
            elements("result.tried", result.tried.len())?;
            text("result.details", result.details.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }

    /// From its arrival to its end, in ms: of one that was refused, as long as it waited.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        let wait_ms = self.queue.as_ref().map_or(0, |queue| queue.wait_ms);
        self.result.as_ref().map_or(0, |result| result.duration_ms).max(wait_ms)
    }

    /// Whether this endpoint was picked, tried, or answered.
    #[must_use]
    pub fn concerns(&self, endpoint: &str) -> bool {
        let is = |id: &Option<String>| id.as_deref() == Some(endpoint);
        let tried = |result: &Outcome| is(&result.endpoint) || result.tried.iter().any(|id| id == endpoint);
        is(&self.picked) || self.result.as_ref().is_some_and(tried)
    }
}
