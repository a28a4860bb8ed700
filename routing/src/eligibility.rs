//! Which endpoints of a pool may take a request, and for each of the others, why not.
//!
//! Linear in the number of endpoints. An endpoint about which nothing is known in the live table carries nothing.

use serde::Serialize;

use crate::live::table::Passive;
use crate::snapshot::{Endpoint, State};

/// What the live table says about one endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in flight, over all VMs.
    pub in_flight: u32,
    /// Passive health.
    pub passive: Passive,
}

/// Why an endpoint was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exclusion {
    /// Registered, not measured yet.
    New,
    /// Under a burst.
    Probing,
    /// Finishing what it has.
    Draining,
    /// Fails its health checks.
    Unhealthy,
    /// Ejected after failures in a row, or its trial after that is still under way.
    Ejected,
    /// Has as many requests in flight as it may.
    AtCap,
}

impl Exclusion {
    /// The word used in decisions and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Exclusion::New => "new",
            Exclusion::Probing => "probing",
            Exclusion::Draining => "draining",
            Exclusion::Unhealthy => "unhealthy",
            Exclusion::Ejected => "ejected",
            Exclusion::AtCap => "at_cap",
        }
    }
}

/// Whether passive ejections count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ejections {
    /// An ejected endpoint is left out.
    Respect,
    /// Everything that could serve is ejected, so ejection tells nothing any more.
    Ignore,
}

/// `None` when the endpoint may take a request now.
#[must_use]
pub fn exclusion(endpoint: &Endpoint, load: &Load, now_ms: u64, ejections: Ejections) -> Option<Exclusion> {
    match endpoint.state {
        State::Ready => {}
        State::New => return Some(Exclusion::New),
        State::Probing => return Some(Exclusion::Probing),
        State::Draining => return Some(Exclusion::Draining),
        State::Unhealthy => return Some(Exclusion::Unhealthy),
    }
    if ejections == Ejections::Respect && now_ms < load.passive.ejected_until_ms {
        return Some(Exclusion::Ejected);
    }
    (load.in_flight >= endpoint.cap).then_some(Exclusion::AtCap)
}
