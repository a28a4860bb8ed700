//! Polling until a deadline.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How often a condition is looked at.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `probe` until it succeeds, and returns what it gave; after `deadline`, its last error.
///
/// # Errors
/// When the deadline passes; the message says what was awaited, and why it had not come.
pub async fn eventually<T>(what: &str, deadline: Duration, mut probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let last = match probe().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if start.elapsed() >= deadline {
            return Err(last).with_context(|| format!("{what}: not within {deadline:?}"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
