//! Throughput over concurrency, as a sweep measured it.

use serde::{Deserialize, Serialize};

/// A new step must bring this factor over the best before it, or the sweep is at its end.
const GAIN: f64 = 1.05;

/// One step of a sweep: so many equal requests at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Requests at once.
    pub concurrency: u32,
    /// Completion tokens of all of them per second of wall time.
    pub throughput_tps: f64,
    /// Completion tokens of one request per second of its own time, from sending to the last byte; the median.
    pub per_request_tps: f64,
    /// Time to the first token, the median; nothing when the engine did not stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
}

impl Step {
    /// What one request gets of an equal share: 1 when all run together from first to last, less when some wait.
    fn share(&self) -> f64 {
        self.per_request_tps * f64::from(self.concurrency) / self.throughput_tps
    }
}

/// Why steps are no curve.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// The first step is not at 1, or one is not above the one before.
    #[error("concurrency is {found}: expected {}", Expected(*.least))]
    Order {
        /// What stands there.
        found: u32,
        /// The least that could; `None` at the start, where only 1 can.
        least: Option<u32>,
    },
    /// A speed that is no positive number.
    #[error("the speed at concurrency {0} is {1}: expected a positive number")]
    Speed(u32, f64),
    /// There are none.
    #[error("a curve has no steps: expected at least one")]
    Empty,
}

struct Expected(Option<u32>);

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(least) => write!(f, "at least {least}"),
            None => f.write_str("1, where every curve begins"),
        }
    }
}

/// Steps from concurrency 1 upwards, all speeds positive and finite. Between two steps both throughput and the share of a
/// request are taken to be linear in the concurrency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Step>", into = "Vec<Step>")]
pub struct Curve(Vec<Step>);

impl Curve {
    /// A curve of the first step of a sweep.
    ///
    /// # Errors
    /// When it is not at concurrency 1, or no speed.
    pub fn begin(first: Step) -> Result<Self, CurveError> {
        let mut curve = Curve(Vec::new());
        curve.push(first)?;
        Ok(curve)
    }

    /// Adds the next step.
    ///
    /// # Errors
    /// When its concurrency is not above the last one's, or it is no speed.
    pub fn push(&mut self, step: Step) -> Result<(), CurveError> {
        let least = self.0.last().map(|last| last.concurrency.saturating_add(1));
        let in_order = match least {
            Some(least) => step.concurrency >= least,
            None => step.concurrency == 1,
        };
        if !in_order {
            return Err(CurveError::Order { found: step.concurrency, least });
        }
        for speed in [step.throughput_tps, step.per_request_tps] {
            if !(speed.is_finite() && speed > 0.0) {
                return Err(CurveError::Speed(step.concurrency, speed));
            }
        }
        self.0.push(step);
        Ok(())
    }

    /// The steps, by concurrency.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The largest concurrency measured.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.0.last().map_or(1, |last| last.concurrency)
    }

    /// The highest throughput measured.
    #[must_use]
    pub fn best_tps(&self) -> f64 {
        self.0.iter().map(|step| step.throughput_tps).fold(0.0, f64::max)
    }

    /// Whether a step brings enough over the best so far for a sweep to go on after it.
    #[must_use]
    pub fn gains_by(&self, step: &Step) -> bool {
        step.throughput_tps >= GAIN * self.best_tps()
    }

    /// Throughput at a concurrency; what lies outside is taken for the nearest end. Cost: linear in the steps (about
    /// ten).
    #[must_use]
    pub fn throughput_at(&self, concurrency: f64) -> f64 {
        self.between(concurrency, |step| step.throughput_tps)
    }

    /// What one request gets at a concurrency: `share x throughput / concurrency`.
    #[must_use]
    pub fn per_request_at(&self, concurrency: f64) -> f64 {
        let concurrency = concurrency.clamp(1.0, self.largest().into());
        self.between(concurrency, Step::share) * self.throughput_at(concurrency) / concurrency
    }

    /// The same curve with every speed multiplied by what `factor` says for its concurrency; a factor that is no positive
    /// number changes nothing.
    #[must_use]
    pub fn scaled(&self, factor: impl Fn(f64) -> f64) -> Self {
        let steps = self.0.iter().map(|step| {
            let factor = factor(step.concurrency.into());
            let factor = if factor.is_finite() && factor > 0.0 { factor } else { 1.0 };
            let (throughput_tps, per_request_tps) = (step.throughput_tps * factor, step.per_request_tps * factor);
            Step { throughput_tps, per_request_tps, ..*step }
        });
        Curve(steps.collect())
    }

    fn between(&self, concurrency: f64, value: impl Fn(&Step) -> f64) -> f64 {
        let mut below: Option<&Step> = None;
        for step in &self.0 {
            let at = f64::from(step.concurrency);
            if concurrency <= at {
                let Some(below) = below else { return value(step) };
                let from = f64::from(below.concurrency);
                return value(below) + (value(step) - value(below)) * (concurrency - from) / (at - from);
            }
            below = Some(step);
        }
        below.map_or(0.0, value)
    }
}

impl TryFrom<Vec<Step>> for Curve {
    type Error = CurveError;

    fn try_from(steps: Vec<Step>) -> Result<Self, CurveError> {
        let mut steps = steps.into_iter();
        let mut curve = Curve::begin(steps.next().ok_or(CurveError::Empty)?)?;
        for step in steps {
            curve.push(step)?;
        }
        Ok(curve)
    }
}

impl From<Curve> for Vec<Step> {
    fn from(curve: Curve) -> Self {
        curve.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A curve of requests that all run together.
    pub(in crate::caps) fn even(points: &[(u32, f64)]) -> Curve {
        let step = |(concurrency, tps): &(u32, f64)| Step {
            concurrency: *concurrency,
            throughput_tps: *tps,
            per_request_tps: tps / f64::from(*concurrency),
            ttft_ms: None,
        };
        points.iter().map(step).collect::<Vec<_>>().try_into().unwrap()
    }

    #[test]
    fn between_the_steps_throughput_is_linear_and_a_request_gets_its_share() {
        let curve = even(&[(1, 94.0), (8, 400.0), (16, 479.0)]);
        assert_eq!((curve.throughput_at(12.0), curve.per_request_at(12.0)), (439.5, 439.5 / 12.0));
        assert_eq!((curve.throughput_at(0.0), curve.throughput_at(99.0)), (94.0, 479.0));
        assert_eq!(curve.per_request_at(99.0), 479.0 / 16.0);
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        let read = |text: &str| serde_json::from_str::<Curve>(text).map_err(|error| error.to_string());
        let step =
            |n: u32, tps: f64| format!(r#"{{"concurrency": {n}, "throughput_tps": {tps}, "per_request_tps": 1.0}}"#);
        let (one, two) = (step(1, 5.0), step(2, 9.0));
        assert_eq!(read(&format!("[{one}, {two}]")).unwrap().largest(), 2);
        for (text, says) in [
            ("[]".to_owned(), "a curve has no steps"),
            (format!("[{two}]"), "concurrency is 2: expected 1"),
            (format!("[{one}, {one}]"), "concurrency is 1: expected at least 2"),
            (format!("[{one}, {}]", step(2, 0.0)), "the speed at concurrency 2 is 0"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_curve_survives_the_store() {
        let curve = even(&[(1, 94.25), (2, 180.5)]);
        assert_eq!(serde_json::from_str::<Curve>(&serde_json::to_string(&curve).unwrap()).unwrap(), curve);
    }
}
