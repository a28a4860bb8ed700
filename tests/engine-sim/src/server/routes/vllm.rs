//! What vLLM tells about itself.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::super::body::{Answer, Cut, ResetFlag};
use super::super::core::Core;
use super::super::metrics;
use super::faults::faulty;
use super::respond::{self, JSON, full};

/// What `/version` says: the vLLM release whose surface this follows.
const VLLM_VERSION: &str = "0.32.0";

pub(super) async fn health(core: &Core, reset: &ResetFlag) -> Result<Response<Answer>, Cut> {
    let fault = faulty(core, reset, |fault| fault.health).await?;
    Ok(fault.unwrap_or_else(|| full(StatusCode::OK, JSON, "")))
}

pub(super) async fn metrics(core: &Core, reset: &ResetFlag) -> Result<Response<Answer>, Cut> {
    let fault = faulty(core, reset, |fault| fault.metrics).await?;
    Ok(fault.unwrap_or_else(|| {
        let text = metrics::render(&core.reading(), &core.config.model);
        full(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
    }))
}

/// The base model, then the adapters, whose parent it is.
pub(super) fn models(core: &Core) -> Response<Answer> {
    let (base, reading) = (&core.config.model, core.reading());
    let card = |id: &str, parent: Option<&String>| {
        json!({"id": id, "object": "model", "created": reading.started_s as u64, "owned_by": "vllm", "root": id,
            "parent": parent, "max_model_len": parent.is_none().then_some(reading.profile.max_model_len),
            "permission": []})
    };
    let mut data: Vec<Value> = vec![card(base, None)];
    data.extend(core.config.adapters.iter().map(|adapter| card(adapter, Some(base))));
    respond::json(&json!({"object": "list", "data": data}))
}

pub(super) fn version() -> Response<Answer> {
    respond::json(&json!({"version": VLLM_VERSION}))
}
