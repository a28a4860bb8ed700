//! A scheduler that knows everything: how long every answer will be, and exactly what every engine has and will do with it.
//!
//! Rule: for each endpoint the engine's model is run forward with this request in it
//! ([`Model::forecast`](engine_sim::model::Model::forecast)). [`Aim::Own`] chooses where the request is done soonest;
//! [`Aim::All`] where it costs everybody there and itself the least time together. A request that would have its first token nowhere within the pool's
//! longest wait is refused, as ours refuses it.
//!
//! What it is a limit of: of choosing an endpoint at the moment of arrival, one request at a time. What it is not: it does not
//! know what will arrive, does not hold a request back, reorders and moves nothing, and has no caps; so in one figure or the
//! other something that queues or looks at another aim may be ahead of it. [`Aim::Own`] is selfish, and near overload worse for
//! everybody than [`Aim::All`].

use engine_sim::model::Request;
use weighbridge_routing::rng::SplitMix64;

use super::Routed;
use super::rule::{Rule, Sight, least};
use crate::workload::Call;

/// What is to be small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// The time until this request is done.
    Own,
    /// That, and how much later all others at the same endpoint are done for it.
    All,
}

/// The rule.
#[derive(Debug, Clone, Copy)]
pub struct Oracle {
    /// What it wants.
    pub aim: Aim,
    /// The longest that a request waits for its first token (ms).
    pub patience_ms: u32,
}

impl Rule for Oracle {
    fn pick(&mut self, call: &Call, sight: &Sight<'_>, rng: &mut SplitMix64) -> Option<Routed> {
        let mut request = Request::new(u64::MAX, call.prompt_tokens, call.output_tokens);
        request.prompt_blocks.clone_from(&call.blocks);
        let forecasts: Vec<_> = sight.engines.iter().map(|engine| engine.forecast(&request)).collect();
        let patience = u64::from(self.patience_ms) * 1_000_000;
        let possible: Vec<usize> = sight.ready.iter().copied().filter(|place| forecasts[*place].is_some()).collect();
        let endpoint = least(&possible, rng, |place| match (&forecasts[place], self.aim) {
            (None, _) => u64::MAX,
            (Some(forecast), Aim::Own) => forecast.finished,
            (Some(forecast), Aim::All) => forecast.finished + forecast.delays_others,
        })?;
        let forecast = forecasts[endpoint]?;
        let soon = forecast.first_token.saturating_sub(sight.now) <= patience;
        soon.then_some(Routed { endpoint, believed_tokens: forecast.cached_tokens })
    }
}
