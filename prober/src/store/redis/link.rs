//! The connection to Redis, and when it is given up for a new one.
//!
//! The connection manager of the client connects again when a connection has broken. Two failures leave it whole and of no
//! use, and only a new one, which looks the name up again, helps:
//! - an answer that does not come: the other end is gone without a word (a machine that lost power, a proxy that hangs);
//! - a server that became a replica and writes nothing any more.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, ErrorKind, IntoConnectionInfo, RedisError, RedisResult, ServerErrorKind};

/// How long one command may take.
const ANSWER: Duration = Duration::from_secs(1);
/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(1);
/// After how long without a sign of the other end the kernel gives a connection up.
const SILENCE: Duration = Duration::from_secs(3);

/// The connection in force.
pub(super) struct Link {
    client: Client,
    /// Which one it is, so that of several commands that fail together only the first replaces it.
    current: Mutex<(u64, ConnectionManager)>,
}

impl Link {
    /// Nothing is sent yet: it connects at the first command.
    pub(super) fn new(url: &str) -> RedisResult<Self> {
        let alive = TcpKeepalive::new().with_time(SILENCE / 3).with_interval(SILENCE / 3);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(alive);
        // Elsewhere the keepalive has to do.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(SILENCE);
        let client = Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
        let first = connect(&client)?;
        Ok(Link { client, current: Mutex::new((0, first)) })
    }

    /// The connection in force, and which one that is.
    pub(super) fn current(&self) -> (u64, ConnectionManager) {
        self.lock().clone()
    }

    /// A command over this connection has failed.
    pub(super) fn failed(&self, nth: u64, error: &RedisError) {
        let mut current = self.lock();
        if !is_of_no_use(error) || current.0 != nth {
            return;
        }
        // The old one closes when the last command on it has ended.
        match connect(&self.client) {
            Ok(new) => *current = (nth + 1, new),
            Err(error) => tracing::error!(%error, "no new connection to Redis"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, ConnectionManager)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(client: &Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(ANSWER));
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// Whether another connection may do better, though this one has not broken.
fn is_of_no_use(error: &RedisError) -> bool {
    error.is_timeout()
        || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
        // Before Redis 7 the answer of a script has it somewhere inside.
        || error.to_string().contains("READONLY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_and_a_replica_are_left_and_a_wrong_password_is_not() {
        let timeout: RedisError = std::io::Error::from(std::io::ErrorKind::TimedOut).into();
        let said = |kind, words: &str| RedisError::from((kind, "said", words.to_owned()));
        assert!(is_of_no_use(&timeout));
        assert!(is_of_no_use(&said(ErrorKind::Server(ServerErrorKind::ReadOnly), "")));
        assert!(is_of_no_use(&said(
            ErrorKind::Server(ServerErrorKind::ResponseError),
            "@user_script: 5: -READONLY You"
        )));
        assert!(!is_of_no_use(&said(ErrorKind::AuthenticationFailed, "")));
    }
}
