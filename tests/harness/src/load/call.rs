//! One request to send.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

/// A request, and when to give up on it.
#[derive(Debug, Clone)]
pub struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) cut_after_chunks: Option<usize>,
    pub(super) timeout: Duration,
}

impl Call {
    /// A POST with this body.
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        Self {
            method: Method::POST,
            path: path.to_owned(),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: body.into(),
            cut_after_chunks: None,
            timeout: Duration::from_secs(120),
        }
    }

    /// A GET.
    #[must_use]
    pub fn get(path: &str) -> Self {
        Self { method: Method::GET, headers: Vec::new(), ..Self::post(path, Bytes::new()) }
    }

    /// A POST of a JSON value.
    #[must_use]
    pub fn json(path: &str, body: &Value) -> Self {
        Self::post(path, body.to_string())
    }

    /// A chat completion of exactly `tokens` tokens, in one piece.
    #[must_use]
    pub fn chat(model: &str, prompt: &str, tokens: u32) -> Self {
        Self::json("/v1/chat/completions", &chat_body(model, prompt, tokens))
    }

    /// A chat completion of exactly `tokens` tokens, streamed, with `usage` in the last chunk.
    #[must_use]
    pub fn chat_stream(model: &str, prompt: &str, tokens: u32) -> Self {
        let mut body = chat_body(model, prompt, tokens);
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        Self::json("/v1/chat/completions", &body)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Closes the connection after this many chunks of the response's body (0: right after its headers).
    #[must_use]
    pub fn cut_after(mut self, chunks: usize) -> Self {
        self.cut_after_chunks = Some(chunks);
        self
    }

    /// Gives up, closing the connection, when the response is not complete by then.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

fn chat_body(model: &str, prompt: &str, tokens: u32) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": true,
    })
}
