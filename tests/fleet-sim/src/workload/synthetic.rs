//! Conversations that grow turn by turn, and single prompts.
//!
//! New conversations and single prompts arrive by a [process](super::arrivals) of their own; the next turn of a conversation comes a think time
//! after its answer, and repeats everything said before. Or a fixed number of users, each of whom starts anew when done.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use engine_sim::model::{Nanos, nanos, seconds};
use weighbridge_routing::rng::SplitMix64;

use super::arrivals::{Process, unit};
use super::{BLOCK_TOKENS, Call, Workload, checkpoints, mix};

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub enum Arrivals {
    /// Requests per second in the long run, and how they vary. New conversations and single prompts follow the process;
    /// later turns follow their answers.
    Open(Process),
    /// So many users, each with one request at a time.
    Users(u64),
}

impl Arrivals {
    /// So many requests per second in a Poisson stream.
    #[must_use]
    pub fn poisson(rate: f64) -> Self {
        Arrivals::Open(Process::poisson(rate))
    }
}

/// What the requests are like. Lengths in tokens; ranges include both ends.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Settings {
    /// When they come.
    pub arrivals: Arrivals,
    /// Share of the requests that are turns of conversations, 0 to 1; the rest are single prompts.
    pub conversations: f64,
    /// Turns of a conversation, each number as likely.
    pub turns: (u64, u64),
    /// Mean of the time between an answer and the next turn, exponential, in seconds.
    pub think_s: f64,
    /// A conversation's first message.
    pub opening: (u64, u64),
    /// The later messages of the user.
    pub message: (u64, u64),
    /// Single prompts, log-uniform: as many between 100 and 200 as between 200 and 400.
    pub single: (u64, u64),
    /// Mean output, exponential, at most 2,000.
    pub output_mean: f64,
    /// A system prompt at the beginning of every prompt; 0 for none.
    pub system: u64,
    /// Requests in all.
    pub requests: u64,
    /// Everything random follows from it.
    pub seed: u64,
}

impl Default for Settings {
    /// 60 % conversations, 40 % single prompts of 100 to 4,000 tokens, outputs of 64 on average.
    fn default() -> Self {
        Self {
            arrivals: Arrivals::poisson(1.0),
            conversations: 0.6,
            turns: (2, 14),
            think_s: 10.0,
            opening: (50, 600),
            message: (20, 150),
            single: (100, 4_000),
            output_mean: 64.0,
            system: 0,
            requests: 20_000,
            seed: 1,
        }
    }
}

/// Means over the requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Prompt tokens of a request.
    pub prompt_tokens: f64,
    /// Of these, tokens that nobody has sent before.
    pub new_tokens: f64,
    /// Output tokens.
    pub output_tokens: f64,
}

const MOST_OUTPUT: u64 = 2_000;

#[derive(Debug, Clone)]
struct Conversation {
    seed: u64,
    turns_left: u64,
    /// Ends of the messages so far, answers included.
    boundaries: Vec<u64>,
    /// Tokens so far, the answer under way included.
    tokens: u64,
    /// Tokens that an engine has seen.
    known: u64,
}

/// The source.
#[derive(Debug)]
pub struct Synthetic {
    settings: Settings,
    rng: SplitMix64,
    /// Chance that a newcomer is a conversation.
    newcomers: f64,
    /// When newcomers come, where they do not wait for others to leave.
    starts: Option<Process>,
    next_start: Nanos,
    due: BinaryHeap<Reverse<(Nanos, u64)>>,
    open: HashMap<u64, Conversation>,
    next_id: u64,
    taken: u64,
    system_seen: bool,
}

impl Synthetic {
    /// The source that these settings describe.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let turns = (settings.turns.0 + settings.turns.1) as f64 / 2.0;
        let share = settings.conversations.clamp(0.0, 1.0);
        let newcomers = share / (turns * (1.0 - share) + share);
        let requests_each = newcomers * turns + (1.0 - newcomers);
        let starts = match settings.arrivals {
            Arrivals::Open(process) => Some(Process { rate: process.rate / requests_each, ..process }),
            Arrivals::Users(_) => None,
        };
        let mut source = Self {
            rng: SplitMix64::seeded(settings.seed),
            newcomers,
            starts,
            next_start: 0,
            due: BinaryHeap::new(),
            open: HashMap::new(),
            next_id: 0,
            taken: 0,
            system_seen: false,
            settings,
        };
        match source.settings.arrivals {
            Arrivals::Open(_) => source.next_start = source.next_start(),
            Arrivals::Users(users) => {
                for _ in 0..users {
                    let at = nanos(source.exponential(source.settings.think_s));
                    source.start(at);
                }
            }
        }
        source
    }

    /// Means over a sample of what these settings bring, whatever happens to it.
    #[must_use]
    pub fn demand(settings: &Settings) -> Demand {
        let sample =
            Self::sample(&Settings { think_s: 1e-6, arrivals: Arrivals::poisson(1.0), ..settings.clone() }, 20_000);
        let mean = |of: fn(&Call) -> u64| sample.iter().map(of).sum::<u64>() as f64 / sample.len().max(1) as f64;
        Demand {
            prompt_tokens: mean(|call| call.prompt_tokens),
            new_tokens: mean(|call| call.prompt_tokens - call.known_tokens),
            output_tokens: mean(|call| call.output_tokens),
        }
    }

    /// The first requests that these settings bring when every answer comes at once.
    #[must_use]
    pub fn sample(settings: &Settings, requests: u64) -> Vec<Call> {
        let mut source = Self::new(Settings { requests, ..settings.clone() });
        let mut calls = Vec::new();
        while let (Some(at), Some(call)) = (source.next_at(), source.take()) {
            source.ended(call.conversation, at, true);
            calls.push(call);
        }
        calls
    }

    /// When the next newcomer comes after the one before.
    fn next_start(&mut self) -> Nanos {
        let Some(starts) = self.starts else { return Nanos::MAX };
        self.next_start.saturating_add(nanos(starts.gap_s(seconds(self.next_start), &mut self.rng)))
    }

    fn unit(&mut self) -> f64 {
        unit(&mut self.rng)
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        low + self.rng.below(high.saturating_sub(low) + 1)
    }

    /// Somebody new, with the first message written.
    fn start(&mut self, at: Nanos) {
        let id = self.next_id;
        self.next_id += 1;
        let seed = mix(self.settings.seed, id);
        let system = self.settings.system;
        let (turns_left, message) = if self.unit() <= self.newcomers {
            (self.between(self.settings.turns), self.between(self.settings.opening))
        } else {
            let (low, high) = (self.settings.single.0 as f64, self.settings.single.1 as f64);
            (1, (low * (high / low).powf(self.unit())).round() as u64)
        };
        let boundaries = if system > 0 { vec![system, system + message] } else { vec![message] };
        let tokens = system + message;
        self.open.insert(id, Conversation { seed, turns_left, boundaries, tokens, known: 0 });
        self.due.push(Reverse((at, id)));
    }

    /// Hash of the first `tokens` of a conversation.
    fn hash(&self, seed: u64, tokens: u64) -> u64 {
        mix(if tokens <= self.settings.system { self.settings.seed } else { seed }, tokens)
    }

    fn call(&self, id: u64, conversation: &Conversation, output_tokens: u64) -> Call {
        let Conversation { seed, tokens, .. } = *conversation;
        let blocks = |from: u64, to: u64| {
            (from / BLOCK_TOKENS..to / BLOCK_TOKENS).map(|nth| self.hash(seed, (nth + 1) * BLOCK_TOKENS)).collect()
        };
        let prefixes = checkpoints(&conversation.boundaries, |tokens| self.hash(seed, tokens));
        let system = if self.system_seen { self.settings.system } else { 0 };
        Call {
            conversation: id,
            prompt_tokens: tokens,
            output_tokens,
            blocks: blocks(0, tokens),
            output_blocks: blocks(tokens, tokens + output_tokens),
            prefixes,
            first: self.hash(seed, tokens.min(64)),
            known_tokens: conversation.known.max(system),
        }
    }
}

impl Workload for Synthetic {
    fn next_at(&self) -> Option<Nanos> {
        if self.taken >= self.settings.requests {
            return None;
        }
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        match self.settings.arrivals {
            Arrivals::Open(_) => Some(due.map_or(self.next_start, |due| due.min(self.next_start))),
            Arrivals::Users(_) => due,
        }
    }

    fn take(&mut self) -> Option<Call> {
        let now = self.next_at()?;
        if matches!(self.settings.arrivals, Arrivals::Open(_)) && self.next_start == now {
            self.start(now);
            self.next_start = self.next_start();
        }
        let Reverse((_, id)) = self.due.pop()?;
        self.taken += 1;
        let output = (self.exponential(self.settings.output_mean).round() as u64).clamp(1, MOST_OUTPUT);
        let call = self.call(id, self.open.get(&id)?, output);
        self.system_seen = true;
        let conversation = self.open.get_mut(&id)?;
        conversation.tokens += output;
        conversation.known = conversation.tokens;
        conversation.boundaries.push(conversation.tokens);
        conversation.turns_left -= 1;
        Some(call)
    }

    fn ended(&mut self, id: u64, now: Nanos, served: bool) {
        let goes_on = served && self.open.get(&id).is_some_and(|conversation| conversation.turns_left > 0);
        if goes_on {
            let (message, think) = (self.between(self.settings.message), self.exponential(self.settings.think_s));
            if let Some(conversation) = self.open.get_mut(&id) {
                conversation.tokens += message;
                conversation.boundaries.push(conversation.tokens);
            }
            self.due.push(Reverse((now + nanos(think), id)));
            return;
        }
        self.open.remove(&id);
        if matches!(self.settings.arrivals, Arrivals::Users(_)) {
            let at = now + nanos(self.exponential(self.settings.think_s));
            self.start(at);
        }
    }

    fn median_output(&self) -> u64 {
        // Of an exponential distribution.
        (self.settings.output_mean * std::f64::consts::LN_2).round().max(1.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(settings: Settings) -> Vec<(Nanos, Call)> {
        let mut source = Synthetic::new(settings);
        let mut calls = Vec::new();
        while let (Some(at), Some(call)) = (source.next_at(), source.take()) {
            source.ended(call.conversation, at + 1_000_000_000, true);
            calls.push((at, call));
        }
        calls
    }

    #[test]
    fn the_next_turn_begins_with_prompt_and_answer_of_the_last() {
        let calls = all(Settings { requests: 2_000, ..Settings::default() });
        let mut last: HashMap<u64, Call> = HashMap::new();
        let mut turns = 0;
        for (_, call) in calls {
            if let Some(before) = last.insert(call.conversation, call.clone()) {
                let known = [before.blocks.as_slice(), &before.output_blocks].concat();
                assert!(call.blocks.starts_with(&known));
                assert_eq!(call.known_tokens, before.prompt_tokens + before.output_tokens);
                assert!(
                    before.prefixes.is_empty() || call.prefixes.contains(&before.prefixes[before.prefixes.len() - 1])
                );
                turns += 1;
            }
        }
        assert!(turns > 800, "{turns}");
    }

    #[test]
    fn rate_and_mix_are_as_set() {
        let calls = all(Settings { arrivals: Arrivals::poisson(20.0), requests: 40_000, ..Settings::default() });
        let seconds = calls.last().unwrap().0 as f64 / 1e9;
        // The first turns come alone, so the rate is reached from below.
        let rate = calls.len() as f64 / seconds;
        assert!((18.0..20.5).contains(&rate), "{rate}");
        let mut turns: HashMap<u64, u64> = HashMap::new();
        calls.iter().for_each(|(_, call)| *turns.entry(call.conversation).or_default() += 1);
        let single = turns.values().filter(|turns| **turns == 1).count() as f64 / calls.len() as f64;
        assert!((0.37..0.43).contains(&single), "{single}");
        let output = calls.iter().map(|(_, call)| call.output_tokens).sum::<u64>() as f64 / calls.len() as f64;
        assert!((62.0..66.0).contains(&output), "{output}");
    }

    #[test]
    fn a_system_prompt_is_everybodys_and_users_wait_for_their_answers() {
        let settings = Settings {
            arrivals: Arrivals::Users(8),
            system: 500,
            conversations: 0.0,
            requests: 100,
            ..Settings::default()
        };
        let calls = all(settings);
        assert_eq!(calls.len(), 100);
        let shared = 500 / BLOCK_TOKENS as usize;
        assert!(calls.windows(2).all(|pair| pair[0].1.blocks[..shared] == pair[1].1.blocks[..shared]));
        assert!(calls.windows(2).all(|pair| pair[0].1.blocks[shared] != pair[1].1.blocks[shared]));
        assert_eq!((calls[0].1.known_tokens, calls[1].1.known_tokens), (0, 500));
        let mut source = Synthetic::new(Settings { arrivals: Arrivals::Users(3), ..Settings::default() });
        assert_eq!(std::iter::from_fn(|| source.take()).count(), 3);
    }

    #[test]
    fn demand_tells_what_comes() {
        let single = Settings { conversations: 0.0, ..Settings::default() };
        let demand = Synthetic::demand(&single);
        assert_eq!(demand.prompt_tokens, demand.new_tokens);
        // The mean of a log-uniform distribution: (high - low) / ln(high / low).
        assert!((demand.prompt_tokens / (3_900.0 / 40f64.ln()) - 1.0).abs() < 0.03, "{demand:?}");
        let mixed = Synthetic::demand(&Settings::default());
        assert!(mixed.new_tokens < 0.8 * mixed.prompt_tokens, "{mixed:?}");
    }
}
