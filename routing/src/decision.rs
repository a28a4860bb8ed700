//! The decision record: why a request went where it went, readable at 3 am.
//!
//! One JSON object, in filter state (for the access log), where allowed in a response header, and in batches on its way
//! to the prober. It never holds anything of the prompt. `docs/decisions.md` says what each field means.
//!
//! Its size is bounded, whatever the size of the pool: the terms are given of [`MAX_CANDIDATES`] endpoints, first of
//! those that were compared, then of the hosts behind the pick, the holders of the prefix, and others in the pool's
//! order. The rest is counted by why it was left out.
//!
//! [`record`] is the same object as its readers see it; [`sample`] says which of them the prober gets.

mod json;
pub mod record;
pub mod sample;

use crate::eligibility::{Ask, Exclusion, Load, Survey};
use crate::live::{Admitted, row::Refused};
use crate::route::{EXPLAINED, Pick, Weighed};
use crate::snapshot::Pool;
use json::Json;

/// Candidates written out in one record.
pub const MAX_CANDIDATES: usize = EXPLAINED;

/// Holders of a prefix written out in one record.
pub const MAX_HOLDERS: usize = 8;

/// A whole record.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<'a> {
    /// When the request had arrived, in ms since 1970; 0 where that is not known.
    pub time_ms: u64,
    /// The pool.
    pub pool: &'a str,
    /// The snapshot that was in force.
    pub snapshot: u64,
    /// The pool's policy.
    pub policy: &'static str,
    /// Why: a [`Reason`](crate::route::Reason) or a [`Refusal`](crate::route::Refusal).
    pub reason: &'static str,
    /// The endpoint that was picked.
    pub picked: Option<&'a str>,
    /// The endpoints in the order in which they are to be tried.
    pub hosts: Vec<&'a str>,
    /// Each endpoint's terms.
    pub candidates: Vec<CandidateRecord<'a>>,
    /// Those not written out.
    pub omitted: Omitted,
    /// Tokens of the prompt, by estimate.
    pub prompt_tokens: u64,
    /// Tokens that the answer was expected to have.
    pub output_tokens: u64,
    /// What prefix affinity had to say, where an endpoint holds some of the prompt.
    pub prefix: Option<PrefixRecord<'a>>,
    /// How it waited, where it had to.
    pub queue: Option<QueueRecord>,
    /// The pool that was asked for, where this one takes what that one would have refused.
    pub spilled_from: Option<&'a str>,
    /// `fresh` or `stale`: whether what engines and other Envoys report was recent; absent where nobody reports.
    pub signals: Option<&'static str>,
    /// What a second policy would have done, where one is configured.
    pub shadow: Option<ShadowRecord<'a>>,
    /// The endpoint that answered, and how; known at the end.
    pub result: Option<ResultRecord<'a>>,
}

/// Endpoints that have no [`CandidateRecord`], so that a large pool's record stays small.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Omitted {
    /// How many.
    pub endpoints: usize,
    /// Of these, how many could not take the request, by why.
    pub excluded: Vec<(Exclusion, usize)>,
}

impl Omitted {
    /// Counts those that are not shown. Linear in the size of the pool, and free for pools that are shown whole.
    fn of(survey: &Survey, shown: &[usize]) -> Self {
        let mut omitted =
            Omitted { endpoints: survey.excluded.len().saturating_sub(shown.len()), excluded: Vec::new() };
        if omitted.endpoints == 0 {
            return omitted;
        }
        for (index, excluded) in survey.excluded.iter().enumerate() {
            let Some(excluded) = *excluded else { continue };
            if shown.contains(&index) {
                continue;
            }
            match omitted.excluded.iter_mut().find(|(why, _)| *why == excluded) {
                Some((_, count)) => *count += 1,
                None => omitted.excluded.push((excluded, 1)),
            }
        }
        omitted
    }
}

/// One endpoint as the decision saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateRecord<'a> {
    /// Which.
    pub id: &'a str,
    /// Its weight.
    pub weight: f64,
    /// Requests in flight before this one, whoever sent them.
    pub in_flight: u32,
    /// The most it may have.
    pub cap: u32,
    /// Tokens that the requests in flight still have to compute or generate, by estimate.
    pub pending_tokens: u32,
    /// What is compared (two places are written): requests in flight per weight, or pending tokens per weight where the policy is
    /// `least_pending_tokens`.
    pub load: f64,
    /// Where endpoints are compared by their curves: the share of its weight that it has with this request, so that `load` is
    /// `(in_flight + 1) / (weight x share)`.
    pub share: Option<f64>,
    /// Whether it was among those compared.
    pub drawn: bool,
    /// Why it was left out.
    pub excluded: Option<&'static str>,
    /// Of `in_flight`, requests that others sent there: other Envoys, and whoever speaks to the engine itself.
    pub elsewhere: u32,
    /// What is compared where the policy is `score`: the sum of `terms`, lowest wins.
    pub score: Option<f64>,
    /// What each term adds to the score (coefficient times value).
    pub terms: Vec<(&'static str, f64)>,
}

/// How staying with a holder of the prompt's prefix was weighed.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefixRecord<'a> {
    /// The endpoints that hold the longest known prefix.
    pub holders: Vec<&'a str>,
    /// Tokens of that prefix.
    pub matched_tokens: u64,
    /// Tokens of the longest known prefix, where that is longer but no endpoint that holds it could take the request; else 0.
    pub out_of_reach_tokens: u64,
    /// What staying was worth; absent where that was not weighed (see [`crate::route::Affinity`]).
    pub weighed: Option<Weighed>,
}

/// How a request waited for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueRecord {
    /// Its number: later arrivals of the pool have higher ones.
    pub ticket: u64,
    /// Waiters before it when it came.
    pub position: u64,
    /// From its arrival to its slot, in ms.
    pub wait_ms: u64,
}

/// What a second policy said of the same request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadowRecord<'a> {
    /// Which.
    pub policy: &'static str,
    /// Where it would have sent the request, or did.
    pub picked: Option<&'a str>,
    /// Whether its pick counted (a canary) or was only compared.
    pub routed: bool,
    /// See [`Shadow::load_difference`](crate::route::Shadow::load_difference); absent for a canary.
    pub load_difference: Option<f64>,
    /// See [`Shadow::cost_difference`](crate::route::Shadow::cost_difference); absent for a canary.
    pub cost_difference: Option<f64>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultRecord<'a> {
    /// The endpoint that really answered; absent when none did.
    pub endpoint: Option<&'a str>,
    /// HTTP status; 0 when there was none.
    pub status: u16,
    /// Attempts that Envoy made.
    pub attempts: u32,
    /// From the arrival to the first token of a stream, or the first byte of another answer, in ms. The wait for a slot is in it.
    pub ttft_ms: Option<u64>,
    /// From the arrival to the end of the answer, in ms. The wait for a slot is in it.
    pub duration_ms: u64,
    /// What the answer's `usage` said.
    pub prompt_tokens: Option<u64>,
    /// Of these, tokens that the engine found in its cache.
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer.
    pub completion_tokens: Option<u64>,
    /// Why it ended.
    pub finish: Option<&'static str>,
    /// Whether there was an error object in an answer whose status was fine.
    pub error: bool,
    /// The endpoints tried, in order, where the first did not answer.
    pub tried: Vec<&'a str>,
    /// What Envoy says of an answer that is not the engine's, or not whole (`%RESPONSE_CODE_DETAILS%`).
    pub details: Option<String>,
}

/// Places of the endpoints that are written out: these first, then others in the pool's order.
fn shown(endpoints: usize, first: &[&[usize]]) -> Vec<usize> {
    let mut shown = Vec::with_capacity(endpoints.min(MAX_CANDIDATES));
    let mut show = |index| {
        let room = shown.len() < MAX_CANDIDATES;
        if room && !shown.contains(&index) {
            shown.push(index);
        }
        room
    };
    first.iter().all(|some| some.iter().all(|index| show(*index)));
    (0..endpoints).all(show);
    shown
}

impl<'a> Decision<'a> {
    /// The record of an admitted request.
    #[must_use]
    pub fn admitted(pool: &'a Pool, snapshot: u64, ask: &Ask, admitted: &Admitted) -> Self {
        let Admitted { pick, loads, .. } = admitted;
        let name = |index: &usize| pool.endpoints.get(*index).map(|endpoint| endpoint.id.as_str());
        let mut hosts: Vec<&str> = pick.hosts.iter().filter_map(name).collect();
        hosts.dedup();
        let holders = pick.affinity.as_ref().map_or(&[][..], |affinity| &affinity.holders);
        let holders = holders.get(..MAX_HOLDERS).unwrap_or(holders);
        let prefix = pick.affinity.as_ref().map(|affinity| PrefixRecord {
            holders: holders.iter().filter_map(name).collect(),
            matched_tokens: affinity.matched_tokens,
            out_of_reach_tokens: affinity.out_of_reach_tokens,
            weighed: affinity.weighed,
        });
        let shadow = if pick.canary {
            let (policy, picked) = (pick.policy, name(&pick.chosen()));
            Some(ShadowRecord { policy, picked, routed: true, load_difference: None, cost_difference: None })
        } else {
            pick.shadow.as_ref().map(|shadow| ShadowRecord {
                policy: shadow.policy,
                picked: name(&shadow.chosen),
                routed: false,
                load_difference: Some(shadow.load_difference),
                cost_difference: Some(shadow.cost_difference),
            })
        };
        let shown = shown(pool.endpoints.len(), &[&[pick.chosen()], &pick.drawn, &pick.hosts, holders]);
        Decision {
            reason: pick.reason.as_str(),
            picked: name(&pick.chosen()),
            hosts,
            prefix,
            shadow,
            ..Self::of(pool, snapshot, ask, loads, &pick.survey, Some(pick), &shown)
        }
    }

    /// The record of a refused request.
    #[must_use]
    pub fn refused(pool: &'a Pool, snapshot: u64, ask: &Ask, refused: &Refused) -> Self {
        let Refused { refusal, survey, loads, .. } = refused;
        let shown = shown(pool.endpoints.len(), &[]);
        Decision { reason: refusal.as_str(), ..Self::of(pool, snapshot, ask, loads, survey, None, &shown) }
    }

    fn of(
        pool: &'a Pool,
        snapshot: u64,
        ask: &Ask,
        loads: &[Load],
        survey: &Survey,
        pick: Option<&Pick>,
        shown: &[usize],
    ) -> Self {
        let record = |index: &usize| {
            let endpoint = pool.endpoints.get(*index)?;
            let load = loads.get(*index).copied().unwrap_or_default();
            let terms = pick.and_then(|pick| pick.terms.iter().find(|(of, _)| of == index)).map(|(_, terms)| terms);
            Some(CandidateRecord {
                id: &endpoint.id,
                weight: endpoint.weight.get(),
                in_flight: load.total(),
                cap: endpoint.cap,
                pending_tokens: load.pending_tokens,
                load: pool.policy.compared(pool, endpoint, &load),
                share: pool.policy.share(pool, endpoint, &load),
                drawn: pick.is_some_and(|pick| pick.drawn.contains(index)),
                excluded: survey.excluded.get(*index).copied().flatten().map(Exclusion::as_str),
                elsewhere: load.elsewhere,
                score: terms.map(|terms| terms.total() as f64 / 1_000.0),
                terms: terms.map_or_else(Vec::new, |terms| {
                    terms.iter().map(|(term, value)| (term.as_str(), value as f64 / 1_000.0)).collect()
                }),
            })
        };
        Decision {
            time_ms: 0,
            pool: &pool.name,
            snapshot,
            policy: pool.policy.name(),
            reason: "",
            picked: None,
            hosts: Vec::new(),
            candidates: shown.iter().filter_map(record).collect(),
            omitted: Omitted::of(survey, shown),
            prompt_tokens: ask.prompt_tokens,
            output_tokens: ask.output_tokens,
            prefix: None,
            queue: None,
            spilled_from: None,
            signals: None,
            shadow: None,
            result: None,
        }
    }

    /// Compact JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = Json::with_capacity(640 + 160 * self.candidates.len());
        json.put("{");
        if self.time_ms > 0 {
            json.number(r#""time_ms":"#, self.time_ms);
            json.put(",");
        }
        json.text(r#""pool":""#, self.pool);
        json.number(r#","snapshot":"#, self.snapshot);
        json.text(r#","policy":""#, self.policy);
        json.text(r#","reason":""#, self.reason);
        if let Some(picked) = self.picked {
            json.text(r#","picked":""#, picked);
        }
        if !self.hosts.is_empty() {
            json.texts(r#","hosts":["#, &self.hosts);
        }
        json.put(r#","candidates":["#);
        let mut before = r#"{"id":""#;
        for candidate in &self.candidates {
            candidate.write(before, &mut json);
            before = r#",{"id":""#;
        }
        json.put("]");
        if self.omitted.endpoints > 0 {
            json.number(r#","omitted":"#, self.omitted.endpoints as u64);
        }
        if !self.omitted.excluded.is_empty() {
            let mut before = r#","omitted_excluded":{""#;
            for (why, count) in &self.omitted.excluded {
                json.text(before, why.as_str());
                json.number(":", *count as u64);
                before = ",\"";
            }
            json.put("}");
        }
        json.number(r#","prompt_tokens":"#, self.prompt_tokens);
        json.number(r#","output_tokens":"#, self.output_tokens);
        if let Some(prefix) = &self.prefix {
            prefix.write(&mut json);
        }
        if let Some(queue) = self.queue {
            json.number(r#","queue":{"ticket":"#, queue.ticket);
            json.number(r#","position":"#, queue.position);
            json.number(r#","wait_ms":"#, queue.wait_ms);
            json.put("}");
        }
        if let Some(pool) = self.spilled_from {
            json.text(r#","spilled_from":""#, pool);
        }
        if let Some(signals) = self.signals {
            json.text(r#","signals":""#, signals);
        }
        if let Some(shadow) = &self.shadow {
            shadow.write(&mut json);
        }
        if let Some(result) = &self.result {
            result.write(&mut json);
        }
        json.put("}");
        json.finish()
    }
}

impl CandidateRecord<'_> {
    fn write(&self, before: &str, json: &mut Json) {
        json.text(before, self.id);
        json.decimal(r#","weight":"#, self.weight, 2);
        json.number(r#","in_flight":"#, self.in_flight.into());
        json.number(r#","cap":"#, self.cap.into());
        json.number(r#","pending_tokens":"#, self.pending_tokens.into());
        json.decimal(r#","load":"#, self.load, 2);
        if let Some(share) = self.share {
            json.decimal(r#","share":"#, share, 3);
        }
        if self.drawn {
            json.put(r#","drawn":true"#);
        }
        if let Some(excluded) = self.excluded {
            json.text(r#","excluded":""#, excluded);
        }
        if self.elsewhere > 0 {
            json.number(r#","elsewhere":"#, self.elsewhere.into());
        }
        if let Some(score) = self.score {
            json.decimal(r#","score":"#, score, 3);
        }
        if !self.terms.is_empty() {
            let mut before = r#","terms":{""#;
            for (term, value) in &self.terms {
                json.text(before, term);
                json.decimal(":", *value, 3);
                before = ",\"";
            }
            json.put("}");
        }
        json.put("}");
    }
}

impl ShadowRecord<'_> {
    fn write(&self, json: &mut Json) {
        json.text(r#","shadow":{"policy":""#, self.policy);
        if let Some(picked) = self.picked {
            json.text(r#","picked":""#, picked);
        }
        if self.routed {
            json.put(r#","routed":true"#);
        }
        if let Some(difference) = self.load_difference {
            json.decimal(r#","load_difference":"#, difference, 3);
        }
        if let Some(difference) = self.cost_difference {
            json.decimal(r#","cost_difference":"#, difference, 3);
        }
        json.put("}");
    }
}

impl PrefixRecord<'_> {
    fn write(&self, json: &mut Json) {
        json.texts(r#","prefix":{"holders":["#, &self.holders);
        json.number(r#","matched_tokens":"#, self.matched_tokens);
        if self.out_of_reach_tokens > 0 {
            json.number(r#","out_of_reach_tokens":"#, self.out_of_reach_tokens);
        }
        if let Some(Weighed { missing_tokens, allowance }) = self.weighed {
            json.number(r#","missing_tokens":"#, missing_tokens);
            json.decimal(r#","allowance":"#, allowance, 2);
        }
        json.put("}");
    }
}

impl ResultRecord<'_> {
    fn write(&self, json: &mut Json) {
        json.put(r#","result":{"#);
        if let Some(endpoint) = self.endpoint {
            json.text(r#""endpoint":""#, endpoint);
            json.put(",");
        }
        json.number(r#""status":"#, self.status.into());
        json.number(r#","attempts":"#, self.attempts.into());
        for (before, number) in [
            (r#","ttft_ms":"#, self.ttft_ms),
            (r#","duration_ms":"#, Some(self.duration_ms)),
            (r#","prompt_tokens":"#, self.prompt_tokens),
            (r#","cached_tokens":"#, self.cached_tokens),
            (r#","completion_tokens":"#, self.completion_tokens),
        ] {
            if let Some(number) = number {
                json.number(before, number);
            }
        }
        if let Some(finish) = self.finish {
            json.text(r#","finish":""#, finish);
        }
        if self.error {
            json.put(r#","error":true"#);
        }
        if !self.tried.is_empty() {
            json.texts(r#","tried":["#, &self.tried);
        }
        if let Some(details) = &self.details {
            json.foreign(r#","details":""#, details);
        }
        json.put("}");
    }
}

#[cfg(test)]
mod tests;
