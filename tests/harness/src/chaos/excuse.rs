//! Which requests may fail, and why. Everything else is a violation.
//!
//! A request may fail only if its response headers had gone out before what answered it went wrong, or if there was nobody
//! who could have served it. In particular **no** excuse is known for a request that an engine lost before its headers, or
//! that it pushed back with 429: the others of its pool are there, and where they are full, their caps may be passed.

use std::time::{Duration, Instant};

use super::ledger::{End, Line};
use super::plan::{Event, Sickness};

/// How long after an engine or its wire is mended requests may still fail because of it: those that were under way.
const GRACE: Duration = Duration::from_secs(1);
/// How long a worker may be without its VM after a panic: the back-off of the shipped configuration, and the time to
/// compile on two busy cores.
const RELOAD: Duration = Duration::from_secs(3);
/// How long a new or returned Envoy or pool may take until it serves.
const RETURN: Duration = Duration::from_secs(5);

/// An event that has begun.
#[derive(Debug, Clone)]
pub struct Happened {
    /// What.
    pub event: Event,
    /// When it began.
    pub from: Instant,
    /// When it had been mended; `None`: not yet.
    pub to: Option<Instant>,
    /// The pool of the engine that it befell.
    pub pool: Option<String>,
}

/// Whom it may cost what.
enum Cost<'a> {
    /// Requests that this engine answers, or holds without having answered.
    Of(&'a str, &'static [End]),
    /// Requests of this pool.
    Pool(&'a str, &'static [End]),
    /// Everybody.
    All(&'static [End]),
}

impl Happened {
    /// Until when it may cost anything.
    fn over(&self) -> Option<Instant> {
        match self.event {
            Event::VmPanics => Some(self.from + RELOAD),
            Event::EnvoyDies | Event::PoolDies(_) => Some(self.to? + RETURN),
            _ => Some(self.to? + GRACE),
        }
    }

    /// Whether the request was under way meanwhile.
    fn meets(&self, line: &Line) -> bool {
        line.ended() >= self.from && self.over().is_none_or(|over| line.begun <= over)
    }

    fn costs(&self) -> Vec<Cost<'_>> {
        use End::{Broken, EnginesError, GatewaysError, GaveUp, NoAnswer, Refused};
        match &self.event {
            Event::EngineDies(name) => vec![Cost::Of(name, &[Broken])],
            Event::EngineFreezes(name) => vec![Cost::Of(name, &[Broken, GaveUp])],
            Event::EngineSickens(name, sickness) => vec![Cost::Of(
                name,
                match sickness {
                    // An answer, if a bad one: what made one engine fail need not be tried at the next.
                    Sickness::Fails => &[EnginesError],
                    Sickness::Hangs | Sickness::Slow => &[GaveUp],
                    Sickness::BreaksOff => &[Broken],
                    Sickness::DiesBeforeHeaders | Sickness::Full => &[],
                    Sickness::ErrorInside => &[Broken, EnginesError],
                },
            )],
            Event::WireFails(name, _) => vec![Cost::Of(name, &[Broken, GaveUp])],
            Event::PoolDies(pool) => vec![Cost::Pool(pool, &[Broken, GatewaysError, Refused])],
            Event::VmPanics => vec![Cost::All(&[Broken, GatewaysError, NoAnswer])],
            Event::EnvoyDies => vec![Cost::All(&[Broken, GatewaysError, NoAnswer])],
            Event::LoadSpikes(pool) => vec![Cost::Pool(pool, &[Refused])],
            _ => Vec::new(),
        }
    }

    /// Whether this request may have failed because of it.
    #[must_use]
    pub fn excuses(&self, line: &Line) -> bool {
        self.meets(line)
            && self.costs().iter().any(|cost| match cost {
                // Who has not answered does not say who has the request: then the pool must do.
                Cost::Of(name, ends) => {
                    let held = line.endpoint.is_empty() && line.engine.is_empty() && line.end == End::GaveUp;
                    let theirs = line.endpoint == *name || line.engine == *name;
                    ends.contains(&line.end) && (theirs || (held && self.pool.as_ref() == Some(&line.pool)))
                }
                Cost::Pool(pool, ends) => *pool == line.pool && ends.contains(&line.end),
                Cost::All(ends) => ends.contains(&line.end),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Kind;
    use super::super::plan::Cable;
    use super::*;

    /// A request of pool `a` from 10 s to 11 s.
    fn line(begin: Instant, end: End, endpoint: &str) -> Line {
        Line {
            id: "x".into(),
            pool: "a".into(),
            kind: Kind::Stream,
            begun: begin + Duration::from_secs(10),
            took: Duration::from_secs(1),
            ttft: None,
            end,
            endpoint: endpoint.into(),
            engine: String::new(),
            model: None,
            why: String::new(),
        }
    }

    fn happened(begin: Instant, event: Event, from_s: u64, to_s: u64) -> Happened {
        let at = |s| begin + Duration::from_secs(s);
        Happened { event, from: at(from_s), to: Some(at(to_s)), pool: Some("a".into()) }
    }

    #[test]
    fn a_request_that_was_lost_before_its_headers_has_no_excuse() {
        let begin = Instant::now();
        for event in [
            Event::EngineSickens("a1".into(), Sickness::Full),
            Event::EngineDies("a1".into()),
            Event::EngineSickens("a1".into(), Sickness::DiesBeforeHeaders),
            Event::WireFails("a1".into(), Cable::Cut),
            Event::EngineRestartsDrained("a1".into()),
            Event::ProberDies,
        ] {
            let happened = happened(begin, event, 9, 12);
            for end in [End::GatewaysError, End::EnginesError, End::NoAnswer, End::Refused, End::Other] {
                assert!(!happened.excuses(&line(begin, end, "")), "{happened:?} {end:?}");
            }
        }
    }

    #[test]
    fn only_the_engine_that_broke_and_only_meanwhile() {
        let begin = Instant::now();
        let kill = happened(begin, Event::EngineDies("a1".into()), 9, 12);
        assert!(kill.excuses(&line(begin, End::Broken, "a1")));
        assert!(!kill.excuses(&line(begin, End::Broken, "a2")));
        for (from_s, to_s) in [(12, 13), (1, 8)] {
            let kill = happened(begin, Event::EngineDies("a1".into()), from_s, to_s);
            assert!(!kill.excuses(&line(begin, End::Broken, "a1")), "{from_s}");
        }
    }

    #[test]
    fn who_holds_a_request_in_silence_is_not_known_but_its_pool_is() {
        let begin = Instant::now();
        let hang = happened(begin, Event::EngineSickens("a1".into(), Sickness::Hangs), 9, 12);
        assert!(hang.excuses(&line(begin, End::GaveUp, "")));
        let elsewhere = Line { pool: "b".into(), ..line(begin, End::GaveUp, "") };
        assert!(!hang.excuses(&elsewhere));
    }
}
