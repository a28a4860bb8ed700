//! Prefix affinity in capacity units: how much fuller than the alternative the holder of a prompt's prefix may be. The
//! alternative is the endpoint that the pool's policy would pick.
//!
//! In units of in-flight per weight: `A = k * M * dm / (P * L)`, at most half the pool's base cap, with
//!
//! | | | unit | where from |
//! |---|---|---|---|
//! | k | factor, 1 | | `affinity.k` |
//! | M | median throughput of the pool's measured endpoints | tok/s | the prober's bursts; 730 until there are any |
//! | dm | tokens of the prompt that the holder has and the alternative has not | tok | the holder index |
//! | P | the alternative's prefill speed | tok/s | the prober's long-prompt burst; `affinity.prefill_tps` until then |
//! | L | expected output | tok | `min(max_tokens, the pool's learnt median)`, at least 1 |
//!
//! Reasoning: a miss costs `dm / P` seconds of prefill. In that time an endpoint of weight 1 generates `M * dm / P`
//! tokens, which are the whole outputs of `M * dm / (P * L)` requests. So the holder may carry that many requests more
//! per weight before a miss elsewhere is the cheaper of the two. Taking the difference `dm` rather than the whole match
//! keeps a system prompt that everybody shares, and soon everybody holds, from herding them onto one endpoint.
//!
//! Example: M 730, dm 8,000, P 6,000, L 128 give 7.6; dm 100 gives 0.1. Cost: a few operations.

use crate::snapshot::Affinity;

/// How many in-flight requests per weight more than the alternative the holder may have.
#[must_use]
pub fn allowance(settings: &Affinity, missing_tokens: u64, prefill_tps: f64, output_tokens: u64) -> f64 {
    let misses = settings.median_tps * missing_tokens as f64 / (prefill_tps * output_tokens.max(1) as f64);
    (settings.k * misses).min(settings.max_allowance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::wire;

    fn settings() -> Affinity {
        Affinity { enabled: true, cold: wire::Cold::Policy, k: 1.0, max_allowance: 12.0, median_tps: 730.0 }
    }

    // The worked examples of the design.
    #[test]
    fn a_long_match_is_worth_much_and_a_short_one_little() {
        assert!((allowance(&settings(), 8_000, 6_000.0, 128) - 7.6).abs() < 0.01);
        assert!((allowance(&settings(), 100, 6_000.0, 128) - 0.095).abs() < 0.001);
        assert_eq!(allowance(&settings(), 0, 6_000.0, 128), 0.0);
    }

    #[test]
    fn it_is_capped_and_never_broken() {
        assert_eq!(allowance(&settings(), u64::MAX, 6_000.0, 0), 12.0);
        assert_eq!(allowance(&Affinity { k: 0.0, ..settings() }, 8_000, 6_000.0, 128), 0.0);
    }
}
