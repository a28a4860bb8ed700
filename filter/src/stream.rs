//! One HTTP request, from its headers to its log entry.

use std::rc::Rc;

use weighbridge_routing::api_error::ApiError;
use weighbridge_routing::live::Outcome;
use weighbridge_routing::request::{RequestError, Shape, Style};
use weighbridge_routing::snapshot::Snapshot;

use crate::abi::Action;
use crate::answer::Refusal;
use crate::host::{self, Headers};
use crate::place::{Becomes, DECISION_STATE, Wanted};
use crate::placed::Placed;
use crate::reading::{Reading, Unreadable};
use crate::steer::{CLUSTER_HEADER, HOST_HEADER};
use crate::waiting::{Turn, Waiting};
use crate::{answer, root, vm};

const EXPLAIN_HEADER: &str = "x-weighbridge-explain";

/// A request's course through the filter.
#[derive(Default)]
pub(crate) struct Stream {
    id: u32,
    phase: Phase,
    /// In whose words its client expects errors.
    style: Style,
}

#[derive(Default)]
enum Phase {
    /// None of our business, or answered from here.
    #[default]
    Passing,
    /// Paused until the body is complete.
    Reading(Box<Reading>),
    /// Paused until a slot is free.
    Waiting(Box<Waiting>),
    /// On its way to an endpoint, or back.
    Placed(Box<Placed>),
}

impl Stream {
    /// A stream whose context has this id.
    pub(crate) fn new(id: u32) -> Self {
        Stream { id, ..Stream::default() }
    }

    /// Whether nothing that comes for this request matters any more.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.phase, Phase::Passing)
    }

    /// Answers from here and forgets about the request.
    fn answer(&mut self, error: &ApiError, decision: Option<&str>, details: &str) -> Action {
        self.phase = Phase::Passing;
        answer::send(error, decision, self.style, details);
        Action::Pause
    }

    fn refuse(&mut self, refusal: &Refusal) -> Action {
        let Refusal { error, pool, reason, decision } = refusal;
        vm::with(|vm| vm.stats.refused(pool, reason));
        self.answer(error, decision.as_deref(), &format!("weighbridge_{reason}"))
    }

    fn refuse_unreadable(&mut self, error: &RequestError) -> Action {
        let reason = if matches!(error, RequestError::TooLarge(_)) { "too_large" } else { "invalid_request" };
        self.refuse(&Refusal::new(ApiError::unreadable(error), "none", reason))
    }

    fn list_models(&mut self, snapshot: &Snapshot) -> Action {
        let body = snapshot.models_json();
        if host::respond(200, "weighbridge_models", &[("content-type", "application/json")], &body).is_err() {
            host::log(host::Level::Error, "weighbridge: Envoy did not take the list of models");
        }
        Action::Pause
    }

    /// Reads what has arrived, and places the request when that was all.
    fn read(&mut self, body_size: usize, complete: bool) -> Action {
        let Phase::Reading(reading) = &mut self.phase else { return Action::Continue };
        match reading.read(body_size, complete) {
            Err(Unreadable::TooLarge(limit)) => {
                self.refuse(&Refusal::new(ApiError::too_large(limit), "none", "too_large"))
            }
            Err(Unreadable::Request(error)) => self.refuse_unreadable(&error),
            Ok(()) if complete => self.place(body_size),
            Ok(()) => Action::Pause,
        }
    }

    fn place(&mut self, body_size: usize) -> Action {
        let Phase::Reading(reading) = std::mem::take(&mut self.phase) else { return Action::Continue };
        let (snapshot, shape, explain) = (Rc::clone(&reading.snapshot), reading.shape, reading.explain);
        let request = match reading.finish() {
            Ok(request) => request,
            Err(error) => return self.refuse_unreadable(&error),
        };
        let wanted = Wanted { snapshot, shape, explain, request, body_size };
        match wanted.place(self.id) {
            Ok(Becomes::Placed(placed)) => {
                self.phase = Phase::Placed(placed);
                Action::Continue
            }
            Ok(Becomes::Waiting(waiting)) => {
                self.phase = Phase::Waiting(waiting);
                root::hurry(self.id);
                Action::Pause
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }

    /// Its turn may have come, or its time may be over. Called on the root context, with this stream as the effective one.
    pub(crate) fn on_turn(&mut self, turn: impl FnOnce(Box<Waiting>) -> Turn) {
        let waiting = match std::mem::take(&mut self.phase) {
            Phase::Waiting(waiting) => waiting,
            other => {
                self.phase = other;
                return;
            }
        };
        match turn(waiting) {
            Turn::Placed(placed) => {
                self.phase = Phase::Placed(placed);
                if host::resume_request().is_err() {
                    host::log(host::Level::Error, "weighbridge: Envoy did not let a request go on");
                }
            }
            Turn::Waits(waiting) => self.phase = Phase::Waiting(waiting),
            Turn::Refused(refusal) => {
                self.refuse(&refusal);
            }
        }
    }
}

/// The callbacks of a stream, in their order. [`crate::abi`] calls them.
impl Stream {
    pub(crate) fn on_http_request_headers(&mut self, end_of_stream: bool) -> Action {
        #[cfg(feature = "fault-injection")]
        #[expect(clippy::panic, reason = "the fault that tests ask for")]
        if host::header(Headers::Request, "x-weighbridge-test-panic").is_some() {
            panic!("asked to by x-weighbridge-test-panic");
        }
        let path = host::header(Headers::Request, ":path").unwrap_or_default();
        let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
        let shape = Shape::of_path(path);
        let ours = shape.is_some() || path == b"/v1/models";
        if !ours {
            // Nobody steers from outside, on any path.
            host::remove_header(Headers::Request, CLUSTER_HEADER);
            host::remove_header(Headers::Request, HOST_HEADER);
            return Action::Continue;
        }
        self.style = shape.map(Shape::style).unwrap_or_default();
        // Every host call counts: a body on these paths is a POST (and if it is a PUT, the engine says what it thinks).
        let method = match shape {
            Some(_) if !end_of_stream => b"POST".to_vec(),
            _ => host::header(Headers::Request, ":method").unwrap_or_default(),
        };
        let Some(snapshot) = vm::with(|vm| vm.snapshot()) else {
            return self.answer(&ApiError::not_configured(), None, "weighbridge_not_configured");
        };
        match (shape, method.as_slice()) {
            (None, b"GET" | b"HEAD") => self.list_models(&snapshot),
            (Some(shape), b"POST") => {
                let explain = snapshot.client_headers.explain
                    && host::header(Headers::Request, EXPLAIN_HEADER).is_some_and(|value| value == b"1");
                self.phase = Phase::Reading(Box::new(Reading::new(snapshot, shape, explain)));
                if end_of_stream { self.place(0) } else { Action::Pause }
            }
            (Some(_), method) if method != b"OPTIONS" => {
                let (method, path) = (String::from_utf8_lossy(method), String::from_utf8_lossy(path));
                self.answer(&ApiError::method_not_allowed(&method, &path), None, "weighbridge_method_not_allowed")
            }
            _ => {
                host::remove_header(Headers::Request, CLUSTER_HEADER);
                host::remove_header(Headers::Request, HOST_HEADER);
                Action::Continue
            }
        }
    }

    pub(crate) fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        self.read(body_size, end_of_stream)
    }

    pub(crate) fn on_http_request_trailers(&mut self) -> Action {
        match &self.phase {
            // With trailers, the body never said that it was complete.
            Phase::Reading(reading) => {
                let arrived = reading.arrived;
                self.read(arrived, true)
            }
            _ => Action::Continue,
        }
    }

    pub(crate) fn on_http_response_headers(&mut self, end_of_stream: bool) -> Action {
        if let Phase::Placed(placed) = &mut self.phase {
            placed.headers(end_of_stream);
        }
        Action::Continue
    }

    pub(crate) fn on_http_response_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        if let Phase::Placed(placed) = &mut self.phase {
            placed.body(body_size, end_of_stream);
        }
        Action::Continue
    }

    pub(crate) fn on_http_response_trailers(&mut self) -> Action {
        if let Phase::Placed(placed) = &mut self.phase {
            placed.trailers();
        }
        Action::Continue
    }

    /// An attempt at this address, of the request with this id, went wrong. Returns whether that is this stream's; `at` only where
    /// its request is counted at that address.
    pub(crate) fn attempt_failed(&mut self, id: u64, address: &[u8], at: bool, outcome: Outcome) -> bool {
        match &mut self.phase {
            Phase::Placed(placed) => {
                (!at || placed.is_at(address)) && placed.is(id) && placed.attempt_failed(address, outcome)
            }
            _ => false,
        }
    }

    /// The one callback that always comes, whichever way a request ends.
    pub(crate) fn on_log(&mut self) {
        match &mut self.phase {
            Phase::Placed(placed) => {
                if let Some((record, went)) = placed.log() {
                    let _ = host::set_property(DECISION_STATE, &record);
                    vm::with(|vm| vm.tell(&record, went));
                }
            }
            // Its client has left.
            Phase::Waiting(waiting) => waiting.client_left(),
            Phase::Reading(_) | Phase::Passing => {}
        }
    }
}
