//! Errors as answers.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use crate::config::FieldError;
use crate::registry::RegistryError;
use crate::store::StoreError;

/// How long a body may take, from its first byte to its last.
const BODY: Duration = Duration::from_secs(30);

/// An error answer.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

/// The shape of every error.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Serialize, ToSchema)]
struct ErrorDetail {
    /// For programs.
    code: &'static str,
    /// For people: the field, its value, what was expected.
    message: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, code, message: message.into() }
    }

    /// Whether it is answered with this status.
    pub(super) fn is(&self, status: StatusCode) -> bool {
        self.status == status
    }

    pub(super) fn field(error: &FieldError) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_field", error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody { error: ErrorDetail { code: self.code, message: self.message } };
        (self.status, Json(body)).into_response()
    }
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        let (status, code) = match &error {
            RegistryError::NoEndpoint(_) => (StatusCode::NOT_FOUND, "no_endpoint"),
            RegistryError::NoPool(_) | RegistryError::Outside { .. } => (StatusCode::BAD_REQUEST, "invalid_field"),
            RegistryError::FromFile(_) => (StatusCode::CONFLICT, "from_file"),
            RegistryError::OtherPool(_) => (StatusCode::CONFLICT, "id_taken"),
            RegistryError::SameAddress { .. } => (StatusCode::CONFLICT, "address_taken"),
            RegistryError::OtherReach { .. } => (StatusCode::CONFLICT, "other_access"),
            RegistryError::TooMany(_) | RegistryError::TooManyRegistrations => (StatusCode::CONFLICT, "too_many"),
        };
        ApiError::new(status, code, error.to_string())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "not_stored", error.to_string())
    }
}

/// A JSON body, whatever its content type; what is wrong with it is said in the API's own shape.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = tokio::time::timeout(BODY, Bytes::from_request(request, state)).await.map_err(|_| {
            let message = format!("the body took longer than {BODY:?}");
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
        })?;
        let bytes = bytes.map_err(|rejection: BytesRejection| {
            ApiError::new(rejection.status(), "unreadable_body", rejection.body_text())
        })?;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        // serde takes an array, too, for a struct, its fields in order of declaration: nobody means that.
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            let message = "the body is an array: expected an object";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", message));
        }
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let body = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let (field, error) = (error.path().to_string(), error.into_inner());
            let (code, place) = match field.as_str() {
                "." => ("invalid_body", "the body"),
                field => ("invalid_field", field),
            };
            ApiError::new(StatusCode::BAD_REQUEST, code, format!("{place}: {error}"))
        })?;
        reader
            .end()
            .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", format!("the body: {error}")))?;
        Ok(Body(body))
    }
}

/// A part of the path; one that is no text is said so in the API's own shape.
pub(super) struct Path<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(part)) => Ok(Path(part)),
            Err(rejection) => Err(ApiError::new(rejection.status(), "invalid_path", rejection.body_text())),
        }
    }
}

pub(super) async fn no_route(uri: Uri) -> ApiError {
    let message = format!("there is nothing at {}; GET /openapi.json describes what there is", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "no_route", message)
}

pub(super) async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "no_method", format!("{} does not take {method}", uri.path()))
}
