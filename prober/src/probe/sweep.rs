//! The sweep: throughput over concurrency.
//!
//! 1, 2, 4, 8, ... equal requests at once, each of `probe.tokens` output tokens, until a doubling brings less than 5 %
//! over the best so far, or `probe.sweep_max` is reached. It follows the bursts, so the engine is warm. The requests are
//! streamed, unlike those of the bursts: that tells the time to the first token, and is what clients mostly do; so no step is taken
//! over from the bursts. A step that would end the sweep is measured a second time, and the better reading counts: whatever
//! disturbs a step makes it slower, and a sweep that ends early hides what the engine can do.
//!
//! No step waits for the engine's gauges to see the end of the one before: what they may still show is less than the next
//! step runs itself.
//!
//! Each step may take `probe.timeout`. One that fails ends the sweep with an explanation and without a curve; the result
//! of the bursts counts all the same.

use futures::future::try_join_all;
use weighbridge_routing::weight::median;

use super::{Company, ProbeError, Report, Target, settle, timed};
use crate::caps::{Curve, Step};
use crate::config::Probe;
use crate::engine::{Client, Streamed};
use crate::registry::{self, Phase};

/// A curve, or why there is none.
pub(super) type Swept = Result<Curve, String>;

/// Sweeps.
///
/// # Errors
/// When somebody else was there: then nothing of the probe counts.
pub(super) async fn sweep(
    client: &Client,
    target: Target<'_>,
    settings: &Probe,
    company: Company,
    round: u64,
    report: Report<'_>,
) -> Result<Swept, ProbeError> {
    if company == Company::Refused {
        report(registry::Step::Begins(Phase::Settling, 0));
        settle(client, target.engine).await?;
    }
    let mut curve: Option<Curve> = None;
    let mut concurrency = 1;
    loop {
        let step = match step(client, target, settings, company, (round, concurrency), curve.as_ref(), report).await {
            Ok(step) => step,
            Err(disturbed @ ProbeError::Disturbed(_)) => return Err(disturbed),
            Err(error) => return Ok(Err(format!("at concurrency {concurrency}: {error}"))),
        };
        let more = curve.as_ref().is_none_or(|curve| curve.gains_by(&step));
        let grown = match curve.take() {
            None => Curve::begin(step),
            Some(mut known) => known.push(step).map(|()| known),
        };
        match grown {
            Ok(known) if !more || concurrency >= settings.sweep_max => return Ok(Ok(known)),
            Ok(known) => curve = Some(known),
            Err(error) => return Ok(Err(error.to_string())),
        }
        concurrency = concurrency.saturating_mul(2).min(settings.sweep_max);
    }
}

/// One step, and a second reading of it when the first would end the sweep.
async fn step(
    client: &Client,
    target: Target<'_>,
    settings: &Probe,
    company: Company,
    (round, concurrency): (u64, u32),
    before: Option<&Curve>,
    report: Report<'_>,
) -> Result<Step, ProbeError> {
    let first = reading(client, target, settings, company, (round, concurrency, 1), report).await?;
    if before.is_none_or(|curve| curve.gains_by(&first)) {
        return Ok(first);
    }
    let second = reading(client, target, settings, company, (round, concurrency, 2), report).await?;
    Ok(if second.throughput_tps > first.throughput_tps { second } else { first })
}

async fn reading(
    client: &Client,
    target: Target<'_>,
    settings: &Probe,
    company: Company,
    (round, concurrency, nth): (u64, u32, u32),
    report: Report<'_>,
) -> Result<Step, ProbeError> {
    report(registry::Step::Begins(Phase::Sweep, concurrency));
    let requests = (0..concurrency).map(|request| {
        let prompt = format!("{round:x}-s{concurrency}.{nth}-{request}: count upwards from {request}.");
        async move {
            let streamed = client.stream(target.engine, target.model, &prompt, settings.tokens).await;
            report(registry::Step::Done);
            streamed
        }
    });
    let settings = Probe { concurrency, ..*settings };
    let (streams, elapsed_s) = timed(try_join_all(requests), client, target.engine, &settings, company).await?;
    let tokens: u64 = streams.iter().map(|stream| stream.usage.completion_tokens).sum();
    let each = |stream: &Streamed| stream.usage.completion_tokens as f64 / stream.took.as_secs_f64();
    let per_request_tps = median(streams.iter().map(each)).ok_or(ProbeError::Nothing)?;
    let firsts = streams.iter().filter_map(|stream| stream.first_token);
    Ok(Step {
        concurrency,
        throughput_tps: tokens as f64 / elapsed_s,
        per_request_tps,
        ttft_ms: median(firsts.map(|took| took.as_secs_f64() * 1e3)),
    })
}
