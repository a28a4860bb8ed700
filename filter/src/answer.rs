//! Answers that come from here.

use weighbridge_routing::api_error::ApiError;
use weighbridge_routing::request::Style;

use crate::host;

/// The decision record, for a client that asked for it and may have it.
pub(crate) const DECISION_HEADER: &str = "x-weighbridge-decision";

/// Why a request goes no further, and what its client is told.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: ApiError,
    /// The pool that refused; `none` when the request named no model that exists.
    pub(crate) pool: String,
    /// The word in the statistics.
    pub(crate) reason: &'static str,
    /// The decision record, where the client asked for it and may have it.
    pub(crate) decision: Option<String>,
}

impl Refusal {
    pub(crate) fn new(error: ApiError, pool: &str, reason: &'static str) -> Self {
        Refusal { error, pool: pool.to_owned(), reason, decision: None }
    }
}

/// Answers the request of the effective context. At most once per request.
pub(crate) fn send(error: &ApiError, decision: Option<&str>, style: Style, details: &str) {
    let retry_after = error.retry_after_s.map(|seconds| seconds.to_string());
    let mut headers = vec![("content-type", "application/json")];
    if let Some(seconds) = &retry_after {
        headers.push(("retry-after", seconds));
    }
    if error.status == 405 {
        headers.push(("allow", "POST"));
    }
    if let Some(decision) = decision {
        headers.push((DECISION_HEADER, decision));
    }
    if host::respond(error.status, details, &headers, &error.body(style)).is_err() {
        host::log(host::Level::Error, "weighbridge: Envoy did not take an error answer");
    }
}
