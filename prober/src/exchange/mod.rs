//! What the Envoys tell each other through the prober, and what the engines' own counts add to it. Pure: time is an argument
//! (Unix ms).
//!
//! An Envoy reports what it has in flight per endpoint; it hears the sum of what the *other* Envoys reported, so nobody
//! subtracts anything and nobody's own requests come back to him. A report counts for [`Settings::stale_after_ms`] (three
//! intervals): an Envoy that is gone, or that cannot reach the prober, is not counted for longer.
//!
//! - [`outside`]: what an engine runs beyond all of that.
//! - [`averages`]: moving averages of what the requests were like.
//!
//! Bounded: at most [`MAX_ENVOYS`] Envoys, and of each only endpoints that exist. Cost of a report: linear in its own
//! endpoints, times the number of Envoys for the answer.

pub mod averages;
pub mod outside;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use weighbridge_routing::exchange::{Averages, EndpointAnswer, EndpointReport, Report};

use averages::{Kept, Moving};
use outside::{Counts, Scrapes};

/// The most Envoys that are remembered at once.
pub const MAX_ENVOYS: usize = 1_024;
/// Intervals after which what was said is stale.
pub const STALE_INTERVALS: u32 = 3;

/// Times that everything here is measured by.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How often engines and Envoys report.
    pub interval_ms: u64,
    /// The time constant of the moving averages.
    pub average_over_ms: f64,
}

impl Settings {
    /// From the configuration.
    #[must_use]
    pub fn new(interval: Duration, average_over: Duration) -> Self {
        Settings { interval_ms: interval.as_millis() as u64, average_over_ms: average_over.as_secs_f64() * 1e3 }
    }

    /// How long something that was said counts.
    #[must_use]
    pub fn stale_after_ms(&self) -> u64 {
        self.interval_ms.saturating_mul(STALE_INTERVALS.into())
    }
}

/// Whether something said at one time still counts at another. A clock that was set back must not keep it for hours.
#[must_use]
pub fn is_fresh(said_ms: u64, now_ms: u64, for_ms: u64) -> bool {
    now_ms.abs_diff(said_ms) <= for_ms
}

/// What one Envoy has at one endpoint.
#[derive(Debug, Clone, Default)]
struct Row {
    pending_tokens: u32,
    /// Its last counts, for comparison with scrapes.
    counts: Counts,
}

/// One Envoy.
#[derive(Debug, Clone, Default)]
struct Envoy {
    heard_ms: u64,
    /// By endpoint id.
    rows: HashMap<String, Row>,
    /// Requests in its queues.
    waiting: u32,
}

/// Too many Envoys report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_ENVOYS} other Envoys have reported within the last three intervals")]
pub struct Crowded;

/// What is known of load beyond the registry.
#[derive(Debug)]
pub struct Exchange {
    settings: Settings,
    envoys: HashMap<String, Envoy>,
    engines: HashMap<String, Scrapes>,
    averages: HashMap<String, Moving>,
}

impl Exchange {
    /// With the averages that the store remembers, by endpoint.
    #[must_use]
    pub fn new(settings: Settings, averages: HashMap<String, Kept>) -> Self {
        let averages = averages.into_iter().map(|(id, kept)| (id, Moving::from(kept))).collect();
        Exchange { settings, envoys: HashMap::new(), engines: HashMap::new(), averages }
    }

    /// Another prober, which other Envoys report to, has stored averages of an endpoint.
    pub fn hear(&mut self, id: &str, kept: Kept) {
        match self.averages.get_mut(id) {
            Some(moving) => moving.hear(kept),
            None => drop(self.averages.insert(id.to_owned(), Moving::from(kept))),
        }
    }

    /// The times that count here.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Takes in what an Envoy says. `exists` tells whether a pool has an endpoint; others are left out.
    ///
    /// # Errors
    /// When it is new, and there are too many already.
    pub fn report(&mut self, report: &Report, exists: impl Fn(&str, &str) -> bool, now_ms: u64) -> Result<(), Crowded> {
        let stale_after_ms = self.settings.stale_after_ms();
        self.envoys.retain(|_, envoy| is_fresh(envoy.heard_ms, now_ms, stale_after_ms));
        if !self.envoys.contains_key(&report.envoy) && self.envoys.len() >= MAX_ENVOYS {
            return Err(Crowded);
        }
        let known = self.envoys.entry(report.envoy.clone()).or_default();
        let mut before = std::mem::take(&mut known.rows);
        known.heard_ms = now_ms;
        known.waiting = 0;
        for (pool, told) in &report.pools {
            known.waiting = known.waiting.saturating_add(told.waiting);
            for (id, EndpointReport { in_flight, pending_tokens, served }) in &told.endpoints {
                if !exists(pool, id) {
                    continue;
                }
                let mut row = before.remove(id).unwrap_or_default();
                row.pending_tokens = *pending_tokens;
                row.counts.push(now_ms, *in_flight);
                known.rows.insert(id.clone(), row);
                if let Some(served) = served {
                    self.averages.entry(id.clone()).or_default().add(served, now_ms, self.settings.average_over_ms);
                }
            }
        }
        Ok(())
    }

    /// An engine has told how many requests it runs and queues.
    pub fn scraped(&mut self, id: &str, requests: u64, now_ms: u64) {
        self.engines.entry(id.to_owned()).or_default().push(now_ms, requests);
    }

    /// What others have at an endpoint, as seen by one Envoy; `engine` is left to the caller.
    #[must_use]
    pub fn seen_by(&self, envoy: &str, id: &str, now_ms: u64) -> EndpointAnswer {
        let stale_after_ms = self.settings.stale_after_ms();
        let mut answer = EndpointAnswer { outside: self.outside(id, now_ms), ..EndpointAnswer::default() };
        let others = self
            .envoys
            .iter()
            .filter(|(name, other)| name.as_str() != envoy && is_fresh(other.heard_ms, now_ms, stale_after_ms));
        for row in others.filter_map(|(_, other)| other.rows.get(id)) {
            answer.others = answer.others.saturating_add(row.counts.last());
            answer.others_tokens = answer.others_tokens.saturating_add(row.pending_tokens);
        }
        answer.averages = self.averages(id, now_ms);
        answer
    }

    /// Requests that an engine has beyond those that any Envoy has sent; 0 when that is not known.
    #[must_use]
    pub fn outside(&self, id: &str, now_ms: u64) -> u32 {
        let Some(scrapes) = self.engines.get(id) else { return 0 };
        let rows: Vec<&Counts> = self.envoys.values().filter_map(|envoy| Some(&envoy.rows.get(id)?.counts)).collect();
        scrapes.outside(&rows, now_ms, self.settings.interval_ms)
    }

    /// Requests that Envoys have in flight at an endpoint, all together.
    #[must_use]
    pub fn in_flight(&self, id: &str, now_ms: u64) -> u32 {
        let stale_after_ms = self.settings.stale_after_ms();
        let rows = self.envoys.values().filter(|envoy| is_fresh(envoy.heard_ms, now_ms, stale_after_ms));
        rows.filter_map(|envoy| envoy.rows.get(id)).fold(0, |sum, row| sum.saturating_add(row.counts.last()))
    }

    /// Envoys that report, and requests in their queues.
    #[must_use]
    pub fn envoys(&self, now_ms: u64) -> (usize, u64) {
        let stale_after_ms = self.settings.stale_after_ms();
        let fresh = self.envoys.values().filter(|envoy| is_fresh(envoy.heard_ms, now_ms, stale_after_ms));
        fresh.fold((0, 0), |(count, waiting), envoy| (count + 1, waiting + u64::from(envoy.waiting)))
    }

    /// The moving averages of an endpoint.
    #[must_use]
    pub fn averages(&self, id: &str, now_ms: u64) -> Option<Averages> {
        let tau = self.settings.average_over_ms;
        self.averages.get(id).map(|moving| moving.value(now_ms, tau)).filter(|value| *value != Averages::default())
    }

    /// Averages that have changed since they were last taken, as they are stored.
    pub fn take_changed(&mut self, now_ms: u64) -> BTreeMap<String, Kept> {
        let tau = self.settings.average_over_ms;
        let changed = self.averages.iter_mut().filter_map(|(id, moving)| Some((id.clone(), moving.take(now_ms, tau)?)));
        changed.collect()
    }

    /// Forgets what an engine ran: the endpoint has another one now, or none.
    pub fn replaced(&mut self, id: &str) {
        self.engines.remove(id);
    }

    /// Forgets an endpoint.
    pub fn forget(&mut self, id: &str) {
        self.engines.remove(id);
        self.averages.remove(id);
    }
}
