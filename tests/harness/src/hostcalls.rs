//! What a request makes the filter ask of Envoy, call by call, as Envoy's own trace of its wasm engine has it.
//!
//! The trace has a line per crossing, with the arguments as numbers: a callback (`[host->vm]`), a host call (`[vm->host]`), and inside
//! a host call the memory that Envoy takes from the module for what it hands over. It slows everything down, and is for counting only.

use anyhow::{Context, Result, ensure};

use crate::Envoy;
use crate::load::{self, Call};

/// One crossing between Envoy and the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Envoy calls the module.
    Callback(String),
    /// The module calls Envoy.
    Call {
        /// Without its module, such as `proxy_get_property`.
        name: String,
        /// Bytes that the module got, for which Envoy called it back once more; `None` where there were none.
        got: Option<u64>,
        /// Bytes that the module gave, keys and names aside.
        gave: u64,
    },
}

impl Step {
    /// The name of a host call.
    #[must_use]
    pub fn call(&self) -> Option<&str> {
        match self {
            Step::Call { name, .. } => Some(name),
            Step::Callback(_) => None,
        }
    }
}

/// Sends a request through an Envoy with one worker thread, nothing else being under way, and gives all that happened for it.
///
/// # Errors
/// When it is not answered with 200, or the trace does not have the whole of it.
pub async fn of(envoy: &Envoy, call: &Call) -> Result<Vec<Step>> {
    envoy.admin_post("/logging?wasm=trace").await?;
    let before = envoy.log().len();
    let call = call.clone();
    let report = load::closed_loop(envoy.gateway(), 1, 1, move |_| call.clone()).await;
    ensure!(report.ok() == 1, "not answered: {:?}", report.by_status());
    let deadline = std::time::Duration::from_secs(10);
    crate::eventually("the request's last callback in the trace", deadline, async || {
        let log = envoy.log();
        steps(log.get(before..).unwrap_or_default())
    })
    .await
}

/// The steps of the only request in a trace.
fn steps(trace: &str) -> Result<Vec<Step>> {
    let lines = || trace.lines().filter_map(Line::of);
    let first = lines().find(|line| line.is("[host->vm]", "proxy_on_request_headers")).context("no request began")?;
    let context = first.argument(0);
    let mut steps = Vec::new();
    // A tick may come in between, and the main thread's always do.
    let mut foreign = false;
    for line in lines().filter(|line| line.thread == first.thread) {
        match line.way {
            "[host->vm]" if line.name == "proxy_on_memory_allocate" => {
                if let Some(Step::Call { got, .. }) = steps.last_mut().filter(|_| !foreign) {
                    *got = line.argument(0);
                }
            }
            "[host->vm]" => {
                foreign = line.name == "proxy_on_tick" || line.argument(0) != context;
                if !foreign {
                    steps.push(Step::Callback(line.name.to_owned()));
                }
            }
            "[vm->host]" if !foreign => {
                steps.push(Step::Call { name: line.name.to_owned(), got: None, gave: line.gave() });
            }
            "[host<-vm]" if !foreign && line.name == "proxy_on_log" => return Ok(steps),
            _ => {}
        }
    }
    anyhow::bail!("the request has not ended: {} steps", steps.len())
}

/// A line of the trace: `[time][thread][trace][wasm] [file:line] [vm->host] env.proxy_log(2, 1024, 10)`.
struct Line<'a> {
    thread: &'a str,
    way: &'a str,
    name: &'a str,
    arguments: &'a str,
}

impl<'a> Line<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (head, call) = ["[host->vm]", "[vm->host]", "[host<-vm]", "[vm<-host]"].iter().find_map(|way| {
            let at = line.find(way)?;
            line.split_at_checked(at)
        })?;
        let thread = head.split("][").nth(1)?;
        let (way, call) = call.split_once(' ')?;
        let end = call.find(['(', ' ']).unwrap_or(call.len());
        let (name, arguments) = call.split_at_checked(end)?;
        let name = name.rsplit('.').next()?;
        Some(Line { thread, way, name, arguments: arguments.trim_matches(['(', ')']) })
    }

    fn is(&self, way: &str, name: &str) -> bool {
        self.way == way && self.name == name
    }

    fn argument(&self, nth: usize) -> Option<u64> {
        self.arguments.split(", ").nth(nth)?.parse().ok()
    }

    /// Bytes of the value that a call hands over, by where its length stands among the arguments.
    fn gave(&self) -> u64 {
        let nth = match self.name {
            "proxy_set_shared_data" | "proxy_set_property" => 3,
            "proxy_replace_header_map_value" | "proxy_set_buffer_bytes" => 4,
            _ => return 0,
        };
        self.argument(nth).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_found_among_ticks_and_other_threads() {
        let trace = "\
[2026-01-01 00:00:00.000][7][trace][wasm] [source/x.cc:39] [host->vm] proxy_on_tick(1)
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [host->vm] proxy_on_request_headers(5, 10, 0)
[2026-01-01 00:00:00.000][7][trace][wasm] [source/x.cc:39] [vm->host] wasi_snapshot_preview1.clock_time_get(1, 1, 16)
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [vm->host] env.proxy_get_header_map_value(0, 64, 5, 16, 20)
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [host->vm] proxy_on_memory_allocate(20)
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [host<-vm] proxy_on_memory_allocate return: 4096
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [vm<-host] env.proxy_get_header_map_value return: 0
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [host<-vm] proxy_on_request_headers return: 1
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [host->vm] proxy_on_tick(1)
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [vm->host] env.proxy_increment_metric(1, 1)
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [host<-vm] proxy_on_tick return: void
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [host->vm] proxy_on_log(5)
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [vm->host] env.proxy_set_property(64, 20, 128, 731)
[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [vm<-host] env.proxy_set_property return: 0
";
        assert!(steps(trace).is_err());
        let whole = format!(
            "{trace}[2026-01-01 00:00:00.000][8][trace][wasm] [source/x.cc:39] [host<-vm] proxy_on_log return: void\n"
        );
        let call = |name: &str, got, gave| Step::Call { name: name.to_owned(), got, gave };
        let expected = [
            Step::Callback("proxy_on_request_headers".to_owned()),
            call("proxy_get_header_map_value", Some(20), 0),
            Step::Callback("proxy_on_log".to_owned()),
            call("proxy_set_property", None, 731),
        ];
        assert_eq!(steps(&whole).unwrap(), expected);
    }
}
