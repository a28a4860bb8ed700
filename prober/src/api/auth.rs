//! The bearer token.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use ring::hmac;
use subtle::ConstantTimeEq;

use super::error::ApiError;

/// What a reports token is derived for.
const REPORTS: &[u8] = b"weighbridge reports of filters 1";

/// A token that requests must bring. It is never shown.
pub struct Token(Vec<u8>);

impl Token {
    /// Reads the file's first line.
    ///
    /// # Errors
    /// When it cannot be read, or is shorter than 16 bytes.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("api.token_file {}", path.display()))?;
        let token = text.lines().next().unwrap_or_default().trim();
        ensure!(token.len() >= 16, "api.token_file {}: expected a token of at least 16 characters", path.display());
        Ok(Token(token.as_bytes().to_vec()))
    }

    /// The token of the filters' reports: HMAC-SHA256 of this one, in hexadecimal. Every Envoy gets it with its snapshot, and
    /// it admits to nothing else; probers with the same token derive the same one, so any of them takes any Envoy's reports.
    #[must_use]
    pub fn for_reports(&self) -> String {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), REPORTS);
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn admits(&self, request: &Request) -> bool {
        let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
        // In constant time: how long a comparison takes must not tell how much of a guess was right.
        given.ct_eq(&self.0).into()
    }
}

/// A page of another site may send simple requests to a loopback address from the browser of somebody who has access to
/// it. Browsers say where such a request comes from.
fn from_another_site(request: &Request) -> bool {
    let header = |name| request.headers().get(name).map(|value| value.as_bytes());
    let Some(origin) = header(header::ORIGIN) else { return false };
    let authority = origin.splitn(3, |byte| *byte == b'/').nth(2);
    authority.is_none() || authority != header(header::HOST)
}

/// Whether it is one that filters send.
fn is_report(request: &Request) -> bool {
    request.method() == Method::POST && ["/v1/signals", "/v1/decisions"].contains(&request.uri().path())
}

/// What the API asks for.
pub(super) struct Tokens {
    operators: Token,
    reports: Token,
}

impl From<Token> for Tokens {
    fn from(operators: Token) -> Self {
        let reports = Token(operators.for_reports().into_bytes());
        Tokens { operators, reports }
    }
}

impl Tokens {
    fn admit(&self, request: &Request) -> bool {
        self.operators.admits(request) || (is_report(request) && self.reports.admits(request))
    }
}

pub(super) async fn check(
    State(tokens): State<Option<Arc<Tokens>>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if from_another_site(&request) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "foreign_origin",
            "requests of other sites' pages are refused",
        ));
    }
    match tokens {
        Some(tokens) if !tokens.admit(&request) => {
            Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "expected `authorization: Bearer <token>`"))
        }
        _ => Ok(next.run(request).await),
    }
}
