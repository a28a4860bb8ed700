//! What a fault does to a request before it reaches the model.

use std::time::Duration;

use hyper::Response;
use hyper::header::{HeaderValue, RETRY_AFTER};
use tokio::time::sleep;

use super::super::body::{Answer, Cut, ResetFlag};
use super::super::core::Core;
use super::super::fault::{Fault, FaultKind};
use super::super::shapes::{ApiError, Style};
use super::respond;

/// The fault in force, if `hits` says that this path is meant.
pub(super) async fn faulty(
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
    apply(core, reset, Style::OpenAi, &fault).await
}

/// What a fault does before the response: a response of its own, a cut, a delay, or nothing.
pub(super) async fn apply(
    core: &Core,
    reset: &ResetFlag,
    style: Style,
    fault: &Fault,
) -> Result<Option<Response<Answer>>, Cut> {
    match fault.kind {
        FaultKind::None | FaultKind::ResetMidStream | FaultKind::StreamError | FaultKind::Refuse => Ok(None),
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
            let mut response = respond::error(style, &ApiError::on_demand(fault.status));
            if let Some(seconds) = fault.retry_after {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Ok(Some(response))
        }
    }
}
