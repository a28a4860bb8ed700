//! The warmed burst: what an endpoint can carry.
//!
//! `concurrency` chat requests at once (16), each of exactly `tokens` output tokens (128), sent straight to the engine,
//! twice. Only the second burst counts: a cold engine compiles and captures graphs on its first requests (275 tok/s
//! instead of 1,000). Throughput = completion tokens, as the engine's own `usage` reports them, / wall time.
//!
//! Prompts are short and all differ, so that neither prefill nor a prefix cache colours the figure. A burst during which
//! the engine ran more than our own requests measured somebody else too, and is thrown away. Whoever calls makes sure that
//! the engine is idle; between the bursts it is waited for, since some engines' gauges trail ([`SETTLE`]).
//!
//! Then one request with a long prompt ([`prompt`]) and one output token tells how fast the engine reads: prefill speed
//! = prompt tokens, as `usage` reports them, / wall time. That includes one decode step and the HTTP round trip, some
//! percent of the second or so that 8,192 tokens take. The prompt is at most half of the context window. An engine that
//! refuses it, or does not answer in time, has its throughput all the same, and an unknown prefill speed.
//!
//! At last, where the pool's caps are measured or it compares by curve, the [`sweep`] of concurrency.

mod prompt;
mod sweep;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::try_join_all;

use crate::caps::Curve;
use crate::config::Probe;
use crate::engine::{Client, EngineError};
use crate::registry::{Phase, Step};

/// How often the engine's running count is read during a burst.
const WATCH: Duration = Duration::from_millis(100);
/// How long an engine's gauges may take to see the end of a burst: SGLang's stand still for up to 30 s when nothing comes, and are read a
/// little later.
const SETTLE: Duration = Duration::from_secs(35);
/// The longest that one reading may take.
const SCRAPE: Duration = Duration::from_secs(2);

/// Why a probe gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A request of the burst failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It took longer than `probe.timeout`.
    #[error("it took longer than {}", humantime::format_duration(*.0))]
    Timeout(Duration),
    /// Somebody else was there.
    #[error("the engine ran {0} requests, more than our own")]
    Disturbed(u64),
    /// No tokens.
    #[error("the engine counted no tokens")]
    Nothing,
}

/// What a probe has found, in tokens per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Bursts {
    /// The first burst, which only warms up.
    pub warmup_tps: f64,
    /// The second, which counts.
    pub throughput_tps: f64,
    /// Prefill speed, or why it is unknown; `None` when it was not to be measured.
    pub prefill_tps: Option<Result<f64, String>>,
    /// Throughput over concurrency, or why it is unknown; `None` when it was not to be measured.
    pub curve: Option<Result<Curve, String>>,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Where.
    pub engine: SocketAddr,
    /// What the engine calls its model.
    pub model: &'a str,
    /// Its context window in tokens, where known.
    pub window: Option<u32>,
    /// Whether throughput is to be measured over concurrency.
    pub sweep: bool,
}

/// Whether it matters what else the engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// A result beside somebody else's requests is thrown away.
    Refused,
    /// The operator forced the probe, and has it as it comes.
    Accepted,
}

/// Is told how far a probe is. It must not wait.
pub type Report<'a> = &'a (dyn Fn(Step) + Sync);

/// Measures an engine. `round` makes the prompts differ from those of every other probe.
///
/// # Errors
/// When there is no clean result.
pub async fn measure(
    client: &Client,
    target: Target<'_>,
    settings: &Probe,
    company: Company,
    round: u64,
    report: Report<'_>,
) -> Result<Bursts, ProbeError> {
    let burst = |nth| burst(client, target, settings, company, (round, nth), report);
    report(Step::Begins(Phase::Warmup, settings.concurrency));
    let warmup_tps = burst(1).await?;
    report(Step::Warmed(warmup_tps));
    if company == Company::Refused {
        report(Step::Begins(Phase::Settling, 0));
        settle(client, target.engine).await?;
    }
    report(Step::Begins(Phase::Kept, settings.concurrency));
    let throughput_tps = burst(2).await?;
    report(Step::Measured(throughput_tps));
    let prefill_tps = match prefill_tokens(settings, target.window) {
        0 => None,
        tokens => Some(read_speed(client, target, settings, company, (round, tokens), report).await?),
    };
    let curve =
        if target.sweep { Some(sweep::sweep(client, target, settings, company, round, report).await?) } else { None };
    Ok(Bursts { warmup_tps, throughput_tps, prefill_tps, curve })
}

/// The prefill speed, or why it is unknown.
async fn read_speed(
    client: &Client,
    target: Target<'_>,
    settings: &Probe,
    company: Company,
    (round, tokens): (u64, u32),
    report: Report<'_>,
) -> Result<Result<f64, String>, ProbeError> {
    if company == Company::Refused {
        report(Step::Begins(Phase::Settling, 0));
        settle(client, target.engine).await?;
    }
    report(Step::Begins(Phase::Prefill, 1));
    match prefill(client, target, settings, company, &prompt::long(tokens, round, target.engine)).await {
        // Somebody came while it was measured: that is true of the whole probe.
        Err(disturbed @ ProbeError::Disturbed(_)) => Err(disturbed),
        result => Ok(result.map_err(|error| error.to_string())),
    }
}

/// How long the long prompt is to be, in tokens: never more than half of the window.
pub(crate) fn prefill_tokens(settings: &Probe, window: Option<u32>) -> u32 {
    window.map_or(settings.prefill_tokens, |window| settings.prefill_tokens.min(window / 2))
}

async fn burst(
    client: &Client,
    target: Target<'_>,
    settings: &Probe,
    company: Company,
    (round, nth): (u64, u32),
    report: Report<'_>,
) -> Result<f64, ProbeError> {
    let requests = (0..settings.concurrency).map(|request| {
        let prompt = format!("{round:x}-{nth}-{request}: count upwards from {request}.");
        async move {
            let usage = client.generate(target.engine, target.model, &prompt, settings.tokens).await;
            report(Step::Done);
            usage
        }
    });
    let all = async {
        let usages = try_join_all(requests).await?;
        Ok(usages.iter().map(|usage| usage.completion_tokens).sum::<u64>())
    };
    speed(timed(all, client, target.engine, settings, company).await?)
}

async fn prefill(
    client: &Client,
    target: Target<'_>,
    settings: &Probe,
    company: Company,
    prompt: &str,
) -> Result<f64, ProbeError> {
    let one = async {
        let usage = client.generate(target.engine, target.model, prompt, 1).await?;
        usage.prompt_tokens.ok_or_else(|| EngineError::Http("no usage.prompt_tokens in the answer".into()))
    };
    let settings = Probe { concurrency: 1, ..*settings };
    speed(timed(one, client, target.engine, &settings, company).await?)
}

/// Tokens per second.
fn speed((tokens, elapsed_s): (u64, f64)) -> Result<f64, ProbeError> {
    if tokens == 0 { Err(ProbeError::Nothing) } else { Ok(tokens as f64 / elapsed_s) }
}

/// What comes of `work`, which sends `settings.concurrency` requests, and how many seconds it took.
async fn timed<T>(
    work: impl Future<Output = Result<T, EngineError>>,
    client: &Client,
    engine: SocketAddr,
    settings: &Probe,
    company: Company,
) -> Result<(T, f64), ProbeError> {
    let start = Instant::now();
    let done = tokio::select! {
        done = work => done?,
        disturbed = watch(client, engine, settings.concurrency.into()), if company == Company::Refused => {
            return Err(disturbed);
        }
        () = tokio::time::sleep(settings.timeout) => return Err(ProbeError::Timeout(settings.timeout)),
    };
    Ok((done, start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE)))
}

/// Waits until the engine's gauges have seen the end of a burst.
async fn settle(client: &Client, engine: SocketAddr) -> Result<(), ProbeError> {
    let deadline = Instant::now() + SETTLE;
    loop {
        match undisturbed(client, engine, 0).await {
            Err(disturbed) if Instant::now() >= deadline => return Err(disturbed),
            Err(_) => tokio::time::sleep(WATCH).await,
            Ok(()) => return Ok(()),
        }
    }
}

/// Returns when the engine runs more than our own requests.
async fn watch(client: &Client, engine: SocketAddr, own: u64) -> ProbeError {
    loop {
        tokio::time::sleep(WATCH).await;
        if let Err(disturbed) = undisturbed(client, engine, own).await {
            return disturbed;
        }
    }
}

/// An engine that does not tell its running count cannot be watched; the burst counts all the same.
async fn undisturbed(client: &Client, engine: SocketAddr, own: u64) -> Result<(), ProbeError> {
    let Ok(signals) = client.metrics(engine, SCRAPE).await else { return Ok(()) };
    let running = signals.requests().unwrap_or(0);
    if running > own { Err(ProbeError::Disturbed(running)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_prompt_fits_into_half_the_window() {
        let settings = crate::config::Config::parse("pools: [{name: p, models: [m]}]").unwrap().probe;
        assert_eq!(prefill_tokens(&settings, None), 8192);
        assert_eq!(prefill_tokens(&settings, Some(65_536)), 8192);
        assert_eq!(prefill_tokens(&settings, Some(4_096)), 2_048);
        assert_eq!(prefill_tokens(&Probe { prefill_tokens: 0, ..settings }, Some(4_096)), 0);
    }
}
