//! The queue under real threads: many requests through few slots, woken from one thread to another.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::json;

use super::super::passive::{Outcome, Report};
use super::super::testing::{Memory, pool_with};
use super::super::{Change, Charge, Claim, Question, Row, Verdict};
use super::*;
use crate::eligibility::{Ask, Patience};
use crate::prefix::holders::Nobody;
use crate::rng::SplitMix64;

const THREADS: u64 = 4;
const REQUESTS: usize = 1_500;
const AT_ONCE: usize = 16;
const CAP: u32 = 2;

struct Worker<'a> {
    row: Row,
    memory: Memory,
    pool: &'a Pool,
    running: Vec<(usize, Charge)>,
    waiting: usize,
    mail: Receiver<u64>,
    post: &'a [Sender<u64>],
}

impl Worker<'_> {
    /// Hands wake-ups to their threads and checks the caps.
    fn took<T>(&mut self, change: Change<T>) -> T {
        change.stored.unwrap();
        for woken in change.woken {
            self.post[woken.row as usize].send(woken.ticket).unwrap();
        }
        let table = self.memory.table();
        assert!(table.totals().iter().all(|total| total.in_flight <= CAP));
        change.result
    }

    fn arrive(&mut self, rng: &mut SplitMix64) {
        let patience = Patience { max_wait_ms: 1_000, ..Patience::default() };
        let ask = Ask { patience, ..Ask::default() };
        let question = Question { pool: self.pool, ask: &ask, signals: &[], now_ms: 0 };
        let change = self.row.admit(&mut self.memory, &question, &mut Nobody, rng);
        match self.took(change) {
            Verdict::Admitted(admitted) => self.running.push((admitted.pick.chosen(), admitted.charge)),
            Verdict::Queued(_) => self.waiting += 1,
            Verdict::Refused(refused) => panic!("{refused:?}"),
        }
    }

    fn claim(&mut self, ticket: u64) {
        let change = self.row.claim(&mut self.memory, self.pool, ticket, &mut Nobody, 0);
        let claim = self.took(change);
        let Claim::Admitted(admitted) = claim else { panic!("woken for nothing: {claim:?}") };
        self.running.push((admitted.pick.chosen(), admitted.charge));
        self.waiting -= 1;
    }

    fn release(&mut self, nth: usize) {
        let (at, charge) = self.running.swap_remove(nth);
        let report = Report { outcome: Outcome::Success, trial: false, added_tokens: 1 };
        let change = self.row.release(&mut self.memory, self.pool, &self.pool.endpoints[at], charge, report, 0);
        self.took(change);
    }

    fn work(mut self, rng: &mut SplitMix64) {
        let (mut begun, mut done) = (0, 0);
        while done < REQUESTS {
            while let Ok(ticket) = self.mail.try_recv() {
                self.claim(ticket);
            }
            let room = begun < REQUESTS && self.running.len() + self.waiting < AT_ONCE;
            if room && (self.running.is_empty() || rng.below(2) == 0) {
                self.arrive(rng);
                begun += 1;
            } else if !self.running.is_empty() {
                self.release(rng.below(self.running.len() as u64) as usize);
                done += 1;
            } else {
                let ticket = self.mail.recv_timeout(Duration::from_secs(60)).expect("a wake-up was lost");
                self.claim(ticket);
            }
        }
        assert!(self.row.is_idle());
    }
}

#[test]
fn many_requests_through_few_slots_lose_no_wake_up() {
    let (memory, pool) = (Memory::default(), pool_with(&[2.0, 1.0], CAP, json!({})));
    let (post, mail): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    std::thread::scope(|scope| {
        for (id, mail) in (0..).zip(mail) {
            let (row, memory, post) = (Row::new(id), memory.clone(), post.as_slice());
            let worker = Worker { row, memory, pool: &pool, running: Vec::new(), waiting: 0, mail, post };
            scope.spawn(move || worker.work(&mut SplitMix64::seeded(id)));
        }
    });
    let table = memory.table();
    assert_eq!(table.waiters(), 0);
    assert!(table.totals().iter().all(|total| total.in_flight == 0));
}
