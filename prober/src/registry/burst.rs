//! How far a burst is. Pure: time is an argument (Unix ms).
//!
//! A probe says what it does ([`Step`]); what it has said last is what people see. What comes of it counts only at its end, in the
//! history.

use super::{Measurement, ProbeKind};

/// What a probe does, in its order; the parts that a pool does not want are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Envoys are told, and the endpoint is to become idle.
    Waiting,
    /// The first burst, which does not count.
    Warmup,
    /// The engine's gauges are to see the end of what was before.
    Settling,
    /// The second burst, which counts.
    Kept,
    /// One long prompt.
    Prefill,
    /// Throughput over concurrency, step by step.
    Sweep,
}

impl Phase {
    /// The word for it in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Warmup => "warmup",
            Phase::Settling => "settling",
            Phase::Kept => "kept",
            Phase::Prefill => "prefill",
            Phase::Sweep => "sweep",
        }
    }
}

/// What a probe says of itself while it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// It begins with this, which has so many requests. A sweep says so at each of its steps.
    Begins(Phase, u32),
    /// One of them is done.
    Done,
    /// The first burst gave so many tokens per second.
    Warmed(f64),
    /// And the second.
    Measured(f64),
}

/// A burst that runs or is about to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Burst {
    /// Why.
    pub kind: ProbeKind,
    /// It waits for nothing.
    pub forced: bool,
    /// Since when.
    pub begun_ms: u64,
    /// What it does.
    pub phase: Phase,
    /// Since when.
    pub phase_begun_ms: u64,
    /// Requests of this phase that are done.
    pub done: u32,
    /// How many it has.
    pub of: u32,
    /// The most that it has had at once in any phase so far.
    pub most: u32,
    /// Tokens per second of the first burst, once it is over.
    pub warmup_tps: Option<f64>,
    /// Of the second.
    pub kept_tps: Option<f64>,
}

/// How much a probe asks for, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Of output, in one burst.
    pub burst_tokens: u64,
    /// Of the long prompt.
    pub prefill_tokens: u64,
}

impl Burst {
    /// One that begins now.
    #[must_use]
    pub fn begin(kind: ProbeKind, forced: bool, now_ms: u64) -> Self {
        Burst {
            kind,
            forced,
            begun_ms: now_ms,
            phase: Phase::Waiting,
            phase_begun_ms: now_ms,
            done: 0,
            of: 0,
            most: 0,
            warmup_tps: None,
            kept_tps: None,
        }
    }

    /// It goes on. One that was disturbed and begins again has measured nothing yet.
    pub fn take(&mut self, step: Step, now_ms: u64) {
        match step {
            Step::Begins(phase, of) => {
                (self.phase, self.phase_begun_ms) = (phase, now_ms);
                (self.done, self.of) = (0, of);
                self.most = self.most.max(of);
                if matches!(phase, Phase::Waiting | Phase::Warmup) {
                    (self.warmup_tps, self.kept_tps) = (None, None);
                }
            }
            Step::Done => self.done = self.done.saturating_add(1).min(self.of),
            Step::Warmed(tps) => self.warmup_tps = Some(tps),
            Step::Measured(tps) => self.kept_tps = Some(tps),
        }
    }

    /// How long its phase takes (ms), by the last measurement of the endpoint, or else by this warm-up. Nothing for what
    /// depends on others, or is not known before.
    #[must_use]
    pub fn expected_ms(&self, work: Work, last: Option<&Measurement>) -> Option<u64> {
        let throughput_tps = last.map(|last| last.throughput_tps);
        let (tokens, tps) = match self.phase {
            Phase::Waiting | Phase::Settling | Phase::Sweep => return None,
            Phase::Warmup => (work.burst_tokens, throughput_tps?),
            Phase::Kept => (work.burst_tokens, throughput_tps.or(self.warmup_tps)?),
            Phase::Prefill => (work.prefill_tokens, last?.prefill_tps?),
        };
        let ms = tokens as f64 / tps * 1e3;
        (ms.is_finite() && ms >= 0.0).then_some(ms as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work { burst_tokens: 2_048, prefill_tokens: 8_192 };

    fn last(throughput_tps: f64, prefill_tps: Option<f64>) -> Measurement {
        Measurement { throughput_tps, prefill_tps, curve: None, sweep_error: None, measured_at_ms: 0 }
    }

    #[test]
    fn a_burst_goes_through_its_phases_and_begins_again_when_it_was_disturbed() {
        let mut burst = Burst::begin(ProbeKind::Registration, false, 10);
        burst.take(Step::Begins(Phase::Warmup, 2), 20);
        for _ in 0..3 {
            burst.take(Step::Done, 30);
        }
        assert_eq!((burst.phase, burst.done, burst.of), (Phase::Warmup, 2, 2));
        burst.take(Step::Warmed(275.0), 40);
        burst.take(Step::Begins(Phase::Kept, 2), 50);
        burst.take(Step::Measured(980.0), 60);
        assert_eq!((burst.done, burst.phase_begun_ms, burst.begun_ms), (0, 50, 10));
        assert_eq!((burst.warmup_tps, burst.kept_tps), (Some(275.0), Some(980.0)));
        burst.take(Step::Begins(Phase::Waiting, 0), 70);
        assert_eq!((burst.warmup_tps, burst.kept_tps), (None, None));
        // The engine may still show what was disturbed.
        assert_eq!((burst.of, burst.most), (0, 2));
    }

    #[test]
    fn what_is_expected_is_what_was_measured_last() {
        let mut burst = Burst::begin(ProbeKind::Demand, true, 0);
        let expected = |burst: &Burst, last: Option<&Measurement>| burst.expected_ms(WORK, last);
        let before = last(1_024.0, Some(4_096.0));
        assert_eq!(expected(&burst, Some(&before)), None);
        burst.take(Step::Begins(Phase::Warmup, 16), 0);
        assert_eq!((expected(&burst, Some(&before)), expected(&burst, None)), (Some(2_000), None));
        burst.take(Step::Warmed(512.0), 0);
        burst.take(Step::Begins(Phase::Kept, 16), 0);
        assert_eq!((expected(&burst, Some(&before)), expected(&burst, None)), (Some(2_000), Some(4_000)));
        burst.take(Step::Begins(Phase::Prefill, 1), 0);
        assert_eq!((expected(&burst, Some(&before)), expected(&burst, Some(&last(1.0, None)))), (Some(2_000), None));
        burst.take(Step::Begins(Phase::Kept, 16), 0);
        assert_eq!(expected(&burst, Some(&last(0.0, None))), None);
    }
}
