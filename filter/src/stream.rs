//! One HTTP request, from its headers to its log entry.

use std::rc::Rc;

use weighbridge_routing::api_error::ApiError;
use weighbridge_routing::decision::Decision;
use weighbridge_routing::prefix::index::{Prefix, Search};
use weighbridge_routing::request::{Request, RequestError, Shape, Style};
use weighbridge_routing::snapshot::{Pool, Snapshot, State};
use weighbridge_routing::window::Need;

use crate::abi::Action;
use crate::host::{self, Headers};
use crate::placed::{Known, Placed};
use crate::reading::{Reading, Unreadable};
use crate::records::Went;
use crate::steer::{CLUSTER_HEADER, HOST_HEADER, rename, steer};
use crate::vm::{self, Lookup};

const EXPLAIN_HEADER: &str = "x-weighbridge-explain";
const DECISION_STATE: &str = "weighbridge.decision";

/// A request's course through the filter.
#[derive(Default)]
pub(crate) struct Stream {
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
    /// On its way to an endpoint, or back.
    Placed(Box<Placed>),
}

impl Stream {
    /// Whether nothing that comes for this request matters any more.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.phase, Phase::Passing)
    }

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
        if host::respond(error.status, details, &headers, &error.body(self.style)).is_err() {
            host::log(host::Level::Error, "weighbridge: Envoy did not take an error answer");
        }
        Action::Pause
    }

    fn refuse(&mut self, error: &ApiError, pool: &str, reason: &'static str) -> Action {
        vm::with(|vm| vm.stats.refused(pool, reason));
        self.answer(error, &format!("weighbridge_{reason}"))
    }

    fn refuse_unreadable(&mut self, error: &RequestError) -> Action {
        let reason = if matches!(error, RequestError::TooLarge(_)) { "too_large" } else { "invalid_request" };
        self.refuse(&ApiError::unreadable(error), "none", reason)
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
            Err(Unreadable::TooLarge(limit)) => self.refuse(&ApiError::too_large(limit), "none", "too_large"),
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
        let Some((index, pool)) = snapshot.pool_for_model(&request.model) else {
            return self.refuse(&ApiError::model_not_found(&request.model), "none", "model_not_found");
        };
        if let Err(error) = rename(pool, &request, body_size) {
            return self.refuse(&error, &pool.name, "invalid_request");
        }
        let now_ms = host::now_ms();
        let (need, long_share, bytes_per_token) = vm::with(|vm| {
            let learnt = vm.learnt(pool);
            let need = Need::of(shape, &request.prompt, request.max_output, learnt);
            (need, learnt.long_share(), learnt.bytes_per_token())
        });
        let ask = need.ask(long_share);
        let mut search = look_up(pool, shape, &request, bytes_per_token, now_ms);
        let admitted = match vm::with(|vm| vm.admit(pool, &ask, &mut search, now_ms)) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let record = Decision {
                    time_ms: vm::with(|vm| vm.unix_ms(now_ms)),
                    ..Decision::refused(pool, snapshot.version, &ask, &refused)
                };
                let record = record.to_json();
                let _ = host::set_property(DECISION_STATE, &record);
                vm::with(|vm| vm.tell(&record, Went { troubled: true, total_ms: 0 }));
                let refusal = refused.refusal;
                return self.refuse(&ApiError::refused(refusal, &pool.name, &ask, shape), &pool.name, refusal.as_str());
            }
        };
        let steered = steer(pool, &admitted);
        let prompt = &request.prompt;
        let known = Known {
            prompt_bytes: if prompt.token_ids == 0 && prompt.images == 0 { prompt.bytes } else { 0 },
            long: is_long(pool, ask.window_tokens()),
            stream: request.stream && shape.generates(),
            generates: shape.generates(),
            explain,
            started_ms: now_ms,
            ask,
        };
        let mut placed = Placed::new(Rc::clone(&snapshot), index, known, admitted, search);
        if let Err(error) = steered {
            placed.abandon(now_ms);
            host::log(host::Level::Error, &format!("weighbridge: Envoy refused to be steered: status {}", error.0));
            return self.answer(&ApiError::not_configured(), "weighbridge_not_steered");
        }
        if let Some(endpoint) = placed.endpoint() {
            let reason = placed.reason();
            vm::with(|vm| vm.stats.placed(&pool.name, &endpoint.id, endpoint.key, reason));
        }
        self.phase = Phase::Placed(Box::new(placed));
        Action::Continue
    }
}

/// Tokens that the conversation behind a `previous_response_id` is taken for, since only its engine knows it: enough to
/// be worth the largest allowance.
const RESPONSE_TOKENS: u64 = 32 * 1024;

/// Looks for who holds the prompt's prefix.
fn look_up(pool: &Pool, shape: Shape, request: &Request, bytes_per_token: f64, now_ms: u64) -> Search {
    let (mut prefixes, mut home) = (Vec::new(), None);
    if pool.affinity.enabled && shape.generates() {
        let model = pool.engine_name(&request.model);
        let checkpoints = &request.prompt.checkpoints;
        home = checkpoints.home(model);
        let before = request.previous_response.map_or(0, |_| RESPONSE_TOKENS);
        prefixes.extend(request.previous_response.map(|hash| Prefix { hash, tokens: before }));
        prefixes.extend(checkpoints.seeded(model).into_iter().map(|checkpoint| Prefix {
            hash: checkpoint.hash,
            tokens: before + (checkpoint.bytes as f64 / bytes_per_token) as u64,
        }));
    }
    vm::with(|vm| {
        let search = vm.search(pool, prefixes, home, now_ms);
        let result = match (search.is_empty(), search.matched_tokens()) {
            (true, _) => Lookup::None,
            (false, 0) => Lookup::Miss,
            (false, _) => Lookup::Hit,
        };
        vm.stats.prefix_lookup(&pool.name, result);
        search
    })
}

/// Whether not every endpoint that serves can hold so many tokens.
fn is_long(pool: &Pool, tokens: u64) -> bool {
    let ready = pool.endpoints.iter().filter(|endpoint| endpoint.state == State::Ready);
    ready.filter_map(|endpoint| endpoint.context_window).any(|window| tokens > u64::from(window))
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
            return self.answer(&ApiError::not_configured(), "weighbridge_not_configured");
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
                self.answer(&ApiError::method_not_allowed(&method, &path), "weighbridge_method_not_allowed")
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

    /// The one callback that always comes, whichever way a request ends.
    pub(crate) fn on_log(&mut self) {
        if let Phase::Placed(placed) = &mut self.phase
            && let Some((record, went)) = placed.log()
        {
            let _ = host::set_property(DECISION_STATE, &record);
            vm::with(|vm| vm.tell(&record, went));
        }
    }
}
