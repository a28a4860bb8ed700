//! An engine-sim profile from measured points.
//!
//! - Decode: the profile's curve goes through the given points of (concurrency, tok/s). Nothing is smoothed.
//! - Prefill: `TTFT(n) = fixed + (n + n^2 / 2d) / prefill_tps` over uncached prompt tokens n, with d the place where attention
//!   has doubled what a token takes, fitted so that the squares of the *relative* errors are least: a prompt of 4,000 tokens
//!   must not drown one of 100. With fewer than four points, or where the fit would have a token take no time at the beginning or
//!   no longer later on, it is a line. The model's first token comes after the prefill of what is beyond `included`, the
//!   prompt of the bursts that the curve is from (its prefill is inside the curve), and a step of `1 / curve(1)`. What is
//!   fixed beyond that has no place in the model; [`Fitted::unmodelled_s`] says how much it is.
//!
//! Cost: linear in the points.

use anyhow::{Context, Result, ensure};
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
    let prefill = Prefill::of(prompts)?;
    let step_s = 1.0 / Curve::try_new(curve)?.total_tps(1);
    let mut fitted = with_prefill(name, curve, prefill.tps, limits)?;
    fitted.profile.prefill_doubles_at_tokens = prefill.doubles_at_tokens;
    fitted.unmodelled_s = prefill.fixed_s + fitted.profile.prefill_s(0, limits.burst_prompt_tokens) - step_s;
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

/// Points below which there is no telling attention from noise: three go through any three points.
const FOR_ATTENTION: usize = 4;

/// Time to the first token by length of prompt.
#[derive(Debug, Clone, Copy)]
struct Prefill {
    /// Seconds with no tokens.
    fixed_s: f64,
    /// Tokens per second at the beginning.
    tps: f64,
    /// Where a token takes twice as long; 0: nowhere.
    doubles_at_tokens: f64,
}

impl Prefill {
    fn of(points: &[FirstToken]) -> Result<Self> {
        for point in points {
            ensure!(point.seconds > 0.0, "a first token after {} s", point.seconds);
        }
        // With y = a + b x + c x^2, the relative error is a / y + b x / y + c x^2 / y - 1: linear in a, b and c. Thousands of
        // tokens, so that the three are of a size.
        let thousands = |point: &FirstToken| point.uncached_tokens as f64 / 1e3;
        let row = |point: &FirstToken| [1.0, thousands(point), thousands(point).powi(2)].map(|x| x / point.seconds);
        let rows: Vec<[f64; 3]> = points.iter().map(row).collect();
        if rows.len() >= FOR_ATTENTION
            && let Some([fixed_s, s, attention_s]) = least_squares(&rows)
            && s > 0.0
            && attention_s > 0.0
        {
            return Ok(Self { fixed_s, tps: 1e3 / s, doubles_at_tokens: 1e3 * s / (2.0 * attention_s) });
        }
        let rows: Vec<[f64; 2]> = rows.iter().map(|[one, x, _]| [*one, *x]).collect();
        let [fixed_s, s] = least_squares(&rows).context("prefill needs prompts of at least two different lengths")?;
        ensure!(s > 0.0, "the first token does not come later after a longer prompt");
        Ok(Self { fixed_s, tps: 1e3 / s, doubles_at_tokens: 0.0 })
    }
}

/// The `x` for which the squares of `row . x - 1` are least; `None` where the rows do not tell. By the normal equations, whose
/// matrix is positive definite, so that elimination needs no pivots.
fn least_squares<const N: usize>(rows: &[[f64; N]]) -> Option<[f64; N]> {
    let sum = |of: &dyn Fn(&[f64; N]) -> f64| rows.iter().map(of).sum::<f64>();
    let mut a: [[f64; N]; N] = std::array::from_fn(|i| std::array::from_fn(|j| sum(&|row| row[i] * row[j])));
    let mut b: [f64; N] = std::array::from_fn(|i| sum(&|row| row[i]));
    let squares: [f64; N] = std::array::from_fn(|i| a[i][i]);
    for at in 0..N {
        // What the columns before leave of this one's squares: nothing, where it is a sum of them.
        if a[at][at] <= 1e-9 * squares[at] {
            return None;
        }
        for other in (0..N).filter(|other| *other != at) {
            let (row, factor) = (a[at], a[other][at] / a[at][at]);
            a[other].iter_mut().zip(row).for_each(|(to, of)| *to -= factor * of);
            b[other] -= factor * b[at];
        }
    }
    Some(std::array::from_fn(|i| b[i] / a[i][i]))
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
        // The last is a little early, so that no attention can be seen.
        let line = |n: f64| if n > 4_000.0 { n / 805.0 } else { 0.01 + n / 800.0 };
        for points in [prompts(line), prompts(|n| 0.01 + n / 800.0)[..2].to_vec()] {
            let Prefill { fixed_s, tps, doubles_at_tokens } = Prefill::of(&points).unwrap();
            assert!((fixed_s - 0.01).abs() < 1e-3 && (tps - 800.0).abs() < 5.0, "{fixed_s} {tps}");
            assert_eq!(doubles_at_tokens, 0.0);
        }
    }

    #[test]
    fn attention_is_found_again_and_predicted() {
        let seconds = |n: f64| 0.01 + (n + n * n / 3_000.0) / 800.0;
        let Prefill { fixed_s, tps, doubles_at_tokens } = Prefill::of(&prompts(seconds)).unwrap();
        assert!((fixed_s - 0.01).abs() < 1e-6 && (tps - 800.0).abs() < 1e-3, "{fixed_s} {tps}");
        assert!((doubles_at_tokens - 1_500.0).abs() < 1e-3, "{doubles_at_tokens}");
        let fitted = fit("x", &[(1, 100.0)], &prompts(seconds), LIMITS).unwrap();
        let predicted = super::super::predict::first_token(&fitted.profile, 2_000, 0).unwrap();
        assert!((predicted + fitted.unmodelled_s - seconds(2_000.0)).abs() < 1e-4, "{predicted} {fitted:?}");
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
        let Prefill { fixed_s, .. } = Prefill::of(&points).unwrap();
        assert!(fixed_s > 0.05, "{fixed_s}");
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
