//! What the simulated engine does under the same load. Pure: model time, no clock.

use anyhow::{Context, Result};
use engine_sim::model::{Event, EventKind, Model, Profile, Request, nanos, seconds};

/// A request that comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// When, in seconds.
    pub at_s: f64,
    /// Tokens of its prompt, none of them cached.
    pub prompt_tokens: u64,
    /// Tokens that it is answered with.
    pub output_tokens: u64,
}

/// What became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Course {
    /// Seconds from its arrival to its first token.
    pub ttft_s: f64,
    /// Seconds from its arrival to its last.
    pub end_s: f64,
    /// Tokens that it was answered with.
    pub output_tokens: u64,
}

impl Course {
    /// Seconds per token after the first; nothing when there are fewer than eight, which say little.
    #[must_use]
    pub fn tpot_s(&self) -> Option<f64> {
        (self.output_tokens >= 8).then(|| (self.end_s - self.ttft_s) / (self.output_tokens - 1) as f64)
    }
}

/// What becomes of each request, in their order. They need not be in order of time.
///
/// # Errors
/// A profile that is none, or a request that the engine would refuse.
pub fn replay(profile: &Profile, arrivals: &[Arrival]) -> Result<Vec<Course>> {
    let mut model = Model::new(profile.clone())?;
    let mut order: Vec<usize> = (0..arrivals.len()).collect();
    order.sort_by(|a, b| arrivals[*a].at_s.total_cmp(&arrivals[*b].at_s));
    for place in order {
        let Arrival { at_s, prompt_tokens, output_tokens } = arrivals[place];
        model.submit(nanos(at_s), Request::new(place as u64, prompt_tokens, output_tokens))?;
    }
    let mut courses = vec![Course::default(); arrivals.len()];
    for Event { id, at, kind } in to_the_end(&mut model) {
        let place = usize::try_from(id)?;
        let (course, arrival) = courses.get_mut(place).zip(arrivals.get(place)).context("an event of no request")?;
        match kind {
            EventKind::FirstToken => course.ttft_s = seconds(at) - arrival.at_s,
            EventKind::Finished { output_tokens } => {
                (course.end_s, course.output_tokens) = (seconds(at) - arrival.at_s, output_tokens);
            }
            _ => {}
        }
    }
    Ok(courses)
}

/// Tokens per second of so many equal requests at once, from the first arrival to the last finish.
///
/// # Errors
/// As [`replay`].
pub fn burst(profile: &Profile, concurrency: usize, prompt_tokens: u64, output_tokens: u64) -> Result<f64> {
    let courses = replay(profile, &vec![Arrival { at_s: 0.0, prompt_tokens, output_tokens }; concurrency])?;
    let last = courses.iter().map(|course| course.end_s).fold(0.0, f64::max);
    Ok((concurrency as u64 * output_tokens) as f64 / last)
}

/// Seconds to the first token of a prompt, the first `cached_tokens` of which an earlier one had.
///
/// # Errors
/// As [`replay`].
pub fn first_token(profile: &Profile, prompt_tokens: u64, cached_tokens: u64) -> Result<f64> {
    let mut model = Model::new(profile.clone())?;
    let blocks = |tokens: u64| (0..tokens / profile.block_size_tokens).collect::<Vec<u64>>();
    if cached_tokens > 0 {
        model.submit(0, Request::new(0, cached_tokens, 1).with_blocks(blocks(cached_tokens), Vec::new()))?;
        to_the_end(&mut model);
    }
    let start = model.now();
    model.submit(start, Request::new(1, prompt_tokens, 1).with_blocks(blocks(prompt_tokens), Vec::new()))?;
    let events = to_the_end(&mut model);
    let first = events.iter().find(|event| event.id == 1 && event.kind == EventKind::FirstToken);
    Ok(seconds(first.context("no first token")?.at - start))
}

fn to_the_end(model: &mut Model) -> Vec<Event> {
    let mut events = model.take_events();
    while let Some(at) = model.next_event() {
        model.advance(at);
        events.extend(model.take_events());
    }
    events
}

#[cfg(test)]
mod tests {
    use super::super::fit::{FirstToken, Limits, fit};
    use super::*;

    const LIMITS: Limits = Limits { slots: 4, window: 4_096, burst_prompt_tokens: 32 };

    fn profile() -> Profile {
        let prompts = [100, 1_000].map(|n| FirstToken { uncached_tokens: n, seconds: n as f64 / 500.0 });
        fit("x", &[(1, 100.0), (4, 200.0)], &prompts, LIMITS).unwrap().profile
    }

    #[test]
    fn a_burst_shows_the_curve_and_beyond_the_slots_it_takes_turns() {
        for (concurrency, tps) in [(1, 100.0), (4, 200.0), (8, 200.0)] {
            let predicted = burst(&profile(), concurrency, 32, 64).unwrap();
            assert!((predicted / tps - 1.0).abs() < 0.01, "{concurrency}: {predicted}");
        }
        // Four together, then one alone: 128 tokens at 200 tok/s and 64 at 100.
        let five = burst(&profile(), 5, 32, 64).unwrap();
        assert!((five - 320.0 / (256.0 / 200.0 + 64.0 / 100.0)).abs() < 2.0, "{five}");
    }

    #[test]
    fn cached_tokens_cost_nothing() {
        let seconds = |cached| first_token(&profile(), 1_032, cached).unwrap();
        assert!((seconds(0) - (1_000.0 / 500.0 + 0.01)).abs() < 1e-6, "{}", seconds(0));
        assert!((seconds(500) - (500.0 / 500.0 + 0.01)).abs() < 1e-6, "{}", seconds(500));
    }

    #[test]
    fn with_attention_the_rest_of_a_cached_prompt_is_its_dear_end() {
        let profile = Profile { prefill_doubles_at_tokens: 1_000.0, ..profile() };
        let seconds = first_token(&profile, 1_032, 500).unwrap();
        // Tokens 532 (the 32 of the bursts are in the curve) to 1,032 take 1.782 times as long as the first.
        assert!((seconds - (500.0 / 500.0 * 1.782 + 0.01)).abs() < 1e-6, "{seconds}");
    }

    #[test]
    fn times_are_counted_from_each_arrival() {
        let arrivals = [
            Arrival { at_s: 5.0, prompt_tokens: 32, output_tokens: 10 },
            Arrival { at_s: 1.0, prompt_tokens: 532, output_tokens: 10 },
        ];
        let courses = replay(&profile(), &arrivals).unwrap();
        assert!((courses[0].ttft_s - 0.01).abs() < 1e-6 && (courses[0].end_s - 0.1).abs() < 1e-6, "{courses:?}");
        assert!((courses[1].ttft_s - 1.01).abs() < 1e-6 && (courses[1].end_s - 1.1).abs() < 1e-6, "{courses:?}");
        assert!((courses[1].tpot_s().unwrap() - 0.01).abs() < 1e-6);
        assert_eq!(Course { output_tokens: 7, ..courses[0] }.tpot_s(), None);
    }
}
