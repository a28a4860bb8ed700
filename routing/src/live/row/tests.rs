//! Tests of one VM's side.

use super::super::passive::{Outcome, Settings};
use super::super::testing::Memory;
use super::*;
use crate::prefix::holders::Nobody;
use crate::snapshot::Snapshot;
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
    admit_as(row, memory, pool, &Ask::default(), rng)
}

fn admit_as(
    row: &mut Row,
    memory: &mut Memory,
    pool: &Pool,
    ask: &Ask,
    rng: &mut SplitMix64,
) -> Result<Admitted, Refused> {
    let change = row.admit(memory, &Question { pool, ask, signals: &[], now_ms: 0 }, &mut Nobody, rng);
    change.stored.unwrap();
    match change.result {
        Verdict::Admitted(admitted) => Ok(admitted),
        Verdict::Refused(refused) => Err(refused),
        Verdict::Queued(queued) => panic!("nobody waits here: {queued:?}"),
    }
}

/// How many of so many rounds give four simultaneous requests on four threads an endpoint each.
fn rounds_with_one_each<V: SharedValue + Send>(rounds: u64, of: impl Fn(&Memory) -> Vec<V>) -> usize {
    let pool = pool(&[1.0, 1.0, 1.0, 1.0], 8, "all");
    let round = |round: &u64| {
        let memory = Memory::default();
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for (id, mut value) in (0..).zip(of(&memory)) {
                let (pool, barrier) = (&pool, &barrier);
                scope.spawn(move || {
                    let question = Question { pool, ask: &Ask::default(), signals: &[], now_ms: 0 };
                    barrier.wait();
                    let rng = &mut SplitMix64::seeded(id + round);
                    Row::new(id).admit(&mut value, &question, &mut Nobody, rng).stored.unwrap();
                });
            }
        });
        totals(&memory, &pool) == [1, 1, 1, 1]
    };
    (0..rounds).filter(round).count()
}

// Row 7 of the mission: four idle endpoints, four requests at once on four threads, one each, every time.
#[test]
fn simultaneous_requests_never_meet() {
    assert_eq!(rounds_with_one_each(500, |memory| vec![memory.clone(); 4]), 500);
}

/// What the swap is there against: everybody reads, everybody decides, everybody writes.
struct ReadThenWrite {
    memory: Memory,
    all_have_read: std::sync::Arc<std::sync::Barrier>,
}

impl SharedValue for ReadThenWrite {
    fn load(&mut self) -> (Option<Vec<u8>>, u32) {
        let read = self.memory.load();
        self.all_have_read.wait();
        read
    }

    fn store(&mut self, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        let token = self.memory.load().1;
        // Whoever came in between is overwritten, or overwrites this.
        let _ = self.memory.store(bytes, token);
        Ok(())
    }
}

#[test]
fn the_same_by_read_then_write_fails() {
    let racing = |memory: &Memory| {
        let all_have_read = std::sync::Arc::new(std::sync::Barrier::new(4));
        let one = |_| ReadThenWrite { memory: memory.clone(), all_have_read: all_have_read.clone() };
        (0..4).map(one).collect()
    };
    assert_eq!(rounds_with_one_each(50, racing), 0);
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
                            held.push(&pool.endpoints[admitted.pick.chosen()]);
                        }
                    } else {
                        let endpoint = held.swap_remove(rng.below(held.len() as u64) as usize);
                        row.release(&mut memory, pool, endpoint, FREE, SUCCESS, 0).stored.unwrap();
                    }
                    assert!(totals(&memory, pool).iter().all(|total| *total <= 3));
                }
                for endpoint in held {
                    row.release(&mut memory, pool, endpoint, FREE, SUCCESS, 0).stored.unwrap();
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
    row.shift(&mut memory, &pool, a, b, FREE, FAILURE, 0).stored.unwrap();
    assert_eq!(totals(&memory, &pool), [0, 1]);
    row.release(&mut memory, &pool, b, FREE, SUCCESS, 0).stored.unwrap();
    assert_eq!(totals(&memory, &pool), [0, 0]);
}

// Case C9: a release too many floors at zero.
#[test]
fn c9_a_release_too_many_floors_at_zero() {
    let (mut memory, pool) = (Memory::default(), pool(&[1.0], 8, "2"));
    let mut row = Row::new(1);
    for _ in 0..3 {
        row.release(&mut memory, &pool, &pool.endpoints[0], FREE, SUCCESS, 0).stored.unwrap();
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
    let mut admitted = admit_as(&mut row, &mut memory, &pool, &ask, &mut rng).unwrap();
    let (a, b) = (&pool.endpoints[0], &pool.endpoints[1]);
    assert_eq!((admitted.pick.chosen(), pending(&memory)), (0, vec![1_050, 0]));
    row.shift(&mut memory, &pool, a, b, admitted.charge, FAILURE, 0).stored.unwrap();
    assert_eq!(pending(&memory), [0, 1_050]);
    row.first_token(&mut memory, &pool, b, &mut admitted.charge, 0).stored.unwrap();
    assert_eq!(pending(&memory), [0, 50]);
    row.release(&mut memory, &pool, b, admitted.charge, Report { added_tokens: 1_040, ..SUCCESS }, 0).stored.unwrap();
    assert_eq!(pending(&memory), [0, 0]);
    admit(&mut row, &mut memory, &pool, &mut rng).unwrap();
    assert_eq!((row.clock(b.key, 1), row.clock(b.key, 7), row.clock(a.key, 0)), (1_040, 1_040, 0));
    // Without a request of its own, a VM hears of the others' on the tick.
    let mut other = Row::new(2);
    admit(&mut other, &mut memory, &pool, &mut rng).unwrap();
    other.release(&mut memory, &pool, a, FREE, Report { added_tokens: 7, ..SUCCESS }, 0).stored.unwrap();
    row.look(&mut memory);
    assert_eq!(row.clock(a.key, 0), 7);
}

#[test]
fn an_ejection_pushes_everything_out_of_the_cache() {
    let (mut memory, pool) = (Memory::default(), pool(&[1.0], 8, "2"));
    let (mut row, mut rng) = (Row::new(1), SplitMix64::seeded(1));
    for _ in 0..Settings::default().consecutive_failures {
        admit(&mut row, &mut memory, &pool, &mut rng).unwrap();
        row.release(&mut memory, &pool, &pool.endpoints[0], FREE, FAILURE, 0).stored.unwrap();
    }
    admit(&mut row, &mut memory, &pool, &mut rng).unwrap();
    assert!(row.clock(pool.endpoints[0].key, 0) > pool.endpoints[0].kv_tokens);
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
