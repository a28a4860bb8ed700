//! What came out of a run.

use serde::Serialize;
use serde_json::{Value, json};

/// The measured requests of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Time to first token in ms, ascending.
    pub ttft_ms: Vec<f64>,
    /// Time per output token after the first in ms, of requests with at least two, ascending.
    pub tpot_ms: Vec<f64>,
    /// From arrival to the last token in ms, ascending.
    pub e2e_ms: Vec<f64>,
    /// Requests served by each endpoint.
    pub served: Vec<u64>,
    /// Requests refused, because all were at their cap or none has the window.
    pub refused: u64,
    /// Prompt tokens of the served.
    pub prompt_tokens: u64,
    /// Output tokens of the served.
    pub output_tokens: u64,
    /// Prompt tokens that one endless cache for everybody would have had.
    pub known_tokens: u64,
    /// Prompt tokens that were in the caches.
    pub cached_tokens: u64,
    /// Prompt tokens that the router believed to be in the caches.
    pub believed_tokens: u64,
    /// Of these, tokens that were not.
    pub believed_wrongly: u64,
    /// Bytes of the holder index at the end.
    pub index_bytes: usize,
    /// Simulated seconds.
    pub seconds: f64,
}

/// The value below which `q` (0..1) of an ascending list lies; NaN when it is empty.
#[must_use]
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    ascending.get((q * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}

impl Outcome {
    pub(crate) fn new(endpoints: usize) -> Self {
        Self { served: vec![0; endpoints], ..Self::default() }
    }

    pub(crate) fn sort(&mut self) {
        for list in [&mut self.ttft_ms, &mut self.tpot_ms, &mut self.e2e_ms] {
            list.sort_by(f64::total_cmp);
        }
    }

    /// Cached share of all prompt tokens, 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// What one endless cache for everybody would have reached.
    #[must_use]
    pub fn ideal_hit_rate(&self) -> f64 {
        self.known_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Each endpoint's share of the served requests.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        let all = self.served.iter().sum::<u64>().max(1) as f64;
        self.served.iter().map(|count| *count as f64 / all).collect()
    }

    /// Refused share of all requests.
    #[must_use]
    pub fn refused_share(&self) -> f64 {
        self.refused as f64 / (self.refused + self.served.iter().sum::<u64>()).max(1) as f64
    }

    /// The figures as JSON, without the lists.
    #[must_use]
    pub fn summary(&self, name: &str) -> Value {
        let three =
            |list: &[f64]| json!({"p50": quantile(list, 0.5), "p90": quantile(list, 0.9), "p99": quantile(list, 0.99)});
        json!({"policy": name, "ttft_ms": three(&self.ttft_ms), "tpot_ms": three(&self.tpot_ms),
            "e2e_ms": three(&self.e2e_ms), "hit_rate": self.hit_rate(), "ideal_hit_rate": self.ideal_hit_rate(),
            "shares": self.shares(), "served": self.served, "refused": self.refused,
            "believed_tokens": self.believed_tokens, "believed_wrongly": self.believed_wrongly,
            "cached_tokens": self.cached_tokens, "index_bytes": self.index_bytes, "seconds": self.seconds})
    }

    /// One line of a table under [`HEAD`].
    #[must_use]
    pub fn row(&self, name: &str) -> String {
        let (ttft, tpot, e2e) = (&self.ttft_ms, &self.tpot_ms, &self.e2e_ms);
        let three = |list: &[f64], unit: f64, digits: usize| {
            [0.5, 0.9, 0.99].map(|q| format!("{:.digits$}", quantile(list, q) / unit)).join(" / ")
        };
        let shares = self.shares().iter().map(|share| format!("{:.0}", share * 100.0)).collect::<Vec<_>>().join(" ");
        format!(
            "| {name:<20} | {:<20} | {:<15} | {:<20} | {:.2} | {shares:<14} | {:.2} % |",
            three(ttft, 1e3, 2),
            three(tpot, 1.0, 0),
            three(e2e, 1e3, 1),
            self.hit_rate(),
            100.0 * self.refused_share(),
        )
    }
}

/// The head of the table.
pub const HEAD: &str = "\
| policy               | TTFT p50/p90/p99 s   | TPOT ms         | end to end s         | hits | share by each  | refused |
|----------------------|----------------------|-----------------|----------------------|------|----------------|---------|";

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
    fn shares_and_rates() {
        let outcome = Outcome {
            served: vec![3, 1],
            refused: 4,
            prompt_tokens: 100,
            cached_tokens: 25,
            known_tokens: 50,
            ..Outcome::default()
        };
        assert_eq!(outcome.shares(), [0.75, 0.25]);
        assert_eq!((outcome.hit_rate(), outcome.ideal_hit_rate(), outcome.refused_share()), (0.25, 0.5, 0.5));
    }
}
