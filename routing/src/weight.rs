//! Weight: an endpoint's capacity relative to the others of its pool.
//!
//! `weight = throughput / median(throughputs of the pool)`, clamped (0.25..8 unless configured otherwise) and rounded
//! to 0.01. Throughput is completion tokens per second of a warmed burst (the prober's job). The median of an even
//! number of values is the mean of the two in the middle, so that 980 and 479 tok/s give 1.34 and 0.66.
//!
//! Cost: one sort, `O(n log n)` in the number of endpoints of the pool; it runs when a measurement changes, never per
//! request. An endpoint without a throughput is left out of the median and gets no weight from here.

use serde::{Deserialize, Serialize};

/// Relative capacity of an endpoint: finite, above zero, in steps of 0.01.
///
/// ```
/// use weighbridge_routing::weight::Weight;
/// assert_eq!(Weight::try_new(1.3434).unwrap().get(), 1.34);
/// assert!(Weight::try_new(0.0).is_err());
/// assert!(Weight::try_new(f64::NAN).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Weight(f64);

/// The smallest weight there is; smaller positive values round up to it.
const STEP: f64 = 0.01;

/// The largest weight there is. Pins go up to 100; a clamp may be configured up to here.
const MAX: f64 = 10_000.0;

/// Why a number is not a weight.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("weight {0} is not usable: expected a number above 0 and at most 10000")]
pub struct WeightError(pub f64);

impl Weight {
    /// The weight of an endpoint that nobody has measured, and the stand-in for a broken one.
    pub const ONE: Weight = Weight(1.0);

    /// Takes a positive finite number and rounds it to 0.01 (at least 0.01).
    ///
    /// # Errors
    /// When the value is zero, negative, NaN, infinite or above 10,000.
    pub fn try_new(value: f64) -> Result<Self, WeightError> {
        if !(value.is_finite() && value > 0.0 && value <= MAX) {
            return Err(WeightError(value));
        }
        Ok(Weight(((value / STEP).round() * STEP).max(STEP)).exact())
    }

    /// The value itself.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// The value in hundredths, exactly; for comparing loads without rounding.
    #[must_use]
    pub fn hundredths(self) -> u32 {
        (self.0 * 100.0 + 0.5) as u32
    }

    /// `load / weight`, the same for equal fractions: numerator and denominator are whole, and a division rounds but once.
    #[must_use]
    pub fn per_weight(self, load: f64) -> f64 {
        load * 100.0 / f64::from(self.hundredths())
    }

    /// `0.01 * 134` is 1.34 only up to the last bit; dividing by 100 gives the double that prints as `1.34`.
    fn exact(self) -> Self {
        Weight((self.0 * 100.0).round() / 100.0)
    }
}

impl TryFrom<f64> for Weight {
    type Error = WeightError;
    fn try_from(value: f64) -> Result<Self, Self::Error> {
        Weight::try_new(value)
    }
}

impl From<Weight> for f64 {
    fn from(weight: Weight) -> f64 {
        weight.0
    }
}

impl std::fmt::Display for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The bounds of measured weights. One endpoint that measured forty times slower still gets a quarter share, so that
/// a broken reading cannot starve it for ever, and one that measured too fast cannot take everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clamp {
    min: Weight,
    max: Weight,
}

impl Clamp {
    /// Bounds for measured weights; `min` must not be above `max`.
    #[must_use]
    pub fn new(min: Weight, max: Weight) -> Option<Self> {
        (min <= max).then_some(Clamp { min, max })
    }
}

impl Default for Clamp {
    fn default() -> Self {
        Clamp { min: Weight(0.25), max: Weight(8.0) }
    }
}

/// The median of the usable values (finite and above zero), or `None` when there are none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut usable: Vec<f64> = values.into_iter().filter(|value| value.is_finite() && *value > 0.0).collect();
    usable.sort_by(f64::total_cmp);
    let upper = *usable.get(usable.len() / 2)?;
    if usable.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *usable.get(usable.len() / 2 - 1)?;
    Some(f64::midpoint(lower, upper))
}

/// The weight of every measured endpoint of one pool, in the order given. `None` stays `None`; so does a throughput
/// that is not a positive finite number.
#[must_use]
pub fn weights(throughputs_tps: &[Option<f64>], clamp: Clamp) -> Vec<Option<Weight>> {
    let Some(median) = median(throughputs_tps.iter().copied().flatten()) else {
        return vec![None; throughputs_tps.len()];
    };
    throughputs_tps
        .iter()
        .map(|throughput| {
            let ratio = throughput.filter(|tps| tps.is_finite() && *tps > 0.0)? / median;
            Weight::try_new(ratio.clamp(clamp.min.get(), clamp.max.get())).ok()
        })
        .collect()
}

/// The most requests an endpoint takes at once: `base_cap x weight`, to the nearest, at least 1.
#[must_use]
pub fn cap(base_cap: u32, weight: Weight) -> u32 {
    // The cast saturates, and the product of a u32 and a weight is never negative or NaN.
    ((f64::from(base_cap) * weight.get()).round() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(weights: &[Option<Weight>]) -> Vec<Option<f64>> {
        weights.iter().map(|weight| weight.map(Weight::get)).collect()
    }

    #[test]
    fn the_published_pair_gives_its_published_weights() {
        let got = weights(&[Some(980.0), Some(479.0)], Clamp::default());
        assert_eq!(values(&got), [Some(1.34), Some(0.66)]);
    }

    #[test]
    fn an_endpoint_without_a_reading_changes_nobody() {
        let got = weights(&[Some(980.0), None, Some(479.0), Some(f64::NAN), Some(0.0)], Clamp::default());
        assert_eq!(values(&got), [Some(1.34), None, Some(0.66), None, None]);
    }

    #[test]
    fn weights_are_clamped() {
        let got = weights(&[Some(10_000.0), Some(100.0), Some(1.0)], Clamp::default());
        assert_eq!(values(&got), [Some(8.0), Some(1.0), Some(0.25)]);
    }

    #[test]
    fn nobody_measured_is_nobody_weighted() {
        assert_eq!(weights(&[None, None], Clamp::default()), [None, None]);
        assert_eq!(weights(&[], Clamp::default()), []);
    }

    #[test]
    fn caps_grow_with_weight_and_are_never_zero() {
        let cap_of = |weight: f64| cap(24, Weight::try_new(weight).unwrap());
        assert_eq!((cap_of(1.34), cap_of(0.66), cap_of(0.01)), (32, 16, 1));
        assert_eq!(cap(0, Weight::ONE), 1);
        assert_eq!(cap(u32::MAX, Weight::try_new(100.0).unwrap()), u32::MAX);
    }

    proptest! {
        #[test]
        fn any_number_is_a_weight_or_an_error(value in any::<f64>()) {
            if let Ok(weight) = Weight::try_new(value) {
                prop_assert!(weight.get() >= 0.01 && weight.get() <= MAX);
                prop_assert!((weight.get() - value).abs() <= 0.01);
                // What is printed is what is read back.
                prop_assert_eq!(weight.to_string().parse::<f64>().unwrap(), weight.get());
            }
        }

        #[test]
        fn a_faster_endpoint_never_weighs_less(tps in proptest::collection::vec(1.0f64..1e5, 2..20)) {
            let got = weights(&tps.iter().copied().map(Some).collect::<Vec<_>>(), Clamp::default());
            for (a, wa) in tps.iter().zip(&got) {
                for (b, wb) in tps.iter().zip(&got) {
                    prop_assert!(a < b || wa.unwrap() >= wb.unwrap());
                }
            }
        }
    }
}
