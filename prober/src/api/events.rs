//! `/v1/events`: the fleet as it changes, as server-sent events.
//!
//! A stream takes the newest document when its client has taken in the one before, and never keeps another: a slow client
//! misses some, and costs no memory. The bytes of a document are the same ones for all streams.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};

use super::auth::{Admission, Admitted};
use super::error::{ApiError, ErrorBody};
use super::fleet::Fleet;
use crate::live::{self, Document, Watcher};
use crate::service::Service;

/// Browsers connect again after so many ms.
const RETRY: &[u8] = b"retry: 1000\n\n";

/// The document of `/v1/fleet`, at once and then whenever something has changed, as `event: fleet`; every five seconds at least.
/// `id` is its `now_ms`.
#[utoipa::path(get, path = "/v1/events",
    responses((status = 200, body = String, content_type = "text/event-stream"), (status = 503, body = ErrorBody)))]
pub(super) async fn events(
    State(service): State<Arc<Service>>,
    Extension(admitted): Extension<Admitted>,
) -> Result<Response, ApiError> {
    let watcher = service.live.watch().ok_or_else(|| {
        let message = format!("{} streams are open already: expected fewer at a time", live::STREAMS);
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", message)
    })?;
    let first = Arc::new(Fleet::of(&service).document());
    let by = admitted.by();
    let events = documents(watcher, admitted, first).flat_map(move |document| stream::iter(event(&document, by)));
    let body = stream::iter([Bytes::from_static(RETRY)]).chain(events).map(Ok::<_, Infallible>);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Or proxies that know it keep events back until they have many.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// The first, then newer ones as they come, until the prober stops, or the reader would not be let in any more.
fn documents(watcher: Watcher, admitted: Admitted, first: Arc<Document>) -> impl Stream<Item = Arc<Document>> {
    stream::unfold((watcher, admitted, Some(first), None), |(mut watcher, admitted, first, shown)| async move {
        let document = match first {
            Some(first) => first,
            None => tokio::select! {
                biased;
                () = admitted.over() => return None,
                newer = watcher.newer_than(shown) => newer?,
            },
        };
        let shown = document.read_at();
        Some((document, (watcher, admitted, None, shown)))
    })
}

/// The parts of one event. JSON as we write it has no line breaks, so it is one line of data.
fn event(document: &Document, admission: Admission) -> [Bytes; 3] {
    let head = format!("event: fleet\nid: {}\ndata: ", document.now_ms()).into_bytes();
    let opening = [head, document.opening(admission.as_str())].concat();
    [opening.into(), document.rest(), Bytes::from_static(b"\n\n")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data() {
        let document = Document::new(7, None, br#"{"now_ms":7,"text":"a\nb"}"#.to_vec());
        let text = event(&document, Admission::Token).concat();
        let expected = "event: fleet\nid: 7\ndata: {\"auth\":\"token\",\"now_ms\":7,\"text\":\"a\\nb\"}\n\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
