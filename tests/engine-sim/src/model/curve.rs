//! Throughput over concurrency.

use super::profile::ProfileError;

/// Total throughput in tok/s as a function of the number of sequences that decode together.
///
/// Between two points it is linear. Below the first point it is proportional (a line through the origin), above the last
/// one flat: a batch bigger than anything measured is assumed to be no faster and no slower.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Points of (concurrency, total tok/s), concurrency strictly increasing from at least 1, throughput above zero.
    /// Infinite throughput is allowed (decoding then takes no time), and an empty list means just that.
    pub fn try_new(points: &[(u32, f64)]) -> Result<Self, ProfileError> {
        let mut last = 0;
        for &(concurrency, tps) in points {
            if concurrency <= last {
                return Err(ProfileError::new("curve", format!("concurrency {concurrency} must be above {last}")));
            }
            if tps.is_nan() || tps <= 0.0 {
                return Err(ProfileError::new("curve", format!("throughput {tps} at {concurrency} must be above 0")));
            }
            last = concurrency;
        }
        let points = points.iter().map(|&(n, tps)| (f64::from(n), tps)).collect();
        Ok(Self { points })
    }

    /// Total tok/s with `n` sequences decoding. Cost: linear in the number of points.
    pub fn total_tps(&self, n: usize) -> f64 {
        let n = n as f64;
        let mut below = (0.0, 0.0);
        for &(x, y) in &self.points {
            if n <= x {
                if y.is_infinite() {
                    return y;
                }
                let (x0, y0) = below;
                return y0 + (y - y0) * (n - x0) / (x - x0);
            }
            below = (x, y);
        }
        if self.points.is_empty() { f64::INFINITY } else { below.1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fast() -> Curve {
        Curve::try_new(&[(1, 106.0), (8, 688.0), (16, 980.0), (32, 1440.0)]).unwrap()
    }

    #[test]
    fn hits_its_points_and_is_linear_between() {
        let curve = fast();
        for (n, tps) in [(1, 106.0), (8, 688.0), (16, 980.0), (32, 1440.0), (12, 834.0)] {
            assert!((curve.total_tps(n) - tps).abs() < 1e-9, "{n}");
        }
    }

    #[test]
    fn flat_above_and_proportional_below() {
        assert_eq!(fast().total_tps(100), 1440.0);
        let curve = Curve::try_new(&[(8, 800.0)]).unwrap();
        assert_eq!(curve.total_tps(2), 200.0);
        assert_eq!(curve.total_tps(0), 0.0);
    }

    #[test]
    fn no_points_cost_no_time() {
        assert_eq!(Curve::try_new(&[]).unwrap().total_tps(5), f64::INFINITY);
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        assert!(Curve::try_new(&[(0, 1.0)]).is_err());
        assert!(Curve::try_new(&[(2, 1.0), (2, 2.0)]).is_err());
        assert!(Curve::try_new(&[(1, 0.0)]).is_err());
        assert!(Curve::try_new(&[(1, f64::NAN)]).is_err());
    }
}
