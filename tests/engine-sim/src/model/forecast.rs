//! Running the model forward: what would become of one more request, if nothing else came.
//!
//! The run is of lengths only: who decodes, who is prefilled, who waits, and how many KV blocks are free. What will be cached
//! when a waiting request is admitted is taken to be what is cached now, and a sequence that ends gives back what it took.
//! Cost: `O(n^2)` in the number of sequences at the engine.

use std::collections::VecDeque;

use super::machine::Sequence;
use super::{Model, Nanos, Request, nanos};

/// What would become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// Its prompt tokens that are in the cache now.
    pub cached_tokens: u64,
    /// When its first token would come.
    pub first_token: Nanos,
    /// When it would be done.
    pub finished: Nanos,
    /// How much later all others would be done for it, together.
    pub delays_others: Nanos,
}

/// A sequence of the run.
#[derive(Debug, Clone, Copy)]
struct Member {
    prefill: Nanos,
    prefill_end: Option<Nanos>,
    steps_left: u64,
    /// Steps to the first token; 0 when it has come.
    first_in: u64,
    blocks: usize,
    new: bool,
}

/// What a run ended with.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    /// Sum of the times at which the others were done, from the start of the run.
    others: Nanos,
    first_token: Nanos,
    finished: Nanos,
}

#[derive(Debug, Clone)]
struct Run<'a> {
    model: &'a Model,
    now: Nanos,
    step_end: Option<(Nanos, Nanos)>,
    waiting: VecDeque<Member>,
    prefilling: VecDeque<Member>,
    ready: Vec<Member>,
    decoding: Vec<Member>,
    free_blocks: usize,
    ends: Ends,
}

impl Model {
    /// What would become of `request` if it came now and nothing came after it; `None` when it is too long for this engine.
    #[must_use]
    pub fn forecast(&self, request: &Request) -> Option<Forecast> {
        if request.prompt_tokens == 0 || request.output_tokens == 0 {
            return None;
        }
        if request.prompt_tokens.saturating_add(request.output_tokens) > self.profile().max_model_len {
            return None;
        }
        let mut without = Run::of(self);
        let mut with = without.clone();
        with.waiting.push_back(self.member(request, true));
        with.finish();
        without.finish();
        Some(Forecast {
            cached_tokens: self.cached_tokens(request),
            first_token: with.ends.first_token,
            finished: with.ends.finished,
            delays_others: with.ends.others.saturating_sub(without.ends.others),
        })
    }

    fn member(&self, request: &Request, new: bool) -> Member {
        let cached = self.cached_tokens(request);
        let total = (request.prompt_tokens + request.output_tokens).div_ceil(self.profile().block_size_tokens);
        let blocks = total.saturating_sub(cached / self.profile().block_size_tokens);
        Member {
            prefill: self.prefill_time(request, cached),
            prefill_end: None,
            steps_left: steps_needed(request),
            first_in: first_step(request),
            blocks: usize::try_from(blocks).unwrap_or(usize::MAX),
            new,
        }
    }
}

/// Steps that a request takes.
pub(super) fn steps_needed(request: &Request) -> u64 {
    (request.output_tokens as f64 * request.slow).ceil() as u64
}

/// The step that brings the first token.
pub(super) fn first_step(request: &Request) -> u64 {
    (request.slow.ceil() as u64).clamp(1, steps_needed(request).max(1))
}

impl<'a> Run<'a> {
    fn of(model: &'a Model) -> Self {
        let under_way = |sequence: &Sequence| Member {
            prefill: sequence.prefill,
            prefill_end: sequence.prefill_end,
            steps_left: sequence.steps_left(),
            first_in: sequence.first_step().saturating_sub(sequence.steps_done),
            blocks: sequence.private_blocks,
            new: false,
        };
        let parts = model.parts();
        Run {
            model,
            now: model.now(),
            step_end: parts.step,
            waiting: parts.waiting.iter().map(|request| model.member(request, false)).collect(),
            prefilling: parts.prefilling.iter().map(under_way).collect(),
            ready: parts.ready.iter().map(under_way).collect(),
            decoding: parts.decoding.iter().map(under_way).collect(),
            free_blocks: parts.free_blocks,
            ends: Ends::default(),
        }
    }

    fn finish(&mut self) {
        loop {
            self.schedule();
            let step = self.step_end.map(|(end, _)| end);
            let Some(next) = self.prefill_end().into_iter().chain(step).min() else { return };
            self.now = next;
            while let Some(done) = self.prefilling.iter().position(|member| member.prefill_end == Some(next)) {
                self.ready.extend(self.prefilling.remove(done));
            }
            if let Some((end, length)) = self.step_end.filter(|(end, _)| *end == next) {
                self.steps(end, length);
            }
        }
    }

    fn prefill_end(&self) -> Option<Nanos> {
        let lanes = self.model.profile().prefill_lanes;
        self.prefilling.iter().take(lanes).filter_map(|member| member.prefill_end).min()
    }

    fn schedule(&mut self) {
        let running = |run: &Self| run.prefilling.len() + run.ready.len() + run.decoding.len();
        while running(self) < self.model.profile().batch_limit {
            // What runs alone fits, whatever the estimate says.
            let fits = |member: &Member| member.blocks <= self.free_blocks || running(self) == 0;
            let Some(member) = self.waiting.front().copied().filter(fits) else { break };
            self.waiting.pop_front();
            self.free_blocks = self.free_blocks.saturating_sub(member.blocks);
            self.prefilling.push_back(member);
        }
        for member in self.prefilling.iter_mut().take(self.model.profile().prefill_lanes) {
            member.prefill_end.get_or_insert(self.now + member.prefill);
        }
        if self.step_end.is_none() {
            self.decoding.append(&mut self.ready);
            if !self.decoding.is_empty() {
                let length = self.model.step_of(self.decoding.len(), !self.prefilling.is_empty());
                self.step_end = Some((self.now + length, length));
            }
        }
    }

    /// The step that ends now, and with it those after it in which nothing else happens.
    fn steps(&mut self, end: Nanos, length: Nanos) {
        let mut more = self.decoding.iter().map(|member| member.steps_left).min().unwrap_or(1).max(1) - 1;
        if !self.ready.is_empty() || length != self.model.step_of(self.decoding.len(), !self.prefilling.is_empty()) {
            more = 0;
        }
        if let Some(prefill_end) = self.prefill_end() {
            let before = prefill_end.saturating_sub(end + 1);
            more = more.min(before.checked_div(length).unwrap_or(0));
        }
        self.step_end = None;
        self.now = end + more * length;
        let (mut ends, now, mut freed) = (self.ends, self.now, 0);
        self.decoding.retain_mut(|member| {
            if member.new && member.first_in > 0 && member.first_in <= more + 1 {
                ends.first_token = end + (member.first_in - 1) * length;
            }
            member.first_in = member.first_in.saturating_sub(more + 1);
            member.steps_left = member.steps_left.saturating_sub(more + 1);
            if member.steps_left > 0 {
                return true;
            }
            freed += member.blocks;
            match member.new {
                true => ends.finished = now,
                false => ends.others += now,
            }
            false
        });
        self.free_blocks += freed;
        self.ends = ends;
    }
}

impl Model {
    /// Prompt tokens of a request that need no prefill now: whole blocks, and never the last token, whose output is the first
    /// new one.
    pub(super) fn cached_tokens(&self, request: &Request) -> u64 {
        if !self.profile().prefix_caching {
            return 0;
        }
        let block = self.profile().block_size_tokens;
        (self.matched(&request.prompt_blocks) as u64).min((request.prompt_tokens - 1) / block) * block
    }

    /// How long the prefill of a request takes of which so many tokens are cached.
    pub(super) fn prefill_time(&self, request: &Request, cached_tokens: u64) -> Nanos {
        let profile = self.profile();
        let from = cached_tokens.saturating_add(profile.prefill_included_tokens);
        nanos(profile.prefill_s(from, request.prompt_tokens) * request.slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EventKind, Profile};

    fn ends(model: &mut Model, id: u64) -> (Nanos, Nanos) {
        let (mut first, mut finished) = (0, 0);
        while let Some(at) = model.next_event() {
            model.advance(at);
            for event in model.take_events().into_iter().filter(|event| event.id == id) {
                match event.kind {
                    EventKind::FirstToken => first = event.at,
                    EventKind::Finished { .. } => finished = event.at,
                    _ => {}
                }
            }
        }
        (first, finished)
    }

    #[test]
    fn what_is_foretold_is_what_happens() {
        for decode_share_during_prefill in [1.0, 0.5] {
            for (before, later_ms) in [(0u64, 0), (1, 0), (7, 40), (31, 333), (60, 1_500)] {
                let mut model = Model::new(Profile { decode_share_during_prefill, ..Profile::pair().warm() }).unwrap();
                for id in 0..before {
                    model.submit(id * 3_000_000, Request::new(id, 100 + 37 * id, 10 + 13 * (id % 17))).unwrap();
                }
                let now = before * 3_000_000 + later_ms * 1_000_000;
                model.advance(now);
                model.take_events();
                let request = Request::new(1_000, 900, 70);
                let forecast = model.forecast(&request).unwrap();
                model.submit(now, request).unwrap();
                assert_eq!((forecast.first_token, forecast.finished), ends(&mut model, 1_000), "{before}");
                assert!(before > 0 || forecast.delays_others == 0);
            }
        }
    }

    #[test]
    fn others_are_delayed_by_as_much_as_they_are() {
        let mut model = Model::new(Profile::small().warm()).unwrap();
        model.submit(0, Request::new(1, 20, 60)).unwrap();
        // 60 tokens/s alone; two together decode at 40 each. The other is prefilled at once, and 60 tokens then take 1.5 s.
        let forecast = model.forecast(&Request::new(2, 20, 500)).unwrap();
        let late_ms = forecast.delays_others / 1_000_000;
        assert!((490..=510).contains(&late_ms), "{late_ms}");
        assert_eq!(model.forecast(&Request::new(2, 40_000, 1)), None);
    }

    #[test]
    fn a_cached_prompt_is_foretold_to_be_quick() {
        let mut model = Model::new(Profile::small().warm()).unwrap();
        let blocks: Vec<u64> = (0..200).collect();
        let request = |id| Request::new(id, 3_200, 4).with_blocks(blocks.clone(), Vec::new());
        let cold = model.forecast(&request(1)).unwrap();
        model.submit(0, request(1)).unwrap();
        let (_, end) = ends(&mut model, 1);
        let warm = model.forecast(&request(2)).unwrap();
        assert_eq!((cold.cached_tokens, warm.cached_tokens), (0, 3_184));
        assert!(warm.finished - end < cold.finished / 4);
    }
}
