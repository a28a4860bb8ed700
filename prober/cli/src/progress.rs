//! How far a probe is: a bar for who looks, a line per phase for who reads. Pure.

use crate::fleet::{Burst, Endpoint};
use crate::output::plain;
use crate::table::bar;

/// Of a burst that is not ours.
const ELSEWHERE: &str = "another prober measures it; how far is not known here";
/// How wide the bar is.
const WIDTH: usize = 24;

/// A phase in words.
#[must_use]
pub fn words(phase: &str) -> String {
    match phase {
        "waiting" => "waiting until it is idle".to_owned(),
        "warmup" => "first burst".to_owned(),
        "settling" => "settling".to_owned(),
        "kept" => "second burst".to_owned(),
        "prefill" => "long prompt".to_owned(),
        "sweep" => "sweep of concurrency".to_owned(),
        other => plain(other),
    }
}

/// What became of it so far.
fn so_far(burst: &Burst) -> String {
    let warmup = burst.warmup_tps.map(|tps| format!("first burst {tps:.0} tok/s, which does not count"));
    let kept = burst.kept_tps.map(|tps| format!("second burst {tps:.0} tok/s"));
    [warmup, kept].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// The share of a phase that is done: by its requests, else by its time.
#[must_use]
pub fn share(burst: &Burst, now_ms: u64) -> Option<f64> {
    if burst.done > 0 && burst.of > 0 {
        return Some((burst.done as f64 / burst.of as f64).min(1.0));
    }
    let passed = now_ms.saturating_sub(burst.phase_begun_ms) as f64;
    // What is expected is not yet so.
    burst.expected_ms.filter(|expected| *expected > 0).map(|expected| (passed / expected as f64).min(0.99))
}

/// What is shown of a probe as it goes on.
#[derive(Debug, Default)]
pub struct Progress {
    told: Option<String>,
}

impl Progress {
    /// A line that takes the place of the one before.
    #[must_use]
    pub fn bar(endpoint: &Endpoint, now_ms: u64) -> String {
        let id = plain(&endpoint.id);
        let Some(burst) = &endpoint.burst else { return format!("{id}  {}", idle(endpoint)) };
        if burst.elsewhere {
            return format!("{id}  {ELSEWHERE}");
        }
        let requests = if burst.of > 0 { format!("  {}/{} requests", burst.done, burst.of) } else { String::new() };
        let bar = share(burst, now_ms).map_or_else(|| " ".repeat(WIDTH), |share| bar(share, WIDTH));
        let so_far = so_far(burst);
        let so_far = if so_far.is_empty() { so_far } else { format!("  ({so_far})") };
        format!("{id}  {:<24}  {bar}{requests}{so_far}", words(&burst.phase))
    }

    /// A line when a phase begins, else nothing.
    pub fn line(&mut self, endpoint: &Endpoint) -> Option<String> {
        let id = plain(&endpoint.id);
        let what = match &endpoint.burst {
            None => idle(endpoint),
            Some(burst) if burst.elsewhere => ELSEWHERE.to_owned(),
            Some(burst) => {
                let requests = if burst.of > 0 { format!(", {} requests", burst.of) } else { String::new() };
                words(&burst.phase) + &requests
            }
        };
        if self.told.as_ref() == Some(&what) {
            return None;
        }
        let so_far = endpoint.burst.as_ref().map(so_far).filter(|text| !text.is_empty());
        let line = format!("{id}: {what}{}", so_far.map_or_else(String::new, |text| format!(" ({text})")));
        self.told = Some(what);
        Some(line)
    }
}

/// Before a burst, and after it.
fn idle(endpoint: &Endpoint) -> String {
    let word = if endpoint.asked { "asked" } else { "no burst" };
    format!("{word}, state {}", plain(&endpoint.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(phase: &str, done: u64, of: u64) -> Endpoint {
        let burst = Burst {
            phase: phase.into(),
            done,
            of,
            phase_begun_ms: 1_000,
            expected_ms: Some(4_000),
            ..Burst::default()
        };
        Endpoint { id: "a".into(), state: "probing".into(), burst: Some(burst), ..Endpoint::default() }
    }

    #[test]
    fn a_phase_is_told_once() {
        let mut progress = Progress::default();
        let asked = Endpoint { id: "a".into(), state: "ready".into(), asked: true, ..Endpoint::default() };
        assert_eq!(progress.line(&asked).as_deref(), Some("a: asked, state ready"));
        assert_eq!(progress.line(&at("waiting", 0, 0)).as_deref(), Some("a: waiting until it is idle"));
        assert_eq!(progress.line(&at("warmup", 0, 16)).as_deref(), Some("a: first burst, 16 requests"));
        assert_eq!(progress.line(&at("warmup", 9, 16)), None);
        let mut kept = at("kept", 0, 16);
        kept.burst.as_mut().unwrap().warmup_tps = Some(275.4);
        assert_eq!(
            progress.line(&kept).as_deref(),
            Some("a: second burst, 16 requests (first burst 275 tok/s, which does not count)")
        );
    }

    #[test]
    fn how_far_another_prober_is_is_not_known() {
        let mut endpoint = at("waiting", 0, 0);
        endpoint.burst.as_mut().unwrap().elsewhere = true;
        assert_eq!(Progress::bar(&endpoint, 2_000), format!("a  {ELSEWHERE}"));
        assert_eq!(Progress::default().line(&endpoint), Some(format!("a: {ELSEWHERE}")));
    }

    #[test]
    fn a_bar_follows_the_requests_and_before_the_first_the_time() {
        let share = |endpoint: &Endpoint, now_ms| share(endpoint.burst.as_ref().unwrap(), now_ms).unwrap();
        assert_eq!(share(&at("kept", 4, 16), 9_999), 0.25);
        assert_eq!(share(&at("kept", 0, 16), 2_000), 0.25);
        assert_eq!(share(&at("kept", 0, 16), 99_000), 0.99);
        let line = Progress::bar(&at("kept", 4, 16), 0);
        assert!(line.contains("second burst") && line.contains("██████░") && line.ends_with("4/16 requests"), "{line}");
    }
}
