//! A light, changing load for the demo: a few people who talk with the model, so that there is something to see.
//!
//! Each has one conversation after another, of a few turns, and thinks between them. How many talk rises and falls within
//! [`PERIOD`], and at its end nobody begins anything: engines are idle then, so that a probe that waits for that gets its turn.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use harness::load::{Client, Conversation};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use weighbridge_routing::rng::SplitMix64;

use crate::demo::MODEL;

/// People, at most.
const PEOPLE: u64 = 5;
/// In which their number rises and falls once.
const PERIOD: Duration = Duration::from_secs(120);
/// How long nobody begins anything at its end.
const LULL: Duration = Duration::from_secs(20);

/// How much load the demo makes for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoLoad {
    /// None.
    Off,
    /// A few conversations, with pauses.
    Light,
}

/// What those who talk share: it makes conversations have prefixes in common, as a product's own prompt does.
const SYSTEM: &str = "You answer questions of people who run machines. You are brief and exact, say what you do not know, name \
    units, and never guess at a number. Where a command helps you give one, with its options in full, and say what it changes \
    before it is run. Where there are two ways you name both and what speaks for each.";

const OPENINGS: [&str; 6] = [
    "Why is the second of two identical cards slower than the first?",
    "How do I find out which process holds the memory of a GPU?",
    "What does it mean when the time to the first token grows and the speed after it does not?",
    "How many requests should one card serve at a time?",
    "What happens to requests under way when a server is restarted?",
    "How large a context window does a support bot need?",
];

const QUESTIONS: [&str; 6] = [
    "And how would I see that from outside?",
    "Which of these would you try first, and why?",
    "Is that still so with long prompts?",
    "What would that look like in the metrics?",
    "Can it be done without a restart?",
    "What is the risk?",
];

/// People who talk until this is dropped.
pub(crate) fn start(gateway: SocketAddr, load: DemoLoad) -> JoinSet<()> {
    let mut people = JoinSet::new();
    let begun = Instant::now();
    for person in 0..if load == DemoLoad::Off { 0 } else { PEOPLE } {
        people.spawn(talk(gateway, person, begun));
    }
    people
}

/// Whether a person talks at this time: the first one nearly always, the last one only when most do.
fn talks(person: u64, since: Duration) -> bool {
    let period = PERIOD.as_millis();
    let (at, busy) = (since.as_millis() % period, (PERIOD - LULL).as_millis());
    // Up and down again: 0 at both ends, 1 in the middle.
    let height = 1.0 - (2.0 * at as f64 / busy as f64 - 1.0).abs();
    at < busy && person as f64 <= height * PEOPLE as f64
}

async fn talk(gateway: SocketAddr, person: u64, begun: Instant) {
    let mut random = SplitMix64::seeded(person);
    let mut client = Client::new(gateway);
    loop {
        let mut conversation = Conversation::new(SYSTEM);
        for turn in 0..=random.below(4) {
            while !talks(person, begun.elapsed()) {
                sleep(Duration::from_millis(500)).await;
            }
            let said = if turn == 0 { OPENINGS } else { QUESTIONS };
            let text = said.get(random.below(said.len() as u64) as usize).copied().unwrap_or_default();
            let tokens = 40 + random.below(120) as u32;
            let outcome = client.send(conversation.ask(MODEL, text, tokens, true)).await;
            // Whatever came of it is to be seen in the page; a gateway that is busy is asked again later.
            conversation.hear(&outcome);
            sleep(Duration::from_millis(1_000 + random.below(4_000))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_number_rises_and_falls_and_all_pause_at_the_end() {
        let many = |second: u64| (0..PEOPLE).filter(|person| talks(*person, Duration::from_secs(second))).count();
        let period = PERIOD.as_secs();
        let busy = period - LULL.as_secs();
        assert_eq!((many(0), many(busy / 2)), (1, PEOPLE as usize));
        assert!(many(busy / 4) > 1 && many(busy / 4) < PEOPLE as usize);
        assert!((busy..period).all(|second| many(second) == 0));
        assert_eq!(many(period + busy / 2), PEOPLE as usize);
    }
}
