//! One VM's side of the live table of one pool: its true counts, and the changes it makes.
//!
//! The counts here are the truth; the row in shared memory is a copy that is written whole at every change. A request
//! is counted by [`Row::admit`], follows a retry by [`Row::shift`] and is given back by [`Row::release`], which also
//! tells the table how it went. What it still has to compute and to generate is counted as pending tokens: the part of
//! the prompt that is not cached until the first token ([`Row::first_token`]), the expected answer until the end. Counts floor at zero (case C9).

use super::table::{Counts, Passive, Table};
use super::{SharedValue, StoreError, Then, transact};
use crate::eligibility::{Ask, Load, Survey, View};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::route::{self, Pick, Refusal, decide};
use crate::signals::Signals;
use crate::snapshot::{Endpoint, EndpointKey, Pool};

/// Failures in a row after which an endpoint is ejected.
pub const EJECT_AFTER: u16 = 5;
/// Length of the first ejection; each further one without a success between doubles it.
pub const EJECT_BASE_MS: u64 = 5_000;
/// The longest ejection.
pub const EJECT_MAX_MS: u64 = 60_000;

/// How a request ended, as far as the endpoint is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The endpoint answered.
    Success,
    /// Connect failure, reset, timeout, 5xx.
    Failure,
    /// Says nothing about the endpoint: the client left, or the engine pushed back (429).
    Neutral,
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
    /// `false` when the shared value could not be written; the row heals at the next change.
    pub shared: bool,
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
    fn total(self) -> i64 {
        i64::from(self.prompt_tokens) + i64::from(self.output_tokens)
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
}

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// Whether its endpoint was picked although it had been ejected: as a trial, or because all were. What such a
    /// request meets is news; what one meets that was already running when its endpoint was ejected is not.
    pub trial: bool,
    /// Tokens that it has put into the endpoint's KV cache: moves the endpoint's token clock on.
    pub added_tokens: u64,
}

/// Whether a report ejected the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ejected {
    /// It did, just now.
    Now,
    /// It did not.
    No,
}

/// What a look at the shared value found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The row is there, or nothing is in flight.
    Fine,
    /// The row is gone, and what it counted with it.
    Missing,
}

/// The counts of one VM in one pool.
#[derive(Debug, Clone)]
pub struct Row {
    id: u64,
    counts: Vec<(EndpointKey, Counts)>,
    /// The endpoints' token clocks as the last [`Row::admit`] saw them.
    clocks: Vec<(EndpointKey, u64)>,
}

impl Row {
    /// The row of a VM; `id` must differ between VMs (64 random bits do).
    #[must_use]
    pub fn new(id: u64) -> Self {
        Row { id, counts: Vec::new(), clocks: Vec::new() }
    }

    /// Requests this VM has in flight at an endpoint.
    #[must_use]
    pub fn in_flight(&self, key: EndpointKey) -> u32 {
        self.counts.iter().find(|(known, _)| *known == key).map_or(0, |(_, counts)| counts.in_flight)
    }

    /// Whether this VM has nothing in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.counts.iter().all(|(_, counts)| *counts == Counts::default())
    }

    /// An endpoint's token clock as it was when the last request came in, or at the last tick: soon enough to tell the
    /// age of what it holds. `place` is its place in the pool.
    #[must_use]
    pub fn clock(&self, key: EndpointKey, place: usize) -> u64 {
        let known = self.clocks.get(place).filter(|(known, _)| *known == key);
        known.or_else(|| self.clocks.iter().find(|(known, _)| *known == key)).map_or(0, |(_, clock)| *clock)
    }

    /// Picks an endpoint and counts the request there, in one step for all VMs.
    ///
    /// # Errors
    /// [`Refused`] when no endpoint may take the request; nothing is counted then.
    pub fn admit(
        &mut self,
        value: &mut impl SharedValue,
        question: &Question<'_>,
        prefix: &mut impl Holders,
        rng: &mut SplitMix64,
    ) -> Result<Admitted, Refused> {
        let Question { pool, ask, signals, now_ms } = *question;
        let (decided, stored) = transact(value, |table| {
            let row = self.write(table, pool.endpoints.iter().map(|endpoint| endpoint.key));
            let slots: Vec<Option<usize>> =
                pool.endpoints.iter().enumerate().map(|(hint, endpoint)| table.find(endpoint.key, hint)).collect();
            let loads: Vec<Load> = slots
                .iter()
                .enumerate()
                .map(|(place, slot)| {
                    let elsewhere = signals.get(place).map_or(0, |signals| signals.elsewhere);
                    slot.map_or(Load { elsewhere, ..Load::default() }, |slot| {
                        let Counts { in_flight, pending_tokens } = table.total(slot);
                        let (passive, clock) = (table.passive(slot), table.clock(slot));
                        Load { in_flight, elsewhere, pending_tokens, passive, clock }
                    })
                })
                .collect();
            let view = View { loads: &loads, signals, turn: table.turn(), now_ms };
            match decide(pool, view, ask, prefix, rng) {
                Ok(pick) => {
                    table.take_turn();
                    let charge = charge(ask, prefix, pick.chosen());
                    if let (Some(row), Some(Some(slot))) = (row, slots.get(pick.chosen())) {
                        let mut counts = table.cell(row, *slot);
                        counts.in_flight = counts.in_flight.saturating_add(1);
                        counts.pending_tokens = counts.pending_tokens.saturating_add_signed(clamped(charge.total()));
                        table.set_cell(row, *slot, counts);
                        table.set_passive(*slot, trial(table.passive(*slot), now_ms));
                    }
                    (Ok((pick, loads, charge)), Then::Store)
                }
                Err(route::Refused { refusal, survey }) => (Err(Refused { refusal, survey, loads }), Then::Leave),
            }
        });
        let (pick, loads, charge) = decided?;
        if let Some(endpoint) = pool.endpoints.get(pick.chosen()) {
            self.change(endpoint.key, 1, charge.total());
        }
        self.clocks.clear();
        self.clocks.extend(pool.endpoints.iter().zip(&loads).map(|(endpoint, load)| (endpoint.key, load.clock)));
        Ok(Admitted { pick, loads, charge, shared: stored.is_ok() })
    }

    /// The request went to another endpoint than the one it was counted at: the count follows, and the first one gets
    /// its report.
    pub fn shift(
        &mut self,
        value: &mut impl SharedValue,
        from: &Endpoint,
        to: &Endpoint,
        charge: Charge,
        report: Report,
        now_ms: u64,
    ) -> (Ejected, Result<(), StoreError>) {
        self.change(from.key, -1, -charge.total());
        self.change(to.key, 1, charge.total());
        self.publish(value, Some((from, report)), now_ms)
    }

    /// The first token is there: the prompt is computed, and `charge` counts no more of it.
    ///
    /// # Errors
    /// When the shared value does not know of it; it heals at the next change.
    pub fn first_token(
        &mut self,
        value: &mut impl SharedValue,
        endpoint: &Endpoint,
        charge: &mut Charge,
    ) -> Result<(), StoreError> {
        let prompt_tokens = std::mem::take(&mut charge.prompt_tokens);
        self.change(endpoint.key, 0, -i64::from(prompt_tokens));
        self.publish(value, None, 0).1
    }

    /// Says how a request goes before it ends, such as when a trial's response has begun.
    pub fn report(
        &mut self,
        value: &mut impl SharedValue,
        endpoint: &Endpoint,
        report: Report,
        now_ms: u64,
    ) -> (Ejected, Result<(), StoreError>) {
        self.publish(value, Some((endpoint, report)), now_ms)
    }

    /// Gives a request back and reports how it went.
    pub fn release(
        &mut self,
        value: &mut impl SharedValue,
        endpoint: &Endpoint,
        charge: Charge,
        report: Report,
        now_ms: u64,
    ) -> (Ejected, Result<(), StoreError>) {
        self.change(endpoint.key, -1, -charge.total());
        self.publish(value, Some((endpoint, report)), now_ms)
    }

    /// Looks at the shared value without a request: brings the token clocks up to date, and tells whether something is in
    /// flight here of which the value knows nothing, because the row was dropped.
    pub fn look(&mut self, value: &mut impl SharedValue) -> Look {
        let busy = self.counts.iter().any(|(_, counts)| *counts != Counts::default());
        let table = value.load().0.and_then(Table::decode);
        if let Some(table) = &table {
            for (hint, (key, clock)) in self.clocks.iter_mut().enumerate() {
                *clock = table.find(*key, hint).map_or(*clock, |slot| table.clock(slot));
            }
        }
        if busy && table.is_none_or(|table| table.row(self.id).is_none()) { Look::Missing } else { Look::Fine }
    }

    /// Writes the row as it is: after it was dropped.
    pub fn rewrite(&mut self, value: &mut impl SharedValue) -> Result<(), StoreError> {
        self.publish(value, None, 0).1
    }

    /// Forgets endpoints at which nothing is in flight and that `keep` does not name.
    pub fn forget_idle(&mut self, mut keep: impl FnMut(EndpointKey) -> bool) {
        self.counts.retain(|(key, counts)| *counts != Counts::default() || keep(*key));
    }

    fn publish(
        &mut self,
        value: &mut impl SharedValue,
        report: Option<(&Endpoint, Report)>,
        now_ms: u64,
    ) -> (Ejected, Result<(), StoreError>) {
        transact(value, |table| {
            self.write(table, std::iter::empty());
            let ejected = match report {
                Some((endpoint, report)) => match table.find(endpoint.key, self.hint(endpoint.key)) {
                    Some(slot) => {
                        let (passive, ejected) = after(table.passive(slot), report, now_ms);
                        table.set_passive(slot, passive);
                        // What an ejected endpoint held counts as pushed out: it may well have restarted.
                        let forgotten = if ejected == Ejected::Now { endpoint.kv_tokens.saturating_mul(2) } else { 0 };
                        table.advance_clock(slot, report.added_tokens.saturating_add(forgotten));
                        ejected
                    }
                    None => Ejected::No,
                },
                None => Ejected::No,
            };
            (ejected, Then::Store)
        })
    }

    /// Writes every count of this VM into its row, after making sure that each endpoint of `first` has a slot, so that
    /// slots stand in the order of the snapshot. Returns the row; `None` when the table has no room for one.
    fn write(&self, table: &mut Table, first: impl Iterator<Item = EndpointKey>) -> Option<usize> {
        for (hint, key) in first.enumerate() {
            table.find_or_add(key, hint);
        }
        for (hint, (key, counts)) in self.counts.iter().enumerate() {
            if *counts != Counts::default() {
                table.find_or_add(*key, hint);
            }
        }
        let row = table.row_or_add(self.id)?;
        for (hint, (key, counts)) in self.counts.iter().enumerate() {
            if let Some(slot) = table.find(*key, hint) {
                table.set_cell(row, slot, *counts);
            }
        }
        Some(row)
    }

    fn hint(&self, key: EndpointKey) -> usize {
        self.counts.iter().position(|(known, _)| *known == key).unwrap_or_default()
    }

    fn change(&mut self, key: EndpointKey, by: i32, tokens: i64) {
        let place = match self.counts.iter().position(|(known, _)| *known == key) {
            Some(place) => place,
            None => {
                self.counts.push((key, Counts::default()));
                self.counts.len() - 1
            }
        };
        if let Some((_, counts)) = self.counts.get_mut(place) {
            counts.in_flight = counts.in_flight.saturating_add_signed(by);
            counts.pending_tokens = counts.pending_tokens.saturating_add_signed(clamped(tokens));
            // Estimates are given back as they were taken; where nothing is in flight, nothing is pending.
            if counts.in_flight == 0 {
                counts.pending_tokens = 0;
            }
        }
    }
}

fn clamped(tokens: i64) -> i32 {
    tokens.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

/// What a request will count as pending at an endpoint.
fn charge(ask: &Ask, prefix: &mut impl Holders, place: usize) -> Charge {
    const MOST: u64 = 1 << 24;
    Charge {
        prompt_tokens: ask.prompt_tokens.saturating_sub(prefix.tokens_at(place)).min(MOST) as u32,
        output_tokens: ask.output_tokens.min(MOST) as u32,
    }
}

/// Passive health when an endpoint is picked. After an ejection one request tries it; until its response has begun, the
/// others stay away for another [`EJECT_BASE_MS`], and then the next one tries. No failures marks a trial under way.
fn trial(passive: Passive, now_ms: u64) -> Passive {
    if passive.ejections == 0 || now_ms < passive.ejected_until_ms {
        return passive;
    }
    Passive { ejected_until_ms: now_ms.saturating_add(EJECT_BASE_MS), failures: 0, ..passive }
}

/// Passive health after a request. Five failures in a row eject; when the ejection is over, a trial that fails ejects
/// again for twice as long, and one that succeeds clears everything. (Requests that come only because all are ejected
/// eject nobody for longer: else an outage of the whole pool would outlast its cause.)
fn after(mut passive: Passive, report: Report, now_ms: u64) -> (Passive, Ejected) {
    let ejected = now_ms < passive.ejected_until_ms;
    match report.outcome {
        Outcome::Neutral => (passive, Ejected::No),
        // A success of a request that was already running when its endpoint was ejected is no reason to trust it.
        Outcome::Success if ejected && !report.trial => (passive, Ejected::No),
        Outcome::Success => (Passive::default(), Ejected::No),
        Outcome::Failure => {
            let again = passive.ejections > 0 && passive.failures == 0 && report.trial;
            passive.failures = passive.failures.saturating_add(1);
            if !again && (ejected || passive.failures < EJECT_AFTER) {
                return (passive, Ejected::No);
            }
            let length = EJECT_BASE_MS.saturating_mul(1 << passive.ejections.min(16)).min(EJECT_MAX_MS);
            passive.ejected_until_ms = now_ms.saturating_add(length);
            passive.ejections = passive.ejections.saturating_add(1);
            (passive, Ejected::Now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Memory;
    use super::*;
    use crate::prefix::holders::Nobody;
    use crate::snapshot::Snapshot;
    use proptest::prelude::*;
    use serde_json::json;

    fn pool(weights: &[f64], cap: u32, choices: &str) -> Pool {
        let endpoints: Vec<_> = weights
            .iter()
            .enumerate()
            .map(|(nth, weight)| {
                json!({"id": format!("e{nth}"), "address": format!("10.0.0.{nth}:80"), "weight": weight, "cap": cap})
            })
            .collect();
        let policy = json!({"name": "p2c", "choices": choices.parse::<u32>().map_or(json!(choices), |n| json!(n))});
        let pool = json!({"name": "p", "models": ["m"], "policy": policy, "endpoints": endpoints});
        let snapshot = json!({"format": 1, "version": 1, "pools": [pool]}).to_string();
        Snapshot::from_json(snapshot.as_bytes()).unwrap().pools.remove(0)
    }

    fn totals(memory: &Memory, pool: &Pool) -> Vec<u32> {
        let bytes = memory.0.lock().unwrap().0.clone();
        let table = bytes.and_then(Table::decode).unwrap_or_default();
        let slot = |key| table.find(key, 0).map_or(0, |slot| table.total(slot).in_flight);
        pool.endpoints.iter().map(|endpoint| slot(endpoint.key)).collect()
    }

    const SUCCESS: Report = Report { outcome: Outcome::Success, trial: false, added_tokens: 0 };
    const FAILURE: Report = Report { outcome: Outcome::Failure, ..SUCCESS };
    const FREE: Charge = Charge { prompt_tokens: 0, output_tokens: 0 };

    fn admit(row: &mut Row, memory: &mut Memory, pool: &Pool, rng: &mut SplitMix64) -> Result<Admitted, Refused> {
        row.admit(memory, &Question { pool, ask: &Ask::default(), signals: &[], now_ms: 0 }, &mut Nobody, rng)
    }

    // Row 7 of the mission: four idle endpoints, four requests at once on four threads, one each, every time.
    #[test]
    fn simultaneous_requests_never_meet() {
        for round in 0..200 {
            let (memory, pool) = (Memory::default(), pool(&[1.0, 1.0, 1.0, 1.0], 8, "all"));
            let barrier = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for id in 0..4 {
                    let (mut memory, pool, barrier) = (memory.clone(), &pool, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        admit(&mut Row::new(id), &mut memory, pool, &mut SplitMix64::seeded(id + round)).unwrap();
                    });
                }
            });
            assert_eq!(totals(&memory, &pool), [1, 1, 1, 1], "round {round}");
        }
    }

    #[test]
    fn threads_that_admit_and_release_end_at_zero_and_never_pass_a_cap() {
        let (memory, pool) = (Memory::default(), pool(&[2.0, 1.0, 0.5], 3, "2"));
        std::thread::scope(|scope| {
            for id in 0..4 {
                let (mut memory, pool) = (memory.clone(), &pool);
                scope.spawn(move || {
                    let (mut row, mut rng, mut held) = (Row::new(id), SplitMix64::seeded(id), Vec::new());
                    for _ in 0..2_000 {
                        if rng.below(2) == 0 || held.is_empty() {
                            if let Ok(admitted) = admit(&mut row, &mut memory, pool, &mut rng) {
                                assert!(admitted.shared);
                                held.push(&pool.endpoints[admitted.pick.chosen()]);
                            }
                        } else {
                            let endpoint = held.swap_remove(rng.below(held.len() as u64) as usize);
                            row.release(&mut memory, endpoint, FREE, SUCCESS, 0).1.unwrap();
                        }
                        assert!(totals(&memory, pool).iter().all(|total| *total <= 3));
                    }
                    for endpoint in held {
                        row.release(&mut memory, endpoint, FREE, SUCCESS, 0).1.unwrap();
                    }
                });
            }
        });
        assert_eq!(totals(&memory, &pool), [0, 0, 0]);
    }

    #[test]
    fn a_row_taken_for_dead_heals() {
        let (mut memory, pool) = (Memory::default(), pool(&[1.0], 8, "2"));
        let (mut row, mut rng) = (Row::new(1), SplitMix64::seeded(1));
        admit(&mut row, &mut memory, &pool, &mut rng).unwrap();
        transact(&mut memory, |table| (table.drop_rows(|_| true), Then::Store)).1.unwrap();
        assert_eq!(totals(&memory, &pool), [0]);
        row.rewrite(&mut memory).unwrap();
        assert_eq!(totals(&memory, &pool), [1]);
        // A value of another format, or none at all, counts as empty and heals just so.
        *memory.0.lock().unwrap() = (Some(b"something else".to_vec()), 9);
        admit(&mut row, &mut memory, &pool, &mut rng).unwrap();
        assert_eq!(totals(&memory, &pool), [2]);
    }

    #[test]
    fn a_retry_takes_its_count_along() {
        let (mut memory, pool) = (Memory::default(), pool(&[2.0, 1.0], 8, "2"));
        let mut row = Row::new(1);
        admit(&mut row, &mut memory, &pool, &mut SplitMix64::seeded(1)).unwrap();
        let (a, b) = (&pool.endpoints[0], &pool.endpoints[1]);
        row.shift(&mut memory, a, b, FREE, FAILURE, 0).1.unwrap();
        assert_eq!(totals(&memory, &pool), [0, 1]);
        row.release(&mut memory, b, FREE, SUCCESS, 0).1.unwrap();
        assert_eq!(totals(&memory, &pool), [0, 0]);
    }

    // Case C9: a release too many floors at zero.
    #[test]
    fn c9_a_release_too_many_floors_at_zero() {
        let (mut memory, pool) = (Memory::default(), pool(&[1.0], 8, "2"));
        let mut row = Row::new(1);
        for _ in 0..3 {
            row.release(&mut memory, &pool.endpoints[0], FREE, SUCCESS, 0).1.unwrap();
        }
        assert_eq!(row.in_flight(pool.endpoints[0].key), 0);
        admit(&mut row, &mut memory, &pool, &mut SplitMix64::seeded(1)).unwrap();
        assert_eq!(totals(&memory, &pool), [1]);
    }

    #[test]
    fn pending_tokens_follow_a_request_and_end_at_zero() {
        let (mut memory, pool) = (Memory::default(), pool(&[2.0, 1.0], 8, "2"));
        let pending = |memory: &Memory| {
            let table = memory.0.lock().unwrap().0.clone().and_then(Table::decode).unwrap();
            let total =
                |endpoint: &Endpoint| table.find(endpoint.key, 0).map_or(0, |slot| table.total(slot).pending_tokens);
            pool.endpoints.iter().map(total).collect::<Vec<_>>()
        };
        let ask = Ask { prompt_tokens: 1_000, output_tokens: 50, ..Ask::default() };
        let (mut row, mut rng) = (Row::new(1), SplitMix64::seeded(1));
        let question = Question { pool: &pool, ask: &ask, signals: &[], now_ms: 0 };
        let mut admitted = row.admit(&mut memory, &question, &mut Nobody, &mut rng).unwrap();
        let (a, b) = (&pool.endpoints[0], &pool.endpoints[1]);
        assert_eq!((admitted.pick.chosen(), pending(&memory)), (0, vec![1_050, 0]));
        row.shift(&mut memory, a, b, admitted.charge, FAILURE, 0).1.unwrap();
        assert_eq!(pending(&memory), [0, 1_050]);
        row.first_token(&mut memory, b, &mut admitted.charge).unwrap();
        assert_eq!(pending(&memory), [0, 50]);
        row.release(&mut memory, b, admitted.charge, Report { added_tokens: 1_040, ..SUCCESS }, 0).1.unwrap();
        assert_eq!(pending(&memory), [0, 0]);
        admit(&mut row, &mut memory, &pool, &mut rng).unwrap();
        assert_eq!((row.clock(b.key, 1), row.clock(b.key, 7), row.clock(a.key, 0)), (1_040, 1_040, 0));
        // Without a request of its own, a VM hears of the others' on the tick.
        let mut other = Row::new(2);
        admit(&mut other, &mut memory, &pool, &mut rng).unwrap();
        other.release(&mut memory, a, FREE, Report { added_tokens: 7, ..SUCCESS }, 0).1.unwrap();
        row.look(&mut memory);
        assert_eq!(row.clock(a.key, 0), 7);
    }

    #[test]
    fn an_ejection_pushes_everything_out_of_the_cache() {
        let (mut memory, pool) = (Memory::default(), pool(&[1.0], 8, "2"));
        let (mut row, mut rng) = (Row::new(1), SplitMix64::seeded(1));
        for _ in 0..EJECT_AFTER {
            admit(&mut row, &mut memory, &pool, &mut rng).unwrap();
            row.release(&mut memory, &pool.endpoints[0], FREE, FAILURE, 0).1.unwrap();
        }
        admit(&mut row, &mut memory, &pool, &mut rng).unwrap();
        assert!(row.clock(pool.endpoints[0].key, 0) > pool.endpoints[0].kv_tokens);
    }

    // Case C10: an endpoint that fails everything is out after five, for longer each time, and back after a success.
    #[test]
    fn c10_five_failures_eject_and_one_trial_forgives() {
        let mut passive = Passive::default();
        for nth in 1..=EJECT_AFTER {
            let (next, ejected) = after(passive, FAILURE, 1_000);
            assert_eq!(ejected == Ejected::Now, nth == EJECT_AFTER);
            passive = next;
        }
        assert_eq!(passive.ejected_until_ms, 1_000 + EJECT_BASE_MS);
        // Stragglers change nothing.
        assert_eq!(after(passive, SUCCESS, 2_000), (passive, Ejected::No));
        assert_eq!(after(passive, FAILURE, 2_000).1, Ejected::No);
        // One trial; the next request has to wait for it, but not for ever.
        let tried = trial(passive, 6_000);
        assert_eq!((tried.ejected_until_ms, trial(tried, 6_001)), (6_000 + EJECT_BASE_MS, tried));
        let failed = Report { trial: true, ..FAILURE };
        let (again, ejected) = after(tried, failed, 7_000);
        assert_eq!((again.ejected_until_ms, ejected), (7_000 + 2 * EJECT_BASE_MS, Ejected::Now));
        assert_eq!(after(again, Report { trial: true, ..SUCCESS }, 8_000).0, Passive::default());
        assert_eq!(after(again, Report { outcome: Outcome::Neutral, trial: true, added_tokens: 0 }, 8_000).0, again);
    }

    #[test]
    fn a_row_knows_that_it_is_missing() {
        let (mut memory, pool) = (Memory::default(), pool(&[1.0], 8, "2"));
        let mut row = Row::new(1);
        assert_eq!(row.look(&mut memory), Look::Fine);
        admit(&mut row, &mut memory, &pool, &mut SplitMix64::seeded(1)).unwrap();
        assert_eq!(row.look(&mut memory), Look::Fine);
        transact(&mut memory, |table| (table.drop_rows(|_| true), Then::Store)).1.unwrap();
        assert_eq!(row.look(&mut memory), Look::Missing);
    }

    proptest! {
        #[test]
        fn ejections_are_bounded(times in proptest::collection::vec(0u64..100_000, 1..100)) {
            let (mut passive, mut now) = (Passive::default(), 0);
            for step in times {
                now += step;
                passive = after(trial(passive, now), Report { trial: step % 2 == 0, ..FAILURE }, now).0;
                prop_assert!(passive.ejected_until_ms <= now + EJECT_MAX_MS);
            }
        }
    }
}
