//! What came of a run, and of all rounds of a scenario together.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::arrivals::Arrival;
use super::drive::{Sent, drive};
use super::engines::{Engines, Seen};
use super::routers::Running;
use super::scenario::{Event, Scenario};
use crate::proc;
use crate::workload::{quantile, tpot_ms};

/// A round in which one of a hundred requests was sent so much later than it was due was disturbed.
pub const DISTURBED_LATE_MS: f64 = 20.0;

/// How long requests come, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// At the beginning, so long requests are sent and not looked at: caches fill, batches fill.
    pub warm_up_s: f64,
    /// After that, so long they count.
    pub measured_s: f64,
}

impl Span {
    /// Both together.
    #[must_use]
    pub fn whole_s(&self) -> f64 {
        self.warm_up_s + self.measured_s
    }
}

/// The time that counts, after the beginning: from the end of the warm-up until no more requests come.
#[derive(Debug, Clone, Copy)]
struct Window {
    begin: Duration,
    end: Duration,
}

impl Window {
    fn of(span: Span) -> Self {
        Self { begin: Duration::from_secs_f64(span.warm_up_s), end: Duration::from_secs_f64(span.whole_s()) }
    }

    fn seconds(self) -> f64 {
        (self.end - self.begin).as_secs_f64()
    }

    fn has(self, at: Duration) -> bool {
        (self.begin..=self.end).contains(&at)
    }
}

/// CPU seconds: by part of the router, of the load generator, and of all engines together.
#[derive(Debug, Clone, Default)]
struct Used {
    router: BTreeMap<String, f64>,
    generator: f64,
    engines: BTreeMap<String, f64>,
}

impl Used {
    fn by_now(router: &mut Running, engines: &Engines) -> Result<Self> {
        Ok(Self {
            router: router.cpu_seconds()?.into_iter().map(|(part, seconds)| (part.to_owned(), seconds)).collect(),
            generator: proc::cpu_seconds(std::process::id())?,
            engines: engines.cpu_seconds(),
        })
    }

    fn since(self, earlier: &Self) -> Self {
        Self {
            router: difference(self.router, &earlier.router),
            generator: self.generator - earlier.generator,
            engines: difference(self.engines, &earlier.engines),
        }
    }
}

fn difference(now: BTreeMap<String, f64>, before: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    now.into_iter().map(|(part, seconds)| (part.clone(), seconds - before.get(&part).unwrap_or(&0.0))).collect()
}

/// One router through one round of one scenario.
#[derive(Debug)]
pub struct Run {
    sent: Vec<Sent>,
    window: Window,
    /// The engines when the window began, and after the last answer.
    before: BTreeMap<String, Seen>,
    after: BTreeMap<String, Seen>,
    /// What was used within the window.
    used: Used,
    peak_rss_bytes: BTreeMap<String, u64>,
    /// A 503 says that nobody is there, rather than that there is too much to do.
    killed: bool,
}

impl Run {
    /// Sends all requests and waits for the last answer.
    ///
    /// # Errors
    /// When the router has ended, or an engine does not do as it is told.
    pub async fn take(
        scenario: &Scenario,
        span: Span,
        arrivals: &[Arrival],
        router: &mut Running,
        engines: &mut Engines,
    ) -> Result<Self> {
        let window = Window::of(span);
        let middle = window.begin + (window.end - window.begin) / 2;
        let front = router.front.clone();
        // A moment in which every request can get ready.
        let begin = Instant::now() + Duration::from_millis(100);
        let meanwhile = async {
            sleep_until(begin + window.begin).await;
            let (cpu, before) = (Used::by_now(router, engines)?, engines.seen().await?);
            scenario.happen(engines, begin, middle).await?;
            sleep_until(begin + window.end).await;
            // What comes after it is answered in peace; to count that would make a slow router look frugal, or busy.
            anyhow::Ok((Used::by_now(router, engines)?.since(&cpu), before))
        };
        let (sent, seen) = tokio::join!(drive(&front, arrivals, begin), meanwhile);
        let (used, before) = seen?;
        Ok(Self {
            sent,
            window,
            before,
            used,
            peak_rss_bytes: router
                .peak_rss_bytes()?
                .into_iter()
                .map(|(part, bytes)| (part.to_owned(), bytes))
                .collect(),
            after: engines.seen().await?,
            killed: matches!(scenario.event, Some(Event::Kill(_))),
        })
    }

    /// Those that count.
    fn counted(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter().filter(|sent| sent.due >= self.window.begin)
    }

    /// Output tokens that reached clients within the window, of answers that were complete in the end; those asked for
    /// before it, too. Each chunk of an answer counts for the same share of its tokens.
    fn tokens_in_window(&self) -> f64 {
        let answered = self.sent.iter().filter(|sent| sent.outcome.is_ok());
        let tokens = answered.map(|sent| {
            let (sent_at, times) = (sent.due + sent.late, &sent.outcome.chunk_times);
            let within = times.iter().filter(|time| self.window.has(sent_at + **time)).count();
            sent.outcome.tokens as f64 * within as f64 / times.len().max(1) as f64
        });
        tokens.sum()
    }

    fn is_shed(&self, sent: &Sent) -> bool {
        match sent.outcome.status {
            Some(429) => true,
            Some(503) => !self.killed,
            _ => false,
        }
    }

    /// Why requests failed, for messages.
    #[must_use]
    pub fn failures(&self) -> BTreeMap<String, usize> {
        let mut failures = BTreeMap::new();
        for sent in self.sent.iter().filter(|sent| !sent.outcome.is_ok()) {
            let outcome = &sent.outcome;
            let body: String = String::from_utf8_lossy(&outcome.body).chars().take(160).collect();
            let why = outcome.error.clone().unwrap_or(body);
            *failures.entry(format!("{} {why}", outcome.status.unwrap_or(0))).or_insert(0) += 1;
        }
        failures
    }
}

/// Half of all were at most this, and 99 of 100 at most that.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// 99 of 100.
    pub p99: f64,
}

impl Quantiles {
    fn of(values: &[f64]) -> Option<Self> {
        (!values.is_empty()).then(|| Self { p50: quantile(values, 0.50), p99: quantile(values, 0.99) })
    }
}

/// The 99th percentiles of a single round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// In seconds, from when the request was due.
    pub ttft_p99_s: Option<f64>,
    /// Time per output token after the first, in ms.
    pub tpot_p99_ms: Option<f64>,
    /// Whole requests in seconds, from when they were due.
    pub end_p99_s: Option<f64>,
    /// How late requests were sent, in ms.
    pub late_p99_ms: Option<f64>,
}

impl Round {
    fn of(run: &Run) -> Self {
        let p99 = |of: fn(&Sent) -> Option<f64>| {
            let values: Vec<f64> = run.counted().filter(|sent| sent.outcome.is_ok()).filter_map(of).collect();
            Quantiles::of(&values).map(|quantiles| quantiles.p99)
        };
        let late: Vec<f64> = run.counted().map(late_ms).collect();
        Self {
            ttft_p99_s: p99(ttft_s),
            tpot_p99_ms: p99(tpot),
            end_p99_s: p99(end_s),
            late_p99_ms: Quantiles::of(&late).map(|late| late.p99),
        }
    }

    /// Whether requests were sent so late that the machine had other things to do: what such a round says is not to be
    /// trusted.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.late_p99_ms.is_some_and(|late| late > DISTURBED_LATE_MS)
    }
}

/// A router in a scenario, all rounds together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Scenario.
    pub scenario: String,
    /// Router.
    pub router: String,
    /// Requests that count: due after the warm-up.
    pub requests: usize,
    /// Of these, answered in full.
    pub answered: usize,
    /// Of these, turned away: 429, or 503 while every engine lived.
    pub shed: usize,
    /// Of these, ended otherwise.
    pub failed: usize,
    /// Output tokens that reached clients within the measured time, per second of it, of all answers that were complete in
    /// the end. None where it was not measured so.
    pub tokens_per_s: Option<f64>,
    /// From when the request was due to the first byte of the answer's body, in seconds.
    pub ttft_s: Option<Quantiles>,
    /// Time per output token after the first, in ms.
    pub tpot_ms: Option<Quantiles>,
    /// From when the request was due to the end, in seconds.
    pub end_s: Option<Quantiles>,
    /// Each round by itself.
    pub rounds: Vec<Round>,
    /// Share of the prompt tokens that the engines found in their caches, by their own counters.
    pub hit_rate: f64,
    /// Share of the requests that each engine was sent.
    pub shares: BTreeMap<String, f64>,
    /// What the way to the engine and back added, in ms: the client's time less the engine's. None where the router does not
    /// pass on the header that names the request.
    pub added_ms: Option<Quantiles>,
    /// CPU that the router used within the measured time per request that was due in it, by part, in microseconds; streams of
    /// about 64 tokens.
    pub cpu_us: BTreeMap<String, f64>,
    /// Peak resident memory by part, in bytes; the most of all rounds.
    pub peak_rss_bytes: BTreeMap<String, u64>,
    /// How late requests were sent, in ms.
    pub late_ms: Option<Quantiles>,
    /// Cores that the load generator, and all engines together, kept busy.
    pub generator_cores: f64,
    /// See [`Self::generator_cores`].
    pub engines_cores: f64,
}

impl Cell {
    /// Of so many rounds, at least one.
    #[must_use]
    pub fn of(scenario: &str, router: &str, runs: &[Run]) -> Self {
        let counted = || runs.iter().flat_map(Run::counted);
        let answered = || counted().filter(|sent| sent.outcome.is_ok());
        let shed = runs.iter().map(|run| run.counted().filter(|sent| run.is_shed(sent)).count()).sum::<usize>();
        let (requests, good) = (counted().count(), answered().count());
        let sum = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>();
        let measured_s = sum(&|run| run.window.seconds()).max(f64::MIN_POSITIVE);
        let [mut queries, mut hits, mut sent] = [0_u64; 3];
        let mut shares: BTreeMap<String, f64> = BTreeMap::new();
        for run in runs {
            for (name, after) in &run.after {
                let before = run.before.get(name).cloned().unwrap_or_default();
                queries += after.queries - before.queries.min(after.queries);
                hits += after.hits - before.hits.min(after.hits);
                let requests = after.requests - before.requests.min(after.requests);
                sent += requests;
                *shares.entry(name.clone()).or_insert(0.0) += requests as f64;
            }
        }
        shares.values_mut().for_each(|share| *share /= sent.max(1) as f64);
        let (mut cpu_us, mut peak_rss_bytes): (BTreeMap<String, f64>, BTreeMap<String, u64>) = Default::default();
        for run in runs {
            for (part, seconds) in &run.used.router {
                *cpu_us.entry(part.clone()).or_insert(0.0) += seconds * 1e6 / requests.max(1) as f64;
            }
            for (part, bytes) in &run.peak_rss_bytes {
                let most = peak_rss_bytes.entry(part.clone()).or_insert(0);
                *most = (*most).max(*bytes);
            }
        }
        let values = |of: fn(&Sent) -> Option<f64>| answered().filter_map(of).collect::<Vec<_>>();
        let added: Vec<f64> = runs.iter().flat_map(added_ms).collect();
        let late: Vec<f64> = counted().map(late_ms).collect();
        Self {
            scenario: scenario.to_owned(),
            router: router.to_owned(),
            requests,
            answered: good,
            shed,
            failed: requests - good - shed,
            tokens_per_s: Some(sum(&Run::tokens_in_window) / measured_s),
            ttft_s: Quantiles::of(&values(ttft_s)),
            tpot_ms: Quantiles::of(&values(tpot)),
            end_s: Quantiles::of(&values(end_s)),
            rounds: runs.iter().map(Round::of).collect(),
            hit_rate: hits as f64 / queries.max(1) as f64,
            shares,
            added_ms: Quantiles::of(&added),
            cpu_us,
            peak_rss_bytes,
            late_ms: Quantiles::of(&late),
            generator_cores: sum(&|run| run.used.generator) / measured_s,
            engines_cores: sum(&|run| run.used.engines.values().sum()) / measured_s,
        }
    }
}

// A client that wanted to ask earlier has waited since then, whoever held it up.
fn ttft_s(sent: &Sent) -> Option<f64> {
    Some((sent.late + sent.outcome.ttft?).as_secs_f64())
}

fn tpot(sent: &Sent) -> Option<f64> {
    tpot_ms(&sent.outcome, 1.0)
}

fn end_s(sent: &Sent) -> Option<f64> {
    Some((sent.late + sent.outcome.duration).as_secs_f64())
}

fn late_ms(sent: &Sent) -> f64 {
    sent.late.as_secs_f64() * 1e3
}

fn added_ms(run: &Run) -> Vec<f64> {
    let mut took: BTreeMap<u64, f64> = BTreeMap::new();
    for seen in run.after.values() {
        took.extend(&seen.took_ms);
    }
    let answered = run.counted().filter(|sent| sent.outcome.is_ok());
    let added = answered
        .filter_map(|sent| Some(sent.outcome.duration.as_secs_f64() * 1e3 - took.get(&(sent.outcome.nth as u64))?));
    added.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Outcome;

    fn sent(due_s: f64, status: u16, ttft_ms: u64, duration_ms: u64, tokens: u64) -> Sent {
        let outcome = Outcome {
            status: Some(status),
            ttft: Some(Duration::from_millis(ttft_ms)),
            duration: Duration::from_millis(duration_ms),
            chunk_times: vec![Duration::from_millis(ttft_ms), Duration::from_millis(duration_ms)],
            tokens,
            ..Outcome::default()
        };
        Sent { due: Duration::from_secs_f64(due_s), late: Duration::from_millis(25), outcome }
    }

    fn run(killed: bool, sent: Vec<Sent>) -> Run {
        let seen = |requests, queries, hits| {
            BTreeMap::from([("a".to_owned(), Seen { requests, queries, hits, took_ms: BTreeMap::from([(0, 900.0)]) })])
        };
        Run {
            sent,
            window: Window::of(Span { warm_up_s: 1.0, measured_s: 9.0 }),
            before: seen(1, 100, 0),
            after: seen(3, 300, 50),
            used: Used {
                router: BTreeMap::from([("router".to_owned(), 0.003)]),
                generator: 1.8,
                engines: BTreeMap::from([("a".to_owned(), 0.9), ("b".to_owned(), 0.9)]),
            },
            peak_rss_bytes: BTreeMap::from([("router".to_owned(), 7)]),
            killed,
        }
    }

    #[test]
    fn only_what_comes_after_the_warm_up_counts() {
        let requests = vec![
            sent(0.5, 200, 9_000, 9_900, 10),
            sent(2.0, 200, 100, 1_000, 10),
            sent(3.0, 429, 1, 1, 0),
            sent(4.0, 503, 1, 1, 0),
        ];
        let cell = Cell::of("s", "r", &[run(false, requests.clone())]);
        assert_eq!((cell.requests, cell.answered, cell.shed, cell.failed), (3, 1, 2, 0));
        // Times count from when the request was due, 25 ms before it was sent; those within the answer do not.
        assert_eq!(cell.ttft_s, Some(Quantiles { p50: 0.125, p99: 0.125 }));
        assert_eq!(cell.tpot_ms, Some(Quantiles { p50: 100.0, p99: 100.0 }));
        assert_eq!(cell.end_s, Some(Quantiles { p50: 1.025, p99: 1.025 }));
        // Counters are differences, CPU is of the requests that were due while it was counted.
        assert_eq!((cell.hit_rate, cell.shares["a"]), (0.25, 1.0));
        assert!((cell.cpu_us["router"] - 1_000.0).abs() < 1e-6, "{}", cell.cpu_us["router"]);
        assert_eq!((cell.generator_cores, cell.engines_cores), (0.2, 0.2));
        assert!((cell.added_ms.unwrap().p50 - 100.0).abs() < 1e-6);
        // Where an engine was killed, 503 is a failure.
        let cell = Cell::of("s", "r", &[run(true, requests)]);
        assert_eq!((cell.shed, cell.failed), (1, 1));
    }

    #[test]
    fn tokens_count_where_they_arrive() {
        // From 1 s to 10 s. Each answer has two chunks, so each is half of its tokens.
        let sent = vec![
            // Asked for before, the end within.
            sent(0.2, 200, 100, 2_000, 30),
            // Both within.
            sent(5.0, 200, 100, 1_000, 10),
            // The first chunk within, and then a straggler.
            sent(9.0, 200, 100, 30_000, 50),
            // What is not complete is no answer.
            sent(6.0, 500, 100, 1_000, 10),
        ];
        let tokens = Cell::of("s", "r", &[run(false, sent)]).tokens_per_s.unwrap();
        assert!((tokens - (15.0 + 10.0 + 25.0) / 9.0).abs() < 1e-9, "{tokens}");
    }

    #[test]
    fn rounds_lie_together_and_each_by_itself() {
        let mut late = sent(2.0, 200, 300, 3_000, 10);
        let punctual = Sent { late: Duration::from_millis(2), ..late.clone() };
        late.late = Duration::from_millis(21);
        let cell = Cell::of("s", "r", &[run(false, vec![late]), run(false, vec![punctual.clone(), punctual])]);
        assert_eq!((cell.requests, cell.ttft_s), (3, Some(Quantiles { p50: 0.302, p99: 0.321 })));
        assert_eq!(cell.rounds.iter().map(|round| round.ttft_p99_s).collect::<Vec<_>>(), [Some(0.321), Some(0.302)]);
        assert_eq!(cell.rounds.iter().map(Round::is_disturbed).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn without_an_answer_there_are_no_times() {
        let cell = Cell::of("s", "r", &[run(false, vec![sent(2.0, 500, 1, 1, 0)])]);
        assert_eq!((cell.answered, cell.failed), (0, 1));
        assert_eq!((cell.ttft_s, cell.end_s), (None, None));
    }
}
