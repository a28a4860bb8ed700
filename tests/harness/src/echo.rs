//! The smallest upstream: reads the request's body, answers at once with a fixed completion, or with a stream of as many
//! chunks as the request's `x-echo-chunks` says, each written by itself.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::Result;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::paced::Paced;

/// The request header that asks for a stream of so many chunks.
pub const CHUNKS_HEADER: &str = "x-echo-chunks";
const CHUNK: &[u8] = b"data: {\"id\":\"echo\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"echo\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" ton\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const END: &[u8] = b"data: {\"id\":\"echo\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"echo\",\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":100,\"total_tokens\":101}}\n\ndata: [DONE]\n\n";
const ANSWER: &str = r#"{"id":"echo","object":"chat.completion","created":0,"model":"echo","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

/// A running echo server; dropped, it stops.
#[derive(Debug)]
pub struct Echo {
    addr: SocketAddr,
    _stop: DropGuard,
}

impl Echo {
    /// Starts listening on a port of every loopback address, so that one server can stand for several endpoints
    /// (127.0.0.1, 127.0.0.2, ...).
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).await?;
        let addr = listener.local_addr()?;
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, stop.clone()));
        Ok(Self { addr, _stop: stop.drop_guard() })
    }

    /// The nth address of the server, from 1.
    #[must_use]
    pub fn addr(&self, nth: u16) -> SocketAddr {
        let [high, low] = nth.to_be_bytes();
        SocketAddr::from(([127, 0, high, low], self.addr.port()))
    }
}

async fn serve(listener: TcpListener, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => return,
            },
        };
        // Ends with its connection; what is left goes down with the set.
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let serving =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            // A client that goes away is no event here.
            let _ = serving.await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Paced>, Infallible> {
    let chunks = request.headers().get(CHUNKS_HEADER).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut body = request.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    let (body, content_type) = match chunks {
        None => (Paced::sized(vec![Bytes::from_static(ANSWER.as_bytes())]), "application/json"),
        Some(count) => {
            let mut pieces = vec![Bytes::from_static(CHUNK); count];
            pieces.push(Bytes::from_static(END));
            (Paced::open_ended(pieces), "text/event-stream")
        }
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    Ok(response)
}
