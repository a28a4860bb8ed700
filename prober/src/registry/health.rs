//! Whether an endpoint may serve. Pure.
//!
//! Two things are watched, and both must be well: it **answers** its health checks, and [`Tokens`] come from it.
//!
//! | check | counts as |
//! |---|---|
//! | 2xx | a success; `healthy_after` in a row bring it back |
//! | connection refused | proof that no process listens there: it is unhealthy at once |
//! | another status | a failure; `unhealthy_after` in a row |
//! | no answer in time, no way to it | the same, counted from the last proof that it generates |
//!
//! The last line is for a prober that has lost its way to engines that the Envoys go on reaching: nobody is closed for that. An
//! engine that is lost completes no answers, so it costs nothing.
//!
//! While it does not answer it is checked twice a second or more, so that it is back within about a second of being well.

use std::time::Duration;

use super::tokens::Tokens;
use crate::config;
use crate::engine::{EngineError, Loss};

/// How often an endpoint that does not answer is checked, at least.
const OFTEN: Duration = Duration::from_millis(500);

/// A health check that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckFailure {
    /// What went wrong, for people.
    pub message: String,
    /// What that tells of the process.
    pub loss: Loss,
    /// Whether the engine itself has said so.
    pub answered: bool,
}

impl From<EngineError> for CheckFailure {
    fn from(error: EngineError) -> Self {
        let answered = matches!(error, EngineError::Status { .. });
        CheckFailure { loss: error.loss(), answered, message: error.to_string() }
    }
}

/// Health as the checks see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether there has been a check at all.
    pub checked: bool,
    /// The verdict on its answers.
    answers: bool,
    /// Checks in a row that contradict it.
    streak: u32,
    /// When the last of them was, Unix ms.
    at_ms: u64,
    /// What the failures since it was last seen to live tell of its process.
    loss: Loss,
    /// What the last check said, when it failed.
    last_error: Option<String>,
    /// Whether it generates.
    pub tokens: Tokens,
}

/// What followed from a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checked {
    /// It answers again.
    pub(super) answers_again: bool,
    /// It answers, and its process was gone since it last did.
    pub(super) came_back: bool,
}

impl Health {
    /// Healthy until a check says otherwise: a prober that starts must not close a fleet that serves.
    pub(super) fn unchecked() -> Self {
        let tokens = Tokens::default();
        Health { checked: false, answers: true, streak: 0, at_ms: 0, loss: Loss::None, last_error: None, tokens }
    }

    /// The verdict.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.answers && self.tokens.error().is_none()
    }

    /// Whether it answers health checks, whatever it generates.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.answers
    }

    /// Seen to live, and not in doubt.
    pub(super) fn is_sound(&self) -> bool {
        self.checked && self.streak == 0 && self.healthy()
    }

    /// What the last check said when it failed, else why no token is to be expected.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref().or(self.tokens.error())
    }

    /// How long after the begin of a check the next one is to begin.
    #[must_use]
    pub fn pace(&self, settings: &config::Health) -> Duration {
        if self.answers { settings.interval } else { settings.interval.min(OFTEN) }
    }

    /// One check.
    pub(super) fn check(
        &mut self,
        result: Result<(), CheckFailure>,
        settings: &config::Health,
        now_ms: u64,
    ) -> Checked {
        self.checked = true;
        self.tokens.begin(now_ms);
        let (ok, failure) = (result.is_ok(), result.err());
        let loss = failure.as_ref().map_or(Loss::None, |failure| failure.loss);
        let silent = failure.as_ref().is_some_and(|failure| !failure.answered && loss != Loss::Certain);
        if silent && self.answers && self.tokens.proven_since(self.at_ms) {
            self.streak = 0;
        }
        self.at_ms = now_ms;
        self.loss = self.loss.max(loss);
        self.last_error = failure.map(|failure| failure.message);
        let enough = match (ok, loss) {
            (true, _) => settings.healthy_after,
            (false, Loss::Certain) => 1,
            (false, Loss::None | Loss::Suspected) => settings.unhealthy_after,
        };
        self.streak = if ok == self.answers { 0 } else { self.streak.saturating_add(1) };
        let turned = self.streak >= enough;
        if turned {
            (self.answers, self.streak) = (ok, 0);
        }
        let answers_again = turned && ok;
        let came_back = ok
            && self.answers
            && match std::mem::take(&mut self.loss) {
                Loss::Certain => true,
                Loss::Suspected => answers_again,
                Loss::None => false,
            };
        Checked { answers_again, came_back }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings() -> config::Health {
        config::Config::parse("pools: [{name: p, models: [m]}]").unwrap().health
    }

    fn failed(loss: Loss) -> Result<(), CheckFailure> {
        Err(CheckFailure { message: "no".into(), loss, answered: false })
    }

    #[test]
    fn a_refused_connection_counts_at_once_and_a_late_answer_does_not() {
        let (mut health, settings) = (Health::unchecked(), settings());
        for _ in 0..2 {
            health.check(failed(Loss::None), &settings, 0);
            assert!(health.healthy() && !health.is_sound());
            assert_eq!(health.pace(&settings), settings.interval);
        }
        health.check(failed(Loss::Suspected), &settings, 0);
        assert!(!health.healthy());
        assert_eq!(health.pace(&settings), Duration::from_millis(500));
        let back = health.check(Ok(()), &settings, 0);
        assert!(health.is_sound() && back.answers_again && back.came_back);
        health.check(failed(Loss::Certain), &settings, 0);
        assert!(!health.healthy());
        assert_eq!(health.last_error(), Some("no"));
    }

    #[test]
    fn whoever_completes_answers_is_not_closed_for_silence() {
        let (mut health, settings) = (Health::unchecked(), settings());
        for second in 1..30 {
            health.check(failed(if second % 2 == 0 { Loss::None } else { Loss::Suspected }), &settings, 1_000 * second);
            health.tokens.proven(1_000 * second + 500);
            assert!(health.healthy() && !health.is_sound(), "second {second}");
        }
        // The last proof is older than the second of these.
        for second in 30..33 {
            assert!(health.healthy());
            health.check(failed(Loss::None), &settings, 1_000 * second);
        }
        assert!(!health.healthy());

        // What the engine says itself, and a port where nobody listens, count whatever was answered.
        let said = || Err(CheckFailure { message: "503".into(), loss: Loss::None, answered: true });
        let mut health = Health::unchecked();
        for second in 1..4 {
            health.tokens.proven(1_000 * second);
            health.check(said(), &settings, 1_000 * second);
        }
        assert!(!health.healthy());
        let mut health = Health::unchecked();
        health.tokens.proven(1_000);
        health.check(failed(Loss::Certain), &settings, 1_000);
        assert!(!health.healthy());
    }

    #[test]
    fn a_quick_interval_is_never_slowed_down() {
        let quick = config::Health { interval: Duration::from_millis(50), ..settings() };
        let mut health = Health::unchecked();
        health.check(failed(Loss::Certain), &quick, 0);
        assert_eq!(health.pace(&quick), quick.interval);
    }

    proptest! {
        /// The verdict is that of the last run of checks that was long enough, or of a refusal.
        #[test]
        fn the_last_run_that_is_long_enough_decides(checks in prop::collection::vec(0..4u8, 1..60), healthy_after in 1..4u32) {
            let settings = config::Health { healthy_after, ..settings() };
            let mut health = Health::unchecked();
            let (mut answers, mut good, mut bad) = (true, 0, 0);
            for check in checks {
                let result = match check {
                    0 => failed(Loss::Certain),
                    1 => failed(Loss::None),
                    _ => Ok(()),
                };
                (good, bad) = if check > 1 { (good + 1, 0) } else { (0, bad + 1) };
                if check == 0 || bad >= settings.unhealthy_after {
                    answers = false;
                } else if good >= healthy_after {
                    answers = true;
                }
                let came_back = health.check(result, &settings, 0).came_back;
                prop_assert_eq!(health.healthy(), answers);
                prop_assert!(!came_back || answers);
            }
        }
    }
}
