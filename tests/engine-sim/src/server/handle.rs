//! One running engine.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinHandle;

use super::config::EngineConfig;
use super::core::{Core, drive};
use super::fault::{Fault, FaultKind};
use super::net::{Listening, Port};
use super::state::{RequestRecord, State};

/// A running engine; dropped, it stops: listener and connections close, and nothing is left behind.
#[derive(Debug)]
pub struct EngineHandle {
    core: Arc<Core>,
    port: Port,
    listening: Mutex<Option<Listening>>,
    driver: JoinHandle<()>,
}

impl EngineHandle {
    /// Starts listening; needs a tokio runtime, on which everything runs.
    pub async fn start(config: EngineConfig) -> anyhow::Result<Self> {
        let listen = config.listen;
        let core = Arc::new(Core::new(config)?);
        let port = Port::reserve(listen).with_context(|| format!("cannot bind {listen}"))?;
        let listener = port.listen().with_context(|| format!("cannot listen on {}", port.addr()))?;
        let listening = Mutex::new(Some(Listening::start(core.clone(), listener)));
        let driver = tokio::spawn(drive(core.clone()));
        Ok(Self { core, port, listening, driver })
    }

    /// Where it listens (or would, when killed).
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// `http://` and the address.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Value of `x-engine-id`.
    pub fn name(&self) -> &str {
        &self.core.config.name
    }

    /// Counters and gauges.
    pub fn state(&self) -> State {
        self.core.state()
    }

    /// The last 1,000 requests that reached the model and ended, oldest first.
    pub fn records(&self) -> Vec<RequestRecord> {
        self.core.records()
    }

    /// `running_max` and `in_flight_max` start again from what is there now.
    pub fn reset_max(&self) {
        self.core.reset_max();
    }

    /// Puts a fault in force, instead of the one before; hanging requests stay so.
    ///
    /// # Errors
    /// A value out of range.
    pub fn try_set_fault(&self, fault: Fault) -> anyhow::Result<()> {
        fault.check().map_err(anyhow::Error::msg)?;
        self.core.set_fault(fault);
        Ok(())
    }

    /// The same, where a value out of range is taken as the nearest that makes sense.
    pub fn set_fault(&self, mut fault: Fault) {
        fault.status = fault.status.clamp(400, 599);
        fault.probability = fault.probability.max(0.0);
        fault.factor = if fault.factor.is_finite() { fault.factor.max(1.0) } else { 1.0 };
        if fault.kind == FaultKind::Refuse {
            (fault.probability, fault.count) = (1.0, None);
        }
        self.core.set_fault(fault);
    }

    /// The process starts anew on the same port: running requests are reset, the KV cache and the counters of `/metrics`
    /// are gone, `process_start_time_seconds` is new. Idle connections stay. `None` keeps the launch arguments.
    pub fn restart(&self, cold: bool, launch_args: Option<String>) {
        self.core.restart(cold, launch_args);
    }

    /// The process dies: listener and connections are closed at once, and connecting is refused. The port stays reserved.
    pub async fn kill(&self) {
        self.core.kill();
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listening) = listening {
            listening.stop().await;
        }
    }

    /// A killed engine starts anew on the same port, as cold as its configuration says. Nothing happens when it lives.
    pub async fn revive(&self) -> anyhow::Result<()> {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        if listening.is_none() {
            let listener = self.port.listen().with_context(|| format!("cannot listen on {}", self.addr()))?;
            self.core.restart(self.core.config.cold, None);
            *listening = Some(Listening::start(self.core.clone(), listener));
        }
        Ok(())
    }
}

impl EngineHandle {
    /// Stops for good, but kindly: no new connections, and requests that run may end within `grace`; then all is closed.
    pub async fn shutdown(self, grace: Duration) {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listening) = listening {
            listening.finish(grace).await;
        }
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        // `listening` closes by itself.
        self.driver.abort();
    }
}
