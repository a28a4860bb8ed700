//! `top`

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use crate::args::Top;
use crate::client::{Events, Prober};
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
        return printed(source, first, out, options.iterations.unwrap_or(1)).await;
    }
    watched(source, first, prober, options.iterations).await
}

/// One table after another.
async fn printed(mut source: Source, first: Value, out: Output, iterations: u64) -> Result<Exit, Failure> {
    let mut document = first;
    for nth in 1..=iterations {
        match out.json {
            true => out.compact(&document),
            false => {
                let blank = if nth > 1 { "\n" } else { "" };
                out.line(&format!("{blank}{}", view::everything(&Fleet::of(&document), usize::MAX).join("\n")));
            }
        }
        if nth < iterations {
            document = source.next().await?;
        }
    }
    Ok(Exit::Ok)
}

/// The same place again and again, until somebody has seen enough.
async fn watched(mut source: Source, first: Value, prober: &Prober, iterations: Option<u64>) -> Result<Exit, Failure> {
    let unusable = |error: std::io::Error| Failure::usage("terminal", format!("the terminal cannot be used: {error}"));
    let (keys, mut pressed) = mpsc::unbounded_channel();
    let mut screen = Screen::open(keys).map_err(unusable)?;
    let mut fleet = Fleet::of(&first);
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
            () = ended() => return Ok(Exit::Ok),
            next = source.next() => match next {
                Ok(document) => (fleet, away) = (Fleet::of(&document), None),
                // The last that was seen stays, and says so.
                Err(failure) => away = Some(plain(&failure.message)),
            },
        }
    }
}

/// Somebody asks the process to end.
async fn ended() {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = async |kind| match signal(kind) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = wait(SignalKind::terminate()) => {}
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::hangup()) => {}
    }
}

/// The fleet as it changes: from the stream, and where there is none by asking.
struct Source {
    prober: Prober,
    interval: Duration,
    events: Option<Events>,
    /// The prober has no stream for us.
    asks: bool,
    begun: bool,
}

impl Source {
    fn new(prober: Prober, interval: Duration) -> Self {
        Source { prober, interval, events: None, asks: false, begun: false }
    }

    async fn next(&mut self) -> Result<Value, Failure> {
        if let Some(events) = &mut self.events {
            if let Some(document) = events.next().await {
                return Ok(document);
            }
            self.events = None;
        }
        if std::mem::replace(&mut self.begun, true) {
            tokio::time::sleep(self.interval).await;
        }
        if !self.asks {
            match self.prober.events().await {
                Ok(mut events) => {
                    if let Some(document) = events.next().await {
                        self.events = Some(events);
                        return Ok(document);
                    }
                }
                // An older prober, or too many who look.
                Err(failure) if ["no_route", "too_many_streams"].contains(&failure.code.as_str()) => self.asks = true,
                Err(failure) => return Err(failure),
            }
        }
        self.prober.get("/v1/fleet").await
    }
}
