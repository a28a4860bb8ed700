//! What the filter costs: CPU time of the whole Envoy process per request, without and with the filter.

use anyhow::Result;
use harness::load::Call;

use crate::output;
use crate::pair::{COLUMNS, Escapes, Pair, Turns, chat};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    turns: Turns,
    /// Requests per turn with 4 KB bodies; half at 64 KB, a tenth at 1 MB.
    #[arg(long, default_value_t = 4000)]
    requests: usize,
    /// Distinct prompts per size, sent in turn: 16, so that no cache sees only one; as many as there are requests, and the filter has
    /// never seen the prompt that comes.
    #[arg(long, default_value_t = 16)]
    prompts: usize,
    /// Only these sizes (`4 KB`, `64 KB`, `1 MB`) and kinds of text (`no escapes`, `prose`, `code`).
    #[arg(long)]
    only: Vec<String>,
}

impl Options {
    /// Whether one of its sizes, or of its kinds of text, is wanted: naming none of a group wants all of it.
    fn wants(&self, name: &str) -> bool {
        let is_size = |name: &str| name.ends_with('B');
        self.only
            .iter()
            .filter(|only| is_size(only) == is_size(name))
            .fold(None, |wanted, only| Some(wanted == Some(true) || only == name))
            .unwrap_or(true)
    }
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let pair = Pair::start(options.turns.concurrency, &options.turns.sides).await?;
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    let sizes = [
        ("4 KB", 4 << 10, options.requests),
        ("64 KB", 64 << 10, options.requests / 2),
        ("1 MB", 1 << 20, options.requests / 10),
    ];
    for (size, bytes, requests) in sizes.into_iter().filter(|(size, ..)| options.wants(size)) {
        for escapes in [Escapes::None, Escapes::Prose, Escapes::Code] {
            if !options.wants(escapes.as_str()) {
                continue;
            }
            let calls: Vec<Call> = (0..options.prompts.max(1)).map(|nth| chat(bytes, escapes, nth)).collect();
            let what = format!("{size}, {}", escapes.as_str());
            for compared in pair.compare(&options.turns, requests, &calls).await? {
                results.push(compared.json(&what));
                rows.push(compared.cells(&what));
            }
        }
    }
    let Turns { rounds, connections, .. } = &options.turns;
    println!("CPU per request of the Envoy process, {rounds} rounds, {connections} connections");
    output::table(&[["body"].as_slice(), &COLUMNS].concat(), &rows);
    output::result("overhead", &results);
    Ok(())
}
