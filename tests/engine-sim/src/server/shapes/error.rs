//! A request refused, in the words of the API it was made in.

use serde_json::json;

/// Whose shape an error has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    /// `{"error":{"message","type","param","code"}}`
    #[default]
    OpenAi,
    /// `{"type":"error","error":{"type","message"}}`
    Anthropic,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) param: Option<&'static str>,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn bad(param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: 400, kind: "BadRequestError", param, message: message.into() }
    }

    pub(crate) fn not_found(param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: 404, kind: "NotFoundError", param, message: message.into() }
    }

    /// What a fault on demand says.
    pub(crate) fn on_demand(status: u16) -> Self {
        let kind = if status < 500 { "RateLimitError" } else { "InternalServerError" };
        Self { status, kind, param: None, message: "fault on demand".to_owned() }
    }

    /// The body of the response.
    pub(crate) fn body(&self, style: Style) -> Vec<u8> {
        let Self { status, kind, param, message } = self;
        let error = match style {
            Style::OpenAi => json!({"error": {"message": message, "type": kind, "param": param, "code": status}}),
            Style::Anthropic => {
                let kind = match status {
                    404 => "not_found_error",
                    429 => "rate_limit_error",
                    500.. => "api_error",
                    _ => "invalid_request_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": message}})
            }
        };
        error.to_string().into_bytes()
    }
}
