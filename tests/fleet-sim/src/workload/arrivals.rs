//! When requests come: a renewal process whose rate may swing.
//!
//! Gaps are gamma distributed with a mean of one and a coefficient of variation (standard deviation / mean) of `cv`: 1 is
//! Poisson, above it is bursty, below it is even. They run on a clock of their own, which goes with the rate
//! `rate x (1 + swing x sin(2 pi t / period))`: a day with its peak and its night.
//!
//! Gamma by Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), written here because a seed must
//! give the same run whatever becomes of a library.

use std::f64::consts::TAU;

use weighbridge_routing::rng::SplitMix64;

/// An arrival process.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Process {
    /// Arrivals per second in the long run.
    pub rate: f64,
    /// Coefficient of variation of the gaps, above 0.
    pub cv: f64,
    /// How far the rate swings, as a share, 0 to below 1.
    pub swing: f64,
    /// Length of a swing.
    pub period_s: f64,
}

impl Process {
    /// A Poisson process.
    #[must_use]
    pub fn poisson(rate: f64) -> Self {
        Self { rate, cv: 1.0, swing: 0.0, period_s: 3_600.0 }
    }

    /// Arrivals that are to be expected up to a time.
    fn expected(&self, t: f64) -> f64 {
        self.rate * (t + self.swing * self.period_s / TAU * (1.0 - (TAU * t / self.period_s).cos()))
    }

    /// The time from `now_s` to the next arrival.
    pub fn gap_s(&self, now_s: f64, rng: &mut SplitMix64) -> f64 {
        let gap =
            if self.cv == 1.0 { -unit(rng).ln() } else { gamma(1.0 / (self.cv * self.cv), rng) * self.cv * self.cv };
        if self.swing == 0.0 {
            return gap / self.rate;
        }
        // The rate is nowhere below (1 - swing) of its mean, so the time is in between.
        let goal = self.expected(now_s) + gap;
        let (mut low, mut high) = (now_s, now_s + gap / (self.rate * (1.0 - self.swing)));
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if self.expected(middle) < goal {
                low = middle;
            } else {
                high = middle;
            }
        }
        high - now_s
    }
}

/// A number in (0, 1].
pub(super) fn unit(rng: &mut SplitMix64) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 1.0) / (1u64 << 53) as f64
}

/// Gamma distributed with this shape and a scale of 1.
fn gamma(shape: f64, rng: &mut SplitMix64) -> f64 {
    if shape < 1.0 {
        return gamma(shape + 1.0, rng) * unit(rng).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        // Box and Muller.
        let x = (-2.0 * unit(rng).ln()).sqrt() * (TAU * unit(rng)).cos();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && unit(rng).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_variation_are_as_set() {
        for cv in [0.5, 1.0, 3.0] {
            let (process, mut rng) = (Process { cv, ..Process::poisson(20.0) }, SplitMix64::seeded(3));
            let gaps: Vec<f64> = (0..200_000).map(|_| process.gap_s(0.0, &mut rng)).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 20.0 - 1.0).abs() < 0.03, "{cv}: {mean}");
            assert!((variance.sqrt() / mean / cv - 1.0).abs() < 0.03, "{cv}: {variance}");
        }
    }

    #[test]
    fn a_day_has_its_peak_and_its_night() {
        let process = Process { swing: 0.8, period_s: 100.0, ..Process::poisson(50.0) };
        let (mut rng, mut now, mut quarters) = (SplitMix64::seeded(5), 0.0, [0.0f64; 4]);
        while now < 1_000.0 {
            now += process.gap_s(now, &mut rng);
            quarters[(now / 25.0) as usize % 4] += 1.0;
        }
        // The mean of 1 + 0.8 sin over the first half is 1 + 0.8 x 2 / pi.
        let day = (quarters[0] + quarters[1]) / 25_000.0;
        assert!((day - 1.509).abs() < 0.05, "{quarters:?}");
        assert!((quarters.iter().sum::<f64>() / 50_000.0 - 1.0).abs() < 0.03);
    }
}
