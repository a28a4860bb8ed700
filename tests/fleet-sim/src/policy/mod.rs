//! How a request finds its endpoint: ours, and baselines.

mod baselines;
mod ours;

use clap::ValueEnum;
use weighbridge_routing::policy::{AnyPolicy, Draw};
use weighbridge_routing::signals::Signals;

pub use ours::{Memory, Ours};

use crate::fleet::Fleet;
use crate::workload::Call;

/// A policy by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Policy {
    /// Ours without affinity: two drawn in proportion to weight, the lower in-flight per weight.
    P2c,
    /// Ours: the holder of the prefix within the allowance, else as p2c.
    Affinity,
    /// As p2c, but drawn uniformly.
    Uniform,
    /// Ours by score, with affinity and what the engines say every 250 ms.
    Score,
    /// One after the other.
    RoundRobin,
    /// Anyone.
    Random,
    /// Of two drawn uniformly, the one with fewer requests in flight.
    LeastRequest,
    /// By the hash of the first 256 characters.
    Hash,
    /// Ours by pending tokens per weight, with affinity.
    LeastPendingTokens,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::P2c,
        Self::Affinity,
        Self::LeastPendingTokens,
        Self::Score,
        Self::Uniform,
        Self::RoundRobin,
        Self::Random,
        Self::LeastRequest,
        Self::Hash,
    ];

    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// A router of this kind for a fleet. `k` is the factor of the allowance, `seed` decides what is left to chance.
    ///
    /// # Errors
    /// When the routing code refuses the pool.
    pub fn router(self, fleet: &Fleet, k: f64, median_output: u64, seed: u64) -> anyhow::Result<Box<dyn Router>> {
        let ours = |policy, affinity| -> anyhow::Result<Box<dyn Router>> {
            Ok(Box::new(Ours::new(fleet.pool(policy, 2, affinity, k)?, median_output, seed)))
        };
        // What others do has no cap: what an engine cannot run yet waits there.
        let uncapped = |policy| -> anyhow::Result<Box<dyn Router>> {
            let mut pool = fleet.pool(policy, 2, false, k)?;
            pool.endpoints.iter_mut().for_each(|endpoint| endpoint.cap = u32::MAX);
            Ok(Box::new(Ours::new(pool, median_output, seed)))
        };
        match self {
            Self::P2c => ours("p2c", false),
            Self::Affinity => ours("p2c", true),
            Self::LeastPendingTokens => ours("least_pending_tokens", true),
            Self::Score => ours("score", true),
            Self::Uniform => {
                let mut pool = fleet.pool("p2c", 2, false, k)?;
                if let AnyPolicy::P2c(p2c) = &mut pool.policy {
                    p2c.draw = Draw::Uniformly;
                }
                Ok(Box::new(Ours::new(pool, median_output, seed)))
            }
            Self::RoundRobin => uncapped("round_robin"),
            Self::Random => uncapped("random"),
            Self::LeastRequest => uncapped("least_request"),
            Self::Hash => Ok(Box::new(baselines::Hash::new(fleet.engines.len()))),
        }
    }
}

/// Where a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routed {
    /// Place of the endpoint.
    pub endpoint: usize,
    /// Prompt tokens that the router believes to be there; 0 where it knows nothing of prefixes.
    pub believed_tokens: u64,
}

/// A gateway's brain.
pub trait Router {
    /// Where a request goes; `None` when it is refused. It is counted there until [`Router::finished`].
    fn route(&mut self, id: u64, call: &Call, now_ms: u64) -> Option<Routed>;
    /// Its response begins.
    fn first_token(&mut self, id: u64, now_ms: u64);
    /// It is done, having put so many tokens into the engine's cache.
    fn finished(&mut self, id: u64, added_tokens: u64, now_ms: u64);
    /// What the engines say, in the order of the fleet.
    fn hear(&mut self, _: &[Signals]) {}
    /// Bytes of what it remembers about prefixes.
    fn index_bytes(&self) -> usize {
        0
    }
}
