//! Where the things lie that `scripts/build` makes. A missing or outdated one is an error that says what to run: a test
//! that quietly passes against yesterday's module is worse than one that does not run.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

/// The repository.
#[must_use]
pub fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root.pop();
    root
}

fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Envoy: `ENVOY_PATH`, else what `scripts/setup` installed.
///
/// # Errors
/// When there is none.
pub fn envoy() -> Result<PathBuf> {
    tool("ENVOY_PATH", "envoy")
}

/// Redis: `REDIS_SERVER`, else what `scripts/setup` found or installed.
///
/// # Errors
/// When there is none.
pub fn redis() -> Result<PathBuf> {
    tool("REDIS_SERVER", "redis-server")
}

/// What `scripts/bench --install-real` made.
///
/// # Errors
/// When it is not there.
pub fn real(name: &str) -> Result<PathBuf> {
    let path = root().join(".tools/real").join(name);
    if !path.exists() {
        bail!("no {name} at {}: run scripts/bench --install-real first", path.display());
    }
    Ok(path)
}

fn tool(variable: &str, name: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable).map_or_else(|| root().join(".tools/bin").join(name), PathBuf::from);
    if !path.exists() {
        bail!("no {name} at {}: run scripts/setup first", path.display());
    }
    Ok(path)
}

/// What the filter's module is made of.
const FILTER: [&str; 3] = ["filter/src", "filter/hints/src", "routing/src"];

/// The filter: `WEIGHBRIDGE_WASM`, else `dist/weighbridge.wasm`.
///
/// # Errors
/// When it is missing or older than its sources.
pub fn wasm() -> Result<PathBuf> {
    match std::env::var_os("WEIGHBRIDGE_WASM") {
        Some(path) => Ok(path.into()),
        None => fresh(&root().join("dist/weighbridge.wasm"), &FILTER, "scripts/build"),
    }
}

/// The filter that panics on request: `WEIGHBRIDGE_FAULT_WASM`, else what `scripts/build --fault-injection` made.
///
/// # Errors
/// When it is missing or older than its sources.
pub fn fault_wasm() -> Result<PathBuf> {
    match std::env::var_os("WEIGHBRIDGE_FAULT_WASM") {
        Some(path) => Ok(path.into()),
        None => {
            fresh(&target_dir().join("test-wasm/weighbridge-fault.wasm"), &FILTER, "scripts/build --fault-injection")
        }
    }
}

/// The prober: `WEIGHBRIDGE_PROBER`, else `dist/weighbridge-prober`.
///
/// # Errors
/// When it is missing or older than its sources.
pub fn prober() -> Result<PathBuf> {
    match std::env::var_os("WEIGHBRIDGE_PROBER") {
        Some(path) => Ok(path.into()),
        None => fresh(
            &root().join("dist/weighbridge-prober"),
            &["prober/src", "prober/page", "prober/xds/src", "routing/src"],
            "scripts/build",
        ),
    }
}

/// The command line: `WEIGHBRIDGE_CLI`, else `dist/weighbridge`.
///
/// # Errors
/// When it is missing or older than its sources.
pub fn cli() -> Result<PathBuf> {
    match std::env::var_os("WEIGHBRIDGE_CLI") {
        Some(path) => Ok(path.into()),
        None => fresh(
            &root().join("dist/weighbridge"),
            &["prober/cli/src", "prober/bootstrap/src", "prober/src", "routing/src", "envoy"],
            "scripts/build",
        ),
    }
}

/// The path, if the file is there and no source is newer.
fn fresh(path: &Path, sources: &[&str], command: &str) -> Result<PathBuf> {
    let built = std::fs::metadata(path)
        .and_then(|meta| meta.modified())
        .with_context(|| format!("{} is missing: run {command} first", path.display()))?;
    for source in sources {
        if let Some(newer) = newer_than(&root().join(source), built)? {
            bail!("{} is older than {}: run {command} first", path.display(), newer.display());
        }
    }
    Ok(path.to_owned())
}

fn newer_than(directory: &Path, built: SystemTime) -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        // Tests are not in what is built.
        if ["tests", "tests.rs"].contains(&entry.file_name().to_string_lossy().as_ref()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            if let Some(newer) = newer_than(&entry.path(), built)? {
                return Ok(Some(newer));
            }
        } else if entry.metadata()?.modified()? > built {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}
