//! Errors as the clients of an API expect them, with a status that says whether trying again helps.
//!
//! OpenAI's: `{"error": {"message", "type", "param", "code"}}`. Anthropic's: `{"type": "error", "error": {"type", "message"}}`,
//! where the status decides the inner type.

use serde::Serialize;

use crate::eligibility::Ask;
use crate::request::{RequestError, Shape, Style};
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

#[derive(Serialize)]
struct AnthropicEnvelope<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
}

const INVALID: &str = "invalid_request_error";

impl ApiError {
    fn new(status: u16, kind: &'static str, code: Option<&'static str>, message: String) -> Self {
        ApiError { status, retry_after_s: None, body: Body { message, kind, param: None, code } }
    }

    /// The body could not be read: 400, 413 or 415, as the error has it.
    #[must_use]
    pub fn unreadable(error: &RequestError) -> Self {
        let code = match error.status() {
            413 => "request_too_large",
            415 => "unsupported_content_encoding",
            _ => "invalid_request_body",
        };
        let mut answer = Self::new(error.status(), INVALID, Some(code), error.to_string());
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

    /// 400: the client used another name of the model than its engine does, in a body where it cannot be replaced.
    #[must_use]
    pub fn not_renamed(asked: &str, served: &str) -> Self {
        let message = format!(
            "model `{asked}` is another name of `{served}`, which is put in its place in plain JSON bodies only: ask for `{served}`."
        );
        let mut answer = Self::new(400, INVALID, Some("model_alias_not_replaced"), message);
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

    /// 400: no endpoint's context window holds the request. `window` is the largest there is; `prompt` is an estimate.
    #[must_use]
    pub fn context_length(window: u64, prompt: u64, output: u64, shape: Shape) -> Self {
        let total = prompt.saturating_add(output);
        let message = format!(
            "This model's maximum context length is {window} tokens. However, you requested about {total} tokens \
             ({prompt} in the prompt, {output} for the completion)."
        );
        let mut answer = Self::new(400, INVALID, Some("context_length_exceeded"), message);
        answer.body.param = Some(shape.prompt_field());
        answer
    }

    /// 400 when no context window holds the request, 429 when all are at their cap, 503 when none can serve.
    #[must_use]
    pub fn refused(refusal: Refusal, pool: &str, ask: &Ask, shape: Shape) -> Self {
        let mut answer = match refusal {
            Refusal::TooLong { window } => {
                return Self::context_length(window, ask.prompt_tokens, ask.requested_tokens, shape);
            }
            Refusal::AtCap => Self::new(
                429,
                "rate_limit_error",
                Some("capacity_exhausted"),
                format!("Every endpoint of {pool} has as many requests as it may; try again."),
            ),
            Refusal::QueueFull => Self::new(
                429,
                "rate_limit_error",
                Some("queue_full"),
                format!(
                    "Every endpoint of {pool} has as many requests as it may, and as many wait as may; try again later."
                ),
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

    /// 429: the request has waited for a slot as long as it may.
    #[must_use]
    pub fn queue_timeout(pool: &str, waited_ms: u64, retry_after_s: u32) -> Self {
        let message = format!("No slot of {pool} came free within {waited_ms} ms; try again in {retry_after_s} s.");
        let mut answer = Self::new(429, "rate_limit_error", Some("queue_timeout"), message);
        answer.retry_after_s = Some(retry_after_s.max(1));
        answer
    }

    /// 503: the pool was taken out of service while the request waited.
    #[must_use]
    pub fn pool_gone(pool: &str) -> Self {
        let message = format!("{pool} was taken out of service while the request waited; try again.");
        let mut answer = Self::new(503, "service_unavailable_error", Some("pool_gone"), message);
        answer.retry_after_s = Some(1);
        answer
    }

    /// 400: a header that counts here has a value that it cannot have.
    #[must_use]
    pub fn header(name: &'static str, value: &[u8], expected: &str) -> Self {
        let shown: String = String::from_utf8_lossy(value).chars().take(64).collect();
        let message = format!("{name} is {shown:?}: expected {expected}.");
        let mut answer = Self::new(400, INVALID, Some("invalid_header"), message);
        answer.body.param = Some(name);
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
    pub fn body(&self, style: Style) -> Vec<u8> {
        let body = match style {
            Style::OpenAi => serde_json::to_vec(&Envelope { error: &self.body }),
            Style::Anthropic => {
                let kind = match self.status {
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    503 => "overloaded_error",
                    500.. => "api_error",
                    _ => INVALID,
                };
                let error = AnthropicError { kind, message: &self.body.message };
                serde_json::to_vec(&AnthropicEnvelope { kind: "error", error })
            }
        };
        // Strings serialise; a failure is not possible, and an empty body would still carry the status.
        body.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_openais() {
        let body: serde_json::Value =
            serde_json::from_slice(&ApiError::model_not_found(&"x\"".repeat(500)).body(Style::OpenAi)).unwrap();
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["param"], "model");
        assert_eq!(body["error"]["code"], "model_not_found");
        assert!(body["error"]["message"].as_str().unwrap().len() < 300);
    }

    #[test]
    fn an_unreadable_body_names_its_field() {
        let body = ApiError::unreadable(&RequestError::ModelKind("a number")).body(Style::OpenAi);
        assert!(String::from_utf8(body).unwrap().contains(r#""param":"model""#));
    }

    #[test]
    fn anthropics_clients_get_their_own_shape() {
        let of = |error: &ApiError| -> serde_json::Value {
            let body: serde_json::Value = serde_json::from_slice(&error.body(Style::Anthropic)).unwrap();
            assert_eq!(body["type"], "error");
            body["error"].clone()
        };
        let error = of(&ApiError::context_length(32_768, 40_000, 128, Shape::Chat));
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(
            error["message"],
            "This model's maximum context length is 32768 tokens. However, you requested about 40128 tokens (40000 in \
             the prompt, 128 for the completion)."
        );
        for (error, kind) in [
            (ApiError::model_not_found("x"), "not_found_error"),
            (ApiError::too_large(7), "request_too_large"),
            (ApiError::refused(Refusal::AtCap, "p", &Ask::default(), Shape::Messages), "rate_limit_error"),
            (ApiError::refused(Refusal::NoEndpoint, "p", &Ask::default(), Shape::Messages), "overloaded_error"),
            (ApiError::method_not_allowed("GET", "/v1/messages"), "invalid_request_error"),
        ] {
            assert_eq!(of(&error)["type"], kind);
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let error = ApiError::unreadable(&RequestError::Encoding("zstd".into()));
        assert_eq!(error.status, 415);
        let body = String::from_utf8(error.body(Style::OpenAi)).unwrap();
        assert!(body.contains("content-encoding zstd is not supported: expected identity, gzip or deflate"), "{body}");
        assert_eq!(ApiError::unreadable(&RequestError::TooLarge(7)).status, 413);
    }
}
