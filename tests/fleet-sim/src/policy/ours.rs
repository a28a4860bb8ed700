//! Ours: the live table, the queue and the holder index of the filter, in the memory of one process.
//!
//! One Envoy with one worker thread. What the filter does and this does not: parsing (lengths and prefixes are told exactly),
//! the way of a wake-up (no time), and a tick of its own (waiters are served anew whenever signals come).

use std::collections::{HashMap, VecDeque};

use weighbridge_routing::eligibility::{Ask, Patience};
use weighbridge_routing::live::{
    Admitted, Charge, Claim, Outcome, Question, Report, Row, Verdict, WORTH_TELLING_TOKENS, Woken,
};
use weighbridge_routing::prefix::index::{Prefix, Search};
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::signals::Signals;
use weighbridge_routing::snapshot::Pool;

use engine_sim::model::Nanos;

use super::memory::{Memory, Value};
use super::{Answer, Arrival, Ended, Own, Routed, Router, Size};
use crate::fleet::{Fleet, Standing};

/// What can be set in a pool. The defaults are those of the product.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Tuning {
    /// `policy.name`
    pub policy: String,
    /// `policy.choices`; `None`: all.
    pub choices: Option<u32>,
    /// Whether `policy.by` is `curve`.
    pub curve: bool,
    /// `affinity.enabled`
    pub affinity: bool,
    /// `affinity.k`
    pub k: f64,
    /// `admission.base_cap`
    pub base_cap: u32,
    /// `admission.queue`
    pub queue: u32,
    /// `admission.max_wait`, in ms
    pub max_wait_ms: u32,
    /// `admission.ageing`, in ms
    pub ageing_ms: u32,
    /// `admission.prefill_budget`, in tokens
    pub prefill_budget: u32,
    /// How much a prompt token counts as pending against an output token. The product has 1 and no setting: this is
    /// for experiments.
    pub prompt_weight: f64,
    /// What the pool has learnt to expect of an answer, in tokens.
    pub median_output: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            policy: "p2c".into(),
            choices: Some(2),
            curve: false,
            affinity: true,
            k: 1.0,
            base_cap: 24,
            queue: 1_000,
            max_wait_ms: 30_000,
            ageing_ms: 5_000,
            prefill_budget: 16_384,
            prompt_weight: 1.0,
            median_output: 128,
        }
    }
}

#[derive(Debug)]
struct Placed {
    at: usize,
    charge: Charge,
    /// Its endpoint's token clock when it was placed.
    clock: u64,
    /// Until its answer begins.
    search: Option<Search>,
    /// Where it goes, and where it would go next.
    hosts: Vec<usize>,
    /// Whether its endpoint was picked although it had been ejected.
    trial: bool,
}

/// The filter's routing with one worker thread.
#[derive(Debug)]
pub struct Ours {
    fleet: Fleet,
    tuning: Tuning,
    pool: Pool,
    standing: Vec<Standing>,
    row: Row,
    value: Value,
    memory: Memory,
    rng: SplitMix64,
    placed: HashMap<u64, Placed>,
    /// Requests that wait, by ticket.
    waiting: HashMap<u64, (u64, Search)>,
    tickets: HashMap<u64, u64>,
    granted: Vec<(u64, Routed)>,
    signals: Vec<Signals>,
    own: Vec<Own>,
}

impl Ours {
    /// One gateway of a fleet.
    ///
    /// # Errors
    /// When the routing code refuses the pool.
    pub fn new(fleet: Fleet, tuning: Tuning, seed: u64) -> anyhow::Result<Self> {
        let pool = fleet.pool(&tuning, &[])?;
        let own = vec![Own::default(); pool.endpoints.len()];
        Ok(Self {
            standing: vec![Standing::default(); own.len()],
            fleet,
            tuning,
            pool,
            row: Row::new(1),
            value: Value::default(),
            memory: Memory::default(),
            rng: SplitMix64::seeded(seed),
            placed: HashMap::new(),
            waiting: HashMap::new(),
            tickets: HashMap::new(),
            granted: Vec::new(),
            signals: Vec::new(),
            own,
        })
    }

    /// The pool, to change what no snapshot can say.
    pub(super) fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn weighted(&self, tokens: u64) -> u64 {
        if self.tuning.prompt_weight == 1.0 { tokens } else { (tokens as f64 * self.tuning.prompt_weight) as u64 }
    }

    fn place(&mut self, id: u64, admitted: &Admitted, mut search: Search) -> Routed {
        let at = admitted.pick.chosen();
        let believed = search.tokens_at(at, &mut self.memory);
        let load = admitted.loads.get(at).copied().unwrap_or_default();
        self.own[at].in_flight += 1;
        let tokens = admitted.charge.prompt_tokens.saturating_add(admitted.charge.output_tokens);
        self.own[at].pending_tokens = self.own[at].pending_tokens.saturating_add(tokens);
        let placed = Placed {
            at,
            charge: admitted.charge,
            clock: load.clock,
            search: Some(search),
            hosts: admitted.pick.hosts.to_vec(),
            trial: load.passive.ejections > 0,
        };
        self.placed.insert(id, placed);
        Routed { endpoint: at, believed_tokens: (believed as f64 / self.tuning.prompt_weight) as u64 }
    }

    /// Those who were given a slot come for it at once.
    fn wake(&mut self, woken: Vec<Woken>, now_ms: u64) {
        let mut woken = VecDeque::from(woken);
        while let Some(Woken { ticket, .. }) = woken.pop_front() {
            let Some((id, mut search)) = self.waiting.remove(&ticket) else { continue };
            let holders = &mut search.holders(&mut self.memory);
            let change = self.row.claim(&mut self.value, &self.pool, ticket, holders, now_ms);
            woken.extend(change.woken);
            match change.result {
                Claim::Admitted(admitted) => {
                    self.tickets.remove(&id);
                    let routed = self.place(id, &admitted, search);
                    self.granted.push((id, routed));
                }
                Claim::Waiting => _ = self.waiting.insert(ticket, (id, search)),
                Claim::Unknown => {}
            }
        }
    }

    /// Takes a request off this gateway's own counts.
    fn forget(&mut self, at: usize, charge: Charge) {
        let own = &mut self.own[at];
        own.in_flight = own.in_flight.saturating_sub(1);
        own.pending_tokens =
            own.pending_tokens.saturating_sub(charge.prompt_tokens.saturating_add(charge.output_tokens));
    }
}

impl Router for Ours {
    fn route(&mut self, arrival: &Arrival<'_>) -> Answer {
        let (call, now_ms) = (arrival.call, arrival.now_ms());
        let prefixes: Vec<Prefix> = match self.pool.affinity.enabled {
            true => call.prefixes.iter().map(|of| Prefix { tokens: self.weighted(of.tokens), ..*of }).collect(),
            false => Vec::new(),
        };
        let home = prefixes.first().map(|prefix| prefix.hash);
        let prompt_tokens = self.weighted(call.prompt_tokens);
        let Self { pool, row, value, memory, rng, signals, .. } = self;
        let clock = |place: usize| pool.endpoints.get(place).map_or(0, |endpoint| row.clock(endpoint.key, place));
        let mut search = Search::new(prefixes, home, pool, clock, now_ms, memory);
        let ask = Ask {
            prompt_tokens,
            floor_tokens: prompt_tokens,
            output_tokens: self.tuning.median_output,
            patience: Patience {
                max_wait_ms: self.tuning.max_wait_ms,
                priority: arrival.priority,
                // Four bytes a token.
                body_bytes: u32::try_from(call.prompt_tokens * 4).unwrap_or(u32::MAX),
                ..Patience::default()
            },
            ..Ask::default()
        };
        let question = Question { pool, ask: &ask, signals, now_ms };
        let change = row.admit(value, &question, &mut search.holders(memory), rng);
        let answer = match change.result {
            Verdict::Admitted(admitted) => Answer::To(self.place(arrival.id, &admitted, search)),
            Verdict::Queued(queued) => {
                self.waiting.insert(queued.ticket, (arrival.id, search));
                self.tickets.insert(arrival.id, queued.ticket);
                Answer::Waits { until_ms: queued.deadline_ms }
            }
            Verdict::Refused(_) => Answer::Refused,
        };
        self.wake(change.woken, now_ms);
        answer
    }

    fn retry(&mut self, arrival: &Arrival<'_>) -> Answer {
        let Some(placed) = self.placed.get_mut(&arrival.id) else { return Answer::Refused };
        let from = placed.at;
        let next = placed.hosts.iter().position(|host| *host == from).and_then(|nth| placed.hosts.get(nth + 1));
        let Some(to) = next.copied().filter(|to| *to != from) else {
            self.ended(arrival.id, Ended::Failed, arrival.now_ms());
            return Answer::Refused;
        };
        placed.at = to;
        let charge = placed.charge;
        let report = Report { outcome: Outcome::Failure, trial: placed.trial, added_tokens: 0 };
        self.forget(from, charge);
        self.own[to].in_flight += 1;
        let tokens = charge.prompt_tokens.saturating_add(charge.output_tokens);
        self.own[to].pending_tokens = self.own[to].pending_tokens.saturating_add(tokens);
        let (from, endpoint) = (&self.pool.endpoints[from], &self.pool.endpoints[to]);
        let now_ms = arrival.now_ms();
        let change = self.row.shift(&mut self.value, &self.pool, from, endpoint, charge, report, now_ms);
        self.wake(change.woken, now_ms);
        Answer::To(Routed { endpoint: to, believed_tokens: 0 })
    }

    fn first_token(&mut self, id: u64, now_ms: u64) {
        let Some(placed) = self.placed.get_mut(&id) else { return };
        if let Some(mut search) = placed.search.take() {
            search.learn(placed.at, placed.clock, &mut self.memory);
        }
        if placed.charge.prompt_tokens < WORTH_TELLING_TOKENS {
            return;
        }
        let endpoint = &self.pool.endpoints[placed.at];
        let own = &mut self.own[placed.at];
        own.pending_tokens = own.pending_tokens.saturating_sub(placed.charge.prompt_tokens);
        let change = self.row.first_token(&mut self.value, &self.pool, endpoint, &mut placed.charge, now_ms);
        self.wake(change.woken, now_ms);
    }

    fn ended(&mut self, id: u64, how: Ended, now_ms: u64) {
        let Some(Placed { at, charge, trial, .. }) = self.placed.remove(&id) else { return };
        self.forget(at, charge);
        let (outcome, added_tokens) = match how {
            Ended::Served { added_tokens } => (Outcome::Success, added_tokens),
            Ended::Failed => (Outcome::Failure, 0),
            Ended::TooLong => (Outcome::Neutral, 0),
        };
        let report = Report { outcome, trial, added_tokens };
        let endpoint = &self.pool.endpoints[at];
        let change = self.row.release(&mut self.value, &self.pool, endpoint, charge, report, now_ms);
        self.wake(change.woken, now_ms);
    }

    fn give_up(&mut self, id: u64, now_ms: u64) -> bool {
        let Some(ticket) = self.tickets.remove(&id) else { return false };
        self.waiting.remove(&ticket);
        let change = self.row.leave(&mut self.value, &self.pool, ticket, now_ms);
        self.wake(change.woken, now_ms);
        true
    }

    fn granted(&mut self) -> Vec<(u64, Routed)> {
        std::mem::take(&mut self.granted)
    }

    fn hear(&mut self, signals: &[Signals], now_ms: u64) {
        self.signals.clear();
        self.signals.extend(signals);
        if !self.waiting.is_empty() {
            let elsewhere = self.pool.endpoints.iter().zip(signals);
            self.row.hear(elsewhere.map(|(endpoint, of)| (endpoint.key, of.elsewhere())));
            let change = self.row.dispatch(&mut self.value, &self.pool, now_ms);
            self.wake(change.woken, now_ms);
        }
    }

    fn hears(&self, gateways: usize, interval: Nanos) -> Option<Nanos> {
        (gateways > 1 || self.tuning.policy == "score").then_some(interval)
    }

    fn health(&mut self, ready: &[bool], restarted: Option<usize>, now_ms: u64) {
        for (standing, ready) in self.standing.iter_mut().zip(ready) {
            standing.ready = *ready;
        }
        if let Some(standing) = restarted.and_then(|place| self.standing.get_mut(place)) {
            standing.epoch += 1;
        }
        // What was accepted once is accepted again: only states and epochs have changed.
        if let Ok(pool) = self.fleet.pool(&self.tuning, &self.standing) {
            self.pool = Pool { policy: self.pool.policy.clone(), ..pool };
        }
        let change = self.row.dispatch(&mut self.value, &self.pool, now_ms);
        self.wake(change.woken, now_ms);
    }

    fn own(&self, into: &mut Vec<Own>) {
        into.clone_from(&self.own);
    }

    fn size(&self) -> Size {
        Size { live_bytes: self.value.0.as_ref().map_or(0, Vec::len), index_bytes: self.memory.bytes() }
    }
}
