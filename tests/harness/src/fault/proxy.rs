//! A TCP proxy whose wire can be cut, silenced, slowed and half closed.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

const BUFFER_BYTES: usize = 16 << 10;

/// The state of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wire {
    /// Everything passes.
    #[default]
    Open,
    /// Every connection is reset, new ones at once.
    Cut,
    /// Nothing passes, in either direction; what was sent meanwhile arrives when the wire is open again. Connecting still
    /// succeeds, since the kernel answers.
    Silent,
    /// Every piece takes so much longer, each way.
    Slow(Duration),
    /// Clients see the end of the stream, and what they send still arrives; new connections as well.
    HalfClosed,
}

/// A running proxy; dropped, it closes everything.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    wire: watch::Sender<Wire>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Starts one in front of `upstream`.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let wire = watch::Sender::new(Wire::Open);
        let task = tokio::spawn(serve(listener, upstream, wire.subscribe()));
        Ok(Self { address, wire, _task: AbortOnDropHandle::new(task) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the wire, for connections that are open, too.
    pub fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }
}

async fn serve(listener: TcpListener, upstream: SocketAddr, wire: watch::Receiver<Wire>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    connections.spawn(relay(client, upstream, wire.clone()));
                }
                Err(_) => return,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn relay(mut client: TcpStream, address: SocketAddr, wire: watch::Receiver<Wire>) {
    let mut cut = wire.clone();
    let mut upstream = tokio::select! {
        upstream = TcpStream::connect(address) => upstream.ok(),
        () = becomes(&mut cut, Wire::Cut) => None,
    };
    // Errors of these mean that the peer has gone: then there is nothing to reset or to delay.
    let _ = client.set_nodelay(true);
    let whole = match &mut upstream {
        None => false,
        Some(upstream) => {
            let _ = upstream.set_nodelay(true);
            let (mut from_client, mut to_client) = client.split();
            let (mut from_upstream, mut to_upstream) = upstream.split();
            let up = pump(&mut from_client, &mut to_upstream, wire.clone(), false);
            let down = pump(&mut from_upstream, &mut to_client, wire, true);
            tokio::select! {
                both = async { tokio::try_join!(up, down) } => both.is_ok(),
                () = becomes(&mut cut, Wire::Cut) => false,
            }
        }
    };
    // A side that was reset resets the other.
    if !whole {
        let _ = client.set_zero_linger();
        if let Some(upstream) = upstream {
            let _ = upstream.set_zero_linger();
        }
    }
}

/// Waits until the wire is so; an error would mean that the proxy is gone, and with it whoever waits.
async fn becomes(wire: &mut watch::Receiver<Wire>, wanted: Wire) {
    let _ = wire.wait_for(|wire| *wire == wanted).await;
}

/// One direction, until its end. `down` is the one that [`Wire::HalfClosed`] closes.
async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut wire: watch::Receiver<Wire>,
    down: bool,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = tokio::select! {
            count = from.read(&mut buffer) => count?,
            () = becomes(&mut wire, Wire::HalfClosed), if down => return to.shutdown().await,
        };
        let passes = wire.wait_for(|wire| *wire != Wire::Silent).await;
        let wire = passes.map(|wire| *wire).unwrap_or_default();
        if let Wire::Slow(delay) = wire {
            tokio::time::sleep(delay).await;
        }
        match count {
            0 => return to.shutdown().await,
            count => to.write_all(&buffer[..count]).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// An upstream that sends back what it gets.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn ping(stream: &mut TcpStream) -> io::Result<[u8; 4]> {
        stream.write_all(b"ping").await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn the_wire_does_what_it_says() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(&ping(&mut stream).await.unwrap(), b"ping");

        proxy.set(Wire::Slow(Duration::from_millis(20)));
        let start = Instant::now();
        assert_eq!(&ping(&mut stream).await.unwrap(), b"ping");
        assert!(start.elapsed() >= Duration::from_millis(40));

        proxy.set(Wire::Silent);
        let silent = tokio::time::timeout(Duration::from_millis(50), ping(&mut stream)).await;
        assert!(silent.is_err(), "{silent:?}");
        proxy.set(Wire::Open);
        let mut late = [0; 4];
        stream.read_exact(&mut late).await.unwrap();
        assert_eq!(&late, b"ping", "what was sent meanwhile arrives");

        proxy.set(Wire::HalfClosed);
        assert_eq!(stream.read(&mut late).await.unwrap(), 0, "the end of the stream");

        proxy.set(Wire::Open);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(&ping(&mut stream).await.unwrap(), b"ping");
        proxy.set(Wire::Cut);
        assert_eq!(stream.read(&mut late).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
