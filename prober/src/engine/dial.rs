//! Connections to engines, each with the TLS and the key that the [`Book`] has for its address.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
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
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use super::EngineError;
use super::access::{Access, Book};

/// How long connecting may take, TLS included.
const CONNECT: Duration = Duration::from_secs(2);

/// How long a connection is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(90);

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
    pub(super) fn new(book: Arc<Book>) -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
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
            let line = tokio::time::timeout(CONNECT, connect(engine, &book.of(engine))).await;
            line.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "connecting took too long")))
                .map(TokioIo::new)
        }
        .boxed()
    }
}

async fn connect(engine: SocketAddr, access: &Access) -> io::Result<Line> {
    let stream = TcpStream::connect(engine).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = &access.tls else { return Ok(Line::Plain(stream)) };
    let name = ServerName::try_from(tls.server_name.clone()).map_err(io::Error::other)?;
    let secured = TlsConnector::from(Arc::clone(&tls.config)).connect(name, stream).await?;
    Ok(Line::Secured(Box::new(secured)))
}

/// A connection.
#[derive(Debug)]
enum Line {
    Plain(TcpStream),
    Secured(Box<TlsStream<TcpStream>>),
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Line {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Plain(line) => Pin::new(line).poll_read(cx, into),
            Line::Secured(line) => Pin::new(line).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Line::Plain(line) => Pin::new(line).poll_write(cx, bytes),
            Line::Secured(line) => Pin::new(line).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Plain(line) => Pin::new(line).poll_flush(cx),
            Line::Secured(line) => Pin::new(line).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Plain(line) => Pin::new(line).poll_shutdown(cx),
            Line::Secured(line) => Pin::new(line).poll_shutdown(cx),
        }
    }
}
