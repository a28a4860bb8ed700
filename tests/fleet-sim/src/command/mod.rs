//! The commands.

pub(crate) mod compare;
pub(crate) mod index;
pub(crate) mod scale;
pub(crate) mod show;
pub(crate) mod tune;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
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

/// A sample that ships for the tests. It was made up; nobody has sent these requests.
fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name)
}
