//! Asks a prober.

use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use serde_json::Value;
use tokio::time::Instant;
use tower_service::Service;
use weighbridge_prober::line::Line;
use weighbridge_prober::tls;

use crate::events::Parser;
use crate::exit::{Exit, Failure};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take that does not wait for anything.
pub const ANSWER: Duration = Duration::from_secs(15);
/// How long a stream may be silent. A prober says something every 5 s.
const SILENCE: Duration = Duration::from_secs(15);
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// Where a prober is: `http://host:port`, or `https://`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    secure: bool,
    host: String,
    port: u16,
    /// In front of every path, without a slash at its end.
    prefix: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address of a prober: expected http://host:port or https://host:port");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().filter(|_| uri.query().is_none()).ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            return Err(wrong());
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Ok(Url { secure, host, port, prefix: uri.path().trim_end_matches('/').to_owned() })
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix)
    }
}

impl Url {
    fn authority(&self) -> String {
        let host = &self.host;
        if host.contains(':') { format!("[{host}]:{}", self.port) } else { format!("{host}:{}", self.port) }
    }
}

/// A prober.
#[derive(Clone)]
pub struct Prober {
    http: legacy::Client<Dial, Full<Bytes>>,
    url: Url,
    authorization: Option<HeaderValue>,
    /// How long a stream may be silent.
    silence: Duration,
}

/// What a prober answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// 2xx.
    pub status: u16,
    /// JSON; null when there is none.
    pub body: Value,
}

impl Prober {
    /// Someone to ask.
    ///
    /// # Errors
    /// When the file of authorities cannot be used.
    pub fn new(url: Url, token: Option<&str>, ca_file: Option<&Path>) -> Result<Self, Failure> {
        let unusable = |error: &dyn std::fmt::Display| Failure::usage("ca_file", error.to_string());
        let tls = match url.secure {
            false => None,
            true => {
                let file = match ca_file {
                    Some(path) => path.to_owned(),
                    None => tls::system_authorities("--ca-file").map_err(|error| unusable(&error))?,
                };
                Some(tls::client("--ca-file", &file).map_err(|error| unusable(&error))?.0)
            }
        };
        let authorization = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}"))).transpose();
        let mut authorization =
            authorization.map_err(|_| Failure::usage("token", "the token has characters that a header cannot have"))?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let dial = Dial { host: url.host.clone(), port: url.port, tls };
        let http = legacy::Client::builder(TokioExecutor::new()).build(dial);
        Ok(Prober { http, url, authorization, silence: SILENCE })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response<Incoming>, Failure> {
        // Always so: the connector knows who speaks TLS, and where.
        let uri = format!("http://{}{}{path}", self.url.authority(), self.url.prefix);
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let body = body.map(ToString::to_string).unwrap_or_default();
        let request = request.body(Full::from(body)).map_err(|error| Failure::usage("request", error.to_string()))?;
        self.http.request(request).await.map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> Failure {
        // What lies at the bottom says most.
        let mut cause = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        Failure::new(Exit::Unreachable, "unreachable", format!("the prober at {} cannot be reached: {cause}", self.url))
    }

    fn late(&self, timeout: Duration) -> Failure {
        let message =
            format!("the prober at {} has not answered within {}", self.url, humantime::format_duration(timeout));
        Failure::new(Exit::TimedOut, "timed_out", message)
    }

    /// What an answer says; null when it says nothing.
    fn json(&self, body: &[u8]) -> Result<Value, Failure> {
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(body).map_err(|_| {
            let message = format!("{} answered something that is no JSON: is this a prober?", self.url);
            Failure::new(Exit::Refused, "no_json", message)
        })
    }

    /// Asks; anything but 2xx is a failure. `timeout`: all of it.
    ///
    /// # Errors
    /// When there is no answer in time, or the prober refuses.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Answer, Failure> {
        let ask = async {
            let response = self.send(method, path, body).await?;
            let status = response.status();
            let read = http_body_util::Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let bytes = read.map_err(|error| self.unreachable(error.as_ref()))?.to_bytes();
            match status.is_success() {
                true => Ok(Answer { status: status.as_u16(), body: self.json(&bytes)? }),
                false => Err(refused(status, &bytes)),
            }
        };
        tokio::time::timeout(timeout, ask).await.unwrap_or_else(|_| Err(self.late(timeout)))
    }

    /// GET.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        Ok(self.call(Method::GET, path, None, ANSWER).await?.body)
    }

    /// What is done to an endpoint. One that is not there is answered with those that are.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn endpoint(
        &self,
        method: Method,
        id: &str,
        rest: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Answer, Failure> {
        let path = format!("/v1/endpoints/{}{rest}", encoded(id));
        let done = self.call(method, &path, body, timeout).await;
        match done {
            Err(failure) if failure.code == "no_endpoint" => Err(self.with_known(id, failure).await),
            done => done,
        }
    }

    async fn with_known(&self, id: &str, failure: Failure) -> Failure {
        let Ok(list) = self.get("/v1/endpoints").await else { return failure };
        let known = list.get("endpoints").and_then(Value::as_array).into_iter().flatten();
        let known: Vec<_> = known.filter_map(|endpoint| endpoint.get("id")?.as_str()).collect();
        let message = match known.is_empty() {
            true => format!("there is no endpoint {id:?}, and no other"),
            false => format!("there is no endpoint {id:?}: expected one of {}", known.join(", ")),
        };
        Failure { message, ..failure }
    }

    /// The fleet, whenever it changes.
    ///
    /// # Errors
    /// When there is no such stream.
    pub async fn events(&self) -> Result<Events, Failure> {
        let open = self.send(Method::GET, "/v1/events", None);
        let response = tokio::time::timeout(ANSWER, open).await.unwrap_or_else(|_| Err(self.late(ANSWER)))?;
        let status = response.status();
        if !status.is_success() {
            let read = tokio::time::timeout(ANSWER, response.into_body().collect()).await;
            let bytes = read.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes);
            return Err(refused(status, &bytes.unwrap_or_default()));
        }
        let (silence, heard) = (self.silence, Instant::now());
        Ok(Events { body: response.into_body(), parser: Parser::default(), ready: Vec::new(), silence, heard })
    }

    /// With another patience.
    #[cfg(test)]
    pub(crate) fn with_silence(self, silence: Duration) -> Self {
        Prober { silence, ..self }
    }
}

fn silent(silence: Duration) -> Failure {
    let message = format!("the prober's stream is silent for {}", humantime::format_duration(silence));
    Failure::new(Exit::TimedOut, "silent", message)
}

/// What the prober says to it.
fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let part = |name: &str| body.pointer(&format!("/error/{name}")).and_then(Value::as_str);
    let message = part("message").map_or_else(|| format!("the prober answered {status}"), ToOwned::to_owned);
    let message = match status {
        StatusCode::UNAUTHORIZED => {
            "the prober asks for a token, and this was none or another: see --token-file".to_owned()
        }
        _ => message,
    };
    Failure::new(Exit::Refused, part("code").unwrap_or("refused"), message)
}

/// A part of a URL, whatever stands in it.
#[must_use]
pub fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => encoded.push(byte.into()),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The stream of `/v1/events`.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    parser: Parser,
    /// Newest last.
    ready: Vec<Value>,
    silence: Duration,
    /// When something last came.
    heard: Instant,
}

impl Events {
    /// The next state of the fleet; nothing when the stream has ended.
    ///
    /// # Errors
    /// When it is silent: whoever was there may be gone without a word, and what was last seen would stay for good.
    pub async fn next(&mut self) -> Result<Option<Value>, Failure> {
        loop {
            // Whoever was slow sees the newest.
            if let Some(newest) = self.ready.pop() {
                self.ready.clear();
                return Ok(Some(newest));
            }
            // By the clock, and not from now on: this may have been given up and called again.
            let frame = tokio::time::timeout_at(self.heard + self.silence, self.body.frame()).await;
            let frame = frame.map_err(|_| silent(self.silence))?;
            let Some(Ok(frame)) = frame else { return Ok(None) };
            self.heard = Instant::now();
            if let Some(data) = frame.data_ref() {
                let events = self.parser.feed(data).into_iter().filter(|event| event.name == "fleet");
                self.ready.extend(events.filter_map(|event| serde_json::from_str(&event.data).ok()));
            }
        }
    }
}

/// Connects to the one prober.
#[derive(Clone)]
struct Dial {
    host: String,
    port: u16,
    tls: Option<Arc<ClientConfig>>,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Line>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Dial { host, port, tls } = self.clone();
        async move {
            let tls = tls.as_ref().map(|config| (host.as_str(), config));
            Line::connect((host.as_str(), port), tls, CONNECT).await.map(TokioIo::new)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prober_is_somewhere_over_http() {
        for (text, shown) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070"),
            ("https://prober.example/", "https://prober.example:443"),
            ("http://[::1]:7070/weighbridge/", "http://[::1]:7070/weighbridge"),
        ] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), shown);
        }
        for wrong in ["", "127.0.0.1:7070", "ftp://h:1", "http://", "http://user@h:1", "http://h:1/?q"] {
            assert!(wrong.parse::<Url>().unwrap_err().contains("expected http://host:port"), "{wrong}");
        }
    }

    #[test]
    fn an_answer_that_is_no_json_is_no_success() {
        let prober = Prober::new("http://127.0.0.1:1".parse().unwrap(), None, None).unwrap();
        assert_eq!(prober.json(b"").unwrap(), Value::Null);
        assert_eq!(prober.json(b"{\"a\": 1}").unwrap()["a"], 1);
        let failure = prober.json(b"<html>").unwrap_err();
        assert_eq!((failure.exit, failure.code.as_str()), (Exit::Refused, "no_json"));
        assert_eq!(failure.message, "http://127.0.0.1:1 answered something that is no JSON: is this a prober?");
    }

    #[test]
    fn a_part_of_a_url_is_no_other_part() {
        assert_eq!(encoded("a-1_b.c~"), "a-1_b.c~");
        assert_eq!(encoded("a/b?c d"), "a%2Fb%3Fc%20d");
    }

    #[test]
    fn a_refusal_says_what_the_prober_says() {
        let failure =
            refused(StatusCode::BAD_REQUEST, br#"{"error":{"code":"invalid_field","message":"weight is 0"}}"#);
        assert_eq!(
            (failure.exit, failure.code.as_str(), failure.message.as_str()),
            (Exit::Refused, "invalid_field", "weight is 0")
        );
        assert_eq!(refused(StatusCode::BAD_GATEWAY, b"<html>").message, "the prober answered 502 Bad Gateway");
    }
}
