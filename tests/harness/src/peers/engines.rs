//! The unequal fleet, a process per engine: killing one is what killing a real one is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::fault::{EngineProcess, EngineSpec};
use crate::proc;
use crate::workload::{ENGINES, MODEL, profile};
use engine_sim::model::Profile;
use engine_sim::server::Fault;

/// The engines, as long as they live on the same ports.
#[derive(Debug)]
pub struct Engines {
    engines: Vec<EngineProcess>,
    /// What those were last seen with that have been killed since.
    killed: BTreeMap<String, Seen>,
}

/// An engine's own counters, and what it remembers of its last requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Requests it was sent.
    pub requests: u64,
    /// Prompt tokens looked up in its prefix cache.
    pub queries: u64,
    /// Prompt tokens found there.
    pub hits: u64,
    /// By [`super::drive::ID_HEADER`]: from arrival to the end, in ms of its model of time.
    pub took_ms: BTreeMap<u64, f64>,
}

impl Seen {
    fn read(state: &Value) -> Self {
        let count = |field: &str| state[field].as_u64().unwrap_or(0);
        let mut took_ms = BTreeMap::new();
        for record in state["records"].as_array().into_iter().flatten() {
            let headers = record["headers"].as_array().into_iter().flatten();
            let id =
                headers.filter(|header| header[0] == super::drive::ID_HEADER).find_map(|header| header[1].as_str());
            if let (Some(Ok(id)), Some(took)) = (id.map(str::parse), record["e2e_ms"].as_f64()) {
                took_ms.insert(id, took);
            }
        }
        Self {
            requests: count("requests_total"),
            queries: count("prefix_cache_queries_total"),
            hits: count("prefix_cache_hits_total"),
            took_ms,
        }
    }
}

impl Engines {
    /// The four of the published fleet: 980, 479, 240 and 240 tokens/s at 16 concurrent. Of `lanes` prompts at once each is
    /// prefilled at full speed. `program` takes `engine` and the options of `engine-sim`, as `weighbridge-bench` does.
    ///
    /// # Errors
    /// When one cannot be started.
    pub async fn unequal(program: &Path, lanes: usize) -> Result<Self> {
        let mut profiles = Vec::new();
        for (name, ..) in ENGINES {
            let mut profile = profile(name).context("an engine of the fleet")?.warm();
            profile.prefill_lanes = lanes;
            profiles.push(profile);
        }
        Self::start(program, profiles).await
    }

    /// So many that answer at once, for measuring what a router costs.
    ///
    /// # Errors
    /// When one cannot be started.
    pub async fn instant(program: &Path, count: usize) -> Result<Self> {
        let named = |nth: usize| Profile { name: format!("instant{nth}"), ..Profile::instant() };
        Self::start(program, (1..=count).map(named).collect()).await
    }

    async fn start(program: &Path, profiles: Vec<Profile>) -> Result<Self> {
        let mut engines = Vec::new();
        for profile in profiles {
            let spec = EngineSpec { name: profile.name.clone(), model: MODEL.into(), profile };
            engines.push(EngineProcess::start(program, spec).await?);
        }
        Ok(Self { engines, killed: BTreeMap::new() })
    }

    /// Name, address, and tokens per second at 16 concurrent.
    #[must_use]
    pub fn members(&self) -> Vec<(String, SocketAddr, f64)> {
        let speed =
            |name: &str| ENGINES.iter().find(|(known, ..)| *known == name).map_or(1.0, |(_, curve, _)| curve[2]);
        self.engines.iter().map(|engine| (engine.name().to_owned(), engine.address(), speed(engine.name()))).collect()
    }

    /// Ends all of them and starts them again: empty caches, no faults, counters at zero.
    ///
    /// # Errors
    /// When one does not come back.
    pub async fn anew(&mut self) -> Result<()> {
        self.killed.clear();
        for engine in &mut self.engines {
            engine.kill().await?;
            engine.restart().await?;
        }
        Ok(())
    }

    /// Every engine by its name; one that was killed as it was just before.
    ///
    /// # Errors
    /// When one does not answer.
    pub async fn seen(&self) -> Result<BTreeMap<String, Seen>> {
        let mut seen = self.killed.clone();
        for engine in self.engines.iter().filter(|engine| !self.killed.contains_key(engine.name())) {
            seen.insert(engine.name().to_owned(), Seen::read(&engine.state().await?));
        }
        Ok(seen)
    }

    /// Kills one (SIGKILL), and remembers what it had counted.
    ///
    /// # Errors
    /// When there is none of this name, or it does not answer any more.
    pub async fn kill(&mut self, name: &str) -> Result<()> {
        let engine = self.engine(name)?;
        let last = Seen::read(&engine.state().await?);
        engine.kill().await?;
        self.killed.insert(name.to_owned(), last);
        Ok(())
    }

    /// Makes one slower by this factor; health checks see nothing of it.
    ///
    /// # Errors
    /// When there is none of this name, or it does not answer.
    pub async fn slow(&mut self, name: &str, factor: f64) -> Result<()> {
        self.engine(name)?.set_fault(&Fault::slow(factor)).await
    }

    /// CPU time of those that live, in seconds.
    #[must_use]
    pub fn cpu_seconds(&self) -> BTreeMap<String, f64> {
        let used = |engine: &EngineProcess| Some((engine.name().to_owned(), proc::cpu_seconds(engine.pid()).ok()?));
        self.engines.iter().filter_map(used).collect()
    }

    fn engine(&mut self, name: &str) -> Result<&mut EngineProcess> {
        self.engines.iter_mut().find(|engine| engine.name() == name).with_context(|| format!("no engine {name}"))
    }
}
