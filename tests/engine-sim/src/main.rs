//! `engine-sim`: one simulated engine, or the figures of the pure model.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use engine_sim::model::{Model, Profile};
use engine_sim::server::{EngineConfig, EngineHandle, SseStyle};
use engine_sim::sweep::{burst, sweep};

/// How long running requests have to end after the signal to stop.
const GRACE: Duration = Duration::from_secs(1);

/// A simulated inference engine with vLLM's HTTP surface.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print tokens per second over concurrency, from the pure model.
    Sweep {
        /// fast, pair, small, instant, or a JSON file.
        #[arg(long, default_value = "fast")]
        profile: String,
        /// Concurrencies to try.
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,24,32,64")]
        concurrency: Vec<usize>,
        /// Output tokens per request.
        #[arg(long, default_value_t = 128)]
        tokens: u64,
    },
}

#[derive(Debug, Args)]
struct Serve {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// fast, pair, small, instant, or a JSON file.
    #[arg(long, default_value = "fast")]
    profile: String,
    /// Name of the served model.
    #[arg(long, default_value = "sim")]
    model: String,
    /// Name of a LoRA adapter, served beside the model; may be given several times.
    #[arg(long = "adapter")]
    adapters: Vec<String>,
    /// Value of `x-engine-id`.
    #[arg(long, default_value = "engine")]
    name: String,
    /// Command line that the engine pretends to run with.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    launch_args: String,
    /// Context window in tokens; 0 takes the profile's.
    #[arg(long, default_value_t = 0)]
    max_model_len: u32,
    /// Model seconds per second.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Start without the cold-start penalty.
    #[arg(long)]
    warm: bool,
    /// Seed of the faults' dice.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// End the lines of streams with CRLF.
    #[arg(long)]
    sse_crlf: bool,
    /// Cut streams into pieces of at most so many bytes, each written by itself; 0: not.
    #[arg(long, default_value_t = 0)]
    sse_piece_bytes: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Sweep { profile, concurrency, tokens }) => print_sweep(&profile, &concurrency, tokens),
        None => serve(cli.serve).await,
    }
}

async fn serve(args: Serve) -> anyhow::Result<()> {
    let engine = EngineHandle::start(EngineConfig {
        listen: args.listen,
        profile: load(&args.profile)?,
        model: args.model,
        adapters: args.adapters,
        name: args.name,
        launch_args: args.launch_args,
        max_model_len: args.max_model_len,
        time_scale: args.scale,
        cold: !args.warm,
        seed: args.seed,
        sse: SseStyle { crlf: args.sse_crlf, piece_bytes: args.sse_piece_bytes },
    })
    .await?;
    // On stdout, so that a script which let it choose the port can read it.
    println!("{} listens on {}", engine.name(), engine.url());
    stop_signal().await?;
    engine.shutdown(GRACE).await;
    Ok(())
}

async fn stop_signal() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => Ok(result?),
        _ = terminate.recv() => Ok(()),
    }
}

fn print_sweep(profile: &str, concurrency: &[usize], tokens: u64) -> anyhow::Result<()> {
    let profile = load(profile)?;
    println!("profile {}, {tokens} output tokens per request", profile.name);
    let cold = burst(&mut Model::new(profile.clone())?, 16, tokens)?;
    println!("cold    16  {cold:8.1} tok/s");
    for (n, tps) in sweep(&profile, concurrency, tokens)? {
        println!("warm {n:5}  {tps:8.1} tok/s");
    }
    Ok(())
}

fn load(profile: &str) -> anyhow::Result<Profile> {
    if let Some(profile) = Profile::named(profile) {
        return Ok(profile);
    }
    let text = std::fs::read_to_string(Path::new(profile))
        .with_context(|| format!("`{profile}` is neither fast, pair, small or instant nor a readable file"))?;
    serde_json::from_str(&text).with_context(|| format!("profile file {profile}"))
}
