//! The real Envoy, running a shipped configuration.

mod mesh_host;
mod stats;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tokio::process::Command;

pub use stats::Stats;
pub use weighbridge_bootstrap::{Bootstrap, room};

use crate::child::ManagedChild;
use crate::{artifacts, eventually, proc, wire};

/// How long Envoy may take until it serves. Generous: tests share two cores.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// Which shipped configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shipped {
    /// `envoy/envoy.yaml`.
    #[default]
    Standalone,
    /// `envoy/mesh/envoy-snippet.yaml` inside a plain host configuration whose own route answers 200 `host`.
    Mesh,
}

/// A change to the rendered configuration.
pub type Edit = Box<dyn FnOnce(&mut serde_json::Value) + Send>;

/// What to start.
pub struct EnvoyOptions {
    /// Which shipped configuration.
    pub shipped: Shipped,
    /// Worker threads.
    pub concurrency: u32,
    /// The static snapshot (and, standalone, its `<pool>-static` clusters). `None` leaves the shipped one.
    pub snapshot: Option<wire::Snapshot>,
    /// Where the prober is. `None`: nowhere, and Envoy waits for it only briefly.
    pub xds: Option<SocketAddr>,
    /// Where the prober's REST API is. `None`: nowhere.
    pub prober: Option<SocketAddr>,
    /// The module; `None` takes `dist/weighbridge.wasm`.
    pub wasm: Option<PathBuf>,
    /// Without the filter, requests go straight to the first pool: the baseline of the overhead benchmark.
    pub filter: bool,
    /// Where the gateway listens.
    pub gateway: SocketAddr,
    /// Where the admin interface listens.
    pub admin: SocketAddr,
    /// Keeps the shipped waits for the prober even when there is none.
    pub shipped_timeouts: bool,
    /// Envoy's log level.
    pub log_level: String,
    /// Where its configuration, its log (`envoy.err`) and its access log (`envoy.out`) are written. `None`: in a directory that is
    /// gone with it.
    pub dir: Option<PathBuf>,
    /// Which of the Envoys that take over from one another this is. `None`: nobody's.
    pub generation: Option<Generation>,
    /// A last change to the configuration.
    pub edit: Option<Edit>,
}

/// A place in a chain of hot restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    /// The same for all of the chain, and different from other Envoys' on this machine.
    pub base_id: u16,
    /// 0 for the first, 1 for the one that takes over from it, and so on.
    pub epoch: u32,
    /// How long the one that is taken over from goes on with what it is serving, in s.
    pub parent_shutdown_s: u32,
}

impl Default for EnvoyOptions {
    fn default() -> Self {
        Self {
            shipped: Shipped::default(),
            concurrency: 2,
            snapshot: None,
            xds: None,
            prober: None,
            wasm: None,
            filter: true,
            gateway: SocketAddr::from(([127, 0, 0, 1], 0)),
            admin: SocketAddr::from(([127, 0, 0, 1], 0)),
            shipped_timeouts: false,
            log_level: "warning".to_owned(),
            dir: None,
            generation: None,
            edit: None,
        }
    }
}

impl EnvoyOptions {
    /// Standalone with this static snapshot and no prober.
    #[must_use]
    pub fn fixed(snapshot: wire::Snapshot) -> Self {
        Self { snapshot: Some(snapshot), ..Self::default() }
    }

    /// Standalone, told everything by the prober at this xDS address.
    #[must_use]
    pub fn with_xds(xds: SocketAddr) -> Self {
        Self { xds: Some(xds), ..Self::default() }
    }

    /// The configuration that Envoy will read.
    ///
    /// # Errors
    /// When a shipped file is not as expected.
    pub fn render(self) -> Result<serde_json::Value> {
        let root = artifacts::root();
        let mut config = match self.shipped {
            Shipped::Standalone => Bootstrap::load(&root.join("envoy/envoy.yaml"))?,
            Shipped::Mesh => mesh_host::mesh_host(&root.join("envoy/mesh/envoy-snippet.yaml"))?,
        };
        config.set_admin(self.admin)?;
        config.set_gateway(self.gateway)?;
        if let Some(snapshot) = self.snapshot {
            config.set_snapshot(snapshot)?;
        }
        match self.xds {
            Some(xds) => config.set_xds(&[xds.into()])?,
            None => {
                // Port 1: refused at once.
                config.set_xds(&[SocketAddr::from(([127, 0, 0, 1], 1)).into()])?;
                if !self.shipped_timeouts {
                    config.set_initial_fetch_timeouts("0.05s");
                }
            }
        }
        // Port 1: refused at once.
        config.set_prober(&[self.prober.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 1))).into()])?;
        if self.filter {
            let wasm = match self.wasm {
                Some(path) => path,
                None => artifacts::wasm()?,
            };
            config.set_wasm(&wasm)?;
        } else {
            config.remove_filter()?;
        }
        let mut value = config.into_value();
        if let Some(edit) = self.edit {
            edit(&mut value);
        }
        Ok(value)
    }
}

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    child: ManagedChild,
    gateway: SocketAddr,
    admin: SocketAddr,
    client: reqwest::Client,
    _own_dir: Option<TempDir>,
}

impl Envoy {
    /// Starts Envoy and waits until its listener serves.
    ///
    /// # Errors
    /// When something is missing, the configuration is refused, or Envoy does not serve in time; with its log.
    pub async fn start(options: EnvoyOptions) -> Result<Self> {
        let (dir, own_dir) = match &options.dir {
            Some(dir) => (dir.clone(), None),
            None => {
                let own = TempDir::with_prefix("weighbridge-envoy-")?;
                (own.path().to_owned(), Some(own))
            }
        };
        let (concurrency, log_level) = (options.concurrency.to_string(), options.log_level.clone());
        let generation = options.generation;
        let config_path = dir.join("envoy.json");
        std::fs::write(&config_path, serde_json::to_vec_pretty(&options.render()?)?)?;
        let admin_path = dir.join("admin");

        let mut command = Command::new(artifacts::envoy()?);
        // The shipped files name the module relative to the repository.
        command.current_dir(artifacts::root());
        command.arg("-c").arg(&config_path).arg("--admin-address-path").arg(&admin_path);
        command.args(["--concurrency", &concurrency, "--log-level", &log_level]);
        match generation {
            None => command.arg("--use-dynamic-base-id"),
            Some(Generation { base_id, epoch, parent_shutdown_s }) => {
                let drain_s = parent_shutdown_s.div_ceil(2);
                command.args(["--base-id", &base_id.to_string(), "--restart-epoch", &epoch.to_string()]);
                command.args(["--drain-time-s", &drain_s.to_string()]);
                command.args(["--parent-shutdown-time-s", &parent_shutdown_s.to_string()])
            }
        };
        let mut child = ManagedChild::spawn("envoy", command, &dir)?;

        let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
        let start = std::time::Instant::now();
        let (admin, gateway) = loop {
            child.check_running()?;
            match ready(&admin_path, &client).await {
                Ok(addresses) => break addresses,
                Err(error) if start.elapsed() > START_DEADLINE => {
                    return Err(error).context(format!("Envoy does not serve\n{}", child.log_tail()));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        Ok(Self { child, gateway, admin, client, _own_dir: own_dir })
    }

    /// Asks Envoy to check a configuration without serving it.
    ///
    /// # Errors
    /// Envoy's complaint.
    pub async fn validate(options: EnvoyOptions) -> Result<()> {
        let dir = TempDir::with_prefix("weighbridge-envoy-")?;
        let path = dir.path().join("envoy.json");
        std::fs::write(&path, serde_json::to_vec_pretty(&options.render()?)?)?;
        let mut command = Command::new(artifacts::envoy()?);
        command.current_dir(artifacts::root()).kill_on_drop(true);
        let output = command.args(["--mode", "validate", "--log-level", "error", "-c"]).arg(&path).output().await?;
        if !output.status.success() {
            bail!("Envoy refuses the configuration: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Where clients send requests.
    #[must_use]
    pub fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// A URL of the gateway.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.gateway)
    }

    /// The admin interface.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Text of an admin page, such as `/clusters`.
    ///
    /// # Errors
    /// When Envoy does not answer 200.
    pub async fn admin_page(&self, path: &str) -> Result<String> {
        let url = format!("http://{}{path}", self.admin);
        Ok(self.client.get(url).send().await?.error_for_status()?.text().await?)
    }

    /// Counters and gauges by Envoy's own names.
    ///
    /// # Errors
    /// When Envoy does not answer.
    pub async fn stats(&self) -> Result<Stats> {
        Stats::parse(&self.admin_page("/stats?format=json&histogram_buckets=none").await?)
    }

    /// Posts to an admin page, such as `/drain_listeners?graceful`.
    ///
    /// # Errors
    /// When Envoy does not answer 200.
    pub async fn admin_post(&self, path: &str) -> Result<String> {
        let url = format!("http://{}{path}", self.admin);
        Ok(self.client.post(url).send().await?.error_for_status()?.text().await?)
    }

    /// What Prometheus would scrape.
    ///
    /// # Errors
    /// When Envoy does not answer.
    pub async fn prometheus(&self) -> Result<String> {
        self.admin_page("/stats/prometheus").await
    }

    /// Waits until `weighbridge_in_flight` is zero everywhere.
    ///
    /// # Errors
    /// When it is not, after the deadline; with the gauges.
    pub async fn idle(&self, deadline: Duration) -> Result<()> {
        eventually("in-flight back to zero", deadline, async || {
            let stats = self.stats().await?;
            let busy: Vec<_> =
                stats.with_prefix("wasmcustom.weighbridge_in_flight.").filter(|(_, n)| *n != 0).collect();
            ensure!(busy.is_empty(), "{busy:?}");
            Ok(())
        })
        .await
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn rss_bytes(&self) -> Result<u64> {
        self.child.rss_bytes()
    }

    /// CPU time used so far by all threads, in seconds.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn cpu_seconds(&self) -> Result<f64> {
        proc::cpu_seconds(self.child.pid())
    }

    /// The access log so far: one JSON object per finished request.
    #[must_use]
    pub fn access_log(&self) -> Vec<serde_json::Value> {
        self.child.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.child.stderr()
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

/// The addresses of admin interface and gateway, once Envoy says that it is live.
async fn ready(admin_path: &std::path::Path, client: &reqwest::Client) -> Result<(SocketAddr, SocketAddr)> {
    let admin: SocketAddr = std::fs::read_to_string(admin_path)?.trim().parse()?;
    let page = |path: &str| {
        let request = client.get(format!("http://{admin}{path}"));
        async move { anyhow::Ok(request.send().await?.error_for_status()?.text().await?) }
    };
    page("/ready").await?;
    let listeners: serde_json::Value = serde_json::from_str(&page("/listeners?format=json").await?)?;
    let address =
        listeners.pointer("/listener_statuses/0/local_address/socket_address").context("Envoy has no listener yet")?;
    let ip = address["address"].as_str().context("the listener has no address")?;
    let port = address["port_value"].as_u64().context("the listener has no port")?;
    Ok((admin, SocketAddr::new(ip.parse()?, u16::try_from(port)?)))
}
