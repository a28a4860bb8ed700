//! The stage of the single scenarios: four equal engines in one pool, everything as shipped.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use harness::chaos::{DEADLINE, ID_HEADER, Line, Member, Stage, StageOptions, StoreKind};
use harness::engine_sim::model::Profile;
use harness::eventually;
use harness::fault::EngineSpec;
use serde_json::{Value, json};

/// The pool, and its model.
pub(crate) const POOL: &str = "m";
/// The engines.
pub(crate) const ENGINES: [&str; 4] = ["a", "b", "c", "d"];

/// An engine that gives each of up to 64 requests so many tokens per second.
pub(crate) fn even(tokens_per_second: f64) -> Profile {
    Profile::new("even", &[(1, tokens_per_second), (64, 64.0 * tokens_per_second)])
}

pub(crate) fn member(name: &str, pool: &str, profile: Profile, cap: Option<u32>) -> Member {
    let spec = EngineSpec { name: name.into(), model: pool.into(), profile };
    Member { spec, cap, wired: false, spare: false }
}

/// Four engines behind an Envoy of two workers, with the prober's own defaults (but for small bursts).
pub(crate) async fn stage(profile: Profile) -> Result<Stage> {
    let members = ENGINES.map(|name| member(name, POOL, profile.clone(), None));
    Stage::start(StageOptions {
        engine_program: std::env::current_exe()?,
        members: members.into(),
        store: StoreKind::File,
        workers: 2,
        panics: false,
        prober: json!({}),
        pool: json!({}),
        log_failures_only: false,
    })
    .await
}

/// One line of the access log.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    /// When the request had arrived, in ms since 1970.
    pub(crate) arrived_ms: u64,
    /// How long it waited in the queue.
    pub(crate) waited_ms: u64,
    /// The endpoint that was picked.
    pub(crate) picked: String,
    /// How often Envoy tried.
    pub(crate) attempts: u64,
}

impl Logged {
    /// When it was sent to the endpoint.
    pub(crate) fn sent_ms(&self) -> u64 {
        self.arrived_ms + self.waited_ms
    }
}

/// What the access log has of all these requests, by their ids. It is written late: it is waited for.
pub(crate) async fn logged(stage: &Stage, lines: &[Line]) -> Result<BTreeMap<String, Logged>> {
    let envoy = stage.envoy()?;
    eventually("the access log is written", DEADLINE, async || {
        let log: BTreeMap<String, Logged> = envoy.access_log().iter().filter_map(read).collect();
        let missing = lines.iter().find(|line| !log.contains_key(&line.id));
        ensure!(missing.is_none(), "no line of {}", missing.map_or("", |line| line.id.as_str()));
        Ok(log)
    })
    .await
    .with_context(|| format!("the field of {ID_HEADER}"))
}

fn read(line: &Value) -> Option<(String, Logged)> {
    let decision: Value = serde_json::from_str(line["decision"].as_str()?).ok()?;
    let logged = Logged {
        arrived_ms: decision["time_ms"].as_u64()?,
        waited_ms: decision["queue"]["wait_ms"].as_u64().unwrap_or(0),
        picked: decision["picked"].as_str().unwrap_or("").to_owned(),
        attempts: line["attempts"].as_u64().unwrap_or(0),
    };
    Some((line["chaos_id"].as_str()?.to_owned(), logged))
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

/// The given share of values is at most this; in ms.
pub(crate) fn quantile_ms(values: impl Iterator<Item = Duration>, share: f64) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).map_or(f64::NAN, |value| value.as_secs_f64() * 1_000.0)
}
