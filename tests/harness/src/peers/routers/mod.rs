//! Who stands in front of the engines: one entry of [`ROUTERS`] each.

mod envoy;
mod ours;
mod proxies;
mod python;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::process::Command;

pub use ours::Measured;

use crate::child::ManagedChild;
use crate::fault::ReservedPort;
use crate::load::{self, Call};
use crate::wire::By;
use crate::{Envoy, ProberProcess, artifacts, eventually, proc};

/// How long a router may take until it serves. Python takes its time on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// How long it may take to stop before it is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Worker threads or processes, where a router has them.
const WORKERS: u32 = 2;

/// A router that can stand in front of the engines.
#[derive(Debug, Clone, Copy)]
pub struct Router {
    /// Its name on the command line, and in the results.
    pub name: &'static str,
    /// How it balances, and what of that was set by us.
    pub how: &'static str,
    /// Whether it reads prompts or models, and so is to be compared by what it costs, too.
    pub llm_aware: bool,
    /// Whether we told it by hand how fast each engine is: what an operator measures, writes down and keeps up to date.
    pub told: bool,
    /// In which scenarios it runs when nobody says who does.
    pub when: When,
    kind: Kind,
}

/// In which scenarios a router runs when nobody says who does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// In all.
    Always,
    /// Where everybody takes part.
    Everybody,
    /// In none.
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Direct,
    Ours(ours::Settings),
    Envoy(envoy::Policy),
    Nginx,
    Haproxy,
    Python { package: &'static str, command: &'static [&'static str], policy: &'static str },
    LiteLlm,
}

const fn router(name: &'static str, kind: Kind, how: &'static str) -> Router {
    Router {
        name,
        how,
        llm_aware: matches!(kind, Kind::Ours(_) | Kind::Python { .. } | Kind::LiteLlm),
        told: false,
        when: When::Everybody,
        kind,
    }
}

const fn always(router: Router) -> Router {
    Router { when: When::Always, ..router }
}

const fn when_asked(router: Router) -> Router {
    Router { when: When::Asked, ..router }
}

const fn told(router: Router) -> Router {
    Router { told: true, ..router }
}

const fn python(name: &'static str, package: &'static str, policy: &'static str, how: &'static str) -> Router {
    // The name of the package is the name of its program.
    let command: &[&str] = match package.as_bytes() {
        b"vllm-router" => &[],
        _ => &["launch"],
    };
    router(name, Kind::Python { package, command, policy }, how)
}

/// The name of Weighbridge among [`ROUTERS`].
pub(crate) const OURS: &str = "weighbridge";
/// The name of the control among [`ROUTERS`].
pub(crate) const DIRECT: &str = "direct";

/// All of them. Where everybody takes part, of each program all but what is known to be worse; elsewhere the best of each kind.
pub const ROUTERS: [Router; 19] = [
    router(
        DIRECT,
        Kind::Direct,
        "no router: the load generator draws an engine for each request, in proportion to its speed",
    ),
    always(router(
        OURS,
        Kind::Ours(ours::Settings { by: By::Curve, k: 4 }),
        "the filter in Envoy and the prober, which has measured the engines before; `policy: {by: curve}` and `affinity: {k: 4}`, which conversations want; all else as shipped",
    )),
    always(router(
        "weighbridge-by-weight",
        Kind::Ours(ours::Settings { by: By::Weight, k: 1 }),
        "the same without those two: everything as shipped",
    )),
    always(router(
        "envoy-least-request",
        Kind::Envoy(envoy::Policy::LeastRequest),
        "LEAST_REQUEST of two choices; health checks, outlier detection, and retries on another host",
    )),
    told(router(
        "envoy-least-request-weighted",
        Kind::Envoy(envoy::Policy::LeastRequest),
        "as `envoy-least-request`, and told `load_balancing_weight` by the speed of each engine: with unequal weights it is a weighted round robin that least requests bend",
    )),
    router(
        "envoy-ring-hash",
        Kind::Envoy(envoy::Policy::RingHash),
        "RING_HASH of a header in which the client puts a hash of the first 256 characters; health checks, outlier detection, and retries on another host",
    ),
    router(
        "nginx",
        Kind::Nginx,
        "`least_conn` in a zone that its workers share, `proxy_buffering off`, retries on another server",
    ),
    told(router(
        "nginx-weighted",
        Kind::Nginx,
        "as `nginx`, and told `weight` by the speed of each engine, and `max_conns=32`, what an engine runs at once",
    )),
    router(
        "haproxy",
        Kind::Haproxy,
        "`balance leastconn`, `option http-no-delay`, a health check every 2 s, retries on another server",
    ),
    always(told(router(
        "haproxy-weighted",
        Kind::Haproxy,
        "as `haproxy`, and told `weight` by the speed of each engine, and `maxconn 32`, what an engine runs at once",
    ))),
    always(python("sglang-router", "sglang-router", "cache_aware", "`--policy cache_aware`, a health check every 2 s")),
    always(python(
        "smg",
        "smg",
        "least_load",
        "`--policy least_load`, asking engines for their load every second (10 s by default: half of a run), a health check every 2 s",
    )),
    python(
        "smg-cache-aware",
        "smg",
        "cache_aware",
        "`--policy cache_aware`, asking engines for their load every second, a health check every 2 s",
    ),
    python("vllm-router", "vllm-router", "power_of_two", "`--policy power_of_two`, a health check every 2 s"),
    router("litellm", Kind::LiteLlm, "`routing_strategy: least-busy`, one worker (its counts are per process)"),
    when_asked(python(
        "vllm-router-cache-aware",
        "vllm-router",
        "cache_aware",
        "`--policy cache_aware`, a health check every 2 s",
    )),
    when_asked(python(
        "sglang-router-power-of-two",
        "sglang-router",
        "power_of_two",
        "`--policy power_of_two`, a health check every 2 s",
    )),
    when_asked(python(
        "smg-power-of-two",
        "smg",
        "power_of_two",
        "`--policy power_of_two`, asking engines for their load every second, a health check every 2 s",
    )),
    when_asked(router(
        "envoy-round-robin",
        Kind::Envoy(envoy::Policy::RoundRobin),
        "ROUND_ROBIN; health checks, outlier detection, and retries on another host",
    )),
];

/// What a router is started in front of.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Name, address, and relative speed of each engine. Only the control and those that are told look at the speed.
    pub engines: Vec<(String, SocketAddr, f64)>,
    /// What our prober has measured of these engines; `None`: it measures now.
    pub measured: Option<PathBuf>,
    /// Fields of our pool's configuration that are not the defaults.
    pub pool: serde_json::Value,
}

/// Where requests go.
#[derive(Debug, Clone)]
pub struct Front {
    /// Addresses, and how much of the requests each is given in relation to the others.
    pub targets: Vec<(SocketAddr, f64)>,
    /// What every request must carry.
    pub headers: Vec<(String, String)>,
}

impl Front {
    fn one(address: SocketAddr) -> Self {
        Self { targets: vec![(address, 1.0)], headers: Vec::new() }
    }

    /// Where the request of this number goes, always the same.
    #[must_use]
    pub fn target(&self, nth: usize) -> SocketAddr {
        // A number between 0 and 1 that looks drawn.
        let drawn = (nth as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) as f64 / 2f64.powi(64);
        let all: f64 = self.targets.iter().map(|(_, weight)| weight).sum();
        let mut left = drawn * all;
        let found = self.targets.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        found.or(self.targets.last()).map_or(SocketAddr::from(([127, 0, 0, 1], 1)), |(address, _)| *address)
    }
}

/// A program that runs.
#[derive(Debug)]
enum Part {
    Child(Box<ManagedChild>),
    Envoy(Box<Envoy>),
    Prober(Box<ProberProcess>),
}

impl Part {
    fn process(&mut self) -> &mut ManagedChild {
        match self {
            Self::Child(child) => child,
            Self::Envoy(envoy) => envoy.process(),
            Self::Prober(prober) => prober.process(),
        }
    }
}

/// A router that serves; dropped, it is killed.
#[derive(Debug)]
pub struct Running {
    /// Where requests go.
    pub front: Front,
    parts: Vec<(&'static str, Part)>,
    _dir: TempDir,
    _ports: Vec<ReservedPort>,
}

impl Running {
    /// CPU time so far, in seconds, by part: `router`, or `envoy` and `prober`.
    ///
    /// # Errors
    /// When a part has ended.
    pub fn cpu_seconds(&mut self) -> Result<BTreeMap<&'static str, f64>> {
        self.each(proc::tree_cpu_seconds)
    }

    /// The most memory that each part ever had, in bytes.
    ///
    /// # Errors
    /// When a part has ended.
    pub fn peak_rss_bytes(&mut self) -> Result<BTreeMap<&'static str, u64>> {
        self.each(proc::tree_peak_rss_bytes)
    }

    fn each<T>(&mut self, of: impl Fn(u32) -> Result<T>) -> Result<BTreeMap<&'static str, T>> {
        self.parts
            .iter_mut()
            .map(|(label, part)| {
                let process = part.process();
                process.check_running()?;
                Ok((*label, of(process.pid())?))
            })
            .collect()
    }

    /// Envoy's access log, where the router is an Envoy: with the decision records, where it is ours.
    #[must_use]
    pub fn access_log(&self) -> Vec<serde_json::Value> {
        let envoy = self.parts.iter().find_map(|(_, part)| match part {
            Part::Envoy(envoy) => Some(envoy.access_log()),
            _ => None,
        });
        envoy.unwrap_or_default()
    }

    /// What the parts wrote last, for messages.
    #[must_use]
    pub fn log_tail(&mut self) -> String {
        self.parts.iter_mut().map(|(_, part)| part.process().log_tail()).collect()
    }

    /// Stops it: kindly, and after a while by force; what it has started, too.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn stop(self) -> Result<()> {
        for (_, mut part) in self.parts {
            let process = part.process();
            // What outlives its parent would be nobody's child any more.
            let descendants = proc::tree(process.pid()).unwrap_or_default();
            // Whoever does not stop in time has been killed by then, which is as good here.
            let _ = process.terminate(STOP_DEADLINE).await;
            for pid in descendants.into_iter().skip(1).filter(|pid| proc::rss_bytes(*pid).is_ok()) {
                Command::new("sh")
                    .args(["-c", "kill -s KILL \"$1\" 2>/dev/null || :", "sh", &pid.to_string()])
                    .status()
                    .await?;
            }
        }
        Ok(())
    }
}

impl Router {
    /// The router of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Router> {
        ROUTERS.into_iter().find(|router| router.name == name)
    }

    /// Whether it is the product.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Ours(_))
    }

    /// Whether there is no router at all.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.kind == Kind::Direct
    }

    /// The Python package that it is, where it is one.
    #[must_use]
    pub fn package(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Python { package, .. } => Some(package),
            Kind::LiteLlm => Some("litellm"),
            _ => None,
        }
    }

    /// The program that it is.
    ///
    /// # Errors
    /// When it is not installed; the message says how it would be.
    pub fn program(&self) -> Result<PathBuf> {
        match self.kind {
            Kind::Direct => Ok(PathBuf::new()),
            Kind::Ours(_) => artifacts::prober(),
            Kind::Envoy(_) => artifacts::envoy(),
            Kind::Nginx => on_path("nginx"),
            Kind::Haproxy => on_path("haproxy"),
            Kind::Python { package, .. } => python::program(package),
            Kind::LiteLlm => python::program("litellm"),
        }
    }

    /// Its version, by itself or by what installed it.
    ///
    /// # Errors
    /// When it is not installed, or does not say.
    pub async fn version(&self) -> Result<String> {
        let program = self.program()?;
        match self.kind {
            Kind::Direct => Ok(String::new()),
            Kind::Ours(_) => Ok(super::commit().await),
            Kind::Envoy(_) => envoy::version(&program).await,
            Kind::Nginx | Kind::Haproxy => proxies::version(&program).await,
            Kind::Python { package, .. } => python::version(package),
            Kind::LiteLlm => python::version("litellm"),
        }
    }

    /// Starts it, and waits until it serves and knows all engines.
    ///
    /// # Errors
    /// When it does not come up; with the end of its log.
    pub async fn start(&self, setup: &Setup) -> Result<Running> {
        let started = match self.kind {
            Kind::Direct => direct(setup),
            Kind::Ours(settings) => ours::start(setup, settings).await,
            Kind::Envoy(policy) => envoy::start(policy, setup, self.told).await,
            Kind::Nginx => proxies::nginx(&self.program()?, setup, self.told).await,
            Kind::Haproxy => proxies::haproxy(&self.program()?, setup, self.told).await,
            Kind::Python { package, command, policy } => python::router(package, command, policy, setup).await,
            Kind::LiteLlm => python::litellm(&self.program()?, setup).await,
        };
        started.with_context(|| format!("cannot start {}", self.name))
    }
}

fn direct(setup: &Setup) -> Result<Running> {
    let targets = setup.engines.iter().map(|(_, address, speed)| (*address, *speed)).collect();
    let front = Front { targets, headers: Vec::new() };
    Ok(Running { front, parts: Vec::new(), _dir: TempDir::new()?, _ports: Vec::new() })
}

fn on_path(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian puts servers where only root looks.
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("no {name}: scripts/bench --install-peers installs it"))
}

/// Weights up to `most`, in proportion to the speeds of the engines.
fn weights(setup: &Setup, most: f64) -> Vec<u32> {
    let fastest = setup.engines.iter().map(|(_, _, speed)| *speed).fold(f64::MIN_POSITIVE, f64::max);
    setup.engines.iter().map(|(_, _, speed)| (most * speed / fastest).round().max(1.0) as u32).collect()
}

/// A directory and a port for a program that is about to be started.
fn place() -> Result<(TempDir, ReservedPort)> {
    Ok((TempDir::with_prefix("weighbridge-peer-")?, ReservedPort::any()?))
}

/// Waits until a GET is answered so that `told` is content.
async fn answers(
    child: &mut ManagedChild,
    address: SocketAddr,
    path: &str,
    told: impl Fn(&serde_json::Value) -> bool,
) -> Result<()> {
    eventually("it serves", START_DEADLINE, async || {
        child.check_running()?;
        let outcome = load::send(address, Call::get(path).timeout(Duration::from_secs(5))).await;
        ensure!(outcome.is_ok(), "{path}: {:?} {:?}", outcome.status, outcome.error);
        ensure!(told(&outcome.json()), "{path}: {}", String::from_utf8_lossy(&outcome.body));
        Ok(())
    })
    .await
    .with_context(|| child.log_tail())
}

/// What a program that takes a configuration file is given.
fn write(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for router in &ROUTERS {
            assert_eq!(ROUTERS.iter().filter(|other| other.name == router.name).count(), 1);
            assert_eq!(Router::named(router.name).map(|found| found.kind), Some(router.kind));
        }
        assert!(Router::named("f5").is_none());
    }

    #[test]
    fn the_control_draws_by_speed() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let front = Front { targets: vec![(address(1), 3.0), (address(2), 1.0)], headers: Vec::new() };
        let first = (0..4_000).filter(|nth| front.target(*nth) == address(1)).count();
        assert!((2_900..3_100).contains(&first), "{first}");
    }
}
