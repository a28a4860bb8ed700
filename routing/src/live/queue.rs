//! The queue of a pool: who waits, in which order, and who gets a slot that is free.
//!
//! **Order.** Inside a priority by fairness round, then by ticket (arrival). Between priorities by virtual arrival,
//! `enqueued + priority x ageing_ms`, so that waiting `ageing_ms` is worth one level and nobody starves; a head that came later
//! than somebody behind it counts as having come when that one did. (Ageing off: strictly by priority.)
//!
//! **Rounds** share the slots among fairness keys (start-time fair queueing; Goyal, Vin and Cheng, 1996): a request's
//! round is that of the head of its priority, or one more than the last round of its own key, whichever is higher.
//! Requests without a key share one; where no fairness is asked for, all take the round of the head.
//!
//! **Dispatch.** Waiters are served in order. One for whom several endpoints are free goes to the least loaded for its
//! weight, or stays with the holder of its prefix if that one is not fuller than the
//! [`allowance`] permits. When only one endpoint is free, it looks at the first [`LOOK`] waiters and
//! takes one whose prefix it holds, if their priority is the same; nobody is passed more than [`MAX_PASSES`] times. Whoever
//! cannot use what is free (window, prefill) holds up nobody, but the first whom a prefill budget stops
//! keeps the budget of the endpoint that computes the fewest tokens, so that short prompts do not starve long ones.
//!
//! A waiter that got a slot has a *grant*: it counts as in flight until its VM comes for it.
//!
//! Cost: nothing when nobody waits; otherwise `O(endpoints)` when nothing is free, and `O(waiters + endpoints)` for each
//! slot that is given, with a few bytes looked at per waiter.

use super::passive::trial;
use super::row::Charge;
use super::table::Table;
use super::waiter::{self, Grant, Waiter};
use super::{WORTH_TELLING_TOKENS, Woken};
use crate::affinity::allowance;
use crate::eligibility::{Exclusion, Load, Survey, survey};
use crate::snapshot::{Endpoint, EndpointKey, Fairness, Pool, State};

/// Waiters that a free endpoint looks at.
pub const LOOK: usize = 8;
/// How often a waiter may be passed.
pub const MAX_PASSES: u8 = 4;
/// Time constant of the drain rate (ms).
const DRAIN_MS: f64 = 10_000.0;

/// The slot of every endpoint of the pool, made where there is none; `None` where the table is full.
pub(super) fn slots(table: &mut Table, pool: &Pool) -> Vec<Option<usize>> {
    // Mostly they stand in the order of the pool; where some are missing, the rest still do.
    let mut hint = 0;
    let mut slot = |endpoint: &Endpoint| {
        let slot = table.find_or_add(endpoint.key, hint);
        hint = slot.map_or(hint, |slot| slot + 1);
        slot
    };
    pool.endpoints.iter().map(&mut slot).collect()
}

/// A table as a pool sees it.
#[derive(Debug)]
pub(super) struct Board<'a> {
    pool: &'a Pool,
    slots: Vec<Option<usize>>,
    /// One entry per endpoint, in the pool's order.
    pub(super) loads: Vec<Load>,
}

impl<'a> Board<'a> {
    pub(super) fn new(
        table: &Table,
        pool: &'a Pool,
        slots: Vec<Option<usize>>,
        elsewhere: &[(EndpointKey, u32)],
    ) -> Self {
        let totals = table.totals();
        let elsewhere_at = |place: usize, key: EndpointKey| {
            let known = elsewhere.get(place).filter(|(known, _)| *known == key);
            known.or_else(|| elsewhere.iter().find(|(known, _)| *known == key)).map_or(0, |(_, count)| *count)
        };
        let load = |(place, (endpoint, slot)): (usize, (&Endpoint, &Option<usize>))| {
            let elsewhere = elsewhere_at(place, endpoint.key);
            let Some(slot) = *slot else { return Load { elsewhere, ..Load::default() } };
            let total = totals.get(slot).copied().unwrap_or_default();
            Load {
                in_flight: total.in_flight,
                elsewhere,
                pending_tokens: total.pending_tokens,
                prefill_tokens: total.prefill_tokens,
                prefills: total.prefills,
                passive: table.passive(slot),
                clock: table.clock(slot),
                ..Load::default()
            }
        };
        let loads = pool.endpoints.iter().zip(&slots).enumerate().map(load).collect();
        Board { pool, slots, loads }
    }

    pub(super) fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// The slot of the endpoint at a place.
    pub(super) fn slot(&self, place: usize) -> Option<usize> {
        self.slots.get(place).copied().flatten()
    }

    /// The place of the endpoint with a slot.
    pub(super) fn place(&self, slot: usize) -> Option<usize> {
        self.slots.iter().position(|of| *of == Some(slot))
    }

    fn survey(&self, waiter: &Waiter, now_ms: u64) -> Survey {
        let held = |place: usize| self.pool.endpoints.get(place).map_or(0, |endpoint| waiter.tokens_at(endpoint));
        survey(self.pool, &self.loads, &waiter.ask(), held, now_ms)
    }

    fn ready(&self) -> impl Iterator<Item = (&Endpoint, &Load)> {
        let all = self.pool.endpoints.iter().zip(&self.loads);
        all.filter(|(endpoint, _)| endpoint.state == State::Ready)
    }

    /// Slots that are free where nobody is ejected or has pushed back a moment ago.
    pub(super) fn free(&self, now_ms: u64) -> u64 {
        let shut = |load: &Load| load.passive.is_ejected(now_ms) || load.passive.is_cooling(now_ms);
        let sound = self.ready().filter(|(_, load)| !shut(load));
        sound.map(|(endpoint, load)| u64::from(endpoint.cap.saturating_sub(load.total()))).sum()
    }

    /// What the open endpoints have room for; `None` when none is open. One that is ejected is open only while everybody
    /// might be taken to be: not while another, whose window is as large as any, is merely full or has pushed back.
    fn room(&self, now_ms: u64) -> Option<Room> {
        let window = |endpoint: &Endpoint| endpoint.context_window.map_or(u64::MAX, u64::from);
        let ejected = |load: &Load| load.passive.is_ejected(now_ms);
        let full = |endpoint: &Endpoint, load: &Load| load.total() >= endpoint.cap || load.passive.is_cooling(now_ms);
        let largest = self.ready().map(|(endpoint, _)| window(endpoint)).max()?;
        let ejections_count =
            self.ready().any(|(endpoint, load)| !ejected(load) && full(endpoint, load) && window(endpoint) == largest);
        let shut = |endpoint: &Endpoint, load: &Load| full(endpoint, load) || (ejections_count && ejected(load));
        let open = self.ready().filter(|(endpoint, load)| !shut(endpoint, load));
        open.fold(None, |room: Option<Room>, (endpoint, load)| {
            let room = room.unwrap_or(Room { window: 0, prefill: 0 });
            Some(Room {
                window: room.window.max(window(endpoint)),
                prefill: room.prefill.max(load.prefill_left(endpoint)),
            })
        })
    }
}

/// An upper bound of what can be taken: what does not fit in here fits nowhere.
#[derive(Debug, Clone, Copy)]
struct Room {
    window: u64,
    prefill: u64,
}

impl Room {
    /// Whether a look at each endpoint is worth it. While nobody is kept a budget, the first who needs one has to be found.
    fn may_fit(&self, waiter: &Waiter, kept: bool) -> bool {
        let window = u64::from(waiter.floor_tokens) + u64::from(waiter.requested_tokens) <= self.window;
        let cold = waiter.holders.iter().all(|held| held.holder == 0);
        let prefill = !kept
            || !cold
            || waiter.prompt_tokens < WORTH_TELLING_TOKENS
            || u64::from(waiter.prompt_tokens) <= self.prefill;
        window && prefill
    }
}

/// Gives waiters what is free, where anybody waits.
pub(super) fn hand_over(table: &mut Table, pool: &Pool, elsewhere: &[(EndpointKey, u32)], now_ms: u64) -> Vec<Woken> {
    if table.waiters() == 0 {
        return Vec::new();
    }
    let slots = slots(table, pool);
    let mut board = Board::new(table, pool, slots, elsewhere);
    dispatch(table, &mut board, now_ms)
}

/// Gives waiters what is free. The board follows it.
pub(super) fn dispatch(table: &mut Table, board: &mut Board, now_ms: u64) -> Vec<Woken> {
    let mut woken = Vec::new();
    if table.waiters() == 0 {
        return woken;
    }
    // Between priorities the order depends on who still waits, so there it is gone through until nothing is given.
    loop {
        let before = woken.len();
        pass(table, board, now_ms, &mut woken);
        if woken.len() == before || !ages(table, board.pool.admission.ageing_ms) {
            return woken;
        }
        board.loads.iter_mut().for_each(|load| load.prefill_kept = false);
    }
}

/// Goes through the waiters once.
fn pass(table: &mut Table, board: &mut Board, now_ms: u64, woken: &mut Vec<Woken>) {
    let Some(mut room) = board.room(now_ms) else { return };
    let mut kept = false;
    let order = order(table, board.pool.admission.ageing_ms, now_ms);
    for (nth, place) in order.iter().enumerate() {
        // Once for the waiter itself, and once for each that is preferred to it.
        while waiter::is_waiting(table.waiter_bytes(*place), now_ms)
            && let Some(waiter) = table.waiter(*place)
            && room.may_fit(&waiter, kept)
        {
            let survey = board.survey(&waiter, now_ms);
            let behind = order.get(nth + 1..).unwrap_or_default();
            let Some((winner, at)) = choose(table, board, *place, &waiter, &survey, behind, now_ms) else {
                if !kept && keep_budget(board, &survey) {
                    kept = true;
                    let Some(left) = board.room(now_ms) else { return };
                    room = left;
                }
                break;
            };
            let Some(granted) = grant(table, board, winner, at, now_ms) else { break };
            woken.push(granted);
            let Some(left) = board.room(now_ms) else { return };
            room = left;
        }
    }
}

/// Who gets a slot next, and where: the waiter itself, unless the one endpoint that is free for it prefers another.
fn choose(
    table: &mut Table,
    board: &Board,
    place: usize,
    waiter: &Waiter,
    survey: &Survey,
    behind: &[usize],
    now_ms: u64,
) -> Option<(usize, usize)> {
    let mut free = (0..survey.excluded.len()).filter(|at| survey.excluded.get(*at) == Some(&None));
    let (first, more) = (free.next()?, free.next().is_some());
    if more {
        return Some((place, among(board, survey, waiter)?));
    }
    Some((prefer(table, board, place, waiter, behind, first, now_ms), first))
}

/// The best of several free endpoints for a waiter.
fn among(board: &Board, survey: &Survey, waiter: &Waiter) -> Option<usize> {
    let free = || {
        let all = board.pool.endpoints.iter().zip(&board.loads).enumerate();
        all.filter(|(at, _)| survey.excluded.get(*at) == Some(&None)).map(|(at, (endpoint, load))| (at, endpoint, load))
    };
    let load_of = |endpoint: &Endpoint, load: &Load| board.pool.load(endpoint, load.total());
    let order = |a: &(usize, &Endpoint, &Load), b: &(usize, &Endpoint, &Load)| {
        let less = load_of(a.1, a.2).total_cmp(&load_of(b.1, b.2));
        less.then(b.1.weight.hundredths().cmp(&a.1.weight.hundredths()))
    };
    let (freest, endpoint, load) = free().min_by(order)?;
    let settings = &board.pool.affinity;
    let holder = free()
        .filter(|(_, endpoint, _)| settings.enabled && waiter.tokens_at(endpoint) > 0)
        .min_by(|a, b| waiter.tokens_at(b.1).cmp(&waiter.tokens_at(a.1)).then(order(a, b)));
    if let Some((at, holding, holding_load)) = holder {
        let missing = waiter.tokens_at(holding).saturating_sub(waiter.tokens_at(endpoint));
        let allowance = allowance(settings, missing, endpoint.prefill_tps, waiter.output_tokens.into());
        if load_of(holding, holding_load) <= load_of(endpoint, load) + allowance {
            return Some(at);
        }
    }
    Some(freest)
}

/// Which waiter gets the slot at the only endpoint free for the first: that one, or one of those behind it whose prefix
/// the endpoint holds. Counts who is passed.
fn prefer(
    table: &mut Table,
    board: &Board,
    place: usize,
    first: &Waiter,
    behind: &[usize],
    at: usize,
    now_ms: u64,
) -> usize {
    let Some(endpoint) = board.pool.endpoints.get(at).filter(|_| board.pool.affinity.enabled) else { return place };
    let holds = |waiter: &Waiter| waiter.tokens_at(endpoint) >= u64::from(WORTH_TELLING_TOKENS);
    if holds(first) {
        return place;
    }
    let mut looked = vec![(place, *first)];
    let waiting = behind.iter().filter(|place| waiter::is_waiting(table.waiter_bytes(**place), now_ms));
    for place in waiting.take(LOOK - 1) {
        match table.waiter(*place) {
            Some(waiter) if waiter.priority == first.priority => looked.push((*place, waiter)),
            _ => break,
        }
    }
    let may = |waiter: &Waiter| board.survey(waiter, now_ms).excluded.get(at) == Some(&None);
    let Some(winner) = looked.iter().position(|(_, waiter)| holds(waiter) && may(waiter)) else { return place };
    let passed: Vec<_> = looked.iter().take(winner).filter(|(_, waiter)| may(waiter)).collect();
    if passed.iter().any(|(_, waiter)| waiter.passed >= MAX_PASSES) {
        return place;
    }
    for (place, waiter) in passed {
        table.set_waiter(*place, &Waiter { passed: waiter.passed + 1, ..*waiter });
    }
    looked.get(winner).map_or(place, |(place, _)| *place)
}

/// Keeps the prefill budget of the endpoint that computes the fewest tokens, if a budget is what stops a waiter: that is
/// soon free, and of unequal ones mostly a slow one, so that the fast ones go on with short prompts.
fn keep_budget(board: &mut Board, survey: &Survey) -> bool {
    let stopped = board.loads.iter_mut().zip(&survey.excluded).filter(|(_, why)| **why == Some(Exclusion::Prefill));
    match stopped.min_by_key(|(load, _)| load.prefill_tokens) {
        Some((load, _)) => {
            load.prefill_kept = true;
            true
        }
        None => false,
    }
}

/// Gives a waiter a slot at an endpoint.
fn grant(table: &mut Table, board: &mut Board, place: usize, at: usize, now_ms: u64) -> Option<Woken> {
    let waiter = table.waiter(place)?;
    let (slot, endpoint) = (board.slot(at)?, board.pool.endpoints.get(at)?);
    let charge = Charge::of(&waiter.ask(), waiter.tokens_at(endpoint));
    let after_ms = u32::try_from(now_ms.saturating_sub(waiter.enqueued_ms)).unwrap_or(u32::MAX);
    let grant = Grant { slot, after_ms, prompt_tokens: charge.prompt_tokens };
    table.set_waiter(place, &Waiter { grant: Some(grant), ..waiter });
    table.set_passive(slot, trial(table.passive(slot), &board.pool.passive_health, now_ms));
    table.take_turn();
    if let Some(load) = board.loads.get_mut(at) {
        let counts = charge.counts();
        load.in_flight = load.in_flight.saturating_add(1);
        load.pending_tokens = load.pending_tokens.saturating_add(counts.pending_tokens);
        load.prefill_tokens = load.prefill_tokens.saturating_add(counts.prefill_tokens);
        load.prefills = load.prefills.saturating_add(counts.prefills);
        load.passive = table.passive(slot);
    }
    Some(Woken { row: table.row_id(waiter.row), ticket: waiter.ticket })
}

/// Whether waiters of several priorities have to be compared by age.
fn ages(table: &Table, ageing_ms: u32) -> bool {
    let priority = |place: usize| waiter::priority_of(table.waiter_bytes(place));
    ageing_ms > 0 && table.waiters() > 1 && priority(0) != priority(table.waiters() - 1)
}

/// The places of all waiters in the order in which they are served.
pub(super) fn order(table: &Table, ageing_ms: u32, now_ms: u64) -> Vec<usize> {
    let count = table.waiters();
    if !ages(table, ageing_ms) {
        return (0..count).collect();
    }
    let priority = |place: usize| waiter::priority_of(table.waiter_bytes(place));
    // Inside a priority the places are in order. A head counts as old as the oldest behind it.
    let mut arrival = vec![0; count];
    for place in (0..count).rev() {
        let bytes = table.waiter_bytes(place);
        let own = match waiter::is_waiting(bytes, now_ms) {
            true => waiter::enqueued_of(bytes).saturating_add(u64::from(priority(place)) * u64::from(ageing_ms)),
            // Whoever waits no more makes nobody older.
            false => u64::MAX,
        };
        let behind = arrival.get(place + 1).copied().filter(|_| priority(place + 1) == priority(place));
        if let Some(arrival) = arrival.get_mut(place) {
            *arrival = own.min(behind.unwrap_or(u64::MAX));
        }
    }
    // Stable, and never falling inside a priority: what results is the merge of the priorities.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|place| arrival.get(*place).copied().unwrap_or_default());
    order
}

/// Puts a request into the queue with its ticket and its round. Returns it and how many are served before it; `None` when
/// the queue is full.
pub(super) fn enqueue(
    table: &mut Table,
    pool: &Pool,
    waiter: Waiter,
    last_ticket: u64,
    now_ms: u64,
) -> Option<(Waiter, usize)> {
    let (requests, bytes) = load(table, now_ms);
    let limits = &pool.admission;
    let too_many = requests >= limits.queue as usize;
    let too_large = requests > 0 && bytes.saturating_add(waiter.body_bytes.into()) > limits.queue_bytes;
    if too_many || too_large {
        return None;
    }
    let ticket = table.next_ticket().max(last_ticket.saturating_add(1));
    let waiter = Waiter { ticket, round: round(table, pool, &waiter), ..waiter };
    let place = table.insert_waiter(&waiter)?;
    table.set_next_ticket(ticket.saturating_add(1));
    let before = order(table, limits.ageing_ms, now_ms).into_iter().take_while(|other| *other != place);
    let position = before.filter(|other| waiter::is_waiting(table.waiter_bytes(*other), now_ms)).count();
    Some((waiter, position))
}

/// The turn that a new waiter gets among those of its priority.
fn round(table: &Table, pool: &Pool, new: &Waiter) -> u32 {
    let mut same = (0..table.waiters()).filter(|place| waiter::priority_of(table.waiter_bytes(*place)) == new.priority);
    let Some(head) = same.next() else { return 0 };
    let (_, head_round, _) = waiter::rank_of(table.waiter_bytes(head));
    if pool.fairness == Fairness::None {
        return head_round;
    }
    let own = std::iter::once(head).chain(same).map(|place| table.waiter_bytes(place));
    let last = own.filter(|bytes| waiter::key_of(bytes) == new.key).map(|bytes| waiter::rank_of(bytes).1).max();
    last.map_or(head_round, |last| last.saturating_add(1).max(head_round))
}

/// How many wait, and the bytes of their bodies.
pub(super) fn load(table: &Table, now_ms: u64) -> (usize, u64) {
    let waiting = (0..table.waiters()).map(|place| table.waiter_bytes(place));
    waiting
        .filter(|bytes| waiter::is_waiting(bytes, now_ms))
        .fold((0, 0), |(requests, bytes), waiter| (requests + 1, bytes + u64::from(waiter::body_of(waiter))))
}

/// The waiter of a row with a ticket, and its place.
pub(super) fn find(table: &Table, row: usize, ticket: u64) -> Option<(usize, Waiter)> {
    let own = |bytes: &[u8]| waiter::ticket_of(bytes) == ticket && waiter::row_of(bytes) == row;
    let place = (0..table.waiters()).find(|place| own(table.waiter_bytes(*place)))?;
    Some((place, table.waiter(place)?))
}

/// The places and tickets of a row's waiters.
pub(super) fn of_row(table: &Table, row: usize) -> Vec<(usize, u64)> {
    let all = (0..table.waiters()).map(|place| (place, table.waiter_bytes(place)));
    all.filter(|(_, bytes)| waiter::row_of(bytes) == row)
        .map(|(place, bytes)| (place, waiter::ticket_of(bytes)))
        .collect()
}

/// Makes a row's waiters those that its VM knows: what it does not know goes, what is missing comes back to its place.
pub(super) fn reconcile(table: &mut Table, row: usize, known: &[Waiter]) {
    for (place, ticket) in of_row(table, row).into_iter().rev() {
        if !known.iter().any(|waiter| waiter.ticket == ticket) {
            table.remove_waiter(place);
        }
    }
    for waiter in known {
        if find(table, row, waiter.ticket).is_none() {
            put_back(table, row, waiter);
        }
    }
}

/// Puts a waiter that the table has lost back into its place. Where others have filled the table meanwhile it stays lost, and
/// [`Row::standing`](super::Row::standing) tells its VM.
pub(super) fn put_back(table: &mut Table, row: usize, waiter: &Waiter) {
    table.insert_waiter(&Waiter { row, grant: None, ..*waiter });
    table.set_next_ticket(table.next_ticket().max(waiter.ticket.saturating_add(1)));
}

/// Counts a release for the drain rate: a sum of `e^(-age / 10 s) / 10 s` over all releases, which is their rate over about
/// the last ten seconds.
pub(super) fn count_release(table: &mut Table, now_ms: u64) {
    let rate = drain_rate(table, now_ms) + 1_000.0 / DRAIN_MS;
    table.set_drained(rate as f32, now_ms);
}

/// Releases per second.
#[must_use]
pub fn drain_rate(table: &Table, now_ms: u64) -> f64 {
    let (rate, at_ms) = table.drained();
    let rate = if rate.is_finite() && rate > 0.0 { f64::from(rate) } else { 0.0 };
    match now_ms.saturating_sub(at_ms) {
        0 => rate,
        age_ms => rate * (-(age_ms as f64) / DRAIN_MS).exp(),
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads;
