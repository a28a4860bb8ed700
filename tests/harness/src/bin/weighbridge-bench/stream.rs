//! What watching a streamed answer costs.

use anyhow::Result;
use harness::echo::CHUNKS_HEADER;
use harness::load::Call;

use crate::output;
use crate::pair::{COLUMNS, Escapes, Pair, Turns, chat};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    turns: Turns,
    /// Requests per turn.
    #[arg(long, default_value_t = 800)]
    requests: usize,
    /// Chunks of an answer.
    #[arg(long, default_value_t = 100)]
    chunks: usize,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let pair = Pair::start(options.turns.concurrency, &options.turns.sides).await?;
    let chunks = options.chunks.to_string();
    let calls: Vec<Call> =
        (0..16).map(|nth| chat(4 << 10, Escapes::Prose, nth).header(CHUNKS_HEADER, &chunks)).collect();
    let compared = pair.compare(&options.turns, options.requests, &calls).await?;
    println!("CPU per request of the Envoy process, {} rounds, an answer in {chunks} chunks", options.turns.rounds);
    let what = format!("4 KB, {chunks} chunks");
    let rows: Vec<_> = compared.iter().map(|compared| compared.cells(&what)).collect();
    output::table(&[["request, answer"].as_slice(), &COLUMNS].concat(), &rows);
    output::result("stream", &compared.iter().map(|compared| compared.json(&what)).collect::<Vec<_>>());
    Ok(())
}
