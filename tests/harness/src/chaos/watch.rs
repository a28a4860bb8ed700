//! What must be true: looked at while the load runs, and, more strictly, when everybody pauses.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::stage::{DEADLINE, Stage};
use super::traffic::Traffic;
use crate::envoy::Stats;
use crate::eventually;
use crate::load::{self, Call, Held};

/// How old a gauge may be: it is published with a tick.
const GAUGE_AGE: Duration = Duration::from_secs(3);
/// How long a row of a VM that has died may be counted: 5 s until it is dropped, and a tick.
pub(super) const ROW_LIFE: Duration = Duration::from_secs(8);
/// Streams of each pool that are held to compare the counts.
const HELD: usize = 3;
/// An engine may see so many more requests at once than the gateway lets it: a client that leaves frees its slot before
/// the engine has noticed, and a request that was tried elsewhere before comes on top of the slots.
pub(super) const SLACK: u64 = 4;

/// The highest figures seen since the last look at rest.
#[derive(Debug, Default)]
pub struct Watch {
    outstanding: BTreeMap<String, VecDeque<(Instant, usize)>>,
    /// Highest gauge by endpoint.
    pub in_flight: BTreeMap<String, u64>,
    /// Highest queue depth by pool.
    pub waiting: BTreeMap<String, u64>,
    /// What was not true.
    pub violations: Vec<String>,
    /// Gauges are compared with the clients only from then on.
    trusted_from: Option<Instant>,
}

impl Watch {
    /// Something makes the gauges wrong for a while, as is documented: a VM has died with what it held.
    pub fn distrust(&mut self) {
        self.trusted_from = Some(Instant::now() + ROW_LIFE);
    }

    /// A look while the load runs: no gauge above its cap, and none above what the clients have sent.
    ///
    /// # Errors
    /// When Envoy does not answer.
    pub async fn look(&mut self, stage: &Stage, traffic: &Traffic) -> Result<()> {
        let Some(envoy) = &stage.envoy else { return Ok(()) };
        let now = Instant::now();
        for pool in stage.pools() {
            let seen = self.outstanding.entry(pool.to_owned()).or_default();
            seen.push_back((now, traffic.outstanding(pool)));
            while seen.front().is_some_and(|(at, _)| now.duration_since(*at) > GAUGE_AGE) {
                seen.pop_front();
            }
        }
        let stats = envoy.stats().await?;
        for engine in &stage.engines {
            let gauge = stats.in_flight(engine.pool(), engine.id());
            let highest = self.in_flight.entry(engine.id().to_owned()).or_default();
            *highest = gauge.max(*highest);
            if let Some(cap) = engine.member.cap
                && gauge > u64::from(cap) + SLACK
            {
                self.violations.push(format!("{}: {gauge} in flight with a cap of {cap}", engine.id()));
            }
        }
        for pool in stage.pools() {
            let depth = depth(&stats, pool);
            let highest = self.waiting.entry(pool.to_owned()).or_default();
            *highest = depth.max(*highest);
            let counted = stats.sum(&format!("wasmcustom.weighbridge_in_flight.pool.{pool}.")) + depth;
            let most = self.outstanding.get(pool).into_iter().flatten().map(|(_, sent)| *sent).max().unwrap_or(0);
            let trusted = self.trusted_from.is_none_or(|from| now >= from);
            // The prober may measure meanwhile; that passes the gateway by, and is not counted.
            if trusted && counted > most as u64 + SLACK {
                self.violations
                    .push(format!("{pool}: the gauges count {counted}, clients have at most {most} under way"));
            }
        }
        Ok(())
    }

    /// A look when everybody pauses: everything is at zero, then a known number is held, and all three (gauges, engines,
    /// clients) say the same, then everything is at zero again.
    ///
    /// # Errors
    /// What is not so.
    pub async fn at_rest(&mut self, stage: &Stage) -> Result<()> {
        let envoy = stage.envoy()?;
        nothing_runs(stage).await?;
        let mut held: Vec<(String, Held)> = Vec::new();
        for pool in stage.pools() {
            for nth in 0..HELD {
                let call = Call::chat_stream(pool, &format!("held {nth}"), 20_000).timeout(DEADLINE);
                let stream = load::hold(stage.gateway, call).await.with_context(|| format!("held at {pool}"))?;
                held.push((pool.to_owned(), stream));
            }
        }
        eventually("gauges, engines and clients count the same", DEADLINE, async || {
            let stats = envoy.stats().await?;
            for engine in &stage.engines {
                let here = held.iter().filter(|(_, stream)| stream.endpoint() == engine.id()).count() as u64;
                let gauge = stats.in_flight(engine.pool(), engine.id());
                let runs = engine.process.state().await?["in_flight"].as_u64().context("no in_flight")?;
                ensure!(
                    gauge == here && runs == here,
                    "{}: the gauge says {gauge}, the engine {runs}, clients hold {here}",
                    engine.id()
                );
            }
            Ok(())
        })
        .await?;
        drop(held);
        nothing_runs(stage).await
    }

    /// The most that ran at once on each engine by its own count, and whether that is within its cap; the count begins
    /// anew.
    ///
    /// # Errors
    /// When an engine does not answer.
    pub async fn peaks(&mut self, stage: &Stage, exempt: &[&str]) -> Result<BTreeMap<String, u64>> {
        let mut peaks = BTreeMap::new();
        for engine in &stage.engines {
            let peak = engine.process.state().await?["in_flight_max"].as_u64().context("no in_flight_max")?;
            engine.process.reset_max().await?;
            peaks.insert(engine.id().to_owned(), peak);
            if let Some(cap) = engine.member.cap
                && peak > u64::from(cap) + SLACK
                && !exempt.contains(&engine.id())
            {
                self.violations.push(format!("{}: {peak} ran at once with a cap of {cap}", engine.id()));
            }
        }
        Ok(peaks)
    }
}

async fn nothing_runs(stage: &Stage) -> Result<()> {
    let envoy = stage.envoy()?;
    envoy.idle(ROW_LIFE).await?;
    eventually("nobody waits, nothing runs", DEADLINE, async || {
        let stats = envoy.stats().await?;
        for pool in stage.pools() {
            ensure!(depth(&stats, pool) == 0, "{pool}: {} wait", depth(&stats, pool));
        }
        for engine in &stage.engines {
            let state = engine.process.state().await?;
            ensure!(state["in_flight"] == 0, "{}: {} run", engine.id(), state["in_flight"]);
        }
        Ok(())
    })
    .await
}

fn depth(stats: &Stats, pool: &str) -> u64 {
    stats.get(&format!("wasmcustom.weighbridge_queue_depth.pool.{pool}"))
}
