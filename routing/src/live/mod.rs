//! The live table: what each endpoint of a pool has in flight, and who waits, shared by all worker threads of one Envoy.
//!
//! One binary value per pool in proxy-wasm shared data ([`table`]). It has a slot per endpoint, keyed by a hash of the
//! endpoint and never by its place in the snapshot (VMs may hold different snapshots for a moment), a row per VM, and
//! the queue. A VM keeps its true counts and waiters to itself ([`row`]) and writes its **absolute** row whenever it swaps
//! the value, so a lost write, a lost value and a row dropped by mistake all heal at the next swap. Every change is one
//! compare-and-swap ([`transact`]): the pick and its increment cannot be separated by another thread's pick, nor a
//! slot that frees from its hand-over to a waiter ([`queue`]).
//!
//! [`beats`] tells which rows still have a VM behind them; [`Row::sweep`] drops the others.
//!
//! Cost of a change: one read and one write of the whole value (40 + 56 per endpoint + 8 per row + 13 per endpoint and
//! row bytes: 7.0 KB for 64 endpoints and 4 rows; 80 bytes more per waiter), and a scan over it.

pub mod beats;
mod claim;
pub mod passive;
pub mod queue;
pub mod row;
mod sweep;
pub mod table;
pub mod waiter;

pub use claim::{Claim, Left, Own, Standing, Waited};
pub use passive::{Ejected, Outcome, Passive, Report};
pub use row::{Admitted, Charge, Look, Question, Queued, Refused, Row, Verdict};
pub use sweep::Swept;
pub use table::Table;

/// Prompts with less left to compute than this stay pending to their end and are no prefill: the swap would cost more
/// than it tells.
pub const WORTH_TELLING_TOKENS: u32 = 256;

/// The most tokens of a kind that one request counts as pending.
const MOST_CHARGED_TOKENS: u32 = 1 << 24;

/// A waiter that has got a slot, and the VM that has to come for it ([`Row::claim`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Woken {
    /// The id of the VM's row.
    pub row: u64,
    /// The waiter's ticket.
    pub ticket: u64,
}

/// What a change of the table came to.
#[derive(Debug, Clone)]
#[must_use = "waiters that got a slot have to be woken"]
pub struct Change<T> {
    /// Its result.
    pub result: T,
    /// The waiters that have got a slot by it. Waking them is the caller's; one who is not woken finds out by
    /// [`Row::standing`].
    pub woken: Vec<Woken>,
    /// Whether the shared value knows of it; otherwise that heals at the next change.
    pub stored: Result<(), StoreError>,
}

impl<T> Change<T> {
    fn new((result, woken): (T, Vec<Woken>), stored: Result<(), StoreError>) -> Self {
        // What nobody else can see has not happened.
        let woken = if stored.is_ok() { woken } else { Vec::new() };
        Change { result, woken, stored }
    }

    /// The same with another result.
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Change<U> {
        Change { result: with(self.result), woken: self.woken, stored: self.stored }
    }
}

/// A value in shared memory with a version.
pub trait SharedValue {
    /// The bytes (`None` when nobody has written any) and a token for [`SharedValue::store`].
    fn load(&mut self) -> (Option<Vec<u8>>, u32);

    /// Writes if nobody has written since the `load` that gave the token.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when somebody has, [`StoreError::Failed`] when the memory refuses.
    fn store(&mut self, bytes: &[u8], token: u32) -> Result<(), StoreError>;
}

/// Why a write did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote in between.
    #[error("the shared value changed in between")]
    Conflict,
    /// The memory refuses.
    #[error("the shared value cannot be written")]
    Failed,
}

/// Tries of one change. Measured on two threads: 3 to 8 % need a second one, none more than 10. Threads that do nothing
/// but change the table and are preempted at the wrong moments have needed more than 64; beyond this many something is
/// wrong, and the request goes on without having been counted by the others (its own VM still counts it, and the next
/// swap tells them).
pub const MAX_TRIES: u32 = 1_000;

/// What a change wants done with the table it worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Write it.
    Store,
    /// Leave the shared value as it is.
    Leave,
}

/// Applies a change to the table with one compare-and-swap, again from the start when somebody came in between.
///
/// `change` may run several times and must not keep anything from an earlier run. A value that does not decode (it can
/// only come from another format under the same key) counts as empty.
///
/// Returns what the last run returned, and whether the shared value holds it.
pub fn transact<T>(
    value: &mut impl SharedValue,
    mut change: impl FnMut(&mut Table) -> (T, Then),
) -> (T, Result<(), StoreError>) {
    let mut tries = 0;
    loop {
        let (bytes, token) = value.load();
        let mut table = bytes.and_then(Table::decode).unwrap_or_default();
        let (result, then) = change(&mut table);
        if then == Then::Leave {
            return (result, Ok(()));
        }
        match value.store(table.bytes(), token) {
            Ok(()) => return (result, Ok(())),
            Err(StoreError::Conflict) if tries < MAX_TRIES => tries += 1,
            Err(error) => return (result, Err(error)),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::{SharedValue, StoreError, Table};
    use crate::snapshot::{Pool, Snapshot};

    /// Shared data as Envoy has it: one mutex, whole values, a version that a write must name.
    #[derive(Clone, Default)]
    pub(crate) struct Memory(pub(crate) Arc<Mutex<(Option<Vec<u8>>, u32)>>);

    impl Memory {
        pub(crate) fn table(&self) -> Table {
            self.0.lock().unwrap().0.clone().and_then(Table::decode).unwrap_or_default()
        }
    }

    impl SharedValue for Memory {
        fn load(&mut self) -> (Option<Vec<u8>>, u32) {
            self.0.lock().unwrap().clone()
        }

        fn store(&mut self, bytes: &[u8], token: u32) -> Result<(), StoreError> {
            let mut held = self.0.lock().unwrap();
            if held.1 != token {
                return Err(StoreError::Conflict);
            }
            *held = (Some(bytes.to_vec()), token + 1);
            Ok(())
        }
    }

    /// A pool of endpoints with these weights, each with the same cap.
    pub(crate) fn pool(weights: &[f64], cap: u32) -> Pool {
        pool_with(weights, cap, json!({}))
    }

    /// The same with admission settings.
    pub(crate) fn pool_with(weights: &[f64], cap: u32, admission: serde_json::Value) -> Pool {
        let endpoint = |(nth, weight): (usize, &f64)| json!({"id": format!("e{nth}"), "address": format!("10.0.0.1:{}", nth + 1), "weight": weight, "cap": cap});
        let endpoints: Vec<_> = weights.iter().enumerate().map(endpoint).collect();
        let pool = json!({"name": "p", "models": ["m"], "admission": admission, "endpoints": endpoints});
        let snapshot = json!({"format": 1, "version": 1, "pools": [pool]}).to_string();
        Snapshot::from_json(snapshot.as_bytes()).unwrap().pools.remove(0)
    }
}
