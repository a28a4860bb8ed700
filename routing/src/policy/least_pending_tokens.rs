//! The fewest tokens still to be computed or generated, for its weight.
//!
//! As [`super::p2c`], with tokens in the place of requests: a prompt of 30,000 tokens is not one of 30. In tokens per weight:
//!
//! ```text
//! cost = (pending + foreign) / weight
//! foreign = elsewhere x output + min(elsewhere, waiting) x prompt
//! ```
//!
//! | | | unit | where from |
//! |---|---|---|---|
//! | pending | what this Envoy's requests there still have to compute or generate | tok | own accounting: the uncached prompt until the first token, the expected answer until the end |
//! | elsewhere | requests there that this Envoy has not sent | 1 | [`Signals::elsewhere`](crate::signals::Signals::elsewhere), 0 when nobody says so |
//! | waiting | requests that wait inside the engine | 1 | [`Signals::waiting`](crate::signals::Signals::waiting), 0 when nobody says so |
//! | prompt, output | of the request at hand: others' requests are taken to be like it | tok | by estimate |
//!
//! Requests of our own that wait inside the engine are pending already, so `waiting` says no more than how many of the
//! others' have their prompt still before them. Without signals own counts remain.
//!
//! When nobody has anything to do, all are compared and the heaviest takes the request. One request of affinity's allowance is
//! worth its expected output, at least one token.

use super::draw::Draw;
use super::score::Frame;
use super::{Candidate, Choice, Choices, Policy, Scene, p2c, per_weight};
use crate::prefix::holders::Holders;
use crate::rng::SplitMix64;
use crate::weight::Weight;

/// The fewest pending tokens per weight, of `choices` drawn by weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeastPendingTokens {
    /// How many are drawn.
    pub choices: Choices,
}

impl Policy for LeastPendingTokens {
    fn weigh(&self, scene: &Scene<'_>, _: &mut dyn Holders, candidates: &mut [Candidate]) -> Frame {
        let (prompt, output) = (scene.ask.prompt_tokens as f64, scene.ask.output_tokens.max(1) as f64);
        for candidate in candidates {
            let load = scene.load(candidate);
            let waiting = scene.signals(candidate).waiting.unwrap_or_default().min(load.elsewhere);
            let foreign = f64::from(load.elsewhere) * output + f64::from(waiting) * prompt;
            candidate.cost = per_weight(f64::from(load.pending_tokens) + foreign, candidate.weight);
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
        p2c::choose(candidates, self.choices, Draw::ByWeight, rng, drawn)
    }

    fn unit(&self, scene: &Scene<'_>, _: &Frame, _: Weight) -> Option<f64> {
        Some(scene.ask.output_tokens.max(1) as f64)
    }
}
