//! `weighbridge-hints FROM TO`: adds branch hints to the filter's module.
//!
//! A request runs through 120 KB of compiled code, most of it once, and most of what that costs is fetching it. V8 moves what it is told to
//! be unlikely out of the way, so that less has to be fetched; the compiler does not know what is unlikely, and a run does. So this
//! runs the module through a fixed [`course`] of requests, in an interpreter and with a stand-in for Envoy ([`host`]), counts
//! which way each branch goes ([`branches`]), and writes down those that hardly ever go the other way. The hints change where code
//! lies, never what it does; an engine that does not know them passes them by. What they gain: `docs/overhead.md`.
//!
//! The same module gets the same hints, always: the clock, the random numbers and the order of everything are given.

mod branches;
mod course;
mod host;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

/// Fewer branches than this that go one way are no run of the filter: it has 1,500.
const FEWEST: usize = 500;

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [from, to] = arguments.as_slice() else { bail!("usage: weighbridge-hints FROM TO") };
    let module = std::fs::read(from).with_context(|| from.display().to_string())?;
    let counted = branches::counted(&module)?;
    let counts = course::run(&counted.module, counted.branches.len())?;
    let one_sided = branches::one_sided(&counted.branches, &counts);
    ensure!(one_sided.len() >= FEWEST, "only {} branches go one way: expected at least {FEWEST}", one_sided.len());
    let hinted = branches::hinted(&module, &one_sided)?;
    std::fs::write(to, hinted).with_context(|| to.display().to_string())
}
