//! The process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::process::Command;

use crate::child::ManagedChild;
use crate::load::{self, Call};
use crate::{artifacts, eventually};

/// What the server calls its model.
pub const MODEL: &str = "random";

const START_DEADLINE: Duration = Duration::from_secs(60);

/// How it is started.
#[derive(Debug, Clone)]
pub struct LlamaOptions {
    /// A name for people.
    pub name: String,
    /// The GGUF file.
    pub model: PathBuf,
    /// Sequences that run together.
    pub slots: usize,
    /// Tokens that each of them may have.
    pub window: usize,
    /// Threads that compute.
    pub threads: usize,
    /// CPUs that it may use, as `taskset -c` takes them; all of them without.
    pub cpus: Option<String>,
    /// MiB of host memory for the prompts of slots that were given to somebody else; 0: they are lost.
    pub cache_mib: usize,
}

impl LlamaOptions {
    /// The program and its arguments.
    fn command(&self) -> Result<Command> {
        let python = artifacts::real("venv/bin/python")?;
        let mut command = match &self.cpus {
            None => Command::new(python),
            Some(cpus) => {
                let mut pinned = Command::new("taskset");
                pinned.args(["-c", cpus]).arg(python);
                pinned
            }
        };
        command.arg(artifacts::root().join("tests/harness/real/serve.py")).arg("--model").arg(&self.model);
        for (option, value) in [
            ("--parallel", self.slots),
            ("--window", self.window),
            ("--threads", self.threads),
            ("--cache-mib", self.cache_mib),
        ] {
            command.arg(option).arg(value.to_string());
        }
        command.args(["--alias", MODEL]);
        Ok(command)
    }
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct LlamaServer {
    name: String,
    address: SocketAddr,
    child: ManagedChild,
    _dir: TempDir,
}

impl LlamaServer {
    /// Starts it and waits until it is healthy.
    ///
    /// # Errors
    /// When it or the model is missing, or it does not become healthy in time; with its log.
    pub async fn start(options: &LlamaOptions) -> Result<Self> {
        let dir = TempDir::with_prefix("weighbridge-llama-")?;
        let mut child = ManagedChild::spawn("llama", options.command()?, dir.path())?;
        let address = eventually("llama.cpp is healthy", START_DEADLINE, async || {
            child.check_running()?;
            let address = listening(&child.stdout()).context("it does not listen yet")?;
            let health = load::send(address, Call::get("/health").timeout(Duration::from_secs(2))).await;
            ensure!(health.is_ok(), "/health: {:?} {:?}", health.status, health.error);
            Ok(address)
        })
        .await
        .map_err(|error| error.context(child.log_tail()))?;
        Ok(Self { name: options.name.clone(), address, child, _dir: dir })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// CPU time used so far by all threads, in seconds.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn cpu_seconds(&self) -> Result<f64> {
        crate::proc::cpu_seconds(self.child.pid())
    }

    /// One figure of its metrics page by its full name, such as `llamacpp:prompt_tokens_total`.
    ///
    /// # Errors
    /// When there is no page, or no such figure.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let page = load::send(self.address, Call::get("/metrics")).await;
        ensure!(page.is_ok(), "/metrics: {:?} {:?}", page.status, page.error);
        let text = String::from_utf8_lossy(&page.body);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
        value.ok_or_else(|| anyhow::anyhow!("no {name} among the metrics"))
    }

    /// Stops it as an operator would (SIGTERM).
    ///
    /// # Errors
    /// When it does not stop in time.
    pub async fn stop(mut self) -> Result<()> {
        self.child.terminate(Duration::from_secs(15)).await.map(|_| ())
    }
}

/// Reads `listening http://HOST:PORT` out of what it printed.
fn listening(out: &str) -> Option<SocketAddr> {
    out.lines().find_map(|line| line.strip_prefix("listening http://")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_among_what_the_server_says() {
        let out = "0.01 I srv init: listening on http://127.0.0.1:1\nlistening http://127.0.0.1:45511\n";
        assert_eq!(listening(out), Some("127.0.0.1:45511".parse().unwrap()));
        assert_eq!(
            listening("listening on http://127.0.0.1:1\nlistening http://127.0.0.1:4"),
            Some("127.0.0.1:4".parse().unwrap())
        );
        assert_eq!(listening(""), None);
    }
}
