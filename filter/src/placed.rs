//! A request that has its endpoint: followed, watched, released.

mod verdict;

use std::rc::Rc;

use weighbridge_routing::decision::{Decision, QueueRecord, ResultRecord};
use weighbridge_routing::eligibility::Ask;
use weighbridge_routing::exchange::served::Sample as Served;
use weighbridge_routing::learnt::Sample;
use weighbridge_routing::live::{Admitted, Outcome, Report, WORTH_TELLING_TOKENS};
use weighbridge_routing::prefix::index::Search;
use weighbridge_routing::response::{Facts, Kind, Watcher};
use weighbridge_routing::snapshot::{Endpoint, Pool, Snapshot};

use crate::answer::DECISION_HEADER;
use crate::attempts;
use crate::host::{self, Buffer, Headers};
use crate::records::Went;
use crate::steer::steer;
use crate::vm::{self, Pulse};
use verdict::attempt_count;

const ENDPOINT_HEADER: &str = "x-weighbridge-endpoint";
/// The most that one request can have put into a KV cache.
const MOST_ADDED_TOKENS: u64 = 1 << 22;
/// The reason of a request that another pool's endpoints would have refused.
const SPILL: &str = "spill";

/// What is known of a request when it has been read.
pub(crate) struct Known {
    pub(crate) ask: Ask,
    /// Bytes of its text, where that is all there is to it: what its tokens are compared with.
    pub(crate) prompt_bytes: u64,
    /// Whether not every endpoint can hold it.
    pub(crate) long: bool,
    /// Whether its answer is to be streamed.
    pub(crate) stream: bool,
    /// Whether tokens are generated, so that the engine caches what it has read.
    pub(crate) generates: bool,
    /// Whether the client asked for the decision and may have it.
    pub(crate) explain: bool,
    pub(crate) started_ms: u64,
    /// Its stream's context.
    pub(crate) context: u32,
    /// By what Envoy's log of attempts knows it, if it has an id; `None` where nobody has looked.
    pub(crate) id: Option<Option<u64>>,
    /// The pool that was asked for, where this one takes what that one would have refused.
    pub(crate) spilled_from: Option<Box<str>>,
}

pub(crate) struct Placed {
    snapshot: Rc<Snapshot>,
    pool: usize,
    known: Known,
    admitted: Admitted,
    search: Search,
    /// Its ticket and its place in the queue when it came, where it waited.
    queued: Option<(u64, usize)>,
    watcher: Option<Watcher>,
    /// Place in the pool of the endpoint that the request is counted at.
    at: usize,
    /// Places of the endpoints at which attempts are known to have failed, in their order.
    failed: Vec<usize>,
    /// Whether the live table has heard that a trial went well.
    trial_told: bool,
    /// Whether anything of an answer's body has come.
    heard: bool,
    /// The pulse of the endpoint that it was given to, and how far that was then.
    pulse: (Pulse, u64),
    /// When it was given back; `None` while it is counted.
    released_ms: Option<u64>,
    /// Whether that endpoint itself has answered, as opposed to Envoy in its stead.
    answered: bool,
    status: u16,
    /// What `retry-after` says, where no log of attempts tells that.
    pushed_back: Option<Outcome>,
    ttft_ms: Option<u64>,
    /// Whether what others said was of late when it was picked.
    signals: Option<&'static str>,
}

impl Placed {
    pub(crate) fn new(snapshot: Rc<Snapshot>, pool: usize, known: Known, admitted: Admitted, search: Search) -> Self {
        let endpoint =
            snapshot.pools.get(pool).and_then(|pool| Some((pool, pool.endpoints.get(admitted.pick.chosen())?)));
        let pulse = endpoint.map_or_else(Pulse::default, |(pool, endpoint)| vm::with(|vm| vm.pulse(pool, endpoint)));
        Placed {
            at: admitted.pick.chosen(),
            pulse: (Rc::clone(&pulse), pulse.get()),
            failed: Vec::new(),
            trial_told: false,
            heard: false,
            snapshot,
            pool,
            known,
            admitted,
            search,
            queued: None,
            watcher: None,
            released_ms: None,
            answered: false,
            status: 0,
            pushed_back: None,
            ttft_ms: None,
            signals: vm::with(|vm| vm.exchange.word()),
        }
    }

    /// It waited, with this ticket, behind so many.
    pub(crate) fn after(mut self, ticket: u64, position: usize) -> Self {
        self.queued = Some((ticket, position));
        self
    }

    /// Tells Envoy where it goes.
    pub(crate) fn steer(&self) -> Result<(), host::HostError> {
        self.pool().map_or(Ok(()), |pool| steer(pool, &self.admitted))
    }

    /// Counts it in the statistics.
    pub(crate) fn count(&self) {
        if let (Some(pool), Some(endpoint)) = (self.pool(), self.endpoint()) {
            vm::with(|vm| {
                vm.stats.placed(&pool.name, &endpoint.id, endpoint.key, self.reason());
                vm.count_policies(pool, &self.admitted.pick, self.queued.is_some());
            });
        }
    }

    fn pool(&self) -> Option<&Pool> {
        self.snapshot.pools.get(self.pool)
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        self.pool()?.endpoints.get(self.at)
    }

    /// Why the request went where it went.
    fn reason(&self) -> &'static str {
        if self.known.spilled_from.is_some() { SPILL } else { self.admitted.pick.reason.as_str() }
    }

    /// The answer begins.
    pub(crate) fn headers(&mut self, end_of_stream: bool) {
        self.follow();
        let status = host::header(Headers::Response, ":status").unwrap_or_default();
        self.status = std::str::from_utf8(&status).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
        // Errors may be Envoy's own, in the engine's stead.
        self.answered =
            self.status < 400 || host::property("response\0code_details").is_some_and(|why| why == b"via_upstream");
        if self.answered
            && let Some(endpoint) = self.endpoint()
        {
            let _ = host::set_header(Headers::Response, ENDPOINT_HEADER, &endpoint.id);
        }
        if matches!(self.status, 429 | 503) && !attempts::are_logged() {
            self.pushed_back = attempts::pushed_back();
        }
        // Engines begin a stream before they have computed anything.
        if !self.known.stream {
            self.report_trial();
        }
        if self.known.explain
            && let Some(decision) = self.decision()
        {
            let _ = host::set_header(Headers::Response, DECISION_HEADER, &decision.to_json());
        }
        if self.is_success() {
            // The engine has read the prompt: from now on it holds it.
            let clock = self.admitted.loads.get(self.at).map_or(0, |load| load.clock);
            vm::learn_holder(&mut self.search, self.at, clock);
            // What the client asked for tells the kind; an engine that answers otherwise teaches nothing.
            self.watcher = Some(Watcher::new(if self.known.stream { Kind::Sse } else { Kind::Json }));
        }
        if end_of_stream {
            self.release(self.outcome(), host::now_ms());
        }
    }

    /// Part of the answer passes.
    pub(crate) fn body(&mut self, size: usize, end_of_stream: bool) {
        // The pulse is the first endpoint's.
        if self.failed.is_empty() {
            self.pulse.0.set(self.pulse.0.get().wrapping_add(1));
        }
        self.heard |= size > 0;
        if let Some(watcher) = self.watcher.as_mut().filter(|_| size > 0)
            && let Some(piece) = host::buffer(Buffer::ResponseBody, 0, size)
        {
            watcher.feed(&piece);
        }
        let first = self.ttft_ms.is_none() && self.answered && size > 0 && self.has_first_token();
        if !first && !end_of_stream {
            return;
        }
        let now_ms = host::now_ms();
        if first {
            self.first_token(now_ms, end_of_stream);
        }
        if end_of_stream {
            self.release(self.outcome(), now_ms);
        }
    }

    /// The answer ended with trailers.
    pub(crate) fn trailers(&mut self) {
        self.release(self.outcome(), host::now_ms());
    }

    /// The last that is heard of a request. Returns the decision record, and how it went.
    pub(crate) fn log(&mut self) -> Option<(String, Went)> {
        let now_ms = self.released_ms.unwrap_or_else(host::now_ms);
        let whole = self.released_ms.is_some();
        let mut details = None;
        if !whole || !self.answered {
            let words = host::property("response\0code_details").unwrap_or_default();
            if !whole {
                self.follow();
                self.release(self.outcome_of_cut(&words, now_ms), now_ms);
            }
            details = Some(String::from_utf8_lossy(&words).into_owned()).filter(|words| !words.is_empty());
        }
        // Where nothing was retried there was one attempt; asking Envoy costs a host call.
        let first_try = self.answered && self.at == self.admitted.pick.chosen();
        let attempts = if first_try { 1 } else { attempt_count() };
        let facts = self.facts();
        let tried = if attempts > 1 { self.tried(attempts) } else { Vec::new() };
        let mut decision = self.decision()?;
        decision.result = Some(ResultRecord {
            endpoint: self.endpoint().filter(|_| self.answered).map(|endpoint| endpoint.id.as_str()),
            status: self.status,
            attempts,
            ttft_ms: self.ttft_ms,
            duration_ms: now_ms.saturating_sub(self.known.started_ms),
            prompt_tokens: facts.prompt_tokens,
            cached_tokens: facts.cached_tokens,
            completion_tokens: facts.completion_tokens,
            finish: facts.finish.map(|finish| finish.as_str()),
            error: facts.error,
            tried,
            details,
        });
        let went = Went {
            troubled: !whole || attempts > 1 || facts.error || !(200..400).contains(&self.status),
            total_ms: now_ms.saturating_sub(self.known.started_ms),
        };
        Some((decision.to_json(), went))
    }

    /// The endpoints tried, in order: as many of the hosts as there were attempts, and the one that was used last.
    fn tried(&self, attempts: u32) -> Vec<&str> {
        let endpoints = self.pool().map_or(&[][..], |pool| &pool.endpoints);
        let before = self.admitted.pick.hosts.iter().take(attempts.saturating_sub(1) as usize);
        let places = before.chain(std::iter::once(&self.at));
        places.filter_map(|place| endpoints.get(*place)).map(|endpoint| endpoint.id.as_str()).collect()
    }

    /// Envoy did not take the request from us.
    pub(crate) fn abandon(&mut self, now_ms: u64) {
        self.release(Outcome::Neutral, now_ms);
    }

    /// In a stream the first token is told from what comes before it; otherwise the answer comes at once.
    fn has_first_token(&self) -> bool {
        !self.known.stream || self.watcher.as_ref().is_none_or(|watcher| watcher.facts().first_token)
    }

    fn first_token(&mut self, now_ms: u64, end_of_stream: bool) {
        let ttft_ms = now_ms.saturating_sub(self.known.started_ms);
        self.ttft_ms = Some(ttft_ms);
        if self.known.stream {
            self.report_trial();
        }
        let Some(pool) = self.snapshot.pools.get(self.pool) else { return };
        if self.status < 300 {
            vm::with(|vm| vm.stats.ttft(&pool.name, ttft_ms));
        }
        let charge = &mut self.admitted.charge;
        // Nothing is told of an answer that came in one piece: its end, which tells all, is the next that comes.
        let is_whole = end_of_stream || self.watcher.as_ref().is_some_and(Watcher::is_whole);
        if !is_whole
            && self.released_ms.is_none()
            && charge.prompt_tokens >= WORTH_TELLING_TOKENS
            && let Some(endpoint) = pool.endpoints.get(self.at)
        {
            vm::with(|vm| vm.first_token(pool, endpoint, charge, now_ms));
        }
    }

    /// Gives the slot back, once, and learns from the answer.
    fn release(&mut self, outcome: Outcome, now_ms: u64) {
        if self.released_ms.is_some() {
            return;
        }
        self.released_ms = Some(now_ms);
        if let Some(watcher) = &mut self.watcher {
            watcher.finish();
        }
        let facts = self.facts();
        let report = Report { outcome, trial: self.on_trial(), added_tokens: self.added_tokens(&facts) };
        let (Some(pool), Some(endpoint)) = (self.pool(), self.endpoint()) else { return };
        vm::with(|vm| {
            vm.release(pool, endpoint, self.admitted.charge, report, now_ms);
            if self.is_success() && !facts.error {
                vm.learn(pool, &self.sample(&facts));
            }
            if let Some(served) = self.served(outcome, &facts, now_ms) {
                vm.served(pool, endpoint, &served);
            }
            if let Some(id) = facts.response_id.filter(|_| self.known.generates) {
                vm.learn_response(pool, endpoint, id, self.at, now_ms);
            }
        });
    }

    fn facts(&self) -> Facts {
        self.watcher.as_ref().map(|watcher| watcher.facts().clone()).unwrap_or_default()
    }

    /// Tokens that this request has put into the engine's cache: what it had to compute and what it generated, as the
    /// engine says, else by estimate.
    fn added_tokens(&self, facts: &Facts) -> u64 {
        if !self.known.generates || !self.is_success() {
            return 0;
        }
        let prompt = facts.prompt_tokens.unwrap_or(self.known.ask.prompt_tokens);
        let cached = facts
            .cached_tokens
            .unwrap_or_else(|| if self.at == self.admitted.pick.chosen() { self.search.matched_tokens() } else { 0 });
        let output = facts.completion_tokens.unwrap_or(facts.events);
        // An engine that reports nonsense must not push everything out.
        prompt.saturating_sub(cached).saturating_add(output).min(MOST_ADDED_TOKENS)
    }

    fn sample(&self, facts: &Facts) -> Sample {
        Sample {
            prompt_bytes: self.known.prompt_bytes,
            prompt_tokens: facts.prompt_tokens,
            output_tokens: facts.completion_tokens.filter(|_| self.known.generates),
            long: self.known.long,
        }
    }

    /// What this request says about its endpoint's service; nothing when it was cut by its client, pushed back, or
    /// refused for what it asked.
    fn served(&self, outcome: Outcome, facts: &Facts, now_ms: u64) -> Option<Served> {
        match outcome {
            Outcome::Failure => Some(Served { error: true, ..Served::default() }),
            // How long it took says something of the endpoint that answered only where no other was tried before, and
            // only from when it was given the request.
            Outcome::Success if self.is_success() && self.known.generates && self.at == self.admitted.pick.chosen() => {
                let waited_ms = self.waited_ms();
                Some(Served {
                    error: false,
                    ttft_ms: self.ttft_ms.filter(|_| self.known.stream).map(|ms| ms.saturating_sub(waited_ms)),
                    e2e_ms: Some(now_ms.saturating_sub(self.given_ms())),
                    tokens: facts.completion_tokens,
                })
            }
            Outcome::Success if self.is_success() => Some(Served::default()),
            Outcome::Success | Outcome::Neutral | Outcome::Busy { .. } => None,
        }
    }

    /// How long it waited in the queue.
    fn waited_ms(&self) -> u64 {
        self.admitted.waited.map_or(0, |waited| waited.total_ms)
    }

    /// When it was given to its endpoint.
    fn given_ms(&self) -> u64 {
        self.known.started_ms.saturating_add(self.waited_ms())
    }

    fn is_success(&self) -> bool {
        self.answered && (200..300).contains(&self.status)
    }

    fn decision(&self) -> Option<Decision<'_>> {
        let mut decision = Decision::admitted(self.pool()?, self.snapshot.version, &self.known.ask, &self.admitted);
        decision.time_ms = vm::with(|vm| vm.unix_ms(self.known.started_ms));
        decision.signals = self.signals;
        if let Some(asked) = &self.known.spilled_from {
            decision.reason = SPILL;
            decision.spilled_from = Some(asked);
        }
        decision.queue = self.queued.map(|(ticket, position)| QueueRecord {
            ticket,
            position: position as u64,
            wait_ms: self.waited_ms(),
        });
        Some(decision)
    }
}
