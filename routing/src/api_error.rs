//! Errors as OpenAI clients expect them: `{"error": {"message", "type", "param", "code"}}` and a status that says
//! whether trying again helps.

use serde::Serialize;

use crate::request::RequestError;
use crate::route::Refusal;

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Seconds after which trying again makes sense.
    pub retry_after_s: Option<u32>,
    body: Body,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Body {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: &'a Body,
}

const INVALID: &str = "invalid_request_error";

impl ApiError {
    fn new(status: u16, kind: &'static str, code: Option<&'static str>, message: String) -> Self {
        ApiError { status, retry_after_s: None, body: Body { message, kind, param: None, code } }
    }

    /// 400: the body could not be read.
    #[must_use]
    pub fn unreadable(error: &RequestError) -> Self {
        let mut answer = Self::new(400, INVALID, Some("invalid_request_body"), error.to_string());
        answer.body.param = error.param();
        answer
    }

    /// 404: no pool has this model.
    #[must_use]
    pub fn model_not_found(model: &str) -> Self {
        // Whatever a client sent comes back to it, but not without end.
        let shown: String = model.chars().take(128).collect();
        let message = format!("The model `{shown}` does not exist here; GET /v1/models lists those that do.");
        let mut answer = Self::new(404, INVALID, Some("model_not_found"), message);
        answer.body.param = Some("model");
        answer
    }

    /// 405: the path takes another method.
    #[must_use]
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("{path} does not take {method}: expected POST.");
        Self::new(405, INVALID, Some("method_not_allowed"), message)
    }

    /// 413: the body is larger than the operator allows.
    #[must_use]
    pub fn too_large(limit_bytes: u64) -> Self {
        let message = format!("The request body is larger than {limit_bytes} bytes (filter.max_body).");
        Self::new(413, INVALID, Some("request_too_large"), message)
    }

    /// 429 when all are at their cap, 503 when none can serve.
    #[must_use]
    pub fn refused(refusal: Refusal, pool: &str) -> Self {
        let mut answer = match refusal {
            Refusal::TooLong { window } => {
                return Self::new(400, INVALID, Some("context_length_exceeded"), format!("{window}"));
            }
            Refusal::AtCap => Self::new(
                429,
                "rate_limit_error",
                Some("capacity_exhausted"),
                format!("Every endpoint of {pool} has as many requests as it may; try again."),
            ),
            Refusal::NoEndpoint => Self::new(
                503,
                "service_unavailable_error",
                Some("no_endpoint"),
                format!("No endpoint of {pool} can serve at the moment; try again."),
            ),
        };
        answer.retry_after_s = Some(1);
        answer
    }

    /// 503: the filter has no snapshot.
    #[must_use]
    pub fn not_configured() -> Self {
        let message = "The gateway has no configuration yet; try again.".to_owned();
        let mut answer = Self::new(503, "service_unavailable_error", Some("not_configured"), message);
        answer.retry_after_s = Some(1);
        answer
    }

    /// The JSON body.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        // Strings serialise; a failure is not possible, and an empty body would still carry the status.
        serde_json::to_vec(&Envelope { error: &self.body }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_openais() {
        let body: serde_json::Value =
            serde_json::from_slice(&ApiError::model_not_found(&"x\"".repeat(500)).body()).unwrap();
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["param"], "model");
        assert_eq!(body["error"]["code"], "model_not_found");
        assert!(body["error"]["message"].as_str().unwrap().len() < 300);
    }

    #[test]
    fn an_unreadable_body_names_its_field() {
        let body = ApiError::unreadable(&RequestError::ModelKind("a number")).body();
        assert!(String::from_utf8(body).unwrap().contains(r#""param":"model""#));
    }
}
