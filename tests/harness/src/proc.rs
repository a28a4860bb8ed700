//! What Linux knows about a process.

use std::fs;

use anyhow::{Context, Result};

/// Ticks per second of `/proc/<pid>/stat`: fixed at 100 for everything that user space sees on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resident memory in bytes.
pub(crate) fn rss_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
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

fn scheduled_seconds(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0_u64;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let schedstat = fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += schedstat.split(' ').next().context("empty schedstat")?.parse::<u64>()?;
    }
    Ok(nanoseconds as f64 / 1e9)
}

fn tick_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses and may hold anything, even spaces.
    let (_, fields) = stat.rsplit_once(") ").context("stat has another form")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || anyhow::Ok(fields.next().context("stat is too short")?.parse::<u64>()?);
    Ok((ticks()? + ticks()?) as f64 / TICKS_PER_SECOND)
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
}
