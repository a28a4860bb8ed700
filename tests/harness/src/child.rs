//! A child process with its output in files, which dies with its handle.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

use crate::proc;

/// Lines of the log that a failure shows.
const TAIL_LINES: usize = 80;

/// A running child process. Dropped, it is killed; dropped by a failing test, it first prints the end of its log.
#[derive(Debug)]
pub struct ManagedChild {
    name: String,
    child: Child,
    pid: u32,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl ManagedChild {
    /// Starts the command with its output in `<name>.out` and `<name>.err` under `dir`.
    ///
    /// # Errors
    /// When the files or the process cannot be made.
    pub fn spawn(name: &str, mut command: Command, dir: &Path) -> Result<Self> {
        let stdout = dir.join(format!("{name}.out"));
        let stderr = dir.join(format!("{name}.err"));
        let append = |path: &Path| File::options().create(true).append(true).open(path);
        let child = command
            .stdin(Stdio::null())
            .stdout(append(&stdout)?)
            .stderr(append(&stderr)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name} ({:?})", command.as_std().get_program()))?;
        let pid = child.id().context("the process ended before it had an id")?;
        Ok(Self { name: name.to_owned(), child, pid, stdout, stderr })
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it wrote to standard output.
    #[must_use]
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// What it wrote to standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Fails, with the end of the log, when the process is gone.
    ///
    /// # Errors
    /// The process has ended, or its state cannot be read.
    pub fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status})\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// Waits until the process ends by itself.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait().await?)
    }

    /// Asks the process to stop (SIGTERM) and waits; after the deadline it is killed.
    ///
    /// # Errors
    /// When it did not stop in time, or cannot be signalled.
    pub async fn terminate(&mut self, deadline: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        self.signal("TERM").await?;
        match tokio::time::timeout(deadline, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                self.child.kill().await?;
                bail!("{} did not stop within {deadline:?} of SIGTERM\n{}", self.name, self.log_tail());
            }
        }
    }

    /// Stops the process where it is (SIGSTOP): it keeps its sockets, and does nothing until [`Self::resume`].
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn pause(&self) -> Result<()> {
        self.signal("STOP").await
    }

    /// Ends [`Self::pause`] (SIGCONT).
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub async fn resume(&self) -> Result<()> {
        self.signal("CONT").await
    }

    async fn signal(&self, name: &str) -> Result<()> {
        // The shell's own `kill`: sending a signal from Rust takes unsafe code or one more crate.
        let pid = self.pid.to_string();
        let sent = Command::new("sh").args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &pid]).status().await?;
        if !sent.success() {
            bail!("cannot send SIG{name} to {}", self.name);
        }
        Ok(())
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn rss_bytes(&self) -> Result<u64> {
        proc::rss_bytes(self.pid)
    }

    /// Kills the process (SIGKILL) and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// The last lines of what it wrote.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let mut text = String::new();
        for (stream, content) in [("stdout", self.stdout()), ("stderr", self.stderr())] {
            let lines: Vec<_> = content.lines().collect();
            let from = lines.len().saturating_sub(TAIL_LINES);
            if let Some(tail) = lines.get(from..).filter(|tail| !tail.is_empty()) {
                text.push_str(&format!(
                    "--- {} {stream} (last {} lines)\n{}\n",
                    self.name,
                    tail.len(),
                    tail.join("\n")
                ));
            }
        }
        text
    }
}

impl Drop for ManagedChild {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
    }
}
