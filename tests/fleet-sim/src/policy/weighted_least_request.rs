//! Envoy's least request where weights differ: weighted round robin, in which each endpoint's weight is divided by what it has
//! in flight.
//!
//! Rule: earliest deadline first. Whose turn it is comes again after `1 / (weight / (in flight + 1))` of virtual time,
//! reckoned with what is in flight at that moment, before this request. Weights are whole numbers from 1 to 128.
//!
//! Source: Envoy's documentation of `LEAST_REQUEST` (`active_request_bias` 1). The weights here are the measured ones times 16:
//! the best that somebody who sets them by hand could do. Missing signals: own counts only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, to};
use crate::workload::Call;

/// Deadline in billionths, order of insertion, place.
type Turn = Reverse<(u64, u64, usize)>;

/// The rule.
#[derive(Debug)]
pub(super) struct WeightedLeastRequest {
    weights: Vec<u64>,
    turns: BinaryHeap<Turn>,
    put: u64,
    now: u64,
}

/// One turn of an endpoint of weight 1 with nothing in flight.
const UNIT: u64 = 1_000_000_000;

impl WeightedLeastRequest {
    pub(super) fn new(weights: &[f64]) -> Self {
        let weights: Vec<u64> = weights.iter().map(|weight| ((weight * 16.0).round() as u64).clamp(1, 128)).collect();
        let mut rule = Self { weights, turns: BinaryHeap::new(), put: 0, now: 0 };
        (0..rule.weights.len()).for_each(|place| rule.put(place, 0));
        rule
    }

    fn put(&mut self, place: usize, in_flight: u32) {
        self.put += 1;
        let turn = UNIT * (u64::from(in_flight) + 1) / self.weights[place];
        self.turns.push(Reverse((self.now + turn, self.put, place)));
    }
}

impl Rule for WeightedLeastRequest {
    fn pick(&mut self, _: &Call, sight: &Sight<'_>, _: &mut SplitMix64) -> Option<Routed> {
        // Those that are not there keep their turns coming, and are passed over.
        loop {
            let Reverse((deadline, _, place)) = self.turns.pop()?;
            self.now = deadline;
            self.put(place, sight.in_flight[place]);
            if sight.ready.binary_search(&place).is_ok() {
                return to(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::testing::{ask, prompt};
    use super::*;

    fn spread(in_flight: &[u32]) -> [u32; 2] {
        let mut rule = WeightedLeastRequest::new(&[3.0, 1.0]);
        let mut seen = [0; 2];
        (0..400).for_each(|_| seen[ask(&mut rule, &prompt(1, 1), in_flight, &[], 1)] += 1);
        seen
    }

    #[test]
    fn turns_follow_the_weights_and_what_is_in_flight() {
        assert_eq!(spread(&[0, 0]), [300, 100]);
        // 3 / 6 against 1 / 1.
        let busy = spread(&[5, 0]);
        assert!((132..=135).contains(&busy[0]), "{busy:?}");
    }
}
