//! Benchmarks of the gateway. Each prints a table for people and, last, one line of JSON.

mod calibrate;
mod calls;
mod chaos;
mod index;
mod long;
mod malformed;
mod memory;
mod multiturn;
mod noreuse;
mod output;
mod overhead;
mod overload;
mod pair;
mod peers;
mod push;
mod real;
mod stream;

use clap::{Parser, Subcommand};
use harness::engine_sim::cli::Serve;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// CPU per request of Envoy without and with the filter, interleaved, at three body sizes, with and without escapes.
    Overhead(overhead::Options),
    /// Host calls per request, counted in Envoy's own trace of the filter, and the bytes that they move.
    Calls(calls::Options),
    /// The same as `overhead` for a streamed answer of many chunks.
    Stream(stream::Options),
    /// Added latency and CPU of a prompt of a million tokens (4 MB).
    Long(long::Options),
    /// Conversations on an unequal fleet of simulated engines: prefix hit rate and TTFT per policy.
    Multiturn(multiturn::Options),
    /// Prompts that have nothing in common: TTFT with and without affinity.
    Noreuse(noreuse::Options),
    /// Envoy's memory over a million distinct prompts.
    Index(index::Options),
    /// Three times as many requests as the fleet can serve: what those that are let in get, with and without admission.
    Overload(overload::Options),
    /// Envoy's memory while bodies wait and are in flight, beside the documented bound.
    Memory(memory::Options),
    /// 100,000 malformed inputs: answers, VM restarts, memory.
    Malformed(malformed::Options),
    /// The engine time model against a real engine: predicted and measured, and the error.
    Calibrate(calibrate::Options),
    /// The whole product in front of two real engines of unequal speed, by weights and by equal weights.
    Real(real::Options),
    /// Things that go wrong, from a seed, and what must be true throughout; or a single scenario with its figures.
    Chaos(chaos::Options),
    /// Half an hour of mixed load with mild chaos: memory and latency over time.
    Soak(chaos::SoakOptions),
    /// Weighbridge beside what people use instead: the same unequal engines and the same requests, each router in turn.
    Peers(peers::Options),
    /// docs/benchmarks.md, made of what `peers --json` wrote.
    PeersPage(peers::PageOptions),
    /// How long a change takes until Envoys have it, by size of the pool.
    Push(push::Options),
    /// One simulated engine: the scenarios start themselves so, to have engines that can be killed.
    #[command(hide = true)]
    Engine(Serve),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Overhead(options) => overhead::run(&options).await,
        Command::Calls(options) => calls::run(&options).await,
        Command::Stream(options) => stream::run(&options).await,
        Command::Long(options) => long::run(&options).await,
        Command::Multiturn(options) => multiturn::run(&options).await,
        Command::Noreuse(options) => noreuse::run(&options).await,
        Command::Index(options) => index::run(&options).await,
        Command::Overload(options) => overload::run(&options).await,
        Command::Memory(options) => memory::run(&options).await,
        Command::Malformed(options) => malformed::run(&options).await,
        Command::Calibrate(options) => calibrate::run(&options).await,
        Command::Real(options) => real::run(&options).await,
        Command::Chaos(options) => chaos::run(&options).await,
        Command::Push(options) => push::run(&options).await,
        Command::Soak(options) => chaos::soak(&options).await,
        Command::Peers(options) => peers::run(&options).await,
        Command::PeersPage(options) => peers::page(&options).await,
        Command::Engine(options) => harness::engine_sim::cli::serve(options).await,
    }
}
