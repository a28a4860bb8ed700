//! What all Envoys together have at each endpoint, kept up to date row by row: what one of them is answered costs the same
//! however many others there are.
//!
//! ```text
//! others  = total - own row
//! outside = as in [`super::outside`], with the sum over Envoys kept for each scrape
//! ```
//!
//! A row that changes is taken out as it was and put in as it is. Nothing is rounded: sums of 1,024 Envoys fit.

use std::collections::HashMap;

use super::Row;
use super::outside::{Counts, Reading, Scrapes};

/// One endpoint.
#[derive(Debug)]
struct Total {
    in_flight: u64,
    pending_tokens: u64,
    scrapes: Scrapes,
}

/// All endpoints.
#[derive(Debug)]
pub(super) struct Totals {
    interval_ms: u64,
    by_id: HashMap<String, Total>,
}

impl Totals {
    pub(super) fn new(interval_ms: u64) -> Self {
        Totals { interval_ms, by_id: HashMap::new() }
    }

    /// A row counts from now on.
    pub(super) fn with(&mut self, id: &str, row: &Row) {
        let total = self.of(id);
        total.in_flight += u64::from(row.counts.last());
        total.pending_tokens += u64::from(row.pending_tokens);
        total.scrapes.with(&row.counts);
    }

    /// A row that counted does no more.
    pub(super) fn without(&mut self, id: &str, row: &Row) {
        let Some(total) = self.by_id.get_mut(id) else { return };
        total.in_flight = total.in_flight.saturating_sub(row.counts.last().into());
        total.pending_tokens = total.pending_tokens.saturating_sub(row.pending_tokens.into());
        total.scrapes.without(&row.counts);
    }

    /// An engine has told how many requests it runs and queues; `counts` are those of all Envoys there.
    pub(super) fn scraped<'a>(
        &mut self,
        id: &str,
        reading: Reading,
        now_ms: u64,
        counts: impl Iterator<Item = &'a Counts>,
    ) {
        self.of(id).scrapes.push(now_ms, reading, counts);
    }

    /// A probe runs at an engine, or has just ended, and has had so many requests at once.
    pub(super) fn probed(&mut self, id: &str, requests: u64) {
        self.of(id).scrapes.probed(requests);
    }

    /// Requests and tokens of everybody but the one who has this row.
    pub(super) fn others(&self, id: &str, own: Option<&Row>) -> (u32, u32) {
        let Some(total) = self.by_id.get(id) else { return (0, 0) };
        let (in_flight, tokens) = own.map_or((0, 0), |row| (row.counts.last(), row.pending_tokens));
        let narrow = |sum: u64, own: u32| u32::try_from(sum.saturating_sub(own.into())).unwrap_or(u32::MAX);
        (narrow(total.in_flight, in_flight), narrow(total.pending_tokens, tokens))
    }

    /// Requests that an engine has beyond those that any Envoy has sent; 0 when that is not known.
    pub(super) fn outside(&self, id: &str, now_ms: u64) -> u32 {
        self.by_id.get(id).map_or(0, |total| total.scrapes.outside(now_ms))
    }

    /// Forgets what an engine ran.
    pub(super) fn replaced(&mut self, id: &str) {
        let fresh = Scrapes::new(self.interval_ms);
        if let Some(total) = self.by_id.get_mut(id) {
            total.scrapes = fresh;
        }
    }

    /// Forgets an endpoint. The rows of all Envoys there must go, too.
    pub(super) fn forget(&mut self, id: &str) {
        self.by_id.remove(id);
    }

    fn of(&mut self, id: &str) -> &mut Total {
        let interval_ms = self.interval_ms;
        let fresh = || Total { in_flight: 0, pending_tokens: 0, scrapes: Scrapes::new(interval_ms) };
        self.by_id.entry(id.to_owned()).or_insert_with(fresh)
    }
}
