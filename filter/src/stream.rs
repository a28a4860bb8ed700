//! One HTTP request: read, placed, followed, released.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use weighbridge_routing::api_error::ApiError;
use weighbridge_routing::decision::{Decision, ResultRecord};
use weighbridge_routing::eligibility::Ask;
use weighbridge_routing::live::{Admitted, Outcome, Report};
use weighbridge_routing::prefix::holders::Nobody;
use weighbridge_routing::request::{Reader, Request, Shape, Style};
use weighbridge_routing::snapshot::{Endpoint, Pool, Snapshot};

use crate::host::{self, Buffer, Headers};
use crate::vm;

const CLUSTER_HEADER: &str = "x-weighbridge-cluster";
const HOST_HEADER: &str = "x-weighbridge-host";
const ENDPOINT_HEADER: &str = "x-weighbridge-endpoint";
const EXPLAIN_HEADER: &str = "x-weighbridge-explain";
const DECISION_HEADER: &str = "x-weighbridge-decision";
const DECISION_STATE: &str = "weighbridge.decision";
/// Bytes taken from Envoy's buffer at once: enough to make the call cheap, little enough to keep memory flat.
const PIECE_BYTES: usize = 64 * 1024;

/// A request's course through the filter.
#[derive(Default)]
pub(crate) struct Stream {
    phase: Phase,
    /// When the request was complete: what comes before is the client's upload.
    started_ms: u64,
}

#[derive(Default)]
enum Phase {
    /// None of our business, or answered from here.
    #[default]
    Passing,
    /// Paused until the body is complete.
    Reading(Box<Reading>),
    /// On its way to an endpoint, or back.
    Placed(Box<Placed>),
}

struct Reading {
    snapshot: Rc<Snapshot>,
    reader: Reader,
    /// Bytes of the body read so far.
    read: usize,
    /// Bytes of the body that have arrived.
    arrived: usize,
    /// Whether the client asked for the decision and may have it.
    explain: bool,
}

struct Placed {
    snapshot: Rc<Snapshot>,
    pool: usize,
    ask: Ask,
    admitted: Admitted,
    explain: bool,
    /// Place in the pool of the endpoint that the request is counted at.
    at: usize,
    /// When it was given back; `None` while it is counted.
    released_ms: Option<u64>,
    /// Whether that endpoint itself has answered, as opposed to Envoy in its stead.
    answered: bool,
    status: u16,
    ttft_ms: Option<u64>,
}

impl Placed {
    fn pool(&self) -> Option<&Pool> {
        self.snapshot.pools.get(self.pool)
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        self.pool()?.endpoints.get(self.at)
    }

    /// The count follows the endpoint that was really used. With several attempts the pick has failed; with one, Envoy
    /// did not know its address (yet), which is nobody's fault.
    fn follow(&mut self) {
        let Some(address) = host::property("upstream\0address") else { return };
        let Some(pool) = self.snapshot.pools.get(self.pool) else { return };
        let now_at = |endpoint: &&Endpoint| endpoint.address.as_bytes() == address;
        let Some(from) = pool.endpoints.get(self.at).filter(|endpoint| !now_at(endpoint)) else { return };
        let Some(at) = pool.endpoints.iter().position(|endpoint| now_at(&endpoint)) else { return };
        if let Some(to) = pool.endpoints.get(at) {
            let outcome = if attempts() > 1 { Outcome::Failure } else { Outcome::Neutral };
            let report = Report { outcome, trial: self.on_trial(), added_tokens: 0 };
            vm::with(|vm| vm.shift(pool, from, to, self.admitted.charge, report, host::now_ms()));
            self.at = at;
        }
    }

    /// Whether the endpoint that the request is counted at had been ejected when it was picked.
    fn on_trial(&self) -> bool {
        self.admitted.loads.get(self.at).is_some_and(|load| load.passive.ejections > 0)
    }

    /// Gives the slot back, once.
    fn release(&mut self, outcome: Outcome, now_ms: u64) {
        if self.released_ms.is_some() {
            return;
        }
        self.released_ms = Some(now_ms);
        let report = Report { outcome, trial: self.on_trial(), added_tokens: 0 };
        if let (Some(pool), Some(endpoint)) = (self.pool(), self.endpoint()) {
            vm::with(|vm| vm.release(pool, endpoint, self.admitted.charge, report, now_ms));
        }
    }

    /// A trial has succeeded as soon as its response begins: the end of a long stream would be too late.
    fn report_trial(&self) {
        if !self.answered || !self.on_trial() || self.outcome() != Outcome::Success {
            return;
        }
        if let (Some(pool), Some(endpoint)) = (self.pool(), self.endpoint()) {
            let report = Report { outcome: Outcome::Success, trial: true, added_tokens: 0 };
            vm::with(|vm| vm.report(pool, endpoint, report, host::now_ms()));
        }
    }

    /// How a request that got a whole answer went.
    fn outcome(&self) -> Outcome {
        match self.status {
            429 => Outcome::Neutral,
            500.. => Outcome::Failure,
            _ => Outcome::Success,
        }
    }

    /// How a request ended that got no whole answer. Only what Envoy blames on the upstream counts against the endpoint:
    /// a client that leaves (which HTTP/1 and HTTP/2 name differently) says nothing about it.
    fn outcome_of_cut() -> Outcome {
        let details = host::property("response\0code_details").unwrap_or_default();
        if details.starts_with(b"upstream_") { Outcome::Failure } else { Outcome::Neutral }
    }

    fn decision(&self) -> Option<Decision<'_>> {
        Some(Decision::admitted(self.pool()?, self.snapshot.version, &self.ask, &self.admitted))
    }
}

impl Stream {
    /// Answers from here and forgets about the request.
    fn answer(&mut self, error: &ApiError, details: &str) -> Action {
        self.phase = Phase::Passing;
        let retry_after = error.retry_after_s.map(|seconds| seconds.to_string());
        let mut headers = vec![("content-type", "application/json")];
        if let Some(seconds) = &retry_after {
            headers.push(("retry-after", seconds));
        }
        if error.status == 405 {
            headers.push(("allow", "POST"));
        }
        if host::respond(error.status, details, &headers, &error.body(Style::OpenAi)).is_err() {
            host::log(host::Level::Error, "weighbridge: Envoy did not take an error answer");
        }
        Action::Pause
    }

    fn refuse(&mut self, error: &ApiError, pool: &str, reason: &'static str) -> Action {
        vm::with(|vm| vm.stats.refused(pool, reason));
        self.answer(error, &format!("weighbridge_{reason}"))
    }

    fn list_models(&mut self, snapshot: &Snapshot) -> Action {
        let body = snapshot.models_json();
        if host::respond(200, "weighbridge_models", &[("content-type", "application/json")], &body).is_err() {
            host::log(host::Level::Error, "weighbridge: Envoy did not take the list of models");
        }
        Action::Pause
    }

    /// Reads what has arrived, and places the request when that was all. While more is to come, whole pieces are read
    /// only: a host call for every few bytes would cost more than the bytes.
    fn read(&mut self, body_size: usize, complete: bool) -> Action {
        let Phase::Reading(reading) = &mut self.phase else { return Action::Continue };
        let limit = reading.snapshot.max_body_bytes;
        while body_size as u64 <= limit
            && reading.read < body_size
            && (complete || body_size - reading.read >= PIECE_BYTES)
        {
            let length = PIECE_BYTES.min(body_size - reading.read);
            let Some(piece) = host::buffer(Buffer::RequestBody, reading.read, length).filter(|piece| !piece.is_empty())
            else {
                break;
            };
            reading.read += piece.len();
            if let Err(error) = reading.reader.feed(&piece) {
                return self.refuse(&ApiError::unreadable(&error), "none", "invalid_request");
            }
        }
        if body_size as u64 > limit {
            return self.refuse(&ApiError::too_large(limit), "none", "too_large");
        }
        reading.arrived = body_size;
        if complete { self.place(body_size) } else { Action::Pause }
    }

    fn place(&mut self, body_size: usize) -> Action {
        let Phase::Reading(reading) = std::mem::take(&mut self.phase) else { return Action::Continue };
        let Reading { snapshot, reader, explain, .. } = *reading;
        let request = match reader.finish() {
            Ok(request) => request,
            Err(error) => return self.refuse(&ApiError::unreadable(&error), "none", "invalid_request"),
        };
        let Some((index, pool)) = snapshot.pool_for_model(&request.model) else {
            return self.refuse(&ApiError::model_not_found(&request.model), "none", "model_not_found");
        };
        let now_ms = host::now_ms();
        self.started_ms = now_ms;
        let ask = Ask::default();
        let admitted = match vm::with(|vm| vm.admit(pool, &ask, &mut Nobody, now_ms)) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let record = Decision::refused(pool, snapshot.version, &ask, &refused).to_json();
                let _ = host::set_property(DECISION_STATE, &record);
                let refusal = refused.refusal;
                return self.refuse(&ApiError::refused(refusal, &pool.name), &pool.name, refusal.as_str());
            }
        };
        let mut placed = Placed {
            at: admitted.pick.chosen(),
            snapshot: Rc::clone(&snapshot),
            pool: index,
            ask,
            admitted,
            explain,
            released_ms: None,
            answered: false,
            status: 0,
            ttft_ms: None,
        };
        if let Err(error) = steer(pool, &placed.admitted, &request, body_size) {
            placed.release(Outcome::Neutral, now_ms);
            host::log(host::Level::Error, &format!("weighbridge: Envoy refused to be steered: status {}", error.0));
            return self.answer(&ApiError::not_configured(), "weighbridge_not_steered");
        }
        if let Some(endpoint) = placed.endpoint() {
            let reason = placed.admitted.pick.reason.as_str();
            vm::with(|vm| vm.stats.placed(&pool.name, &endpoint.id, endpoint.key, reason));
        }
        self.phase = Phase::Placed(Box::new(placed));
        Action::Continue
    }
}

/// Tells Envoy where the request goes, and the engine what its model is called.
fn steer(pool: &Pool, admitted: &Admitted, request: &Request, body_size: usize) -> Result<(), host::HostError> {
    let mut hosts = String::with_capacity(80);
    for endpoint in admitted.pick.hosts.iter().filter_map(|place| pool.endpoints.get(*place)) {
        if !hosts.is_empty() {
            hosts.push(',');
        }
        hosts.push_str(&endpoint.address);
    }
    match &pool.served_model {
        Some(served) if *served != request.model => rename_model(served, request, body_size)?,
        _ => {}
    }
    host::set_header(Headers::Request, CLUSTER_HEADER, &pool.cluster)?;
    host::set_header(Headers::Request, HOST_HEADER, &hosts)
}

/// Replaces the value of `model` in the buffered body.
fn rename_model(served: &str, request: &Request, body_size: usize) -> Result<(), host::HostError> {
    let body = host::buffer(Buffer::RequestBody, 0, body_size).ok_or(host::HostError(1))?;
    let (from, to) = request.model_span.ok_or(host::HostError(2))?;
    let (before, after) = (body.get(..from as usize), body.get(to as usize..));
    let (Some(before), Some(after)) = (before, after) else { return Err(host::HostError(2)) };
    let name = serde_json::Value::from(served).to_string();
    let renamed = [before, name.as_bytes(), after].concat();
    host::set_buffer(Buffer::RequestBody, &renamed)?;
    // A chunked body has no length, and needs none.
    if host::header(Headers::Request, "content-length").is_some() {
        host::set_header(Headers::Request, "content-length", &renamed.len().to_string())?;
    }
    Ok(())
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        #[cfg(feature = "fault-injection")]
        #[expect(clippy::panic, reason = "the fault that tests ask for")]
        if host::header(Headers::Request, "x-weighbridge-test-panic").is_some() {
            panic!("asked to by x-weighbridge-test-panic");
        }
        let path = host::header(Headers::Request, ":path").unwrap_or_default();
        let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
        let completions = matches!(path, b"/v1/chat/completions" | b"/v1/completions");
        let ours = completions || path == b"/v1/models";
        // Every host call counts: a body on these paths is a POST (and if it is a PUT, the engine says what it thinks).
        let method = match (completions && !end_of_stream, ours) {
            (true, _) => b"POST".to_vec(),
            (false, true) => host::header(Headers::Request, ":method").unwrap_or_default(),
            (false, false) => Vec::new(),
        };
        let Some(snapshot) = vm::with(|vm| vm.snapshot()) else {
            return if ours {
                self.answer(&ApiError::not_configured(), "weighbridge_not_configured")
            } else {
                Action::Continue
            };
        };
        match (path, method.as_slice()) {
            (b"/v1/models", b"GET" | b"HEAD") => self.list_models(&snapshot),
            (b"/v1/chat/completions" | b"/v1/completions", b"POST") => {
                let explain = snapshot.client_headers.explain
                    && host::header(Headers::Request, EXPLAIN_HEADER).is_some_and(|value| value == b"1");
                self.phase = Phase::Reading(Box::new(Reading {
                    snapshot,
                    reader: Reader::new(Shape::Chat, 0),
                    read: 0,
                    arrived: 0,
                    explain,
                }));
                if end_of_stream { self.place(0) } else { Action::Pause }
            }
            (b"/v1/chat/completions" | b"/v1/completions", method) if method != b"OPTIONS" => {
                let (method, path) = (String::from_utf8_lossy(method), String::from_utf8_lossy(path));
                self.answer(&ApiError::method_not_allowed(&method, &path), "weighbridge_method_not_allowed")
            }
            _ => {
                // Nobody steers from outside, on any path.
                host::remove_header(Headers::Request, CLUSTER_HEADER);
                host::remove_header(Headers::Request, HOST_HEADER);
                Action::Continue
            }
        }
    }

    fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        self.read(body_size, end_of_stream)
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        match &self.phase {
            // With trailers, the body never said that it was complete.
            Phase::Reading(reading) => {
                let arrived = reading.arrived;
                self.read(arrived, true)
            }
            _ => Action::Continue,
        }
    }

    fn on_http_response_headers(&mut self, _: usize, end_of_stream: bool) -> Action {
        let Phase::Placed(placed) = &mut self.phase else { return Action::Continue };
        placed.follow();
        let status = host::header(Headers::Response, ":status").unwrap_or_default();
        placed.status = std::str::from_utf8(&status).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
        // Below 500 it is always the engine that speaks; above, Envoy may be speaking in its stead.
        placed.answered =
            placed.status < 500 || host::property("response\0code_details").is_some_and(|why| why == b"via_upstream");
        if placed.answered
            && let Some(endpoint) = placed.endpoint()
        {
            let _ = host::set_header(Headers::Response, ENDPOINT_HEADER, &endpoint.id);
        }
        placed.report_trial();
        if placed.explain
            && let Some(decision) = placed.decision()
        {
            let _ = host::set_header(Headers::Response, DECISION_HEADER, &decision.to_json());
        }
        if end_of_stream {
            placed.release(placed.outcome(), host::now_ms());
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        let Phase::Placed(placed) = &mut self.phase else { return Action::Continue };
        let first = placed.ttft_ms.is_none() && body_size > 0 && placed.answered;
        if !first && !end_of_stream {
            // A chunk in the middle of a stream: nothing to learn from it.
            return Action::Continue;
        }
        let now_ms = host::now_ms();
        if first {
            let ttft_ms = now_ms.saturating_sub(self.started_ms);
            placed.ttft_ms = Some(ttft_ms);
            if let Some(pool) = placed.pool().filter(|_| placed.status < 300) {
                vm::with(|vm| vm.stats.ttft(&pool.name, ttft_ms));
            }
        }
        if end_of_stream {
            placed.release(placed.outcome(), now_ms);
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        if let Phase::Placed(placed) = &mut self.phase {
            placed.release(placed.outcome(), host::now_ms());
        }
        Action::Continue
    }

    /// The one callback that always comes, whichever way a request ends.
    fn on_log(&mut self) {
        let Phase::Placed(placed) = &mut self.phase else { return };
        let now_ms = placed.released_ms.unwrap_or_else(host::now_ms);
        if placed.released_ms.is_none() {
            placed.follow();
            placed.release(Placed::outcome_of_cut(), now_ms);
        }
        // Where nothing was retried there was one attempt; asking Envoy costs a host call.
        let first_try = placed.answered && placed.at == placed.admitted.pick.chosen();
        let attempts = if first_try { 1 } else { attempts() };
        let Some(mut decision) = placed.decision() else { return };
        decision.result = Some(ResultRecord {
            endpoint: placed.endpoint().filter(|_| placed.answered).map(|endpoint| endpoint.id.as_str()),
            status: placed.status,
            attempts,
            ttft_ms: placed.ttft_ms,
            duration_ms: now_ms.saturating_sub(self.started_ms),
            prompt_tokens: None,
            cached_tokens: None,
            completion_tokens: None,
            finish: None,
            error: false,
        });
        let _ = host::set_property(DECISION_STATE, &decision.to_json());
    }
}

fn attempts() -> u32 {
    let bytes = host::property("upstream\0request_attempt_count").unwrap_or_default();
    bytes.try_into().map_or(0, u64::from_le_bytes).try_into().unwrap_or_default()
}
