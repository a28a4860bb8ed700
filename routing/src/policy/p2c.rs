//! Weighted power of two choices.
//!
//! Draw `choices` distinct candidates, each draw in proportion to weight among those not drawn yet, and take the one
//! with the lower `in_flight / weight`. Both halves matter: comparing by capacity keeps counts proportional to it, and
//! drawing by capacity makes sure that the large endpoints are looked at. Drawn uniformly, the fastest of n is a
//! candidate only 2/n of the time, and the slow ones fill up meanwhile.
//!
//! Two rules on top:
//! - when every candidate is idle, the heaviest takes the request: on a quiet network the fastest machine answers;
//! - a tie goes to the higher weight, and between equal weights to chance (else one of four equal idle endpoints would
//!   get everything).
//!
//! With `by: curve` the weight is what the endpoint has left of it at so many requests, and the request at hand is counted
//! ([`Pool::load`](crate::snapshot::Pool::load)): of those drawn it goes where its tokens come fastest. Equal loads are equal
//! speeds then, while equal `in_flight / weight` leaves a slow endpoint slow: engines of 980 and 240 tokens/s at 16 requests
//! (curves 106, 688, 980, 1,440 and 60, 200, 240, 235 at 1, 8, 16, 32) that have 20 and 5 give each request 55 and 28.
//!
//! Requests in flight are those of this Envoy and, as far as it has been told, those from elsewhere; without signals its own.
//! One request of affinity's allowance is one request.
//!
//! Cost: `O(choices x n)` for drawing, `O(n)` when `choices` covers all.
//!
//! Source: Mitzenmacher, "The power of two choices in randomized load balancing" (2001); drawing in proportion to
//! capacity: Berenbrink et al., "Balls into non-uniform bins" (2014).

use super::draw::{Draw, Tie, best, draw};
use super::score::Frame;
use super::{Candidate, Choice, Choices, Policy, Scene};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::weight::Weight;

/// The fewest requests in flight per weight, of `choices` drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct P2c {
    /// How many are drawn.
    pub choices: Choices,
    /// How they are drawn. Uniformly is for comparison in simulations; no configuration selects it.
    pub draw: Draw,
}

impl Policy for P2c {
    fn weigh(&self, scene: &Scene<'_>, _: &mut dyn Holders, candidates: &mut [Candidate]) -> Frame {
        for candidate in candidates {
            let in_flight = scene.load(candidate).total();
            // Candidates are places of the pool: there is always one.
            let load = scene.endpoint(candidate).map(|endpoint| scene.pool.load(endpoint, in_flight));
            candidate.cost = load.unwrap_or(f64::INFINITY);
        }
        Frame::default()
    }

    fn choose(
        &self,
        scene: &Scene<'_>,
        candidates: &[Candidate],
        rng: &mut SplitMix64,
        drawn: &mut Vec<usize>,
    ) -> Option<(Candidate, Choice)> {
        let all_idle = candidates.iter().all(|candidate| scene.load(candidate).total() == 0);
        choose(candidates, all_idle, self.choices, self.draw, rng, drawn)
    }

    fn unit(&self, _: &Scene<'_>, _: &Frame, _: Weight) -> Option<f64> {
        Some(1.0)
    }
}

/// The cheapest of `choices` drawn; when nobody has anything to do, of all.
pub(super) fn choose(
    candidates: &[Candidate],
    all_idle: bool,
    choices: Choices,
    how: Draw,
    rng: &mut SplitMix64,
    drawn: &mut Vec<usize>,
) -> Option<(Candidate, Choice)> {
    draw(candidates, if all_idle { Choices::All } else { choices }, how, rng, drawn);
    let (best, choice) = best(candidates, drawn, Tie::Heavier, Choice::LowerLoad, rng)?;
    Some((best, if all_idle && choice != Choice::OnlyOne { Choice::AllIdle } else { choice }))
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    fn candidates(of: &[(f64, u32)]) -> Vec<Candidate> {
        of.iter()
            .enumerate()
            .map(|(index, (weight, in_flight))| Candidate {
                index,
                weight: Weight::try_new(*weight).unwrap(),
                cost: Weight::try_new(*weight).unwrap().per_weight(f64::from(*in_flight)),
            })
            .collect()
    }

    fn two() -> Choices {
        Choices::Count(NonZeroU32::new(2).unwrap())
    }

    fn run(of: &[(f64, u32)], choices: Choices, seed: u64) -> (usize, Choice) {
        let all_idle = of.iter().all(|(_, in_flight)| *in_flight == 0);
        let (chosen, how) =
            choose(&candidates(of), all_idle, choices, Draw::ByWeight, &mut SplitMix64::seeded(seed), &mut Vec::new())
                .unwrap();
        (chosen.index, how)
    }

    /// How often each is picked when every pick is committed and nothing is released.
    fn fill(weights: &[f64], requests: u32, choices: Choices) -> Vec<u32> {
        let mut state: Vec<(f64, u32)> = weights.iter().map(|weight| (*weight, 0)).collect();
        for seed in 0..requests {
            let (index, _) = run(&state, choices, u64::from(seed));
            state[index].1 += 1;
        }
        state.into_iter().map(|(_, in_flight)| in_flight).collect()
    }

    #[test]
    fn sixteen_requests_split_by_capacity() {
        assert_eq!(fill(&[1.34, 0.66], 16, two()), [11, 5]);
        // The old hand-set table, where the slower pair was taken for the stronger.
        assert_eq!(fill(&[1.0, 3.5], 16, two()), [4, 12]);
    }

    #[test]
    fn on_a_quiet_network_the_heaviest_answers() {
        for seed in 0..100 {
            assert_eq!(run(&[(0.66, 0), (1.34, 0), (0.25, 0), (0.3, 0)], two(), seed), (1, Choice::AllIdle));
        }
    }

    #[test]
    fn a_tie_goes_to_the_higher_weight_and_says_so() {
        assert_eq!(run(&[(0.5, 1), (1.0, 2)], Choices::All, 1), (1, Choice::TieHeavier));
        assert_eq!(run(&[(1.0, 2), (0.5, 1)], Choices::All, 1), (0, Choice::TieHeavier));
        assert_eq!(run(&[(1.0, 2), (0.5, 2)], Choices::All, 1), (0, Choice::LowerLoad));
        assert_eq!(run(&[(1.0, 2)], Choices::All, 1), (0, Choice::OnlyOne));
    }

    // Case C6: four idle equal endpoints, one request at a time: spread, not always the first.
    #[test]
    fn c6_equal_idle_endpoints_share() {
        let mut seen = [0; 4];
        for seed in 0..4_000 {
            seen[run(&[(1.0, 0); 4], two(), seed).0] += 1;
        }
        assert!(seen.iter().all(|count| (880..1_120).contains(count)), "{seen:?}");
    }

    // Case C7: two equally good endpoints among eight split 1:1.
    #[test]
    fn c7_two_good_ones_among_eight_split_evenly() {
        let fleet: Vec<(f64, u32)> = (0..8).map(|nth| (1.0, if nth == 2 || nth == 6 { 1 } else { 9 })).collect();
        let mut seen = [0; 8];
        for seed in 0..10_000 {
            seen[run(&fleet, Choices::All, seed).0] += 1;
        }
        assert!((4_700..5_300).contains(&seen[2]) && seen[2] + seen[6] == 10_000, "{seen:?}");
    }

    // Case C2: endpoints of 8 and 2 GPUs get about 4:1.
    #[test]
    fn c2_traffic_follows_capacity() {
        assert_eq!(fill(&[1.6, 0.4], 500, two()), [400, 100]);
    }

    #[test]
    fn draws_follow_the_weights_or_not_as_told() {
        let fleet = candidates(&[(8.0, 1), (1.0, 1), (1.0, 1), (1.0, 1)]);
        // The first is missed with chance 3/11 x 2/10 by weight, 3/4 x 2/3 uniformly.
        for (draw, expected) in [(Draw::ByWeight, 1.0 - 6.0 / 110.0), (Draw::Uniformly, 0.5)] {
            let (mut rng, mut drawn, mut with_first) = (SplitMix64::seeded(3), Vec::new(), 0);
            for _ in 0..10_000 {
                choose(&fleet, false, two(), draw, &mut rng, &mut drawn).unwrap();
                assert_eq!(drawn.len(), 2);
                with_first += usize::from(drawn.contains(&0));
            }
            assert!((with_first as f64 / 10_000.0 - expected).abs() < 0.02, "{draw:?}: {with_first}");
        }
    }

    proptest! {
        #[test]
        fn the_pick_is_the_least_loaded_of_those_drawn(
            fleet in proptest::collection::vec((0.01f64..100.0, 0u32..50), 1..20), count in 1u32..6, seed in any::<u64>()
        ) {
            let all_idle = fleet.iter().all(|(_, in_flight)| *in_flight == 0);
            let fleet = candidates(&fleet);
            let mut drawn = Vec::new();
            let choices = Choices::Count(NonZeroU32::new(count).unwrap());
            let (best, _) = choose(&fleet, all_idle, choices, Draw::ByWeight, &mut SplitMix64::seeded(seed), &mut drawn).unwrap();
            let mut distinct = drawn.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), drawn.len());
            prop_assert!(drawn.contains(&best.index));
            for place in drawn {
                prop_assert!(best.compare(&fleet[place]) != Ordering::Greater);
            }
        }

        #[test]
        fn in_flight_stays_within_one_of_its_share(weights in proptest::collection::vec(0.25f64..8.0, 2..8), requests in 1u32..300) {
            let filled = fill(&weights, requests, Choices::All);
            // Greedy filling keeps every load within one request of every other's.
            for (a, wa) in filled.iter().zip(&weights) {
                for (b, wb) in filled.iter().zip(&weights) {
                    let lowest = f64::from(a.saturating_sub(1)) / wa;
                    prop_assert!(lowest <= f64::from(*b) / wb * 1.03 + 1e-9, "{filled:?} {weights:?}");
                }
            }
        }
    }
}
