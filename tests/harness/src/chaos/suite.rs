//! Plays a plan and looks at the invariants throughout.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::act;
use super::excuse::Happened;
use super::ledger::{End, Kind, Ledger, Line};
use super::plan::{Event, Place, PlanOptions, Step, plan};
use super::stage::{Stage, StageOptions, StoreKind};
use super::traffic::{Traffic, TrafficOptions};
use super::watch::Watch;

/// How often gauges are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Memory may grow so much beyond what it was after the first round: allocators keep what they had at the busiest time,
/// and each VM that panics leaves some of its memory behind.
const RSS_FACTOR: f64 = 1.5;
const RSS_SLACK_BYTES: u64 = 96 << 20;
/// Violations that are kept in words; the others are only counted.
const KEPT: usize = 40;

/// What to play.
#[derive(Debug)]
pub struct SuiteOptions {
    /// The stage.
    pub stage: StageOptions,
    /// The load.
    pub traffic: TrafficOptions,
    /// Of everything random.
    pub seed: u64,
    /// How many rounds.
    pub rounds: usize,
    /// Length of a round, without the look at rest.
    pub round: Duration,
    /// Without what takes a whole pool or Envoy itself away.
    pub mild: bool,
}

impl SuiteOptions {
    /// The plan that will be played.
    #[must_use]
    pub fn plan(&self) -> Vec<Vec<Step>> {
        let places = self.stage.members.iter().map(|member| Place {
            name: member.spec.name.clone(),
            pool: member.spec.model.clone(),
            wired: member.wired,
            spare: member.spare,
        });
        plan(&PlanOptions {
            seed: self.seed,
            places: places.collect(),
            store: self.stage.store,
            rounds: self.rounds,
            round: self.round,
            mild: self.mild,
        })
    }
}

/// What came of one round.
#[derive(Debug)]
pub struct Round {
    /// What happened.
    pub events: Vec<String>,
    /// When it began, from the beginning of the first.
    pub at: Duration,
    /// Requests by their end.
    pub ends: BTreeMap<End, usize>,
    /// Of those that failed, how many an event excuses.
    pub excused: usize,
    /// The deepest queue of any pool.
    pub waiting: u64,
    /// The most that ran at once on any engine, as a share of its cap.
    pub fullest: f64,
    /// Memory of Envoy, at rest.
    pub envoy_rss_bytes: u64,
    /// Memory of the prober, at rest.
    pub prober_rss_bytes: u64,
    /// Time to the first byte of the body, of the streams that were served.
    pub ttft: Vec<Duration>,
    /// Whole time, of those that were served.
    pub took: Vec<Duration>,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:4} s  {}  {:?}", self.at.as_secs(), self.events.join(" + "), self.ends)?;
        write!(f, ", {} excused, {:.2} of a cap at most", self.excused, self.fullest)
    }
}

/// What came of it all.
#[derive(Debug, Default)]
pub struct Findings {
    /// Round by round.
    pub rounds: Vec<Round>,
    /// What was not true, in words.
    pub violations: Vec<String>,
    /// How many beyond those.
    pub more_violations: usize,
    /// Panics injected.
    pub panics: u64,
}

impl Findings {
    fn violation(&mut self, words: String) {
        if self.violations.len() < KEPT { self.violations.push(words) } else { self.more_violations += 1 }
    }

    /// Requests of all rounds by their end.
    #[must_use]
    pub fn ends(&self) -> BTreeMap<End, usize> {
        let mut ends = BTreeMap::new();
        for (end, count) in self.rounds.iter().flat_map(|round| &round.ends) {
            *ends.entry(*end).or_default() += count;
        }
        ends
    }
}

/// Plays. `told` hears of each round as it ends.
///
/// # Errors
/// When the stage cannot be set. An event that cannot be made or mended is a violation, and ends the run.
pub async fn play(options: SuiteOptions, mut told: impl FnMut(&Round)) -> Result<Findings> {
    let rounds = options.plan();
    let SuiteOptions { stage, traffic, seed, round: length, .. } = options;
    let mut stage = Stage::start(stage).await?;
    act::pin(&stage).await?;
    let ledger = Arc::new(Ledger::default());
    let pools: Vec<String> = stage.pools().into_iter().map(str::to_owned).collect();
    let names: Vec<&str> = pools.iter().map(String::as_str).collect();
    let mut run = Run {
        traffic: Traffic::start(stage.gateway, &names, traffic, Arc::clone(&ledger)),
        stage: &mut stage,
        ledger,
        rng: StdRng::seed_from_u64(seed),
        panics_of_this_envoy: 0,
        findings: Findings::default(),
    };
    let begun = Instant::now();
    for steps in &rounds {
        // What cannot be made or mended leaves the stage in a state that no invariant is known of.
        let round = match run.round(steps, length, begun).await {
            Ok(round) => round,
            Err(error) => {
                run.findings.violation(format!("the run ends here: {error:#}"));
                break;
            }
        };
        told(&round);
        run.findings.rounds.push(round);
        run.memory_is_bounded();
    }
    let Run { traffic, findings, .. } = run;
    traffic.end().await;
    Ok(findings)
}

struct Run<'a> {
    stage: &'a mut Stage,
    traffic: Traffic,
    ledger: Arc<Ledger>,
    rng: StdRng,
    panics_of_this_envoy: u64,
    findings: Findings,
}

impl Run<'_> {
    async fn round(&mut self, steps: &[Step], length: Duration, begun: Instant) -> Result<Round> {
        let (start, mut watch) = (Instant::now(), Watch::default());
        self.traffic.resume();
        let mut happened: Vec<Happened> = Vec::new();
        let mut to_end: Vec<(Duration, usize)> = Vec::new();
        let mut to_begin = steps.iter();
        let mut next = to_begin.next();
        while start.elapsed() < length {
            let now = start.elapsed();
            if let Some(step) = next.filter(|step| step.at <= now) {
                self.begin(step, &mut happened, &mut watch).await?;
                to_end.push((step.at + step.lasts, happened.len() - 1));
                next = to_begin.next();
            } else if let Some(due) = to_end.iter().position(|(at, _)| *at <= now) {
                let (_, nth) = to_end.remove(due);
                self.end(&mut happened[nth]).await?;
            } else {
                if let Err(error) = watch.look(self.stage, &self.traffic).await {
                    self.findings.violation(format!("Envoy does not answer: {error:#}"));
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        for (_, nth) in to_end {
            self.end(&mut happened[nth]).await?;
        }
        self.traffic.pause().await;
        let mut round = self.judge(&happened, &watch);
        round.at = start.duration_since(begun);
        let events = || happened.iter().map(|one| one.event.to_string()).collect::<Vec<_>>().join(" + ");
        if let Err(error) = self.rest(&mut watch, &happened, &mut round).await {
            self.findings.violation(format!("after {}: {error:#}", events()));
        }
        for violation in std::mem::take(&mut watch.violations) {
            self.findings.violation(format!("{violation} ({})", events()));
        }
        Ok(round)
    }

    async fn begin(&mut self, step: &Step, happened: &mut Vec<Happened>, watch: &mut Watch) -> Result<()> {
        let event = step.event.clone();
        let from = Instant::now();
        match event {
            Event::VmPanics => {
                self.panics_of_this_envoy += 1;
                self.findings.panics += 1;
                watch.distrust();
            }
            Event::EnvoyDies => self.panics_of_this_envoy = 0,
            _ => {}
        }
        let pool = match &event {
            Event::EngineDies(name)
            | Event::EngineFreezes(name)
            | Event::EngineSickens(name, _)
            | Event::WireFails(name, _) => Some(self.stage.engine(name)?.pool().to_owned()),
            _ => None,
        };
        let begun = act::begin(self.stage, &mut self.traffic, &event, &mut self.rng).await;
        begun.with_context(|| event.to_string())?;
        happened.push(Happened { event, from, to: None, pool });
        Ok(())
    }

    async fn end(&mut self, happened: &mut Happened) -> Result<()> {
        act::end(self.stage, &happened.event).await.with_context(|| format!("after {}", happened.event))?;
        happened.to = Some(Instant::now());
        Ok(())
    }

    /// Which requests failed without an excuse; which were answered by an engine of another pool.
    fn judge(&mut self, happened: &[Happened], watch: &Watch) -> Round {
        let events = happened.iter().map(|one| one.event.to_string()).collect();
        let mut round = Round {
            events,
            at: Duration::ZERO,
            ends: BTreeMap::new(),
            excused: 0,
            waiting: watch.waiting.values().copied().max().unwrap_or(0),
            fullest: 0.0,
            envoy_rss_bytes: 0,
            prober_rss_bytes: 0,
            ttft: Vec::new(),
            took: Vec::new(),
        };
        for line in self.ledger.take() {
            *round.ends.entry(line.end).or_default() += 1;
            self.right_model(&line);
            if line.end == End::Served {
                // The first byte of an answer in one piece is its end.
                round.ttft.extend(line.ttft.filter(|_| line.kind != Kind::Whole));
                round.took.push(line.took);
            }
            if line.is_good() {
                continue;
            }
            if happened.iter().any(|one| one.excuses(&line)) {
                round.excused += 1;
            } else {
                let events: Vec<_> = happened.iter().map(|one| one.event.to_string()).collect();
                self.findings.violation(format!(
                    "{} {:?}, endpoint {:?}, after {:?}: {} ({})",
                    line.id,
                    line.end,
                    line.endpoint,
                    line.took,
                    line.why,
                    events.join(" + ")
                ));
            }
        }
        round
    }

    fn right_model(&mut self, line: &Line) {
        let pool_of = |name: &str| self.stage.engines.iter().find(|engine| engine.id() == name).map(|one| one.pool());
        let wrong_engine = !line.engine.is_empty() && pool_of(&line.engine) != Some(&line.pool);
        let wrong_model = line.model.as_ref().is_some_and(|model| *model != line.pool);
        if wrong_engine || wrong_model {
            let words = format!("{} was answered by {} with model {:?}", line.id, line.engine, line.model);
            self.findings.violation(words);
        }
    }

    async fn rest(&mut self, watch: &mut Watch, happened: &[Happened], round: &mut Round) -> Result<()> {
        self.stage.all_ready().await?;
        // What has left the gateway may still run behind a wire on which packets vanish, or on a frozen engine.
        let unseen: Vec<&str> = happened
            .iter()
            .filter_map(|one| match &one.event {
                Event::EngineFreezes(name) | Event::WireFails(name, _) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        let peaks = watch.peaks(self.stage, &unseen).await?;
        for engine in &self.stage.engines {
            if let Some(cap) = engine.member.cap {
                round.fullest = round.fullest.max(peaks[engine.id()] as f64 / f64::from(cap));
            }
        }
        watch.at_rest(self.stage).await?;
        let envoy = self.stage.envoy()?;
        let reloads = envoy.stats().await?.get("wasm.weighbridge.vm_reload_success");
        if reloads != self.panics_of_this_envoy {
            self.findings.violation(format!(
                "{reloads} VMs were started anew, and {} panics injected",
                self.panics_of_this_envoy
            ));
            self.panics_of_this_envoy = reloads;
        }
        round.envoy_rss_bytes = envoy.rss_bytes()?;
        round.prober_rss_bytes = self.stage.prober()?.rss_bytes()?;
        Ok(())
    }

    fn memory_is_bounded(&mut self) {
        let (Some(first), Some(last)) = (self.findings.rounds.first(), self.findings.rounds.last()) else { return };
        let mut words = Vec::new();
        for (who, first, last) in [
            ("Envoy", first.envoy_rss_bytes, last.envoy_rss_bytes),
            ("the prober", first.prober_rss_bytes, last.prober_rss_bytes),
        ] {
            if first > 0 && last > (first as f64 * RSS_FACTOR) as u64 + RSS_SLACK_BYTES {
                words.push(format!("{who} has grown from {} to {} MB", first >> 20, last >> 20));
            }
        }
        words.into_iter().for_each(|words| self.findings.violation(words));
    }
}

/// The store of a seed where nobody says otherwise: every third runs over Redis.
#[must_use]
pub fn store_of(seed: u64) -> StoreKind {
    if seed % 3 == 2 { StoreKind::Redis } else { StoreKind::File }
}
