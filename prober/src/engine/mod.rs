//! What an engine says of itself, under the names of several brands.
//!
//! - [`signals`]: the few metrics that matter; [`gpu`]: how busy the GPUs are, from an exporter.
//! - [`props`]: llama.cpp's `/props`.
//! - [`client`]: asking, and having tokens generated; [`dial`]: connections for that; [`access`]: TLS and keys.

pub mod access;
mod client;
mod dial;
mod exposition;
mod gpu;
mod props;
mod signals;

pub use client::{Client, Streamed, Usage};
pub use gpu::{Gpu, mean_usage, parse_gpus};
pub use props::Props;
pub use signals::{Brand, Signals, parse};

/// Why an engine did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Nobody listens there: the process is not running.
    #[error("{0}")]
    Refused(String),
    /// No connection, for another reason.
    #[error("{0}")]
    Unreachable(String),
    /// No answer, or a broken one.
    #[error("{0}")]
    Http(String),
    /// An answer with another status.
    #[error("{path} answered {status}{}", Said(.message))]
    Status {
        /// Which path.
        path: String,
        /// The status.
        status: u16,
        /// What the engine said to it, shortened.
        message: String,
    },
}

struct Said<'a>(&'a str);

impl std::fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

/// What a failed check tells of the engine's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Loss {
    /// Nothing.
    #[default]
    None,
    /// It may be gone: there is no connection.
    Suspected,
    /// It was gone: nobody listened.
    Certain,
}

impl EngineError {
    /// Whether the process may have ended.
    #[must_use]
    pub fn loss(&self) -> Loss {
        match self {
            EngineError::Refused(_) => Loss::Certain,
            EngineError::Unreachable(_) => Loss::Suspected,
            EngineError::Http(_) | EngineError::Status { .. } => Loss::None,
        }
    }
}

impl EngineError {
    /// Sending has failed, perhaps because there was no connection.
    fn sent(error: &(dyn std::error::Error + 'static), connecting: bool) -> Self {
        // The chain has the reason ("connection refused"), the head only says that sending failed.
        let mut text = error.to_string();
        let mut refused = false;
        let mut source = error.source();
        while let Some(cause) = source {
            text = cause.to_string();
            refused |= cause
                .downcast_ref::<std::io::Error>()
                .is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused);
            source = cause.source();
        }
        match (connecting, refused) {
            (true, true) => EngineError::Refused(text),
            (true, false) => EngineError::Unreachable(text),
            (false, _) => EngineError::Http(text),
        }
    }
}

impl From<reqwest::Error> for EngineError {
    fn from(error: reqwest::Error) -> Self {
        EngineError::sent(&error, error.is_connect())
    }
}

impl From<hyper_util::client::legacy::Error> for EngineError {
    fn from(error: hyper_util::client::legacy::Error) -> Self {
        EngineError::sent(&error, error.is_connect())
    }
}
