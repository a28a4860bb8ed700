//! Who may ask.
//!
//! | shown | lets in |
//! |---|---|
//! | `authorization: Bearer <token>` | to everything |
//! | the token of reports | filters, to what they report |
//! | the cookie of a session | to everything; for what changes something only with `x-weighbridge-page: 1` and an `Origin` that is the `Host` |
//!
//! A browser sends a cookie by itself, whoever made it ask. That header and `Origin` say that our page did: no other site's page
//! can send the one, or choose the other.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::error::ApiError;
use super::sessions::{Cookie, SessionId};
use super::token::{Guard, Ticket};

/// Our page sends it with everything that it asks.
const PAGE: HeaderName = HeaderName::from_static("x-weighbridge-page");

/// The token that a request shows.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    // Another scheme is somebody else's, such as that of a proxy in front: it must not hide a session.
    headers.get(header::AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")
}

/// What only some may read is kept nowhere: neither by browsers nor by proxies on the way.
pub(super) async fn keep_nothing(mut answer: Response) -> Response {
    answer.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

/// The session that a request is of.
fn session(headers: &HeaderMap) -> Option<SessionId> {
    let cookies = headers.get_all(header::COOKIE).iter();
    cookies.filter_map(|value| Cookie::of_header(value.as_bytes())).map(SessionId::of).next()
}

/// A page of another site may send simple requests to a loopback address from the browser of somebody who has access to
/// it. Browsers say where such a request comes from.
fn from_another_site(headers: &HeaderMap) -> bool {
    let header = |name| headers.get(name).map(|value| value.as_bytes());
    let Some(origin) = header(header::ORIGIN) else { return false };
    let authority = origin.splitn(3, |byte| *byte == b'/').nth(2);
    authority.is_none() || authority != header(header::HOST)
}

/// Whether a page that asks was itself fetched under an address or as `localhost`. A name of somebody else's may be made to
/// lead to this machine, and its page then has the same origin; with neither token nor TLS nothing else would tell. Browsers say where what
/// changes something comes from; of what a page reads from its own origin they name only the host. (Filters, which only send,
/// name a host that is none.)
fn is_of_this_machine(request: &Request) -> bool {
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let of_this_machine = |authority: &str| {
        authority.parse::<Authority>().is_ok_and(|authority| {
            let host = authority.host().trim_matches(['[', ']']);
            host == "localhost" || host.parse::<IpAddr>().is_ok()
        })
    };
    match text(header::ORIGIN) {
        Some(origin) => origin.splitn(3, '/').nth(2).is_some_and(of_this_machine),
        None if request.method().is_safe() => text(header::HOST).is_none_or(of_this_machine),
        None => true,
    }
}

/// Whether it is one that filters send.
fn is_report(request: &Request) -> bool {
    request.method() == Method::POST && ["/v1/signals", "/v1/decisions"].contains(&request.uri().path())
}

/// Whether our page sent it, which no other page could have made it look like.
fn is_of_our_page(headers: &HeaderMap) -> bool {
    headers.get(PAGE).is_some_and(|value| value == "1")
        && headers.contains_key(header::ORIGIN)
        && !from_another_site(headers)
}

/// How a request was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// No token is configured.
    None,
    /// It showed a token.
    Token,
    /// It came with the cookie of a session.
    Session,
}

impl Admission {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Admission::None => "none",
            Admission::Token => "token",
            Admission::Session => "session",
        }
    }
}

/// A request was let in.
#[derive(Debug, Clone)]
pub(super) struct Admitted(Option<(Arc<Guard>, Ticket)>);

impl Admitted {
    /// How.
    pub(super) fn by(&self) -> Admission {
        match &self.0 {
            None => Admission::None,
            Some((_, Ticket::Token { .. })) => Admission::Token,
            Some((_, Ticket::Session(_))) => Admission::Session,
        }
    }

    /// Waits until it would not be let in any more: the token has changed, or the session is over.
    pub(super) async fn over(&self) {
        match &self.0 {
            None => std::future::pending().await,
            Some((guard, ticket)) => guard.over(*ticket).await,
        }
    }

    /// Ends its session, when it is of one.
    pub(super) fn sign_out(&self) {
        if let Some((guard, Ticket::Session(id))) = &self.0 {
            guard.sign_out(*id);
        }
    }
}

/// Whether a request is let in, and how; else the answer to it.
pub(super) fn admitted(guard: Option<&Arc<Guard>>, request: &Request) -> Result<Admitted, ApiError> {
    let Some(guard) = guard else { return Ok(Admitted(None)) };
    let (headers, now) = (request.headers(), Instant::now());
    let ticket = match (bearer(headers), session(headers)) {
        (Some(token), _) => guard.admits(token, is_report(request), now),
        (None, Some(session)) => guard.of_session(session, now),
        (None, None) => None,
    };
    match ticket {
        None => {
            let message = "expected `authorization: Bearer <token>`, or a session";
            Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
        }
        Some(Ticket::Session(_)) if !request.method().is_safe() && !is_of_our_page(headers) => {
            let message =
                "a session changes something only with `x-weighbridge-page: 1` and an Origin that is the Host";
            Err(ApiError::new(StatusCode::FORBIDDEN, "not_of_the_page", message))
        }
        Some(ticket) => Ok(Admitted(Some((Arc::clone(guard), ticket)))),
    }
}

/// Refuses what pages of other sites ask. `proven`: a token, or the name in a certificate, keeps out who only has a name that
/// leads here.
pub(super) async fn check_origin(
    State(proven): State<bool>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if from_another_site(request.headers()) || (!proven && !is_of_this_machine(&request)) {
        let message = "requests of other sites' pages are refused";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "foreign_origin", message));
    }
    Ok(next.run(request).await)
}

/// Refuses whoever may not ask.
pub(super) async fn check(
    State(guard): State<Option<Arc<Guard>>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let admitted = admitted(guard.as_ref(), &request)?;
    request.extensions_mut().insert(admitted);
    Ok(next.run(request).await)
}
