//! Host calls per request: what the filter asks of Envoy, and how many bytes go over the boundary.

use anyhow::Result;
use harness::echo::Echo;
use harness::hostcalls::{self, Step};
use harness::load::Call;
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};
use serde_json::json;

use crate::output;
use crate::pair::{Escapes, MODEL, Sides, chat};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    sides: Sides,
    /// Lists the calls, one by one.
    #[arg(long)]
    list: bool,
}

/// What is sent, in order: the later ones build on the earlier.
fn cases() -> Vec<(&'static str, Call)> {
    let small = |nth| chat(4 << 10, Escapes::None, nth);
    let large = |nth| chat(64 << 10, Escapes::None, nth);
    vec![
        // Makes what is made once: rows, values, names of metrics.
        ("", small(1)),
        ("", small(1)),
        ("", large(3)),
        ("4 KB, known prompt", small(1)),
        ("4 KB, new prompt", small(2)),
        ("64 KB, known prompt", large(3)),
        ("64 KB, new prompt", large(4)),
    ]
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for (label, wasm) in options.sides.builds() {
        let echo = Echo::start().await?;
        // One endpoint: which of several a new prompt goes to is a matter of chance.
        let fleet = snapshot(vec![pool(MODEL, vec![endpoint("e1", echo.addr(1), 1.0)])]);
        let envoy = Envoy::start(EnvoyOptions { concurrency: 1, wasm, ..EnvoyOptions::fixed(fleet) }).await?;
        for (case, call) in cases() {
            let steps = hostcalls::of(&envoy, &call).await?;
            if case.is_empty() {
                continue;
            }
            let what = [case, label].join(" ").trim_end().to_owned();
            if options.list {
                list(&what, &steps);
            }
            let (calls, callbacks): (Vec<_>, Vec<_>) = steps.iter().partition(|step| step.call().is_some());
            let sum = |of: fn(&Step) -> u64| calls.iter().map(|step| of(step)).sum::<u64>();
            let allocations = sum(|step| u64::from(got(step).is_some()));
            let (bytes_in, bytes_out) = (sum(|step| got(step).unwrap_or(0)), sum(gave));
            let cells = [callbacks.len() as u64, calls.len() as u64, allocations, bytes_in, bytes_out];
            rows.push(std::iter::once(what.clone()).chain(cells.map(|cell| cell.to_string())).collect());
            results.push(json!({
                "what": what, "callbacks": cells[0], "calls": cells[1], "allocations": cells[2],
                "bytes_in": cells[3], "bytes_out": cells[4],
            }));
        }
    }
    output::table(&["request", "callbacks", "host calls", "allocations", "bytes in", "bytes out"], &rows);
    output::result("calls", &results);
    Ok(())
}

fn got(step: &Step) -> Option<u64> {
    match step {
        Step::Call { got, .. } => *got,
        Step::Callback(_) => None,
    }
}

fn gave(step: &Step) -> u64 {
    match step {
        Step::Call { gave, .. } => *gave,
        Step::Callback(_) => 0,
    }
}

fn list(what: &str, steps: &[Step]) {
    println!("{what}:");
    for step in steps {
        match step {
            Step::Callback(name) => println!("{name}"),
            Step::Call { name, got, gave } => println!("    {name}: {} bytes in, {gave} out", got.unwrap_or(0)),
        }
    }
    println!();
}
