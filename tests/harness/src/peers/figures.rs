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

/// One router through one round of one scenario.
#[derive(Debug)]
pub struct Run {
    sent: Vec<Sent>,
    warm_up: Duration,
    /// The engines when what counts began, and at the end.
    before: BTreeMap<String, Seen>,
    after: BTreeMap<String, Seen>,
    /// CPU seconds by part of the router, of the load generator, and of all engines, over the whole run.
    cpu_s: BTreeMap<String, f64>,
    generator_cpu_s: f64,
    engines_cpu_s: f64,
    peak_rss_bytes: BTreeMap<String, u64>,
    elapsed_s: f64,
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
        let warm_up = Duration::from_secs_f64(span.warm_up_s);
        let middle = warm_up + Duration::from_secs_f64(span.measured_s / 2.0);
        let (cpu, engines_cpu) = (router.cpu_seconds()?, engines.cpu_seconds());
        let generator_cpu = proc::cpu_seconds(std::process::id())?;
        // A moment in which every request can get ready.
        let begin = Instant::now() + Duration::from_millis(100);
        let meanwhile = async {
            sleep_until(begin + warm_up).await;
            let before = engines.seen().await?;
            scenario.happen(engines, begin, middle).await?;
            anyhow::Ok(before)
        };
        let (sent, before) = tokio::join!(drive(&router.front, arrivals, begin), meanwhile);
        let elapsed_s = begin.elapsed().as_secs_f64();
        let used =
            router.cpu_seconds()?.into_iter().map(|(part, s)| (part.to_owned(), s - cpu.get(part).unwrap_or(&0.0)));
        let engines_after = engines.cpu_seconds();
        Ok(Self {
            sent,
            warm_up,
            before: before?,
            cpu_s: used.collect(),
            generator_cpu_s: proc::cpu_seconds(std::process::id())? - generator_cpu,
            engines_cpu_s: engines_after.iter().map(|(name, s)| s - engines_cpu.get(name).unwrap_or(&0.0)).sum(),
            peak_rss_bytes: router
                .peak_rss_bytes()?
                .into_iter()
                .map(|(part, bytes)| (part.to_owned(), bytes))
                .collect(),
            after: engines.seen().await?,
            elapsed_s,
            killed: matches!(scenario.event, Some(Event::Kill(_))),
        })
    }

    /// Those that count.
    fn counted(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter().filter(|sent| sent.due >= self.warm_up)
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

/// A router in a scenario, all rounds together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Scenario.
    pub scenario: String,
    /// Router.
    pub router: String,
    /// Requests that count: sent after the warm-up.
    pub requests: usize,
    /// Of these, answered in full.
    pub answered: usize,
    /// Of these, turned away: 429, or 503 while every engine lived.
    pub shed: usize,
    /// Of these, ended otherwise.
    pub failed: usize,
    /// Output tokens per second of those answered.
    pub tokens_per_s: f64,
    /// From sending to the first byte of the answer's body, in seconds.
    pub ttft_s: Option<Quantiles>,
    /// Time per output token after the first, in ms.
    pub tpot_ms: Option<Quantiles>,
    /// From sending to the end, in seconds.
    pub end_s: Option<Quantiles>,
    /// The same of every round: the 99th percentiles of TTFT (s), TPOT (ms) and the whole (s).
    pub rounds: Vec<[Option<f64>; 3]>,
    /// Share of the prompt tokens that the engines found in their caches, by their own counters.
    pub hit_rate: f64,
    /// Share of the requests that each engine was sent.
    pub shares: BTreeMap<String, f64>,
    /// What the way to the engine and back added, in ms: the client's time less the engine's. None where the router does not
    /// pass on the header that names the request.
    pub added_ms: Option<Quantiles>,
    /// CPU of the router per request that was sent, by part, in microseconds; streams of about 64 tokens.
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
        let measured_s: f64 = runs.iter().map(|run| run.elapsed_s - run.warm_up.as_secs_f64()).sum();
        let sum = |of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>();
        let elapsed_s = sum(&|run| run.elapsed_s);
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
        let all: usize = runs.iter().map(|run| run.sent.len()).sum();
        for run in runs {
            for (part, seconds) in &run.cpu_s {
                *cpu_us.entry(part.clone()).or_insert(0.0) += seconds * 1e6 / all.max(1) as f64;
            }
            for (part, bytes) in &run.peak_rss_bytes {
                let most = peak_rss_bytes.entry(part.clone()).or_insert(0);
                *most = (*most).max(*bytes);
            }
        }
        let values = |of: fn(&Sent) -> Option<f64>| answered().filter_map(of).collect::<Vec<_>>();
        let each = |run: &Run| {
            let p99 = |of: fn(&Sent) -> Option<f64>| {
                let values: Vec<f64> = run.counted().filter(|sent| sent.outcome.is_ok()).filter_map(of).collect();
                Quantiles::of(&values).map(|quantiles| quantiles.p99)
            };
            [p99(ttft_s), p99(tpot), p99(end_s)]
        };
        let added: Vec<f64> = runs.iter().flat_map(added_ms).collect();
        let late: Vec<f64> = counted().map(|sent| sent.late.as_secs_f64() * 1e3).collect();
        Self {
            scenario: scenario.to_owned(),
            router: router.to_owned(),
            requests,
            answered: good,
            shed,
            failed: requests - good - shed,
            tokens_per_s: answered().map(|sent| sent.outcome.tokens as f64).sum::<f64>()
                / measured_s.max(f64::MIN_POSITIVE),
            ttft_s: Quantiles::of(&values(ttft_s)),
            tpot_ms: Quantiles::of(&values(tpot)),
            end_s: Quantiles::of(&values(end_s)),
            rounds: runs.iter().map(each).collect(),
            hit_rate: hits as f64 / queries.max(1) as f64,
            shares,
            added_ms: Quantiles::of(&added),
            cpu_us,
            peak_rss_bytes,
            late_ms: Quantiles::of(&late),
            generator_cores: sum(&|run| run.generator_cpu_s) / elapsed_s,
            engines_cores: sum(&|run| run.engines_cpu_s) / elapsed_s,
        }
    }
}

fn ttft_s(sent: &Sent) -> Option<f64> {
    Some(sent.outcome.ttft?.as_secs_f64())
}

fn tpot(sent: &Sent) -> Option<f64> {
    tpot_ms(&sent.outcome, 1.0)
}

fn end_s(sent: &Sent) -> Option<f64> {
    Some(sent.outcome.duration.as_secs_f64())
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
            tokens,
            ..Outcome::default()
        };
        Sent { due: Duration::from_secs_f64(due_s), late: Duration::from_millis(1), outcome }
    }

    fn run(killed: bool, sent: Vec<Sent>) -> Run {
        let seen = |requests, queries, hits| {
            BTreeMap::from([("a".to_owned(), Seen { requests, queries, hits, took_ms: BTreeMap::from([(0, 900.0)]) })])
        };
        Run {
            sent,
            warm_up: Duration::from_secs(1),
            before: seen(1, 100, 0),
            after: seen(3, 300, 50),
            cpu_s: BTreeMap::from([("router".to_owned(), 0.004)]),
            generator_cpu_s: 1.0,
            engines_cpu_s: 2.0,
            peak_rss_bytes: BTreeMap::from([("router".to_owned(), 7)]),
            elapsed_s: 10.0,
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
        assert_eq!(cell.ttft_s, Some(Quantiles { p50: 0.1, p99: 0.1 }));
        assert_eq!(cell.tpot_ms, Some(Quantiles { p50: 100.0, p99: 100.0 }));
        assert_eq!(cell.end_s, Some(Quantiles { p50: 1.0, p99: 1.0 }));
        // Counters are differences, CPU is of all requests.
        assert_eq!((cell.hit_rate, cell.shares["a"]), (0.25, 1.0));
        assert!((cell.cpu_us["router"] - 1_000.0).abs() < 1e-6, "{}", cell.cpu_us["router"]);
        assert!((cell.added_ms.unwrap().p50 - 100.0).abs() < 1e-6);
        // Where an engine was killed, 503 is a failure.
        let cell = Cell::of("s", "r", &[run(true, requests)]);
        assert_eq!((cell.shed, cell.failed), (1, 1));
    }

    #[test]
    fn without_an_answer_there_are_no_times() {
        let cell = Cell::of("s", "r", &[run(false, vec![sent(2.0, 500, 1, 1, 0)])]);
        assert_eq!((cell.answered, cell.failed), (0, 1));
        assert_eq!((cell.ttft_s, cell.end_s), (None, None));
    }
}
