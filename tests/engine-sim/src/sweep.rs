//! Bursts and sweeps on the pure model: what a prober would measure, in no time and without sockets.

use crate::model::{EventKind, Model, Nanos, Profile, Request, SubmitError, seconds};

/// Length of a burst's prompts, in tokens.
pub const BURST_PROMPT_TOKENS: u64 = 20;

/// `concurrency` requests at once, each with exactly `tokens` of output, all done before this returns; generated tokens per
/// second from the first arrival to the last finish.
pub fn burst(model: &mut Model, concurrency: usize, tokens: u64) -> Result<f64, SubmitError> {
    let start = model.now();
    for id in 0..concurrency as u64 {
        model.submit(start, Request::new(id, BURST_PROMPT_TOKENS, tokens))?;
    }
    let mut end = start;
    let mut total = 0;
    while let Some(at) = model.next_event() {
        model.advance(at);
        let (done, last) = finished(model);
        total += done;
        end = end.max(last);
    }
    Ok(total as f64 / seconds(end - start))
}

/// The throughput of a warmed burst of `tokens` per request at each concurrency.
pub fn sweep(profile: &Profile, concurrencies: &[usize], tokens: u64) -> anyhow::Result<Vec<(usize, f64)>> {
    let mut model = Model::new(profile.clone().warm())?;
    concurrencies.iter().map(|&n| Ok((n, burst(&mut model, n, tokens)?))).collect()
}

fn finished(model: &mut Model) -> (u64, Nanos) {
    let mut sum = (0, 0);
    for event in model.take_events() {
        if let EventKind::Finished { output_tokens } = event.kind {
            sum = (sum.0 + output_tokens, event.at);
        }
    }
    sum
}
