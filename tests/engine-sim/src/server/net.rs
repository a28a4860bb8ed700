//! Listener and connections.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Duration, sleep, timeout};

use super::body::ResetFlag;
use super::core::Core;
use super::fault::Refusal;
use super::routes;

const BACKLOG: u32 = 1024;
/// Before trying again what failed for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// A port that stays ours while nobody listens on it: connecting is refused, and no one else can take it.
#[derive(Debug)]
pub(crate) struct Port {
    addr: SocketAddr,
    _reserved: TcpSocket,
}

impl Port {
    pub(crate) fn reserve(addr: SocketAddr) -> io::Result<Self> {
        let socket = bind(addr)?;
        Ok(Self { addr: socket.local_addr()?, _reserved: socket })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        bind(self.addr)?.listen(BACKLOG)
    }
}

fn bind(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

/// A listener with its connections; dropped, all of them close.
#[derive(Debug)]
pub(crate) struct Listening {
    stop: oneshot::Sender<Duration>,
    task: JoinHandle<()>,
}

impl Listening {
    pub(crate) fn start(core: Arc<Core>, listener: TcpListener) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(serve(core, listener, stopped)) }
    }

    /// Closes everything at once and waits until it is closed.
    pub(crate) async fn stop(self) {
        self.finish(Duration::ZERO).await;
    }

    /// Closes the listener and idle connections at once, the others when their request is answered or `grace` is over.
    pub(crate) async fn finish(self, grace: Duration) {
        let Self { stop, task } = self;
        // Errors mean that the task was gone already.
        let _ = stop.send(grace);
        let _ = task.await;
    }
}

async fn serve(core: Arc<Core>, listener: TcpListener, mut stopped: oneshot::Receiver<Duration>) {
    let addr = listener.local_addr();
    let mut listener = Some(listener);
    let mut refusal = core.refusal();
    refusal.mark_changed();
    let (closing, closed) = watch::channel(());
    let mut connections = JoinSet::new();
    let grace = loop {
        let refused = *refusal.borrow();
        tokio::select! {
            biased;
            // An error means that the handle was dropped.
            grace = &mut stopped => break grace.unwrap_or_default(),
            // An error cannot be: the core lives.
            _ = refusal.changed() => {
                if refusal.borrow_and_update().is_some() {
                    listener = None;
                }
            }
            () = Refusal::over(refused), if listener.is_none() => {
                listener = listen_again(&addr);
                if listener.is_none() {
                    sleep(PAUSE).await;
                }
            }
            accepted = accept(listener.as_ref()) => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(core.clone(), stream, closed.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    };
    drop(listener);
    drop(closing);
    // An error means that the time is up.
    let _ = timeout(grace, async { while connections.join_next().await.is_some() {} }).await;
    connections.shutdown().await;
}

/// The next connection; never, while there is no listener.
async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

fn listen_again(addr: &io::Result<SocketAddr>) -> Option<TcpListener> {
    let addr = addr.as_ref().ok()?;
    let listener = bind(*addr).and_then(|socket| socket.listen(BACKLOG));
    // The port is reserved, so only a lack of descriptors can be the reason.
    listener.inspect_err(|error| tracing::warn!(%error, %addr, "cannot listen again")).ok()
}

async fn connection(core: Arc<Core>, stream: TcpStream, mut closed: watch::Receiver<()>) {
    // Without it, small events would wait for acknowledgements; an error only costs time.
    let _ = stream.set_nodelay(true);
    let reset = ResetFlag::default();
    let flag = reset.clone();
    let service = service_fn(move |request| Box::pin(routes::answer(core.clone(), flag.clone(), request)));
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut done = poll_fn(|cx| connection.poll_without_shutdown(cx));
    let result = tokio::select! {
        result = &mut done => result,
        // The sender is dropped when the engine shuts down.
        _ = closed.changed() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    let mut stream = connection.into_parts().io.into_inner();
    // Errors below mean that the peer was faster.
    if reset.is_set() {
        let _ = stream.set_zero_linger();
    } else if result.is_ok() {
        let _ = stream.shutdown().await;
    }
}
