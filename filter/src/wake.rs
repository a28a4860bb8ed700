//! How one VM tells another that requests of its have got slots.
//!
//! Each VM that serves has a shared queue of its own, `weighbridge-wake/<its row>`. A message in it is the key of a pool and
//! the tickets (all u64, little-endian) of the waiters that have got a slot there. Messages carry no truth: whoever is woken
//! asks the live table, so one that comes late, twice or for somebody who has left does no harm, and one that is lost is
//! made good by the VM's next tick but one.
//!
//! A queue belongs to the root context that registered it, and every configuration has a new one: it is registered
//! again each time ([`Wakes::register`]).

use std::collections::HashMap;

use weighbridge_routing::live::Woken;

use crate::host::{self, HostError, Level, Queue};

/// Queues of other VMs that are remembered; VMs come and go with reloads only.
const MAX_KNOWN: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Wakes {
    /// The `vm_id` under which all VMs of the filter share data and queues.
    vm_id: Option<Vec<u8>>,
    known: HashMap<u64, Queue>,
}

fn name(row: u64) -> String {
    format!("weighbridge-wake/{row:016x}")
}

impl Wakes {
    /// Makes this VM hear, on the root context that is active now or that the active stream belongs to.
    pub(crate) fn register(row: u64) {
        if let Err(HostError(status)) = Queue::register(&name(row)) {
            // Waiters still get their slots, by the tick.
            host::log(Level::Error, &format!("weighbridge: no queue for wake-ups: status {status}"));
        }
    }

    /// Wakes waiters of one pool. Returns how many could not be told; their VM's tick finds them.
    pub(crate) fn call(&mut self, pool: u64, woken: &[Woken]) -> usize {
        let mut lost = 0;
        let mut rest = woken;
        // Those of one VM in one message; a change rarely wakes more than one waiter.
        while let Some(first) = rest.first() {
            let told = rest.iter().take_while(|woken| woken.row == first.row).count();
            let (same, after) = rest.split_at_checked(told).unwrap_or((rest, &[]));
            rest = after;
            let mut message = Vec::with_capacity(8 + 8 * same.len());
            message.extend(pool.to_le_bytes());
            message.extend(same.iter().flat_map(|woken| woken.ticket.to_le_bytes()));
            if self.put(first.row, &message).is_err() {
                lost += same.len();
            }
        }
        lost
    }

    fn put(&mut self, row: u64, message: &[u8]) -> Result<(), HostError> {
        if let Some(queue) = self.known.get(&row) {
            return queue.put(message);
        }
        let vm_id = self.vm_id.get_or_insert_with(|| host::property("plugin_vm_id").unwrap_or_default());
        let queue = Queue::find(vm_id, &name(row))?;
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(row, queue);
        queue.put(message)
    }
}

/// What a message says: pool and ticket of each waiter.
pub(crate) fn read(message: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut words = message.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
    let pool = words.next();
    words.filter_map(move |ticket| Some((pool?, ticket)))
}
