//! The fewest tokens still to be computed or generated, for its weight.
//!
//! As [`super::p2c`], with tokens in the place of requests: a prompt of 30,000 tokens is not one of 30. In tokens per weight:
//!
//! ```text
//! cost = (pending + others + foreign) / weight
//! foreign = outside x output + min(outside, waiting) x prompt
//! ```
//!
//! | | | unit | where from |
//! |---|---|---|---|
//! | pending | what this Envoy's requests there still have to compute or generate | tok | own accounting: the uncached prompt until the first token, the expected answer until the end |
//! | others | what other Envoys' requests there still have to compute or generate | tok | [`Signals::others_tokens`](crate::signals::Signals::others_tokens): their own accounting, 0 when nobody says so |
//! | outside | requests there that no Envoy has sent | 1 | [`Signals::outside`](crate::signals::Signals::outside), 0 when nobody says so |
//! | waiting | requests that wait inside the engine | 1 | [`Signals::waiting`](crate::signals::Signals::waiting), 0 when nobody says so |
//! | prompt, output | of the request at hand: those of nobody are taken to be like it | tok | by estimate |
//!
//! Requests of Envoys that wait inside the engine are pending already, so `waiting` says no more than how many of the
//! rest have their prompt still before them. Without signals own counts remain.
//!
//! When nobody has anything to do, all are compared and the heaviest takes the request. One request of affinity's allowance is
//! worth its expected output, at least one token.

use super::draw::Draw;
use super::score::Frame;
use super::{Candidate, Choice, Choices, Policy, Scene, p2c};
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
            let signals = scene.signals(candidate);
            let waiting = signals.waiting.unwrap_or_default().min(signals.outside);
            let outside = f64::from(signals.outside) * output + f64::from(waiting) * prompt;
            let pending = f64::from(scene.load(candidate).pending_tokens) + f64::from(signals.others_tokens);
            candidate.cost = candidate.weight.per_weight(pending + outside);
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
        let all_idle = candidates.iter().all(|candidate| candidate.cost == 0.0);
        p2c::choose(candidates, all_idle, self.choices, Draw::ByWeight, rng, drawn)
    }

    fn unit(&self, scene: &Scene<'_>, _: &Frame, _: Weight) -> Option<f64> {
        Some(scene.ask.output_tokens.max(1) as f64)
    }
}
