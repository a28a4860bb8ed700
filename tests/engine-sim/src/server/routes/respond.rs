//! Responses that are ready at once.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use super::super::body::Answer;
use super::super::core::Core;
use super::super::shapes::{ApiError, Style};

pub(super) const JSON: &str = "application/json";

/// Refuses a request to the model, and counts it.
pub(super) fn refuse(core: &Core, style: Style, error: &ApiError) -> Response<Answer> {
    core.count_refusal();
    self::error(style, error)
}

pub(super) fn error(style: Style, error: &ApiError) -> Response<Answer> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    full(status, JSON, error.body(style))
}

pub(super) fn json(value: &serde_json::Value) -> Response<Answer> {
    full(StatusCode::OK, JSON, value.to_string())
}

pub(super) fn full(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Answer> {
    let mut response = Response::new(Answer::Full(body.into()));
    *response.status_mut() = status;
    content_type(&mut response, kind);
    response
}

pub(super) fn content_type(response: &mut Response<Answer>, kind: &'static str) {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
}
