//! At what load, and what goes wrong meanwhile.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep_until};

use super::arrivals::Arrivals;
use super::engines::Engines;
use crate::workload::{ENGINES, PREFILL_TPS};

/// Mean length of an answer, in tokens: what the simulated engines give when nobody says otherwise.
const OUTPUT_TOKENS: f64 = 64.0;
/// Prompts that an engine prefills at once. As many as it runs: prefill delays its own request and nobody else's.
const ALL_AT_ONCE: usize = 32;
/// A prompt waits until those before it are prefilled.
const ONE_AT_A_TIME: usize = 1;

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
    /// Whether everybody takes part, the control included: requests that no router touches.
    pub everybody: bool,
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
    everybody: false,
    rounds: 1,
};

/// All of them. Those with engines of another kind come last: the prober measures these anew.
pub const SCENARIOS: [Scenario; 7] = [
    Scenario { everybody: true, rounds: 2, ..PLAIN },
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
    // At 60 % of what they decode, prompts bring about three quarters of what the four prefill together, each 6,000 tokens/s: with
    // an average share of hits it can be done, but the fastest decoder cannot prefill the half of all prompts. At 86 % nobody could.
    Scenario {
        name: "serial",
        what: "60 % load; each engine prefills one prompt at a time, so that prefill is what there is least of",
        load: 0.6,
        prefill_lanes: ONE_AT_A_TIME,
        ..PLAIN
    },
];

impl Scenario {
    /// The scenario of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Scenario> {
        SCENARIOS.into_iter().find(|scenario| scenario.name == name)
    }

    /// Its place among [`SCENARIOS`]; of one that is not there, the place after them.
    #[must_use]
    pub fn place(&self) -> usize {
        SCENARIOS.iter().position(|scenario| scenario.name == self.name).unwrap_or(SCENARIOS.len())
    }

    /// Prompt tokens per second that the engines prefill together; `None` where each has room for all its prompts at once.
    #[must_use]
    pub fn prefill_tokens_per_s(&self) -> Option<f64> {
        (self.prefill_lanes < ALL_AT_ONCE).then(|| (self.prefill_lanes * ENGINES.len()) as f64 * PREFILL_TPS)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (place, scenario) in SCENARIOS.iter().enumerate() {
            assert_eq!(SCENARIOS.iter().filter(|other| other.name == scenario.name).count(), 1);
            assert_eq!(Scenario::named(scenario.name).map(|found| found.place()), Some(place));
        }
        assert!(Scenario::named("load1000").is_none());
    }

    // Less, and it would not matter that prompts wait for one another; more, and no router could do it.
    #[tokio::test]
    async fn prefill_is_what_a_serial_fleet_has_least_of() {
        let serial = Scenario::named("serial").unwrap();
        let arrivals = serial.arrivals(60.0, 1).make().await.unwrap();
        let prompts = arrivals.iter().map(|arrival| arrival.prompt_tokens).sum::<u64>() as f64 / 60.0;
        let asked = prompts / serial.prefill_tokens_per_s().unwrap();
        assert!((0.7..0.95).contains(&asked) && asked > serial.load, "{asked}");
    }
}
