//! The warmed burst: what an endpoint can carry.
//!
//! `concurrency` chat requests at once (16), each of exactly `tokens` output tokens (128), sent straight to the engine,
//! twice. Only the second burst counts: a cold engine compiles and captures graphs on its first requests (275 tok/s
//! instead of 1,000). Throughput = completion tokens, as the engine's own `usage` reports them, / wall time.
//!
//! Prompts are short and all differ, so that neither prefill nor a prefix cache colours the figure. A burst during which
//! the engine ran more than our own requests measured somebody else too, and is thrown away. Whoever calls makes sure that
//! the engine is idle; between the bursts it is waited for, since some engines' gauges trail (SGLang's by up to 30 s when
//! nothing comes).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::try_join_all;

use crate::config::Probe;
use crate::engine::{Client, EngineError};

/// How often the engine's running count is read during a burst.
const WATCH: Duration = Duration::from_millis(100);
/// How long the engine's gauges may take to see the end of the first burst.
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
    #[error("the burst took longer than {}", humantime::format_duration(*.0))]
    Timeout(Duration),
    /// Somebody else was there.
    #[error("the engine ran {0} requests, more than our own")]
    Disturbed(u64),
    /// No tokens.
    #[error("the engine generated no tokens")]
    Nothing,
}

/// Both bursts' throughput in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// The first, which only warms up.
    pub warmup_tps: f64,
    /// The second, which counts.
    pub throughput_tps: f64,
}

/// Whether it matters what else the engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// A result beside somebody else's requests is thrown away.
    Refused,
    /// The operator forced the probe, and has it as it comes.
    Accepted,
}

/// Measures an engine. `round` makes the prompts differ from those of every other probe.
///
/// # Errors
/// When there is no clean result.
pub async fn measure(
    client: &Client,
    engine: SocketAddr,
    model: &str,
    settings: &Probe,
    company: Company,
    round: u64,
) -> Result<Bursts, ProbeError> {
    let burst = |nth| burst(client, engine, model, settings, company, (round, nth));
    let warmup_tps = burst(1).await?;
    if company == Company::Refused {
        settle(client, engine).await?;
    }
    let throughput_tps = burst(2).await?;
    Ok(Bursts { warmup_tps, throughput_tps })
}

async fn burst(
    client: &Client,
    engine: SocketAddr,
    model: &str,
    settings: &Probe,
    company: Company,
    (round, nth): (u64, u32),
) -> Result<f64, ProbeError> {
    let requests = (0..settings.concurrency).map(|request| {
        let prompt = format!("{round:x}-{nth}-{request}: count upwards from {request}.");
        async move { client.generate(engine, model, &prompt, settings.tokens).await }
    });
    let start = Instant::now();
    let tokens = tokio::select! {
        done = try_join_all(requests) => done?.iter().sum::<u64>(),
        disturbed = watch(client, engine, settings.concurrency.into()), if company == Company::Refused => {
            return Err(disturbed);
        }
        () = tokio::time::sleep(settings.timeout) => return Err(ProbeError::Timeout(settings.timeout)),
    };
    let elapsed = start.elapsed().as_secs_f64();
    if tokens == 0 || elapsed <= 0.0 {
        return Err(ProbeError::Nothing);
    }
    Ok(tokens as f64 / elapsed)
}

/// Waits until the engine's gauges have seen the end of the first burst.
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
    let running = signals.running.unwrap_or(0) + signals.waiting.unwrap_or(0);
    if running > own { Err(ProbeError::Disturbed(running)) } else { Ok(()) }
}
