//! A waiter's side of the queue: coming for a slot, leaving, and finding out how it stands.

use super::queue::{self, Board};
use super::row::{Admitted, Charge, Row, count};
use super::table::Table;
use super::waiter::{Grant, Waiter};
use super::{Change, SharedValue, Then, Woken, transact};
use crate::admission::retry_after_s;
use crate::eligibility::survey;
use crate::prefix::holders::Holders;
use crate::route::{self, Pick, Refusal};
use crate::snapshot::{Pool, State};

/// What a waiter that asks for its slot gets.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "lives for the length of a call; a box would cost an allocation")]
pub enum Claim {
    /// It has one, and is counted there.
    Admitted(Admitted),
    /// It has none yet, or none any more: the endpoint went away in between. It keeps its place.
    Waiting,
    /// This VM has no such waiter.
    Unknown,
}

/// How a request waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    /// From its arrival in the queue to this moment (ms).
    pub total_ms: u64,
    /// Of these, from the moment when it was given its slot (ms): the way that a wake-up takes.
    pub handed_ms: u64,
    /// How often somebody behind it was preferred.
    pub passed: u8,
    /// The priority with which it waited.
    pub priority: u8,
}

/// A waiter that left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Whether it had been given a slot, which has gone to the next.
    pub had_slot: bool,
    /// When to come again (s).
    pub retry_after_s: u32,
}

/// One of this VM's waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// Its ticket.
    pub ticket: u64,
    /// How it stands.
    pub standing: Standing,
}

/// How a waiter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It waits.
    Waiting,
    /// It has a slot: [`Row::claim`].
    Granted,
    /// Its time is over: [`Row::leave`].
    Expired,
    /// Nothing to wait for is left, or the table has lost it and has no room for it any more: [`Row::leave`].
    Hopeless(Refusal),
    /// The table does not know it: [`Row::rewrite`].
    Lost,
}

impl Row {
    /// A waiter comes for its slot, which becomes a request of this VM in one step. A slot at an endpoint that has
    /// gone away is given back, and the waiter gets another if there is one.
    pub fn claim(
        &mut self,
        value: &mut impl SharedValue,
        pool: &Pool,
        ticket: u64,
        prefix: &mut impl Holders,
        now_ms: u64,
    ) -> Change<Claim> {
        let Some(nth) = self.waiting.iter().position(|waiter| waiter.ticket == ticket) else {
            return Change { result: Claim::Unknown, woken: Vec::new(), stored: Ok(()) };
        };
        let own = self.waiting.get(nth).copied();
        let id = self.id;
        let (result, stored) = transact(value, |table| {
            let slots = queue::slots(table, pool);
            let (Some(row), Some(own)) = (self.write(table), own) else {
                return ((Claim::Waiting, Vec::new()), Then::Leave);
            };
            if queue::find(table, row, ticket).is_none() {
                queue::put_back(table, row, &own);
            }
            let (mut woken, mut again) = (Vec::new(), true);
            loop {
                let Some((place, waiter)) = queue::find(table, row, ticket) else {
                    return ((Claim::Waiting, woken), Then::Store);
                };
                let mut board = Board::new(table, pool, slots.clone(), &self.elsewhere);
                let at = waiter.grant.and_then(|grant| Some((grant, board.place(grant.slot)?)));
                match at {
                    Some((grant, at)) if !again || is_good(&board, at, now_ms) => {
                        let admitted = take(table, &board, place, &waiter, grant, at, prefix, now_ms);
                        return ((Claim::Admitted(admitted), woken), Then::Store);
                    }
                    _ if !again => return ((Claim::Waiting, woken), Then::Store),
                    _ => {
                        again = false;
                        if waiter.grant.is_some() {
                            table.set_waiter(place, &Waiter { grant: None, ..waiter });
                            board = Board::new(table, pool, slots.clone(), &self.elsewhere);
                        }
                        woken = queue::dispatch(table, &mut board, now_ms);
                        woken.retain(|one| *one != Woken { row: id, ticket });
                    }
                }
            }
        });
        if let (Claim::Admitted(admitted), _) = &result {
            self.waiting.remove(nth);
            if let Some(endpoint) = pool.endpoints.get(admitted.pick.chosen()) {
                self.add(endpoint.key, admitted.charge.counts());
            }
            self.see_clocks(pool, &admitted.loads);
        }
        Change::new(result, stored)
    }

    /// A waiter goes: its client has left, its time is over, or it has nothing to wait for. A slot that it had been given
    /// goes to the next in the same step (case C23).
    pub fn leave(&mut self, value: &mut impl SharedValue, pool: &Pool, ticket: u64, now_ms: u64) -> Change<Left> {
        self.waiting.retain(|waiter| waiter.ticket != ticket);
        let (result, stored) = transact(value, |table| {
            let found = self.write(table).and_then(|row| queue::find(table, row, ticket));
            let had_slot = found.is_some_and(|(_, waiter)| waiter.grant.is_some());
            if let Some((place, _)) = found {
                table.remove_waiter(place);
            }
            let woken = self.hand_over(table, pool, now_ms);
            let (waiting, rate) = (queue::load(table, now_ms).0, queue::drain_rate(table, now_ms));
            let retry_after_s = retry_after_s(waiting, rate, pool.admission.max_wait_ms);
            let then = if found.is_some() || !woken.is_empty() { Then::Store } else { Then::Leave };
            ((Left { had_slot, retry_after_s }, woken), then)
        });
        Change::new(result, stored)
    }

    /// Gives waiters what is free, without a request: after a new snapshot, on a tick (an ejection is over, others have
    /// less in flight).
    pub fn dispatch(&mut self, value: &mut impl SharedValue, pool: &Pool, now_ms: u64) -> Change<()> {
        let (result, stored) = transact(value, |table| {
            let woken = self.hand_over(table, pool, now_ms);
            let then = if woken.is_empty() { Then::Leave } else { Then::Store };
            (((), woken), then)
        });
        Change::new(result, stored)
    }

    /// How this VM's waiters stand. Reads only.
    pub fn standing(&self, value: &mut impl SharedValue, pool: &Pool, now_ms: u64) -> Vec<Own> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let mut table = value.load().0.and_then(Table::decode).unwrap_or_default();
        let slots = queue::slots(&mut table, pool);
        let board = Board::new(&table, pool, slots, &self.elsewhere);
        let row = table.row(self.id);
        let standing = |waiter: &Waiter| {
            let found = row.and_then(|row| queue::find(&table, row, waiter.ticket));
            match found {
                Some((_, found)) if found.grant.is_some() => Standing::Granted,
                _ if waiter.is_expired(now_ms) => Standing::Expired,
                Some((_, found)) => board.hopeless(&found, now_ms).map_or(Standing::Waiting, Standing::Hopeless),
                None if table.has_room(self.id) => Standing::Lost,
                // Others have its place. It hears what a newcomer hears, instead of waiting where nobody sees it.
                None => Standing::Hopeless(Refusal::QueueFull),
            }
        };
        self.waiting.iter().map(|waiter| Own { ticket: waiter.ticket, standing: standing(waiter) }).collect()
    }
}

impl Board<'_> {
    /// Why a waiter need not wait any longer, if it need not.
    fn hopeless(&self, waiter: &Waiter, now_ms: u64) -> Option<Refusal> {
        let ask = waiter.ask();
        let pool = self.pool();
        // Mostly the first that one looks at will do once it has room.
        let could = |place: usize| {
            let Some(endpoint) = pool.endpoints.get(place) else { return false };
            let ejected = self.loads.get(place).is_some_and(|load| load.passive.is_ejected(now_ms));
            let holds = endpoint.context_window.is_none_or(|window| ask.window_tokens() <= u64::from(window));
            endpoint.state == State::Ready && holds && !ejected
        };
        if (0..pool.endpoints.len()).any(could) {
            return None;
        }
        let survey = survey(pool, &self.loads, &ask, |_| 0, now_ms);
        match route::refusal(pool, &survey, &ask) {
            _ if !survey.is_empty() => None,
            Refusal::AtCap | Refusal::QueueFull => None,
            refusal => Some(refusal),
        }
    }
}

/// Whether a slot that was given is still worth having.
fn is_good(board: &Board, at: usize, now_ms: u64) -> bool {
    let ejected = board.loads.get(at).is_some_and(|load| {
        // Whoever was given the trial after an ejection keeps it.
        load.passive.is_ejected(now_ms) && load.passive.failures > 0
    });
    !ejected && board.pool().endpoints.get(at).is_some_and(|endpoint| endpoint.state == State::Ready)
}

/// Turns a grant into a request.
#[expect(clippy::too_many_arguments, reason = "all of a grant's circumstances")]
fn take(
    table: &mut Table,
    board: &Board,
    place: usize,
    waiter: &Waiter,
    grant: Grant,
    at: usize,
    prefix: &mut impl Holders,
    now_ms: u64,
) -> Admitted {
    let charge = Charge { prompt_tokens: grant.prompt_tokens, output_tokens: waiter.charged_output() };
    let mut loads = board.loads.clone();
    if let Some(load) = loads.get_mut(at) {
        let counts = charge.counts();
        load.in_flight = load.in_flight.saturating_sub(1);
        load.pending_tokens = load.pending_tokens.saturating_sub(counts.pending_tokens);
        load.prefill_tokens = load.prefill_tokens.saturating_sub(counts.prefill_tokens);
        load.prefills = load.prefills.saturating_sub(counts.prefills);
    }
    let pick: Pick = route::granted(board.pool(), &loads, &waiter.ask(), prefix, now_ms, at);
    table.remove_waiter(place);
    count(table, board.pool(), waiter.row, grant.slot, charge, now_ms);
    let total_ms = now_ms.saturating_sub(waiter.enqueued_ms);
    let waited = Waited {
        total_ms,
        handed_ms: total_ms.saturating_sub(grant.after_ms.into()),
        passed: waiter.passed,
        priority: waiter.priority,
    };
    Admitted { pick, loads, charge, waited: Some(waited) }
}
