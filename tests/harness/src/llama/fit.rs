//! An engine-sim profile from measured points.
//!
//! - Decode: the profile's curve goes through the given points of (concurrency, tok/s). Nothing is smoothed.
//! - Prefill: `TTFT(n) = fixed + n / prefill_tps` over uncached prompt tokens n, fitted so that the squares of the
//!   *relative* errors are least: a prompt of 4,000 tokens must not drown one of 100. The model's first token comes after
//!   `max(0, n - included) / prefill_tps + 1 / curve(1)`, with `included` the prompt of the bursts that the curve is from:
//!   their prefill is inside it. What is fixed beyond that has no place in the model; [`Fitted::unmodelled_s`] says how
//!   much it is.
//!
//! Cost: linear in the points.

use anyhow::{Result, ensure};
use engine_sim::model::{Cold, Curve, Profile};

/// A measured time to the first token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstToken {
    /// Prompt tokens that were not in the cache.
    pub uncached_tokens: u64,
    /// Seconds from sending to the first token.
    pub seconds: f64,
}

/// What the profile cannot know from the points.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Sequences that run together.
    pub slots: usize,
    /// Tokens that one request may have.
    pub window: usize,
    /// Prompt tokens of a request of the bursts.
    pub burst_prompt_tokens: u64,
}

/// A profile, and what did not fit into it.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// The machine.
    pub profile: Profile,
    /// Seconds before every first token that are neither prefill nor a decoding step; negative when the model has too many.
    pub unmodelled_s: f64,
}

/// The profile of an engine that was measured so.
///
/// # Errors
/// Fewer than two different prompt lengths, times that do not grow with them, or points that are no curve.
pub fn fit(name: &str, curve: &[(u32, f64)], prompts: &[FirstToken], limits: Limits) -> Result<Fitted> {
    let (fixed_s, prefill_tps) = line(prompts)?;
    let step_s = 1.0 / Curve::try_new(curve)?.total_tps(1);
    let mut fitted = with_prefill(name, curve, prefill_tps, limits)?;
    fitted.unmodelled_s = fixed_s + limits.burst_prompt_tokens as f64 / prefill_tps - step_s;
    Ok(fitted)
}

/// The profile of an engine whose prefill speed is known already.
///
/// # Errors
/// Values that make no profile.
pub fn with_prefill(name: &str, curve: &[(u32, f64)], prefill_tps: f64, limits: Limits) -> Result<Fitted> {
    let mut profile = Profile::new(name, curve);
    profile.prefill_tps = prefill_tps;
    profile.prefill_included_tokens = limits.burst_prompt_tokens;
    profile.batch_limit = limits.slots;
    profile.max_model_len = limits.window as u64;
    // Every slot has a context of its own, so room is never what a request waits for.
    profile.kv_capacity_tokens = (limits.slots * limits.window) as u64 * 2;
    profile.block_size_tokens = 1;
    profile.cold = Cold::NONE;
    profile.validate()?;
    Ok(Fitted { profile, unmodelled_s: 0.0 })
}

/// Seconds at no tokens, and tokens per second, of the line with the least squares of relative errors.
fn line(points: &[FirstToken]) -> Result<(f64, f64)> {
    // With y = a + b x, the relative error is a / y + b x / y - 1: linear in a and b.
    let (mut uu, mut uv, mut vv, mut u1, mut v1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for point in points {
        ensure!(point.seconds > 0.0, "a first token after {} s", point.seconds);
        let (u, v) = (1.0 / point.seconds, point.uncached_tokens as f64 / point.seconds);
        (uu, uv, vv, u1, v1) = (uu + u * u, uv + u * v, vv + v * v, u1 + u, v1 + v);
    }
    let determinant = uu * vv - uv * uv;
    ensure!(determinant > 1e-9 * uu * vv, "prefill needs prompts of at least two different lengths");
    let (fixed, per_token) = ((u1 * vv - v1 * uv) / determinant, (uu * v1 - uv * u1) / determinant);
    ensure!(per_token > 0.0, "the first token does not come later after a longer prompt");
    Ok((fixed, 1.0 / per_token))
}

/// How far a prediction is from what was measured, in percent of that.
#[must_use]
pub fn error_percent(predicted: f64, measured: f64) -> f64 {
    (predicted / measured - 1.0) * 100.0
}

/// Every second of the points, from the first; and the others.
#[must_use]
pub fn halves<T: Clone>(points: &[T]) -> (Vec<T>, Vec<T>) {
    let of =
        |rest| points.iter().enumerate().filter(|(nth, _)| nth % 2 == rest).map(|(_, point)| point.clone()).collect();
    (of(0), of(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { slots: 8, window: 4_096, burst_prompt_tokens: 40 };

    fn prompts(seconds: impl Fn(f64) -> f64) -> Vec<FirstToken> {
        [64, 256, 1_024, 4_096]
            .map(|uncached_tokens| FirstToken { uncached_tokens, seconds: seconds(uncached_tokens as f64) })
            .to_vec()
    }

    #[test]
    fn a_line_is_found_again() {
        let (fixed, tps) = line(&prompts(|n| 0.01 + n / 800.0)).unwrap();
        assert!((fixed - 0.01).abs() < 1e-9 && (tps - 800.0).abs() < 1e-6, "{fixed} {tps}");
    }

    #[test]
    fn what_is_fixed_beyond_a_step_is_told() {
        let curve = [(1, 100.0), (8, 400.0)];
        // A step takes 10 ms, and the 40 tokens that are inside the curve 50.
        let fitted = fit("x", &curve, &prompts(|n| 0.030 + n / 800.0), LIMITS).unwrap();
        assert!((fitted.unmodelled_s - 0.070).abs() < 1e-9, "{fitted:?}");
        let Profile { batch_limit, max_model_len, prefill_included_tokens, .. } = fitted.profile;
        assert_eq!((batch_limit, max_model_len, prefill_included_tokens), (8, 4_096, 40));
    }

    #[test]
    fn short_prompts_count_as_much_as_long_ones() {
        // A prompt ten times as slow as the line says at the short end must show there, though it is only 1 % of the sum.
        let mut points = prompts(|n| n / 1_000.0);
        points[0].seconds *= 10.0;
        let (fixed, _) = line(&points).unwrap();
        assert!(fixed > 0.05, "{fixed}");
    }

    #[test]
    fn what_cannot_be_fitted_is_refused() {
        let curve = [(1, 100.0)];
        let one = [FirstToken { uncached_tokens: 100, seconds: 0.1 }; 3];
        assert!(fit("x", &curve, &one, LIMITS).unwrap_err().to_string().contains("two different lengths"));
        let falling = prompts(|n| 10.0 / n);
        assert!(fit("x", &curve, &falling, LIMITS).unwrap_err().to_string().contains("longer prompt"));
        assert!(fit("x", &[(2, 1.0), (1, 1.0)], &prompts(|n| n), LIMITS).is_err());
    }

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        assert!((error_percent(110.0, 100.0) - 10.0).abs() < 1e-9);
        assert!((error_percent(50.0, 100.0) + 50.0).abs() < 1e-9);
    }

    #[test]
    fn halves_have_nothing_in_common() {
        assert_eq!(halves(&[1, 2, 3, 4, 5]), (vec![1, 3, 5], vec![2, 4]));
    }
}
