//! The decision record: why a request went where it went, readable at 3 am.
//!
//! One JSON object, in filter state (for the access log) and, where allowed, in a response header. It never holds
//! anything of the prompt. Each candidate's terms are given for up to [`MAX_CANDIDATES`] endpoints, those that were
//! compared first; `omitted` says how many are missing.

use serde::Serialize;

use crate::eligibility::{Ask, Exclusion, Load, Survey};
use crate::live::{Admitted, row::Refused};
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
    /// Why: a [`Reason`](crate::route::Reason) or a [`Refusal`](crate::route::Refusal).
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
    /// Tokens of the prompt, by estimate.
    pub prompt_tokens: u64,
    /// Tokens that the answer was expected to have.
    pub output_tokens: u64,
    /// What prefix affinity had to say, where an endpoint holds some of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<PrefixRecord<'a>>,
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
    /// Tokens that the requests in flight still have to compute or generate, by estimate.
    pub pending_tokens: u32,
    /// `in_flight / weight`, to two places: what is compared.
    pub load: f64,
    /// Whether it was among those compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drawn: bool,
    /// Why it was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<&'static str>,
}

/// How staying with a holder of the prompt's prefix was weighed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrefixRecord<'a> {
    /// The endpoints that hold the longest known prefix.
    pub holders: Vec<&'a str>,
    /// Tokens of that prefix.
    pub matched_tokens: u64,
    /// Of these, tokens that the freest endpoint does not have.
    pub missing_tokens: u64,
    /// How much fuller than the freest a holder could be, in the unit of `load`.
    pub allowance: f64,
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
    /// What the answer's `usage` said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Of these, tokens that the engine found in its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<&'static str>,
    /// Whether there was an error object in an answer whose status was fine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub error: bool,
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl<'a> Decision<'a> {
    /// The record of an admitted request.
    #[must_use]
    pub fn admitted(pool: &'a Pool, snapshot: u64, ask: &Ask, admitted: &Admitted) -> Self {
        let Admitted { pick, loads, .. } = admitted;
        let name = |index: &usize| pool.endpoints.get(*index).map(|endpoint| endpoint.id.as_str());
        let mut hosts: Vec<&str> = pick.hosts.iter().filter_map(name).collect();
        hosts.dedup();
        let prefix = pick.affinity.as_ref().map(|affinity| PrefixRecord {
            holders: affinity.holders.iter().filter_map(name).take(MAX_CANDIDATES).collect(),
            matched_tokens: affinity.matched_tokens,
            missing_tokens: affinity.missing_tokens,
            allowance: hundredths(affinity.allowance),
        });
        Decision {
            reason: pick.reason.as_str(),
            picked: name(&pick.chosen()),
            hosts,
            prefix,
            ..Self::of(pool, snapshot, ask, loads, &pick.survey, &pick.drawn)
        }
    }

    /// The record of a refused request.
    #[must_use]
    pub fn refused(pool: &'a Pool, snapshot: u64, ask: &Ask, refused: &Refused) -> Self {
        let Refused { refusal, survey, loads } = refused;
        Decision { reason: refusal.as_str(), ..Self::of(pool, snapshot, ask, loads, survey, &[]) }
    }

    fn of(pool: &'a Pool, snapshot: u64, ask: &Ask, loads: &[Load], survey: &Survey, drawn: &[usize]) -> Self {
        let record = |index: usize, drawn: bool| {
            let endpoint = pool.endpoints.get(index)?;
            let load = loads.get(index).copied().unwrap_or_default();
            Some(CandidateRecord {
                id: &endpoint.id,
                weight: endpoint.weight.get(),
                in_flight: load.in_flight,
                cap: endpoint.cap,
                pending_tokens: load.pending_tokens,
                load: hundredths(f64::from(load.in_flight) / endpoint.weight.get()),
                drawn,
                excluded: survey.excluded.get(index).copied().flatten().map(Exclusion::as_str),
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
            prompt_tokens: ask.prompt_tokens,
            output_tokens: ask.output_tokens,
            prefix: None,
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
