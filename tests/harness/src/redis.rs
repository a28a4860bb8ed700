//! A real `redis-server` on a free loopback port, which dies with its handle.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::child::ManagedChild;
use crate::{artifacts, eventually};

const DEADLINE: Duration = Duration::from_secs(20);
/// Between choosing a free port and listening there somebody else may take it.
const TRIES: usize = 5;

/// A running Redis.
#[derive(Debug)]
pub struct RedisServer {
    child: ManagedChild,
    address: SocketAddr,
    password: Option<String>,
    /// Whether it finds again what it had when it is started again.
    durable: bool,
    dir: TempDir,
}

impl RedisServer {
    /// Starts one that writes everything to disk.
    ///
    /// # Errors
    /// When there is no redis-server, or it does not come up.
    pub async fn start() -> Result<Self> {
        Self::start_with(true, None).await
    }

    /// Starts one that forgets everything when it stops.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_forgetful() -> Result<Self> {
        Self::start_with(false, None).await
    }

    /// Starts one that wants this password.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_guarded(password: &str) -> Result<Self> {
        Self::start_with(true, Some(password)).await
    }

    async fn start_with(durable: bool, password: Option<&str>) -> Result<Self> {
        let dir = TempDir::with_prefix("weighbridge-redis-")?;
        let mut last = None;
        for _ in 0..TRIES {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
            let mut child = spawn(address, durable, password, dir.path())?;
            match answers(&mut child, address).await {
                Ok(()) => return Ok(Self { child, address, password: password.map(str::to_owned), durable, dir }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no try")?)
    }

    /// Its URL, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}{}/0", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills it (SIGKILL).
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill().await
    }

    /// Starts it again where it was.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn restart(&mut self) -> Result<()> {
        self.child = spawn(self.address, self.durable, self.password.as_deref(), self.dir.path())?;
        answers(&mut self.child, self.address).await
    }

    /// Sends a command (words without spaces) and returns the answer as it comes, at most 64 KB.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn command(&self, words: &str) -> Result<String> {
        let before = self.password.as_ref().map(|password| format!("AUTH {password}\r\n")).unwrap_or_default();
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(format!("{before}{words}\r\nQUIT\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(64 << 10).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

fn spawn(address: SocketAddr, durable: bool, password: Option<&str>, dir: &Path) -> Result<ManagedChild> {
    let mut command = Command::new(artifacts::redis()?);
    command.arg("--port").arg(address.port().to_string()).args(["--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", if durable { "yes" } else { "no" }, "--appendfsync", "always", "--dir"]).arg(dir);
    if let Some(password) = password {
        command.args(["--requirepass", password]);
    }
    ManagedChild::spawn("redis", command, dir)
}

async fn answers(child: &mut ManagedChild, address: SocketAddr) -> Result<()> {
    eventually("Redis answers", DEADLINE, async || {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await?;
        // One with a password says so, once it has loaded what it had.
        ensure!(&answer == b"+PONG" || &answer == b"-NOAU", "{}", String::from_utf8_lossy(&answer));
        Ok(())
    })
    .await?;
    // Somebody else's would answer as well.
    child.check_running()
}
