//! A prompt of a million tokens, one at a time: what the filter adds to its latency and its CPU.

use anyhow::Result;
use harness::load::Call;

use crate::output;
use crate::pair::{COLUMNS, Escapes, Pair, Sides, Turns, chat};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Requests per turn.
    #[arg(long, default_value_t = 30)]
    requests: usize,
    /// Bytes of a prompt.
    #[arg(long, default_value_t = 4 << 20)]
    bytes: usize,
    #[command(flatten)]
    sides: Sides,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let turns = Turns { rounds: options.rounds, connections: 1, concurrency: 2, sides: options.sides.clone() };
    let pair = Pair::start(turns.concurrency, &turns.sides).await?;
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for escapes in [Escapes::None, Escapes::Prose, Escapes::Code] {
        let calls: Vec<Call> = (0..4).map(|nth| chat(options.bytes, escapes, nth)).collect();
        let what = format!("{} MB, {}", options.bytes >> 20, escapes.as_str());
        for compared in pair.compare(&turns, options.requests, &calls).await? {
            let (plain, filtered) = (compared.plain.latency_us / 1e3, compared.filtered.latency_us / 1e3);
            let latency = vec![format!("{plain:.2}"), format!("{filtered:.2}"), format!("{:+.2}", filtered - plain)];
            results.push(compared.json(&what));
            rows.push([compared.cells(&what), latency].concat());
        }
    }
    println!("CPU and median latency of a request, {} rounds, one connection", options.rounds);
    let latency = ["latency without (ms)", "with (ms)", "added (ms)"];
    output::table(&[["body"].as_slice(), &COLUMNS, &latency].concat(), &rows);
    output::result("long", &results);
    Ok(())
}
