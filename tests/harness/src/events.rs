//! The prober's server-sent events (`/v1/events`), read one by one.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;

/// Until what must be seen soon has been seen. Generous: tests share two cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// A stream of documents.
#[derive(Debug)]
pub struct Events {
    answer: Response,
    buffer: Vec<u8>,
}

impl Events {
    /// What comes of this request; its status when that is no stream.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn open(request: RequestBuilder) -> Result<Result<Self, u16>> {
        let answer = request.send().await.context("no answer")?;
        Ok(match answer.status().as_u16() {
            200 => Ok(Events { answer, buffer: Vec::new() }),
            status => Err(status),
        })
    }

    /// The next document; `None` at the end of the stream.
    ///
    /// # Errors
    /// When the stream breaks off, or what comes is no document.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(document) = read(std::str::from_utf8(&event)?)? {
                    return Ok(Some(document));
                }
                continue;
            }
            match self.answer.chunk().await.context("the stream broke off")? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    /// The first document of which this is true.
    ///
    /// # Errors
    /// When none comes in time.
    pub async fn until(&mut self, what: &str, mut is_so: impl FnMut(&Value) -> bool) -> Result<Value> {
        let wait = async {
            loop {
                match self.next().await? {
                    Some(document) if is_so(&document) => return Ok(document),
                    Some(_) => {}
                    None => bail!("the stream ended"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .context("too long")
            .flatten()
            .with_context(|| format!("until {what}"))
    }
}

/// The document of one event; comments and settings of the stream have none.
fn read(event: &str) -> Result<Option<Value>> {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
    let Some(data) = field("data: ") else { return Ok(None) };
    let document: Value = serde_json::from_str(data)?;
    ensure!(field("event: ") == Some("fleet"), "{event}");
    ensure!(field("id: ") == Some(&document["now_ms"].to_string()), "{event}");
    Ok(Some(document))
}
