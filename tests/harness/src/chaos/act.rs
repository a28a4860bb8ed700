//! Making events happen, and mending them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine_sim::server::Fault;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::json;

use super::plan::{Cable, Event, Sickness};
use super::stage::{DEADLINE, Stage};
use super::traffic::Traffic;
use crate::fault::{Wire, damage};
use crate::{eventually, load};

/// Clients that come with a spike, and how many requests each sends.
const SPIKE: (usize, usize) = (60, 5);
/// Pins of [`Event::PinsPushed`].
const PINS: usize = 10;
/// What still fits on a disk that is full.
const ROOM_BYTES: u64 = 4_096;
/// How much slower the wire is.
const SLOW_WIRE: Duration = Duration::from_millis(100);
/// Bits that flip in a damaged file.
const FLIPS: usize = 64;

/// Lets it happen.
///
/// # Errors
/// When it cannot be made, or what it must not touch does not do its work.
pub async fn begin(stage: &mut Stage, traffic: &mut Traffic, event: &Event, rng: &mut StdRng) -> Result<()> {
    match event {
        Event::EngineDies(name) => stage.engine(name)?.process.kill().await,
        Event::EngineFreezes(name) => stage.engine(name)?.process.freeze().await,
        Event::EngineSickens(name, sickness) => stage.engine(name)?.process.set_fault(&fault(*sickness)).await,
        Event::WireFails(name, cable) => {
            let wire = match cable {
                Cable::Cut => Wire::Cut,
                Cable::Silent => Wire::Silent,
                Cable::Slow => Wire::Slow(SLOW_WIRE),
                Cable::HalfClosed => Wire::HalfClosed,
            };
            stage.engine(name)?.wire.as_ref().context("no wire")?.set(wire);
            Ok(())
        }
        Event::EngineRestartsDrained(name) => {
            drain(stage, name).await?;
            empty(stage, name).await?;
            stage.engine(name)?.process.terminate().await
        }
        Event::EngineDrained(name) => {
            drain(stage, name).await?;
            empty(stage, name).await
        }
        Event::PoolDies(pool) => {
            for engine in stage.engines.iter_mut().filter(|engine| engine.pool() == pool) {
                engine.process.kill().await?;
            }
            Ok(())
        }
        Event::ProberDies => stage.prober.take().context("no prober")?.kill().await,
        Event::StoreDamaged { cut } => {
            stage.prober.take().context("no prober")?.kill().await?;
            match cut {
                true => damage::truncate(&stage.store_file(), rng.random()),
                false => damage::flip(&stage.store_file(), FLIPS, rng.random()),
            }
        }
        Event::DiskFull => {
            let prober = stage.prober()?;
            prober.confine(ROOM_BYTES).await?;
            // In force, stored or not.
            let id = stage.engines.first().context("no engine")?.id();
            let endpoint = prober.put(&format!("/v1/endpoints/{id}/pin"), &json!({"weight": 1.5})).await?;
            ensure!(endpoint["weight"] == 1.5, "a pin is not in force while the disk is full: {endpoint}");
            Ok(())
        }
        Event::RedisDies => stage.redis.as_mut().context("no Redis")?.kill().await,
        Event::VmPanics => {
            let pool = stage.pools().first().context("no pool")?.to_string();
            let call = load::Call::chat(&pool, "x", 1).header("x-weighbridge-test-panic", "1");
            let outcome = load::send(stage.gateway, call.timeout(Duration::from_secs(5))).await;
            ensure!(!outcome.is_ok(), "the VM was to panic: {outcome:?}");
            Ok(())
        }
        Event::EnvoyDies => stage.envoy.take().context("no Envoy")?.kill().await,
        Event::PinsPushed => {
            let known: Vec<_> = stage.engines.iter().filter(|engine| !engine.member.spare).collect();
            for _ in 0..PINS {
                let id = known[rng.random_range(0..known.len())].id();
                let weight = f64::from(rng.random_range(25..400_u32)) / 100.0;
                let pin = json!({"weight": weight, "reason": "chaos"});
                stage.prober()?.put(&format!("/v1/endpoints/{id}/pin"), &pin).await?;
            }
            Ok(())
        }
        Event::NewcomerJoins(name) => {
            let engine = stage.engine(name)?;
            let body = json!({"pool": engine.pool(), "id": name, "address": engine.address()});
            stage.prober()?.post("/v1/endpoints", &body).await.map(|_| ())
        }
        Event::LoadSpikes(pool) => {
            traffic.join(pool, SPIKE.0, SPIKE.1);
            Ok(())
        }
    }
}

/// Mends it.
///
/// # Errors
/// When it cannot be mended, or what should have survived has not.
pub async fn end(stage: &mut Stage, event: &Event) -> Result<()> {
    match event {
        Event::EngineDies(name) => stage.engine(name)?.process.restart().await,
        Event::EngineFreezes(name) => stage.engine(name)?.process.thaw().await,
        Event::EngineSickens(name, _) => stage.engine(name)?.process.set_fault(&Fault::none()).await,
        Event::WireFails(name, _) => {
            stage.engine(name)?.wire.as_ref().context("no wire")?.set(Wire::Open);
            Ok(())
        }
        Event::EngineRestartsDrained(name) => {
            stage.engine(name)?.process.restart().await?;
            undrain(stage, name).await
        }
        Event::EngineDrained(name) => undrain(stage, name).await,
        Event::PoolDies(pool) => {
            for engine in stage.engines.iter_mut().filter(|engine| engine.pool() == pool) {
                engine.process.restart().await?;
            }
            Ok(())
        }
        Event::ProberDies => {
            stage.start_prober().await?;
            ensure!(pinned(stage).await?, "the prober has lost its pins with its process");
            Ok(())
        }
        Event::StoreDamaged { .. } => {
            stage.start_prober().await?;
            if !pinned(stage).await? {
                let alarms = stage.prober()?.get("/v1/endpoints").await?["alarms"].to_string();
                ensure!(alarms.contains("stands aside as"), "pins are gone and nobody says so: {alarms}");
            }
            pin(stage).await
        }
        Event::DiskFull => {
            let prober = stage.prober()?;
            prober.make_room().await?;
            eventually("everything is stored when there is room", DEADLINE, async || {
                // An alarm of another kind may be left from before: a store that was mended says so until the next start.
                let alarms = prober.get("/v1/endpoints").await?["alarms"].to_string();
                ensure!(!alarms.contains("wait to be stored"), "{alarms}");
                Ok(())
            })
            .await?;
            pin(stage).await
        }
        Event::RedisDies => {
            stage.redis.as_mut().context("no Redis")?.restart().await?;
            ensure!(pinned(stage).await?, "pins are lost with Redis");
            Ok(())
        }
        Event::EnvoyDies => stage.start_envoy().await,
        Event::PinsPushed => {
            let ids: Vec<_> =
                stage.engines.iter().filter(|engine| !engine.member.spare).map(|engine| engine.id()).collect();
            for id in ids {
                stage.prober()?.delete(&format!("/v1/endpoints/{id}/pin")).await?;
            }
            pin(stage).await
        }
        Event::NewcomerJoins(name) => {
            stage.prober()?.delete(&format!("/v1/endpoints/{name}")).await?;
            empty(stage, name).await
        }
        Event::VmPanics | Event::LoadSpikes(_) => Ok(()),
    }
}

/// Pins the first engine, so that what must survive can be told.
///
/// # Errors
/// When the prober does not take it.
pub async fn pin(stage: &Stage) -> Result<()> {
    let id = stage.engines.first().context("no engine")?.id();
    let body = json!({"weight": 1.0, "reason": "survives"});
    stage.prober()?.put(&format!("/v1/endpoints/{id}/pin"), &body).await.map(|_| ())
}

async fn pinned(stage: &Stage) -> Result<bool> {
    let id = stage.engines.first().context("no engine")?.id();
    Ok(stage.prober()?.endpoint(id).await?["pin"]["reason"] == "survives")
}

fn fault(sickness: Sickness) -> Fault {
    match sickness {
        Sickness::Fails => Fault::status(500),
        Sickness::Full => Fault { retry_after: Some(1), ..Fault::status(429) },
        Sickness::Hangs => Fault::hang(),
        Sickness::Slow => Fault::slow(20.0),
        Sickness::BreaksOff => Fault { probability: 0.3, ..Fault::reset_mid_stream(3) },
        Sickness::DiesBeforeHeaders => Fault::reset_before_headers(),
        Sickness::ErrorInside => Fault::stream_error(3),
    }
}

async fn drain(stage: &Stage, name: &str) -> Result<()> {
    stage.prober()?.put(&format!("/v1/endpoints/{name}/drain"), &json!({"reason": "chaos"})).await?;
    stage.applied().await
}

async fn undrain(stage: &Stage, name: &str) -> Result<()> {
    stage.prober()?.delete(&format!("/v1/endpoints/{name}/drain")).await.map(|_| ())
}

/// Waits until nothing runs on an engine.
async fn empty(stage: &mut Stage, name: &str) -> Result<()> {
    let process = &stage.engine(name)?.process;
    eventually("a drained engine is empty", DEADLINE, async || {
        let state = process.state().await?;
        ensure!(state["in_flight"] == 0, "{} still run", state["in_flight"]);
        Ok(())
    })
    .await
}
