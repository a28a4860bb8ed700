//! What the filter costs: CPU time of the whole Envoy process per request, without and with the filter.

use anyhow::Result;
use harness::load::Call;

use crate::output;
use crate::pair::{COLUMNS, Escapes, Pair, Turns, chat};

/// Distinct bodies per size, so that no cache sees only one prompt.
const BODIES: usize = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    turns: Turns,
    /// Requests per turn with 4 KB bodies; half at 64 KB, a tenth at 1 MB.
    #[arg(long, default_value_t = 4000)]
    requests: usize,
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let pair = Pair::start(options.turns.concurrency).await?;
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for (size, bytes, requests) in [
        ("4 KB", 4 << 10, options.requests),
        ("64 KB", 64 << 10, options.requests / 2),
        ("1 MB", 1 << 20, options.requests / 10),
    ] {
        for escapes in [Escapes::None, Escapes::Prose, Escapes::Code] {
            let calls: Vec<Call> = (0..BODIES).map(|nth| chat(bytes, escapes, nth)).collect();
            let compared = pair.compare(&options.turns, requests, &calls).await?;
            let label = format!("{size}, {}", escapes.as_str());
            results.push(compared.json(&label));
            rows.push([vec![label], compared.cells()].concat());
        }
    }
    let Turns { rounds, connections, .. } = options.turns;
    println!("CPU per request of the Envoy process, {rounds} rounds, {connections} connections");
    output::table(&[["body"].as_slice(), &COLUMNS].concat(), &rows);
    output::result("overhead", &results);
    Ok(())
}
