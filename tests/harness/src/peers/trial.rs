//! What a streamed request costs a router: whether this machine can show at all how it balances.

use std::time::Duration;

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::Instant;

use super::arrivals::Arrival;
use super::drive::drive;
use super::routers::Running;
use crate::load::Call;
use crate::workload::{MODEL, prose};

/// Requests that are not looked at: programs load what they need when they need it.
const FIRST: usize = 10;
const REQUESTS: usize = 50;
/// As many a second as in the scenarios, about: the fewer streams, the more a token costs, as it comes alone.
const GAP: Duration = Duration::from_millis(40);
const PROMPT_TOKENS: usize = 500;
const OUTPUT_TOKENS: u32 = 64;
/// The share of the machine's cores that a router may ask for alone. It shares them with the engines, with the load generator
/// and with whatever else there is; above this, what it keeps waiting for is the machine, and its figures would say nothing of how it
/// balances.
const MOST_SHARE: f64 = 1.0 / 3.0;

/// CPU seconds of the router per streamed request of 500 tokens in and 64 out, 25 a second.
///
/// # Errors
/// When a request is not answered, or the router has ended.
pub async fn trial(router: &mut Running) -> Result<f64> {
    let front = router.front.clone();
    let begin = || Instant::now() + GAP;
    let warmed = drive(&front, &requests(FIRST, 1), begin()).await;
    let before: f64 = router.cpu_seconds()?.values().sum();
    let sent = drive(&front, &requests(REQUESTS, 2), begin()).await;
    let after: f64 = router.cpu_seconds()?.values().sum();
    for outcome in warmed.iter().chain(&sent).map(|sent| &sent.outcome) {
        outcome.served()?;
    }
    Ok((after - before) / REQUESTS as f64)
}

/// Why a router that uses so many CPU seconds for a request is not measured at this rate; `None` where it is.
#[must_use]
pub fn asks_too_much(cpu_s: f64, per_second: f64, cores: usize) -> Option<String> {
    let asked = cpu_s * per_second;
    (asked > MOST_SHARE * cores as f64).then(|| {
        format!(
            "needs {:.0} ms of CPU per request: {asked:.1} of the machine's {cores} cores at this rate",
            cpu_s * 1e3
        )
    })
}

fn requests(count: usize, seed: u64) -> Vec<Arrival> {
    let mut rng = StdRng::seed_from_u64(seed);
    let request = |nth: usize| Arrival {
        at: GAP * nth as u32,
        body: Call::chat_stream(MODEL, &prose(&mut rng, PROMPT_TOKENS), OUTPUT_TOKENS).body().clone(),
        prompt_tokens: PROMPT_TOKENS as u64,
        hash: format!("{seed:08x}{nth:08x}"),
    };
    (0..count).map(request).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_machine_is_the_most() {
        assert_eq!(asks_too_much(0.007, 26.0, 2), None);
        let why = asks_too_much(0.044, 26.0, 2).unwrap();
        assert_eq!(why, "needs 44 ms of CPU per request: 1.1 of the machine's 2 cores at this rate");
        // A larger machine, or fewer requests.
        assert_eq!((asks_too_much(0.044, 26.0, 8), asks_too_much(0.044, 15.0, 2)), (None, None));
    }

    #[test]
    fn requests_differ() {
        let made = [requests(3, 1), requests(3, 2)].concat();
        assert!(made.iter().enumerate().all(|(nth, one)| made[..nth].iter().all(|other| other.body != one.body)));
    }
}
