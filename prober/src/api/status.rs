//! What is in force, who has it, and whether all is well.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};
use weighbridge_xds::EnvoyStatus;

use super::Document;
use super::error::{ApiError, ErrorBody};
use crate::service::Service;

/// The snapshot in force, as the filters are told it.
#[utoipa::path(get, path = "/v1/snapshot", responses((status = 200, body = serde_json::Value), (status = 503, body = ErrorBody)))]
pub(super) async fn snapshot(State(service): State<Arc<Service>>) -> Result<Response, ApiError> {
    service
        .read(|registry| registry.published().cloned())
        .map(|snapshot| Json(snapshot).into_response())
        .ok_or_else(|| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_snapshot", "nothing has been published yet"))
}

#[derive(Serialize)]
pub(super) struct EnvoyList {
    /// The version in force.
    version: u64,
    envoys: Vec<EnvoyStatus>,
}

/// Every Envoy with the version that it has applied.
#[utoipa::path(get, path = "/v1/envoys", responses((status = 200, body = serde_json::Value)))]
pub(super) async fn envoys(State(service): State<Arc<Service>>) -> Json<EnvoyList> {
    Json(EnvoyList { version: service.version(), envoys: service.xds.envoys() })
}

/// 200 while the prober runs.
#[utoipa::path(get, path = "/healthz", responses((status = 200)))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

#[derive(Serialize, ToSchema)]
pub(super) struct Readiness {
    pub(super) ready: bool,
    /// Every connected Envoy, and at least one, has acknowledged the snapshot in force.
    envoys_have_the_snapshot: bool,
    /// Endpoints whose registration probe is not done.
    waiting_for_probes: Vec<String>,
}

/// 200 when every connected Envoy has the snapshot and every endpoint its registration probe, else 503.
#[utoipa::path(get, path = "/readyz", responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
pub(super) async fn readyz(State(service): State<Arc<Service>>) -> Response {
    let readiness = Readiness::of(&service);
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

impl Readiness {
    pub(super) fn of(service: &Service) -> Self {
        let waiting_for_probes: Vec<String> = service.read(|registry| {
            // A drained one is not probed until it is back.
            let waiting =
                registry.endpoints().iter().filter(|(_, endpoint)| !endpoint.registered && endpoint.drain.is_none());
            waiting.map(|(id, _)| id.clone()).collect()
        });
        let envoys_have_the_snapshot = service.xds.all_acked();
        let ready = envoys_have_the_snapshot && waiting_for_probes.is_empty();
        Readiness { ready, envoys_have_the_snapshot, waiting_for_probes }
    }
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String)))]
pub(super) async fn metrics(State(service): State<Arc<Service>>) -> Response {
    match crate::metrics::text(&service) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "metrics", error.to_string()).into_response(),
    }
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = serde_json::Value)))]
pub(super) async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}
