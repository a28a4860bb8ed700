//! The command that serves one engine, for every program that is to be one.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::model::Profile;
use crate::server::{EngineConfig, EngineHandle, SseStyle};

/// How long running requests have to end after the signal to stop.
const GRACE: Duration = Duration::from_secs(1);

/// Options of one engine.
#[derive(Debug, Args)]
pub struct Serve {
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

/// Serves until SIGTERM or Ctrl-C.
pub async fn serve(args: Serve) -> anyhow::Result<()> {
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

/// The profile of this name, or in this file.
pub fn load(profile: &str) -> anyhow::Result<Profile> {
    if let Some(profile) = Profile::named(profile) {
        return Ok(profile);
    }
    let text = std::fs::read_to_string(Path::new(profile))
        .with_context(|| format!("`{profile}` is neither fast, pair, small or instant nor a readable file"))?;
    serde_json::from_str(&text).with_context(|| format!("profile file {profile}"))
}
