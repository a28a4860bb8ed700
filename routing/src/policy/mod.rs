//! The policies: which of the endpoints that may take a request takes it.
//!
//! | policy | compares (lowest wins) | among | a tie goes to | stays with prefix holders |
//! |---|---|---|---|---|
//! | [`p2c`] | requests in flight / weight, or what its curve leaves of that | `choices`, drawn by weight | the heavier, then chance | yes |
//! | [`least_pending_tokens`] | pending tokens / weight | `choices`, drawn by weight | the heavier, then chance | yes |
//! | [`score`] | a sum of seven terms | all | the heavier, then chance | yes |
//! | [`least_request`] | requests in flight | `choices`, drawn uniformly | chance | no |
//! | [`round_robin`] | whose turn it is | all | – | no |
//! | [`random`] | nothing | all | chance | no |
//!
//! The last three are baselines: they know neither weights nor prefixes.
//!
//! A [`Policy`] works in two steps. [`Policy::weigh`] writes into each candidate what it costs, in a unit of the policy's own;
//! [`Policy::choose`] picks one. In between nothing changes, and neither step changes anything but its arguments: the request
//! is counted by whoever asked, in the same compare-and-swap that gave the loads. Costs are never NaN, so candidates are always
//! in order: the cheaper first, of two that cost the same the heavier ([`Candidate::compare`]).
//!
//! Cost: linear in the number of candidates, each, and `O(choices x n)` for drawing. Nothing is allocated, except that
//! [`Policy::weigh`] may look into the holder index.

mod draw;
pub mod least_pending_tokens;
pub mod least_request;
pub mod p2c;
pub mod random;
pub mod round_robin;
pub mod score;

use std::cmp::Ordering;

pub use draw::Draw;
pub use least_pending_tokens::LeastPendingTokens;
pub use least_request::LeastRequest;
pub use p2c::P2c;
pub use random::Random;
pub use round_robin::RoundRobin;
pub use score::Score;

use crate::eligibility::{Ask, Load, View};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::signals::Signals;
use crate::snapshot::{Endpoint, Pool};
use crate::weight::Weight;

/// How many distinct endpoints a policy draws and compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choices {
    /// That many.
    Count(std::num::NonZeroU32),
    /// Every eligible one.
    All,
}

/// An endpoint that may take the request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Place in the pool.
    pub index: usize,
    /// Relative capacity.
    pub weight: Weight,
    /// What it costs to send the request there, in the policy's own unit. Never NaN.
    pub cost: f64,
}

impl Candidate {
    /// The cheaper first; of two that cost the same the heavier.
    #[must_use]
    pub fn compare(&self, other: &Candidate) -> Ordering {
        self.cost.total_cmp(&other.cost).then(other.weight.hundredths().cmp(&self.weight.hundredths()))
    }
}

/// What a policy looks at.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// The pool at this moment.
    pub view: View<'a>,
    /// The request.
    pub ask: &'a Ask,
}

impl Scene<'_> {
    fn endpoint(&self, candidate: &Candidate) -> Option<&Endpoint> {
        self.pool.endpoints.get(candidate.index)
    }

    fn load(&self, candidate: &Candidate) -> Load {
        self.view.loads.get(candidate.index).copied().unwrap_or_default()
    }

    fn signals(&self, candidate: &Candidate) -> Signals {
        self.view.signals.get(candidate.index).copied().unwrap_or_default()
    }
}

/// Why the chosen one was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// It was the only candidate.
    OnlyOne,
    /// Nobody had anything to do; it is the heaviest.
    AllIdle,
    /// It carries the least among those drawn.
    LowerLoad,
    /// It has the lowest score.
    LowerScore,
    /// It costs as much as another, and is heavier.
    TieHeavier,
    /// It costs as much as another, of the same weight or where weights do not count; chance decided.
    TieChance,
    /// It was its turn.
    Turn,
    /// Chance, and nothing else.
    Chance,
}

/// A way to choose.
pub trait Policy {
    /// Writes into each candidate what it costs to send the request there. Returns what [`Policy::terms`] needs to give
    /// reasons for it.
    fn weigh(&self, scene: &Scene<'_>, prefix: &mut dyn Holders, candidates: &mut [Candidate]) -> score::Frame;

    /// Picks one of the candidates, which have been weighed; `None` when there are none. `drawn` receives the places in
    /// `candidates` that were compared.
    fn choose(
        &self,
        scene: &Scene<'_>,
        candidates: &[Candidate],
        rng: &mut SplitMix64,
        drawn: &mut Vec<usize>,
    ) -> Option<(Candidate, Choice)>;

    /// How much one request per weight of [allowance](crate::affinity) is in this policy's unit, for an endpoint; `None` where
    /// the policy does not look at prefixes.
    fn unit(&self, scene: &Scene<'_>, frame: &score::Frame, weight: Weight) -> Option<f64>;

    /// What the cost of a candidate is made up of, where it is a sum.
    fn terms(
        &self,
        _scene: &Scene<'_>,
        _prefix: &mut dyn Holders,
        _frame: &score::Frame,
        _candidate: &Candidate,
    ) -> Option<score::Terms> {
        None
    }
}

/// One of the policies, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum AnyPolicy {
    /// See [`p2c`].
    P2c(P2c),
    /// See [`score`].
    Score(Score),
    /// See [`least_pending_tokens`].
    LeastPendingTokens(LeastPendingTokens),
    /// See [`round_robin`].
    RoundRobin(RoundRobin),
    /// See [`random`].
    Random(Random),
    /// See [`least_request`].
    LeastRequest(LeastRequest),
}

impl AnyPolicy {
    /// The names that a configuration may use.
    pub const NAMES: [&str; 6] = ["p2c", "score", "least_pending_tokens", "round_robin", "random", "least_request"];

    /// The policy of this name; `None` when there is none.
    #[must_use]
    pub fn named(name: &str, choices: Choices, score: Score) -> Option<Self> {
        Some(match name {
            "p2c" => AnyPolicy::P2c(P2c { choices, draw: Draw::ByWeight }),
            "score" => AnyPolicy::Score(score),
            "least_pending_tokens" => AnyPolicy::LeastPendingTokens(LeastPendingTokens { choices }),
            "round_robin" => AnyPolicy::RoundRobin(RoundRobin),
            "random" => AnyPolicy::Random(Random),
            "least_request" => AnyPolicy::LeastRequest(LeastRequest { choices }),
            _ => return None,
        })
    }

    /// The word in configurations, decisions and labels.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            AnyPolicy::P2c(_) => "p2c",
            AnyPolicy::Score(_) => "score",
            AnyPolicy::LeastPendingTokens(_) => "least_pending_tokens",
            AnyPolicy::RoundRobin(_) => "round_robin",
            AnyPolicy::Random(_) => "random",
            AnyPolicy::LeastRequest(_) => "least_request",
        }
    }

    /// What an endpoint carries for its weight, in the unit in which this policy counts: pending tokens, or requests in
    /// flight; for `p2c` by its curve, where the pool has curves.
    #[must_use]
    pub fn compared(&self, pool: &Pool, endpoint: &Endpoint, load: &Load) -> f64 {
        match self {
            AnyPolicy::LeastPendingTokens(_) => endpoint.weight.per_weight(load.pending_tokens.into()),
            AnyPolicy::P2c(_) => pool.load(endpoint, load.total()),
            _ => endpoint.weight.per_weight(load.total().into()),
        }
    }

    /// The share of its weight that this policy takes an endpoint to have with one request more; `None` where it compares by
    /// weight alone.
    #[must_use]
    pub fn share(&self, pool: &Pool, endpoint: &Endpoint, load: &Load) -> Option<f64> {
        match self {
            AnyPolicy::P2c(_) => pool.share(endpoint, load.total()),
            _ => None,
        }
    }

    /// The policy itself.
    #[must_use]
    pub fn get(&self) -> &dyn Policy {
        match self {
            AnyPolicy::P2c(policy) => policy,
            AnyPolicy::Score(policy) => policy,
            AnyPolicy::LeastPendingTokens(policy) => policy,
            AnyPolicy::RoundRobin(policy) => policy,
            AnyPolicy::Random(policy) => policy,
            AnyPolicy::LeastRequest(policy) => policy,
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
