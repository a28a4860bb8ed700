//! One request to send, and the way it travels.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::paced::Pieces;

/// HTTP version of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    Http2,
}

/// How the receiver knows where the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// `content-length`.
    #[default]
    Length,
    /// Chunked over HTTP/1.1, no length over HTTP/2.
    Chunked,
}

/// A request, and when to give up on it.
#[derive(Debug, Clone)]
pub struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) version: Version,
    pub(super) pieces: Pieces,
    pub(super) framing: Framing,
    pub(super) trailers: bool,
    pub(super) expect: bool,
    pub(super) pause: Duration,
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
            version: Version::default(),
            pieces: Pieces::default(),
            framing: Framing::default(),
            trailers: false,
            expect: false,
            pause: Duration::ZERO,
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

    /// A POST of a form with these fields and, last, a file of these bytes.
    #[must_use]
    pub fn multipart(path: &str, fields: &[(&str, &str)], file: &[u8]) -> Self {
        const BOUNDARY: &str = "----weighbridge-7d9f2c";
        let mut body = Vec::new();
        for (name, value) in fields {
            let part = format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
            body.extend_from_slice(part.as_bytes());
        }
        let head = "content-disposition: form-data; name=\"file\"; filename=\"speech.wav\"\r\ncontent-type: audio/wav";
        body.extend_from_slice(format!("--{BOUNDARY}\r\n{head}\r\n\r\n").as_bytes());
        body.extend_from_slice(file);
        body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
        Self::post(path, body).header("content-type", &format!("multipart/form-data; boundary={BOUNDARY}"))
    }

    /// A chat completion of exactly `tokens` tokens, in one piece.
    #[must_use]
    pub fn chat(model: &str, prompt: &str, tokens: u32) -> Self {
        Self::messages(model, &json!([{"role": "user", "content": prompt}]), tokens, false)
    }

    /// A chat completion of exactly `tokens` tokens, streamed, with `usage` in the last chunk.
    #[must_use]
    pub fn chat_stream(model: &str, prompt: &str, tokens: u32) -> Self {
        Self::messages(model, &json!([{"role": "user", "content": prompt}]), tokens, true)
    }

    /// A chat completion of exactly `tokens` tokens for these messages.
    #[must_use]
    pub fn messages(model: &str, messages: &Value, tokens: u32, stream: bool) -> Self {
        let mut body = json!({
            "model": model,
            "messages": messages,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": true,
        });
        if stream {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        Self::json("/v1/chat/completions", &body)
    }

    /// Sets a header, in place of one of the same name.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Asks for the decision; see [`super::Outcome::decision`].
    #[must_use]
    pub fn explain(self) -> Self {
        self.header("x-weighbridge-explain", "1")
    }

    /// Over this version.
    #[must_use]
    pub fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// With the body cut so, each piece flushed before the next.
    #[must_use]
    pub fn pieces(mut self, pieces: Pieces) -> Self {
        self.pieces = pieces;
        self
    }

    /// With the body's end told so.
    #[must_use]
    pub fn framing(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }

    /// With a trailer after the body, which is chunked then.
    #[must_use]
    pub fn trailers(mut self) -> Self {
        self.trailers = true;
        self.framing = Framing::Chunked;
        self
    }

    /// With `Expect: 100-continue`: the body is sent only after the 100 has come (over HTTP/1.1; [`super::Outcome::continued`]
    /// says whether it did).
    #[must_use]
    pub fn expect_continue(mut self) -> Self {
        self.expect = true;
        self
    }

    /// With a pause before every piece but the first, so that the receiver sees them one by one.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
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

    /// The body's bytes.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}
