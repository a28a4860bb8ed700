//! What a decision costs together with its commit, by size of the pool and by threads that change the same table at once:
//! `cargo bench -p weighbridge-routing --bench decision`.
//!
//! The table lives behind one mutex and is copied whole, as in Envoy's shared data. Every thread has its own row, admits a
//! request and gives one back in turn, so that half of the slots are taken. Printed per admission: median and 99th
//! percentile as the thread sees it (with more threads than cores that includes waiting for a core), and how often a swap
//! had to be tried again; then the median of a release. The last table is the same with requests waiting.

use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

use serde_json::json;
use weighbridge_routing::eligibility::{Ask, Patience};
use weighbridge_routing::live::{Charge, Outcome, Question, Report, Row, SharedValue, StoreError, Verdict};
use weighbridge_routing::prefix::holders::Nobody;
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::snapshot::{Pool, Snapshot};

const CAP: usize = 8;
const REPORT: Report = Report { outcome: Outcome::Success, trial: false, added_tokens: 100 };

/// One value of Envoy's shared data.
#[derive(Clone, Default)]
struct Memory {
    value: Arc<Mutex<(Option<Vec<u8>>, u32)>>,
    conflicts: usize,
}

impl SharedValue for Memory {
    fn load(&mut self) -> (Option<Vec<u8>>, u32) {
        self.value.lock().unwrap().clone()
    }

    fn store(&mut self, bytes: &[u8], token: u32) -> Result<(), StoreError> {
        let mut held = self.value.lock().unwrap();
        if held.1 != token {
            self.conflicts += 1;
            return Err(StoreError::Conflict);
        }
        *held = (Some(bytes.to_vec()), token.wrapping_add(1));
        Ok(())
    }
}

fn pool(endpoints: usize) -> Pool {
    let endpoints: Vec<_> = (0..endpoints)
        .map(|nth| {
            json!({"id": format!("e{nth}"), "address": format!("10.0.0.1:{}", nth + 1), "cap": CAP,
                "weight": 0.5 + (nth % 4) as f64 / 2.0})
        })
        .collect();
    let pools = json!([{"name": "p", "models": ["bench"], "endpoints": endpoints}]);
    let snapshot = json!({"format": 1, "version": 1, "pools": pools});
    Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
}

fn ask() -> Ask {
    let patience = Patience { max_wait_ms: 30_000, ..Patience::default() };
    Ask { prompt_tokens: 1_000, floor_tokens: 900, output_tokens: 128, patience, ..Ask::default() }
}

struct Thread {
    row: Row,
    memory: Memory,
    rng: SplitMix64,
    held: Vec<(usize, Charge)>,
    admit_ns: Vec<u64>,
    release_ns: Vec<u64>,
}

impl Thread {
    fn new(id: u64, memory: &Memory) -> Self {
        let (row, rng) = (Row::new(id + 1), SplitMix64::seeded(id));
        let (held, admit_ns, release_ns) = (Vec::new(), Vec::new(), Vec::new());
        Thread { row, memory: memory.clone(), rng, held, admit_ns, release_ns }
    }

    fn admit(&mut self, pool: &Pool) {
        let ask = ask();
        let question = Question { pool, ask: &ask, signals: &[], now_ms: 0 };
        let from = Instant::now();
        let verdict = self.row.admit(&mut self.memory, &question, &mut Nobody, &mut self.rng).result;
        self.admit_ns.push(from.elapsed().as_nanos() as u64);
        if let Verdict::Admitted(admitted) = verdict {
            let mut charge = admitted.charge;
            let at = admitted.pick.chosen();
            // The budget for prompts is not what is measured.
            let _ = self.row.first_token(&mut self.memory, pool, &pool.endpoints[at], &mut charge, 0);
            self.held.push((at, charge));
        }
    }

    fn release(&mut self, pool: &Pool) {
        if self.held.is_empty() {
            return;
        }
        let place = self.rng.below(self.held.len() as u64) as usize;
        let (at, charge) = self.held.swap_remove(place);
        let from = Instant::now();
        let change = self.row.release(&mut self.memory, pool, &pool.endpoints[at], charge, REPORT, 0);
        self.release_ns.push(from.elapsed().as_nanos() as u64);
        drop(change);
    }
}

fn us(mut all: Vec<u64>, share: f64) -> f64 {
    all.sort_unstable();
    let place = ((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1));
    all.get(place).map_or(0.0, |ns| *ns as f64 / 1e3)
}

fn run(endpoints: usize, threads: usize) {
    let (pool, memory) = (pool(endpoints), Memory::default());
    let (rounds, barrier) = (if endpoints > 256 { 1_000 } else { 3_000 }, Barrier::new(threads));
    let mut workers: Vec<Thread> = (0..threads).map(|id| Thread::new(id as u64, &memory)).collect();
    let fill = endpoints * CAP / 2 / threads;
    for worker in &mut workers {
        (0..fill).for_each(|_| worker.admit(&pool));
        worker.admit_ns.clear();
    }
    std::thread::scope(|scope| {
        for worker in &mut workers {
            let (pool, barrier) = (&pool, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..rounds {
                    worker.admit(pool);
                    worker.release(pool);
                }
            });
        }
    });
    let conflicts: usize = workers.iter().map(|worker| worker.memory.conflicts).sum();
    let swaps = threads * rounds * 3 + conflicts;
    let admits: Vec<u64> = workers.iter().flat_map(|worker| worker.admit_ns.clone()).collect();
    let releases: Vec<u64> = workers.iter().flat_map(|worker| worker.release_ns.clone()).collect();
    let bytes = memory.value.lock().unwrap().0.as_ref().map_or(0, Vec::len);
    println!(
        "{endpoints:>9} {threads:>8} {bytes:>8} {:>10.1} {:>10.1} {:>11.1} {:>9.1} %",
        us(admits.clone(), 0.5),
        us(admits, 0.99),
        us(releases, 0.5),
        conflicts as f64 * 100.0 / swaps as f64
    );
}

/// A full pool with requests waiting: one release hands its slot over, and a new request takes the last place.
fn run_queued(endpoints: usize, waiting: usize) {
    let (pool, memory) = (pool(endpoints), Memory::default());
    let mut worker = Thread::new(0, &memory);
    (0..endpoints * CAP + waiting).for_each(|_| worker.admit(&pool));
    worker.admit_ns.clear();
    for _ in 0..500 {
        worker.admit(&pool);
        let place = worker.rng.below(worker.held.len() as u64) as usize;
        let (at, charge) = worker.held.swap_remove(place);
        let from = Instant::now();
        let change = worker.row.release(&mut worker.memory, &pool, &pool.endpoints[at], charge, REPORT, 0);
        worker.release_ns.push(from.elapsed().as_nanos() as u64);
        for woken in change.woken {
            let claim = worker.row.claim(&mut worker.memory, &pool, woken.ticket, &mut Nobody, 0).result;
            if let weighbridge_routing::live::Claim::Admitted(admitted) = claim {
                let (at, mut charge) = (admitted.pick.chosen(), admitted.charge);
                let _ = worker.row.first_token(&mut worker.memory, &pool, &pool.endpoints[at], &mut charge, 0);
                worker.held.push((at, charge));
            }
        }
    }
    let bytes = memory.value.lock().unwrap().0.as_ref().map_or(0, Vec::len);
    println!(
        "{endpoints:>9} {waiting:>8} {bytes:>8} {:>10.1} {:>10.1} {:>11.1}",
        us(worker.admit_ns.clone(), 0.5),
        us(worker.admit_ns, 0.99),
        us(worker.release_ns, 0.5)
    );
}

fn main() {
    println!("decision + commit, µs");
    println!("endpoints  threads    bytes  admit p50  admit p99  release p50     again");
    for endpoints in [8, 64, 256, 1_000] {
        for threads in [1, 4, 16] {
            run(endpoints, threads);
        }
    }
    println!("with requests waiting: a new one joins, a freed slot is handed over, µs");
    println!("endpoints  waiting    bytes   join p50   join p99  release p50");
    for endpoints in [8, 64, 256] {
        for waiting in [10, 100, 900] {
            run_queued(endpoints, waiting);
        }
    }
}
