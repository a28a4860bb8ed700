//! Where to read on: chapters of `docs/operations.md` that fit a record.

use std::fmt;

use weighbridge_routing::decision::record::Record;

use super::course::{Part, Times};

/// From here on a wait, for a slot or for the first token, is worth a look, in ms.
const LONG_WAIT_MS: u64 = 2_000;
/// From here on an answer that took its time is, in ms.
const LONG_ANSWER_MS: u64 = 10_000;

/// A chapter of the page for the on-call person, and when to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub advice: &'static str,
    /// The heading as a link has it.
    pub anchor: &'static str,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} docs/operations.md#{}", self.advice, self.anchor)
    }
}

/// Every step there is.
pub const ALL: [Step; 9] = [REFUSED, NO_ENDPOINT, TOO_LONG, QUEUE, FIRST_TOKEN, FORGOTTEN, GENERATION, FAILED, PANIC];

const REFUSED: Step =
    Step { advice: "The pool was full: more capacity, higher caps, or a longer queue.", anchor: "clients-get-429" };
const NO_ENDPOINT: Step = Step {
    advice: "Nobody could serve: look at the states of the pool's endpoints.",
    anchor: "an-endpoint-gets-no-traffic",
};
const TOO_LONG: Step = Step {
    advice: "Too long for every context window: look at max_tokens and the windows.",
    anchor: "clients-get-400-context_length_exceeded",
};
const QUEUE: Step = Step { advice: "It waited for a slot: the pool was full.", anchor: "it-waited-in-the-queue" };
const FIRST_TOKEN: Step = Step { advice: "The first token came late.", anchor: "the-first-token-came-late" };
const FORGOTTEN: Step =
    Step { advice: "The engine had forgotten what we believed it held.", anchor: "the-hit-rate-is-low" };
const GENERATION: Step =
    Step { advice: "The answer was long, or its tokens came slowly.", anchor: "the-tokens-came-slowly" };
const FAILED: Step = Step { advice: "An endpoint failed or broke off.", anchor: "an-endpoint-failed" };
const PANIC: Step = Step {
    advice: "Everybody was ejected: the engines fail, or something between here and them does.",
    anchor: "an-endpoint-failed",
};

/// The steps for a record; none for one that went well and fast.
pub fn steps(record: &Record) -> Vec<Step> {
    let mut steps = Vec::new();
    if record.picked.is_none() {
        steps.push(match record.reason.as_str() {
            "no_endpoint" => NO_ENDPOINT,
            "too_long" => TOO_LONG,
            _ => REFUSED,
        });
        return steps;
    }
    if record.reason == "panic" {
        steps.push(PANIC);
    }
    let Some(result) = &record.result else { return steps };
    let client_left = result.details.as_deref().is_some_and(|details| details.starts_with("downstream"));
    let failed = result.attempts > 1 || result.status >= 500 || result.error;
    if failed || (!client_left && (result.endpoint.is_none() || result.details.is_some())) {
        steps.push(FAILED);
    }
    let times = Times::of(record);
    let (part, ms) = times.longest();
    let (step, from_ms) = match part {
        Part::Queue => (QUEUE, LONG_WAIT_MS),
        Part::FirstToken => (FIRST_TOKEN, LONG_WAIT_MS),
        Part::Generation | Part::Whole => (GENERATION, LONG_ANSWER_MS),
    };
    if ms >= from_ms {
        steps.push(step);
    }
    let believed = record.prefix.as_ref().map_or(0, |prefix| prefix.matched_tokens);
    let holder = record.reason == "holder" && result.endpoint == record.picked;
    if holder && result.cached_tokens.is_some_and(|cached| cached.saturating_mul(2) < believed) {
        steps.push(FORGOTTEN);
    }
    steps
}
