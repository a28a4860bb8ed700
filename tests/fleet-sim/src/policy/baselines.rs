//! What others do and we have no policy for, reduced to the rule. It has no cap: what an engine cannot run yet waits there.

use super::{Routed, Router};
use crate::workload::Call;

/// By the hash of the first 256 characters, whatever the load.
pub(super) struct Hash {
    endpoints: u64,
}

impl Hash {
    pub(super) fn new(endpoints: usize) -> Self {
        Self { endpoints: endpoints as u64 }
    }
}

impl Router for Hash {
    fn route(&mut self, _: u64, call: &Call, _: u64) -> Option<Routed> {
        let endpoint = call.first.checked_rem(self.endpoints)? as usize;
        Some(Routed { endpoint, believed_tokens: 0 })
    }

    fn first_token(&mut self, _: u64, _: u64) {}

    fn finished(&mut self, _: u64, _: u64, _: u64) {}
}
