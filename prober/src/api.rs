//! The REST API. [`router`] lists every route; one handler module per resource. Errors are
//! `{"error": {"code", "message"}}`, and a message names the field, the value and what was expected.

mod auth;
mod decisions;
mod endpoints;
mod error;
mod events;
mod fleet;
mod operations;
mod series;
mod session;
mod sessions;
mod signals;
mod status;
mod token;
mod views;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post, put};
use axum::{Extension, Router, middleware};
use utoipa::OpenApi;

pub use endpoints::Registration;
pub(crate) use fleet::Fleet;
pub use token::{Guard, Token};
pub(crate) use views::word;

use crate::page;
use crate::service::Service;

/// The largest request body in bytes.
const MAX_BODY: usize = 256 << 10;

/// The whole API as a document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Weighbridge prober",
        description = "Weights, pins, probes and health of a fleet of inference engines"
    ),
    paths(
        endpoints::list,
        endpoints::one,
        endpoints::register,
        endpoints::remove,
        operations::probe,
        operations::pin,
        operations::unpin,
        operations::drain,
        operations::undrain,
        decisions::list,
        decisions::take,
        fleet::fleet,
        fleet::alarms,
        events::events,
        series::series,
        session::sign_in,
        session::show,
        session::sign_out,
        status::snapshot,
        status::envoys,
        signals::exchange,
        status::healthz,
        status::readyz,
        status::metrics,
        status::openapi,
    )
)]
pub struct Document;

/// All routes. With a token, everything under `/v1` but `/v1/session` needs it, or a session; for reports of filters, the one derived from it will do.
pub fn router(service: Arc<Service>, guard: Option<Arc<Guard>>) -> Router {
    let proven = guard.is_some() || service.config.api_tls.is_some();
    let decisions = get(decisions::list).post(decisions::take).layer(DefaultBodyLimit::max(decisions::MAX_BODY));
    let guarded = Router::new()
        .route("/v1/endpoints", get(endpoints::list).post(endpoints::register))
        .route("/v1/endpoints/{id}", get(endpoints::one).delete(endpoints::remove))
        .route("/v1/endpoints/{id}/probe", post(operations::probe))
        .route("/v1/endpoints/{id}/pin", put(operations::pin).delete(operations::unpin))
        .route("/v1/endpoints/{id}/drain", put(operations::drain).delete(operations::undrain))
        .route("/v1/fleet", get(fleet::fleet))
        .route("/v1/events", get(events::events))
        .route("/v1/series", get(series::series))
        .route("/v1/alarms", get(fleet::alarms))
        .route("/v1/snapshot", get(status::snapshot))
        .route("/v1/envoys", get(status::envoys))
        .route("/v1/decisions", decisions)
        .route("/v1/signals", post(signals::exchange).layer(DefaultBodyLimit::max(signals::MAX_REPORT)))
        .layer(middleware::from_fn_with_state(guard.clone(), auth::check))
        .layer(middleware::map_response(auth::keep_nothing));
    let session = get(session::show).post(session::sign_in).delete(session::sign_out);
    let open = Router::new()
        .route("/v1/session", session.layer(DefaultBodyLimit::max(session::MAX_BODY)))
        .layer(Extension(guard));
    Router::new()
        .merge(guarded)
        .merge(open)
        .layer(middleware::from_fn_with_state(proven, auth::check_origin))
        .merge(page::routes())
        .route("/healthz", get(status::healthz))
        .route("/readyz", get(status::readyz))
        .route("/metrics", get(status::metrics))
        .route("/openapi.json", get(status::openapi))
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::no_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(service)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The document and the router must not drift apart: every route that the source of `router` names is described.
    #[test]
    fn the_document_describes_every_route() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        let described: std::collections::BTreeSet<String> =
            document["paths"].as_object().unwrap().keys().cloned().collect();
        let source = include_str!("api.rs");
        let routed: std::collections::BTreeSet<String> = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix(".route(\"")?.split('"').next().map(str::to_owned))
            .collect();
        assert_eq!(described, routed);
        // Whoever changes something may be told that it is not stored yet.
        for (path, method) in
            [("/v1/endpoints", "post"), ("/v1/endpoints/{id}", "delete"), ("/v1/endpoints/{id}/pin", "put")]
        {
            assert!(document["paths"][path][method]["responses"]["202"].is_object(), "{method} {path}");
        }
        assert!(routed.len() >= 12);
    }
}
