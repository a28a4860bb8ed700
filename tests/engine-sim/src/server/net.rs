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
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Duration, sleep};

use super::body::ResetFlag;
use super::core::Core;
use super::routes;

const BACKLOG: u32 = 1024;

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
    _stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Listening {
    pub(crate) fn start(core: Arc<Core>, listener: TcpListener) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { _stop: stop, task: tokio::spawn(serve(core, listener, stopped)) }
    }

    /// Closes everything at once and waits until it is closed.
    pub(crate) async fn stop(self) {
        let Self { _stop, task } = self;
        drop(_stop);
        // An error means that the task was gone already.
        let _ = task.await;
    }
}

async fn serve(core: Arc<Core>, listener: TcpListener, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(core.clone(), stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    sleep(Duration::from_millis(10)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn connection(core: Arc<Core>, stream: TcpStream) {
    // Without it, small events would wait for acknowledgements; an error only costs time.
    let _ = stream.set_nodelay(true);
    let reset = ResetFlag::default();
    let flag = reset.clone();
    let service = service_fn(move |request| Box::pin(routes::answer(core.clone(), flag.clone(), request)));
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let result = poll_fn(|cx| connection.poll_without_shutdown(cx)).await;
    let mut stream = connection.into_parts().io.into_inner();
    // Errors below mean that the peer was faster.
    if reset.is_set() {
        let _ = stream.set_zero_linger();
    } else if result.is_ok() {
        let _ = stream.shutdown().await;
    }
}
