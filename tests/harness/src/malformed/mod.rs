//! Inputs that no client should send, by the thousand and repeatable: broken bodies of every shape, framing that lies, headers
//! without end, compressed bombs, noise. What a gateway makes of them is counted by [`run`].
//!
//! Input `n` of a seed is always the same bytes, whatever came before it.

mod bodies;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::raw;

/// The longest that an input may be without an answer and with its connection open. All of them end with the client closing its
/// side, so nothing may wait for more.
const PATIENCE: Duration = Duration::from_secs(60);

/// One input: a connection's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// What is wrong with it, for the count.
    pub kind: &'static str,
    /// What is sent.
    pub bytes: Vec<u8>,
    /// Whether it says where it ends, so that an answer must come while the client keeps its side open.
    pub framed: bool,
}

impl Input {
    /// The nth input of a seed.
    #[must_use]
    pub fn nth(seed: u64, nth: u64) -> Self {
        // SplitMix64's increment: neighbours share nothing.
        let mut random = StdRng::seed_from_u64(seed ^ nth.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        wire::input(&mut random)
    }
}

/// What became of the inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many there were of each kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Answers by status; `closed` where the connection was closed without one.
    pub by_status: BTreeMap<String, u64>,
    /// Answers of 500 and above that are not in the shape of our errors: at most ten of them, with the input's number.
    pub foreign: Vec<String>,
    /// Numbers of inputs that got no answer and were not closed.
    pub stuck: Vec<u64>,
}

impl Report {
    /// Adds what became of others.
    pub fn merge(&mut self, other: Self) {
        for (kind, count) in other.kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
        for (status, count) in other.by_status {
            *self.by_status.entry(status).or_default() += count;
        }
        self.foreign.extend(other.foreign);
        self.foreign.truncate(10);
        self.stuck.extend(other.stuck);
    }

    fn note(&mut self, nth: u64, kind: &'static str, answer: Option<&[u8]>) {
        *self.kinds.entry(kind).or_default() += 1;
        let Some(answer) = answer else {
            self.stuck.push(nth);
            return;
        };
        let status = raw::status(answer).filter(|_| answer.starts_with(b"HTTP/1."));
        let name = status.map_or_else(|| "closed".to_owned(), |status| status.to_string());
        *self.by_status.entry(name).or_default() += 1;
        if status.is_some_and(|status| status >= 500) && !is_ours(answer) && self.foreign.len() < 10 {
            self.foreign.push(format!("input {nth} ({kind}): {}", String::from_utf8_lossy(answer)));
        }
    }
}

/// An error object, in the shape of either API.
fn is_ours(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    body["error"]["message"].is_string()
}

/// Sends the inputs of a range, on so many connections at a time.
///
/// # Errors
/// When the gateway does not accept connections.
pub async fn run(gateway: SocketAddr, seed: u64, range: Range<u64>, connections: usize) -> Result<Report> {
    let next = Arc::new(AtomicU64::new(range.start));
    let mut workers = JoinSet::new();
    for _ in 0..connections {
        let (next, end) = (next.clone(), range.end);
        workers.spawn(async move {
            let mut report = Report::default();
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= end {
                    return anyhow::Ok(report);
                }
                let input = Input::nth(seed, nth);
                let answer = tokio::time::timeout(PATIENCE, send(gateway, &input)).await.ok().transpose()?;
                report.note(nth, input.kind, answer.as_deref());
            }
        });
    }
    let mut all = Report::default();
    while let Some(report) = workers.join_next().await {
        all.merge(report??);
    }
    Ok(all)
}

async fn send(gateway: SocketAddr, input: &Input) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(gateway).await?;
    stream.set_nodelay(true)?;
    // A gateway may refuse before it has read everything.
    let _ = stream.write_all(&input.bytes).await;
    let answered = raw::read_until(&mut stream, raw::is_complete);
    if input.framed {
        return Ok(answered.await);
    }
    // Of what is not complete, the gateway may wait for more.
    let answer = match tokio::time::timeout(Duration::from_millis(500), answered).await {
        Ok(answer) => answer,
        Err(_) => {
            let _ = stream.shutdown().await;
            raw::read_until(&mut stream, raw::is_complete).await
        }
    };
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_repeatable_and_of_every_kind() {
        let mut report = Report::default();
        for nth in 0..2_000 {
            let input = Input::nth(7, nth);
            assert_eq!(input, Input::nth(7, nth));
            report.note(nth, input.kind, Some(b""));
        }
        assert_ne!(Input::nth(7, 1).bytes, Input::nth(8, 1).bytes);
        for kind in bodies::KINDS.into_iter().chain(wire::KINDS) {
            assert!(report.kinds.contains_key(kind), "{kind} is missing: {:?}", report.kinds);
        }
    }

    #[test]
    fn errors_of_ours_are_known_by_their_shape() {
        assert!(is_ours(b"HTTP/1.1 503 x\r\n\r\n{\"error\":{\"message\":\"no\"}}"));
        assert!(!is_ours(b"HTTP/1.1 500 x\r\n\r\nInternal Server Error"));
    }
}
