//! The state machine: queue, prefill, decode steps.

use std::collections::{HashSet, VecDeque};

use super::forecast::{first_step, steps_needed};
use super::{Curve, Event, EventKind, KvCache, Nanos, Profile, ProfileError, Request, SubmitError, nanos};

/// One engine. See the [module documentation](super) for what is modelled.
///
/// Every call that takes a time first does all that happens up to it; a time before the latest one counts as the latest.
/// Cost per event: linear in the batch.
#[derive(Debug)]
pub struct Model {
    profile: Profile,
    curve: Curve,
    now: Nanos,
    ids: HashSet<u64>,
    waiting: VecDeque<Request>,
    /// Admitted, not yet prefilled; the first `prefill_lanes` of them are under way.
    prefilling: VecDeque<Sequence>,
    /// Prefilled, joins at the next step.
    ready: Vec<Sequence>,
    decoding: Vec<Sequence>,
    step: Option<Step>,
    kv: KvCache,
    stats: Stats,
    events: Vec<Event>,
}

/// A step under way: the `decoding` sequences get a token each at `end`.
#[derive(Debug, Clone, Copy)]
struct Step {
    end: Nanos,
    length: Nanos,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) request: Request,
    pub(super) prefill: Nanos,
    /// When its prefill ends, once it has begun.
    pub(super) prefill_end: Option<Nanos>,
    pub(super) private_blocks: usize,
    pub(super) steps_done: u64,
}

/// What a forecast starts from.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    pub(super) waiting: &'a VecDeque<Request>,
    pub(super) prefilling: &'a VecDeque<Sequence>,
    pub(super) ready: &'a [Sequence],
    pub(super) decoding: &'a [Sequence],
    /// End and length of the step under way.
    pub(super) step: Option<(Nanos, Nanos)>,
    pub(super) free_blocks: usize,
}

impl Sequence {
    fn steps_needed(&self) -> u64 {
        steps_needed(&self.request)
    }

    pub(super) fn steps_left(&self) -> u64 {
        self.steps_needed().saturating_sub(self.steps_done).max(1)
    }

    /// The step that brings the first token.
    pub(super) fn first_step(&self) -> u64 {
        first_step(&self.request)
    }

    fn tokens(&self) -> u64 {
        let output = self.request.output_tokens;
        if self.steps_done >= self.steps_needed() {
            output
        } else if self.steps_done >= self.first_step() {
            ((self.steps_done as f64 / self.request.slow) as u64).clamp(1, output)
        } else {
            0
        }
    }
}

/// Gauges and counters.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Sequences admitted: prefilling or decoding.
    pub running: usize,
    /// Sequences in the engine's own queue.
    pub waiting: usize,
    /// The most that ever ran together since [`Model::reset_max`].
    pub running_max: usize,
    /// Filled KV blocks of running sequences, as a share of all, 0 to 1.
    pub kv_usage: f64,
    /// Prompt tokens looked up in the prefix cache.
    pub cache_query_tokens: u64,
    /// Prompt tokens found there.
    pub cache_hit_tokens: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests finished.
    pub finished: u64,
    /// Requests cancelled.
    pub cancelled: u64,
    /// Tokens to generate until the engine is warm.
    pub cold_tokens_left: u64,
}

impl Model {
    /// A freshly started, cold engine at time 0.
    pub fn new(profile: Profile) -> Result<Self, ProfileError> {
        let curve = profile.validate()?;
        let blocks = usize::try_from(profile.kv_blocks()).unwrap_or(usize::MAX);
        let stats = Stats { cold_tokens_left: profile.cold.tokens, ..Stats::default() };
        Ok(Self {
            profile,
            curve,
            now: 0,
            ids: HashSet::new(),
            waiting: VecDeque::new(),
            prefilling: VecDeque::new(),
            ready: Vec::new(),
            decoding: Vec::new(),
            step: None,
            kv: KvCache::new(blocks),
            stats,
            events: Vec::new(),
        })
    }

    /// What machine it is.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The latest time it was told.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// A request arrives.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Result<(), SubmitError> {
        self.advance(now);
        if request.prompt_tokens == 0 || request.output_tokens == 0 {
            return Err(SubmitError::Empty);
        }
        let tokens = request.prompt_tokens.saturating_add(request.output_tokens);
        let limit = self.profile.max_model_len;
        if tokens > limit {
            return Err(SubmitError::TooLong { tokens, limit });
        }
        if !request.slow.is_finite() || request.slow < 1.0 {
            return Err(SubmitError::BadFactor);
        }
        self.ids.insert(request.id);
        self.waiting.push_back(request);
        self.schedule();
        Ok(())
    }

    /// The client left: the request is dropped wherever it is. False when it is not there (any more).
    pub fn cancel(&mut self, now: Nanos, id: u64) -> bool {
        self.advance(now);
        if !self.ids.remove(&id) {
            return false;
        }
        self.stats.cancelled += 1;
        self.waiting.retain(|request| request.id != id);
        let is_it = |sequence: &mut Sequence| sequence.request.id == id;
        let mut gone: Vec<Sequence> = self.ready.extract_if(.., is_it).collect();
        gone.extend(self.decoding.extract_if(.., is_it));
        if let Some(at) = self.prefilling.iter().position(|sequence| sequence.request.id == id) {
            gone.extend(self.prefilling.remove(at));
        }
        for sequence in gone {
            self.kv.release(&sequence.request.prompt_blocks, sequence.private_blocks, &[]);
        }
        if self.decoding.is_empty() {
            self.step = None;
        }
        self.schedule();
        true
    }

    /// Everything up to and including `to` happens.
    pub fn advance(&mut self, to: Nanos) {
        let to = to.max(self.now);
        self.schedule();
        while let Some(at) = self.next_change().filter(|&at| at <= to) {
            self.now = at;
            while let Some(done) = self.prefilling.iter().position(|sequence| sequence.prefill_end == Some(at)) {
                self.ready.extend(self.prefilling.remove(done));
            }
            if let Some(step) = self.step.filter(|step| step.end == at) {
                self.run_steps(step, to);
            }
            self.schedule();
        }
        self.now = to;
    }

    /// When the next event is due, if anything is going on. Advancing to that time is always progress, though it may turn
    /// out that no event was due yet.
    pub fn next_event(&self) -> Option<Nanos> {
        let step = self.step.map(|step| {
            let visible = |s: &Sequence| s.request.stream || s.tokens() == 0;
            let steps = if self.decoding.iter().any(visible) { 1 } else { self.quiet_steps(step) };
            step.end + (steps - 1) * step.length
        });
        match (self.prefill_end(), step) {
            (Some(prefill), Some(step)) => Some(prefill.min(step)),
            (prefill, step) => prefill.or(step),
        }
    }

    /// The events since the last call, in order of time.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Gauges and counters as of [`Self::now`].
    pub fn stats(&self) -> Stats {
        let unfilled: u64 = self
            .prefilling
            .iter()
            .chain(&self.ready)
            .chain(&self.decoding)
            .map(|s| (s.request.output_tokens - s.tokens()) / self.profile.block_size_tokens)
            .sum();
        Stats {
            running: self.running(),
            waiting: self.waiting.len(),
            kv_usage: self.kv.usage(usize::try_from(unfilled).unwrap_or(usize::MAX)),
            ..self.stats
        }
    }

    /// `running_max` starts again from what runs now.
    pub fn reset_max(&mut self) {
        self.stats.running_max = self.running();
    }

    /// The process starts anew: nothing runs or waits, the cache is empty, the counters are zero, and when `cold`, the
    /// penalty is due again. Events not yet taken are dropped.
    pub fn restart(&mut self, now: Nanos, profile: Profile, cold: bool) -> Result<(), ProfileError> {
        let mut fresh = Self::new(profile)?;
        fresh.now = now.max(self.now);
        if !cold {
            fresh.stats.cold_tokens_left = 0;
        }
        *self = fresh;
        Ok(())
    }

    fn running(&self) -> usize {
        self.prefilling.len() + self.ready.len() + self.decoding.len()
    }

    /// When the next prefill ends.
    fn prefill_end(&self) -> Option<Nanos> {
        self.prefilling.iter().take(self.profile.prefill_lanes).filter_map(|sequence| sequence.prefill_end).min()
    }

    fn next_change(&self) -> Option<Nanos> {
        match (self.prefill_end(), self.step) {
            (Some(prefill), Some(step)) => Some(prefill.min(step.end)),
            (prefill, step) => prefill.or(step.map(|step| step.end)),
        }
    }

    /// Starts whatever can start now.
    fn schedule(&mut self) {
        while self.running() < self.profile.batch_limit && self.admit_one() {}
        for sequence in self.prefilling.iter_mut().take(self.profile.prefill_lanes) {
            sequence.prefill_end.get_or_insert(self.now + sequence.prefill);
        }
        if self.step.is_none() {
            self.decoding.append(&mut self.ready);
            if !self.decoding.is_empty() {
                let length = self.step_length();
                let end = self.now + length;
                self.step = Some(Step { end, length });
            }
        }
    }

    /// Moves the head of the queue into the batch if the KV cache has room for all of it.
    fn admit_one(&mut self) -> bool {
        let Some(mut request) = self.waiting.pop_front() else {
            return false;
        };
        if !self.profile.prefix_caching {
            request.prompt_blocks.clear();
            request.output_blocks.clear();
        }
        let block = self.profile.block_size_tokens;
        let total = (request.prompt_tokens + request.output_tokens).div_ceil(block);
        let private = usize::try_from(total).unwrap_or(usize::MAX);
        let private_blocks = private.saturating_sub(request.prompt_blocks.len());
        let Some(matched) = self.kv.acquire(&request.prompt_blocks, private_blocks) else {
            self.waiting.push_front(request);
            return false;
        };
        // The last token of a prompt is always computed: its output is the first new token.
        let cached_tokens = (matched as u64).min((request.prompt_tokens - 1) / block) * block;
        let prefill = self.prefill_time(&request, cached_tokens);
        if self.profile.prefix_caching {
            self.stats.cache_query_tokens += request.prompt_tokens;
        }
        self.stats.cache_hit_tokens += cached_tokens;
        self.stats.prompt_tokens += request.prompt_tokens;
        self.emit(request.id, self.now, EventKind::Admitted { cached_tokens });
        self.prefilling.push_back(Sequence { request, prefill, prefill_end: None, private_blocks, steps_done: 0 });
        self.stats.running_max = self.stats.running_max.max(self.running());
        true
    }

    fn step_length(&self) -> Nanos {
        self.step_of(self.decoding.len(), !self.prefilling.is_empty())
    }

    /// How long a step of so many sequences takes, while a prefill is under way or not.
    pub(super) fn step_of(&self, sequences: usize, prefilling: bool) -> Nanos {
        let mut speed = self.curve.total_tps(sequences);
        if self.stats.cold_tokens_left > 0 {
            speed *= self.profile.cold.speed;
        }
        if prefilling {
            speed *= self.profile.decode_share_during_prefill;
        }
        nanos(sequences as f64 / speed)
    }

    /// How many leading blocks of these are in the cache.
    #[must_use]
    pub fn matched(&self, blocks: &[u64]) -> usize {
        self.kv.matched(blocks)
    }

    pub(super) fn parts(&self) -> Parts<'_> {
        Parts {
            waiting: &self.waiting,
            prefilling: &self.prefilling,
            ready: &self.ready,
            decoding: &self.decoding,
            step: self.step.map(|step| (step.end, step.length)),
            free_blocks: self.kv.free(),
        }
    }

    /// Steps, from the one under way, that are all alike unless something arrives or a prefill ends. Only one when the
    /// circumstances have changed since it began.
    fn quiet_steps(&self, step: Step) -> u64 {
        if step.length != self.step_length() {
            return 1;
        }
        let finish = self.decoding.iter().map(Sequence::steps_left).min().unwrap_or(1);
        let per_step = self.decoding.len().max(1) as u64;
        match self.stats.cold_tokens_left {
            0 => finish,
            cold => finish.min(cold.div_ceil(per_step)),
        }
    }

    /// The step that ends now is done, and with it those after it that can be done in one go: same batch, same length,
    /// ended by `to`. Leaves `now` at the end of the last one.
    fn run_steps(&mut self, step: Step, to: Nanos) {
        let mut more = if self.ready.is_empty() { self.quiet_steps(step) - 1 } else { 0 };
        if let Some(by_time) = (to - step.end).checked_div(step.length) {
            more = more.min(by_time);
        }
        if let Some(prefill_end) = self.prefill_end() {
            // The end of the prefill must be seen before the next step is started.
            let before = prefill_end.saturating_sub(step.end + 1);
            more = more.min(before.checked_div(step.length).unwrap_or(0));
        }
        self.step = None;
        self.now = step.end + more * step.length;
        let mut sequences = std::mem::take(&mut self.decoding);
        for sequence in &mut sequences {
            let before = sequence.tokens();
            let first = sequence.first_step().saturating_sub(sequence.steps_done + 1);
            sequence.steps_done += more + 1;
            let (id, stream, tokens) = (sequence.request.id, sequence.request.stream, sequence.tokens());
            if before == 0 && tokens > 0 {
                self.emit(id, step.end + first * step.length, EventKind::FirstToken);
            }
            if stream && tokens > before {
                let count = tokens - before;
                self.emit(id, self.now, EventKind::Tokens { count });
            }
            self.stats.generated_tokens += tokens - before;
            self.stats.cold_tokens_left = self.stats.cold_tokens_left.saturating_sub(tokens - before);
        }
        for sequence in sequences {
            if sequence.steps_done < sequence.steps_needed() {
                self.decoding.push(sequence);
                continue;
            }
            let Sequence { request, private_blocks, .. } = sequence;
            self.kv.release(&request.prompt_blocks, private_blocks, &request.output_blocks);
            self.ids.remove(&request.id);
            self.stats.finished += 1;
            let output_tokens = request.output_tokens;
            self.emit(request.id, self.now, EventKind::Finished { output_tokens });
        }
    }

    fn emit(&mut self, id: u64, at: Nanos, kind: EventKind) {
        self.events.push(Event { id, at, kind });
    }
}
