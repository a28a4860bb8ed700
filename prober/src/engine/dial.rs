//! Connections to engines, each with the TLS and the key that the [`Book`] has for its address.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tower_service::Service;

use super::EngineError;
use super::access::{Access, Book};
use crate::line::Line;

/// How long connecting may take, TLS included.
const CONNECT: Duration = Duration::from_secs(2);

/// Sends requests to engines.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    http: legacy::Client<Dial, Full<Bytes>>,
    book: Arc<Book>,
}

/// An answer whose body is still to come.
#[derive(Debug)]
pub(super) struct Answer {
    response: Response<Incoming>,
    access: Arc<Access>,
}

impl Dialer {
    /// A connection for each request. Engines close those that nobody uses (uvicorn under vLLM and SGLang after 5 s), and a
    /// request that is sent on one just then is lost, and with it a burst, a step of a sweep, or a health check. Keeping them for
    /// less than that is not enough: sweeps of llama.cpp failed also where a connection had just answered. A new connection costs
    /// less than a measurement that failed.
    pub(super) fn new(book: Arc<Book>) -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_max_idle_per_host(0);
        let http = builder.build(Dial(Arc::clone(&book)));
        Dialer { http, book }
    }

    pub(super) async fn get(&self, engine: SocketAddr, path: &str) -> Result<Answer, EngineError> {
        self.send(engine, Method::GET, path, None).await
    }

    pub(super) async fn post(
        &self,
        engine: SocketAddr,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<Answer, EngineError> {
        self.send(engine, Method::POST, path, Some(body.to_string())).await
    }

    async fn send(
        &self,
        engine: SocketAddr,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Answer, EngineError> {
        let access = self.book.of(engine);
        // Always so: the connector knows who speaks TLS, and where.
        let mut request = Request::builder().method(method).uri(format!("http://{engine}{path}"));
        if let Some(key) = access.authorization() {
            request = request.header(AUTHORIZATION, key);
        }
        if let Some(tls) = &access.tls {
            request = request.header(HOST, tls.server_name.as_str());
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let request = request.body(Full::from(body.unwrap_or_default()));
        let request = request.map_err(|error| EngineError::Http(error.to_string()))?;
        let response = self.http.request(request).await?;
        Ok(Answer { response, access })
    }
}

impl Answer {
    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(super) fn header(&self, name: &str) -> Option<&[u8]> {
        self.response.headers().get(name).map(HeaderValue::as_bytes)
    }

    /// What an error says, without the key that it may repeat.
    pub(super) fn without_key(&self, text: String) -> String {
        self.access.without_key(text)
    }

    /// The next part of the body.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, EngineError> {
        while let Some(frame) = self.response.body_mut().frame().await {
            if let Ok(data) = frame.map_err(|error| EngineError::Http(error.to_string()))?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

/// Connects to the address that a URI names.
#[derive(Debug, Clone)]
struct Dial(Arc<Book>);

impl Service<Uri> for Dial {
    type Response = TokioIo<Line>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let book = Arc::clone(&self.0);
        async move {
            let engine = uri.authority().and_then(|authority| authority.as_str().parse::<SocketAddr>().ok());
            let engine = engine.ok_or_else(|| io::Error::other("not an address"))?;
            let access = book.of(engine);
            let tls = access.tls.as_ref().map(|tls| (tls.server_name.as_str(), &tls.config));
            Line::connect(engine, tls, CONNECT).await.map(TokioIo::new)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers one request on each connection, and closes it when the next one comes: as it looks to a client whose request
    /// crosses the closing.
    async fn engine() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    let _ = connection.read(&mut request).await;
                    let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                    let _ = connection.read(&mut request).await;
                });
            }
        });
        address
    }

    async fn read(dialer: &Dialer, engine: SocketAddr) -> Result<Option<Bytes>, EngineError> {
        let mut answer = dialer.get(engine, "/health").await?;
        let chunk = answer.chunk().await;
        // To its end: only then would the connection be kept.
        while answer.chunk().await?.is_some() {}
        chunk
    }

    #[tokio::test]
    async fn no_request_is_sent_on_a_connection_that_the_engine_may_be_closing() {
        let (engine, dialer) = (engine().await, Dialer::new(Arc::default()));
        for _ in 0..3 {
            assert_eq!(read(&dialer, engine).await.unwrap().as_deref(), Some(&b"ok"[..]));
        }
    }
}
