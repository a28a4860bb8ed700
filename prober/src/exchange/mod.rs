//! What the Envoys tell each other through the prober, and what the engines' own counts add to it. Pure: time is an argument
//! (Unix ms).
//!
//! An Envoy reports what it has in flight per endpoint; it hears the sum of what the *other* Envoys reported, so nobody
//! subtracts anything and nobody's own requests come back to him. A report counts for [`Settings::stale_after_ms`] (three
//! intervals): an Envoy that is gone, or that cannot reach the prober, is not counted for longer.
//!
//! - `totals`: what all Envoys together have, which makes an answer cheap.
//! - [`outside`]: what an engine runs beyond all of that.
//! - [`averages`]: moving averages of what the requests were like.
//!
//! Bounded: at most [`MAX_ENVOYS`] Envoys, and of each only endpoints that exist. Cost of a report and its answer: linear in
//! its own endpoints, and in the number of Envoys; of a scrape: linear in the number of Envoys.

pub mod averages;
pub mod outside;
mod totals;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use weighbridge_routing::exchange::{Averages, EndpointAnswer, EndpointReport, Report};

use averages::{Kept, Moving};
use outside::{Counts, Reading};
use totals::Totals;

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
    ejected: bool,
    cooling_down: bool,
    /// Its last counts, for comparison with scrapes.
    counts: Counts,
}

/// One Envoy.
#[derive(Debug, Clone, Default)]
struct Envoy {
    heard_ms: u64,
    /// By endpoint id.
    rows: HashMap<String, Row>,
    /// Requests in its queues, by pool.
    waiting: HashMap<String, u32>,
}

/// How many Envoys send an endpoint nothing, or little, for what requests have met there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shunned {
    /// They have it ejected.
    pub ejected: u32,
    /// They leave it alone for a moment, since it has pushed back.
    pub cooling_down: u32,
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
    totals: Totals,
    averages: HashMap<String, Moving>,
}

impl Exchange {
    /// With the averages that the store remembers, by endpoint.
    #[must_use]
    pub fn new(settings: Settings, averages: HashMap<String, Kept>) -> Self {
        let averages = averages.into_iter().map(|(id, kept)| (id, Moving::from(kept))).collect();
        Exchange { settings, envoys: HashMap::new(), totals: Totals::new(settings.interval_ms), averages }
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
        let is_gone = |envoy: &Envoy| !is_fresh(envoy.heard_ms, now_ms, stale_after_ms);
        let gone: Vec<Envoy> = self.envoys.extract_if(|_, envoy| is_gone(envoy)).map(|(_, envoy)| envoy).collect();
        for envoy in gone {
            self.leave_out(&envoy.rows);
        }
        if !self.envoys.contains_key(&report.envoy) && self.envoys.len() >= MAX_ENVOYS {
            return Err(Crowded);
        }
        let mut envoy = self.envoys.remove(&report.envoy).unwrap_or_default();
        let mut before = std::mem::take(&mut envoy.rows);
        envoy.heard_ms = now_ms;
        envoy.waiting.clear();
        for (pool, told) in &report.pools {
            if told.waiting > 0 {
                envoy.waiting.insert(pool.clone(), told.waiting);
            }
            for (id, told) in &told.endpoints {
                let EndpointReport { in_flight, pending_tokens, ejected, cooling_down, served } = told;
                if !exists(pool, id) {
                    continue;
                }
                let mut row = match before.remove(id) {
                    Some(row) => {
                        self.totals.without(id, &row);
                        row
                    }
                    None => Row::default(),
                };
                row.pending_tokens = *pending_tokens;
                (row.ejected, row.cooling_down) = (*ejected, *cooling_down);
                row.counts.push(now_ms, *in_flight);
                self.totals.with(id, &row);
                envoy.rows.insert(id.clone(), row);
                if let Some(served) = served {
                    self.averages.entry(id.clone()).or_default().add(served, now_ms, self.settings.average_over_ms);
                }
            }
        }
        self.leave_out(&before);
        self.envoys.insert(report.envoy.clone(), envoy);
        Ok(())
    }

    /// These rows count no more.
    fn leave_out(&mut self, rows: &HashMap<String, Row>) {
        for (id, row) in rows {
            self.totals.without(id, row);
        }
    }

    /// An engine has told how many requests it runs and queues.
    pub fn scraped(&mut self, id: &str, reading: Reading, now_ms: u64) {
        let counts = self.envoys.values().filter_map(|envoy| Some(&envoy.rows.get(id)?.counts));
        self.totals.scraped(id, reading, now_ms, counts);
    }

    /// A prober's own burst runs at an engine, or has just ended, and has had so many requests at once: they are nobody else's.
    pub fn probed(&mut self, id: &str, requests: u64) {
        self.totals.probed(id, requests);
    }

    /// What others have at an endpoint, as seen by an Envoy that has just reported; `engine` is left to the caller.
    #[must_use]
    pub fn seen_by(&self, envoy: &str, id: &str, now_ms: u64) -> EndpointAnswer {
        let own = self.envoys.get(envoy).and_then(|envoy| envoy.rows.get(id));
        let (others, others_tokens) = self.totals.others(id, own);
        let (outside, averages) = (self.outside(id, now_ms), self.averages(id, now_ms));
        EndpointAnswer { others, others_tokens, outside, averages, ..EndpointAnswer::default() }
    }

    /// Requests that an engine has beyond those that any Envoy has sent; 0 when that is not known.
    #[must_use]
    pub fn outside(&self, id: &str, now_ms: u64) -> u32 {
        self.totals.outside(id, now_ms)
    }

    /// Requests that Envoys have in flight at an endpoint, all together.
    #[must_use]
    pub fn in_flight(&self, id: &str, now_ms: u64) -> u32 {
        self.fresh(now_ms)
            .filter_map(|envoy| envoy.rows.get(id))
            .fold(0, |sum, row| sum.saturating_add(row.counts.last()))
    }

    /// What Envoys think of an endpoint.
    #[must_use]
    pub fn shunned(&self, id: &str, now_ms: u64) -> Shunned {
        let rows = self.fresh(now_ms).filter_map(|envoy| envoy.rows.get(id));
        rows.fold(Shunned::default(), |sum, row| Shunned {
            ejected: sum.ejected + u32::from(row.ejected),
            cooling_down: sum.cooling_down + u32::from(row.cooling_down),
        })
    }

    /// Envoys that report.
    #[must_use]
    pub fn envoys(&self, now_ms: u64) -> usize {
        self.fresh(now_ms).count()
    }

    /// Requests that wait for a pool in the Envoys' queues.
    #[must_use]
    pub fn waiting(&self, pool: &str, now_ms: u64) -> u64 {
        self.fresh(now_ms).filter_map(|envoy| envoy.waiting.get(pool)).map(|waiting| u64::from(*waiting)).sum()
    }

    fn fresh(&self, now_ms: u64) -> impl Iterator<Item = &Envoy> {
        let stale_after_ms = self.settings.stale_after_ms();
        self.envoys.values().filter(move |envoy| is_fresh(envoy.heard_ms, now_ms, stale_after_ms))
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
        self.totals.replaced(id);
    }

    /// Forgets an endpoint.
    pub fn forget(&mut self, id: &str) {
        for envoy in self.envoys.values_mut() {
            envoy.rows.remove(id);
        }
        self.totals.forget(id);
        self.averages.remove(id);
    }
}

#[cfg(test)]
mod tests;
