//! `probe`

use std::io::{IsTerminal, Write};
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use super::source::Source;
use crate::args::Probe;
use crate::client::{ANSWER, Prober};
use crate::exit::{Exit, Failure};
use crate::fleet::Fleet;
use crate::output::{Output, plain};
use crate::progress::Progress;

/// How often it is asked how far it is, where nobody tells, and tried again.
const LOOK: Duration = Duration::from_secs(1);

pub(super) async fn run(prober: &Prober, out: Output, probe: &Probe) -> Result<Exit, Failure> {
    let force = if probe.force { "&force=true" } else { "" };
    if !probe.wait {
        let answer =
            prober.endpoint(Method::POST, &probe.id, &format!("/probe?wait=false{force}"), None, ANSWER).await?;
        out.result(&answer.body, || format!("{} is going to be measured", probe.id));
        return Ok(Exit::Ok);
    }
    let line = Line::new(!out.json && std::io::stderr().is_terminal());
    let mut watch = Watch { id: &probe.id, out, line, progress: Progress::default(), problem: None };
    let mut source = Source::new(prober.clone(), LOOK);
    if !out.json {
        // Before it begins, so that nothing of it is missed. What is wrong with the prober, the answer below tells.
        if let Ok(document) = source.next().await {
            watch.show(Fleet::of(&document));
        }
    }
    let rest = format!("/probe?wait=true{force}");
    let done = prober.endpoint(Method::POST, &probe.id, &rest, None, probe.timeout);
    let mut done = std::pin::pin!(done);
    let record = loop {
        tokio::select! {
            answer = &mut done => break answer.map_err(|failure| late(failure, probe))?.body,
            next = source.next(), if !out.json => watch.show(next.and_then(|document| Fleet::of(&document))),
        }
    };
    watch.line.end();
    out.result(&record, || result(&probe.id, &record));
    Ok(if record.get("error").is_none_or(Value::is_null) { Exit::Ok } else { Exit::Problems })
}

fn late(failure: Failure, probe: &Probe) -> Failure {
    match failure.exit {
        Exit::TimedOut => {
            let message = format!("{} is not measured after {}", probe.id, humantime::format_duration(probe.timeout));
            Failure { message, ..failure }
        }
        _ => failure,
    }
}

/// Who looks on while it goes on.
struct Watch<'a> {
    id: &'a str,
    out: Output,
    line: Line,
    progress: Progress,
    /// Why nothing is seen, as it was told.
    problem: Option<String>,
}

impl Watch<'_> {
    fn show(&mut self, seen: Result<Fleet, Failure>) {
        let fleet = match seen {
            Ok(fleet) => fleet,
            Err(failure) => return self.blind(failure),
        };
        self.problem = None;
        let Some(endpoint) = fleet.endpoint(self.id) else { return };
        if self.line.watched {
            self.line.show(&Progress::bar(endpoint, fleet.now_ms));
        } else if let Some(text) = self.progress.line(endpoint) {
            self.out.note(&text);
        }
    }

    /// Told once, not each time it is tried again.
    fn blind(&mut self, failure: Failure) {
        if self.problem.as_ref() != Some(&failure.message) {
            self.line.end();
            self.out.note(&format!("its progress is not seen: {}", plain(&failure.message)));
            self.problem = Some(failure.message);
        }
    }
}

/// A probe's record in words.
fn result(id: &str, record: &Value) -> String {
    if let Some(error) = record.get("error").and_then(Value::as_str) {
        return format!("{id} was not measured: {}", plain(error));
    }
    let tps =
        |name: &str| record.get(name).and_then(Value::as_f64).map_or_else(|| "-".to_owned(), |tps| format!("{tps:.1}"));
    let mut text = format!("{id}: {} tok/s", tps("throughput_tps"));
    if record.get("warmup_tps").is_some_and(Value::is_number) {
        text += &format!(" (the first burst, which does not count: {})", tps("warmup_tps"));
    }
    if record.get("prefill_tps").is_some_and(Value::is_number) {
        text += &format!(", long prompt {} tok/s", tps("prefill_tps"));
    }
    text
}

/// A line on a terminal that is written again and again.
pub(super) struct Line {
    watched: bool,
    shown: bool,
}

impl Line {
    /// `watched`: somebody looks at stderr.
    pub(super) fn new(watched: bool) -> Self {
        Line { watched, shown: false }
    }

    /// In place of what stood there.
    pub(super) fn show(&mut self, text: &str) {
        if self.watched {
            self.shown = true;
            let width = crossterm::terminal::size().map_or(80, |(width, _)| usize::from(width));
            let text: String = text.chars().take(width.saturating_sub(1)).collect();
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r{text}\u{1b}[K").and_then(|()| stderr.flush());
        }
    }

    /// What comes next is a line of its own.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = writeln!(std::io::stderr());
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_probe_is_told_in_words() {
        let record = json!({"warmup_tps": 275.26, "throughput_tps": 980.0, "prefill_tps": 6000.4, "error": null});
        assert_eq!(
            result("a", &record),
            "a: 980.0 tok/s (the first burst, which does not count: 275.3), long prompt 6000.4 tok/s"
        );
        assert_eq!(result("a", &json!({"throughput_tps": 1.0})), "a: 1.0 tok/s");
        assert_eq!(result("a", &json!({"error": "refused\u{7}"})), "a was not measured: refused\u{fffd}");
    }
}
