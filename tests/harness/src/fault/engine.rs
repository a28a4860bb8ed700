//! A simulated engine in a process of its own: killing it is what killing a real one is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine_sim::model::Profile;
use engine_sim::server::Fault;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::port::ReservedPort;
use crate::child::ManagedChild;
use crate::eventually;

const START_DEADLINE: Duration = Duration::from_secs(20);
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// A frozen engine does not answer, and is not waited for.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(2);

/// What to start.
#[derive(Debug, Clone)]
pub struct EngineSpec {
    /// Value of `x-engine-id`.
    pub name: String,
    /// Name of the served model.
    pub model: String,
    /// The machine.
    pub profile: Profile,
}

/// A running engine, or one that has been killed and may come back on the same port.
#[derive(Debug)]
pub struct EngineProcess {
    spec: EngineSpec,
    program: PathBuf,
    port: ReservedPort,
    child: ManagedChild,
    control: reqwest::Client,
    dir: TempDir,
}

impl EngineProcess {
    /// Starts one. `program` takes `engine` and the options of `engine-sim`, as `weighbridge-bench` does.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen in time.
    pub async fn start(program: &Path, spec: EngineSpec) -> Result<Self> {
        let dir = TempDir::with_prefix("weighbridge-engine-")?;
        let port = ReservedPort::any()?;
        std::fs::write(dir.path().join("profile.json"), serde_json::to_vec(&spec.profile)?)?;
        let child = spawn(program, &spec, port.address(), dir.path())?;
        let control = reqwest::Client::builder().timeout(CONTROL_TIMEOUT).build()?;
        let mut engine = Self { spec, program: program.to_owned(), port, child, control, dir };
        engine.serves().await?;
        Ok(engine)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Value of `x-engine-id`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Kills it (SIGKILL); its connections are reset, and connecting is refused.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill().await
    }

    /// Stops it as an operator would (SIGTERM): requests that run have a second to end.
    ///
    /// # Errors
    /// When it does not stop in time.
    pub async fn terminate(&mut self) -> Result<()> {
        self.child.terminate(STOP_DEADLINE).await.map(|_| ())
    }

    /// Starts it again where it was; it has forgotten everything, faults included.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn restart(&mut self) -> Result<()> {
        self.child = spawn(&self.program, &self.spec, self.port.address(), self.dir.path())?;
        self.serves().await
    }

    async fn serves(&mut self) -> Result<()> {
        let Self { child, control, port, .. } = self;
        let url = format!("http://{}/health", port.address());
        eventually("the engine serves", START_DEADLINE, async || {
            child.check_running()?;
            ensure!(control.get(&url).send().await?.status().is_success(), "{url}");
            Ok(())
        })
        .await
    }

    /// Freezes it (SIGSTOP): the kernel still accepts connections, and nobody answers.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn freeze(&self) -> Result<()> {
        self.child.pause().await
    }

    /// Ends [`Self::freeze`].
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn thaw(&self) -> Result<()> {
        self.child.resume().await
    }

    /// Puts a fault in force, instead of the one before.
    ///
    /// # Errors
    /// When the engine does not take it.
    pub async fn set_fault(&self, fault: &Fault) -> Result<()> {
        self.post("/sim/fault", &serde_json::to_value(fault)?).await
    }

    /// `in_flight_max` and `running_max` start again from what is there now.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub async fn reset_max(&self) -> Result<()> {
        self.post("/sim/reset_max", &Value::Null).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<()> {
        let url = format!("http://{}{path}", self.address());
        let answer = self.control.post(&url).json(body).send().await?;
        let status = answer.status();
        ensure!(status.is_success(), "{url}: {status} {}", answer.text().await?);
        Ok(())
    }

    /// Counters and gauges, as [`engine_sim::server::State`] has them.
    ///
    /// # Errors
    /// When the engine does not answer.
    pub async fn state(&self) -> Result<Value> {
        let url = format!("http://{}/sim/state", self.address());
        let text = self.control.get(&url).send().await?.text().await?;
        serde_json::from_str(&text).with_context(|| url)
    }
}

fn spawn(program: &Path, spec: &EngineSpec, listen: SocketAddr, dir: &Path) -> Result<ManagedChild> {
    let mut command = Command::new(program);
    command.args(["engine", "--warm", "--name", &spec.name, "--model", &spec.model, "--listen", &listen.to_string()]);
    command.arg("--profile").arg(dir.join("profile.json"));
    ManagedChild::spawn(&spec.name, command, dir)
}
