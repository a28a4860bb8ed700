//! The decision record: why a request went where it went, readable at 3 am.
//!
//! One JSON object, in filter state (for the access log) and, where allowed, in a response header. It never holds
//! anything of the prompt. Each candidate's terms are given for up to [`MAX_CANDIDATES`] endpoints, those that were
//! compared first; `omitted` says how many are missing.

use crate::eligibility::{Ask, Exclusion, Load, Survey};
use crate::live::{Admitted, row::Refused};
use crate::snapshot::Pool;

/// Candidates written out in one record.
pub const MAX_CANDIDATES: usize = 16;

/// A whole record.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The snapshot that was in force.
    pub snapshot: u64,
    /// Why: a [`Reason`](crate::route::Reason) or a [`Refusal`](crate::route::Refusal).
    pub reason: &'static str,
    /// The endpoint that was picked.
    pub picked: Option<&'a str>,
    /// The endpoints in the order in which they are to be tried.
    pub hosts: Vec<&'a str>,
    /// Each endpoint's terms.
    pub candidates: Vec<CandidateRecord<'a>>,
    /// Endpoints not written out.
    pub omitted: usize,
    /// Tokens of the prompt, by estimate.
    pub prompt_tokens: u64,
    /// Tokens that the answer was expected to have.
    pub output_tokens: u64,
    /// What prefix affinity had to say, where an endpoint holds some of the prompt.
    pub prefix: Option<PrefixRecord<'a>>,
    /// The endpoint that answered, and how; known at the end.
    pub result: Option<ResultRecord<'a>>,
}

/// One endpoint as the decision saw it.
#[derive(Debug, Clone, PartialEq)]
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
    /// What is compared, to two places: requests in flight per weight, or pending tokens per weight where the policy is
    /// `least_pending_tokens`.
    pub load: f64,
    /// Whether it was among those compared.
    pub drawn: bool,
    /// Why it was left out.
    pub excluded: Option<&'static str>,
}

/// How staying with a holder of the prompt's prefix was weighed.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefixRecord<'a> {
    /// The endpoints that hold the longest known prefix.
    pub holders: Vec<&'a str>,
    /// Tokens of that prefix.
    pub matched_tokens: u64,
    /// Of these, tokens that the freest endpoint does not have.
    pub missing_tokens: u64,
    /// How much fuller than the freest a holder could be, in requests per weight.
    pub allowance: f64,
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
    /// From the decision to the first token of a stream, or the first byte of another answer, in ms.
    pub ttft_ms: Option<u64>,
    /// From the decision to the end of the answer, in ms.
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
                load: hundredths(f64::from(load.compared(pool.policy)) / endpoint.weight.get()),
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

    /// Compact JSON. Written by hand: it is built for every request, and costs a fifth of what a general serialiser
    /// takes. Every text in it is an id or a word of ours, neither of which needs an escape.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = Json(String::with_capacity(256 + 128 * self.candidates.len()));
        json.open('{');
        json.text("pool", self.pool);
        json.number("snapshot", self.snapshot);
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
        if self.omitted > 0 {
            json.number("omitted", self.omitted as u64);
        }
        json.number("prompt_tokens", self.prompt_tokens);
        json.number("output_tokens", self.output_tokens);
        if let Some(prefix) = &self.prefix {
            json.key("prefix");
            prefix.write(&mut json);
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
        json.close('}');
    }
}

impl PrefixRecord<'_> {
    fn write(&self, json: &mut Json) {
        json.open('{');
        json.texts("holders", &self.holders);
        json.number("matched_tokens", self.matched_tokens);
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
        json.close('}');
    }
}

/// JSON under construction.
struct Json(String);

impl Json {
    fn open(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    fn close(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    /// A comma, unless this is the first of its container.
    fn comma(&mut self) {
        if !self.0.ends_with(['{', '[']) {
            self.0.push(',');
        }
    }

    fn key(&mut self, key: &str) {
        self.comma();
        self.quoted(key);
        self.0.push(':');
    }

    fn quoted(&mut self, text: &str) {
        self.0.push('"');
        self.0.push_str(text);
        self.0.push('"');
    }

    fn text(&mut self, key: &str, text: &str) {
        self.key(key);
        self.quoted(text);
    }

    fn texts(&mut self, key: &str, texts: &[&str]) {
        self.key(key);
        self.open('[');
        for text in texts {
            self.comma();
            self.quoted(text);
        }
        self.close(']');
    }

    fn yes(&mut self, key: &str) {
        self.key(key);
        self.0.push_str("true");
    }

    fn number(&mut self, key: &str, number: u64) {
        self.key(key);
        self.digits(number);
    }

    fn digits(&mut self, mut number: u64) {
        let mut digits = [b'0'; 20];
        let mut first = digits.len() - 1;
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
            first = place;
            if number == 0 {
                break;
            }
        }
        self.0.push_str(digits.get(first..).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default());
    }

    /// A number of at least 0, to two places.
    fn hundredths(&mut self, key: &str, number: f64) {
        self.key(key);
        // Saturates: what is negative or not a number is 0.
        let hundredths = (number * 100.0).round() as u64;
        self.digits(hundredths / 100);
        let (tenths, rest) = ((hundredths / 10 % 10) as u8, (hundredths % 10) as u8);
        self.0.push('.');
        self.0.push(char::from(b'0' + tenths));
        if rest != 0 {
            self.0.push(char::from(b'0' + rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        }
    }

    fn decision() -> Decision<'static> {
        Decision {
            pool: "qwen-27b",
            snapshot: 1_764_000_000_000,
            reason: "holder",
            picked: Some("a"),
            hosts: vec!["a", "b"],
            candidates: vec![
                candidate("a"),
                CandidateRecord { drawn: false, excluded: Some("at_cap"), ..candidate("b") },
            ],
            omitted: 0,
            prompt_tokens: 8_100,
            output_tokens: 128,
            prefix: None,
            result: None,
        }
    }

    #[test]
    fn a_record_says_everything_that_is_known() {
        let mut full = decision();
        full.omitted = 3;
        full.prefix =
            Some(PrefixRecord { holders: vec!["a"], matched_tokens: 8_000, missing_tokens: 0, allowance: 7.6 });
        full.result = Some(ResultRecord {
            endpoint: Some("a"),
            status: 200,
            attempts: 1,
            ttft_ms: Some(40),
            duration_ms: 900,
            prompt_tokens: Some(8_090),
            cached_tokens: Some(8_000),
            completion_tokens: Some(64),
            finish: Some("stop"),
            error: true,
        });
        let expected = json!({
            "pool": "qwen-27b", "snapshot": 1_764_000_000_000u64, "reason": "holder", "picked": "a", "hosts": ["a", "b"],
            "candidates": [
                {"id": "a", "weight": 1.34, "in_flight": 10, "cap": 32, "pending_tokens": 900, "load": 7.46, "drawn": true},
                {"id": "b", "weight": 1.34, "in_flight": 10, "cap": 32, "pending_tokens": 900, "load": 7.46, "excluded": "at_cap"},
            ],
            "omitted": 3, "prompt_tokens": 8_100, "output_tokens": 128,
            "prefix": {"holders": ["a"], "matched_tokens": 8_000, "missing_tokens": 0, "allowance": 7.6},
            "result": {"endpoint": "a", "status": 200, "attempts": 1, "ttft_ms": 40, "duration_ms": 900, "prompt_tokens": 8_090,
                "cached_tokens": 8_000, "completion_tokens": 64, "finish": "stop", "error": true},
        });
        assert_eq!(serde_json::from_str::<Value>(&full.to_json()).unwrap(), expected);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let bare = Decision { picked: None, hosts: Vec::new(), candidates: Vec::new(), ..decision() };
        let json: Value = serde_json::from_str(&bare.to_json()).unwrap();
        let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["candidates", "output_tokens", "pool", "prompt_tokens", "reason", "snapshot"]);
    }

    proptest! {
        #[test]
        fn any_numbers_are_json(number in any::<u64>(), load in any::<f64>(), weight in 0.01f64..100.0, in_flight in any::<u32>()) {
            let one = CandidateRecord { weight, load, in_flight, ..candidate("a") };
            let record = Decision { snapshot: number, candidates: vec![one], ..decision() };
            let json: Value = serde_json::from_str(&record.to_json()).unwrap();
            prop_assert_eq!(&json["snapshot"], &json!(number));
            prop_assert_eq!(&json["candidates"][0]["in_flight"], &json!(in_flight));
            let written = json["candidates"][0]["weight"].as_f64().unwrap();
            prop_assert!((written - weight).abs() <= 0.005 + 1e-9);
        }
    }
}
