//! One keep-alive connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request, Response, Uri, ext, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::call::{Call, Framing, Version};
use super::report::{Outcome, Usage};
use crate::paced::Paced;

const TRAILER: &str = "x-checksum";

/// A connection that is opened when needed and opened anew after it was closed by either side.
pub(super) struct Connection {
    target: SocketAddr,
    open: Option<Open>,
}

struct Open {
    sender: Sender,
    /// Dropped, the socket closes at once: this is how a client cuts.
    _driver: AbortOnDropHandle<()>,
}

enum Sender {
    Http1(http1::SendRequest<Paced>),
    Http2(http2::SendRequest<Paced>),
}

impl Sender {
    fn version(&self) -> Version {
        match self {
            Self::Http1(_) => Version::Http1,
            Self::Http2(_) => Version::Http2,
        }
    }

    async fn is_usable(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    async fn send(&mut self, request: Request<Paced>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => sender.send_request(request).await,
            Self::Http2(sender) => sender.send_request(request).await,
        }
    }
}

impl Connection {
    pub(super) fn new(target: SocketAddr) -> Self {
        Self { target, open: None }
    }

    pub(super) async fn connect(&mut self, version: Version) -> Result<()> {
        let usable = match &mut self.open {
            Some(open) => open.sender.version() == version && open.sender.is_usable().await,
            None => false,
        };
        if usable {
            return Ok(());
        }
        self.open = None;
        let stream = TcpStream::connect(self.target).await.context("connect")?;
        stream.set_nodelay(true)?;
        let io = TokioIo::new(stream);
        // How a connection ends shows in the request that it carried.
        let (sender, driver) = match version {
            Version::Http1 => {
                let (sender, driver) = http1::handshake(io).await?;
                (Sender::Http1(sender), tokio::spawn(async move { drop(driver.await) }))
            }
            Version::Http2 => {
                let (sender, driver) = http2::handshake(TokioExecutor::new(), io).await?;
                (Sender::Http2(sender), tokio::spawn(async move { drop(driver.await) }))
            }
        };
        self.open = Some(Open { sender, _driver: AbortOnDropHandle::new(driver) });
        Ok(())
    }

    /// The whole exchange.
    pub(super) async fn send(&mut self, call: Call, nth: usize) -> Outcome {
        let mut outcome = Outcome { nth, ..Outcome::default() };
        let (timeout, cut_after) = (call.timeout, call.cut_after_chunks);
        let start = Instant::now();
        let exchange = async {
            let body = self.begin(call, &mut outcome).await?;
            Answer { body, start }.read(cut_after, &mut outcome).await
        };
        let ended = tokio::time::timeout(timeout, exchange).await;
        outcome.duration = start.elapsed();
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => outcome.error = Some(format!("{error:#}")),
            Err(_) => outcome.error = Some(format!("not complete after {timeout:?}")),
        }
        if outcome.cut || outcome.error.is_some() {
            self.open = None;
        }
        outcome.usage = Usage::of_body(&outcome.body);
        outcome.tokens = outcome.usage.completion_tokens.unwrap_or(0);
        outcome
    }

    /// Sends the request and waits for the response's headers, which go into `outcome`.
    pub(super) async fn begin(&mut self, call: Call, outcome: &mut Outcome) -> Result<Incoming> {
        let continued = Arc::new(Mutex::new(None));
        let version = call.version;
        let request = self.request(call, &continued)?;
        self.connect(version).await?;
        let response = self.open.as_mut().context("not connected")?.sender.send(request).await?;
        outcome.continued = continued.lock().unwrap_or_else(PoisonError::into_inner).take() == Some(Gate::Opened);
        outcome.status = Some(response.status().as_u16());
        for (name, value) in response.headers() {
            outcome.headers.insert(name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned());
        }
        Ok(response.into_body())
    }

    fn request(&self, call: Call, continued: &Arc<Mutex<Option<Gate>>>) -> Result<Request<Paced>> {
        let uri: Uri = match call.version {
            Version::Http1 => call.path.parse()?,
            Version::Http2 => format!("http://{}{}", self.target, call.path).parse()?,
        };
        let mut request = Request::builder().method(call.method).uri(uri);
        if call.version == Version::Http1 {
            request = request.header(header::HOST, self.target.to_string());
        }
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        let pieces = call.pieces.cut(&call.body);
        let mut body = match call.framing {
            Framing::Length => Paced::sized(pieces),
            Framing::Chunked => Paced::open_ended(pieces),
        };
        body = body.pause(call.pause);
        if call.trailers {
            let mut trailers = HeaderMap::new();
            trailers.insert(TRAILER, header::HeaderValue::from_static("1"));
            request = request.header(header::TRAILER, TRAILER);
            body = body.trailers(trailers);
        }
        if call.expect {
            request = request.header(header::EXPECT, "100-continue");
        }
        if !call.expect || call.version == Version::Http2 {
            return Ok(request.body(body)?);
        }
        let (open, gate) = oneshot::channel();
        *continued.lock().unwrap_or_else(PoisonError::into_inner) = Some(Gate::Shut(open));
        let mut request = request.body(body.after(gate))?;
        let continued = Arc::clone(continued);
        ext::on_informational(&mut request, move |response| {
            let mut gate = continued.lock().unwrap_or_else(PoisonError::into_inner);
            if response.status() == hyper::StatusCode::CONTINUE
                && let Some(Gate::Shut(open)) = gate.replace(Gate::Opened)
            {
                let _ = open.send(());
            }
        });
        Ok(request)
    }
}

/// What holds a body back until the 100 has come.
enum Gate {
    Shut(oneshot::Sender<()>),
    Opened,
}

impl PartialEq for Gate {
    fn eq(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Opened, Self::Opened))
    }
}

/// A response whose headers have come.
pub(super) struct Answer {
    pub(super) body: Incoming,
    pub(super) start: Instant,
}

impl Answer {
    /// Reads the body to its end or, with `limit`, until so many chunks have come, which counts as a cut.
    pub(super) async fn read(&mut self, limit: Option<usize>, outcome: &mut Outcome) -> Result<()> {
        let mut collected = BytesMut::from(std::mem::take(&mut outcome.body).as_ref());
        let ended = loop {
            if limit.is_some_and(|limit| outcome.chunks >= limit) {
                outcome.cut = true;
                break Ok(());
            }
            match self.body.frame().await {
                None => break Ok(()),
                Some(Err(error)) => break Err(error.into()),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        let now = self.start.elapsed();
                        outcome.ttft.get_or_insert(now);
                        outcome.chunk_times.push(now);
                        outcome.chunks += 1;
                        collected.extend_from_slice(data);
                    }
                }
            }
        };
        outcome.body = collected.freeze();
        ended
    }
}
