//! Tests of the queue, one thread.

use super::super::passive::{Outcome, Report, Settings};

use super::super::table::{MAX_ROWS, MAX_WAITERS};
use super::super::testing::{Memory, pool, pool_with};
use super::super::{Change, Charge, Claim, Look, Question, Row, Standing, Then, Verdict, transact};
use super::*;
use crate::eligibility::{Ask, Patience};
use crate::prefix::holders::testing::Fixed;
use crate::prefix::holders::{Holders, Nobody};
use crate::rng::SplitMix64;
use crate::route::{Reason, Refusal};
use serde_json::json;

/// Of a first ejection, as settings are when nobody sets them.
const EJECTION_MS: u64 = 5_000;
const SUCCESS: Report = Report { outcome: Outcome::Success, trial: false, added_tokens: 0 };
const FREE: Charge = Charge { prompt_tokens: 0, output_tokens: 0 };

/// One VM at work on a table.
struct Vm {
    row: Row,
    memory: Memory,
    rng: SplitMix64,
}

impl Vm {
    fn new(id: u64, memory: &Memory) -> Self {
        Vm { row: Row::new(id), memory: memory.clone(), rng: SplitMix64::seeded(id) }
    }

    fn ask(&mut self, pool: &Pool, ask: &Ask, prefix: &mut impl Holders, now_ms: u64) -> Change<Verdict> {
        self.row.admit(&mut self.memory, &Question { pool, ask, signals: &[], now_ms }, prefix, &mut self.rng)
    }

    /// Asks for a slot and gets one at once.
    fn admit(&mut self, pool: &Pool, now_ms: u64) -> usize {
        match self.ask(pool, &patient(), &mut Nobody, now_ms).result {
            Verdict::Admitted(admitted) => admitted.pick.chosen(),
            other => panic!("{other:?}"),
        }
    }

    /// Asks for a slot and has to wait.
    fn wait(&mut self, pool: &Pool, ask: &Ask, now_ms: u64) -> u64 {
        self.wait_with(pool, ask, &mut Nobody, now_ms)
    }

    fn wait_with(&mut self, pool: &Pool, ask: &Ask, prefix: &mut impl Holders, now_ms: u64) -> u64 {
        match self.ask(pool, ask, prefix, now_ms).result {
            Verdict::Queued(queued) => queued.ticket,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, pool: &Pool, at: usize, now_ms: u64) -> Vec<Woken> {
        let change = self.row.release(&mut self.memory, pool, &pool.endpoints[at], FREE, SUCCESS, now_ms);
        change.stored.unwrap();
        change.woken
    }

    fn claim(&mut self, pool: &Pool, ticket: u64, now_ms: u64) -> usize {
        match self.row.claim(&mut self.memory, pool, ticket, &mut Nobody, now_ms).result {
            Claim::Admitted(admitted) => admitted.pick.chosen(),
            other => panic!("{other:?}"),
        }
    }
}

fn patient() -> Ask {
    Ask { patience: Patience { max_wait_ms: 10_000, ..Patience::default() }, ..Ask::default() }
}

fn with(change: impl FnOnce(&mut Ask)) -> Ask {
    let mut ask = patient();
    change(&mut ask);
    ask
}

fn woken(row: u64, ticket: u64) -> Vec<Woken> {
    vec![Woken { row, ticket }]
}

fn totals(memory: &Memory, pool: &Pool) -> Vec<u32> {
    let table = memory.table();
    pool.endpoints.iter().map(|one| table.find(one.key, 0).map_or(0, |slot| table.total(slot).in_flight)).collect()
}

#[test]
fn a_freed_slot_goes_to_the_first_waiter_and_no_newcomer_overtakes() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 1));
    let (mut a, mut b) = (Vm::new(1, &memory), Vm::new(2, &memory));
    a.admit(&pool, 0);
    let first = b.wait(&pool, &patient(), 1);
    let second = a.wait(&pool, &patient(), 2);
    assert_eq!(a.release(&pool, 0, 5), woken(2, first));
    // The slot is taken, though its owner has not come for it yet.
    assert_eq!(totals(&memory, &pool), [1]);
    let third = a.wait(&pool, &patient(), 6);
    let Claim::Admitted(admitted) = b.row.claim(&mut b.memory, &pool, first, &mut Nobody, 9).result else { panic!() };
    let waited = admitted.waited.unwrap();
    assert_eq!((waited.total_ms, waited.handed_ms, waited.passed), (8, 4, 0));
    assert_eq!((admitted.pick.hosts, admitted.pick.reason, admitted.loads[0].in_flight), ([0; 3], Reason::Granted, 0));
    assert_eq!(totals(&memory, &pool), [1]);
    assert_eq!(b.release(&pool, 0, 10), woken(1, second));
    a.claim(&pool, second, 11);
    assert_eq!(a.release(&pool, 0, 12), woken(1, third));
    a.claim(&pool, third, 13);
    assert_eq!(a.release(&pool, 0, 14), []);
    assert!(a.row.is_idle() && b.row.is_idle() && memory.table().waiters() == 0);
    assert_eq!(totals(&memory, &pool), [0]);
}

#[test]
fn a_queue_has_limits() {
    let limits = json!({"queue": 2, "queue_bytes": 100, "max_wait_ms": 500});
    let (memory, pool) = (Memory::default(), pool_with(&[1.0], 1, limits));
    let mut vm = Vm::new(1, &memory);
    vm.admit(&pool, 0);
    let body = |bytes| with(|ask| ask.patience.body_bytes = bytes);
    let refused = |change: Change<Verdict>| match change.result {
        Verdict::Refused(refused) => (refused.refusal, refused.retry_after_s),
        other => panic!("{other:?}"),
    };
    // One body may always wait, the second no more than fits, and there are two places.
    vm.wait(&pool, &body(1_000), 1);
    assert_eq!(refused(vm.ask(&pool, &body(1), &mut Nobody, 2)), (Refusal::QueueFull, 1));
    // The first one's time is up (the pool's half second, not its own ten), so it counts no more.
    vm.wait(&pool, &body(60), 501);
    vm.wait(&pool, &body(40), 501);
    assert_eq!(refused(vm.ask(&pool, &body(0), &mut Nobody, 502)).0, Refusal::QueueFull);
    // Who does not wait is told so.
    assert_eq!(refused(vm.ask(&pool, &Ask::default(), &mut Nobody, 502)).0, Refusal::AtCap);
    let none = pool_with(&[1.0], 1, json!({"queue": 0}));
    assert_eq!(refused(vm.ask(&none, &patient(), &mut Nobody, 502)).0, Refusal::AtCap);
}

#[test]
fn retry_after_follows_what_drains() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 1));
    let mut vm = Vm::new(1, &memory);
    for now_ms in (0..60_000).step_by(500) {
        vm.admit(&pool, now_ms);
        vm.release(&pool, 0, now_ms);
    }
    assert!((drain_rate(&memory.table(), 60_000) - 2.0).abs() < 0.2);
    assert!(drain_rate(&memory.table(), 120_000) < 0.01);
    vm.admit(&pool, 60_000);
    let tickets: Vec<u64> = (0..9).map(|_| vm.wait(&pool, &patient(), 60_000)).collect();
    // One leaves, eight wait: nine requests at two a second.
    let left = vm.row.leave(&mut vm.memory, &pool, tickets[8], 60_000).result;
    assert_eq!((left.had_slot, left.retry_after_s), (false, 5));
}

// Case C23: a client that leaves while it waits is skipped; one that leaves with a slot in hand passes it on.
#[test]
fn c23_a_slot_never_goes_to_a_ghost() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 1));
    let (mut a, mut b) = (Vm::new(1, &memory), Vm::new(2, &memory));
    a.admit(&pool, 0);
    let tickets: Vec<u64> = (0..4).map(|_| b.wait(&pool, &patient(), 0)).collect();
    assert!(!b.row.leave(&mut b.memory, &pool, tickets[0], 1).result.had_slot);
    assert_eq!(a.release(&pool, 0, 2), woken(2, tickets[1]));
    let left = b.row.leave(&mut b.memory, &pool, tickets[1], 3);
    assert_eq!((left.result.had_slot, left.woken), (true, woken(2, tickets[2])));
    // Twice is as once.
    let again = b.row.leave(&mut b.memory, &pool, tickets[1], 3);
    assert_eq!((again.result.had_slot, again.woken), (false, vec![]));
    b.claim(&pool, tickets[2], 4);
    assert!(matches!(b.row.claim(&mut b.memory, &pool, tickets[2], &mut Nobody, 4).result, Claim::Unknown));
    // Whose time is up gets nothing any more.
    assert_eq!(b.release(&pool, 0, 10_000), []);
    assert_eq!(b.row.standing(&mut b.memory, &pool, 10_000)[0].standing, Standing::Expired);
    b.row.leave(&mut b.memory, &pool, tickets[3], 10_000).stored.unwrap();
    assert!(b.row.is_idle() && totals(&memory, &pool) == [0]);
}

// Case C3: a tick without a request (new snapshot, look, sweep) leaves counts and queue as they are.
#[test]
fn c3_ticks_change_no_counts() {
    let (memory, pool) = (Memory::default(), pool(&[1.0, 1.0], 1));
    let mut vm = Vm::new(1, &memory);
    vm.admit(&pool, 0);
    vm.admit(&pool, 0);
    vm.wait(&pool, &patient(), 0);
    let before = memory.table();
    for now_ms in [10, 20] {
        let renewed = pool.clone();
        assert_eq!(vm.row.dispatch(&mut vm.memory, &renewed, now_ms).woken, []);
        assert_eq!(vm.row.look(&mut vm.memory), Look::Fine);
        let swept = vm.row.sweep(&mut vm.memory, &renewed, |_| false, now_ms).result;
        assert_eq!((swept.in_flight, swept.waiting), (vec![1, 1], 1));
    }
    assert_eq!(memory.table(), before);
}

// Case C5: what others have in flight counts once, beside our own.
#[test]
fn c5_load_from_elsewhere_counts_once() {
    let (memory, pool) = (Memory::default(), pool(&[1.0, 1.0], 4));
    let mut vm = Vm::new(1, &memory);
    let keys: Vec<EndpointKey> = pool.endpoints.iter().map(|endpoint| endpoint.key).collect();
    vm.row.hear([(keys[0], 3)]);
    // The first has room for one, the second for four, and a burst between two polls does not see the first as free.
    let mut at = [0; 2];
    (0..5).for_each(|_| at[vm.admit(&pool, 0)] += 1);
    assert_eq!((at, totals(&memory, &pool)), ([1, 4], vec![1, 4]));
    let free = |vm: &mut Vm, elsewhere| {
        vm.row.hear([(keys[0], elsewhere)]);
        vm.row.sweep(&mut vm.memory, &pool, |_| false, 0).result.free
    };
    assert_eq!([free(&mut vm, 0), free(&mut vm, 3)], [3, 0], "slots that others use are not free");
    let ticket = vm.wait(&pool, &patient(), 0);
    // The next poll still tells of three there; our own one is not among them.
    vm.row.hear([(keys[0], 3), (keys[1], 0)]);
    assert_eq!(vm.row.dispatch(&mut vm.memory, &pool, 1).woken, []);
    vm.row.hear([(keys[0], 2)]);
    assert_eq!(vm.row.dispatch(&mut vm.memory, &pool, 2).woken, woken(1, ticket));
}

// Case C22: an endpoint that joins a busy pool gets what it has room for, and no more.
#[test]
fn c22_a_newcomer_gets_its_share_of_the_queue() {
    let (memory, before, after) = (Memory::default(), pool(&[1.0], 2), pool(&[1.0, 1.0], 2));
    let mut vm = Vm::new(1, &memory);
    (0..2).for_each(|_| assert_eq!(vm.admit(&before, 0), 0));
    let tickets: Vec<u64> = (0..5).map(|_| vm.wait(&before, &patient(), 0)).collect();
    let woken = vm.row.dispatch(&mut vm.memory, &after, 1).woken;
    assert_eq!(woken, [Woken { row: 1, ticket: tickets[0] }, Woken { row: 1, ticket: tickets[1] }]);
    assert_eq!(totals(&memory, &after), [2, 2]);
    // Also without a waiter in the way: five more find it as full as the other.
    assert_eq!(vm.row.dispatch(&mut vm.memory, &after, 2).woken, []);
    assert_eq!((vm.claim(&after, tickets[0], 2), vm.claim(&after, tickets[1], 2)), (1, 1));
}

#[test]
fn a_higher_cap_releases_waiters_at_once() {
    let (memory, low, high) = (Memory::default(), pool(&[1.0], 1), pool(&[1.0], 3));
    let mut vm = Vm::new(1, &memory);
    vm.admit(&low, 0);
    let tickets: Vec<u64> = (0..3).map(|_| vm.wait(&low, &patient(), 0)).collect();
    assert_eq!(vm.row.dispatch(&mut vm.memory, &high, 1).woken.len(), 2);
    // The cap goes down again: what runs runs on, and nothing new comes.
    (0..2).for_each(|nth| assert_eq!(vm.claim(&low, tickets[nth], 2), 0));
    assert_eq!((vm.release(&low, 0, 3), vm.release(&low, 0, 3)), (vec![], vec![]));
    assert_eq!(vm.release(&low, 0, 3), woken(1, tickets[2]));
}

#[test]
fn an_endpoint_back_from_ejection_takes_one_waiter_for_a_trial() {
    let (memory, pool) = (Memory::default(), pool(&[1.0, 1.0], 2));
    let mut vm = Vm::new(1, &memory);
    let first = vm.admit(&pool, 0);
    let bad = 1 - first;
    let failure = Report { outcome: Outcome::Failure, ..SUCCESS };
    for _ in 0..Settings::default().consecutive_failures {
        vm.admit(&pool, 0);
        vm.row.release(&mut vm.memory, &pool, &pool.endpoints[bad], FREE, failure, 0).stored.unwrap();
    }
    vm.admit(&pool, 0);
    let tickets: Vec<u64> = (0..3).map(|_| vm.wait(&pool, &patient(), 0)).collect();
    // While it is ejected, its slots are not worth a look at each waiter.
    let room = |now_ms| {
        let mut table = memory.table();
        let slots = slots(&mut table, &pool);
        Board::new(&table, &pool, slots, &[]).room(now_ms).is_some()
    };
    assert_eq!([room(EJECTION_MS - 1), room(EJECTION_MS)], [false, true]);
    let free = |vm: &mut Vm, now_ms| vm.row.sweep(&mut vm.memory.clone(), &pool, |_| false, now_ms).result.free;
    assert_eq!(free(&mut vm, EJECTION_MS - 1), 0);
    assert_eq!(vm.row.dispatch(&mut vm.memory, &pool, EJECTION_MS - 1).woken, []);
    assert_eq!(vm.row.dispatch(&mut vm.memory, &pool, EJECTION_MS).woken, woken(1, tickets[0]));
    assert_eq!(vm.claim(&pool, tickets[0], EJECTION_MS), bad);
    // The trial succeeds: the rest of its slots are free at once.
    let report = Report { trial: true, ..SUCCESS };
    let freed = vm.row.report(&mut vm.memory, &pool, &pool.endpoints[bad], report, EJECTION_MS + 1).woken;
    assert_eq!(freed, woken(1, tickets[1]));
}

#[test]
fn a_dead_vm_passes_on_what_it_held_and_what_it_was_given() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 2));
    let (mut dead, mut alive) = (Vm::new(1, &memory), Vm::new(2, &memory));
    dead.admit(&pool, 0);
    alive.admit(&pool, 0);
    let given = dead.wait(&pool, &patient(), 0);
    dead.wait(&pool, &patient(), 0);
    let tickets: Vec<u64> = (0..3).map(|_| alive.wait(&pool, &patient(), 0)).collect();
    assert_eq!(alive.release(&pool, 0, 1), woken(1, given));
    let change = alive.row.sweep(&mut alive.memory, &pool, |id| id == 1, 2);
    assert_eq!(change.woken, [Woken { row: 2, ticket: tickets[0] }, Woken { row: 2, ticket: tickets[1] }]);
    assert_eq!((change.result.in_flight, change.result.waiting), (vec![2], 1));
    // It was not dead after all: it finds out, and its waiters come back to their places. Its own request counts again.
    assert_eq!(dead.row.look(&mut dead.memory), Look::Missing);
    assert!(dead.row.standing(&mut dead.memory, &pool, 3).iter().all(|own| own.standing == Standing::Lost));
    dead.row.rewrite(&mut dead.memory).unwrap();
    assert_eq!((dead.row.look(&mut dead.memory), totals(&memory, &pool)), (Look::Fine, vec![3]));
    assert!(matches!(dead.row.claim(&mut dead.memory, &pool, given, &mut Nobody, 3).result, Claim::Waiting));
    assert_eq!(dead.release(&pool, 0, 4), []);
    alive.claim(&pool, tickets[0], 4);
    assert_eq!(alive.release(&pool, 0, 5), woken(1, given));
}

// A VM that was taken for dead by mistake finds the queue filled by others.
#[test]
fn who_has_lost_its_place_gets_it_back_or_is_refused() {
    let (mut memory, pool) = (Memory::default(), pool(&[1.0], 1));
    let (mut vm, mut alive) = (Vm::new(1, &memory), Vm::new(2, &memory));
    alive.admit(&pool, 0);
    let tickets: Vec<u64> = (0..2).map(|_| vm.wait(&pool, &patient(), 0)).collect();
    alive.row.sweep(&mut alive.memory, &pool, |id| id == 1, 1).stored.unwrap();
    let fill = |table: &mut Table| {
        let row = table.row_or_add(3).unwrap();
        let other = Waiter { row, ..Waiter::new(&patient(), 10_000, &mut Nobody, &pool, 1) };
        while table.insert_waiter(&Waiter { ticket: table.next_ticket(), ..other }).is_some() {
            table.set_next_ticket(table.next_ticket() + 1);
        }
        ((), Then::Store)
    };
    transact(&mut memory, fill).1.unwrap();
    vm.row.rewrite(&mut vm.memory).unwrap();
    let standing = |vm: &mut Vm, now_ms| -> Vec<Standing> {
        vm.row.standing(&mut vm.memory, &pool, now_ms).into_iter().map(|own| own.standing).collect()
    };
    // As a newcomer: nothing that it could wait for would ever find it.
    let full = Standing::Hopeless(Refusal::QueueFull);
    assert_eq!(standing(&mut vm, 2), [full, full]);
    assert!(matches!(vm.row.claim(&mut vm.memory, &pool, tickets[0], &mut Nobody, 2).result, Claim::Waiting));
    let newcomer = vm.ask(&pool, &patient(), &mut Nobody, 2).result;
    assert!(matches!(newcomer, Verdict::Refused(refused) if refused.refusal == Refusal::QueueFull));
    let left = vm.row.leave(&mut vm.memory, &pool, tickets[1], 2).result;
    assert_eq!((left.had_slot, left.retry_after_s, memory.table().waiters()), (false, 30, MAX_WAITERS));
    // Room comes first: then it has its place again, before all who came after it.
    transact(&mut memory, |table| (table.remove_waiter(0), Then::Store)).1.unwrap();
    assert_eq!(standing(&mut vm, 3), [Standing::Lost]);
    vm.row.rewrite(&mut vm.memory).unwrap();
    assert_eq!(standing(&mut vm, 4), [Standing::Waiting]);
    assert_eq!(alive.release(&pool, 0, 5), woken(1, tickets[0]));
    vm.claim(&pool, tickets[0], 6);
}

#[test]
fn who_cannot_be_put_back_waits_no_longer_than_it_may() {
    let (mut memory, pool) = (Memory::default(), pool(&[1.0], 1));
    let mut vm = Vm::new(1, &memory);
    vm.admit(&pool, 0);
    vm.wait(&pool, &patient(), 0);
    // The value is lost, and cannot be written.
    *memory.0.lock().unwrap() = (None, 9);
    let standing = |vm: &mut Vm, now_ms| vm.row.standing(&mut vm.memory, &pool, now_ms)[0].standing;
    assert_eq!([standing(&mut vm, 9_999), standing(&mut vm, 10_000)], [Standing::Lost, Standing::Expired]);
    // No VM can have a row any more.
    let fill = |table: &mut Table| {
        (10..10 + MAX_ROWS as u64).for_each(|id| assert!(table.row_or_add(id).is_some()));
        ((), Then::Store)
    };
    transact(&mut memory, fill).1.unwrap();
    assert_eq!(standing(&mut vm, 1), Standing::Hopeless(Refusal::QueueFull));
}

#[test]
fn a_slot_at_an_endpoint_that_went_away_is_exchanged() {
    let (memory, both) = (Memory::default(), pool(&[1.0, 1.0], 1));
    let mut gone = both.clone();
    let mut vm = Vm::new(1, &memory);
    for _ in 0..2 {
        vm.admit(&both, 0);
    }
    let ticket = vm.wait(&both, &patient(), 0);
    assert_eq!(vm.release(&both, 0, 1), woken(1, ticket));
    gone.endpoints[0].state = State::Draining;
    // Nothing else is free: it waits on, and its slot counts no more.
    assert!(matches!(vm.row.claim(&mut vm.memory, &gone, ticket, &mut Nobody, 2).result, Claim::Waiting));
    assert_eq!(totals(&memory, &both), [0, 1]);
    assert_eq!(vm.release(&gone, 1, 3), woken(1, ticket));
    assert_eq!(vm.claim(&gone, ticket, 4), 1);
    // A snapshot without the endpoint is the same, and the other one is free now.
    let (memory, mut vm) = (Memory::default(), Vm::new(1, &Memory::default()));
    vm.memory = memory.clone();
    for _ in 0..2 {
        vm.admit(&both, 0);
    }
    let ticket = vm.wait(&both, &patient(), 0);
    vm.release(&both, 0, 1);
    vm.release(&both, 1, 1);
    gone.endpoints.remove(0);
    assert_eq!(vm.claim(&gone, ticket, 2), 0);
    assert_eq!(totals(&memory, &both), [0, 1]);
}

#[test]
fn who_has_nothing_to_wait_for_is_told() {
    let (memory, mut pool) = (Memory::default(), pool(&[1.0, 1.0], 1));
    let mut vm = Vm::new(1, &memory);
    for _ in 0..2 {
        vm.admit(&pool, 0);
    }
    vm.wait(&pool, &patient(), 0);
    let standing = |vm: &mut Vm, pool: &Pool| vm.row.standing(&mut vm.memory, pool, 1)[0].standing;
    assert_eq!(standing(&mut vm, &pool), Standing::Waiting);
    pool.endpoints[0].state = State::Unhealthy;
    assert_eq!(standing(&mut vm, &pool), Standing::Waiting);
    pool.endpoints[1].state = State::Unhealthy;
    assert_eq!(standing(&mut vm, &pool), Standing::Hopeless(Refusal::NoEndpoint));
}

#[test]
fn priorities_come_first_and_age() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 1));
    let mut vm = Vm::new(1, &memory);
    let of = |priority| with(|ask| ask.patience = Patience { priority, max_wait_ms: 30_000, ..ask.patience });
    vm.admit(&pool, 0);
    let low = vm.wait(&pool, &of(7), 0);
    let high = vm.wait(&pool, &of(2), 100);
    assert_eq!(vm.release(&pool, 0, 200), woken(1, high));
    vm.claim(&pool, high, 200);
    // Five levels are 25 s: what comes later than that is behind it.
    let behind = vm.wait(&pool, &of(2), 25_001);
    let before = vm.wait(&pool, &of(1), 25_002);
    for ticket in [before, low, behind] {
        assert_eq!(vm.release(&pool, 0, 25_003), woken(1, ticket));
        vm.claim(&pool, ticket, 25_003);
    }
}

// Under constant load of a high priority, the lowest is served when its age is worth the difference.
#[test]
fn the_lowest_priority_is_not_starved() {
    for (ageing_ms, served) in [(1_000, Some(9_000)), (0, None)] {
        let (memory, pool) = (Memory::default(), pool_with(&[1.0], 1, json!({"ageing_ms": ageing_ms})));
        let mut vm = Vm::new(1, &memory);
        let of = |priority| with(|ask| ask.patience = Patience { priority, max_wait_ms: 60_000, ..ask.patience });
        vm.admit(&pool, 0);
        let low = vm.wait(&pool, &of(9), 0);
        for _ in 0..3 {
            vm.wait(&pool, &of(0), 0);
        }
        let mut at = None;
        for now_ms in (0..20_000).step_by(100) {
            let [next] = vm.release(&pool, 0, now_ms)[..] else { panic!("somebody waits") };
            vm.claim(&pool, next.ticket, now_ms);
            if next.ticket == low {
                at = Some(now_ms);
                break;
            }
            vm.wait(&pool, &of(0), now_ms);
        }
        match (at, served) {
            (Some(at), Some(bound)) => assert!((bound..=bound + 500).contains(&at), "{at}"),
            (at, served) => assert_eq!(at, served),
        }
    }
}

#[test]
fn keys_take_turns() {
    let (memory, mut pool) = (Memory::default(), pool(&[1.0], 1));
    pool.fairness = Fairness::User;
    let mut vm = Vm::new(1, &memory);
    let of = |key| with(|ask| ask.patience.key = key);
    vm.admit(&pool, 0);
    // One key has twenty waiting before the others come with three each.
    let mut whose = std::collections::HashMap::new();
    for (key, times) in [(1, 20), (2, 3), (3, 3)] {
        for _ in 0..times {
            whose.insert(vm.wait(&pool, &of(key), 0), key);
        }
    }
    let mut served = Vec::new();
    while let [next] = vm.release(&pool, 0, 1)[..] {
        vm.claim(&pool, next.ticket, 1);
        served.push(whose[&next.ticket]);
    }
    assert_eq!(served[..9], [1, 2, 3, 1, 2, 3, 1, 2, 3]);
    assert_eq!(served.len(), 26);
}

// Whoever leaves the key out must not get ahead of those who say who they are.
#[test]
fn requests_without_a_key_take_turns_as_one() {
    let (memory, mut pool) = (Memory::default(), pool(&[1.0], 1));
    pool.fairness = Fairness::User;
    let mut vm = Vm::new(1, &memory);
    vm.admit(&pool, 0);
    let mut whose = std::collections::HashMap::new();
    let mut wait = |vm: &mut Vm, key| {
        let ticket = vm.wait(&pool, &with(|ask| ask.patience.key = key), 0);
        whose.insert(ticket, key);
    };
    for key in [0, 0, 0, 7, 7] {
        wait(&mut vm, key);
    }
    let mut served = Vec::new();
    for _ in 0..6 {
        // There is always another one without a key.
        let [next] = vm.release(&pool, 0, 1)[..] else { panic!("nobody waits") };
        vm.claim(&pool, next.ticket, 1);
        let ticket = vm.wait(&pool, &with(|ask| ask.patience.key = 0), 1);
        served.push(next.ticket);
        assert!(ticket > next.ticket);
    }
    let keys: Vec<u32> = served.iter().map(|ticket| whose.get(ticket).copied().unwrap_or_default()).collect();
    assert_eq!(keys, [0, 7, 0, 7, 0, 0]);
}

#[test]
fn a_freed_endpoint_prefers_whose_prefix_it_holds_within_bounds() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 1));
    let mut vm = Vm::new(1, &memory);
    let ask = with(|ask| ask.prompt_tokens = 5_000);
    vm.admit(&pool, 0);
    let cold: Vec<u64> = (0..2).map(|_| vm.wait(&pool, &ask, 0)).collect();
    let warm: Vec<u64> = (0..6).map(|_| vm.wait_with(&pool, &ask, &mut Fixed::new(&[(0, 4_096)]), 0)).collect();
    let hardly = vm.wait_with(&pool, &ask, &mut Fixed::new(&[(0, 192)]), 0);
    let expected = [warm[0], warm[1], warm[2], warm[3], cold[0], cold[1], warm[4], warm[5], hardly];
    for ticket in expected {
        assert_eq!(vm.release(&pool, 0, 1), woken(1, ticket));
        let claim = vm.row.claim(&mut vm.memory, &pool, ticket, &mut Nobody, 1).result;
        let Claim::Admitted(admitted) = claim else { panic!("{claim:?}") };
        let passed = admitted.waited.unwrap().passed;
        assert_eq!(passed, if cold.contains(&ticket) { MAX_PASSES } else { 0 });
        // It gives the prompt back at the first token, so that the budget is out of the way.
        let mut charge = admitted.charge;
        assert_eq!(
            charge.prompt_tokens,
            if warm.contains(&ticket) { 904 } else { 5_000 - charge_held(ticket, hardly) }
        );
        vm.row.first_token(&mut vm.memory, &pool, &pool.endpoints[0], &mut charge, 1).stored.unwrap();
    }
}

fn charge_held(ticket: u64, hardly: u64) -> u32 {
    if ticket == hardly { 192 } else { 0 }
}

#[test]
fn with_several_slots_free_waiters_spread_and_holders_keep_theirs() {
    let (memory, low, high) = (Memory::default(), pool(&[2.0, 1.0], 1), pool(&[2.0, 1.0], 4));
    let mut vm = Vm::new(1, &memory);
    for _ in 0..2 {
        vm.admit(&low, 0);
    }
    let ask = with(|ask| (ask.prompt_tokens, ask.output_tokens) = (5_000, 128));
    let mut tickets: Vec<u64> = (0..2).map(|_| vm.wait(&low, &patient(), 0)).collect();
    tickets.push(vm.wait_with(&low, &ask, &mut Fixed::new(&[(1, 4_096)]), 0));
    tickets.push(vm.wait(&low, &patient(), 0));
    assert_eq!(vm.row.dispatch(&mut vm.memory, &high, 1).woken.len(), 4);
    // 1/2 and 1/1 in flight: two to the first (3/2), the third stays with its holder, the last finds 3/2 and 2/1.
    let at: Vec<usize> = tickets.iter().map(|ticket| vm.claim(&high, *ticket, 2)).collect();
    assert_eq!(at, [0, 0, 1, 0]);
}

#[test]
fn prefills_do_not_pile_up_on_an_endpoint() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 8));
    let mut vm = Vm::new(1, &memory);
    let long = |tokens| with(|ask| ask.prompt_tokens = tokens);
    let admit = |vm: &mut Vm, ask: &Ask| match vm.ask(&pool, ask, &mut Nobody, 0).result {
        Verdict::Admitted(admitted) => Some(admitted.charge),
        Verdict::Queued(_) => None,
        Verdict::Refused(refused) => panic!("{refused:?}"),
    };
    // Two prompts may always come, however long; a third one of that kind waits, a short one does not.
    let mut first = admit(&mut vm, &long(20_000)).unwrap();
    let mut other = admit(&mut vm, &long(30_000)).unwrap();
    let third = vm.wait(&pool, &long(12_000), 0);
    assert!(admit(&mut vm, &long(255)).is_some());
    assert!(admit(&mut vm, &long(256)).is_none());
    // Who cannot wait is not refused for that.
    let hasty = Ask { prompt_tokens: 9_000, ..Ask::default() };
    let mut hasty = admit(&mut vm, &hasty).unwrap();
    let endpoint = &pool.endpoints[0];
    assert_eq!(vm.row.first_token(&mut vm.memory, &pool, endpoint, &mut hasty, 0).woken, []);
    // Beside the one that is left there is room for one, however long.
    assert_eq!(vm.row.first_token(&mut vm.memory, &pool, endpoint, &mut first, 0).woken, woken(1, third));
    // 12,000 and 256 fit into 16,384 together.
    assert_eq!(vm.row.first_token(&mut vm.memory, &pool, endpoint, &mut other, 0).woken, woken(1, third + 1));
    // What the endpoint holds of a prompt need not be computed.
    let warm = vm.ask(&pool, &long(12_000), &mut Fixed::new(&[(0, 11_000)]), 0).result;
    assert!(matches!(warm, Verdict::Admitted(_)), "{warm:?}");
    let off = pool_with(&[1.0], 8, json!({"prefill_budget_tokens": 0}));
    assert!(matches!(vm.ask(&off, &long(12_000), &mut Nobody, 0).result, Verdict::Admitted(_)));
}

#[test]
fn a_long_prompt_is_not_starved_by_shorter_ones() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 8));
    let mut vm = Vm::new(1, &memory);
    let of = |tokens| with(|ask| ask.prompt_tokens = tokens);
    let endpoint = &pool.endpoints[0];
    let admit = |vm: &mut Vm| match vm.ask(&pool, &of(4_000), &mut Nobody, 0).result {
        Verdict::Admitted(admitted) => admitted.charge,
        other => panic!("{other:?}"),
    };
    let mut running = [admit(&mut vm), admit(&mut vm)];
    let long = vm.wait(&pool, &of(16_000), 0);
    // 4,000 more would fit, but then the long one would never see its budget free.
    let next = vm.wait(&pool, &of(4_000), 0);
    let freed = vm.row.first_token(&mut vm.memory, &pool, endpoint, &mut running[0], 0).woken;
    assert_eq!(freed, woken(1, long));
    let freed = vm.row.first_token(&mut vm.memory, &pool, endpoint, &mut running[1], 0).woken;
    assert_eq!(freed, woken(1, next));
}

#[test]
fn who_cannot_use_a_slot_holds_up_nobody() {
    let (memory, mut pool) = (Memory::default(), pool(&[1.0, 1.0], 1));
    pool.endpoints[0].context_window = Some(1_000);
    pool.endpoints[1].context_window = Some(8_000);
    let mut vm = Vm::new(1, &memory);
    let of = |tokens| with(|ask| (ask.prompt_tokens, ask.floor_tokens) = (tokens, tokens));
    for _ in 0..2 {
        vm.admit(&pool, 0);
    }
    let long = vm.wait(&pool, &of(2_000), 0);
    let short = vm.wait(&pool, &of(100), 0);
    assert_eq!(vm.release(&pool, 0, 1), woken(1, short));
    assert_eq!(vm.release(&pool, 1, 1), woken(1, long));
    assert_eq!((vm.claim(&pool, short, 2), vm.claim(&pool, long, 2)), (0, 1));
}

#[test]
fn a_lost_value_heals() {
    let (memory, pool) = (Memory::default(), pool(&[1.0], 1));
    let mut vm = Vm::new(1, &memory);
    vm.admit(&pool, 0);
    let tickets: Vec<u64> = (0..3).map(|_| vm.wait(&pool, &patient(), 0)).collect();
    *memory.0.lock().unwrap() = (Some(b"something else".to_vec()), 9);
    assert_eq!(vm.row.look(&mut vm.memory), Look::Missing);
    vm.row.rewrite(&mut vm.memory).unwrap();
    // Tickets stay unique, and the order is as it was.
    let next = vm.wait(&pool, &patient(), 0);
    assert!(next > tickets[2]);
    assert_eq!(vm.release(&pool, 0, 1), woken(1, tickets[0]));
}
