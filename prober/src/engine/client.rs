//! Asking an engine, directly and never through the gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use weighbridge_routing::response::{Kind, Watcher};

use super::access::Book;
use super::dial::{Answer, Dialer};
use super::{EngineError, Gpu, Props, Signals, parse, parse_gpus};

/// A client for engines.
#[derive(Debug, Clone)]
pub struct Client {
    engines: Dialer,
    book: Arc<Book>,
    /// For exporters, which are no engines.
    http: reqwest::Client,
}

/// What an answer cost, as its `usage` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, where told.
    pub prompt_tokens: Option<u64>,
    /// Tokens generated.
    pub completion_tokens: u64,
}

/// A streamed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streamed {
    /// What it cost.
    pub usage: Usage,
    /// From sending to the first token; `None` when the engine answered in one piece.
    pub first_token: Option<Duration>,
    /// From sending to the last byte.
    pub took: Duration,
}

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// The longest part of an error answer that is kept, in characters.
const MAX_MESSAGE: usize = 200;

impl Client {
    /// A client.
    ///
    /// # Errors
    /// When the system does not let it.
    pub fn new() -> Result<Self, reqwest::Error> {
        // One that leads us elsewhere would have us ask what we may not.
        let to_nobody_else = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(to_nobody_else)
            .connect_timeout(Duration::from_secs(2))
            .build()?;
        let book = Arc::<Book>::default();
        Ok(Client { engines: Dialer::new(Arc::clone(&book)), book, http })
    }

    /// How engines are spoken to.
    #[must_use]
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// `GET` of this path must answer 2xx.
    ///
    /// # Errors
    /// When it does not, within `timeout`.
    pub async fn health(&self, engine: SocketAddr, path: &str, timeout: Duration) -> Result<(), EngineError> {
        self.get(engine, path, timeout).await.map(|_| ())
    }

    /// One chat completion of one token, whatever it says. Dropped, it is cancelled.
    ///
    /// # Errors
    /// When there is no such answer.
    pub async fn token(&self, engine: SocketAddr, model: &str) -> Result<(), EngineError> {
        let body = chat(model, "Say yes.", 1);
        let answer = read(self.engines.post(engine, CHAT, &body).await?, CHAT).await?;
        if said(&answer).is_empty() {
            return Ok(());
        }
        // What it says may hold anything, the key that it was shown among that.
        Err(EngineError::Http(format!("{CHAT} answered 200 with an error inside")))
    }

    /// The metrics.
    ///
    /// # Errors
    /// When there are none.
    pub async fn metrics(&self, engine: SocketAddr, timeout: Duration) -> Result<Signals, EngineError> {
        Ok(parse(&self.get(engine, "/metrics", timeout).await?))
    }

    /// The context window of a model, where `/v1/models` tells it.
    ///
    /// # Errors
    /// When there is no such list.
    pub async fn window(&self, engine: SocketAddr, model: &str, timeout: Duration) -> Result<Option<u32>, EngineError> {
        let text = self.get(engine, "/v1/models", timeout).await?;
        // An answer that is no list tells nothing, which is not the same as no answer.
        let Ok(list) = serde_json::from_str::<Value>(&text) else { return Ok(None) };
        let mut entries = list.get("data").and_then(|data| data.as_array()).into_iter().flatten();
        let entry = entries.find(|entry| entry.get("id").is_some_and(|id| id == model));
        let length = entry.and_then(|entry| entry.get("max_model_len")?.as_u64());
        Ok(length.and_then(|length| u32::try_from(length).ok()))
    }

    /// What llama.cpp tells at `/props`.
    ///
    /// # Errors
    /// When there is no such page.
    pub async fn props(&self, engine: SocketAddr, timeout: Duration) -> Result<Props, EngineError> {
        Ok(Props::parse(&self.get(engine, "/props", timeout).await?))
    }

    /// One chat completion of exactly `tokens` tokens; what its `usage` reports.
    ///
    /// # Errors
    /// When there is no such answer.
    pub async fn generate(
        &self,
        engine: SocketAddr,
        model: &str,
        prompt: &str,
        tokens: u32,
    ) -> Result<Usage, EngineError> {
        let body = chat(model, prompt, tokens);
        let response = self.engines.post(engine, CHAT, &body).await?;
        let answer: Value = serde_json::from_slice(&read(response, CHAT).await?)
            .map_err(|error| EngineError::Http(format!("{CHAT}: {error}")))?;
        let count = |name| answer.get("usage")?.get(name)?.as_u64();
        Ok(Usage {
            prompt_tokens: count("prompt_tokens"),
            completion_tokens: count("completion_tokens")
                .ok_or_else(|| EngineError::Http(format!("{CHAT}: no usage.completion_tokens in the answer")))?,
        })
    }

    /// The same as a stream.
    ///
    /// # Errors
    /// When there is no such answer, or an error inside it.
    pub async fn stream(
        &self,
        engine: SocketAddr,
        model: &str,
        prompt: &str,
        tokens: u32,
    ) -> Result<Streamed, EngineError> {
        let mut body = chat(model, prompt, tokens);
        if let Some(fields) = body.as_object_mut() {
            fields.insert("stream".into(), true.into());
            fields.insert("stream_options".into(), serde_json::json!({"include_usage": true}));
        }
        let start = Instant::now();
        let mut response = self.engines.post(engine, CHAT, &body).await?;
        if !response.status().is_success() {
            let status = response.status();
            // An error that cannot be read to its end is one all the same.
            return Err(read(response, CHAT).await.err().unwrap_or_else(|| EngineError::Http(status.to_string())));
        }
        let kind = response.header("content-type").and_then(Kind::of_content_type);
        let mut watcher = Watcher::new(kind.unwrap_or(Kind::Sse));
        let mut first_token = None;
        while let Some(chunk) = response.chunk().await? {
            watcher.feed(&chunk);
            if first_token.is_none() && kind != Some(Kind::Json) && watcher.facts().first_token {
                first_token = Some(start.elapsed());
            }
        }
        watcher.finish();
        let (took, facts) = (start.elapsed(), watcher.facts());
        if facts.error {
            return Err(EngineError::Http(format!("{CHAT}: an error inside the stream")));
        }
        let completion_tokens = facts.completion_tokens;
        let completion_tokens = completion_tokens
            .ok_or_else(|| EngineError::Http(format!("{CHAT}: no usage.completion_tokens in the stream")))?;
        Ok(Streamed { usage: Usage { prompt_tokens: facts.prompt_tokens, completion_tokens }, first_token, took })
    }

    /// The GPUs that a DCGM exporter tells of.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn gpus(&self, url: &str, timeout: Duration) -> Result<Vec<Gpu>, EngineError> {
        let mut response = self.http.get(url).timeout(timeout).send().await?;
        let (path, status) = ("the exporter", response.status());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            append(&mut body, &chunk, path)?;
        }
        if !status.is_success() {
            return Err(EngineError::Status {
                path: path.to_owned(),
                status: status.as_u16(),
                message: message(&body, |said| said),
            });
        }
        Ok(parse_gpus(&String::from_utf8_lossy(&body)))
    }

    async fn get(&self, engine: SocketAddr, path: &str, timeout: Duration) -> Result<String, EngineError> {
        let answer = async { read(self.engines.get(engine, path).await?, path).await };
        let body = tokio::time::timeout(timeout, answer).await;
        let body = body.map_err(|_| EngineError::Http(format!("{path}: no answer within {timeout:?}")))??;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

/// Where chat completions are asked for.
const CHAT: &str = "/v1/chat/completions";

/// A request for exactly `tokens` tokens: vLLM honours `min_tokens` and `ignore_eos`, llama.cpp only the latter.
fn chat(model: &str, prompt: &str, tokens: u32) -> Value {
    serde_json::json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": true, "temperature": 0, "stream": false,
    })
}

/// The body of a 2xx answer.
async fn read(mut response: Answer, path: &str) -> Result<Vec<u8>, EngineError> {
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        append(&mut body, &chunk, path)?;
    }
    if status.is_success() {
        return Ok(body);
    }
    Err(EngineError::Status {
        path: path.to_owned(),
        status: status.as_u16(),
        message: message(&body, |said| response.without_key(said)),
    })
}

fn append(body: &mut Vec<u8>, chunk: &[u8], path: &str) -> Result<(), EngineError> {
    body.extend_from_slice(chunk);
    if body.len() > MAX_ANSWER {
        return Err(EngineError::Http(format!("{path}: more than 4 MiB")));
    }
    Ok(())
}

/// What an error answer says, redacted and then cut: half a key is no key that is looked for.
fn message(body: &[u8], redact: impl FnOnce(String) -> String) -> String {
    redact(said(body)).chars().take(MAX_MESSAGE).collect()
}

/// The message of the shapes that engines use; nothing when it has another one.
fn said(body: &[u8]) -> String {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return String::new() };
    let said = ["/error/message", "/message", "/detail"].into_iter().find_map(|at| body.pointer(at)?.as_str());
    said.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_error_is_kept_short() {
        let message = |body: &[u8]| message(body, |said| said.replace("secret", "***"));
        assert_eq!(message(br#"{"error": {"message": "too long", "code": 400}}"#), "too long");
        assert_eq!(message(br#"{"object": "error", "message": "no"}"#), "no");
        assert_eq!(message(b"<html>"), "");
        let long = serde_json::json!({"detail": "x".repeat(1_000)}).to_string();
        assert_eq!(message(long.as_bytes()).len(), MAX_MESSAGE);
        // A key that lies across the cut.
        let across = serde_json::json!({"detail": format!("{}secret", "x".repeat(MAX_MESSAGE - 3))}).to_string();
        assert!(message(across.as_bytes()).ends_with("x***"), "{across}");
    }

    #[tokio::test]
    async fn a_port_without_a_process_is_a_certain_loss() {
        let engine = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = Client::new().unwrap().health(engine, "/health", Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(error.loss(), super::super::Loss::Certain, "{error}");
    }

    #[tokio::test]
    async fn an_engine_that_does_not_answer_may_well_live() {
        // Accepted by the system, answered by nobody.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let engine = listener.local_addr().unwrap();
        let error = Client::new().unwrap().health(engine, "/health", Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.loss(), super::super::Loss::None, "{error}");
    }
}
