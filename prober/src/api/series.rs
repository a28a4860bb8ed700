//! `/v1/series`: the last quarter of an hour.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{ApiError, ErrorBody};
use crate::series::Columns;
use crate::service::Service;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SeriesQuery {
    /// Only points after this time, in Unix ms.
    #[serde(default)]
    since_ms: u64,
}

/// A point every five seconds of the last 15 minutes, since this prober has started: a list per figure, null where it was not
/// known.
#[utoipa::path(get, path = "/v1/series", params(SeriesQuery),
    responses((status = 200, body = Columns), (status = 400, body = ErrorBody)))]
pub(super) async fn series(
    State(service): State<Arc<Service>>,
    query: Result<Query<SeriesQuery>, QueryRejection>,
) -> Result<Json<Columns>, ApiError> {
    let Query(SeriesQuery { since_ms }) =
        query.map_err(|rejection| ApiError::new(StatusCode::BAD_REQUEST, "invalid_query", rejection.body_text()))?;
    Ok(Json(service.live.series(|series| series.since(since_ms))))
}
