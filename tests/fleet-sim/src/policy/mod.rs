//! How a request finds its endpoint: ours, what others do, and a scheduler that knows everything.

mod cache_aware;
mod epp;
mod hash;
mod least_request;
mod lmetric;
mod memory;
mod oracle;
mod ours;
mod power_of_two;
mod random;
mod round_robin;
mod rule;
mod seen;
mod weighted_least_request;

use clap::ValueEnum;
use engine_sim::model::{Model, Nanos};
use weighbridge_routing::policy::{AnyPolicy, Draw};
use weighbridge_routing::signals::Signals;

pub use memory::Memory;
pub use oracle::{Aim, Oracle};
pub use ours::{Ours, Tuning};
pub use rule::{Rule, Ruled, Sight};

use crate::fleet::Fleet;
use crate::workload::Call;

/// A policy by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Policy {
    /// Ours: the holder of the prefix within the allowance, else two drawn by weight, the lower in-flight per weight.
    Affinity,
    /// The same by their curves in the place of weights (`policy.by: curve`).
    ByCurve,
    /// By weight and without affinity.
    P2c,
    /// As p2c, but drawn uniformly.
    Uniform,
    /// Ours by score, with affinity and what the engines say.
    Score,
    /// Ours by pending tokens per weight, with affinity.
    LeastPendingTokens,
    /// One after the other.
    RoundRobin,
    /// Anyone.
    Random,
    /// The fewest requests in flight of all (nginx least_conn, haproxy leastconn).
    LeastRequest,
    /// Envoy's least request where weights differ, with the measured weights as static ones.
    WeightedLeastRequest,
    /// The fewer requests in flight of two drawn uniformly (Envoy's least request with equal weights, smg, vllm-router).
    PowerOfTwo,
    /// By the hash of the first 256 characters.
    Hash,
    /// An approximate prefix tree with thresholds (sglang-router, vllm-router).
    CacheAware,
    /// New prefill tokens times batch size.
    Lmetric,
    /// The weighted scorers of the endpoint picker of the Gateway API inference extension.
    Epp,
    /// Knows all, and chooses what is done soonest.
    Oracle,
    /// Knows all, and chooses what costs everybody together the least time.
    OracleAll,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Affinity,
        Self::ByCurve,
        Self::P2c,
        Self::LeastPendingTokens,
        Self::Score,
        Self::Uniform,
        Self::RoundRobin,
        Self::Random,
        Self::LeastRequest,
        Self::WeightedLeastRequest,
        Self::PowerOfTwo,
        Self::Hash,
        Self::CacheAware,
        Self::Lmetric,
        Self::Epp,
        Self::Oracle,
        Self::OracleAll,
    ];

    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Whether a gateway can run it: not what knows everything.
    #[must_use]
    pub fn is_oracle(self) -> bool {
        matches!(self, Self::Oracle | Self::OracleAll)
    }

    /// Whether it is what the filter runs.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Affinity | Self::ByCurve | Self::P2c | Self::LeastPendingTokens | Self::Score)
    }

    /// Whether others run it: what ours has to be ahead of.
    #[must_use]
    pub fn is_peer(self) -> bool {
        !self.is_oracle() && !self.is_ours() && self != Self::Uniform
    }

    /// A router of this kind for one gateway of a fleet. `seed` decides what is left to chance.
    ///
    /// # Errors
    /// When the routing code refuses the pool.
    pub fn router(self, fleet: &Fleet, tuning: &Tuning, seed: u64) -> anyhow::Result<Box<dyn Router>> {
        let ours = |policy: &str, affinity: bool, draw| -> anyhow::Result<Box<dyn Router>> {
            let tuning = Tuning { policy: policy.into(), affinity, ..tuning.clone() };
            let mut ours = Ours::new(fleet.clone(), tuning, seed)?;
            if let AnyPolicy::P2c(p2c) = &mut ours.pool_mut().policy {
                p2c.draw = draw;
            }
            Ok(Box::new(ours))
        };
        let (count, patience_ms) = (fleet.engines.len(), tuning.max_wait_ms);
        let weights = || -> anyhow::Result<Vec<f64>> {
            let pool = fleet.pool(&Tuning::default(), &[])?;
            Ok(pool.endpoints.iter().map(|endpoint| endpoint.weight.get()).collect())
        };
        let kv_tokens = || fleet.engines.iter().map(|engine| engine.kv_capacity_tokens).collect();
        let by = Draw::ByWeight;
        Ok(match self {
            Self::P2c => ours("p2c", false, by)?,
            Self::Affinity => ours("p2c", true, by)?,
            Self::ByCurve => {
                let tuning = Tuning { curve: true, ..tuning.clone() };
                Box::new(Ours::new(fleet.clone(), tuning, seed)?)
            }
            Self::LeastPendingTokens => ours("least_pending_tokens", true, by)?,
            Self::Score => ours("score", true, by)?,
            Self::Uniform => ours("p2c", false, Draw::Uniformly)?,
            Self::RoundRobin => ruled(round_robin::RoundRobin::default(), count, seed),
            Self::Random => ruled(random::Random, count, seed),
            Self::LeastRequest => ruled(least_request::LeastRequest, count, seed),
            Self::WeightedLeastRequest => {
                ruled(weighted_least_request::WeightedLeastRequest::new(&weights()?), count, seed)
            }
            Self::PowerOfTwo => ruled(power_of_two::PowerOfTwo, count, seed),
            Self::Hash => ruled(hash::Hash, count, seed),
            Self::CacheAware => ruled(cache_aware::CacheAware::new(count), count, seed),
            Self::Lmetric => ruled(lmetric::LMetric::new(kv_tokens()), count, seed),
            Self::Epp => ruled(epp::Epp::new(kv_tokens()), count, seed),
            Self::Oracle => ruled(Oracle { aim: Aim::Own, patience_ms }, count, seed),
            Self::OracleAll => ruled(Oracle { aim: Aim::All, patience_ms }, count, seed),
        })
    }
}

fn ruled(rule: impl Rule + 'static, endpoints: usize, seed: u64) -> Box<dyn Router> {
    Box::new(Ruled::new(rule, endpoints, seed))
}

/// A request as its gateway sees it.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Its number.
    pub id: u64,
    /// What it is.
    pub call: &'a Call,
    /// 0 is served first.
    pub priority: u8,
    /// When it came.
    pub now: Nanos,
    /// The engines as they are. Only an oracle may look.
    pub engines: &'a [Model],
}

impl Arrival<'_> {
    /// When it came, in ms.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now / 1_000_000
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

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It goes to an endpoint, and is counted there until [`Router::ended`].
    To(Routed),
    /// It waits, until [`Router::granted`] names it or this time (ms).
    Waits {
        /// When it has waited long enough.
        until_ms: u64,
    },
    /// It goes nowhere.
    Refused,
}

/// How a request ended at its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Well, having put so many tokens into the engine's cache.
    Served {
        /// Uncached prompt and answer.
        added_tokens: u64,
    },
    /// The connection broke or was refused.
    Failed,
    /// Its engine refused it as too long.
    TooLong,
}

/// What a gateway has at an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Own {
    /// Requests in flight.
    pub in_flight: u32,
    /// Tokens that these still have to compute or to generate.
    pub pending_tokens: u32,
}

/// How much a gateway keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// The value of the live table.
    pub live_bytes: usize,
    /// What is remembered about prefixes.
    pub index_bytes: usize,
}

/// A gateway's brain. Places of endpoints are those of the fleet.
pub trait Router {
    /// A request arrives.
    fn route(&mut self, arrival: &Arrival<'_>) -> Answer;

    /// A request that was sent to an endpoint was cut off before its answer began, and is tried again.
    fn retry(&mut self, arrival: &Arrival<'_>) -> Answer {
        self.ended(arrival.id, Ended::Failed, arrival.now_ms());
        self.route(arrival)
    }

    /// Its response begins.
    fn first_token(&mut self, id: u64, now_ms: u64);

    /// It is done.
    fn ended(&mut self, id: u64, how: Ended, now_ms: u64);

    /// Its patience is over: whether it was still waiting.
    fn give_up(&mut self, _id: u64, _now_ms: u64) -> bool {
        false
    }

    /// Those that waited and have got a slot since this was last asked.
    fn granted(&mut self) -> Vec<(u64, Routed)> {
        Vec::new()
    }

    /// What the prober says about the endpoints.
    fn hear(&mut self, _signals: &[Signals], _now_ms: u64) {}

    /// How often it hears from the prober, whose interval is given, among so many gateways; `None`: it need not.
    fn hears(&self, _gateways: usize, _interval: Nanos) -> Option<Nanos> {
        None
    }

    /// Which endpoints are there, by the prober's health checks; `restarted` has lost its cache.
    fn health(&mut self, _ready: &[bool], _restarted: Option<usize>, _now_ms: u64) {}

    /// What it has in flight itself.
    fn own(&self, _into: &mut Vec<Own>) {}

    /// How much it keeps.
    fn size(&self) -> Size {
        Size::default()
    }
}
