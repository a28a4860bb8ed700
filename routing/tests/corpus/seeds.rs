//! The seeds that have a live table in them, made by the code that writes tables. Those of another format would not decode, and the
//! fuzzer would have to find a table by itself.

use weighbridge_routing::eligibility::{Ask, Patience};
use weighbridge_routing::live::table::{Counts, Table};
use weighbridge_routing::live::{Outcome, Passive, Question, Report, Row, Verdict};
use weighbridge_routing::prefix::holders::Nobody;
use weighbridge_routing::rng::SplitMix64;
use weighbridge_routing::snapshot::EndpointKey;

use crate::targets::{Alone, queue_pool};

/// A file of the corpus.
pub(crate) struct Seed {
    /// Under `tests/fuzz/corpus`.
    pub(crate) path: &'static str,
    /// The value that it begins with.
    pub(crate) table: Vec<u8>,
    orders: Vec<u8>,
}

impl Seed {
    /// What the targets read: the length of a value, the value, and what to do with it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u16::try_from(self.table.len()).unwrap();
        [&length.to_le_bytes(), self.table.as_slice(), &self.orders].concat()
    }
}

pub(crate) fn all() -> Vec<Seed> {
    let everything: Vec<u8> = (0..174u8).map(|nth| nth.wrapping_mul(37)).collect();
    let (one, two) = (counts(1, 1), counts(2, 2));
    let short = two[..two.len() - 1].to_vec();
    vec![
        Seed { path: "live_table/header", table: Table::default().bytes().to_vec(), orders: (0..60).collect() },
        Seed { path: "live_table/one_cell", table: one, orders: everything.clone() },
        Seed { path: "live_table/two", table: two, orders: everything.clone() },
        Seed { path: "live_table/two_rows", table: counts(3, 2), orders: everything.clone() },
        Seed { path: "live_table/short", table: short, orders: (0..60).collect() },
        Seed { path: "live_table/queue", table: queue(&[1, 2]), orders: everything },
        Seed { path: "live_queue/waiting", table: queue(&[1]), orders: QUEUE_UP.concat() },
        // VM 7 is the target's own, and has nothing to write.
        Seed { path: "live_queue/own_row", table: queue(&[7]), orders: vec![4, 255, 8] },
        Seed { path: "live_queue/other_row", table: queue(&[3, 7]), orders: [COME_AND_GO, QUEUE_UP].concat().concat() },
    ]
}

/// More requests than there are slots and places; two claim, two leave, two end.
const QUEUE_UP: &[[u8; 3]] = &[
    [0, 200, 10],
    [0, 200, 10],
    [0, 200, 10],
    [0, 200, 10],
    [0, 200, 10],
    [0, 200, 10],
    [1, 0, 0],
    [1, 0, 1],
    [2, 0, 0],
    [2, 1, 0],
    [3, 0, 0],
    [3, 0, 0],
];
/// Requests of two sizes and priorities, and sweeps that take VM 3 for dead, and then nobody.
const COME_AND_GO: &[[u8; 3]] = &[
    [0, 200, 10],
    [0, 200, 200],
    [5, 1, 0],
    [0, 200, 203],
    [5, 0, 0],
    [5, 1, 0],
    [4, 255, 8],
    [5, 2, 0],
    [1, 0, 1],
    [2, 0, 0],
];

/// A value in which these VMs have something at these endpoints.
fn counts(endpoints: u8, vms: u8) -> Vec<u8> {
    let mut table = Table::default();
    for nth in 0..endpoints {
        // As the target names them.
        let slot = table.find_or_add(EndpointKey::of("p", &nth.to_string()), nth.into()).unwrap();
        let nth = u16::from(nth);
        let passive =
            Passive { ejected_until_ms: u64::from(nth) * 100, failures: 4, ejections: nth, ..Passive::default() };
        table.set_passive(slot, passive);
        table.advance_clock(slot, 5_000 * u64::from(nth));
    }
    for vm in 0..vms {
        let row = table.row_or_add(vm.into()).unwrap();
        for slot in 0..table.slots() {
            let in_flight = 1 + u32::from(vm) + slot as u32;
            let (pending_tokens, prefill_tokens) = (200 * in_flight, 100 * in_flight);
            table.set_cell(row, slot, Counts { in_flight, pending_tokens, prefill_tokens, prefills: in_flight.min(2) });
        }
        table.take_turn();
    }
    table.bytes().to_vec()
}

/// A value in which these VMs have every slot of the target's pool, each has somebody waiting of two priorities, and the last has
/// been given a slot that it has not come for.
fn queue(vms: &[u64]) -> Vec<u8> {
    let (pool, mut value, mut rng) = (queue_pool(), Alone(None), SplitMix64::seeded(1));
    let mut rows: Vec<Row> = vms.iter().map(|id| Row::new(*id)).collect();
    let mut running = Vec::new();
    let slots: u32 = pool.endpoints.iter().map(|endpoint| endpoint.cap).sum();
    for nth in 0..slots as usize + 2 * vms.len() {
        let vm = nth % vms.len();
        let patience =
            Patience { max_wait_ms: 1_000, priority: nth as u8 % 2 * 3, body_bytes: 50, key: 1 + nth as u32 % 2 };
        let ask = Ask { prompt_tokens: 300, floor_tokens: 300, output_tokens: 64, patience, ..Ask::default() };
        let question = Question { pool: &pool, ask: &ask, signals: &[], now_ms: nth as u64 };
        match rows[vm].admit(&mut value, &question, &mut Nobody, &mut rng).result {
            Verdict::Admitted(admitted) => running.push((vm, admitted.pick.chosen(), admitted.charge)),
            Verdict::Queued(_) => {}
            Verdict::Refused(refused) => panic!("{refused:?}"),
        }
    }
    let (vm, at, charge) = running.pop().unwrap();
    let report = Report { outcome: Outcome::Success, trial: false, added_tokens: 100 };
    let woken = rows[vm].release(&mut value, &pool, &pool.endpoints[at], charge, report, 100).woken;
    assert_eq!(woken.len(), 1);
    value.0.unwrap()
}
