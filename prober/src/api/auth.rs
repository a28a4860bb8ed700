//! Who may ask.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::error::ApiError;
use super::token::Guard;

/// What a request shows.
fn bearer(request: &Request) -> &[u8] {
    let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
    given.strip_prefix(b"Bearer ").unwrap_or_default()
}

/// A page of another site may send simple requests to a loopback address from the browser of somebody who has access to
/// it. Browsers say where such a request comes from.
fn from_another_site(request: &Request) -> bool {
    let header = |name| request.headers().get(name).map(|value| value.as_bytes());
    let Some(origin) = header(header::ORIGIN) else { return false };
    let authority = origin.splitn(3, |byte| *byte == b'/').nth(2);
    authority.is_none() || authority != header(header::HOST)
}

/// Whether a page that asks was itself fetched under an address or as `localhost`. A name of somebody else's may be made to
/// lead to this machine, and its page then has the same origin; without a token nothing else would tell.
fn is_of_this_machine(request: &Request) -> bool {
    let Some(origin) = request.headers().get(header::ORIGIN).and_then(|origin| origin.to_str().ok()) else {
        return true;
    };
    let authority = origin.splitn(3, '/').nth(2).and_then(|authority| authority.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let host = authority.host().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok()
    })
}

/// Whether it is one that filters send.
fn is_report(request: &Request) -> bool {
    request.method() == Method::POST && ["/v1/signals", "/v1/decisions"].contains(&request.uri().path())
}

pub(super) async fn check(
    State(guard): State<Option<Arc<Guard>>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if from_another_site(&request) || (guard.is_none() && !is_of_this_machine(&request)) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "foreign_origin",
            "requests of other sites' pages are refused",
        ));
    }
    match guard {
        Some(guard) if !guard.admits(bearer(&request), is_report(&request), Instant::now()) => {
            Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "expected `authorization: Bearer <token>`"))
        }
        _ => Ok(next.run(request).await),
    }
}
