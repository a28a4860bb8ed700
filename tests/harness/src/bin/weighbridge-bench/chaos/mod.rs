//! Things that go wrong: the seeded suite with its invariants, and single scenarios with their figures.

mod all_dead;
mod kill_one;
mod rolling;
mod set;
mod sick;
mod soak;
mod store_kill;
mod suite;

use anyhow::Result;
use clap::Subcommand;

pub(crate) use soak::{Options as SoakOptions, run as soak};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A single scenario; without one, the suite.
    #[command(subcommand)]
    scenario: Option<Scenario>,
    #[command(flatten)]
    suite: suite::Options,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// One of four endpoints is killed under 64 streams.
    KillOne(kill_one::Options),
    /// An endpoint that hangs, one that fails at once, one that is 20 times as slow: its share of the traffic.
    Sick(sick::Options),
    /// All endpoints are killed under load and return one by one.
    AllDead(all_dead::Options),
    /// Every endpoint is drained and restarted, one after another, under load.
    Rolling(rolling::Options),
    /// The prober is killed again and again while pins are written.
    StoreKill(store_kill::Options),
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    match &options.scenario {
        None => suite::run(&options.suite).await,
        Some(Scenario::KillOne(options)) => kill_one::run(options).await,
        Some(Scenario::Sick(options)) => sick::run(options).await,
        Some(Scenario::AllDead(options)) => all_dead::run(options).await,
        Some(Scenario::Rolling(options)) => rolling::run(options).await,
        Some(Scenario::StoreKill(options)) => store_kill::run(options).await,
    }
}
