//! The live table: how many requests each endpoint of a pool has in flight, shared by all worker threads of one Envoy.
//!
//! One binary value per pool in proxy-wasm shared data ([`table`]). It has a slot per endpoint, keyed by a hash of the
//! endpoint and never by its place in the snapshot (VMs may hold different snapshots for a moment), and a row per VM.
//! A VM keeps its true counts to itself ([`row`]) and writes its **absolute** row whenever it swaps the value, so a
//! lost write, a lost value and a row dropped by mistake all heal at the next swap. Every change is one
//! compare-and-swap ([`transact`]): the pick and its increment cannot be separated by another thread's pick.
//!
//! [`beats`] tells which rows still have a VM behind them.
//!
//! Cost of a change: one read and one write of the whole value (16 + 32 per endpoint + 8 per row + 8 per endpoint and
//! row bytes: 4.2 KB for 64 endpoints and 4 rows), and a scan over it.

pub mod beats;
pub mod row;
pub mod table;

pub use row::{Admitted, Charge, Outcome, Question, Report, Row};
pub use table::Table;

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

    use super::{SharedValue, StoreError};

    /// Shared data as Envoy has it: one mutex, whole values, a version that a write must name.
    #[derive(Clone, Default)]
    pub(crate) struct Memory(pub(crate) Arc<Mutex<(Option<Vec<u8>>, u32)>>);

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
}
