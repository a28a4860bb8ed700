//! Who answers what.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use tokio::time::sleep;

use super::api::{self, Api, ApiError, Limits};
use super::body::{Answer, CUT_DELAY, Cut, Events, ResetFlag, Until};
use super::core::Core;
use super::fault::{Fault, FaultKind};
use super::metrics;
use super::sse::Script;
use super::subscriber::Waiter;

/// What `/version` says: the vLLM release whose surface this follows.
const VLLM_VERSION: &str = "0.32.0";

const JSON: &str = "application/json";

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
    let body = async |request: Request<Incoming>| {
        // An error means that the client left in the middle.
        request.into_body().collect().await.map(|body| body.to_bytes()).map_err(|_| Cut)
    };
    Ok(match path.as_str() {
        "/v1/chat/completions" if post => generate(core, reset, Api::Chat, request).await?,
        "/v1/completions" if post => generate(core, reset, Api::Completions, request).await?,
        "/health" | "/ping" if get => {
            faulty(&core, &reset, |fault| fault.health).await?.unwrap_or_else(|| full(StatusCode::OK, JSON, ""))
        }
        "/metrics" if get => match faulty(&core, &reset, |fault| fault.metrics).await? {
            Some(response) => response,
            None => {
                let text = metrics::render(&core.reading(), &core.config.model);
                full(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
            }
        },
        "/v1/models" if get => models(&core),
        "/version" if get => json(&serde_json::json!({"version": VLLM_VERSION})),
        "/sim/state" if get => sim_state(&core),
        "/sim/fault" if post => sim_fault(&core, &body(request).await?),
        "/sim/restart" if post => sim_restart(&core, &body(request).await?),
        "/sim/reset_max" if post => {
            core.reset_max();
            json(&serde_json::json!({}))
        }
        "/v1/chat/completions"
        | "/v1/completions"
        | "/health"
        | "/ping"
        | "/metrics"
        | "/v1/models"
        | "/version"
        | "/sim/state"
        | "/sim/fault"
        | "/sim/restart"
        | "/sim/reset_max" => full(StatusCode::METHOD_NOT_ALLOWED, JSON, r#"{"detail":"Method Not Allowed"}"#),
        _ => full(StatusCode::NOT_FOUND, JSON, r#"{"detail":"Not Found"}"#),
    })
}

async fn generate(
    core: Arc<Core>,
    reset: ResetFlag,
    api: Api,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Cut> {
    let headers = noted(request.headers());
    let (mut flight, fault) = core.enter();
    let Ok(body) = request.into_body().collect().await.map(|body| body.to_bytes()) else {
        return Err(Cut);
    };
    let mut slow = 1.0;
    // A fault that strikes after so many tokens, and whether it hangs rather than resets.
    let mut mid_stream = None;
    if let Some(fault) = fault {
        match fault.kind {
            FaultKind::Hang if fault.after_tokens.is_some() => mid_stream = Some((fault.strikes_after(), true)),
            FaultKind::ResetMidStream => mid_stream = Some((fault.strikes_after(), false)),
            FaultKind::Hang => flight.hangs(),
            FaultKind::Slow => slow = fault.factor,
            _ => {}
        }
        if mid_stream.is_none()
            && let Some(response) = apply(&core, &reset, &fault).await?
        {
            return Ok(response);
        }
    }
    let profile = core.profile();
    let limits = Limits {
        model: &core.config.model,
        max_model_len: profile.max_model_len,
        mean_output_tokens: profile.mean_output_tokens,
    };
    let generation = match api::parse(api, &body, limits) {
        Ok(generation) => generation,
        Err(error) => return Ok(refuse(&core, &error)),
    };
    drop(body);
    let (mut ticket, waiter) = match core.submit(&profile, &generation, slow, &headers) {
        Ok(submitted) => submitted,
        Err(error) => return Ok(refuse(&core, &ApiError::bad(None, error.to_string()))),
    };
    let script = Script::new(&generation, &core.config.model, &core.config.name, ticket.id());
    let fault = mid_stream.map(|(after, hang)| -> (u64, Until) {
        (after, if hang { Box::pin(core.end_of_life()) } else { Box::pin(pause()) })
    });
    match waiter {
        Waiter::Stream(news) => {
            let events = Events::new(&generation, script, news, ticket, flight, reset, fault);
            let mut response = Response::new(Answer::Events(Box::new(events)));
            content_type(&mut response, "text/event-stream; charset=utf-8");
            Ok(response)
        }
        Waiter::Whole(results) => {
            let mut cached_tokens = 0;
            for (result, choice) in results.into_iter().zip(&generation.choices) {
                let cached = result.await.map_err(|_| reset.cut())?;
                cached_tokens += if choice.is_first { cached } else { 0 };
            }
            ticket.done();
            let whole = Bytes::from(script.whole(cached_tokens));
            let Some((_, until)) = fault else {
                return Ok(full(StatusCode::OK, JSON, whole));
            };
            let bytes = whole.slice(..whole.len() / 2);
            let mut response = Response::new(Answer::Part { bytes, until, reset });
            content_type(&mut response, JSON);
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
            Ok(response)
        }
    }
}

/// The headers that go into the record: those that gateways and tests add.
fn noted(headers: &HeaderMap) -> Vec<(String, String)> {
    let ours = headers.iter().filter(|(name, _)| name.as_str().starts_with("x-"));
    ours.map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())).collect()
}

/// Lets what was sent reach the client; the time runs from the first poll, not from now.
async fn pause() {
    sleep(CUT_DELAY).await;
}

/// The fault in force, if `hits` says that this path is meant.
async fn faulty(
    core: &Core,
    reset: &ResetFlag,
    hits: impl Fn(&Fault) -> bool,
) -> Result<Option<Response<Answer>>, Cut> {
    let fault = core.fault();
    if !hits(&fault) {
        return Ok(None);
    }
    if fault.kind == FaultKind::ResetMidStream {
        return Err(reset.cut());
    }
    apply(core, reset, &fault).await
}

/// What a fault does before the response: a response of its own, a cut, a delay, or nothing.
async fn apply(core: &Core, reset: &ResetFlag, fault: &Fault) -> Result<Option<Response<Answer>>, Cut> {
    match fault.kind {
        FaultKind::None | FaultKind::ResetMidStream | FaultKind::Refuse => Ok(None),
        FaultKind::Hang => {
            core.end_of_life().await;
            Err(reset.cut())
        }
        FaultKind::ResetBeforeHeaders => Err(reset.cut()),
        FaultKind::Slow => {
            if fault.delay_ms > 0 {
                sleep(Duration::from_millis(fault.delay_ms)).await;
            }
            Ok(None)
        }
        FaultKind::Status => {
            let kind = if fault.status < 500 { "RateLimitError" } else { "InternalServerError" };
            let error = ApiError { status: fault.status, kind, param: None, message: "fault on demand".to_owned() };
            let mut response = error_response(&error);
            if let Some(seconds) = fault.retry_after {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Ok(Some(response))
        }
    }
}

fn models(core: &Core) -> Response<Answer> {
    let model = &core.config.model;
    let reading = core.reading();
    json(&serde_json::json!({"object": "list", "data": [{
        "id": model, "object": "model", "created": reading.started_s as u64, "owned_by": "vllm",
        "root": model, "parent": null, "max_model_len": reading.profile.max_model_len, "permission": [],
    }]}))
}

fn sim_state(core: &Core) -> Response<Answer> {
    match serde_json::to_value(core.state()) {
        Ok(serde_json::Value::Object(mut state)) => {
            state.insert("records".to_owned(), serde_json::json!(core.records()));
            json(&serde_json::Value::Object(state))
        }
        _ => full(StatusCode::INTERNAL_SERVER_ERROR, JSON, "{}"),
    }
}

fn sim_fault(core: &Core, body: &[u8]) -> Response<Answer> {
    let fault = serde_json::from_slice::<Fault>(body).map_err(|error| error.to_string());
    match fault.and_then(|fault| fault.check().map(|()| fault)) {
        Ok(fault) => {
            core.set_fault(fault.clone());
            json(&serde_json::json!(fault))
        }
        Err(error) => error_response(&ApiError::bad(None, error)),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Restart {
    #[serde(default = "yes")]
    cold: bool,
    #[serde(default)]
    launch_args: Option<String>,
}

fn yes() -> bool {
    true
}

fn sim_restart(core: &Core, body: &[u8]) -> Response<Answer> {
    let body = if body.is_empty() { b"{}" } else { body };
    match serde_json::from_slice::<Restart>(body) {
        Ok(Restart { cold, launch_args }) => {
            core.restart(cold, launch_args);
            json(&serde_json::json!(core.state()))
        }
        Err(error) => error_response(&ApiError::bad(None, error.to_string())),
    }
}

fn refuse(core: &Core, error: &ApiError) -> Response<Answer> {
    core.count_refusal();
    error_response(error)
}

fn error_response(error: &ApiError) -> Response<Answer> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    full(status, JSON, error.body())
}

fn json(value: &serde_json::Value) -> Response<Answer> {
    full(StatusCode::OK, JSON, value.to_string())
}

fn full(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Answer> {
    let mut response = Response::new(Answer::Full(body.into()));
    *response.status_mut() = status;
    content_type(&mut response, kind);
    response
}

fn content_type(response: &mut Response<Answer>, kind: &'static str) {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
}
