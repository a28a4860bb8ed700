//! An upstream that answers what it is told to, cut as it is told to, and remembers what it was asked.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::paced::{Paced, Pieces};

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// `content-type`.
    pub content_type: String,
    /// More headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
    /// How the body is cut; each piece is flushed before the next.
    pub pieces: Pieces,
}

impl Reply {
    /// A JSON answer.
    #[must_use]
    pub fn json(body: impl Into<Bytes>) -> Self {
        let (content_type, headers) = ("application/json".into(), Vec::new());
        Self { status: 200, content_type, headers, body: body.into(), pieces: Pieces::Whole }
    }

    /// A stream of events.
    #[must_use]
    pub fn events(body: impl Into<Bytes>, pieces: Pieces) -> Self {
        Self { content_type: "text/event-stream; charset=utf-8".into(), pieces, ..Self::json(body) }
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: BTreeMap<String, String>,
    /// The whole body.
    pub body: Bytes,
    /// Whether trailers came after it.
    pub trailers: bool,
}

impl Seen {
    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

#[derive(Debug)]
struct State {
    reply: Reply,
    seen: Vec<Seen>,
}

/// A running upstream; dropped, it stops.
#[derive(Debug)]
pub struct Upstream {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
    _stop: DropGuard,
}

impl Upstream {
    /// Starts listening.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(reply: Reply) -> Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let stop = CancellationToken::new();
        let state = Arc::new(Mutex::new(State { reply, seen: Vec::new() }));
        tokio::spawn(serve(listener, Arc::clone(&state), stop.clone()));
        Ok(Self { addr, state, _stop: stop.drop_guard() })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Answers so from now on.
    pub fn set(&self, reply: Reply) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).reply = reply;
    }

    /// What came since this was last asked.
    #[must_use]
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).seen)
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => return,
            },
        };
        while connections.try_join_next().is_some() {}
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let service = service_fn(|request| answer(Arc::clone(&state), request));
            // A client that goes away is no event here.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Result<Response<Paced>, Infallible> {
    let (head, body) = request.into_parts();
    let (trailers, body) = match body.collect().await {
        Ok(collected) => (collected.trailers().is_some(), collected.to_bytes()),
        Err(_) => (false, Bytes::new()),
    };
    let seen = Seen {
        path: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers: readable(&head.headers),
        body,
        trailers,
    };
    let reply = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.seen.push(seen);
        state.reply.clone()
    };
    let pieces = reply.pieces.cut(&reply.body);
    let body = if reply.pieces == Pieces::Whole { Paced::sized(pieces) } else { Paced::open_ended(pieces) };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    if let Ok(value) = HeaderValue::from_str(&reply.content_type) {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    for (name, value) in &reply.headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(*name, value);
        }
    }
    Ok(response)
}

fn readable(headers: &HeaderMap) -> BTreeMap<String, String> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}
