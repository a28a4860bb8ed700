//! One keep-alive connection.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::call::Call;
use super::report::{Outcome, completion_tokens};

/// A connection that is opened when needed and opened anew after it was closed by either side.
pub(super) struct Connection {
    target: SocketAddr,
    open: Option<Open>,
}

struct Open {
    sender: SendRequest<Full<Bytes>>,
    /// Dropped, the socket closes at once: this is how a client cuts.
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    pub(super) fn new(target: SocketAddr) -> Self {
        Self { target, open: None }
    }

    pub(super) async fn connect(&mut self) -> Result<&mut SendRequest<Full<Bytes>>> {
        let usable = match &mut self.open {
            Some(open) => open.sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            self.open = None;
            let stream = TcpStream::connect(self.target).await.context("connect")?;
            stream.set_nodelay(true)?;
            let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
            let driver = tokio::spawn(async move {
                // How the connection ends shows in the request that it carried.
                let _ = driver.await;
            });
            self.open = Some(Open { sender, _driver: AbortOnDropHandle::new(driver) });
        }
        Ok(&mut self.open.as_mut().context("not connected")?.sender)
    }

    pub(super) async fn send(&mut self, call: Call, nth: usize) -> Outcome {
        let mut outcome = Outcome { nth, ..Outcome::default() };
        let timeout = call.timeout;
        let start = Instant::now();
        let ended = tokio::time::timeout(timeout, self.exchange(call, start, &mut outcome)).await;
        outcome.duration = start.elapsed();
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => outcome.error = Some(format!("{error:#}")),
            Err(_) => outcome.error = Some(format!("not complete after {timeout:?}")),
        }
        if outcome.cut || outcome.error.is_some() {
            self.open = None;
        }
        outcome.tokens = completion_tokens(&outcome.body);
        outcome
    }

    async fn exchange(&mut self, call: Call, start: Instant, outcome: &mut Outcome) -> Result<()> {
        let uri: Uri = call.path.parse()?;
        let mut request = Request::builder().method(call.method).uri(uri).header(header::HOST, self.target.to_string());
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(call.body))?;
        let response = self.connect().await?.send_request(request).await?;
        outcome.status = Some(response.status().as_u16());
        for (name, value) in response.headers() {
            outcome.headers.insert(name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned());
        }
        let mut body = response.into_body();
        let mut collected = BytesMut::new();
        let mut chunks = 0;
        let ended = loop {
            if call.cut_after_chunks.is_some_and(|limit| chunks >= limit) {
                outcome.cut = true;
                break Ok(());
            }
            match body.frame().await {
                None => break Ok(()),
                Some(Err(error)) => break Err(error.into()),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        outcome.ttft.get_or_insert_with(|| start.elapsed());
                        chunks += 1;
                        collected.extend_from_slice(data);
                    }
                }
            }
        };
        outcome.body = collected.freeze();
        ended
    }
}
