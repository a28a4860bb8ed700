//! What Linux knows about a process.

use std::fs;

use anyhow::{Context, Result};

/// Ticks per second of `/proc/<pid>/stat`: fixed at 100 for everything that user space sees on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resident memory in bytes.
pub(crate) fn rss_bytes(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmRSS:")
}

fn status_bytes(pid: u32, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).with_context(|| format!("no {field}"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}

/// User and system time of all threads in seconds: to the nanosecond where the scheduler keeps it (`schedstat`), else to
/// the tick of 10 ms.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    match scheduled_seconds(pid) {
        Ok(seconds) if seconds > 0.0 => Ok(seconds),
        _ => tick_seconds(pid),
    }
}

/// A process and all that descend from it, as they are now.
pub(crate) fn tree(root: u32) -> Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        // One that has just ended is nobody's child any more.
        if let Ok(parent) = stat(pid).and_then(|fields| fields.number(PARENT)) {
            parents.push((pid, parent as u32));
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(found)
}

/// User and system time of a process, of all that descend from it, and of those of them that have ended and were waited for.
pub(crate) fn tree_cpu_seconds(root: u32) -> Result<f64> {
    let mut seconds = 0.0;
    for pid in tree(root)? {
        let ended = stat(pid).and_then(|fields| Ok(fields.number(CHILDREN_USER)? + fields.number(CHILDREN_SYSTEM)?));
        if let (Ok(own), Ok(ended)) = (cpu_seconds(pid), ended) {
            seconds += own + ended as f64 / TICKS_PER_SECOND;
        }
    }
    Ok(seconds)
}

/// The most resident memory that each of a process and its descendants ever had, together, in bytes.
pub(crate) fn tree_peak_rss_bytes(root: u32) -> Result<u64> {
    Ok(tree(root)?.into_iter().filter_map(|pid| status_bytes(pid, "VmHWM:").ok()).sum())
}

fn scheduled_seconds(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0_u64;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let schedstat = fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += schedstat.split(' ').next().context("empty schedstat")?.parse::<u64>()?;
    }
    Ok(nanoseconds as f64 / 1e9)
}

fn tick_seconds(pid: u32) -> Result<f64> {
    let fields = stat(pid)?;
    Ok((fields.number(USER)? + fields.number(SYSTEM)?) as f64 / TICKS_PER_SECOND)
}

/// Places in `/proc/<pid>/stat`, counted from the process's state.
const PARENT: usize = 1;
const USER: usize = 11;
const SYSTEM: usize = 12;
const CHILDREN_USER: usize = 13;
const CHILDREN_SYSTEM: usize = 14;

/// What `/proc/<pid>/stat` says after the program's name.
struct Stat(String);

impl Stat {
    fn number(&self, place: usize) -> Result<u64> {
        Ok(self.0.split(' ').nth(place).context("stat is too short")?.parse()?)
    }
}

fn stat(pid: u32) -> Result<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may hold anything, even spaces.
    let (_, fields) = stat.rsplit_once(") ").context("stat has another form")?;
    Ok(Stat(fields.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_run() {
        let pid = std::process::id();
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_millis(60) {
            std::hint::black_box(0);
        }
        assert!(cpu_seconds(pid).unwrap() > 0.0);
        assert!(tick_seconds(pid).unwrap() > 0.0);
        assert!(rss_bytes(pid).unwrap() > 100_000);
    }

    #[test]
    fn a_tree_has_its_children_and_what_they_used() {
        // The inner shell works until the kernel has counted some of it: a tick of user time is in the 14th field.
        let work = r"sh -c 'until read _ _ _ _ _ _ _ _ _ _ _ _ _ user _ </proc/$$/stat && [ $user -gt 1 ]; do :; done'";
        let script = format!("{work}; sleep 30 & wait");
        let mut shell = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let start = std::time::Instant::now();
        let tree = loop {
            let found = tree(shell.id()).unwrap();
            let sleeps =
                |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
            if found.iter().any(sleeps) {
                break found;
            }
            assert!(start.elapsed() < std::time::Duration::from_secs(60), "{found:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        // The inner shell has ended; what it used is the outer one's children's.
        assert_eq!(tree.len(), 2, "{tree:?}");
        assert!(tree_cpu_seconds(shell.id()).unwrap() > cpu_seconds(shell.id()).unwrap());
        assert!(tree_peak_rss_bytes(shell.id()).unwrap() > rss_bytes(shell.id()).unwrap());
        for pid in tree.iter().rev() {
            std::process::Command::new("sh").args(["-c", &format!("kill {pid}")]).status().unwrap();
        }
        shell.wait().unwrap();
    }
}
