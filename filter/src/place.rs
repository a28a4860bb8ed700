//! From a request that has been read to what becomes of it: an endpoint, a place in the queue, or a refusal.

use std::rc::Rc;

use weighbridge_routing::api_error::ApiError;
use weighbridge_routing::decision::Decision;
use weighbridge_routing::eligibility::{Ask, DEFAULT_PRIORITY, Patience};
use weighbridge_routing::live::{Refused, Verdict};
use weighbridge_routing::prefix::checkpoints::Checkpoint;
use weighbridge_routing::prefix::index::{Prefix, Search};
use weighbridge_routing::request::wish::{self, WrongHeader};
use weighbridge_routing::request::{Request, Shape};
use weighbridge_routing::route::Refusal as Why;
use weighbridge_routing::snapshot::{Canary, ClientHeaders, Pool, Snapshot, State};
use weighbridge_routing::window::Need;

use crate::answer::Refusal;
use crate::attempts;
use crate::host::{self, Headers};
use crate::placed::{Known, Placed};
use crate::records::Went;
use crate::steer::rename;
use crate::vm::{self, Lookup};
use crate::waiting::Waiting;

/// Filter state that holds the decision record.
pub(crate) const DECISION_STATE: &str = "weighbridge.decision";

const REQUEST_ID_HEADER: &str = "x-request-id";

/// Tokens that the conversation behind a `previous_response_id` is taken for, since only its engine knows it: enough to
/// be worth the largest allowance.
const RESPONSE_TOKENS: u64 = 32 * 1024;

/// A request that has been read.
pub(crate) struct Wanted {
    pub(crate) snapshot: Rc<Snapshot>,
    pub(crate) shape: Shape,
    pub(crate) explain: bool,
    pub(crate) request: Request,
    /// Bytes of the body as it lies in Envoy.
    pub(crate) body_size: usize,
}

/// What becomes of it.
pub(crate) enum Becomes {
    Placed(Box<Placed>),
    Waiting(Box<Waiting>),
}

/// What the client wants of its wait.
#[derive(Debug, Clone, Copy)]
struct Wish {
    priority: u8,
    /// The longest; the pool's limit counts too.
    max_wait_ms: u32,
}

impl Wish {
    /// Reads the headers that count here; where none do, nothing is read.
    fn of(allowed: ClientHeaders) -> Result<Self, ApiError> {
        fn read<T>(
            allowed: bool,
            name: &'static str,
            read: fn(&[u8]) -> Result<T, WrongHeader>,
        ) -> Result<Option<T>, ApiError> {
            let Some(value) = allowed.then(|| host::header(Headers::Request, name)).flatten() else { return Ok(None) };
            read(&value).map(Some).map_err(|wrong| ApiError::header(wrong.name, &value, wrong.expected))
        }
        let priority = read(allowed.priority, wish::PRIORITY_HEADER, wish::priority)?;
        let max_wait_ms = read(allowed.max_wait, wish::MAX_WAIT_HEADER, wish::max_wait_ms)?;
        Ok(Wish { priority: priority.unwrap_or(DEFAULT_PRIORITY), max_wait_ms: max_wait_ms.unwrap_or(u32::MAX) })
    }
}

impl Wanted {
    /// Finds an endpoint of the pool that serves the model, or of the one that takes what that one refuses. `context` is
    /// the stream's, by which it is found when it is its turn.
    #[allow(clippy::result_large_err, reason = "a refusal is answered at once, by the caller")]
    pub(crate) fn place(self, context: u32) -> Result<Becomes, Refusal> {
        let snapshot = Rc::clone(&self.snapshot);
        let Some((first, pool)) = snapshot.pool_for_model(&self.request.model) else {
            return Err(Refusal::new(ApiError::model_not_found(&self.request.model), "none", "model_not_found"));
        };
        let wish =
            Wish::of(snapshot.client_headers).map_err(|error| Refusal::new(error, &pool.name, "invalid_request"))?;
        let now_ms = host::now_ms();
        let mut index = first;
        let mut refused = None;
        // The checks of the snapshot know of no circle.
        while let Some(pool) = snapshot.pools.get(index) {
            let spilled_from = (index != first).then(|| snapshot.pools.get(first)).flatten();
            let trial = self.try_pool(pool, wish, now_ms);
            let (ask, search) = (trial.ask, trial.search);
            let known = || self.known(pool, ask, now_ms, spilled_from, context);
            match trial.verdict {
                Verdict::Admitted(admitted) => {
                    let mut placed = Placed::new(Rc::clone(&snapshot), index, known(), admitted, search);
                    return match rename(pool, &self.request, self.body_size) {
                        Ok(()) => begin(placed).map(Becomes::Placed),
                        Err(error) => {
                            placed.abandon(now_ms);
                            Err(Refusal::new(error, &pool.name, "invalid_request"))
                        }
                    };
                }
                Verdict::Queued(queued) => {
                    // Once it goes on from a wait, its headers cannot be read any more.
                    let id = attempts::are_logged().then(request_id);
                    let known = Known { id, ..known() };
                    let waiting = Waiting::new(Rc::clone(&snapshot), index, known, search, queued);
                    return match rename(pool, &self.request, self.body_size) {
                        Ok(()) => Ok(Becomes::Waiting(Box::new(waiting))),
                        Err(error) => {
                            waiting.leave();
                            Err(Refusal::new(error, &pool.name, "invalid_request"))
                        }
                    };
                }
                Verdict::Refused(here) => {
                    let next = self.spill(pool, &here).filter(|next| self.may_go_to(&snapshot, *next));
                    refused.get_or_insert((ask, here));
                    match next {
                        Some(next) => index = next,
                        None => break,
                    }
                }
            }
        }
        let Some((ask, refused)) = refused else {
            return Err(Refusal::new(ApiError::not_configured(), &pool.name, "no_endpoint"));
        };
        Err(self.refuse(pool, &ask, &refused))
    }

    fn try_pool(&self, pool: &Pool, wish: Wish, now_ms: u64) -> Trial {
        let request = &self.request;
        let (need, long_share, bytes_per_token) = vm::with(|vm| {
            let learnt = vm.learnt(pool);
            let need = Need::of(self.shape, &request.prompt, request.max_output, learnt);
            (need, learnt.long_share(), learnt.bytes_per_token())
        });
        let mut ask = need.ask(long_share);
        // A header costs a host call.
        ask.id_hash = pool.canary.is_some().then(request_id).flatten();
        ask.patience = Patience {
            max_wait_ms: wish.max_wait_ms.min(pool.admission.max_wait_ms),
            priority: wish.priority,
            body_bytes: u32::try_from(self.body_size).unwrap_or(u32::MAX),
            key: pool.fairness.key(request.user, |name| host::header(Headers::Request, name)),
        };
        let mut search = look_up(pool, self.shape, request, bytes_per_token, now_ms);
        let verdict = vm::with(|vm| vm.admit(pool, &ask, &mut search, now_ms));
        Trial { ask, search, verdict }
    }

    /// The pool that takes what this one refuses. A request that is too long for it, or for an adapter, is not what others
    /// could take in its stead.
    fn spill(&self, pool: &Pool, refused: &Refused) -> Option<usize> {
        match refused.refusal {
            Why::AtCap | Why::QueueFull | Why::NoEndpoint => pool.spill_to,
            Why::TooLong { .. } => None,
        }
    }

    /// An adapter is only served where it is known.
    fn may_go_to(&self, snapshot: &Snapshot, index: usize) -> bool {
        let model = &self.request.model;
        let is_adapter = |pool: &Pool| pool.adapters.contains(model);
        let asked = snapshot.pool_for_model(model).is_some_and(|(_, pool)| is_adapter(pool));
        !asked || snapshot.pools.get(index).is_some_and(is_adapter)
    }

    fn known(&self, pool: &Pool, ask: Ask, now_ms: u64, spilled_from: Option<&Pool>, context: u32) -> Known {
        let prompt = &self.request.prompt;
        Known {
            prompt_bytes: if prompt.token_ids == 0 && prompt.images == 0 { prompt.bytes } else { 0 },
            long: is_long(pool, ask.window_tokens()),
            stream: self.request.stream && self.shape.generates(),
            generates: self.shape.generates(),
            explain: self.explain,
            started_ms: now_ms,
            context,
            id: ask.id_hash.map(Some),
            spilled_from: spilled_from.map(|pool| pool.name.as_str().into()),
            ask,
        }
    }

    fn refuse(&self, pool: &Pool, ask: &Ask, refused: &Refused) -> Refusal {
        let record = record(Decision::refused(pool, self.snapshot.version, ask, refused), 0);
        let mut error = ApiError::refused(refused.refusal, &pool.name, ask, self.shape);
        if matches!(refused.refusal, Why::AtCap | Why::QueueFull) {
            error.retry_after_s = Some(refused.retry_after_s);
        }
        let decision = self.explain.then_some(record);
        Refusal { decision, ..Refusal::new(error, &pool.name, refused.refusal.as_str()) }
    }
}

/// What one pool said.
struct Trial {
    ask: Ask,
    search: Search,
    verdict: Verdict,
}

/// Writes down that a request goes no further, `waited_ms` after it came. Returns the record.
pub(crate) fn record(decision: Decision<'_>, waited_ms: u64) -> String {
    let time_ms = vm::with(|vm| vm.unix_ms(host::now_ms().saturating_sub(waited_ms)));
    let signals = vm::with(|vm| vm.exchange.word());
    let record = Decision { time_ms, signals, ..decision }.to_json();
    let _ = host::set_property(DECISION_STATE, &record);
    vm::with(|vm| vm.tell(&record, Went { troubled: true, total_ms: waited_ms }));
    record
}

/// Sends a request that has its endpoint on its way, whether it waited or not.
#[allow(clippy::result_large_err, reason = "a refusal is answered at once, by the caller")]
pub(crate) fn begin(mut placed: Placed) -> Result<Box<Placed>, Refusal> {
    if let Err(host::HostError(status)) = placed.steer() {
        placed.abandon(host::now_ms());
        host::log(host::Level::Error, &format!("weighbridge: Envoy refused to be steered: status {status}"));
        return Err(Refusal::new(ApiError::not_configured(), "none", "not_steered"));
    }
    placed.count();
    Ok(Box::new(placed))
}

/// By what the request is known: in Envoy's log of its attempts, and to a canary policy.
pub(crate) fn request_id() -> Option<u64> {
    host::header(Headers::Request, REQUEST_ID_HEADER).map(|id| Canary::hash(&id))
}

/// Looks for who holds the prompt's prefix.
fn look_up(pool: &Pool, shape: Shape, request: &Request, bytes_per_token: f64, now_ms: u64) -> Search {
    let (mut prefixes, mut home) = (Vec::new(), None);
    if pool.affinity.enabled && shape.generates() {
        let model = pool.engine_name(&request.model);
        let checkpoints = &request.prompt.checkpoints;
        home = checkpoints.home(model);
        let before = request.previous_response.map_or(0, |_| RESPONSE_TOKENS);
        let prefix = |checkpoint: Checkpoint| Prefix {
            hash: checkpoint.hash,
            tokens: before + (checkpoint.bytes as f64 / bytes_per_token) as u64,
        };
        // In place: they have the same size.
        prefixes = checkpoints.seeded(model).into_iter().map(prefix).collect();
        if let Some(hash) = request.previous_response {
            prefixes.insert(0, Prefix { hash, tokens: before });
        }
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
