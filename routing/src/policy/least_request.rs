//! The fewest requests in flight, of `choices` drawn uniformly: what Envoy's `LEAST_REQUEST` does with equal weights.
//!
//! A baseline. It knows neither weights nor prefixes, so a small machine gets as much as a large one until it is slower; chance
//! decides ties. Requests from elsewhere count as far as they are known. Linear in the number of candidates.

use super::draw::{Draw, Tie, best, draw};
use super::score::Frame;
use super::{Candidate, Choice, Choices, Policy, Scene};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::weight::Weight;

/// The fewest requests in flight, of `choices` drawn uniformly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeastRequest {
    /// How many are drawn.
    pub choices: Choices,
}

impl Policy for LeastRequest {
    fn weigh(&self, scene: &Scene<'_>, _: &mut dyn Holders, candidates: &mut [Candidate]) -> Frame {
        for candidate in candidates {
            candidate.cost = scene.load(candidate).total().into();
        }
        Frame::default()
    }

    fn choose(
        &self,
        _: &Scene<'_>,
        candidates: &[Candidate],
        rng: &mut SplitMix64,
        drawn: &mut Vec<usize>,
    ) -> Option<(Candidate, Choice)> {
        draw(candidates, self.choices, Draw::Uniformly, rng, drawn);
        best(candidates, drawn, Tie::Chance, Choice::LowerLoad, rng)
    }

    fn unit(&self, _: &Scene<'_>, _: &Frame, _: Weight) -> Option<f64> {
        None
    }
}
