//! How many requests an endpoint may have at once.
//!
//! | source | cap | when |
//! |---|---|---|
//! | `hand` | `max_in_flight` of the endpoint | where it is written |
//! | `measured` | the knee of its throughput curve, refined while it serves | the pool says `cap: measured`, and its sweep succeeded |
//! | `weight` | `base_cap x weight` | otherwise |
//!
//! - [`curve`]: throughput over concurrency, as a sweep measured it.
//! - [`knee`]: where on it an endpoint should stand.
//! - [`observed`]: what serving says about the curve between two sweeps.
//! - [`measured`]: the three together: the cap that follows from them, and how slowly it moves.
//!
//! Everything here is pure: time is an argument (Unix ms). A measured cap depends on nothing but its own endpoint, so a
//! newcomer changes nobody's; a weight is relative to the pool's median, so there it may.

pub mod curve;
pub mod knee;
pub mod measured;
pub mod observed;

use serde::{Deserialize, Serialize};
use weighbridge_routing::snapshot::wire::By;

pub use curve::{Curve, CurveError, Step};
pub use knee::{Bound, Knee};
pub use measured::Measured;
pub use observed::{Observed, Reading};

/// Where the caps of a pool come from, unless they are set by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// `base_cap x weight`.
    #[default]
    Weight,
    /// The knee of the endpoint's own curve.
    Measured,
}

/// What a pool does with the curves of its endpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizing {
    /// What caps are found from.
    pub mode: Mode,
    /// What its policy compares endpoints by.
    pub by: By,
    /// Tokens per second that every request is to have; 0: no floor.
    pub min_tps: f64,
}

impl Sizing {
    /// The floor where nobody says otherwise: faster than people read.
    pub const MIN_TPS: f64 = 30.0;

    /// Whether anything needs a curve, so that a probe has to sweep.
    #[must_use]
    pub fn sweeps(&self) -> bool {
        self.mode == Mode::Measured || self.by == By::Curve
    }
}

impl Default for Sizing {
    fn default() -> Self {
        Sizing { mode: Mode::default(), by: By::default(), min_tps: Self::MIN_TPS }
    }
}

/// Where a cap comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CapSource {
    /// Somebody has written it.
    Hand,
    /// A sweep of concurrency.
    Measured,
    /// The weight.
    Weight,
}

impl CapSource {
    /// The word in the API and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CapSource::Hand => "hand",
            CapSource::Measured => "measured",
            CapSource::Weight => "weight",
        }
    }
}
