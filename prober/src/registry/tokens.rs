//! Whether tokens come from an engine: one that hangs may go on answering health checks. Pure: time is an argument (Unix ms).
//!
//! ```text
//! proof  = the engine's own count of generated tokens has grown; an Envoy has had a complete answer; a burst has ended well;
//!          or the engine was asked for one token, and it came
//! due    = generate_every after the last proof, the begin of the watch, or a restart; at once after a burst that failed
//! failed = no token within the time that it was given, and no proof meanwhile; or errors (5xx, broken answers), as many in a
//!          row as make an endpoint unhealthy
//! ```
//!
//! One that has failed is asked again after 1, 2, 4, 5, 5, ... s, and given 5, 10, 20, ... s, never more than
//! `generate_timeout`: a request that a hung engine has lost must not keep the next one for long. Any proof ends it.
//!
//! An engine that declines (4xx, 501) lives, and says nothing of tokens: one of embeddings answers so, and stays healthy; but not one that
//! answers 404 and names the model: it does not serve it. So
//! does one that answers 5xx and was never seen to generate anything. That there is no connection is for the health
//! checks to say.

use std::time::Duration;

use crate::engine::EngineError;

/// The pause before an engine that failed is asked again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// What such a try is given at first.
const PATIENCE: Duration = Duration::from_secs(5);

/// What came of asking for one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tried {
    /// It came.
    Token,
    /// The engine has answered that it does not generate any here.
    Declined,
    /// It has answered that it does not serve the model.
    Unserved(String),
    /// Nothing for so long.
    Nothing(Duration),
    /// An error, or half an answer.
    Failed(String),
    /// There is no connection.
    Unconnected,
}

impl Tried {
    /// As a label.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Tried::Token => "token",
            Tried::Declined => "declined",
            Tried::Unserved(_) => "unserved",
            Tried::Nothing(_) => "nothing",
            Tried::Failed(_) => "failed",
            Tried::Unconnected => "unconnected",
        }
    }
}

impl Tried {
    /// What an error says, of a request for `model`.
    #[must_use]
    pub fn of(error: EngineError, model: &str) -> Self {
        match error {
            // vLLM says: The model `m` does not exist. A path that is not there is another 404.
            EngineError::Status { status: 404, ref message, .. } if names(message, model) => {
                Tried::Unserved(error.to_string())
            }
            EngineError::Status { status, .. } if status < 500 || status == 501 => Tried::Declined,
            EngineError::Refused(_) | EngineError::Unreachable(_) => Tried::Unconnected,
            EngineError::Http(_) | EngineError::Status { .. } => Tried::Failed(error.to_string()),
        }
    }
}

/// What is known of an engine's tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// As the engine last counted them.
    count: Option<u64>,
    proven_ms: Option<u64>,
    /// What the time to the next check runs from.
    from_ms: Option<u64>,
    at_once: bool,
    /// Tries in a row that failed, and when the last one ended.
    failures: u32,
    tried_ms: u64,
    /// Why no token is to be expected.
    error: Option<String>,
    /// It does not serve the model: tokens that it counts are of another.
    unserved: bool,
}

impl Tokens {
    /// The watch has begun, unless it has before.
    pub(super) fn begin(&mut self, now_ms: u64) {
        self.from_ms.get_or_insert(now_ms);
    }

    /// Tokens come.
    pub(super) fn proven(&mut self, now_ms: u64) {
        let count = self.count;
        *self = Tokens { count, proven_ms: Some(now_ms), from_ms: Some(now_ms), ..Tokens::default() };
    }

    /// Whether they have come after that moment.
    pub(super) fn proven_since(&self, at_ms: u64) -> bool {
        self.proven_ms.is_some_and(|proven_ms| proven_ms > at_ms)
    }

    /// The engine's count, where it tells. One that has fallen is that of another life.
    pub(super) fn counted(&mut self, count: Option<u64>, now_ms: u64) {
        let before = std::mem::replace(&mut self.count, count);
        if !self.unserved && before.zip(count).is_some_and(|(before, count)| count > before) {
            self.proven(now_ms);
        }
    }

    /// A burst has failed.
    pub(super) fn doubt(&mut self) {
        self.at_once = true;
    }

    /// The engine has started anew. What has failed before is looked at again at once, and patiently from the start.
    pub(super) fn restarted(&mut self, now_ms: u64) {
        self.from_ms = Some(now_ms);
        self.failures = 0;
        self.at_once = self.error.is_some();
    }

    /// Whether the engine is to be asked for one.
    pub(super) fn due(&self, every: Duration, now_ms: u64) -> bool {
        // A clock that was set back must not put a check off for hours.
        let passed = |since_ms: u64, wait: Duration| u128::from(now_ms.abs_diff(since_ms)) >= wait.as_millis();
        if self.at_once {
            true
        } else if let Some(more) = self.failures.checked_sub(1) {
            passed(self.tried_ms, doubled(PAUSE.0, more).min(PAUSE.1))
        } else {
            self.from_ms.is_some_and(|from_ms| passed(from_ms, every))
        }
    }

    /// How long it may take then.
    pub(super) fn patience(&self, timeout: Duration) -> Duration {
        self.failures.checked_sub(1).map_or(timeout, |more| doubled(PATIENCE, more).min(timeout))
    }

    /// It was asked for one, from `since_ms` on. `path` is where it answers health checks; `after` errors in a row count.
    pub(super) fn tried(&mut self, tried: Tried, since_ms: u64, (path, after): (&str, u32), now_ms: u64) {
        match tried {
            Tried::Token => self.proven(now_ms),
            Tried::Unconnected => {}
            // What others were generated meanwhile counts as well.
            Tried::Nothing(_) | Tried::Failed(_) | Tried::Unserved(_)
                if self.proven_ms.is_some_and(|proven_ms| proven_ms >= since_ms) => {}
            Tried::Failed(_) if self.proven_ms.is_none() && self.error.is_none() => self.declined(now_ms),
            Tried::Declined => self.declined(now_ms),
            Tried::Failed(why) => {
                self.failed(after, || format!("answers {path}, but generates no token: {why}"), now_ms);
            }
            // No accident of the moment: and it answers so fast that it looks idle, and gets more than its share.
            Tried::Unserved(why) => {
                self.failed(1, || format!("does not serve the model: {why}"), now_ms);
                self.unserved = true;
            }
            Tried::Nothing(patience) => {
                self.fail(now_ms);
                let patience = humantime::format_duration(patience);
                self.error.get_or_insert_with(|| format!("answers {path}, but generated no token within {patience}"));
            }
        }
    }

    fn declined(&mut self, now_ms: u64) {
        let Tokens { count, proven_ms, .. } = *self;
        *self = Tokens { count, proven_ms, from_ms: Some(now_ms), ..Tokens::default() };
    }

    fn failed(&mut self, after: u32, why: impl FnOnce() -> String, now_ms: u64) {
        self.fail(now_ms);
        if self.error.is_some() || self.failures >= after {
            self.error = Some(why());
        }
    }

    fn fail(&mut self, now_ms: u64) {
        self.failures = self.failures.saturating_add(1);
        self.tried_ms = now_ms;
        self.at_once = false;
    }

    /// Why no token is to be expected; `None` as long as nothing speaks against it.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// When tokens were last known to come.
    #[must_use]
    pub fn proven_ms(&self) -> Option<u64> {
        self.proven_ms
    }
}

/// Whether it is said of this name, in quotes: a short name is a part of many words.
fn names(message: &str, model: &str) -> bool {
    ['`', '"', '\''].iter().any(|quote| message.contains(&format!("{quote}{model}{quote}")))
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVERY: Duration = Duration::from_secs(300);
    const TIMEOUT: Duration = Duration::from_secs(30);
    const RULE: (&str, u32) = ("/health", 3);

    fn watched() -> Tokens {
        let mut tokens = Tokens::default();
        tokens.begin(0);
        tokens
    }

    #[test]
    fn what_is_proven_otherwise_is_not_asked_for() {
        let mut tokens = watched();
        assert!(!tokens.due(EVERY, 299_999) && tokens.due(EVERY, 300_000));
        tokens.counted(Some(7), 100_000);
        assert!(tokens.due(EVERY, 300_000), "the first count says nothing");
        tokens.counted(Some(8), 200_000);
        assert!(!tokens.due(EVERY, 499_999) && tokens.due(EVERY, 500_000));
        tokens.counted(Some(8), 500_000);
        assert!(tokens.due(EVERY, 500_000), "nothing new");
        tokens.counted(Some(3), 500_000);
        assert!(tokens.due(EVERY, 500_000), "it has started anew, and may have generated these three long ago");
        tokens.tried(Tried::Token, 500_000, RULE, 500_100);
        assert!(!tokens.due(EVERY, 800_099) && tokens.due(EVERY, 800_100));
        assert_eq!(tokens.proven_ms(), Some(500_100));
    }

    #[test]
    fn a_hang_is_said_exactly_and_asked_after_until_a_token_comes() {
        let mut tokens = watched();
        assert_eq!(tokens.patience(TIMEOUT), TIMEOUT);
        tokens.tried(Tried::Nothing(TIMEOUT), 300_000, RULE, 330_000);
        assert_eq!(tokens.error(), Some("answers /health, but generated no token within 30s"));
        let mut now = 330_000;
        for (pause_ms, patience_s) in [(1_000, 5), (2_000, 10), (4_000, 20), (5_000, 30), (5_000, 30)] {
            assert!(!tokens.due(EVERY, now + pause_ms - 1) && tokens.due(EVERY, now + pause_ms));
            assert_eq!(tokens.patience(TIMEOUT), Duration::from_secs(patience_s));
            now += pause_ms;
            tokens.tried(Tried::Nothing(tokens.patience(TIMEOUT)), now, RULE, now);
        }
        assert_eq!(tokens.error(), Some("answers /health, but generated no token within 30s"));
        tokens.restarted(now);
        assert!(tokens.due(EVERY, now) && tokens.error().is_some(), "started anew, and not known to generate");
        assert_eq!(tokens.patience(TIMEOUT), TIMEOUT);
        tokens.counted(Some(1), now);
        tokens.counted(Some(2), now);
        assert!(tokens.error().is_none() && !tokens.due(EVERY, now + 1));
    }

    #[test]
    fn tokens_for_others_meanwhile_are_tokens() {
        let mut tokens = watched();
        tokens.counted(Some(1), 1);
        tokens.counted(Some(9), 310_000);
        tokens.tried(Tried::Nothing(TIMEOUT), 300_000, RULE, 330_000);
        assert_eq!((tokens.error(), tokens.due(EVERY, 330_000)), (None, false));
    }

    #[test]
    fn an_engine_that_generates_nothing_stays_healthy() {
        let status =
            |status| EngineError::Status { path: "/v1/chat/completions".into(), status, message: String::new() };
        for declines in [400, 401, 404, 422, 429, 501] {
            let mut tokens = watched();
            tokens.tried(Tried::of(status(declines), "m"), 300_000, RULE, 300_010);
            assert!(tokens.error().is_none() && !tokens.due(EVERY, 600_009) && tokens.due(EVERY, 600_010));
        }
        let mut tokens = watched();
        for nth in 1..9 {
            tokens.tried(Tried::of(status(500), "m"), 300_000 * nth, RULE, 300_000 * nth);
            assert!(tokens.error().is_none(), "never seen to generate");
        }
        tokens.proven(3_000_000);
        for nth in 1..=3 {
            assert!(tokens.error().is_none());
            tokens.tried(Tried::of(status(500), "m"), 3_000_001, RULE, 3_000_000 + nth);
        }
        assert_eq!(tokens.error(), Some("answers /health, but generates no token: /v1/chat/completions answered 500"));
        assert_eq!(Tried::of(EngineError::Refused("no".into()), "m"), Tried::Unconnected);
    }

    #[test]
    fn an_engine_that_serves_another_model_is_not_healthy() {
        let told = |message: &str| {
            let error = EngineError::Status { path: "/v1".into(), status: 404, message: message.into() };
            Tried::of(error, "m")
        };
        assert_eq!(told("Not Found: no such model or path"), Tried::Declined);
        let mut tokens = Tokens::default();
        tokens.begin(0);
        tokens.tried(told("The model `m` does not exist."), 1, RULE, 1);
        assert!(tokens.error().unwrap().starts_with("does not serve the model: /v1 answered 404"), "{tokens:?}");
        for count in [1, 500] {
            tokens.counted(Some(count), 5_000);
            assert!(tokens.error().is_some(), "those are of the model that it serves");
        }
        tokens.tried(Tried::Token, 10_000, RULE, 10_000);
        assert!(tokens.error().is_none());
        tokens.counted(Some(900), 20_000);
        assert_eq!(tokens.proven_ms(), Some(20_000));
    }

    #[test]
    fn a_failed_burst_is_looked_into_at_once() {
        let mut tokens = watched();
        tokens.doubt();
        assert!(tokens.due(EVERY, 1));
        tokens.tried(Tried::Unconnected, 1, RULE, 1);
        assert!(tokens.due(EVERY, 1) && tokens.error().is_none());
        tokens.tried(Tried::Token, 1, RULE, 2);
        assert!(!tokens.due(EVERY, 2));
    }

    proptest! {
        /// Whatever happens: after a proof it is healthy and not due; one that has failed is asked again within the longest
        /// pause; nothing but a try that failed makes it unhealthy.
        #[test]
        fn it_fails_only_by_tries_and_recovers_by_any_proof(events in prop::collection::vec((0..9u8, 0..20_000u64), 1..60)) {
            let (mut tokens, mut now) = (watched(), 0);
            for (event, passed) in events {
                now += passed;
                let failed = tokens.error().is_some();
                match event {
                    0 => tokens.proven(now),
                    1 => tokens.tried(Tried::Token, now, RULE, now),
                    2 => tokens.tried(Tried::Declined, now, RULE, now),
                    3 => tokens.tried(Tried::Nothing(TIMEOUT), now.saturating_sub(passed), RULE, now),
                    4 => tokens.tried(Tried::Failed("no".into()), now.saturating_sub(passed), RULE, now),
                    5 => tokens.tried(Tried::Unconnected, now, RULE, now),
                    6 => tokens.doubt(),
                    7 => tokens.tried(Tried::Unserved("no".into()), now.saturating_sub(passed), RULE, now),
                    _ => tokens.restarted(now),
                }
                if event <= 2 {
                    prop_assert!(tokens.error().is_none() && !tokens.due(EVERY, now));
                }
                if !matches!(event, 3 | 4 | 7) {
                    prop_assert!(failed || tokens.error().is_none());
                }
                if tokens.error().is_some() {
                    prop_assert!(tokens.due(EVERY, now + 5_000));
                }
                prop_assert!(tokens.patience(TIMEOUT) <= TIMEOUT);
            }
        }
    }
}
