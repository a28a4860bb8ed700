//! `/v1/session`: a browser signs in with the token and gets a cookie for it, so that no page ever keeps the token.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{self, Admission};
use super::error::{ApiError, Body, ErrorBody};
use super::sessions::Cookie;
use super::token::Guard;
use crate::service::Service;

/// The largest body in bytes: a token has at most 1,024.
pub(super) const MAX_BODY: usize = 4 << 10;

/// Whether the browser has come over TLS: to the prober itself, or to a proxy in front that ends it. Browsers say so with every POST.
fn is_secured(service: &Service, headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).map(|origin| origin.as_bytes());
    service.config.api_tls.is_some() || origin.is_some_and(|origin| origin.starts_with(b"https://"))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignIn {
    /// The API's token.
    token: String,
}

#[derive(Serialize, ToSchema)]
pub(super) struct SessionView {
    /// A token is configured, so the API wants to be shown it, or a session.
    required: bool,
    /// This request comes with one of them.
    signed_in: bool,
}

/// Signs in: the answer sets a cookie that lasts twelve hours, or until it is signed out, the token changes, or the prober stops.
#[utoipa::path(post, path = "/v1/session", request_body = SignIn,
    responses((status = 204), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub(super) async fn sign_in(
    State(service): State<Arc<Service>>,
    Extension(guard): Extension<Option<Arc<Guard>>>,
    headers: HeaderMap,
    Body(SignIn { token }): Body<SignIn>,
) -> Result<Response, ApiError> {
    let Some(guard) = guard else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| {
        let message = format!("no random numbers: {error}");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_random", message)
    })?;
    let cookie = Cookie::from_random(random);
    if !guard.sign_in(token.as_bytes(), &cookie, Instant::now()) {
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "this is not the token"));
    }
    let set = cookie.to_header(is_secured(&service, &headers));
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, set)]).into_response())
}

/// Whether somebody has to sign in, and has.
#[utoipa::path(get, path = "/v1/session", responses((status = 200, body = SessionView)))]
pub(super) async fn show(Extension(guard): Extension<Option<Arc<Guard>>>, request: Request) -> Response {
    let signed_in = auth::admitted(guard.as_ref(), &request).is_ok_and(|admitted| admitted.by() != Admission::None);
    let view = SessionView { required: guard.is_some(), signed_in };
    ([(header::CACHE_CONTROL, "no-store")], Json(view)).into_response()
}

/// Signs out; 204 also for whoever was not signed in.
#[utoipa::path(delete, path = "/v1/session", responses((status = 204), (status = 403, body = ErrorBody)))]
pub(super) async fn sign_out(
    State(service): State<Arc<Service>>,
    Extension(guard): Extension<Option<Arc<Guard>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let cleared = Cookie::cleared(is_secured(&service, request.headers()));
    if let Some(guard) = guard {
        match auth::admitted(Some(&guard), &request) {
            Ok(admitted) => admitted.sign_out(),
            // The cookie of a session that is over is to go, too.
            Err(error) if error.is(StatusCode::UNAUTHORIZED) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cleared)]).into_response())
}
