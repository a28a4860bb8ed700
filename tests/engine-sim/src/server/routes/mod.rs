//! Who answers what.

mod faults;
mod generate;
mod respond;
mod sim;
mod vllm;

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};

use super::body::{Answer, Cut, ResetFlag};
use super::core::Core;
use super::shapes::{Shape, Style, tokens};
use respond::{JSON, full};

/// One request, one response; an error resets the connection.
pub(crate) async fn answer(
    core: Arc<Core>,
    reset: ResetFlag,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Cut> {
    let name = HeaderValue::from_str(&core.config.name).unwrap_or(HeaderValue::from_static("engine"));
    let mut response = route(core, reset, request).await?;
    response.headers_mut().insert("x-engine-id", name);
    Ok(response)
}

async fn route(core: Arc<Core>, reset: ResetFlag, request: Request<Incoming>) -> Result<Response<Answer>, Cut> {
    let get = request.method() == Method::GET || request.method() == Method::HEAD;
    let post = request.method() == Method::POST;
    let path = request.uri().path().to_owned();
    if let Some(shape) = Shape::of_path(&path) {
        return match post {
            true => generate::generate(core, reset, shape, request).await,
            false => Ok(not_allowed()),
        };
    }
    Ok(match path.as_str() {
        "/tokenize" if post => generate::at_once(core, reset, Style::OpenAi, tokens::tokenize, request).await?,
        "/detokenize" if post => generate::at_once(core, reset, Style::OpenAi, tokens::detokenize, request).await?,
        "/v1/messages/count_tokens" if post => {
            generate::at_once(core, reset, Style::Anthropic, tokens::count, request).await?
        }
        "/health" | "/ping" if get => vllm::health(&core, &reset).await?,
        "/metrics" if get => vllm::metrics(&core, &reset).await?,
        "/v1/models" if get => vllm::models(&core),
        "/version" if get => vllm::version(),
        "/sim/state" if get => sim::state(&core),
        "/sim/fault" if post => sim::fault(&core, &collect(request).await?),
        "/sim/restart" if post => sim::restart(&core, &collect(request).await?),
        "/sim/reset_max" if post => {
            core.reset_max();
            respond::json(&serde_json::json!({}))
        }
        "/tokenize"
        | "/detokenize"
        | "/v1/messages/count_tokens"
        | "/health"
        | "/ping"
        | "/metrics"
        | "/v1/models"
        | "/version"
        | "/sim/state"
        | "/sim/fault"
        | "/sim/restart"
        | "/sim/reset_max" => not_allowed(),
        _ => full(StatusCode::NOT_FOUND, JSON, r#"{"detail":"Not Found"}"#),
    })
}

fn not_allowed() -> Response<Answer> {
    full(StatusCode::METHOD_NOT_ALLOWED, JSON, r#"{"detail":"Method Not Allowed"}"#)
}

/// The whole body; an error means that the client left in the middle.
async fn collect(request: Request<Incoming>) -> Result<Bytes, Cut> {
    request.into_body().collect().await.map(|body| body.to_bytes()).map_err(|_| Cut)
}
