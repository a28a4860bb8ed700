//! By the hash of the first 256 characters of the prompt, whatever the load.
//!
//! Source: ring hash over a header or the beginning of the body, as gateways without a notion of prefixes are set up to
//! keep conversations together; `prefix_hash` of smg without its load factor. Missing signals: needs none.

use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, to};
use crate::workload::Call;

/// The rule.
#[derive(Debug)]
pub(super) struct Hash;

impl Rule for Hash {
    fn pick(&mut self, call: &Call, sight: &Sight<'_>, _: &mut SplitMix64) -> Option<Routed> {
        to(*sight.ready.get(call.first.checked_rem(sight.ready.len() as u64)? as usize)?)
    }
}
