//! The prober as a child process, and a client for its REST API.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::Value;
use tokio::process::Command;

use crate::child::ManagedChild;
use crate::events::Events;
use crate::{artifacts, eventually};

const START_DEADLINE: Duration = Duration::from_secs(20);
const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// A running prober.
#[derive(Debug)]
pub struct ProberProcess {
    child: ManagedChild,
    api: SocketAddr,
    xds: SocketAddr,
    client: reqwest::Client,
    token: Option<String>,
}

impl ProberProcess {
    /// Writes the configuration (YAML, or JSON, which is YAML too) into `dir`, starts the prober there, and waits until
    /// it says where it listens. Relative paths in the configuration are relative to `dir`, so a prober that is started
    /// again with the same `dir` finds its store.
    ///
    /// # Errors
    /// When it cannot be started, ends, or says nothing in time; with its log.
    pub async fn start(config: &str, dir: &Path) -> Result<Self> {
        let path = dir.join("prober.yaml");
        std::fs::write(&path, config)?;
        Self::start_file(&path, dir, dir).await
    }

    /// Starts the prober with a configuration file as it is, in the working directory `cwd`, logs in `logs`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_file(config: &Path, cwd: &Path, logs: &Path) -> Result<Self> {
        let mut command = Command::new(artifacts::prober()?);
        command.current_dir(cwd).arg("--config").arg(config);
        Self::start_command(command, logs).await
    }

    /// Starts the prober where no file can grow beyond so many blocks of 512 bytes, as on a disk that is full; until
    /// [`Self::make_room`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_cramped(config: &str, dir: &Path, blocks: u64) -> Result<Self> {
        Self::start_under(config, dir, &blocks.to_string()).await
    }

    /// Starts the prober so that [`Self::confine`] can fill its disk later.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_confined(config: &str, dir: &Path) -> Result<Self> {
        Self::start_under(config, dir, "unlimited").await
    }

    async fn start_under(config: &str, dir: &Path, blocks: &str) -> Result<Self> {
        std::fs::write(dir.join("prober.yaml"), config)?;
        let mut command = Command::new("sh");
        // Without the signal that ends a process which writes too much, writing fails.
        command.args(["-c", "trap '' XFSZ; ulimit -S -f \"$1\"; exec \"$0\" --config prober.yaml"]);
        command.arg(artifacts::prober()?).arg(blocks).current_dir(dir);
        Self::start_command(command, dir).await
    }

    /// Ends what [`Self::start_cramped`] or [`Self::confine`] began.
    ///
    /// # Errors
    /// When the limit cannot be lifted.
    pub async fn make_room(&self) -> Result<()> {
        self.limit_files("unlimited").await
    }

    /// From now on nothing can be written beyond so many bytes of a file, as on a disk that is full; until
    /// [`Self::make_room`]. Only of a prober that [`Self::start_confined`] started: the signal that comes with it would
    /// end any other.
    ///
    /// # Errors
    /// When the limit cannot be set.
    pub async fn confine(&self, bytes: u64) -> Result<()> {
        self.limit_files(&bytes.to_string()).await
    }

    async fn limit_files(&self, limit: &str) -> Result<()> {
        let pid = self.child.pid().to_string();
        let set = Command::new("prlimit").args([&format!("--fsize={limit}:"), "--pid", &pid]).status().await?;
        ensure!(set.success(), "prlimit: {set}");
        Ok(())
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn rss_bytes(&self) -> Result<u64> {
        self.child.rss_bytes()
    }

    async fn start_command(mut command: Command, logs: &Path) -> Result<Self> {
        command.env("NO_COLOR", "1");
        // What an earlier run in this directory wrote must not be taken for this one's.
        for old in ["prober.out", "prober.err"] {
            let _ = std::fs::remove_file(logs.join(old));
        }
        let mut child = ManagedChild::spawn("prober", command, logs)?;
        let start = std::time::Instant::now();
        let (api, xds) = loop {
            if let Some(found) = listening(&child.stdout()).or_else(|| listening(&child.stderr())) {
                break found;
            }
            child.check_running()?;
            ensure!(start.elapsed() < START_DEADLINE, "the prober does not listen\n{}", child.log_tail());
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let client = reqwest::Client::builder().timeout(Duration::from_secs(60)).build()?;
        Ok(Self { child, api, xds, client, token: None })
    }

    /// Sends this bearer token from now on.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Where the REST API listens.
    #[must_use]
    pub fn api(&self) -> SocketAddr {
        self.api
    }

    /// Where xDS listens.
    #[must_use]
    pub fn xds(&self) -> SocketAddr {
        self.xds
    }

    /// A request to the REST API: status and JSON body (null when it is none).
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let mut request = self.client.request(method, format!("http://{}{path}", self.api));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.with_context(|| format!("the prober's {path}"))?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    /// The fleet as it changes.
    ///
    /// # Errors
    /// No answer, or no stream.
    pub async fn events(&self) -> Result<Events> {
        // Without the others' timeout: a stream goes on.
        let mut request = reqwest::Client::new().get(format!("http://{}/v1/events", self.api));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        Events::open(request).await?.map_err(|status| anyhow::anyhow!("/v1/events: {status}"))
    }

    /// GET that must succeed.
    ///
    /// # Errors
    /// No answer, or a status other than 2xx.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.expect(Method::GET, path, None).await
    }

    /// PUT that must succeed.
    ///
    /// # Errors
    /// No answer, or a status other than 2xx.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value> {
        self.expect(Method::PUT, path, Some(body)).await
    }

    /// POST that must succeed.
    ///
    /// # Errors
    /// No answer, or a status other than 2xx.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.expect(Method::POST, path, Some(body)).await
    }

    /// DELETE that must succeed.
    ///
    /// # Errors
    /// No answer, or a status other than 2xx.
    pub async fn delete(&self, path: &str) -> Result<Value> {
        self.expect(Method::DELETE, path, None).await
    }

    async fn expect(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let (status, answer) = self.call(method.clone(), path, body).await?;
        ensure!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        Ok(answer)
    }

    /// One endpoint as `GET /v1/endpoints/{id}` shows it.
    ///
    /// # Errors
    /// No answer, or no such endpoint.
    pub async fn endpoint(&self, id: &str) -> Result<Value> {
        self.get(&format!("/v1/endpoints/{id}")).await
    }

    /// Waits for `/readyz`: every connected Envoy, at least one, has the current snapshot, and every endpoint is measured.
    ///
    /// # Errors
    /// When it is not so, after the deadline.
    pub async fn ready(&self, deadline: Duration) -> Result<()> {
        eventually("the prober is ready", deadline, async || {
            let (status, answer) = self.call(Method::GET, "/readyz", None).await?;
            ensure!(status == 200, "{status} {answer}");
            Ok(())
        })
        .await
    }

    /// Waits until every connected Envoy, at least one, has applied what the prober last said.
    ///
    /// # Errors
    /// When one has not, after the deadline.
    pub async fn applied(&self, deadline: Duration) -> Result<()> {
        eventually("every Envoy has the snapshot in force", deadline, async || {
            let answer = self.get("/v1/envoys").await?;
            let envoys = answer["envoys"].as_array().context("no list")?;
            let mut connected = envoys.iter().filter(|envoy| envoy["connected"] == true).peekable();
            ensure!(connected.peek().is_some(), "nobody is connected: {answer}");
            ensure!(connected.all(|envoy| envoy["applied_version"] == answer["version"]), "{answer}");
            Ok(())
        })
        .await
    }

    /// Stops it as an operator would (SIGTERM).
    ///
    /// # Errors
    /// When it does not stop in time, or ends with an error.
    pub async fn terminate(mut self) -> Result<()> {
        let status = self.child.terminate(STOP_DEADLINE).await?;
        ensure!(status.success(), "the prober ended with {status}\n{}", self.child.log_tail());
        Ok(())
    }

    /// Kills it (SIGKILL).
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await
    }

    /// The process.
    pub fn process(&mut self) -> &mut ManagedChild {
        &mut self.child
    }
}

/// Reads `listening api=HOST:PORT xds=HOST:PORT` out of a log.
fn listening(log: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line = log.lines().find(|line| line.contains("listening") && line.contains("api=") && line.contains("xds="))?;
    let field = |name: &str| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(name))?;
        word.trim_matches(['"', ',']).parse().ok()
    };
    Some((field("api=")?, field("xds=")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_are_found_in_the_log() {
        let log = "INFO starting\n2026-01-01 INFO listening api=127.0.0.1:7070 xds=127.0.0.1:7071\nmore";
        assert_eq!(listening(log), Some(("127.0.0.1:7070".parse().unwrap(), "127.0.0.1:7071".parse().unwrap())));
        assert_eq!(listening("listening api=127.0.0.1:7070"), None);
    }
}
