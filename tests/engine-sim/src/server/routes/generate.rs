//! Requests to the model.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::Value;
use tokio::time::sleep;

use super::super::body::{Answer, AtEnd, CUT_DELAY, Cut, Events, MidStream, ResetFlag, Telling};
use super::super::core::Core;
use super::super::fault::FaultKind;
use super::super::shapes::{self, ApiError, Facts, Generation, Limits, Shape, Style, Writer};
use super::super::subscriber::Waiter;
use super::collect;
use super::faults::apply;
use super::respond::{self, JSON, content_type, full, refuse};
use crate::model::Profile;

/// A request that the model works on.
pub(super) async fn generate(
    core: Arc<Core>,
    reset: ResetFlag,
    shape: Shape,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Cut> {
    let headers = noted(request.headers());
    let form = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("").to_owned();
    let path = request.uri().path().to_owned();
    let (mut flight, fault) = core.enter();
    let body = collect(request).await?;
    let mut slow = 1.0;
    // A fault that strikes after so many tokens.
    let mut mid_stream = None;
    if let Some(fault) = fault {
        match fault.kind {
            FaultKind::Hang if fault.after_tokens.is_some() => {
                mid_stream = Some((fault.strikes_after(), MidStream::Cut(Box::pin(core.end_of_life()))));
            }
            FaultKind::ResetMidStream => {
                mid_stream = Some((fault.strikes_after(), MidStream::Cut(Box::pin(pause()))));
            }
            FaultKind::StreamError => mid_stream = Some((fault.strikes_after(), MidStream::Error)),
            FaultKind::Hang => flight.hangs(),
            FaultKind::Slow => slow = fault.factor,
            _ => {}
        }
        if mid_stream.is_none()
            && let Some(response) = apply(&core, &reset, shape.style(), &fault).await?
        {
            return Ok(response);
        }
    }
    let profile = core.profile();
    let read = with_limits(&core, &profile, |limits| match shape {
        Shape::Transcriptions => shapes::read_form(&form, &body, limits),
        _ => shapes::read(shape, &body, limits),
    });
    let generation = match read {
        Ok(generation) => generation,
        Err(error) => return Ok(refuse(&core, shape.style(), &error)),
    };
    drop(body);
    let (mut ticket, waiter) = match core.submit(&profile, &generation, slow, &path, &headers) {
        Ok(submitted) => submitted,
        Err(error) => return Ok(refuse(&core, shape.style(), &ApiError::bad(None, error.to_string()))),
    };
    let facts = Facts::new(&generation, core.nonce(), ticket.id());
    let at_end = at_end(&core, &generation, &facts);
    let writer = shapes::writer(facts);
    match waiter {
        Waiter::Stream(news) => {
            let telling = Telling { writer, style: core.config.sse, at_end };
            let events = Events::new(&generation, telling, news, (ticket, flight), reset, mid_stream);
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
            if let Some(at_end) = at_end {
                at_end();
            }
            Ok(whole(shape, writer.as_ref(), cached_tokens, mid_stream, reset))
        }
    }
}

/// A request that is answered without the model. Faults hit it as they hit the others.
pub(super) async fn at_once(
    core: Arc<Core>,
    reset: ResetFlag,
    style: Style,
    read: fn(&[u8], Limits<'_>) -> Result<Value, ApiError>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Cut> {
    let (_flight, fault) = core.enter();
    let body = collect(request).await?;
    if let Some(fault) = fault
        && let Some(response) = apply(&core, &reset, style, &fault).await?
    {
        return Ok(response);
    }
    let profile = core.profile();
    Ok(match with_limits(&core, &profile, |limits| read(&body, limits)) {
        Ok(value) => respond::json(&value),
        Err(error) => refuse(&core, style, &error),
    })
}

fn with_limits<T>(core: &Core, profile: &Profile, read: impl FnOnce(Limits<'_>) -> T) -> T {
    read(Limits {
        model: &core.config.model,
        adapters: &core.config.adapters,
        max_model_len: profile.max_model_len,
        mean_output_tokens: profile.mean_output_tokens,
        conversation: &|id| core.conversation(id),
    })
}

/// Remembers the conversation, where the request allows it.
fn at_end(core: &Arc<Core>, generation: &Generation, facts: &Facts) -> Option<AtEnd> {
    generation.store.then(|| -> AtEnd {
        let (core, id, conversation) = (core.clone(), facts.id.clone(), generation.conversation());
        Box::new(move || core.remember(id, conversation))
    })
}

/// A JSON answer, or what a fault leaves of it.
fn whole(
    shape: Shape,
    writer: &dyn Writer,
    cached_tokens: u64,
    fault: Option<(u64, MidStream)>,
    reset: ResetFlag,
) -> Response<Answer> {
    let whole = Bytes::from(writer.whole(cached_tokens));
    match fault {
        None => full(StatusCode::OK, JSON, whole),
        Some((_, MidStream::Error)) => respond::error(shape.style(), &ApiError::on_demand(500)),
        Some((_, MidStream::Cut(until))) => {
            let bytes = whole.slice(..whole.len() / 2);
            let mut response = Response::new(Answer::Part { bytes, until, reset });
            content_type(&mut response, JSON);
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
            response
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
