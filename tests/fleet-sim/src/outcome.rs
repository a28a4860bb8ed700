//! What came out of a run, request by request.

use engine_sim::model::{Nanos, seconds};

use crate::fleet::Fleet;

/// A measured request that was served.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// Place of its endpoint.
    pub endpoint: u32,
    /// Its priority.
    pub priority: u8,
    /// When it was done, in seconds since the beginning.
    pub ended_s: f64,
    /// From arrival to the first token, waiting included.
    pub ttft_ms: f64,
    /// Per output token after the first; `None` when there was only one.
    pub tpot_ms: Option<f64>,
    /// From arrival to the last token.
    pub e2e_ms: f64,
    /// Of that, at the gateway.
    pub waited_ms: f64,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Of these, tokens that were in the engine's cache.
    pub cached_tokens: u64,
    /// Length of the answer.
    pub output_tokens: u64,
}

/// One run. Two runs from the same seed are equal, except for [`Outcome::decision_ns`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Those that were served, in the order in which they were done.
    pub served: Vec<Served>,
    /// Measured requests that arrived, by priority.
    pub arrived: [u64; 10],
    /// Those that were turned away or had waited in vain, by priority.
    pub shed: [u64; 10],
    /// Those whose endpoint died, and that could not be tried again.
    pub failed: u64,
    /// How often a request was tried again, warm-up included.
    pub retried: u64,
    /// Requests that had not ended when nothing was left to happen; always 0.
    pub left: u64,
    /// Requests that were still counted at an engine then; always 0.
    pub left_in_flight: u64,
    /// Turns that followed another of the same conversation.
    pub turns: u64,
    /// Those of them that another endpoint served.
    pub moves: u64,
    /// Prompt tokens that one endless cache for everybody would have had.
    pub known_tokens: u64,
    /// Prompt tokens that the router believed to be in the caches.
    pub believed_tokens: u64,
    /// Of these, tokens that were not.
    pub believed_wrongly: u64,
    /// The most requests that each endpoint ever had at a time.
    pub peak: Vec<u32>,
    /// The largest live table of a gateway at the end.
    pub live_bytes: usize,
    /// The largest index of prefixes of a gateway at the end.
    pub index_bytes: usize,
    /// What each decision took, where that was measured.
    pub decision_ns: Vec<u32>,
    /// Simulated time at the end.
    pub now: Nanos,
    /// When the first measured request arrived, and the last.
    pub window: Option<(Nanos, Nanos)>,
    /// Each endpoint's weight.
    pub weights: Vec<f64>,
    /// The most tokens/s that each generates.
    pub best_tps: Vec<f64>,
    /// Each endpoint's prefill speed in tokens/s.
    pub prefill_tps: Vec<f64>,
}

impl Outcome {
    pub(crate) fn new(fleet: &Fleet) -> Self {
        Self {
            weights: fleet.weights(),
            best_tps: fleet.best_tps(),
            prefill_tps: fleet.engines.iter().map(|engine| engine.prefill_tps).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn arrives(&mut self, priority: u8, now: Nanos) {
        self.arrived[usize::from(priority)] += 1;
        let (from, _) = self.window.unwrap_or((now, now));
        self.window = Some((from, now));
    }

    /// Measured requests that arrived.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.arrived.iter().sum()
    }

    /// Those that were turned away or had waited in vain.
    #[must_use]
    pub fn total_shed(&self) -> u64 {
        self.shed.iter().sum()
    }

    /// Seconds from the first measured arrival to the last.
    #[must_use]
    pub fn window_s(&self) -> f64 {
        self.window.map_or(0.0, |(from, to)| seconds(to - from))
    }

    /// Requests served per second, once it runs and before it runs dry: between the first and the last tenth of the answers.
    #[must_use]
    pub fn throughput_rps(&self) -> f64 {
        let (first, last) = (self.served.len() / 10, self.served.len() * 9 / 10);
        match (self.served.get(first), self.served.get(last)) {
            (Some(a), Some(b)) if b.ended_s > a.ended_s => (last - first) as f64 / (b.ended_s - a.ended_s),
            _ => 0.0,
        }
    }

    /// Requests served by each endpoint.
    #[must_use]
    pub fn by_endpoint(&self) -> Vec<u64> {
        let mut counts = vec![0; self.weights.len()];
        for served in &self.served {
            counts[served.endpoint as usize] += 1;
        }
        counts
    }

    /// Each endpoint's share of the served requests.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        let all = self.served.len().max(1) as f64;
        self.by_endpoint().into_iter().map(|count| count as f64 / all).collect()
    }

    /// Cached share of all prompt tokens, 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let (cached, prompt) = self
            .served
            .iter()
            .fold((0, 0), |(cached, prompt), of| (cached + of.cached_tokens, prompt + of.prompt_tokens));
        cached as f64 / prompt.max(1) as f64
    }

    /// What one endless cache for everybody would have reached.
    #[must_use]
    pub fn ideal_hit_rate(&self) -> f64 {
        let prompt: u64 = self.served.iter().map(|of| of.prompt_tokens).sum();
        self.known_tokens as f64 / prompt.max(1) as f64
    }

    /// One figure of each served request, ascending.
    #[must_use]
    pub fn ascending(&self, of: impl Fn(&Served) -> Option<f64>) -> Vec<f64> {
        let mut values: Vec<f64> = self.served.iter().filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

/// The value below which `q` (0..1) of an ascending list lies; NaN when it is empty.
#[must_use]
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    ascending.get((q * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_few_and_none() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.99), 3.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn throughput_is_that_of_the_middle() {
        let at = |ended_s: f64| Served {
            endpoint: 0,
            priority: 5,
            ended_s,
            ttft_ms: 1.0,
            tpot_ms: None,
            e2e_ms: 1.0,
            waited_ms: 0.0,
            prompt_tokens: 1,
            cached_tokens: 0,
            output_tokens: 1,
        };
        // A slow start, then one every tenth of a second.
        let served =
            (0..100).map(|nth| at(if nth < 10 { f64::from(nth) } else { 10.0 + f64::from(nth) / 10.0 })).collect();
        let outcome = Outcome { served, weights: vec![1.0], ..Outcome::default() };
        assert!((outcome.throughput_rps() - 10.0).abs() < 1e-9);
        assert_eq!((outcome.by_endpoint(), Outcome::default().throughput_rps()), (vec![100], 0.0));
    }
}
