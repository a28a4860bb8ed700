//! How a command ends, for scripts.

use std::process::ExitCode;

use serde_json::{Value, json};

/// How a command ended; the number is its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done, and nothing is wrong.
    Ok = 0,
    /// It was looked, and something is wrong: findings, alarms, a failed probe, nothing to explain.
    Problems = 1,
    /// Options that do not fit, or a file that cannot be read.
    Usage = 2,
    /// The prober cannot be reached.
    Unreachable = 3,
    /// The prober refuses, or what answers is none.
    Refused = 4,
    /// It took too long.
    TimedOut = 5,
}

impl Exit {
    /// All, with what they mean.
    pub const ALL: [(Exit, &'static str); 6] = [
        (Exit::Ok, "done, and nothing is wrong"),
        (
            Exit::Problems,
            "something is wrong: findings, alarms, not ready, a failed probe, a late drain, nothing to explain",
        ),
        (Exit::Usage, "options that do not fit, or a file that cannot be read"),
        (Exit::Unreachable, "the prober cannot be reached"),
        (
            Exit::Refused,
            "the prober refuses: token, unknown endpoint, a value that cannot be; or what answers is no prober",
        ),
        (Exit::TimedOut, "it took too long"),
    ];
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a command did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// How it ends.
    pub exit: Exit,
    /// For programs; the prober's own where it refuses.
    pub code: String,
    /// For people.
    pub message: String,
}

impl Failure {
    /// A failure.
    pub fn new(exit: Exit, code: &str, message: impl Into<String>) -> Self {
        Failure { exit, code: code.to_owned(), message: message.into() }
    }

    /// Options that do not fit, or a file that cannot be read.
    pub fn usage(code: &str, message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, code, message)
    }

    /// As the prober's own errors are written.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({"error": {"code": self.code, "message": self.message}})
    }
}
