//! How much of its weight an endpoint has at how many requests at once.
//!
//! A weight is one figure, measured at one number of requests. A GPU with few requests generates far less than that in all, and
//! every request gets more: 60, 200, 240 tokens/s at 1, 8 and 16 requests are 60, 25 and 15 for each. The curve says it: at
//! `n` requests the endpoint has `share(n)` of its weight, so that its load is
//!
//! ```text
//! load(n) = n / (weight x share(n))
//! ```
//!
//! As `weight = T(16) / M` and `share(n) = T(n) / T(16)`, with `T` its throughput and `M` the pool's median, that is
//! `M x n / T(n)`: the time from token to token, times the same `M` for all. Endpoints of equal load generate equally fast,
//! however unequal they are, and a difference of load, times the expected output, over `M` is a difference of time:
//! [affinity's allowance](crate::affinity), which is a time turned into load, holds exactly.
//!
//! Between two steps `T` is taken to be linear in `n`, beyond the last to stay. More requests never mean less load: where a reading
//! says so, the share is held down to where the load stays. Without a curve the share is 1 throughout.
//!
//! Cost: linear in the steps (about ten) per look.

/// Steps of a curve, by requests at once: the first at 1, all shares positive and finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve(Vec<Step>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    requests: u32,
    share: f64,
}

/// The most steps of a curve: doubling from 1, more than any engine takes at once.
pub const MAX_STEPS: usize = 32;

/// The largest share of its weight that an endpoint may have anywhere.
const MAX_SHARE: f64 = 1_000.0;

/// Why steps are no curve.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// There are none, or more than [`MAX_STEPS`].
    #[error("{0} steps: expected 1 to 32")]
    Count(usize),
    /// The first is not at 1, or one is not above the one before.
    #[error("a step at {0} requests: expected 1 at first, and then always more")]
    Order(u32),
    /// A share that no endpoint has.
    #[error("a share of {1} at {0} requests: expected a number above 0 and at most 1000")]
    Share(u32, f64),
}

impl Curve {
    /// A curve of steps: requests at once, and the share of its weight that the endpoint has then.
    ///
    /// # Errors
    /// When they are no curve; the error says why.
    pub fn try_new(steps: &[(u32, f64)]) -> Result<Self, CurveError> {
        if steps.is_empty() || steps.len() > MAX_STEPS {
            return Err(CurveError::Count(steps.len()));
        }
        let mut curve: Vec<Step> = Vec::with_capacity(steps.len());
        for &(requests, share) in steps {
            let in_order = curve.last().map_or(requests == 1, |last| requests > last.requests);
            if !in_order {
                return Err(CurveError::Order(requests));
            }
            if !(share > 0.0 && share <= MAX_SHARE) {
                return Err(CurveError::Share(requests, share));
            }
            let most = curve.last().map_or(share, |last| last.share * f64::from(requests) / f64::from(last.requests));
            curve.push(Step { requests, share: share.min(most) });
        }
        Ok(Curve(curve))
    }

    /// The share of its weight that an endpoint has with so many requests at once; with none, what it has with one.
    #[must_use]
    pub fn share(&self, requests: u32) -> f64 {
        let mut below: Option<&Step> = None;
        for step in &self.0 {
            if requests <= step.requests {
                let Some(below) = below else { return step.share };
                let way = f64::from(requests - below.requests) / f64::from(step.requests - below.requests);
                return below.share + (step.share - below.share) * way;
            }
            below = Some(step);
        }
        below.map_or(1.0, |last| last.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn between_steps_it_is_linear_and_beyond_the_last_it_stays() {
        let curve = Curve::try_new(&[(1, 0.25), (8, 0.83), (16, 1.0), (32, 0.98)]).unwrap();
        for (requests, share) in [(0, 0.25), (1, 0.25), (8, 0.83), (12, 0.915), (16, 1.0), (32, 0.98), (99, 0.98)] {
            assert!((curve.share(requests) - share).abs() < 1e-9, "{requests}: {}", curve.share(requests));
        }
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        for (steps, says) in [
            (&[][..], "0 steps"),
            (&[(2, 1.0)][..], "a step at 2 requests"),
            (&[(1, 0.5), (1, 1.0)][..], "a step at 1 requests"),
            (&[(1, 0.0)][..], "a share of 0 at 1 requests"),
            (&[(1, f64::NAN)][..], "a share of NaN at 1 requests"),
            (&[(1, 0.5), (4, f64::INFINITY)][..], "a share of inf at 4 requests"),
        ] {
            let error = Curve::try_new(steps).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let many: Vec<(u32, f64)> = (1..=33).map(|requests| (requests, 1.0)).collect();
        assert_eq!(Curve::try_new(&many), Err(CurveError::Count(33)));
    }

    proptest! {
        #[test]
        fn more_requests_are_never_less_load(shares in proptest::collection::vec(0.001f64..10.0, 1..12)) {
            let steps: Vec<(u32, f64)> = shares.iter().enumerate().map(|(nth, share)| (1 << nth, *share)).collect();
            let curve = Curve::try_new(&steps).unwrap();
            let load = |requests: u32| f64::from(requests) / curve.share(requests);
            for requests in 1..5_000 {
                prop_assert!(load(requests) <= load(requests + 1) * (1.0 + 1e-12), "{requests}: {} {}", load(requests), load(requests + 1));
            }
        }
    }
}
