//! Benchmarks of the gateway.

mod overhead;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// CPU per request of Envoy without and with the filter, interleaved, at three body sizes.
    Overhead(overhead::Options),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Overhead(options) => overhead::run(&options).await,
    }
}
