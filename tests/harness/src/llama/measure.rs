//! What a client sees of the engine.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::fit::FirstToken;
use super::predict::{Arrival, Course};
use super::server::{LlamaServer, MODEL};
use crate::load::{self, Call, Outcome};

/// No request takes so long.
const LONG: Duration = Duration::from_secs(600);

/// One token each in the model's vocabulary, with the space before it.
const WORDS: [&str; 16] = [
    "lorry", "scale", "load", "bridge", "axle", "ton", "road", "gate", "yard", "crane", "ramp", "dock", "belt",
    "cargo", "port", "rail",
];

/// Prompts that differ from the first words on.
#[derive(Debug)]
pub struct Prompts(StdRng);

impl Prompts {
    /// The same seed gives the same prompts.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// So many words, hence as many tokens, and a few of the chat template.
    pub fn words(&mut self, count: usize) -> String {
        (0..count).map(|_| format!(" {}", WORDS[self.0.random_range(0..WORDS.len())])).collect()
    }

    /// Requests of a Poisson process of so many per second: lengths log-uniform within their bounds.
    pub fn arrivals(&mut self, count: usize, per_second: f64, prompt: (f64, f64), output: (f64, f64)) -> Vec<Arrival> {
        let mut at_s = 0.0;
        (0..count)
            .map(|_| {
                at_s -= (1.0 - self.0.random::<f64>()).ln() / per_second;
                let mut between = |(least, most): (f64, f64)| (least * (most / least).powf(self.0.random())) as u64;
                Arrival { at_s, prompt_tokens: between(prompt), output_tokens: between(output) }
            })
            .collect()
    }
}

/// Which seconds count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The wall clock's: what clients see. On a machine that has other things to do, what those do is seen, too.
    Wall,
    /// Those in which the engine computed. With one computing thread that always has work, they are the wall clock's of a
    /// machine that has nothing else to do, but for what shared caches cost.
    Cpu,
}

/// What `work` gives, and the seconds that it took.
async fn timed<T>(server: &LlamaServer, clock: Clock, work: impl Future<Output = T>) -> Result<(T, f64)> {
    let (start, cpu_s) = (Instant::now(), server.cpu_seconds()?);
    let done = work.await;
    let seconds = match clock {
        Clock::Wall => start.elapsed().as_secs_f64(),
        Clock::Cpu => server.cpu_seconds()? - cpu_s,
    };
    Ok((done, seconds.max(f64::MIN_POSITIVE)))
}

/// What a burst came to.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    /// Tokens generated per second, from sending all requests to the end of the last.
    pub tps: f64,
    /// Prompt tokens of a request, on average.
    pub prompt_tokens: f64,
}

/// So many requests at once, with different short prompts and exactly so many tokens each.
///
/// # Errors
/// When one is not answered as asked.
pub async fn burst(
    server: &LlamaServer,
    clock: Clock,
    prompts: &mut Prompts,
    concurrency: usize,
    tokens: u32,
) -> Result<Burst> {
    let calls = (0..concurrency).map(|_| Call::chat_stream(MODEL, &prompts.words(16), tokens).timeout(LONG)).collect();
    let (report, seconds) = timed(server, clock, load::at_once(server.address(), calls)).await?;
    for outcome in &report.outcomes {
        complete(outcome)?;
        ensure!(outcome.tokens == u64::from(tokens), "{} tokens instead of {tokens}", outcome.tokens);
    }
    let read: u64 = report.outcomes.iter().filter_map(|outcome| outcome.usage.prompt_tokens).sum();
    Ok(Burst { tps: concurrency as f64 * f64::from(tokens) / seconds, prompt_tokens: read as f64 / concurrency as f64 })
}

/// A prompt sent alone and answered with one token: what of it was not cached by the engine's own count, and when the token
/// came; and how many tokens were cached.
///
/// # Errors
/// When it is not answered, or without `usage`.
pub async fn first_token(server: &LlamaServer, clock: Clock, prompt: &str) -> Result<(FirstToken, u64)> {
    let call = Call::chat_stream(MODEL, prompt, 1).timeout(LONG);
    let (outcome, seconds) = timed(server, clock, load::send(server.address(), call)).await?;
    complete(&outcome)?;
    let (Some(read), Some(cached)) = (outcome.usage.prompt_tokens, outcome.usage.cached_tokens) else {
        bail!("no prompt tokens or no cached tokens: {outcome:?}");
    };
    Ok((FirstToken { uncached_tokens: read - cached, seconds }, cached))
}

/// Sends requests at their times by the wall clock, whatever became of those before. What they turned out to be, by `usage`, and what became
/// of each.
///
/// # Errors
/// When one is not answered.
pub async fn arrivals(
    server: &LlamaServer,
    prompts: &mut Prompts,
    wanted: &[Arrival],
) -> Result<Vec<(Arrival, Course)>> {
    let (target, begin, mut running) = (server.address(), Instant::now(), JoinSet::new());
    for (nth, arrival) in wanted.iter().copied().enumerate() {
        let text = prompts.words(usize::try_from(arrival.prompt_tokens)?);
        running.spawn(async move {
            sleep_until(begin + Duration::from_secs_f64(arrival.at_s)).await;
            let tokens = u32::try_from(arrival.output_tokens).unwrap_or(u32::MAX);
            (nth, load::send(target, Call::chat_stream(MODEL, &text, tokens).timeout(LONG)).await)
        });
    }
    let mut outcomes = running.join_all().await;
    outcomes.sort_by_key(|(nth, _)| *nth);
    let mut seen = Vec::with_capacity(wanted.len());
    for ((_, outcome), arrival) in outcomes.iter().zip(wanted) {
        complete(outcome)?;
        let uncached = outcome.usage.prompt_tokens.unwrap_or(0) - outcome.usage.cached_tokens.unwrap_or(0);
        let ttft_s = outcome.ttft.unwrap_or_default().as_secs_f64();
        let course = Course { ttft_s, end_s: outcome.duration.as_secs_f64(), output_tokens: outcome.tokens };
        seen.push((Arrival { prompt_tokens: uncached, ..*arrival }, course));
    }
    Ok(seen)
}

/// What is left of the speed of a stream while a long prompt is read beside it, as a share, by the wall clock.
///
/// # Errors
/// When a request is not answered, or the prompt is read too fast to tell.
pub async fn decode_share_during_prefill(
    server: &LlamaServer,
    prompts: &mut Prompts,
    prompt_tokens: usize,
) -> Result<f64> {
    const TOKENS: u32 = 96;
    let stream =
        |text: &str, tokens| load::send(server.address(), Call::chat_stream(MODEL, text, tokens).timeout(LONG));
    let alone = stream(&prompts.words(16), TOKENS).await;
    let (text, long) = (prompts.words(16), prompts.words(prompt_tokens));
    let prompt = async {
        // After the stream's own prompt has been read.
        tokio::time::sleep(alone.ttft.unwrap_or_default() * 2).await;
        stream(&long, 1).await
    };
    let (beside, prompt) = tokio::join!(stream(&text, TOKENS), prompt);
    for outcome in [&alone, &beside, &prompt] {
        complete(outcome)?;
    }
    let (own_s, both_s) = (alone.duration.as_secs_f64(), beside.duration.as_secs_f64());
    let prefill_s = prompt.duration.as_secs_f64();
    ensure!(prefill_s > own_s / 4.0, "the prompt is read within {prefill_s:.2} s: too short to tell");
    Ok((1.0 - (both_s - own_s) / prefill_s).clamp(0.0, 1.0))
}

fn complete(outcome: &Outcome) -> Result<()> {
    let body = String::from_utf8_lossy(&outcome.body);
    ensure!(outcome.is_ok(), "status {:?}, {:?}: {body}", outcome.status, outcome.error);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_as_long_as_asked_and_differ_early() {
        let mut prompts = Prompts::new(1);
        let (one, other) = (prompts.words(100), prompts.words(100));
        assert_eq!((one.split_whitespace().count(), other.split_whitespace().count()), (100, 100));
        let common = one.split(' ').zip(other.split(' ')).take_while(|(a, b)| a == b).count();
        assert!(common < 16, "{common} words in common");
        assert_eq!(Prompts::new(1).words(100), one);
    }

    #[test]
    fn arrivals_come_as_often_as_asked_and_stay_within_bounds() {
        let made = Prompts::new(1).arrivals(4_000, 10.0, (50.0, 800.0), (8.0, 64.0));
        let rate = 4_000.0 / made.last().unwrap().at_s;
        assert!((rate / 10.0 - 1.0).abs() < 0.1, "{rate}");
        assert!(made.iter().all(|a| (50..=800).contains(&a.prompt_tokens) && (8..=64).contains(&a.output_tokens)));
        assert!(made.is_sorted_by(|a, b| a.at_s <= b.at_s));
    }
}
