//! The decision record: why a request went where it went, readable at 3 am.
//!
//! One JSON object, in filter state (for the access log) and, where allowed, in a response header. It never holds
//! anything of the prompt. Each candidate's terms are given for up to [`MAX_CANDIDATES`] endpoints, those that were
//! compared first; `omitted` says how many are missing.

use serde::Serialize;

use crate::eligibility::{Ejections, Load, exclusion};
use crate::route::{Pick, Reason, Refusal};
use crate::snapshot::Pool;

/// Candidates written out in one record.
pub const MAX_CANDIDATES: usize = 16;

/// A whole record.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The snapshot that was in force.
    pub snapshot: u64,
    /// Why: a [`Reason`] or a [`Refusal`].
    pub reason: &'static str,
    /// The endpoint that was picked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picked: Option<&'a str>,
    /// The endpoints in the order in which they are to be tried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<&'a str>,
    /// Each endpoint's terms.
    pub candidates: Vec<CandidateRecord<'a>>,
    /// Endpoints not written out.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted: usize,
    /// The endpoint that answered, and how; known at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultRecord<'a>>,
}

/// One endpoint as the decision saw it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CandidateRecord<'a> {
    /// Which.
    pub id: &'a str,
    /// Its weight.
    pub weight: f64,
    /// Requests in flight before this one.
    pub in_flight: u32,
    /// The most it may have.
    pub cap: u32,
    /// `in_flight / weight`, to two places: what is compared.
    pub load: f64,
    /// Whether it was among those compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drawn: bool,
    /// Why it was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<&'static str>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResultRecord<'a> {
    /// The endpoint that really answered; absent when none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<&'a str>,
    /// HTTP status; 0 when there was none.
    pub status: u16,
    /// Attempts that Envoy made.
    pub attempts: u32,
    /// From the decision to the first byte of the answer's body, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<u64>,
    /// From the decision to the end of the answer, in ms.
    pub duration_ms: u64,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl<'a> Decision<'a> {
    /// The record of an admitted request. `loads` is what the pick looked at.
    #[must_use]
    pub fn admitted(pool: &'a Pool, snapshot: u64, pick: &Pick, loads: &[Load], now_ms: u64) -> Self {
        let name = |index: &usize| pool.endpoints.get(*index).map(|endpoint| endpoint.id.as_str());
        let ejections = if pick.reason == Reason::Panic { Ejections::Ignore } else { Ejections::Respect };
        let mut hosts: Vec<&str> = pick.hosts.iter().filter_map(name).collect();
        hosts.dedup();
        Decision {
            reason: pick.reason.as_str(),
            picked: name(&pick.chosen()),
            hosts,
            ..Self::of(pool, snapshot, loads, now_ms, ejections, &pick.drawn)
        }
    }

    /// The record of a refused request.
    #[must_use]
    pub fn refused(pool: &'a Pool, snapshot: u64, refusal: Refusal, loads: &[Load], now_ms: u64) -> Self {
        Decision { reason: refusal.as_str(), ..Self::of(pool, snapshot, loads, now_ms, Ejections::Respect, &[]) }
    }

    fn of(pool: &'a Pool, snapshot: u64, loads: &[Load], now_ms: u64, ejections: Ejections, drawn: &[usize]) -> Self {
        let record = |index: usize, drawn: bool| {
            let endpoint = pool.endpoints.get(index)?;
            let load = loads.get(index).copied().unwrap_or_default();
            Some(CandidateRecord {
                id: &endpoint.id,
                weight: endpoint.weight.get(),
                in_flight: load.in_flight,
                cap: endpoint.cap,
                load: (f64::from(load.in_flight) / endpoint.weight.get() * 100.0).round() / 100.0,
                drawn,
                excluded: exclusion(endpoint, &load, now_ms, ejections).map(|why| why.as_str()),
            })
        };
        let rest = (0..pool.endpoints.len()).filter(|index| !drawn.contains(index));
        let candidates: Vec<_> = drawn
            .iter()
            .filter_map(|index| record(*index, true))
            .chain(rest.filter_map(|index| record(index, false)))
            .take(MAX_CANDIDATES)
            .collect();
        Decision {
            pool: &pool.name,
            snapshot,
            reason: "",
            picked: None,
            hosts: Vec::new(),
            omitted: pool.endpoints.len().saturating_sub(candidates.len()),
            candidates,
            result: None,
        }
    }

    /// Compact JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Finite numbers and strings always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}
