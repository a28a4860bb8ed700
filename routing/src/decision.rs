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
use crate::snapshot::{Policy, Pool};
use json::Json;

/// Candidates written out in one record.
pub const MAX_CANDIDATES: usize = 16;

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
    /// Whether the policy that decided is the pool's canary.
    pub canary: bool,
    /// What the shadow policy would have done, where the pool has one.
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
    /// Requests of this Envoy in flight before this one.
    pub in_flight: u32,
    /// The most it may have.
    pub cap: u32,
    /// Tokens that the requests in flight still have to compute or generate, by estimate.
    pub pending_tokens: u32,
    /// What is compared, to two places: requests in flight per weight, or pending tokens per weight where the policy is
    /// `least_pending_tokens`.
    pub load: f64,
    /// Whether it was among those compared.
    pub drawn: bool,
    /// Why it was left out.
    pub excluded: Option<&'static str>,
    /// Requests that it has from elsewhere, as far as is known: other Envoys, and whoever speaks to the engine itself.
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
    /// Of `matched_tokens`, tokens that the freest endpoint does not have.
    pub missing_tokens: u64,
    /// How much fuller than the freest a holder could be, in requests per weight.
    pub allowance: f64,
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

/// What the shadow policy would have done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadowRecord<'a> {
    /// The policy.
    pub policy: &'static str,
    /// The endpoint that it would have picked.
    pub picked: &'a str,
    /// Why.
    pub reason: &'static str,
    /// How much more the endpoint that it would have picked carries per weight than the one that was.
    pub load_difference: f64,
    /// How much more it would have cost, in the pool's own policy's unit.
    pub cost_difference: f64,
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

/// The policy's word in records and configurations.
fn word(policy: Policy) -> &'static str {
    match policy {
        Policy::P2c => "p2c",
        Policy::LeastPendingTokens => "least_pending_tokens",
    }
}

/// Places of the endpoints that are written out: these first, then others in the pool's order.
fn shown(endpoints: usize, first: &[&[usize]]) -> Vec<usize> {
    let mut shown = Vec::with_capacity(endpoints.min(MAX_CANDIDATES));
    for index in first.iter().copied().flatten().copied().chain(0..endpoints) {
        if shown.len() == MAX_CANDIDATES {
            break;
        }
        if !shown.contains(&index) {
            shown.push(index);
        }
    }
    shown
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
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
            out_of_reach_tokens: 0,
            missing_tokens: affinity.missing_tokens,
            allowance: hundredths(affinity.allowance),
        });
        let shown = shown(pool.endpoints.len(), &[&[pick.chosen()], &pick.drawn, &pick.hosts, holders]);
        Decision {
            reason: pick.reason.as_str(),
            picked: name(&pick.chosen()),
            hosts,
            prefix,
            ..Self::of(pool, snapshot, ask, loads, &pick.survey, &pick.drawn, &shown)
        }
    }

    /// The record of a refused request.
    #[must_use]
    pub fn refused(pool: &'a Pool, snapshot: u64, ask: &Ask, refused: &Refused) -> Self {
        let Refused { refusal, survey, loads, .. } = refused;
        let shown = shown(pool.endpoints.len(), &[]);
        Decision { reason: refusal.as_str(), ..Self::of(pool, snapshot, ask, loads, survey, &[], &shown) }
    }

    fn of(
        pool: &'a Pool,
        snapshot: u64,
        ask: &Ask,
        loads: &[Load],
        survey: &Survey,
        drawn: &[usize],
        shown: &[usize],
    ) -> Self {
        let record = |index: &usize| {
            let endpoint = pool.endpoints.get(*index)?;
            let load = loads.get(*index).copied().unwrap_or_default();
            Some(CandidateRecord {
                id: &endpoint.id,
                weight: endpoint.weight.get(),
                in_flight: load.in_flight,
                cap: endpoint.cap,
                pending_tokens: load.pending_tokens,
                load: hundredths(f64::from(load.compared(pool.policy)) / endpoint.weight.get()),
                drawn: drawn.contains(index),
                excluded: survey.excluded.get(*index).copied().flatten().map(Exclusion::as_str),
                elsewhere: load.elsewhere,
                score: None,
                terms: Vec::new(),
            })
        };
        Decision {
            time_ms: 0,
            pool: &pool.name,
            snapshot,
            policy: word(pool.policy),
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
            canary: false,
            shadow: None,
            result: None,
        }
    }

    /// Compact JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = Json(String::with_capacity(256 + 128 * self.candidates.len()));
        json.open('{');
        if self.time_ms > 0 {
            json.number("time_ms", self.time_ms);
        }
        json.text("pool", self.pool);
        json.number("snapshot", self.snapshot);
        json.text("policy", self.policy);
        if self.canary {
            json.yes("canary");
        }
        json.text("reason", self.reason);
        if let Some(picked) = self.picked {
            json.text("picked", picked);
        }
        if !self.hosts.is_empty() {
            json.texts("hosts", &self.hosts);
        }
        json.key("candidates");
        json.open('[');
        for candidate in &self.candidates {
            json.comma();
            candidate.write(&mut json);
        }
        json.close(']');
        if self.omitted.endpoints > 0 {
            json.number("omitted", self.omitted.endpoints as u64);
        }
        if !self.omitted.excluded.is_empty() {
            json.key("omitted_excluded");
            json.open('{');
            for (why, count) in &self.omitted.excluded {
                json.number(why.as_str(), *count as u64);
            }
            json.close('}');
        }
        json.number("prompt_tokens", self.prompt_tokens);
        json.number("output_tokens", self.output_tokens);
        if let Some(prefix) = &self.prefix {
            json.key("prefix");
            prefix.write(&mut json);
        }
        if let Some(queue) = self.queue {
            json.key("queue");
            json.open('{');
            json.number("ticket", queue.ticket);
            json.number("position", queue.position);
            json.number("wait_ms", queue.wait_ms);
            json.close('}');
        }
        if let Some(pool) = self.spilled_from {
            json.text("spilled_from", pool);
        }
        if let Some(signals) = self.signals {
            json.text("signals", signals);
        }
        if let Some(shadow) = &self.shadow {
            json.key("shadow");
            shadow.write(&mut json);
        }
        if let Some(result) = &self.result {
            json.key("result");
            result.write(&mut json);
        }
        json.close('}');
        json.0
    }
}

impl CandidateRecord<'_> {
    fn write(&self, json: &mut Json) {
        json.open('{');
        json.text("id", self.id);
        json.hundredths("weight", self.weight);
        json.number("in_flight", self.in_flight.into());
        json.number("cap", self.cap.into());
        json.number("pending_tokens", self.pending_tokens.into());
        json.hundredths("load", self.load);
        if self.drawn {
            json.yes("drawn");
        }
        if let Some(excluded) = self.excluded {
            json.text("excluded", excluded);
        }
        if self.elsewhere > 0 {
            json.number("elsewhere", self.elsewhere.into());
        }
        if let Some(score) = self.score {
            json.thousandths("score", score);
        }
        if !self.terms.is_empty() {
            json.key("terms");
            json.open('{');
            for (term, value) in &self.terms {
                json.thousandths(term, *value);
            }
            json.close('}');
        }
        json.close('}');
    }
}

impl ShadowRecord<'_> {
    fn write(&self, json: &mut Json) {
        json.open('{');
        json.text("policy", self.policy);
        json.text("picked", self.picked);
        json.text("reason", self.reason);
        json.thousandths("load_difference", self.load_difference);
        json.thousandths("cost_difference", self.cost_difference);
        json.close('}');
    }
}

impl PrefixRecord<'_> {
    fn write(&self, json: &mut Json) {
        json.open('{');
        json.texts("holders", &self.holders);
        json.number("matched_tokens", self.matched_tokens);
        if self.out_of_reach_tokens > 0 {
            json.number("out_of_reach_tokens", self.out_of_reach_tokens);
        }
        json.number("missing_tokens", self.missing_tokens);
        json.hundredths("allowance", self.allowance);
        json.close('}');
    }
}

impl ResultRecord<'_> {
    fn write(&self, json: &mut Json) {
        json.open('{');
        if let Some(endpoint) = self.endpoint {
            json.text("endpoint", endpoint);
        }
        json.number("status", self.status.into());
        json.number("attempts", self.attempts.into());
        for (key, number) in [
            ("ttft_ms", self.ttft_ms),
            ("duration_ms", Some(self.duration_ms)),
            ("prompt_tokens", self.prompt_tokens),
            ("cached_tokens", self.cached_tokens),
            ("completion_tokens", self.completion_tokens),
        ] {
            if let Some(number) = number {
                json.number(key, number);
            }
        }
        if let Some(finish) = self.finish {
            json.text("finish", finish);
        }
        if self.error {
            json.yes("error");
        }
        if !self.tried.is_empty() {
            json.texts("tried", &self.tried);
        }
        if let Some(details) = &self.details {
            json.foreign("details", details);
        }
        json.close('}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eligibility::survey;
    use crate::live::Charge;
    use crate::route::{Affinity, Pick, Reason};
    use crate::snapshot::Snapshot;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn candidate(id: &str) -> CandidateRecord<'_> {
        CandidateRecord {
            id,
            weight: 1.34,
            in_flight: 10,
            cap: 32,
            pending_tokens: 900,
            load: 7.46,
            drawn: true,
            excluded: None,
            elsewhere: 0,
            score: None,
            terms: Vec::new(),
        }
    }

    fn decision() -> Decision<'static> {
        Decision {
            time_ms: 1_764_000_000_000,
            pool: "qwen-27b",
            snapshot: 1_764_000_000_000,
            policy: "p2c",
            reason: "holder",
            picked: Some("a"),
            hosts: vec!["a", "b"],
            candidates: vec![
                candidate("a"),
                CandidateRecord { drawn: false, excluded: Some("at_cap"), ..candidate("b") },
            ],
            omitted: Omitted::default(),
            prompt_tokens: 8_100,
            output_tokens: 128,
            prefix: None,
            queue: None,
            spilled_from: None,
            signals: None,
            canary: false,
            shadow: None,
            result: None,
        }
    }

    /// A record in which everything is said.
    fn full() -> Decision<'static> {
        let mut full = decision();
        let terms = vec![("active", 1_000.0), ("throughput", -3.0)];
        full.candidates[0] = CandidateRecord { elsewhere: 2, score: Some(997.0), terms, ..candidate("a") };
        full.omitted = Omitted { endpoints: 3, excluded: vec![(Exclusion::AtCap, 2)] };
        full.prefix = Some(PrefixRecord {
            holders: vec!["a"],
            matched_tokens: 8_000,
            out_of_reach_tokens: 9_000,
            missing_tokens: 0,
            allowance: 7.6,
        });
        full.queue = Some(QueueRecord { ticket: 90, position: 3, wait_ms: 1_200 });
        full.spilled_from = Some("other");
        full.signals = Some("stale");
        full.canary = true;
        full.shadow = Some(ShadowRecord {
            policy: "score",
            picked: "b",
            reason: "lower_score",
            load_difference: -0.25,
            cost_difference: 12.125,
        });
        full.result = Some(ResultRecord {
            endpoint: Some("a"),
            status: 200,
            attempts: 2,
            ttft_ms: Some(40),
            duration_ms: 900,
            prompt_tokens: Some(8_090),
            cached_tokens: Some(8_000),
            completion_tokens: Some(64),
            finish: Some("stop"),
            error: true,
            tried: vec!["b", "a"],
            details: Some("downstream_remote_disconnect".into()),
        });
        full
    }

    fn json_of(decision: &Decision) -> Value {
        serde_json::from_str(&decision.to_json()).unwrap()
    }

    #[test]
    fn a_record_says_everything_that_is_known() {
        let expected = json!({
            "time_ms": 1_764_000_000_000u64, "pool": "qwen-27b", "snapshot": 1_764_000_000_000u64, "policy": "p2c",
            "reason": "holder", "picked": "a", "hosts": ["a", "b"],
            "candidates": [
                {"id": "a", "weight": 1.34, "in_flight": 10, "cap": 32, "pending_tokens": 900, "load": 7.46, "drawn": true,
                    "elsewhere": 2, "score": 997.0, "terms": {"active": 1_000.0, "throughput": -3.0}},
                {"id": "b", "weight": 1.34, "in_flight": 10, "cap": 32, "pending_tokens": 900, "load": 7.46, "excluded": "at_cap"},
            ],
            "omitted": 3, "omitted_excluded": {"at_cap": 2}, "prompt_tokens": 8_100, "output_tokens": 128,
            "prefix": {"holders": ["a"], "matched_tokens": 8_000, "out_of_reach_tokens": 9_000, "missing_tokens": 0, "allowance": 7.6},
            "queue": {"ticket": 90, "position": 3, "wait_ms": 1_200}, "spilled_from": "other", "signals": "stale",
            "canary": true,
            "shadow": {"policy": "score", "picked": "b", "reason": "lower_score", "load_difference": -0.25, "cost_difference": 12.125},
            "result": {"endpoint": "a", "status": 200, "attempts": 2, "ttft_ms": 40, "duration_ms": 900, "prompt_tokens": 8_090,
                "cached_tokens": 8_000, "completion_tokens": 64, "finish": "stop", "error": true, "tried": ["b", "a"],
                "details": "downstream_remote_disconnect"},
        });
        assert_eq!(json_of(&full()), expected);
    }

    #[test]
    fn readers_see_what_is_written() {
        for written in [decision(), full()] {
            let read: record::Record = serde_json::from_str(&written.to_json()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), json_of(&written));
        }
    }

    // Every field of a record is explained, and nothing is explained that does not exist.
    #[test]
    fn the_page_about_records_has_every_field() {
        fn fields(value: &Value, path: &str, into: &mut std::collections::BTreeSet<String>) {
            match value {
                // Their keys are words of other lists: exclusions, terms of the score.
                Value::Object(_) if path.ends_with("omitted_excluded") || path.ends_with("terms") => {}
                Value::Object(object) => {
                    for (key, value) in object {
                        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                        into.insert(path.clone());
                        fields(value, &path, into);
                    }
                }
                Value::Array(elements) => elements.iter().for_each(|element| fields(element, path, into)),
                _ => {}
            }
        }
        let mut written = std::collections::BTreeSet::new();
        fields(&json_of(&full()), "", &mut written);
        written.extend(record::ADDED.map(str::to_owned));
        let page = include_str!("../../docs/decisions.md");
        let (_, page) = page.split_once("\n## Fields\n").unwrap();
        let (table, _) = page.split_once("\n## ").unwrap();
        let explained: std::collections::BTreeSet<String> = table
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(|field| field.replace("[]", "")))
            .collect();
        assert_eq!(written, explained);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let bare = Decision { time_ms: 0, picked: None, hosts: Vec::new(), candidates: Vec::new(), ..decision() };
        let json = json_of(&bare);
        let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["candidates", "output_tokens", "policy", "pool", "prompt_tokens", "reason", "snapshot"]);
    }

    /// A pool of so many endpoints, of which every third is draining and every fourth unhealthy.
    fn large_pool(endpoints: usize) -> Pool {
        let state = |nth: usize| match nth {
            nth if nth % 3 == 0 => "draining",
            nth if nth % 4 == 0 => "unhealthy",
            _ => "ready",
        };
        let endpoints: Vec<_> = (0..endpoints)
            .map(|nth| json!({"id": format!("e{nth}"), "address": format!("10.0.{}.{}:80", nth / 250, nth % 250), "weight": 1.0, "state": state(nth)}))
            .collect();
        let snapshot =
            json!({"format": 1, "version": 1, "pools": [{"name": "p", "models": ["m"], "endpoints": endpoints}]});
        Snapshot::from_json(snapshot.to_string().as_bytes()).unwrap().pools.remove(0)
    }

    fn admitted(pool: &Pool, chosen: usize, drawn: Vec<usize>, holders: Vec<usize>) -> Admitted {
        let loads =
            vec![Load { in_flight: u32::MAX, pending_tokens: u32::MAX, ..Load::default() }; pool.endpoints.len()];
        let affinity = Affinity { holders, matched_tokens: u64::MAX, missing_tokens: u64::MAX, allowance: 1e9 };
        let survey = survey(pool, &[], &Ask::default(), |_| 0, 0);
        let hosts = [chosen, chosen + 1, chosen];
        let pick = Pick { hosts, reason: Reason::TieHeavier, drawn, survey, affinity: Some(affinity) };
        Admitted { pick, loads, charge: Charge::default(), waited: None }
    }

    #[test]
    fn a_large_pools_record_is_small_and_counts_the_rest() {
        let pool = large_pool(1_000);
        let admitted = admitted(&pool, 700, vec![500, 700], (100..200).collect());
        let decision = Decision::admitted(&pool, 1, &Ask::default(), &admitted);
        let shown: Vec<&str> = decision.candidates.iter().map(|candidate| candidate.id).collect();
        assert_eq!(shown.len(), MAX_CANDIDATES);
        assert_eq!(shown[..5], ["e700", "e500", "e701", "e100", "e101"]);
        assert_eq!(decision.prefix.as_ref().unwrap().holders.len(), MAX_HOLDERS);
        let json = decision.to_json();
        assert!(json.len() < 4_096, "{} bytes", json.len());
        // Of 1,000, 334 drain and 166 more are unhealthy; those that are shown are not counted again.
        let Omitted { endpoints, excluded } = &decision.omitted;
        let shown =
            |why: Exclusion| decision.candidates.iter().filter(|shown| shown.excluded == Some(why.as_str())).count();
        let counted = |why| excluded.iter().find(|(other, _)| *other == why).map_or(0, |(_, count)| *count);
        assert_eq!(*endpoints, 1_000 - MAX_CANDIDATES);
        assert_eq!(counted(Exclusion::Draining) + shown(Exclusion::Draining), 334);
        assert_eq!(counted(Exclusion::Unhealthy) + shown(Exclusion::Unhealthy), 166);
    }

    #[test]
    fn the_chosen_one_is_shown_though_all_were_compared() {
        let pool = large_pool(100);
        let admitted = admitted(&pool, 98, (0..100).collect(), Vec::new());
        let decision = Decision::admitted(&pool, 1, &Ask::default(), &admitted);
        assert!(decision.candidates.iter().any(|candidate| candidate.id == "e98"));
    }

    proptest! {
        #[test]
        fn any_numbers_are_json(
            number in any::<u64>(), load in any::<f64>(), weight in 0.01f64..100.0, in_flight in any::<u32>(), term in any::<f64>()
        ) {
            let terms = vec![("active", term)];
            let one = CandidateRecord { weight, load, in_flight, score: Some(term), terms, ..candidate("a") };
            let record = Decision { snapshot: number, candidates: vec![one], ..decision() };
            let json = json_of(&record);
            prop_assert_eq!(&json["snapshot"], &json!(number));
            prop_assert_eq!(&json["candidates"][0]["in_flight"], &json!(in_flight));
            let written = json["candidates"][0]["weight"].as_f64().unwrap();
            prop_assert!((written - weight).abs() <= 0.005 + 1e-9);
            if term.abs() < 1e9 {
                let written = json["candidates"][0]["score"].as_f64().unwrap();
                prop_assert!((written - term).abs() <= 0.005 + 1e-6, "{written} {term}");
            }
        }

        #[test]
        fn whatever_envoy_says_is_json(details in ".{0,400}") {
            let mut record = full();
            record.result.as_mut().unwrap().details = Some(details.clone());
            let json = record.to_json();
            prop_assert!(!json.bytes().any(|byte| byte < b' '));
            let json: Value = serde_json::from_str(&json).unwrap();
            let written = json["result"]["details"].as_str().unwrap();
            prop_assert!(details.starts_with(written));
            prop_assert!(written == details || written.len() > json::MAX_FOREIGN_BYTES - 4);
        }
    }
}
