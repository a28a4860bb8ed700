//! `/v1/decisions`: filters send records, people search them.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use weighbridge_routing::decision::record::Record;

use super::error::{ApiError, Body, ErrorBody};
use crate::decisions::{Batch, Found, Search};
use crate::explain::explain;
use crate::service::{Service, now_ms};

/// The largest batch in bytes. A filter's own are at most a quarter of it.
pub(super) const MAX_BODY: usize = 1 << 20;
/// The most records in a batch.
const MAX_RECORDS: usize = 1_000;
/// The longest name of an Envoy, or of one of its VMs, in bytes.
const MAX_ENVOY: usize = 256;
/// The longest text in a query, in bytes.
const MAX_QUERY: usize = 256;
/// Refusals that are spelt out in one answer.
const MAX_SHOWN: usize = 8;
/// Records in an answer, unless `limit` says otherwise, and the most that it can say.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1_000;

fn invalid(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_field", message)
}

/// The name of a VM: a text, or a number as it may draw one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Vm {
    Number(u64),
    Name(String),
}

impl Default for Vm {
    fn default() -> Self {
        Vm::Name(String::new())
    }
}

impl Vm {
    fn into_name(self) -> String {
        match self {
            Vm::Number(number) => number.to_string(),
            Vm::Name(name) => name,
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionsBody {
    /// Which Envoy reports.
    envoy: String,
    /// Which of its VMs; each counts its batches for itself.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    vm: Vm,
    /// The number of the batch. One that comes again, since its answer was late, is not taken again.
    #[serde(default)]
    batch: Option<u64>,
    /// Requests that ended there since the last batch, told of or not.
    #[serde(default)]
    seen: u64,
    /// Records lost since the last batch.
    #[serde(default)]
    dropped: u64,
    /// The records; docs/decisions.md describes their fields.
    decisions: Vec<Value>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct DecisionsTaken {
    kept: usize,
    refused: usize,
    /// The batch has come before, and was taken then.
    repeated: bool,
    /// What is wrong with the first of those that are refused.
    errors: Vec<RefusedRecord>,
}

#[derive(Serialize, ToSchema)]
struct RefusedRecord {
    /// Its place in the batch.
    index: usize,
    message: String,
}

/// A filter sends the records of requests that have ended. Each is taken or refused for itself.
#[utoipa::path(post, path = "/v1/decisions", request_body = DecisionsBody,
    responses((status = 200, body = DecisionsTaken), (status = 400, body = ErrorBody), (status = 413, body = ErrorBody)))]
pub(super) async fn take(
    State(service): State<Arc<Service>>,
    Body(body): Body<DecisionsBody>,
) -> Result<Json<DecisionsTaken>, ApiError> {
    let DecisionsBody { envoy, vm, batch, seen, dropped, decisions: records } = body;
    let vm = vm.into_name();
    if vm.len() > MAX_ENVOY {
        return Err(invalid(format!("vm is {} bytes long: expected at most {MAX_ENVOY}", vm.len())));
    }
    if envoy.len() > MAX_ENVOY {
        return Err(invalid(format!("envoy is {} bytes long: expected at most {MAX_ENVOY}", envoy.len())));
    }
    if records.len() > MAX_RECORDS {
        return Err(invalid(format!("decisions has {} records: expected at most {MAX_RECORDS}", records.len())));
    }
    let taken = service
        .decisions
        .take(Batch { envoy, sender: batch.map(|batch| (vm, batch)), seen, dropped, records }, now_ms());
    let (refused, repeated) = (taken.refused.len(), taken.repeated);
    let errors = taken.refused.into_iter().take(MAX_SHOWN);
    let errors = errors.map(|(index, message)| RefusedRecord { index, message }).collect();
    Ok(Json(DecisionsTaken { kept: taken.kept, refused, repeated, errors }))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DecisionsQuery {
    /// Of this pool.
    pool: Option<String>,
    /// That picked, tried, or were answered by this endpoint.
    endpoint: Option<String>,
    /// That took at least so many ms from arrival to end.
    slow_ms: Option<u64>,
    /// Whose first token came at least so many ms after their arrival.
    ttft_ms: Option<u64>,
    /// That ended since then: ms since 1970, a time such as `2026-01-31T03:00:00Z`, or how long ago, such as `15m`.
    since: Option<String>,
    /// That ended until then; as `since`.
    until: Option<String>,
    /// Explain each in sentences, too.
    #[serde(default)]
    words: bool,
    /// At most so many, 1 to 1000; 100 when left out.
    limit: Option<usize>,
    /// With this `x-request-id`.
    request_id: Option<String>,
}

impl DecisionsQuery {
    fn search(self, service: &Service, now_ms: u64) -> Result<Search, ApiError> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(invalid(format!("limit is {limit}: expected 1 to {MAX_LIMIT}")));
        }
        let texts = [
            ("pool", &self.pool),
            ("endpoint", &self.endpoint),
            ("since", &self.since),
            ("until", &self.until),
            ("request_id", &self.request_id),
        ];
        for (name, text) in texts {
            if let Some(text) = text.as_ref().filter(|text| text.len() > MAX_QUERY) {
                return Err(invalid(format!("{name} is {} bytes long: expected at most {MAX_QUERY}", text.len())));
            }
        }
        if let Some(pool) = self.pool.as_ref().filter(|pool| !service.decisions.knows(pool)) {
            let pools: Vec<_> = service.config.pools.iter().map(|pool| pool.wire.name.as_str()).collect();
            return Err(invalid(format!("pool is {pool:?}: expected one of {}", pools.join(", "))));
        }
        Ok(Search {
            since_ms: self.since.map(|since| time_ms("since", &since, now_ms)).transpose()?,
            until_ms: self.until.map(|until| time_ms("until", &until, now_ms)).transpose()?,
            ttft_ms: self.ttft_ms,
            pool: self.pool,
            endpoint: self.endpoint,
            slow_ms: self.slow_ms,
            request_id: self.request_id,
            limit,
        })
    }
}

/// A point in time as people write it.
fn time_ms(field: &str, text: &str, now_ms: u64) -> Result<u64, ApiError> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    if let Ok(ago) = humantime::parse_duration(text) {
        return Ok(now_ms.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)));
    }
    let time = humantime::parse_rfc3339_weak(text).ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    time.and_then(|since| u64::try_from(since.as_millis()).ok()).ok_or_else(|| {
        let expected = "ms since 1970, a time such as 2026-01-31T03:00:00Z, or how long ago, such as 15m";
        invalid(format!("{field} is {text:?}: expected {expected}"))
    })
}

#[derive(Serialize, ToSchema)]
pub(super) struct DecisionsFound {
    /// The newest first; docs/decisions.md describes their fields.
    #[schema(value_type = Vec<Object>)]
    decisions: Vec<Record>,
    /// With `words=true`: what each of them says, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    explanations: Option<Vec<Vec<Paragraph>>>,
    /// How many match, shown or not.
    matched: usize,
    /// How many were looked at.
    kept: usize,
    /// When the oldest of these ended, in ms since 1970.
    oldest_ms: Option<u64>,
}

/// A part of an explanation.
#[derive(Serialize, ToSchema)]
struct Paragraph {
    /// `request`, `choice`, `others`, `course` or `next`
    about: &'static str,
    /// A heading.
    title: &'static str,
    sentences: Vec<String>,
}

fn explained(record: &Record) -> Vec<Paragraph> {
    let paragraphs = explain(record).paragraphs.into_iter();
    paragraphs.map(|(about, sentences)| Paragraph { about: about.as_str(), title: about.title(), sentences }).collect()
}

/// The records that match, the newest first.
#[utoipa::path(get, path = "/v1/decisions", params(DecisionsQuery),
    responses((status = 200, body = DecisionsFound), (status = 400, body = ErrorBody)))]
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    query: Result<Query<DecisionsQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<DecisionsFound>, ApiError> {
    let Query(query) =
        query.map_err(|rejection| ApiError::new(StatusCode::BAD_REQUEST, "invalid_query", rejection.body_text()))?;
    let words = query.words;
    let search = query.search(&service, now_ms())?;
    let Found { records, matched, kept, oldest_ms } = service.decisions.find(&search);
    let explanations = words.then(|| records.iter().map(explained).collect());
    Ok(Json(DecisionsFound { decisions: records, explanations, matched, kept, oldest_ms }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let now_ms = 1_764_000_000_000;
        assert_eq!(time_ms("since", "1763999999000", now_ms).unwrap(), 1_763_999_999_000);
        assert_eq!(time_ms("since", "15m", now_ms).unwrap(), now_ms - 900_000);
        assert_eq!(time_ms("since", "2025-11-24T16:00:00Z", now_ms).unwrap(), 1_764_000_000_000);
        assert_eq!(time_ms("since", "2025-11-24 16:00:00", now_ms).unwrap(), 1_764_000_000_000);
        assert_eq!(time_ms("since", "900000y", now_ms).unwrap(), 0);
        for wrong in ["", "yesterday", "-5m", "1969-12-31T00:00:00Z"] {
            assert!(time_ms("since", wrong, now_ms).is_err(), "{wrong}");
        }
    }
}
