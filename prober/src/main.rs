//! The `weighbridge-prober` program.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use weighbridge_prober::config::{self, Config};
use weighbridge_prober::explain;

/// Measures every endpoint and tells every Envoy.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,

    /// Serve with this configuration.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["check", "schema"], conflicts_with = "check")]
    config: Option<PathBuf>,
    /// Only say what is wrong with this configuration, and exit with 1 when something is.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Print the JSON schema of configurations, for editors, and exit.
    #[arg(long, conflicts_with_all = ["config", "check"])]
    schema: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Say in sentences why a request went where it went, and what took how long.
    Explain {
        /// A decision record, several of them, lines of Envoy's access log, or an answer of GET /v1/decisions; `-` reads
        /// standard input.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Explains every record in a file.
fn explain(path: &PathBuf) -> anyhow::Result<ExitCode> {
    let text = match path.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()).context("standard input cannot be read")?,
        false => std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?,
    };
    let input = explain::input::read(&text).with_context(|| format!("{} cannot be explained", path.display()))?;
    // Whoever reads may have seen enough.
    let _ = write!(std::io::stdout().lock(), "{}", explain::text(&input));
    Ok(ExitCode::SUCCESS)
}

fn read(path: &PathBuf) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    Config::parse(&text).with_context(|| format!("{} is not a valid configuration", path.display()))
}

/// Says everything that is wrong with a file, a line each.
fn check(path: &PathBuf) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let report = Config::check(&text);
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    for error in &report.errors {
        eprintln!("{error}");
    }
    if report.errors.is_empty() {
        println!("{} is valid", path.display());
        Ok(ExitCode::SUCCESS)
    } else {
        eprintln!("{} is not a valid configuration: {} errors", path.display(), report.errors.len());
        Ok(ExitCode::FAILURE)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if let Some(Command::Explain { file }) = &options.command {
        return explain(file);
    }
    if let Some(path) = &options.check {
        return check(path);
    }
    if options.schema {
        println!("{:#}", config::reference::schema()?);
        return Ok(ExitCode::SUCCESS);
    }
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    // Colours are for people: a file or a journal gets none.
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    let config = read(&options.config.context("--config is missing")?)?;
    let shutdown = CancellationToken::new();
    let running = weighbridge_prober::run(config, shutdown.clone()).await?;
    tracing::info!("listening api={} xds={}", running.api, running.xds);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        shutdown.cancel();
    });
    running.stopped().await?;
    Ok(ExitCode::SUCCESS)
}
