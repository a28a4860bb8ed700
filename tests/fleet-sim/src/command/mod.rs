//! The commands.

pub(crate) mod compare;
pub(crate) mod index;
pub(crate) mod scale;
pub(crate) mod show;
pub(crate) mod tune;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use fleet_sim::report::Slo;
use serde_json::{Value, json};

/// Where results go besides the terminal.
#[derive(Debug, Clone, Args)]
pub(crate) struct Out {
    /// Write the JSON document and the plots (SVG) into this directory.
    #[arg(long)]
    out: Option<PathBuf>,
}

impl Out {
    /// Writes a file, if there is anywhere to write it to.
    fn write(&self, name: &str, content: &str) -> anyhow::Result<()> {
        let Some(directory) = &self.out else { return Ok(()) };
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let path = directory.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    }

    fn document(&self, command: &str, document: &Value) -> anyhow::Result<()> {
        self.write(&format!("{command}.json"), &format!("{document:#}\n"))
    }
}

/// The JSON document of a command: with what it was run, and what came out.
fn document(command: &str, parameters: &Value, runs: Vec<Value>) -> Value {
    json!({"format": 1, "program": "fleet-sim", "version": env!("CARGO_PKG_VERSION"), "command": command,
        "parameters": parameters, "runs": runs})
}

/// What a client of a trace is content with: long prompts take their time, whoever computes them.
fn trace_slo(trace: &str) -> Slo {
    Slo { ttft_ms: if trace.eq_ignore_ascii_case("azure") { 2_000.0 } else { 10_000.0 }, tpot_ms: 100.0 }
}

/// A sample that ships for the tests. It was made up; nobody has sent these requests.
fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name)
}

/// Seconds that this process has had a processor, where the system tells: on a busy machine, what a run costs and not how long
/// it took.
fn cpu_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split_whitespace().next()?.parse::<f64>().ok().map(|ns| ns / 1e9)
}

/// Measures what a run costs.
struct Stopwatch {
    cpu_s: Option<f64>,
    began: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        Self { cpu_s: cpu_s(), began: Instant::now() }
    }

    /// Seconds since the start, of processor time where the system tells.
    fn seconds(&self) -> f64 {
        match (self.cpu_s, cpu_s()) {
            (Some(from), Some(to)) => to - from,
            _ => self.began.elapsed().as_secs_f64(),
        }
        .max(f64::MIN_POSITIVE)
    }
}
