//! What `scripts/run` starts: Envoy and the prober in the foreground, and without a configuration a demo fleet of
//! simulated engines. Ends on Ctrl-C, SIGTERM or when one of the two dies, and takes everything down with it; but for the logs,
//! when it ends for an error.

mod demo;
mod hints;
mod traffic;

use std::fs::Permissions;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use harness::envoy::room;
use harness::{Envoy, EnvoyOptions, ProberProcess, artifacts, wire};
use reqwest::Method;
use tokio::signal::unix::{SignalKind, signal};

use demo::Demo;
use hints::Hints;
use traffic::DemoLoad;

/// How often the children and the measurement are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// The first file that anything of ours writes.
const PROBER_LOG: &str = "prober.err";

/// Envoy and the prober in the foreground until Ctrl-C.
#[derive(Debug, Parser)]
struct Arguments {
    /// Configuration of the prober; without it, a demo fleet of simulated engines.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where the gateway listens.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", value_parser = address)]
    listen: SocketAddr,
    /// Where Envoy's admin interface listens.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9901", value_parser = address)]
    admin: SocketAddr,
    /// Where the demo's prober serves its REST API.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7070", value_parser = address, conflicts_with = "config")]
    api: SocketAddr,
    /// Where the demo's prober serves xDS.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7071", value_parser = address, conflicts_with = "config")]
    xds: SocketAddr,
    /// How much load the demo makes for itself, once every endpoint is measured.
    #[arg(long, value_enum, default_value_t = DemoLoad::Light, conflicts_with = "config")]
    demo_load: DemoLoad,
    /// Worker threads of Envoy; the number of CPUs by default.
    #[arg(long)]
    concurrency: Option<u32>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; expected HOST:PORT"))?;
    found.next().ok_or_else(|| "this name has no address".to_owned())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    // Nobody else's: the access log says who asked, the configuration may hold a token.
    let logs =
        tempfile::Builder::new().prefix("weighbridge-run-").permissions(Permissions::from_mode(0o700)).tempdir()?;
    let Err(error) = supervise(&arguments, logs.path()).await else { return Ok(()) };
    if !logs.path().join(PROBER_LOG).exists() {
        // Nothing was started.
        return Err(error);
    }
    Err(anyhow!("{error:#}\n{}", hints::kept(&logs.keep())))
}

async fn supervise(arguments: &Arguments, logs: &Path) -> Result<()> {
    let mut stop = std::pin::pin!(stop_signal()?);
    tokio::select! {
        () = &mut stop => Ok(()),
        started = start(arguments, logs) => {
            let mut running = started?;
            println!("{}", running.hints);
            let mut measured = false;
            // Ends before what it talks with does.
            let mut people = None;
            loop {
                tokio::select! {
                    biased;
                    () = &mut stop => break,
                    () = tokio::time::sleep(LOOK) => {}
                }
                if let Err(error) = running.check() {
                    // Ctrl-C reaches the whole foreground group: a child that ends just before us has not died.
                    if tokio::time::timeout(LOOK, &mut stop).await.is_ok() {
                        break;
                    }
                    return Err(error);
                }
                if !measured && running.prober.call(Method::GET, "/readyz", None).await.is_ok_and(|(status, _)| status == 200) {
                    measured = true;
                    running.print_weights().await;
                    if running.demo.is_some() {
                        people = Some(traffic::start(running.envoy.gateway(), arguments.demo_load));
                    }
                }
            }
            println!("stopping");
            drop(people);
            running.stop().await
        }
    }
}

/// Resolves on Ctrl-C, SIGTERM, or when the terminal goes away.
fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// Fields are dropped in this order: the gateway first, then what it depends on.
struct Running {
    envoy: Envoy,
    prober: ProberProcess,
    demo: Option<Demo>,
    hints: Hints,
}

async fn start(arguments: &Arguments, logs: &Path) -> Result<Running> {
    // Envoy shares a port with another Envoy without a word; a port that is taken is an error here.
    for (option, address) in [("--listen", arguments.listen), ("--admin", arguments.admin)] {
        TcpListener::bind(address).with_context(|| format!("{option} {address} cannot be used"))?;
    }
    let (demo, config, cwd) = match &arguments.config {
        Some(config) => {
            let config = config.canonicalize().with_context(|| format!("--config {}", config.display()))?;
            (None, config, artifacts::root())
        }
        None => {
            let demo = Demo::start().await?;
            let config = logs.join("demo.yaml");
            std::fs::write(
                &config,
                serde_yaml_ng::to_string(&demo.prober_config(arguments.api, arguments.xds, arguments.admin)?)?,
            )?;
            (Some(demo), config, logs.to_owned())
        }
    };
    let mut prober = ProberProcess::start_file(&config, &cwd, logs).await?;
    let token_file = token_file(&config, &cwd)?;
    if let Some(file) = &token_file {
        prober = prober.with_token(&token(file)?);
    }
    println!("prober: API http://{}, xDS {}", prober.api(), prober.xds());
    let concurrency = arguments.concurrency.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(2, |cpus| u32::try_from(cpus.get()).unwrap_or(2))
    });
    let snapshot = static_snapshot(&prober).await?;
    let max_body_bytes = snapshot.filter.max_body;
    let example = hints::Example::of(&snapshot, demo.is_some().then_some(demo::SLOWEST));
    let options = EnvoyOptions {
        concurrency,
        gateway: arguments.listen,
        admin: arguments.admin,
        snapshot: Some(snapshot),
        edit: Some(Box::new(move |config| room::make(config, max_body_bytes))),
        prober: Some(reachable(prober.api())),
        dir: Some(logs.to_owned()),
        ..EnvoyOptions::with_xds(reachable(prober.xds()))
    };
    let envoy = Envoy::start(options).await?;
    println!("envoy:  gateway http://{}, admin http://{}", envoy.gateway(), envoy.admin());
    let hints = Hints {
        gateway: reachable(envoy.gateway()),
        api: reachable(prober.api()),
        token_file,
        example,
        demo: demo.as_ref().map(|demo| (demo.describe(), arguments.demo_load)),
        root: artifacts::root(),
        logs: logs.to_owned(),
    };
    Ok(Running { envoy, prober, demo, hints })
}

/// The address under which a listener can be reached from here.
fn reachable(mut listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() {
        listen.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    listen
}

/// The file of the token that the prober's API wants, where it wants one.
fn token_file(config: &Path, cwd: &Path) -> Result<Option<PathBuf>> {
    let config: serde_json::Value = serde_yaml_ng::from_str(&std::fs::read_to_string(config)?)?;
    Ok(config["api"]["token_file"].as_str().map(|file| cwd.join(file)))
}

fn token(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("api.token_file {}", file.display()))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// What Envoy serves should it lose the prober before it has heard it: what the prober knows now.
async fn static_snapshot(prober: &ProberProcess) -> Result<wire::Snapshot> {
    let mut snapshot: wire::Snapshot =
        serde_json::from_value(prober.get("/v1/snapshot").await?).context("the prober's snapshot")?;
    // Gives way to anything the prober sends.
    snapshot.version = 0;
    Ok(snapshot)
}

impl Running {
    fn check(&mut self) -> Result<()> {
        self.envoy.process().check_running()?;
        self.prober.process().check_running()
    }

    async fn print_weights(&self) {
        let Ok(answer) = self.prober.get("/v1/endpoints").await else { return };
        println!("\nMeasured:");
        for endpoint in answer["endpoints"].as_array().into_iter().flatten() {
            println!(
                "  {:<12} pool {:<12} weight {:<6} {} tok/s",
                endpoint["id"].as_str().unwrap_or("?"),
                endpoint["pool"].as_str().unwrap_or("?"),
                endpoint["weight"],
                endpoint["throughput_tps"].as_f64().map_or_else(|| "?".to_owned(), |tps| format!("{tps:.0}")),
            );
        }
    }

    async fn stop(mut self) -> Result<()> {
        let deadline = Duration::from_secs(10);
        let envoy = self.envoy.process().terminate(deadline).await;
        self.prober.terminate().await?;
        match envoy {
            Ok(_) => Ok(()),
            Err(error) => bail!("{error:#}"),
        }
    }
}
