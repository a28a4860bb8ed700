//! Faults on demand.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Nothing.
    #[default]
    None,
    /// No answer at all, until the client leaves or the engine restarts; with `after_tokens`, streams stop after so many
    /// tokens instead.
    Hang,
    /// An error response with `status`, and `retry-after` if given.
    Status,
    /// The connection is reset (RST) after `after_tokens` tokens of a stream, or in the middle of a JSON body.
    ResetMidStream,
    /// An error object inside a 200 stream after `after_tokens` tokens, then the end of the stream; requests that do not
    /// stream get the same error with status 500.
    StreamError,
    /// The connection is reset (RST) before any byte of the response.
    ResetBeforeHeaders,
    /// Takes `factor` times as long, and `delay_ms` more before anything happens.
    Slow,
    /// Connecting is refused. Open connections go on, so the fault can be ended through them, by the handle, or by
    /// `seconds`. Takes neither `probability` nor `count`.
    Refuse,
}

/// A fault and whom it hits. As JSON, every field except `kind` is optional; unknown fields are refused.
///
/// ```
/// use engine_sim::server::Fault;
/// let fault = Fault { probability: 0.1, count: Some(50), ..Fault::status(503) };
/// let same: Fault = serde_json::from_str(r#"{"kind":"status","status":503,"probability":0.1,"count":50}"#).unwrap();
/// assert_eq!(fault, same);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// Status of [`FaultKind::Status`], 400 to 599.
    pub status: u16,
    /// Share of the generation requests that are hit, 0 to 1.
    pub probability: f64,
    /// The fault ends after it hit so many generation requests.
    pub count: Option<u64>,
    /// The fault ends after so many wall-clock seconds.
    pub seconds: Option<f64>,
    /// Tokens before a mid-stream fault; 3 where it is needed and not given.
    pub after_tokens: Option<u64>,
    /// Slowdown of [`FaultKind::Slow`], at least 1.
    pub factor: f64,
    /// Wall-clock milliseconds before a [`FaultKind::Slow`] request starts.
    pub delay_ms: u64,
    /// `retry-after` in seconds with [`FaultKind::Status`].
    pub retry_after: Option<u64>,
    /// Whether generation requests are hit at all; false leaves a fault of `/health` or `/metrics` only.
    pub requests: bool,
    /// Whether `/health` is hit too, each time.
    pub health: bool,
    /// Whether `/metrics` is hit too, each time.
    pub metrics: bool,
}

impl Default for Fault {
    fn default() -> Self {
        Self {
            kind: FaultKind::None,
            status: 500,
            probability: 1.0,
            count: None,
            seconds: None,
            after_tokens: None,
            factor: 4.0,
            delay_ms: 0,
            retry_after: None,
            requests: true,
            health: false,
            metrics: false,
        }
    }
}

impl Fault {
    fn of(kind: FaultKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// All is well.
    pub fn none() -> Self {
        Self::default()
    }

    /// No answer.
    pub fn hang() -> Self {
        Self::of(FaultKind::Hang)
    }

    /// An error response.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::of(FaultKind::Status) }
    }

    /// A reset after so many tokens.
    pub fn reset_mid_stream(after_tokens: u64) -> Self {
        Self { after_tokens: Some(after_tokens), ..Self::of(FaultKind::ResetMidStream) }
    }

    /// An error object after so many tokens.
    pub fn stream_error(after_tokens: u64) -> Self {
        Self { after_tokens: Some(after_tokens), ..Self::of(FaultKind::StreamError) }
    }

    /// A reset instead of a response.
    pub fn reset_before_headers() -> Self {
        Self::of(FaultKind::ResetBeforeHeaders)
    }

    /// So many times as slow.
    pub fn slow(factor: f64) -> Self {
        Self { factor, ..Self::of(FaultKind::Slow) }
    }

    /// Nobody can connect.
    pub fn refuse() -> Self {
        Self::of(FaultKind::Refuse)
    }

    /// What is wrong with the values, if anything: field and reason.
    pub fn check(&self) -> Result<(), String> {
        if !(400..=599).contains(&self.status) {
            return Err(format!("status: {} is not an error status, 400 to 599", self.status));
        }
        if !(0.0..=1.0).contains(&self.probability) {
            return Err(format!("probability: {} is not between 0 and 1", self.probability));
        }
        if !self.factor.is_finite() || self.factor < 1.0 {
            return Err(format!("factor: {} is not a number from 1", self.factor));
        }
        if let Some(seconds) = self.seconds
            && Duration::try_from_secs_f64(seconds).is_err()
        {
            return Err(format!("seconds: {seconds} is not a number from 0"));
        }
        if self.kind == FaultKind::Refuse && (self.count.is_some() || self.probability < 1.0) {
            return Err("kind: refuse takes neither count nor probability".to_owned());
        }
        Ok(())
    }

    /// Tokens before a mid-stream fault strikes.
    pub(crate) fn strikes_after(&self) -> u64 {
        self.after_tokens.unwrap_or(3)
    }
}

/// Connections are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Until then; for ever, if not said.
    pub(crate) until: Option<Instant>,
}

impl Refusal {
    /// Resolves when it is over.
    pub(crate) async fn over(refusal: Option<Self>) {
        match refusal.map(|refusal| refusal.until) {
            None => {}
            Some(Some(until)) => tokio::time::sleep_until(until.into()).await,
            Some(None) => std::future::pending().await,
        }
    }
}

/// The fault in force, and the dice.
#[derive(Debug)]
pub(crate) struct Faults {
    fault: Fault,
    until: Option<Instant>,
    hits: u64,
    dice: u64,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { fault: Fault::none(), until: None, hits: 0, dice: seed }
    }

    pub(crate) fn set(&mut self, fault: Fault, now: Instant) {
        // Too long to be a time: for ever.
        let seconds = fault.seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        self.until = seconds.and_then(|seconds| now.checked_add(seconds));
        self.fault = fault;
        self.hits = 0;
    }

    /// When the fault in force ends by itself.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(crate) fn current(&mut self, now: Instant) -> &Fault {
        if self.until.is_some_and(|until| until <= now) {
            self.set(Fault::none(), now);
        }
        &self.fault
    }

    /// Rolls for one generation request.
    pub(crate) fn draw(&mut self, now: Instant) -> Option<Fault> {
        self.current(now);
        let fault = &self.fault;
        let harmless = matches!(fault.kind, FaultKind::None | FaultKind::Refuse);
        if harmless || !fault.requests || fault.count.is_some_and(|count| self.hits >= count) {
            return None;
        }
        if fault.probability < 1.0 && uniform(&mut self.dice) >= fault.probability {
            return None;
        }
        self.hits += 1;
        Some(self.fault.clone())
    }
}

/// The next number of a SplitMix64 sequence, as a fraction in [0, 1).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_its_share_and_the_same_ones_for_the_same_seed() {
        let run = |seed| {
            let mut faults = Faults::new(seed);
            let now = Instant::now();
            faults.set(Fault { probability: 0.1, ..Fault::hang() }, now);
            (0..10_000).map(|_| faults.draw(now).is_some()).collect::<Vec<_>>()
        };
        let hits = run(7).iter().filter(|hit| **hit).count();
        assert!((900..1_100).contains(&hits), "{hits}");
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn ends_after_its_count() {
        let (mut faults, now) = (Faults::new(0), Instant::now());
        faults.set(Fault { count: Some(2), ..Fault::status(429) }, now);
        assert_eq!((0..5).filter(|_| faults.draw(now).is_some()).count(), 2);
        faults.set(Fault { requests: false, health: true, ..Fault::status(503) }, now);
        assert!(faults.draw(now).is_none());
    }

    #[test]
    fn ends_after_its_time() {
        let (mut faults, now) = (Faults::new(0), Instant::now());
        faults.set(Fault { seconds: Some(2.0), ..Fault::status(429) }, now);
        assert!(faults.draw(now + Duration::from_millis(1_999)).is_some());
        assert!(faults.draw(now + Duration::from_secs(2)).is_none());
        assert_eq!(faults.current(now), &Fault::none());
    }

    #[test]
    fn refuses_nonsense() {
        assert!(Fault::status(200).check().unwrap_err().starts_with("status"));
        assert!(Fault::slow(0.5).check().unwrap_err().starts_with("factor"));
        assert!(Fault { count: Some(1), ..Fault::refuse() }.check().is_err());
        assert!(Fault { seconds: Some(-1.0), ..Fault::hang() }.check().unwrap_err().starts_with("seconds"));
        assert!(Fault { probability: f64::NAN, ..Fault::hang() }.check().is_err());
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"hang","helth":true}"#).is_err());
    }
}
