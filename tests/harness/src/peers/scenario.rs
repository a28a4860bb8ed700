//! At what load, and what goes wrong meanwhile.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep_until};

use super::arrivals::Arrivals;
use super::engines::Engines;
use crate::workload::ENGINES;

/// Mean length of an answer, in tokens: what the simulated engines give when nobody says otherwise.
const OUTPUT_TOKENS: f64 = 64.0;
/// Prompts that an engine prefills at once. As many as it runs: prefill delays its own request and nobody else's.
const ALL_AT_ONCE: usize = 32;

/// Something that happens while requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// An engine becomes slower by a factor; its health checks are answered as before.
    Slow(&'static str, f64),
    /// An engine's process is killed, and does not come back.
    Kill(&'static str),
}

/// One scenario.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, for people.
    pub what: &'static str,
    /// Output tokens per second that are asked for, as a share of what the fleet gives with 16 requests at each engine.
    pub load: f64,
    /// Share of the requests that are turns of conversations.
    pub conversations: f64,
    /// Prompts that each engine prefills at once.
    pub prefill_lanes: usize,
    /// What happens in the middle.
    pub event: Option<Event>,
    /// Whether the control takes part: requests that no router touches.
    pub control: bool,
    /// Rounds, unless the command line says otherwise.
    pub rounds: usize,
}

const PLAIN: Scenario = Scenario {
    name: "load86",
    what: "86 % load",
    load: 0.86,
    conversations: 0.6,
    prefill_lanes: ALL_AT_ONCE,
    event: None,
    control: false,
    rounds: 1,
};

/// All of them.
pub const SCENARIOS: [Scenario; 6] = [
    Scenario { control: true, rounds: 2, ..PLAIN },
    Scenario { name: "load50", what: "50 % load", load: 0.5, ..PLAIN },
    Scenario { name: "load120", what: "120 % load (overload)", load: 1.2, ..PLAIN },
    Scenario { name: "noreuse", what: "86 % load, prompts that have nothing in common", conversations: 0.0, ..PLAIN },
    Scenario {
        name: "slow",
        what: "60 % load; half-way the second fastest engine becomes four times as slow, and says that it is healthy",
        load: 0.6,
        event: Some(Event::Slow("e479", 4.0)),
        ..PLAIN
    },
    Scenario {
        name: "killed",
        what: "60 % load; half-way the second fastest engine is killed",
        load: 0.6,
        event: Some(Event::Kill("e479")),
        ..PLAIN
    },
];

impl Scenario {
    /// The scenario of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Scenario> {
        SCENARIOS.into_iter().find(|scenario| scenario.name == name)
    }

    /// Output tokens per second that are asked for.
    #[must_use]
    pub fn tokens_per_s(&self) -> f64 {
        self.load * ENGINES.iter().map(|(_, curve, _)| curve[2]).sum::<f64>()
    }

    /// Requests per second, about.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.tokens_per_s() / OUTPUT_TOKENS
    }

    /// Its requests.
    #[must_use]
    pub fn arrivals(&self, seconds: f64, seed: u64) -> Arrivals {
        Arrivals {
            seconds,
            per_second: self.per_second(),
            tokens_per_s: self.tokens_per_s(),
            conversations: self.conversations,
            seed,
        }
    }

    /// Lets happen what happens, so long after the beginning.
    ///
    /// # Errors
    /// When an engine does not do as it is told.
    pub async fn happen(&self, engines: &mut Engines, begin: Instant, after: Duration) -> Result<()> {
        let Some(event) = self.event else { return Ok(()) };
        sleep_until(begin + after).await;
        match event {
            Event::Slow(name, factor) => engines.slow(name, factor).await,
            Event::Kill(name) => engines.kill(name).await,
        }
    }
}
