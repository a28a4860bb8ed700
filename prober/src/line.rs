//! A client's connection, with TLS where it is asked for: to engines, and of the command line to a prober.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::{Connected, Connection};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A connection.
#[derive(Debug)]
pub enum Line {
    /// As it is.
    Plain(TcpStream),
    /// With TLS.
    Secured(Box<TlsStream<TcpStream>>),
}

impl Line {
    /// Connects within `timeout`; `tls`: the name that the certificate must have, and who must have signed it.
    ///
    /// # Errors
    /// When it cannot.
    pub async fn connect(
        to: impl ToSocketAddrs,
        tls: Option<(&str, &Arc<ClientConfig>)>,
        timeout: Duration,
    ) -> io::Result<Self> {
        let connect = async {
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            let Some((name, config)) = tls else { return Ok(Line::Plain(stream)) };
            let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
            let secured = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
            Ok(Line::Secured(Box::new(secured)))
        };
        let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "connecting took too long"));
        tokio::time::timeout(timeout, connect).await.unwrap_or_else(late)
    }
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
