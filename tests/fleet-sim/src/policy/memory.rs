//! Shared data in the memory of one process.

use weighbridge_routing::live::{SharedValue, StoreError};
use weighbridge_routing::prefix::index::{SHARDS, Shards};

/// The shared values of the holder index.
#[derive(Debug, Clone)]
pub struct Memory(Vec<Option<Vec<u8>>>);

impl Default for Memory {
    fn default() -> Self {
        Self(vec![None; SHARDS as usize])
    }
}

impl Memory {
    /// Bytes of the shards written so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.iter().flatten().map(Vec::len).sum()
    }
}

impl Shards for Memory {
    fn load(&mut self, shard: u64) -> (Option<Vec<u8>>, u32) {
        (self.0.get(shard as usize).cloned().flatten(), 1)
    }

    fn store(&mut self, shard: u64, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        let held = self.0.get_mut(shard as usize).ok_or(StoreError::Failed)?;
        match held {
            Some(held) => bytes.clone_into(held),
            None => *held = Some(bytes.to_vec()),
        }
        Ok(())
    }
}

/// The live table's value.
#[derive(Debug, Clone, Default)]
pub(super) struct Value(pub(super) Option<Vec<u8>>);

impl SharedValue for Value {
    fn load(&mut self) -> (Option<Vec<u8>>, u32) {
        (self.0.clone(), 1)
    }

    fn store(&mut self, bytes: &[u8], _: u32) -> Result<(), StoreError> {
        match &mut self.0 {
            Some(held) => bytes.clone_into(held),
            None => self.0 = Some(bytes.to_vec()),
        }
        Ok(())
    }
}
