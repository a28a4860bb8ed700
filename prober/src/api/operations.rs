//! What operators do to an endpoint: probe, pin, drain.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};
use weighbridge_routing::weight::Weight;

use super::error::{ApiError, Body, ErrorBody, Path};
use super::views::{EndpointView, ProbeView};
use crate::config::LONGEST_DRAIN;
use crate::registry::{Drain, Endpoint, Pin, RegistryError};
use crate::service::{Demand, Service, now_ms};
use crate::store::{Change, StoreError, Stored, Table};

/// The longest reason in bytes.
const MAX_REASON: usize = 500;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ProbeQuery {
    /// Answer when the probe is done, with its result.
    #[serde(default)]
    wait: bool,
    /// Do not wait until the endpoint is idle.
    #[serde(default)]
    force: bool,
}

#[derive(Serialize, ToSchema)]
struct Accepted {
    /// The endpoint that is going to be probed; the result appears in its history.
    id: String,
}

/// Measures an endpoint anew, when it is idle (or at once with `force=true`).
#[utoipa::path(post, path = "/v1/endpoints/{id}/probe", params(ProbeQuery),
    responses((status = 202, body = Accepted), (status = 200, body = ProbeView), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub(super) async fn probe(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    query: Result<Query<ProbeQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) =
        query.map_err(|rejection| ApiError::new(StatusCode::BAD_REQUEST, "invalid_query", rejection.body_text()))?;
    let (healthy, before) = service.read(|registry| {
        let endpoint = registry.get(&id)?;
        Ok::<_, RegistryError>((endpoint.health.healthy(), endpoint.history.back().map(|record| record.at_ms)))
    })?;
    if !healthy && !query.force {
        let message = format!("{id} is unhealthy: it is probed when it is back, or now with force=true");
        return Err(ApiError::new(StatusCode::CONFLICT, "unhealthy", message));
    }
    let (done, result) = oneshot::channel();
    if !service.demand(Demand { id: id.clone(), force: query.force, before, done }) {
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many", "1000 probes wait already"));
    }
    if !query.wait {
        return Ok((StatusCode::ACCEPTED, Json(Accepted { id })).into_response());
    }
    match result.await {
        Ok(record) => Ok(Json(ProbeView::from(&record)).into_response()),
        Err(_) => Err(RegistryError::NoEndpoint(id).into()),
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PinBody {
    /// 0.01 to 100, not clamped
    weight: f64,
    /// Why, for the next person who looks
    #[serde(default)]
    reason: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainBody {
    /// Why, for the next person who looks
    #[serde(default)]
    reason: String,
    /// How many seconds it may take until it is empty, at most 604800; `drain.deadline` when left out
    deadline_s: Option<u64>,
}

fn reason(text: String) -> Result<String, ApiError> {
    if text.len() > MAX_REASON {
        let message = format!("reason is {} bytes long: expected at most {MAX_REASON}", text.len());
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_field", message));
    }
    Ok(text)
}

/// An endpoint after a change: 200 when the change is stored, 202 when the store does not answer. In force it is either way.
type Changed = (StatusCode, Json<EndpointView>);

/// Changes an endpoint, publishes at once, and answers when the change is stored too, or has to wait for that.
async fn apply(
    service: &Service,
    id: &str,
    edit: impl FnOnce(&mut Endpoint),
    stored: Result<Change, StoreError>,
) -> Result<Changed, ApiError> {
    let stored = stored?;
    let _order = service.order.lock().await;
    let view = service.change(|registry| {
        edit(registry.get_mut(id)?);
        EndpointView::one(registry, id).ok_or_else(|| RegistryError::NoEndpoint(id.to_owned()))
    })?;
    let status = match service.remember(vec![stored]).await {
        Stored::Now => StatusCode::OK,
        Stored::Later => StatusCode::ACCEPTED,
    };
    Ok((status, Json(view)))
}

/// Sets an endpoint's weight until it is cleared.
#[utoipa::path(put, path = "/v1/endpoints/{id}/pin", request_body = PinBody,
    responses((status = 200, body = EndpointView), (status = 202, body = EndpointView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn pin(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    Body(body): Body<PinBody>,
) -> Result<Changed, ApiError> {
    let weight = Weight::try_new(body.weight).ok().filter(|_| (0.01..=100.0).contains(&body.weight));
    let weight = weight.ok_or_else(|| {
        let message = format!("weight is {}: expected a number from 0.01 to 100", body.weight);
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_field", message)
    })?;
    let pin = Pin { weight, reason: reason(body.reason)?, at_ms: now_ms() };
    let stored = Change::put(Table::Pins, &id, &pin);
    apply(&service, &id, |endpoint| endpoint.pin = Some(pin), stored).await
}

/// Gives an endpoint its measured weight back.
#[utoipa::path(delete, path = "/v1/endpoints/{id}/pin",
    responses((status = 200, body = EndpointView), (status = 202, body = EndpointView), (status = 404, body = ErrorBody)))]
pub(super) async fn unpin(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Result<Changed, ApiError> {
    let stored = Ok(Change::remove(Table::Pins, &id));
    apply(&service, &id, |endpoint| endpoint.pin = None, stored).await
}

/// Sends an endpoint no new requests; those under way finish. `drain` of the endpoint says how many are left, and whether it is
/// `draining`, `drained` (none are), or `overdue` (some are, or may be, and the deadline has passed). It stays drained until that is
/// undone, whatever the deadline. Asked for again, reason and deadline are the new ones.
#[utoipa::path(put, path = "/v1/endpoints/{id}/drain", request_body = DrainBody,
    responses((status = 200, body = EndpointView), (status = 202, body = EndpointView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn drain(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    Body(body): Body<DrainBody>,
) -> Result<Changed, ApiError> {
    let deadline = match body.deadline_s.map(Duration::from_secs) {
        None => service.config.drain_deadline,
        Some(deadline) if deadline <= LONGEST_DRAIN => deadline,
        Some(deadline) => {
            let (seconds, most) = (deadline.as_secs(), LONGEST_DRAIN.as_secs());
            let message = format!("deadline_s is {seconds}: expected at most {most}");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_field", message));
        }
    };
    let at_ms = now_ms();
    let until_ms = Some(at_ms.saturating_add(deadline.as_millis() as u64));
    let drain = Drain { reason: reason(body.reason)?, at_ms, until_ms };
    let stored = Change::put(Table::Drains, &id, &drain);
    let changed = apply(&service, &id, |endpoint| endpoint.set_drain(Some(drain)), stored).await;
    service.members.notify_one();
    changed
}

/// Takes an endpoint back into service.
#[utoipa::path(delete, path = "/v1/endpoints/{id}/drain",
    responses((status = 200, body = EndpointView), (status = 202, body = EndpointView), (status = 404, body = ErrorBody)))]
pub(super) async fn undrain(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Result<Changed, ApiError> {
    let stored = Ok(Change::remove(Table::Drains, &id));
    apply(&service, &id, |endpoint| endpoint.set_drain(None), stored).await
}
