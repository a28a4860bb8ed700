//! One trap each: a name, how bad it is, what comes of it, what to change, and a function that finds it. A rule looks at one thing, so
//! that one mistake is one finding.
//!
//! - [`filter`]: the filter and its VM.
//! - [`attempts`]: the router's log of attempts.
//! - [`headers`]: nobody steers from outside, and ours end at the load balancer.
//! - [`routes`]: timeouts, retries and bodies of the routes.
//! - [`pools`]: the clusters of pools.
//! - [`prober`]: how Envoy hears the prober.
//! - [`watching`]: metrics, access log, admin interface.

mod attempts;
mod filter;
mod headers;
mod pools;
mod prober;
mod routes;
mod watching;

use super::place::Place;
use super::wiring::Wiring;
use super::{Finding, Severity};

/// A trap.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Its name, such as `body-wait`.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What comes of it.
    pub trap: &'static str,
    /// What to change; a hit may know better.
    pub change: &'static str,
    find: fn(&Wiring<'_>) -> Vec<Hit>,
}

impl Rule {
    /// Where it is broken.
    #[must_use]
    pub fn findings(&self, wiring: &Wiring<'_>) -> Vec<Finding> {
        let finding = |hit: Hit| Finding {
            rule: self.id,
            severity: self.severity,
            path: hit.path,
            found: format!("{}: {}", hit.found, self.trap),
            change: hit.change.unwrap_or_else(|| self.change.to_owned()),
        };
        (self.find)(wiring).into_iter().map(finding).collect()
    }
}

/// All of them, in the order in which they are told.
pub const RULES: &[Rule] = &[
    filter::MISSING,
    filter::ELSEWHERE,
    filter::ORDER,
    filter::DEFAULT,
    filter::BODY_WAIT,
    filter::FAILURE_POLICY,
    filter::VM_ID,
    filter::ROOT_ID,
    filter::RUNTIME,
    filter::CAPABILITIES,
    filter::SANDBOX,
    filter::SNAPSHOT,
    filter::SNAPSHOT_VERSION,
    filter::SNAPSHOT_CLUSTER,
    attempts::MISSING,
    attempts::VM,
    attempts::ROOT_ID,
    headers::CLIENT,
    headers::TOO_EARLY,
    headers::ENGINE,
    headers::ANSWER,
    routes::ELSEWHERE,
    routes::MISSING,
    routes::TIMEOUT,
    routes::LONG_TIMEOUT,
    routes::IDLE,
    routes::DURATION,
    routes::LONG_DURATION,
    routes::TRY_TIMEOUT,
    routes::TRY_IDLE,
    routes::RETRY_ON,
    routes::RETRY_CODES,
    routes::RETRY_5XX,
    routes::RETRIES,
    routes::BODY_LIMIT,
    routes::CONNECTION_BUFFER,
    routes::UPLOAD,
    pools::OVERRIDE,
    pools::HEADER,
    pools::FALLBACK,
    pools::STATIC_NAME,
    pools::MISSING,
    pools::OUTLIERS,
    pools::HEALTH,
    pools::BREAKERS,
    pools::BUDGET,
    pools::IDLE,
    pools::PLAIN_KEYS,
    prober::CLUSTER,
    prober::HTTP2,
    prober::KEEPALIVE,
    prober::FETCH,
    prober::BACKOFF,
    prober::API,
    watching::TAGS,
    watching::BUCKETS,
    watching::DECISIONS,
    watching::ADMIN,
];

/// Where a rule is broken.
#[derive(Debug)]
struct Hit {
    path: String,
    found: String,
    change: Option<String>,
}

impl Hit {
    /// `found`: what stands there.
    fn new(at: &Place<'_>, found: impl Into<String>) -> Self {
        Hit { path: at.path.clone(), found: found.into(), change: None }
    }

    /// What stands there is not what should.
    fn stands(at: &Place<'_>) -> Self {
        Hit::new(at, at.shown())
    }

    fn change(self, change: impl Into<String>) -> Self {
        Hit { change: Some(change.into()), ..self }
    }
}

/// Each of these places that is not as it should be.
fn each_that<'a>(places: impl Iterator<Item = Place<'a>>, wrong: impl Fn(&Place<'a>) -> bool) -> Vec<Hit> {
    places.filter(|place| wrong(place)).map(|place| Hit::stands(&place)).collect()
}

#[cfg(test)]
mod tests;
