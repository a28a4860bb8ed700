//! A port that stays ours while nobody listens on it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A loopback port for a process that will be killed and started again. Meanwhile connecting is refused, and no outgoing
/// connection of anybody else is given the port: a bound socket that does not listen holds it. Everything that we start
/// sets `SO_REUSEADDR`, and so may listen beside it.
#[derive(Debug)]
pub struct ReservedPort {
    address: SocketAddr,
    _held: TcpSocket,
}

impl ReservedPort {
    /// Takes a free one.
    ///
    /// # Errors
    /// When there is none.
    pub fn any() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        Ok(Self { address: socket.local_addr()?, _held: socket })
    }

    /// Where to listen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
