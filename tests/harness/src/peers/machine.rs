//! Where it was measured.

use std::fs;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::artifacts;

/// The machine, as Linux describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors.
    pub cores: usize,
    /// What they are.
    pub cpu: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// This one, now.
    #[must_use]
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kilobytes: u64 = memory.trim_end_matches("kB").trim().parse().unwrap_or(0);
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            memory_bytes: kilobytes * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// Load averages over 1, 5 and 15 minutes: what else is going on.
#[must_use]
pub fn load_averages() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Whether what is checked out now came after this commit, or is it; so, too, where nobody can say.
pub async fn came_after(commit: &str) -> bool {
    let commit = commit.trim_end_matches('+');
    let mut git = Command::new("git");
    git.current_dir(artifacts::root()).args(["merge-base", "--is-ancestor", commit, "HEAD"]);
    // 1: it is no ancestor; 128: it does not exist, or there is no repository.
    let known = Command::new("git").current_dir(artifacts::root()).args(["rev-parse", "HEAD"]).output().await;
    match (known, git.output().await) {
        (Ok(head), Ok(asked)) if head.status.success() => asked.status.success(),
        _ => true,
    }
}

/// The commit that is checked out, with a `+` when files have been changed since; empty outside a repository.
pub async fn commit() -> String {
    let git = async |arguments: &[&str]| {
        let output = Command::new("git").current_dir(artifacts::root()).args(arguments).output().await;
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).await;
    // What the benchmark itself writes is no change to what it measures.
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"]).await;
    if changed.is_empty() { commit } else { format!("{commit}+") }
}
