//! `/v1/signals`: an Envoy tells what it has in flight, and hears what others have.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use weighbridge_routing::exchange::{Answer, Report};
use weighbridge_routing::snapshot::{MAX_ENDPOINTS_PER_POOL, MAX_POOLS, is_id};

use super::error::{ApiError, Body, ErrorBody};
use crate::service::{Service, now_ms};

/// The largest report in bytes: one endpoint has about 290 with everything.
pub(super) const MAX_REPORT: usize = 2 << 20;

/// An Envoy reports, per pool and endpoint, what it has in flight (`in_flight`, `pending_tokens`), whether it sends there less for what
/// requests have met (`ejected`, `cooling_down`), what waits in its own queues
/// (`waiting`), and what requests that have ended were like (`served`). It is answered with the sum of what the *other*
/// Envoys have reported within the last three intervals (`others`, `others_tokens`), what the engine has beyond all of them
/// (`outside`), the engine's own fresh figures (`engine`), and moving averages. Endpoints that do not exist are left out.
#[utoipa::path(post, path = "/v1/signals",
    request_body(content = serde_json::Value, example = json!({
        "envoy": "5f0c2d6a9b3e4f71",
        "pools": {"qwen-27b": {"waiting": 0, "endpoints": {"rtx6000": {"in_flight": 3, "pending_tokens": 1200, "served": {
            "requests": 2, "errors": 0, "ttft_ms": {"n": 2, "sum": 310.0}, "e2e_ms": {"n": 2, "sum": 4200.0}, "tps": {"n": 2, "sum": 91.5}
        }}}}}
    })),
    responses(
        (status = 200, body = serde_json::Value, example = json!({
            "pools": {"qwen-27b": {"rtx6000": {"others": 5, "others_tokens": 2400, "outside": 1,
                "engine": {"running": 9, "waiting": 0, "kv_usage": 0.31, "gpu_usage": 0.9},
                "averages": {"ttft_ms": 155.0, "e2e_ms": 2100.0, "tps": 45.7, "error_rate": 0.0}}}}
        })),
        (status = 400, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub(super) async fn exchange(
    State(service): State<Arc<Service>>,
    Body(report): Body<Report>,
) -> Result<Json<Answer>, ApiError> {
    check(&report)?;
    let now_ms = now_ms();
    let answer = service.note(|registry| registry.exchanged(&report, now_ms));
    answer
        .map(Json)
        .map_err(|crowded| ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_envoys", crowded.to_string()))
}

fn check(report: &Report) -> Result<(), ApiError> {
    let refuse = |message: String| Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_field", message));
    if !is_id(&report.envoy) {
        return refuse(format!("envoy is {:?}: expected 1 to 64 of A-Z a-z 0-9 _ -", shortened(&report.envoy)));
    }
    if report.pools.len() > MAX_POOLS {
        return refuse(format!("pools has {} entries: expected at most {MAX_POOLS}", report.pools.len()));
    }
    for (name, pool) in &report.pools {
        if pool.endpoints.len() > MAX_ENDPOINTS_PER_POOL {
            let (name, count) = (shortened(name), pool.endpoints.len());
            return refuse(format!(
                "pools.{name}.endpoints has {count} entries: expected at most {MAX_ENDPOINTS_PER_POOL}"
            ));
        }
    }
    Ok(())
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}
