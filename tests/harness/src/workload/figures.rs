//! What came of a workload.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::load::Outcome;

/// Figures of one run; times in seconds of the engines' time.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Requests, all answered.
    pub requests: usize,
    /// Prompt tokens that the engines found in their caches, as a share of all (by `usage`).
    pub hit_rate: f64,
    /// Time to the first token: half of the requests had it by then.
    pub ttft_p50_s: f64,
    /// 95 of 100.
    pub ttft_p95_s: f64,
    /// 99 of 100.
    pub ttft_p99_s: f64,
    /// Time per output token after the first, in ms: median over the requests with at least 8.
    pub tpot_p50_ms: f64,
    /// 99 of 100.
    pub tpot_p99_ms: f64,
    /// Whole requests: 99 of 100 were complete by then.
    pub end_p99_s: f64,
    /// From the first request to the last answer.
    pub elapsed_s: f64,
    /// Share of the requests that each engine answered.
    pub shares: BTreeMap<String, f64>,
}

impl Figures {
    pub(super) fn new(outcomes: &[Outcome], scale: f64, elapsed_s: f64) -> Self {
        Self::answered(outcomes, scale, elapsed_s, Outcome::engine)
    }

    /// Figures of requests that were all answered, `scale` times faster than the wall clock; `by` says who answered.
    #[must_use]
    pub fn answered(outcomes: &[Outcome], scale: f64, elapsed_s: f64, by: impl Fn(&Outcome) -> &str) -> Self {
        let sum = |of: fn(&Outcome) -> Option<u64>| outcomes.iter().filter_map(of).sum::<u64>() as f64;
        let cached = sum(|outcome| outcome.usage.cached_tokens);
        let prompt = sum(|outcome| outcome.usage.prompt_tokens);
        let seconds = |of: &dyn Fn(&Outcome) -> Option<f64>| outcomes.iter().filter_map(of).collect::<Vec<_>>();
        let ttft = seconds(&|outcome| Some(outcome.ttft?.as_secs_f64() * scale));
        let end = seconds(&|outcome| Some(outcome.duration.as_secs_f64() * scale));
        let tpot = seconds(&|outcome| tpot_ms(outcome, scale));
        let mut shares = BTreeMap::new();
        for outcome in outcomes {
            *shares.entry(by(outcome).to_owned()).or_insert(0.0) += 1.0 / outcomes.len() as f64;
        }
        Self {
            requests: outcomes.len(),
            hit_rate: cached / prompt.max(1.0),
            ttft_p50_s: quantile(&ttft, 0.50),
            ttft_p95_s: quantile(&ttft, 0.95),
            ttft_p99_s: quantile(&ttft, 0.99),
            tpot_p50_ms: quantile(&tpot, 0.50),
            tpot_p99_ms: quantile(&tpot, 0.99),
            end_p99_s: quantile(&end, 0.99),
            elapsed_s,
            shares,
        }
    }
}

/// Time per output token after the first, in ms; none of an answer of fewer than 8, where it says little.
pub(crate) fn tpot_ms(outcome: &Outcome, scale: f64) -> Option<f64> {
    let after_first = outcome.duration.checked_sub(outcome.ttft?)?.as_secs_f64() * scale;
    (outcome.tokens >= 8).then(|| after_first / (outcome.tokens - 1) as f64 * 1_000.0)
}

/// The value of the nearest rank to a share of 0 to 1; 0 without any.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}
