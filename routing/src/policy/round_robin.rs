//! One after the other.
//!
//! A baseline: it knows neither weights nor loads nor prefixes. The turn is the number of requests that the pool has placed so
//! far, which stands in the live table and is counted in the swap that places a request: worker threads take turns with each
//! other, and the counter cannot run ahead of the picks. Of n candidates the one at place `turn mod n` is next, and the ones
//! after it are the next to try. When an endpoint comes or goes the sequence jumps; nobody gets two turns for it. Constant cost.

use super::score::Frame;
use super::{Candidate, Choice, Policy, Scene};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::weight::Weight;

/// One after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundRobin;

/// The place of the candidate whose turn it is.
fn next(scene: &Scene<'_>, candidates: &[Candidate]) -> usize {
    (scene.view.turn as usize).checked_rem(candidates.len()).unwrap_or_default()
}

impl Policy for RoundRobin {
    fn weigh(&self, scene: &Scene<'_>, _: &mut dyn Holders, candidates: &mut [Candidate]) -> Frame {
        let (next, count) = (next(scene, candidates), candidates.len());
        for (place, candidate) in candidates.iter_mut().enumerate() {
            let steps = if place < next { place + count - next } else { place - next };
            candidate.cost = steps as f64;
        }
        Frame::default()
    }

    fn choose(
        &self,
        scene: &Scene<'_>,
        candidates: &[Candidate],
        _: &mut SplitMix64,
        drawn: &mut Vec<usize>,
    ) -> Option<(Candidate, Choice)> {
        let place = next(scene, candidates);
        let chosen = *candidates.get(place)?;
        drawn.clear();
        drawn.push(place);
        Some((chosen, if candidates.len() == 1 { Choice::OnlyOne } else { Choice::Turn }))
    }

    fn unit(&self, _: &Scene<'_>, _: &Frame, _: Weight) -> Option<f64> {
        None
    }
}
