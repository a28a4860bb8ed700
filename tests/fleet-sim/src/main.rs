//! `fleet-sim`: policies side by side on one simulated fleet.

mod command;

use clap::{Parser, Subcommand};

/// Simulates a fleet of engines behind gateways.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare policies on one workload.
    Compare(command::compare::Compare),
    /// An unequal fleet at 50, 80, 95 and 120 % load, by two traces: every policy, the oracle, and where ours is not ahead.
    Show(command::show::Show),
    /// 10 to 1,000 endpoints and 1 to 64 gateways: what a decision costs, what is kept, what becomes of latency.
    Scale(command::scale::Scale),
    /// One setting after the other over its range: a table and a plot each.
    Tune(command::tune::Tune),
    /// How many conversations the holder index remembers.
    Index(command::index::Index),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Compare(compare) => compare.run(),
        Command::Show(show) => show.run(),
        Command::Scale(scale) => scale.run(),
        Command::Tune(tune) => tune.run(),
        Command::Index(index) => index.run(),
    }
}
