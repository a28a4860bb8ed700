//! Random interleavings of several VMs over one table: what must hold after every single step, and at the end.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use serde_json::json;

use super::super::passive::{Outcome, Report};
use super::super::testing::{Memory, pool_with};
use super::super::{Change, Charge, Claim, Look, Question, Row, Standing, Verdict, WORTH_TELLING_TOKENS};
use super::*;
use crate::eligibility::{Ask, Patience};
use crate::prefix::holders::testing::Fixed;
use crate::rng::SplitMix64;

/// What can happen. The bytes choose among what there is.
#[derive(Debug, Clone, Copy)]
enum Step {
    Arrive {
        vm: u8,
        priority: u8,
        key: u8,
        prompt: u8,
        held_at: u8,
        patience: u8,
    },
    Release {
        vm: u8,
        nth: u8,
        failed: bool,
    },
    FirstToken {
        vm: u8,
        nth: u8,
    },
    /// A wake-up arrives; the others are lost until a tick finds them.
    Wake {
        nth: u8,
    },
    Leave {
        vm: u8,
        nth: u8,
    },
    Tick {
        vm: u8,
    },
    Pass {
        ms: u16,
    },
    Snapshot {
        caps: [u8; 3],
        drained: u8,
    },
    Die {
        vm: u8,
    },
    /// A VM that lives is taken for dead.
    Mistake {
        vm: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let byte = any::<u8>;
    prop_oneof![
        12 => (byte(), 0u8..10, 0u8..4, byte(), byte(), byte()).prop_map(|(vm, priority, key, prompt, held_at, patience)| {
            Step::Arrive { vm, priority, key, prompt, held_at, patience }
        }),
        8 => (byte(), byte(), prop::bool::weighted(0.1)).prop_map(|(vm, nth, failed)| Step::Release { vm, nth, failed }),
        3 => (byte(), byte()).prop_map(|(vm, nth)| Step::FirstToken { vm, nth }),
        6 => byte().prop_map(|nth| Step::Wake { nth }),
        1 => (byte(), byte()).prop_map(|(vm, nth)| Step::Leave { vm, nth }),
        2 => byte().prop_map(|vm| Step::Tick { vm }),
        2 => any::<u16>().prop_map(|ms| Step::Pass { ms: ms / 16 }),
        1 => (any::<[u8; 3]>(), byte()).prop_map(|(caps, drained)| Step::Snapshot { caps, drained }),
        1 => byte().prop_map(|vm| Step::Die { vm }),
        1 => byte().prop_map(|vm| Step::Mistake { vm }),
    ]
}

struct Running {
    endpoint: EndpointKey,
    charge: Charge,
}

struct Vm {
    row: Row,
    memory: Memory,
    running: Vec<Running>,
    tickets: Vec<u64>,
}

struct World {
    memory: Memory,
    pool: Pool,
    vms: Vec<Vm>,
    born: u64,
    rng: SplitMix64,
    now_ms: u64,
    /// Wake-ups under way.
    mail: Vec<Woken>,
    /// Tickets that were claimed.
    served: HashSet<(u64, u64)>,
    /// Everyone that ever waited, and how often it may have been passed.
    passed: HashMap<(u64, u64), u8>,
    /// Whether more may be running than the caps allow, because a VM was taken for dead.
    overfull: bool,
}

const VMS: usize = 3;

impl World {
    fn new(seed: u64) -> Self {
        let admission = json!({"queue": 12, "queue_bytes": 4_000, "max_wait_ms": 20_000, "ageing_ms": 1_000});
        let mut pool = pool_with(&[2.0, 1.0, 0.5], 2, admission);
        pool.endpoints[2].context_window = Some(2_000);
        let mut world = World {
            memory: Memory::default(),
            pool,
            vms: Vec::new(),
            born: 0,
            rng: SplitMix64::seeded(seed),
            now_ms: 1_000,
            mail: Vec::new(),
            served: HashSet::new(),
            passed: HashMap::new(),
            overfull: false,
        };
        (0..VMS).for_each(|_| world.bear());
        world
    }

    fn bear(&mut self) {
        self.born += 1;
        let (row, memory) = (Row::new(self.born), self.memory.clone());
        self.vms.push(Vm { row, memory, running: Vec::new(), tickets: Vec::new() });
    }

    fn took<T>(&mut self, change: Change<T>) -> T {
        change.stored.unwrap();
        for woken in change.woken {
            assert!(!self.served.contains(&(woken.row, woken.ticket)), "served twice: {woken:?}");
            self.mail.push(woken);
        }
        change.result
    }

    fn key(&self, place: usize) -> EndpointKey {
        self.pool.endpoints[place].key
    }

    fn step(&mut self, step: Step) {
        let vm_of = |vm: u8| usize::from(vm) % VMS;
        let (pool, now_ms) = (self.pool.clone(), self.now_ms);
        match step {
            Step::Arrive { vm, priority, key, prompt, held_at, patience } => {
                let tokens = [0, 100, 300, 3_000, 9_000, 15_000, 20_000][usize::from(prompt) % 7];
                let patience = Patience {
                    max_wait_ms: u32::from(patience % 4) * 5_000,
                    priority,
                    body_bytes: u32::from(prompt) * 10,
                    key: key.into(),
                };
                let ask =
                    Ask { prompt_tokens: tokens, floor_tokens: tokens, output_tokens: 100, patience, ..Ask::default() };
                let mut prefix = Fixed::new(&[]);
                if held_at < 128 {
                    prefix = Fixed::new(&[(usize::from(held_at) % 3, tokens / 2)]);
                }
                let vm = vm_of(vm);
                let Vm { row, memory, .. } = &mut self.vms[vm];
                let question = Question { pool: &pool, ask: &ask, signals: &[], now_ms };
                let change = row.admit(memory, &question, &mut prefix, &mut self.rng);
                match self.took(change) {
                    Verdict::Admitted(admitted) => {
                        let endpoint = self.key(admitted.pick.chosen());
                        self.vms[vm].running.push(Running { endpoint, charge: admitted.charge });
                    }
                    Verdict::Queued(queued) => {
                        self.vms[vm].tickets.push(queued.ticket);
                        assert!(
                            self.passed.insert((self.vms[vm].row.id, queued.ticket), 0).is_none(),
                            "a ticket twice"
                        );
                    }
                    Verdict::Refused(_) => {}
                }
            }
            Step::Release { vm, nth, failed } => {
                let vm = vm_of(vm);
                if self.vms[vm].running.is_empty() {
                    return;
                }
                let place = usize::from(nth) % self.vms[vm].running.len();
                let running = self.vms[vm].running.swap_remove(place);
                let outcome = if failed { Outcome::Failure } else { Outcome::Success };
                let report = Report { outcome, trial: nth % 2 == 0, added_tokens: 10 };
                let endpoint = pool.endpoints.iter().find(|endpoint| endpoint.key == running.endpoint).unwrap();
                let Vm { row, memory, .. } = &mut self.vms[vm];
                let change = row.release(memory, &pool, endpoint, running.charge, report, now_ms);
                self.took(change);
            }
            Step::FirstToken { vm, nth } => {
                let Vm { row, memory, running, .. } = &mut self.vms[vm_of(vm)];
                if running.is_empty() {
                    return;
                }
                let place = usize::from(nth) % running.len();
                let Running { endpoint, charge } = &mut running[place];
                let endpoint = pool.endpoints.iter().find(|of| of.key == *endpoint).unwrap();
                let change = row.first_token(memory, &pool, endpoint, charge, now_ms);
                self.took(change);
            }
            Step::Wake { nth } => {
                if self.mail.is_empty() {
                    return;
                }
                let woken = self.mail.swap_remove(usize::from(nth) % self.mail.len());
                if let Some(vm) = self.vms.iter().position(|vm| vm.row.id == woken.row) {
                    self.claim(vm, woken.ticket);
                }
            }
            Step::Leave { vm, nth } => {
                let vm = vm_of(vm);
                if self.vms[vm].tickets.is_empty() {
                    return;
                }
                let place = usize::from(nth) % self.vms[vm].tickets.len();
                let ticket = self.vms[vm].tickets.swap_remove(place);
                self.leave(vm, ticket);
            }
            Step::Tick { vm } => self.tick(vm_of(vm)),
            Step::Pass { ms } => {
                self.now_ms += u64::from(ms);
                // What time brings (the end of an ejection) is found on the tick.
                self.tick(0);
            }
            Step::Snapshot { caps, drained } => {
                for (endpoint, cap) in self.pool.endpoints.iter_mut().zip(caps) {
                    endpoint.cap = u32::from(cap % 4) + 1;
                    endpoint.state = State::Ready;
                }
                if let Some(endpoint) = self.pool.endpoints.get_mut(usize::from(drained) % 6) {
                    endpoint.state = State::Draining;
                }
                self.tick(0);
            }
            Step::Die { vm } => {
                let dead = self.vms.remove(vm_of(vm)).row.id;
                self.bear();
                let Vm { row, memory, .. } = &mut self.vms[0];
                let change = row.sweep(memory, &pool, |id| id == dead, now_ms);
                self.took(change);
            }
            Step::Mistake { vm } => {
                let taken = self.vms[vm_of(vm)].row.id;
                let Vm { row, memory, .. } = &mut self.vms[0];
                let change = row.sweep(memory, &pool, |id| id == taken, now_ms);
                self.took(change);
                self.overfull = true;
                self.tick(vm_of(vm));
            }
        }
    }

    fn claim(&mut self, vm: usize, ticket: u64) {
        let (pool, now_ms) = (self.pool.clone(), self.now_ms);
        let Vm { row, memory, .. } = &mut self.vms[vm];
        let change = row.claim(memory, &pool, ticket, &mut Fixed::new(&[]), now_ms);
        match self.took(change) {
            Claim::Admitted(admitted) => {
                let Vm { row, running, tickets, .. } = &mut self.vms[vm];
                let place = tickets.iter().position(|one| *one == ticket).expect("it waited");
                tickets.remove(place);
                let waited = admitted.waited.expect("it waited");
                assert!(waited.passed <= MAX_PASSES && waited.handed_ms <= waited.total_ms);
                assert!(self.served.insert((row.id, ticket)), "served twice");
                running.push(Running { endpoint: pool.endpoints[admitted.pick.chosen()].key, charge: admitted.charge });
            }
            Claim::Waiting => {}
            Claim::Unknown => assert!(!self.vms[vm].tickets.contains(&ticket)),
        }
    }

    fn leave(&mut self, vm: usize, ticket: u64) {
        let (pool, now_ms) = (self.pool.clone(), self.now_ms);
        let Vm { row, memory, .. } = &mut self.vms[vm];
        let change = row.leave(memory, &pool, ticket, now_ms);
        self.took(change);
    }

    fn tick(&mut self, vm: usize) {
        let (pool, now_ms) = (self.pool.clone(), self.now_ms);
        let Vm { row, memory, .. } = &mut self.vms[vm];
        if row.look(memory) == Look::Missing {
            row.rewrite(memory).unwrap();
        }
        assert_eq!(row.look(memory), Look::Fine);
        let change = row.dispatch(memory, &pool, now_ms);
        self.took(change);
        let Vm { row, memory, tickets, .. } = &mut self.vms[vm];
        let standing = row.standing(memory, &pool, now_ms);
        assert_eq!(standing.len(), tickets.len());
        for own in standing {
            match own.standing {
                Standing::Granted => self.claim(vm, own.ticket),
                Standing::Expired | Standing::Hopeless(_) => {
                    self.vms[vm].tickets.retain(|ticket| *ticket != own.ticket);
                    self.leave(vm, own.ticket);
                }
                Standing::Waiting => {}
                Standing::Lost => panic!("it was looked after"),
            }
        }
    }

    fn totals(&self) -> Vec<u32> {
        let table = self.memory.table();
        let total = |endpoint: &Endpoint| table.find(endpoint.key, 0).map_or(0, |slot| table.total(slot).in_flight);
        self.pool.endpoints.iter().map(total).collect()
    }

    fn check(&mut self, before: &[u32]) {
        let (totals, table) = (self.totals(), self.memory.table());
        assert_eq!(Table::decode(table.bytes().to_vec()).as_ref(), Some(&table));
        // No step takes an endpoint past its cap; where the cap came down, what runs runs on.
        for ((endpoint, total), before) in self.pool.endpoints.iter().zip(&totals).zip(before) {
            assert!(self.overfull || *total <= endpoint.cap.max(*before), "{totals:?} after {before:?}");
        }
        // The counts are those of what runs, and of the slots that were given.
        let granted = (0..table.waiters()).filter_map(|place| table.waiter(place)?.grant).count();
        let running: usize = self.vms.iter().map(|vm| vm.running.len()).sum();
        assert_eq!(totals.iter().sum::<u32>() as usize, granted + running);
        // Nobody waits for what is free. A prompt that counts as prefill may have to.
        for waiter in
            (0..table.waiters()).filter_map(|place| table.waiter(place)).filter(|one| one.is_waiting(self.now_ms))
        {
            for (endpoint, total) in self.pool.endpoints.iter().zip(&totals) {
                let slot = table.find(endpoint.key, 0);
                let ejected = slot.is_some_and(|slot| table.passive(slot).ejected_until_ms > self.now_ms);
                let holds = endpoint.context_window.is_none_or(|window| waiter.prompt_tokens <= window);
                let prefill = waiter.prompt_tokens >= WORTH_TELLING_TOKENS
                    && slot.is_some_and(|slot| table.total(slot).prefill_tokens > 0);
                assert!(
                    endpoint.state != State::Ready || *total >= endpoint.cap || ejected || !holds || prefill,
                    "{waiter:?} could have a slot at {}: {totals:?}",
                    endpoint.id
                );
            }
        }
        let held = self.memory.0.lock().unwrap().clone();
        let mut copy = Memory(std::sync::Arc::new(std::sync::Mutex::new(held)));
        assert_eq!(Row::new(u64::MAX).dispatch(&mut copy, &self.pool, self.now_ms).woken, []);
        // All that wait have a place in the table.
        let waiting: usize = self.vms.iter().map(|vm| vm.tickets.len()).sum();
        assert_eq!(waiting, table.waiters());
        // Sorted by rank.
        let ranks: Vec<_> = (0..table.waiters()).filter_map(|place| Some(table.waiter(place)?.rank())).collect();
        assert!(ranks.is_sorted());
    }

    /// Everything comes to its end.
    fn drain(&mut self) {
        for endpoint in &mut self.pool.endpoints {
            (endpoint.state, endpoint.cap) = (State::Ready, 2);
        }
        for round in 0..200 {
            for vm in 0..VMS {
                self.tick(vm);
                self.step(Step::Release { vm: vm as u8, nth: 0, failed: false });
            }
            if self.vms.iter().all(|vm| vm.running.is_empty() && vm.tickets.is_empty()) {
                break;
            }
            assert!(round < 199, "somebody waits for ever");
        }
        assert!(self.vms.iter().all(|vm| vm.row.is_idle()));
        let table = self.memory.table();
        assert_eq!(table.waiters(), 0);
        assert!((0..table.slots()).all(|slot| table.total(slot) == super::super::table::Counts::default()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_happens_no_slot_is_lost_or_given_twice(
        seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..150)
    ) {
        let mut world = World::new(seed);
        for step in steps {
            let before = world.totals();
            world.step(step);
            world.check(&before);
        }
        world.drain();
    }

    /// Without prefixes, keys, windows and prefill: strictly in the order of arrival, whichever VM it comes through.
    #[test]
    fn inside_a_priority_the_order_is_that_of_arrival(
        arrivals in proptest::collection::vec((0usize..3, 0u8..3), 1..60), caps in 1u32..4, seed in any::<u64>()
    ) {
        let admission = json!({"queue": 100, "ageing_ms": 0});
        let (memory, pool) = (Memory::default(), pool_with(&[1.0, 2.0], caps, admission));
        let mut rows: Vec<Row> = (0..3).map(Row::new).collect();
        let mut rng = SplitMix64::seeded(seed);
        let (mut value, mut running, mut waiting) = (memory, Vec::new(), Vec::new());
        for (vm, priority) in arrivals {
            let ask = Ask { patience: Patience { max_wait_ms: 1_000, priority, ..Patience::default() }, ..Ask::default() };
            let question = Question { pool: &pool, ask: &ask, signals: &[], now_ms: 0 };
            match rows[vm].admit(&mut value, &question, &mut Fixed::new(&[]), &mut rng).result {
                Verdict::Admitted(admitted) => running.push((vm, admitted.pick.chosen(), admitted.charge)),
                Verdict::Queued(queued) => waiting.push((priority, queued.ticket, vm)),
                Verdict::Refused(refused) => panic!("{refused:?}"),
            }
        }
        waiting.sort_unstable();
        for (_, ticket, vm) in waiting {
            let (by, at, charge) = running.swap_remove(rng.below(running.len() as u64) as usize);
            let report = Report { outcome: Outcome::Success, trial: false, added_tokens: 0 };
            let change = rows[by].release(&mut value, &pool, &pool.endpoints[at], charge, report, 0);
            prop_assert_eq!(change.woken, vec![Woken { row: vm as u64, ticket }]);
            match rows[vm].claim(&mut value, &pool, ticket, &mut Fixed::new(&[]), 0).result {
                Claim::Admitted(admitted) => running.push((vm, admitted.pick.chosen(), admitted.charge)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Every key with something waiting gets as many slots as every other, give or take one.
    #[test]
    fn keys_are_served_equally(keys in proptest::collection::vec(0u32..6, 2..60)) {
        let fair = json!({"queue": 100, "fairness": "user"});
        let (memory, pool) = (Memory::default(), pool_with(&[1.0], 1, fair));
        let (mut row, mut value, mut rng) = (Row::new(1), memory, SplitMix64::seeded(1));
        let ask = |key| Ask { patience: Patience { max_wait_ms: 1_000, key, ..Patience::default() }, ..Ask::default() };
        let mut left: HashMap<u32, usize> = HashMap::new();
        let mut whose = HashMap::new();
        for key in std::iter::once(0).chain(keys) {
            let question = Question { pool: &pool, ask: &ask(key), signals: &[], now_ms: 0 };
            if let Verdict::Queued(queued) = row.admit(&mut value, &question, &mut Fixed::new(&[]), &mut rng).result {
                whose.insert(queued.ticket, key);
                *left.entry(key).or_default() += 1;
            }
        }
        let mut served: HashMap<u32, usize> = left.keys().map(|key| (*key, 0)).collect();
        let report = Report { outcome: Outcome::Success, trial: false, added_tokens: 0 };
        let charge = Charge::default();
        while let [woken] = row.release(&mut value, &pool, &pool.endpoints[0], charge, report, 0).woken[..] {
            let claimed = row.claim(&mut value, &pool, woken.ticket, &mut Fixed::new(&[]), 0).result;
            prop_assert!(matches!(claimed, Claim::Admitted(_)));
            let key = whose[&woken.ticket];
            *served.get_mut(&key).unwrap() += 1;
            *left.get_mut(&key).unwrap() -= 1;
            // Those that still wait have had no less than anybody, but for the turn under way.
            let most = *served.values().max().unwrap();
            for (key, _) in left.iter().filter(|(_, left)| **left > 0) {
                prop_assert!(served[key] + 1 >= most, "{:?} while {:?} wait", served, left);
            }
        }
        prop_assert!(left.values().all(|left| *left == 0));
    }
}
