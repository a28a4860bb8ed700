//! `/v1/endpoints`: list, look, register, remove.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::{ApiError, Body, ErrorBody, Path};
use super::views::EndpointView;
use crate::alarms::Subject;
use crate::config::{self, EngineTls, Reach};
use crate::engine::access::Access;
use crate::members::{Resolved, resolve};
use crate::registry::{Origin, Registered, RegistryError};
use crate::service::{Service, now_ms};
use crate::store::{Change, Stored, Table};

/// What an endpoint registers with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The pool to join.
    pub pool: String,
    /// `[A-Za-z0-9_-]{1,64}`
    pub id: String,
    /// `host:port`; a name must resolve to permitted addresses, of which the first counts.
    pub address: String,
    /// The machine; the id when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Launch arguments; what the engine tells stands for them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_args: Option<String>,
    /// Tokens; what the engine tells when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u32>,
    /// The most requests at once; measured, or by weight, when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// TLS towards it; none when left out. Files are the prober's, in its `api.key_dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<EngineTls>,
    /// A file with the key that it asks for, in the prober's `api.key_dir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub api_key_file: Option<PathBuf>,
    /// An environment variable of the prober with that key: `WEIGHBRIDGE_KEY_...`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
}

impl Registration {
    /// The pool and the endpoint.
    #[must_use]
    pub fn into_parts(self) -> (String, config::Endpoint) {
        let node = self.node.unwrap_or_else(|| self.id.clone());
        let Registration { pool, id, address, launch_args, context_window, max_in_flight, .. } = self;
        let reach = Reach::new(self.tls, self.api_key_file, self.api_key_env);
        (pool, config::Endpoint { id, address, node, launch_args, context_window, max_in_flight, reach })
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct EndpointList {
    endpoints: Vec<EndpointView>,
    /// What is wrong with the prober itself.
    alarms: Vec<String>,
}

/// Every endpoint.
#[utoipa::path(get, path = "/v1/endpoints", responses((status = 200, body = EndpointList)))]
pub(super) async fn list(State(service): State<Arc<Service>>) -> Json<EndpointList> {
    let alarms = service.alarms().into_iter().map(|(alarm, _)| alarm).filter(|alarm| alarm.subject == Subject::Prober);
    let alarms = alarms.map(|alarm| alarm.message).collect();
    Json(service.read(|registry| EndpointList {
        endpoints: EndpointView::all(registry, &registry.verdicts()).collect(),
        alarms,
    }))
}

/// One endpoint with its probe history, its curve, and what serving says of that.
#[utoipa::path(get, path = "/v1/endpoints/{id}",
    responses((status = 200, body = EndpointView), (status = 404, body = ErrorBody)))]
pub(super) async fn one(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<Json<EndpointView>, ApiError> {
    service
        .read(|registry| EndpointView::one(registry, &id).map(|view| view.in_full(registry)))
        .map(Json)
        .ok_or_else(|| RegistryError::NoEndpoint(id).into())
}

/// Registers an endpoint: 201 when it is new, 200 when it is known and comes back, 202 for either when the store does not
/// answer. In force it is every time.
#[utoipa::path(post, path = "/v1/endpoints", request_body = Registration,
    responses((status = 201, body = EndpointView), (status = 200, body = EndpointView), (status = 202, body = EndpointView),
        (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn register(
    State(service): State<Arc<Service>>,
    Body(registration): Body<Registration>,
) -> Result<(StatusCode, Json<EndpointView>), ApiError> {
    let (pool, written) = registration.clone().into_parts();
    if let Some(error) = written.check("").first() {
        return Err(ApiError::field(error));
    }
    if registration.api_key_file.is_some() && registration.api_key_env.is_some() {
        let message = "api_key_env is set beside api_key_file: expected one of them";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_field", message));
    }
    let access = Access::read(&written.reach, &written.address, service.registrations_may());
    let access = Arc::new(access.map_err(|error| ApiError::field(&error))?);
    let id = written.id.clone();
    let address =
        resolve(&written.address, &service.config.networks).await.and_then(Resolved::only).map_err(|why| {
            let message = format!("address is {:?}: expected a host whose name resolves ({why})", written.address);
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_field", message)
        })?;
    let known_from_file =
        service.read(|registry| registry.get(&id).is_ok_and(|endpoint| matches!(endpoint.origin, Origin::File(_))));
    let _order = service.order.lock().await;
    let stood = service.read(|registry| {
        let endpoint = registry.get(&id).ok().filter(|endpoint| endpoint.removal.is_some())?;
        Some((endpoint.pin.clone(), endpoint.drain.clone()))
    });
    let registered = service.change(|registry| {
        let origin = match registry.get(&id) {
            // An endpoint of the file that reports in as the file has it.
            Ok(known) if known.written == written => known.origin.clone(),
            _ => Origin::Api,
        };
        service.admit(registry, &pool, written, address, origin, &access)
    })?;
    service.members.notify_one();
    let stored = if known_from_file {
        Stored::Now
    } else {
        // One that was about to go stays as it is, and what is stored of it left when it was removed.
        let (pin, drain) = stood.unwrap_or_default();
        let mut changes = vec![Change::put(Table::Registrations, &id, &registration)?];
        changes.extend(pin.map(|pin| Change::put(Table::Pins, &id, &pin)).transpose()?);
        changes.extend(drain.map(|drain| Change::put(Table::Drains, &id, &drain)).transpose()?);
        // Not stored yet is an alarm, and no reason for an engine to register again.
        service.remember(changes).await
    };
    let status = match (stored, registered) {
        (Stored::Later, _) => StatusCode::ACCEPTED,
        (Stored::Now, Registered::New) => StatusCode::CREATED,
        (Stored::Now, _) => StatusCode::OK,
    };
    let view = service.read(|registry| EndpointView::one(registry, &id));
    Ok((status, Json(view.ok_or(RegistryError::NoEndpoint(id))?)))
}

/// Drains an endpoint, then forgets it, when it is empty, and after `drain.deadline` in any case (or at the deadline of its
/// drain, when it has one): 202, since that takes its time, and so may the store. `removal` of the endpoint says how far it is.
#[utoipa::path(delete, path = "/v1/endpoints/{id}",
    responses((status = 202, body = EndpointView), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn remove(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<EndpointView>), ApiError> {
    let _order = service.order.lock().await;
    let view = service.change(|registry| {
        let endpoint = registry.get_mut(&id)?;
        if matches!(endpoint.origin, Origin::File(_)) {
            return Err(RegistryError::FromFile(id.clone()));
        }
        endpoint.remove("removed by DELETE", service.config.drain_deadline, now_ms());
        EndpointView::one(registry, &id).ok_or(RegistryError::NoEndpoint(id.clone()))
    })?;
    // Whoever registers under this id after a restart is somebody new.
    let tables = [Table::Registrations, Table::Drains, Table::Pins, Table::Demands];
    service.remember(tables.into_iter().map(|table| Change::remove(table, &id)).collect()).await;
    service.members.notify_one();
    Ok((StatusCode::ACCEPTED, Json(view)))
}
