//! `top`

use std::io::{self, ErrorKind};

use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::source::Source;
use crate::args::Top;
use crate::client::Prober;
use crate::exit::{Exit, Failure};
use crate::fleet::Fleet;
use crate::output::{Output, plain};
use crate::screen::{Key, Screen};
use crate::view;

pub(super) async fn run(prober: &Prober, out: Output, options: &Top) -> Result<Exit, Failure> {
    let mut source = Source::new(prober.clone(), options.interval);
    // What cannot be reached at all is told in the place where it was asked.
    let first = source.next().await?;
    if !out.is_watched() {
        let iterations = options.iterations.unwrap_or(1);
        return printed(source, first, out.json, iterations, |text| out.line(text)).await;
    }
    watched(source, first, prober, options.iterations).await
}

/// One table after another, or one line of JSON, as long as somebody reads.
async fn printed(
    mut source: Source,
    first: Value,
    json: bool,
    iterations: u64,
    mut write: impl FnMut(&str) -> io::Result<()>,
) -> Result<Exit, Failure> {
    let mut document = first;
    for nth in 1..=iterations {
        let text = match json {
            true => document.to_string(),
            false => {
                let blank = if nth > 1 { "\n" } else { "" };
                format!("{blank}{}", view::everything(&Fleet::of(&document)?, usize::MAX).join("\n"))
            }
        };
        match write(&text) {
            Ok(()) => {}
            // Whoever reads has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Exit::Ok),
            Err(error) => return Err(Failure::usage("output", format!("stdout cannot be written: {error}"))),
        }
        if nth < iterations {
            document = source.next().await?;
        }
    }
    Ok(Exit::Ok)
}

/// The same place again and again, until somebody has seen enough.
async fn watched(mut source: Source, first: Value, prober: &Prober, iterations: Option<u64>) -> Result<Exit, Failure> {
    let unusable = |error: io::Error| Failure::usage("terminal", format!("the terminal cannot be used: {error}"));
    let mut fleet = Fleet::of(&first)?;
    // Before the terminal is taken, and until it is given back: no signal may end the process in between.
    let mut signals = Signals::new().map_err(unusable)?;
    let (keys, mut pressed) = mpsc::unbounded_channel();
    let mut screen = Screen::open(keys).map_err(unusable)?;
    let mut away: Option<String> = None;
    let mut shown = 0;
    loop {
        let title = format!("weighbridge {}    q: quit", prober.url());
        screen.draw(&title, away.as_deref(), |width| view::everything(&fleet, width)).map_err(unusable)?;
        shown += 1;
        if iterations.is_some_and(|iterations| shown >= iterations) {
            return Ok(Exit::Ok);
        }
        tokio::select! {
            Some(key) = pressed.recv() => match key {
                Key::Other => {}
                Key::Quit => return Ok(Exit::Ok),
            },
            () = signals.next() => return Ok(Exit::Ok),
            next = source.next() => match next.and_then(|document| Fleet::of(&document)) {
                Ok(seen) => (fleet, away) = (seen, None),
                // The last that was seen stays, and says so.
                Err(failure) => away = Some(plain(&failure.message)),
            },
        }
    }
}

/// What asks the process to end. From its making on, none of it is lost, whether or not somebody waits.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// When somebody asks.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::tests::taciturn;
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[tokio::test]
    async fn a_signal_that_comes_while_nobody_waits_is_not_lost() {
        let mut signals = Signals::new().unwrap();
        // Twice: it outlives one wait.
        for _ in 0..2 {
            let sent = Command::new("kill").args(["-HUP", &std::process::id().to_string()]).status().unwrap();
            assert!(sent.success());
            tokio::time::timeout(Duration::from_secs(60), signals.next()).await.expect("the signal was lost");
        }
    }

    #[tokio::test]
    async fn nothing_is_printed_for_a_reader_that_has_gone() {
        for (kind, ends) in [(ErrorKind::BrokenPipe, Ok(Exit::Ok)), (ErrorKind::StorageFull, Err("output"))] {
            let mut source = Source::new(taciturn().await, Duration::from_millis(1));
            let first = source.next().await.unwrap();
            let mut lines = 0;
            let write = |_: &str| {
                lines += 1;
                Err(kind.into())
            };
            let ended = printed(source, first, true, 100, write).await.map_err(|failure| failure.code);
            assert_eq!((lines, ended.as_ref().map_err(String::as_str)), (1, ends.as_ref().map_err(|code| *code)));
        }
    }
}
