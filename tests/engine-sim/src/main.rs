//! `engine-sim`: one simulated engine, or the figures of the pure model.

use clap::{Parser, Subcommand};
use engine_sim::cli::{Serve, load, serve};
use engine_sim::model::Model;
use engine_sim::sweep::{burst, sweep};

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

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Sweep { profile, concurrency, tokens }) => print_sweep(&profile, &concurrency, tokens),
        None => serve(cli.serve).await,
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
