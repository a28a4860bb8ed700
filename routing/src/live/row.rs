//! One VM's side of the live table of one pool: its true counts, and the changes it makes.
//!
//! The counts here are the truth; the row in shared memory is a copy that is written whole at every change. A request
//! is counted by [`Row::admit`], follows a retry by [`Row::shift`] and is given back by [`Row::release`], which also
//! tells the table how it went. What it still has to compute and to generate is counted as pending tokens: the part of
//! the prompt that is not cached until the first token ([`Row::first_token`]), the expected answer until the end.
//! Counts floor at zero (case C9). A request that has to wait is told so by [`Row::admit`] and comes for its slot by
//! [`Row::claim`].
//!
//! Every change that may free something hands it over in the same swap. The `pool` that a change takes is the one now
//! in force: its caps and states decide who may have what.

use super::passive::{Ejected, Report, after, trial};
use super::queue::{self, Board};
use super::table::{Counts, Table};
use super::waiter::Waiter;
use super::{
    Change, MOST_CHARGED_TOKENS, SharedValue, StoreError, Then, WORTH_TELLING_TOKENS, Waited, Woken, transact,
};
use crate::admission::retry_after_s;
use crate::eligibility::{Ask, Load, Patience, Survey, View};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::route::{self, Pick, Refusal, decide};
use crate::signals::Signals;
use crate::snapshot::{Endpoint, EndpointKey, Pool, State};

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// It goes to an endpoint.
    Admitted(Admitted),
    /// It waits.
    Queued(Queued),
    /// It goes nowhere.
    Refused(Refused),
}

/// A request that looks for an endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The pool that it goes to.
    pub pool: &'a Pool,
    /// What it needs.
    pub ask: &'a Ask,
    /// What others say about the pool's endpoints, in the pool's order; nothing where it is shorter.
    pub signals: &'a [Signals],
    /// The time in ms.
    pub now_ms: u64,
}

/// A request that was let in and counted.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// Where it goes.
    pub pick: Pick,
    /// What the pick looked at, in the pool's order, before this request was counted.
    pub loads: Vec<Load>,
    /// What it counts as pending.
    pub charge: Charge,
    /// How it waited; `None` when it did not have to.
    pub waited: Option<Waited>,
}

/// A request that waits.
#[derive(Debug, Clone)]
pub struct Queued {
    /// What its VM asks for its slot with.
    pub ticket: u64,
    /// Waiters that are served before it, as things stand.
    pub position: usize,
    /// When it has waited long enough (ms).
    pub deadline_ms: u64,
    /// What it would be told if it did not wait.
    pub refused: Refused,
}

/// Tokens that one request counts as pending. Whoever holds the request holds this, and gives it back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Of its prompt, what the endpoint has to compute; 0 after the first token.
    pub prompt_tokens: u32,
    /// Of its answer, what is expected.
    pub output_tokens: u32,
}

impl Charge {
    /// What a request will count as at an endpoint that holds so many tokens of its prompt.
    pub(super) fn of(ask: &Ask, held_tokens: u64) -> Self {
        let most = |tokens: u64| tokens.min(MOST_CHARGED_TOKENS.into()) as u32;
        Charge {
            prompt_tokens: most(ask.prompt_tokens.saturating_sub(held_tokens)),
            output_tokens: most(ask.output_tokens),
        }
    }

    /// One request with this charge.
    pub(super) fn counts(self) -> Counts {
        let tells = self.prompt_tokens >= WORTH_TELLING_TOKENS;
        Counts {
            in_flight: 1,
            pending_tokens: self.prompt_tokens.saturating_add(self.output_tokens),
            prefill_tokens: if tells { self.prompt_tokens } else { 0 },
            prefills: tells.into(),
        }
    }
}

/// A request that was not let in.
#[derive(Debug, Clone)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// Why for each endpoint.
    pub survey: Survey,
    /// What the decision looked at, in the pool's order.
    pub loads: Vec<Load>,
    /// When to come again (s), going by how many wait and how fast they are served.
    pub retry_after_s: u32,
}

/// What a look at the shared value found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The row is there with all its waiters, or nothing is in flight.
    Fine,
    /// The row is gone, or the waiters in the value are not those of this VM.
    Missing,
}

/// One endpoint's counts, and where they were in the table last.
#[derive(Debug, Clone, Copy)]
struct Held {
    key: EndpointKey,
    counts: Counts,
    slot: usize,
}

/// The counts of one VM in one pool.
#[derive(Debug, Clone)]
pub struct Row {
    pub(super) id: u64,
    held: Vec<Held>,
    /// The endpoints' token clocks as the last [`Row::admit`] saw them.
    clocks: Vec<(EndpointKey, u64)>,
    /// What others have in flight, in the order of the pool.
    pub(super) elsewhere: Vec<(EndpointKey, u32)>,
    /// This VM's waiters, as they were when they came.
    pub(super) waiting: Vec<Waiter>,
    last_ticket: u64,
}

impl Row {
    /// The row of a VM; `id` must differ between VMs (64 random bits do).
    #[must_use]
    pub fn new(id: u64) -> Self {
        let (held, clocks, elsewhere, waiting) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Row { id, held, clocks, elsewhere, waiting, last_ticket: 0 }
    }

    /// Requests this VM has in flight at an endpoint.
    #[must_use]
    pub fn in_flight(&self, key: EndpointKey) -> u32 {
        self.held.iter().find(|held| held.key == key).map_or(0, |held| held.counts.in_flight)
    }

    /// Whether this VM has nothing in flight and nobody waiting.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.held.iter().all(|held| held.counts == Counts::default())
    }

    /// Requests of this VM that wait, or have a slot that they have not come for.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes note of what others (other Envoys, traffic that passes no Envoy) have in flight at the endpoints; replaces
    /// what was known, and counts until a request brings signals that say otherwise. In the order of the pool it is found
    /// fastest.
    pub fn hear(&mut self, elsewhere: impl IntoIterator<Item = (EndpointKey, u32)>) {
        self.elsewhere.clear();
        self.elsewhere.extend(elsewhere);
    }

    fn hear_signals(&mut self, pool: &Pool, signals: &[Signals]) {
        if signals.iter().any(|of| of.elsewhere() > 0) {
            self.hear(pool.endpoints.iter().zip(signals).map(|(endpoint, of)| (endpoint.key, of.elsewhere())));
        } else if !signals.is_empty() {
            self.elsewhere.clear();
        }
    }

    /// An endpoint's token clock as it was when the last request came in, or at the last tick: soon enough to tell the
    /// age of what it holds. `place` is its place in the pool.
    #[must_use]
    pub fn clock(&self, key: EndpointKey, place: usize) -> u64 {
        let known = self.clocks.get(place).filter(|(known, _)| *known == key);
        known.or_else(|| self.clocks.iter().find(|(known, _)| *known == key)).map_or(0, |(_, clock)| *clock)
    }

    /// Gives waiters what they may have, and decides what becomes of a request with what is left, in one step for all
    /// VMs: it is counted at an endpoint, waits, or goes nowhere.
    pub fn admit(
        &mut self,
        value: &mut impl SharedValue,
        question: &Question<'_>,
        prefix: &mut impl Holders,
        rng: &mut SplitMix64,
    ) -> Change<Verdict> {
        let Question { pool, ask, signals, now_ms } = *question;
        self.hear_signals(pool, signals);
        let most_ms = if pool.admission.queue == 0 { 0 } else { pool.admission.max_wait_ms };
        let patience_ms = ask.patience.max_wait_ms.min(most_ms);
        let ask = &Ask { patience: Patience { max_wait_ms: patience_ms, ..ask.patience }, ..*ask };
        let (((verdict, waiter), woken), stored) = transact(value, |table| {
            let slots = queue::slots(table, pool);
            let row = self.write(table);
            let mut board = Board::new(table, pool, slots, &self.elsewhere);
            let mut woken = queue::dispatch(table, &mut board, now_ms);
            let view = View { loads: &board.loads, signals, turn: table.turn(), now_ms };
            match decide(pool, view, ask, prefix, rng) {
                Ok(pick) => {
                    table.take_turn();
                    let charge = Charge::of(ask, prefix.tokens_at(pick.chosen()));
                    if let (Some(row), Some(slot)) = (row, board.slot(pick.chosen())) {
                        count(table, pool, row, slot, charge, now_ms);
                    }
                    // It may have taken a budget that was kept for a waiter; then that is kept from nobody any more.
                    if board.loads.iter().any(|load| load.prefill_kept) {
                        woken.extend(self.hand_over(table, pool, now_ms));
                    }
                    let admitted = Admitted { pick, loads: board.loads, charge, waited: None };
                    (((Verdict::Admitted(admitted), None), woken), Then::Store)
                }
                Err(route::Refused { refusal, survey }) => {
                    let (waiting, _) = queue::load(table, now_ms);
                    let retry_after_s =
                        retry_after_s(waiting, queue::drain_rate(table, now_ms), pool.admission.max_wait_ms);
                    let kept = board.loads.iter().any(|load| load.prefill_kept);
                    let mut refused = Refused { refusal, survey, loads: board.loads, retry_after_s };
                    let queued = match (refusal, row) {
                        (Refusal::AtCap, Some(row)) if patience_ms > 0 => {
                            let waiter = Waiter::new(ask, patience_ms, prefix, pool, now_ms);
                            refused.refusal = Refusal::QueueFull;
                            queue::enqueue(table, pool, Waiter { row, ..waiter }, self.last_ticket, now_ms)
                        }
                        _ => None,
                    };
                    match queued {
                        Some((waiter, position)) => {
                            refused.refusal = refusal;
                            // A budget that was kept for somebody is not kept from those of a higher priority.
                            if kept {
                                woken.extend(self.hand_over(table, pool, now_ms));
                            }
                            let deadline_ms = now_ms.saturating_add(patience_ms.into());
                            let queued = Queued { ticket: waiter.ticket, position, deadline_ms, refused };
                            (((Verdict::Queued(queued), Some(waiter)), woken), Then::Store)
                        }
                        None => {
                            let then = if woken.is_empty() { Then::Leave } else { Then::Store };
                            (((Verdict::Refused(refused), None), woken), then)
                        }
                    }
                }
            }
        });
        if let Some(waiter) = waiter {
            self.last_ticket = waiter.ticket;
            self.waiting.push(waiter);
        }
        if let Verdict::Admitted(Admitted { pick, loads, charge, .. }) = &verdict {
            if let Some(endpoint) = pool.endpoints.get(pick.chosen()) {
                self.add(endpoint.key, charge.counts());
            }
            self.see_clocks(pool, loads);
        }
        Change::new((verdict, woken), stored)
    }

    /// The request went to another endpoint than the one it was counted at: the count follows, and the first one gets
    /// its report.
    #[expect(clippy::too_many_arguments, reason = "each is one fact of the retry")]
    pub fn shift(
        &mut self,
        value: &mut impl SharedValue,
        pool: &Pool,
        from: &Endpoint,
        to: &Endpoint,
        charge: Charge,
        report: Report,
        now_ms: u64,
    ) -> Change<Ejected> {
        self.take(from.key, charge.counts());
        self.add(to.key, charge.counts());
        let (result, stored) = transact(value, |table| {
            self.write(table);
            let ejected = told(table, pool, from, self.hint(from.key), report, now_ms);
            // Whoever comes to it after an ejection is its trial, on whichever way.
            if let Some(slot) = table.find(to.key, self.hint(to.key)) {
                table.set_passive(slot, trial(table.passive(slot), &pool.passive_health, now_ms));
            }
            ((ejected, self.hand_over(table, pool, now_ms)), Then::Store)
        });
        Change::new(result, stored)
    }

    /// The first token is there: the prompt is computed, and `charge` counts no more of it.
    pub fn first_token(
        &mut self,
        value: &mut impl SharedValue,
        pool: &Pool,
        endpoint: &Endpoint,
        charge: &mut Charge,
        now_ms: u64,
    ) -> Change<()> {
        let prompt = Charge { output_tokens: 0, ..*charge };
        charge.prompt_tokens = 0;
        self.change(endpoint.key, |counts| counts.subtract(Counts { in_flight: 0, ..prompt.counts() }));
        self.publish(value, pool, None, Released::No, now_ms).map(|_| ())
    }

    /// Says how a request goes before it ends, such as when a trial's response has begun.
    pub fn report(
        &mut self,
        value: &mut impl SharedValue,
        pool: &Pool,
        endpoint: &Endpoint,
        report: Report,
        now_ms: u64,
    ) -> Change<Ejected> {
        self.publish(value, pool, Some((endpoint, report)), Released::No, now_ms)
    }

    /// Gives a request back and reports how it went.
    pub fn release(
        &mut self,
        value: &mut impl SharedValue,
        pool: &Pool,
        endpoint: &Endpoint,
        charge: Charge,
        report: Report,
        now_ms: u64,
    ) -> Change<Ejected> {
        self.take(endpoint.key, charge.counts());
        self.publish(value, pool, Some((endpoint, report)), Released::Yes, now_ms)
    }

    /// Looks at the shared value without a request: brings the token clocks up to date, and tells whether something is in
    /// flight or waits here of which the value knows nothing, because the row was dropped.
    pub fn look(&mut self, value: &mut impl SharedValue) -> Look {
        let table = value.load().0.and_then(Table::decode);
        if let Some(table) = &table {
            for (hint, (key, clock)) in self.clocks.iter_mut().enumerate() {
                *clock = table.find(*key, hint).map_or(*clock, |slot| table.clock(slot));
            }
        }
        let row = table.as_ref().and_then(|table| Some((table, table.row(self.id)?)));
        let fine = match row {
            None => self.is_idle(),
            Some((table, row)) => {
                let own = queue::of_row(table, row);
                own.len() == self.waiting.len()
                    && own.iter().all(|(_, ticket)| self.waiting.iter().any(|waiter| waiter.ticket == *ticket))
            }
        };
        if fine { Look::Fine } else { Look::Missing }
    }

    /// Writes the row and its waiters as they are: after it was dropped, or a write was lost. A slot that a waiter had
    /// been given is lost with the row; the waiter keeps its place, unless the table is full.
    ///
    /// # Errors
    /// When the shared value cannot be written; the next tick tries again.
    pub fn rewrite(&mut self, value: &mut impl SharedValue) -> Result<(), StoreError> {
        let ((), stored) = transact(value, |table| {
            if let Some(row) = self.write(table) {
                queue::reconcile(table, row, &self.waiting);
            }
            ((), Then::Store)
        });
        stored
    }

    /// Forgets endpoints at which nothing is in flight and that `keep` does not name.
    pub fn forget_idle(&mut self, mut keep: impl FnMut(EndpointKey) -> bool) {
        self.held.retain(|held| held.counts != Counts::default() || keep(held.key));
    }

    fn publish(
        &mut self,
        value: &mut impl SharedValue,
        pool: &Pool,
        report: Option<(&Endpoint, Report)>,
        released: Released,
        now_ms: u64,
    ) -> Change<Ejected> {
        let (result, stored) = transact(value, |table| {
            self.write(table);
            let mut ejected = Ejected::No;
            if let Some((endpoint, report)) = report {
                ejected = told(table, pool, endpoint, self.hint(endpoint.key), report, now_ms);
            }
            if released == Released::Yes {
                queue::count_release(table, now_ms);
            }
            ((ejected, self.hand_over(table, pool, now_ms)), Then::Store)
        });
        Change::new(result, stored)
    }

    /// Gives waiters what is free. Costs nothing when nobody waits.
    pub(super) fn hand_over(&self, table: &mut Table, pool: &Pool, now_ms: u64) -> Vec<Woken> {
        queue::hand_over(table, pool, &self.elsewhere, now_ms)
    }

    /// Writes every count of this VM into its row. Returns the row; `None` when the table has no room for one.
    pub(super) fn write(&mut self, table: &mut Table) -> Option<usize> {
        for held in &self.held {
            if held.counts != Counts::default() {
                table.find_or_add(held.key, held.slot);
            }
        }
        let row = table.row_or_add(self.id)?;
        table.clear_row(row);
        for held in &mut self.held {
            if let Some(slot) = table.find(held.key, held.slot) {
                held.slot = slot;
                table.set_cell(row, slot, held.counts);
            }
        }
        Some(row)
    }

    pub(super) fn see_clocks(&mut self, pool: &Pool, loads: &[Load]) {
        self.clocks.clear();
        self.clocks.extend(pool.endpoints.iter().zip(loads).map(|(endpoint, load)| (endpoint.key, load.clock)));
    }

    fn hint(&self, key: EndpointKey) -> usize {
        self.held.iter().find(|held| held.key == key).map_or(0, |held| held.slot)
    }

    pub(super) fn add(&mut self, key: EndpointKey, more: Counts) {
        self.change(key, |counts| counts.add(more));
    }

    fn take(&mut self, key: EndpointKey, less: Counts) {
        self.change(key, |counts| {
            counts.subtract(less);
            // Estimates are given back as they were taken; where nothing is in flight, nothing is pending.
            if counts.in_flight == 0 {
                *counts = Counts::default();
            }
        });
    }

    fn change(&mut self, key: EndpointKey, change: impl FnOnce(&mut Counts)) {
        match self.held.iter_mut().find(|held| held.key == key) {
            Some(held) => change(&mut held.counts),
            None => {
                let mut held = Held { key, counts: Counts::default(), slot: self.held.len() };
                change(&mut held.counts);
                self.held.push(held);
            }
        }
    }
}

/// Whether a change ends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Released {
    Yes,
    No,
}

/// Counts a request at an endpoint.
pub(super) fn count(table: &mut Table, pool: &Pool, row: usize, slot: usize, charge: Charge, now_ms: u64) {
    let mut counts = table.cell(row, slot);
    counts.add(charge.counts());
    table.set_cell(row, slot, counts);
    table.set_passive(slot, trial(table.passive(slot), &pool.passive_health, now_ms));
}

/// What a report does to its endpoint.
fn told(table: &mut Table, pool: &Pool, endpoint: &Endpoint, hint: usize, report: Report, now_ms: u64) -> Ejected {
    let Some(slot) = table.find(endpoint.key, hint) else { return Ejected::No };
    let may_eject = || out(table, pool) < pool.passive_health.most_ejected(ready(pool));
    let (passive, ejected) = after(table.passive(slot), report, &pool.passive_health, may_eject, now_ms);
    table.set_passive(slot, passive);
    // What an ejected endpoint held counts as pushed out: it may well have restarted.
    let forgotten = if ejected == Ejected::Now { endpoint.kv_tokens.saturating_mul(2) } else { 0 };
    table.advance_clock(slot, report.added_tokens.saturating_add(forgotten));
    ejected
}

/// Endpoints that could serve if none were ejected.
fn ready(pool: &Pool) -> usize {
    pool.endpoints.iter().filter(|endpoint| endpoint.state == State::Ready).count()
}

/// Those of them that are ejected, or have not been tried since.
fn out(table: &Table, pool: &Pool) -> usize {
    let ready = pool.endpoints.iter().enumerate().filter(|(_, endpoint)| endpoint.state == State::Ready);
    let slots = ready.filter_map(|(hint, endpoint)| table.find(endpoint.key, hint));
    slots.filter(|slot| table.passive(*slot).ejections > 0).count()
}

#[cfg(test)]
mod tests;
