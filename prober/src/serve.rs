//! The connections of the REST API: TLS where it is configured, and bounds on how many there are and how long each may take
//! over what it says and hears. Whoever is slow holds one of the connections for so long, and nothing else.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

use crate::tls::{Terminator, accept};

/// Bounds of connections.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// At once; more wait to be accepted.
    pub connections: usize,
    /// From connecting, or from the answer before, to the end of a request's headers.
    pub headers: Duration,
    /// So long a client may not take in a single byte of its answer.
    pub write: Duration,
    /// The largest request line and headers, in bytes.
    pub header_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            connections: 512,
            headers: Duration::from_secs(30),
            write: Duration::from_secs(30),
            header_bytes: 32 << 10,
        }
    }
}

/// Serves until `shutdown`, then until requests under way are answered.
pub async fn run(
    listener: TcpListener,
    router: Router,
    tls: Option<Arc<Terminator>>,
    bounds: Bounds,
    shutdown: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(bounds.connections));
    let graceful = GracefulShutdown::new();
    let accepting = async {
        while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
            let (stream, peer) = accept(&listener).await;
            let (router, tls, watcher) = (router.clone(), tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                let _slot = slot;
                match tls {
                    None => connection(stream, router, bounds, watcher).await,
                    Some(tls) => {
                        if let Some(stream) = tls.secure(stream, peer).await {
                            connection(stream, router, bounds, watcher).await;
                        }
                    }
                }
            });
        }
    };
    shutdown.run_until_cancelled(accepting).await;
    drop(listener);
    graceful.shutdown().await;
}

async fn connection<S>(stream: S, router: Router, bounds: Bounds, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(bounds.write));
    let io: TokioIo<Pin<Box<TimeoutStream<S>>>> = TokioIo::new(Box::pin(stream));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.headers)
        .max_header_size(bounds.header_bytes)
        .serve_connection(io, TowerToHyperService::new(router));
    // A client that has gone, or took too long, is no fault of ours.
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection to the API has ended");
    }
}
