//! The prober is killed at random moments while pins are written: what it had acknowledged is there when it is back.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ProberProcess;
use crate::fault::damage;

/// Endpoints that are pinned; nobody is there.
const ENDPOINTS: usize = 8;
/// The prober lives so long at most.
const LIFE_MS: u64 = 150;

/// What came of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Kills.
    pub kills: usize,
    /// Pins and clearings that were acknowledged as stored.
    pub acknowledged: usize,
    /// Those under way at a kill, of which either outcome is right, and that are there.
    pub there_unasked: usize,
    /// Starts after which something acknowledged was missing.
    pub lost: usize,
}

/// A prober without engines, started again and again with one store file.
struct Site {
    dir: TempDir,
    config: String,
}

impl Site {
    fn new() -> Result<Self> {
        let endpoints: Vec<_> = (0..ENDPOINTS)
            .map(|nth| json!({"id": format!("e{nth}"), "address": format!("127.0.0.1:{}", nth + 1)}))
            .collect();
        let config = json!({
            "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": "s.redb"},
            "health": {"interval": "60s"}, "signals": {"interval": "10s"},
            "pools": [{"name": "m", "models": ["m"], "endpoints": endpoints}],
        });
        Ok(Self { dir: TempDir::with_prefix("weighbridge-store-kill-")?, config: config.to_string() })
    }

    async fn start(&self) -> Result<ProberProcess> {
        ProberProcess::start(&self.config, self.dir.path()).await
    }
}

/// Kills it so many times.
///
/// # Errors
/// When the prober does not start again, or does not answer.
pub async fn kill_while_pinning(times: usize, seed: u64) -> Result<Counts> {
    let (site, mut rng) = (Site::new()?, StdRng::seed_from_u64(seed));
    let mut counts = Counts::default();
    // Weight in hundredths, `None` without a pin.
    let mut acknowledged: BTreeMap<usize, Option<u32>> = BTreeMap::new();
    let mut next = 1;
    let mut prober = site.start().await?;
    for _ in 0..times {
        let life = tokio::time::sleep(Duration::from_micros(rng.random_range(0..LIFE_MS * 1_000)));
        tokio::pin!(life);
        let under_way = loop {
            let (nth, pin) = (rng.random_range(0..ENDPOINTS), (rng.random_range(0..4) > 0).then_some(next));
            next = next % 9_999 + 1;
            tokio::select! {
                // Dropped in the middle of the request.
                () = &mut life => break (nth, pin),
                status = change(&prober, nth, pin) => {
                    if status? == 200 {
                        counts.acknowledged += 1;
                        acknowledged.insert(nth, pin);
                    }
                }
            }
        };
        prober.kill().await?;
        counts.kills += 1;
        prober = site.start().await?;
        let found = pins(&prober).await?;
        let alarms = prober.get("/v1/endpoints").await?["alarms"].to_string();
        // A kill damages nothing.
        let mut lost = alarms.contains("damaged");
        if lost {
            eprintln!("kill {}: {alarms}", counts.kills);
        }
        for nth in 0..ENDPOINTS {
            let (is, was) = (found.get(&nth).copied(), acknowledged.get(&nth).copied().flatten());
            if is == was {
                continue;
            }
            if under_way == (nth, is) {
                counts.there_unasked += 1;
                acknowledged.insert(nth, is);
            } else {
                lost = true;
                eprintln!(
                    "kill {}: e{nth} has {is:?}, acknowledged was {was:?}; under way {under_way:?}",
                    counts.kills
                );
            }
        }
        counts.lost += usize::from(lost);
    }
    prober.kill().await?;
    Ok(counts)
}

async fn change(prober: &ProberProcess, nth: usize, pin: Option<u32>) -> Result<u16> {
    let path = format!("/v1/endpoints/e{nth}/pin");
    let (status, answer) = match pin {
        Some(weight) => {
            let body = json!({"weight": f64::from(weight) / 100.0, "reason": "store-kill"});
            prober.call(Method::PUT, &path, Some(&body)).await?
        }
        None => prober.call(Method::DELETE, &path, None).await?,
    };
    ensure!(status == 200 || status == 202, "{status} {answer}");
    Ok(status)
}

async fn pins(prober: &ProberProcess) -> Result<BTreeMap<usize, u32>> {
    let answer = prober.get("/v1/endpoints").await?;
    let endpoints = answer["endpoints"].as_array().context("no list")?;
    let pin = |endpoint: &Value| {
        // A pin whose reason has changed is another.
        (endpoint["pin"]["reason"] == "store-kill").then_some(())?;
        let nth = endpoint["id"].as_str()?.strip_prefix('e')?.parse().ok()?;
        Some((nth, (endpoint["pin"]["weight"].as_f64()? * 100.0).round() as u32))
    };
    Ok(endpoints.iter().filter_map(pin).collect())
}

/// What came of damaged files.
#[derive(Debug, Clone, Copy, Default)]
pub struct Damages {
    /// Files damaged while the prober was down.
    pub damaged: usize,
    /// Of those, how many were put aside, and said to be.
    pub put_aside: usize,
    /// How many were read as if nothing had been, with every pin as it was.
    pub whole: usize,
    /// How many lost or changed a pin without a word.
    pub silent: usize,
}

/// Damages the store so many times, each time a whole one: the prober must start, and say so where something is lost.
///
/// # Errors
/// When the prober does not start.
pub async fn damage_store(times: usize, seed: u64) -> Result<Damages> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut damages = Damages::default();
    for time in 0..times {
        let site = Site::new()?;
        let prober = site.start().await?;
        for nth in 0..ENDPOINTS {
            change(&prober, nth, Some(100 + nth as u32)).await?;
        }
        // Killed or stopped, by turns: an unclean file is repaired first, a clean one is not.
        if time % 2 == 0 {
            prober.kill().await?;
        } else {
            prober.terminate().await?;
        }
        let file = site.dir.path().join("s.redb");
        match time % 3 {
            0 => damage::truncate(&file, rng.random())?,
            1 => damage::flip(&file, 1, rng.random())?,
            _ => damage::flip(&file, 2_000, rng.random())?,
        }
        let prober = site.start().await.with_context(|| format!("damage {time} of seed {seed}"))?;
        damages.damaged += 1;
        let found = pins(&prober).await?;
        let all = (0..ENDPOINTS).all(|nth| found.get(&nth) == Some(&(100 + nth as u32)));
        let alarms = prober.get("/v1/endpoints").await?["alarms"].to_string();
        let names = std::fs::read_dir(site.dir.path())?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let kept = names.into_iter().any(|name| name.contains(".broken-"));
        let said = alarms.contains("has been repaired") || (alarms.contains("stands aside as") && kept);
        match (said, all) {
            (true, _) => damages.put_aside += 1,
            (false, true) => damages.whole += 1,
            (false, false) => {
                damages.silent += 1;
                eprintln!("damage {time} of seed {seed}: {found:?}, alarms {alarms}, kept aside: {kept}");
            }
        }
        prober.kill().await?;
    }
    Ok(damages)
}
