//! Anyone, each with the same chance.
//!
//! A baseline: it knows neither weights nor loads nor prefixes. The hosts to try after the pick are the heaviest of the others.
//! Constant cost.

use super::score::Frame;
use super::{Candidate, Choice, Policy, Scene};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::weight::Weight;

/// Anyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random;

impl Policy for Random {
    fn weigh(&self, _: &Scene<'_>, _: &mut dyn Holders, candidates: &mut [Candidate]) -> Frame {
        for candidate in candidates {
            candidate.cost = 0.0;
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
        let place = rng.below(candidates.len() as u64) as usize;
        let chosen = *candidates.get(place)?;
        drawn.clear();
        drawn.push(place);
        Some((chosen, if candidates.len() == 1 { Choice::OnlyOne } else { Choice::Chance }))
    }

    fn unit(&self, _: &Scene<'_>, _: &Frame, _: Weight) -> Option<f64> {
        None
    }
}
