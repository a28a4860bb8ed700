//! A streamed answer that is kept open, to hold a slot at an endpoint.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Result, bail};

use super::call::Call;
use super::connection::{Answer, Connection};
use super::report::{Outcome, Usage};

/// An answer that has begun and is not read further; dropped, its connection closes and the request is cancelled.
pub struct Held {
    outcome: Outcome,
    answer: Answer,
    _connection: Connection,
}

/// Sends a request and waits until its answer has begun: headers, and the first piece of its body.
///
/// # Errors
/// When there is no answer, or none of status 200.
pub async fn hold(target: SocketAddr, call: Call) -> Result<Held> {
    let (mut connection, mut outcome, start) = (Connection::new(target), Outcome::default(), Instant::now());
    let timeout = call.timeout;
    let begin = async {
        let body = connection.begin(call, &mut outcome).await?;
        let mut answer = Answer { body, start };
        answer.read(Some(1), &mut outcome).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(timeout, begin).await??;
    if outcome.status != Some(200) {
        bail!("status {:?}: {}", outcome.status, String::from_utf8_lossy(&outcome.body));
    }
    outcome.cut = false;
    Ok(Held { outcome, answer, _connection: connection })
}

impl Held {
    /// The answer so far.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The endpoint that answers, by the gateway.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        self.outcome.endpoint()
    }

    /// Reads the answer to its end.
    pub async fn finish(mut self) -> Outcome {
        if let Err(error) = self.answer.read(None, &mut self.outcome).await {
            self.outcome.error = Some(format!("{error:#}"));
        }
        self.outcome.duration = self.answer.start.elapsed();
        self.outcome.usage = Usage::of_body(&self.outcome.body);
        self.outcome.tokens = self.outcome.usage.completion_tokens.unwrap_or(0);
        self.outcome
    }
}
