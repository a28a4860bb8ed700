//! A new module takes the place of the old one while requests stream and wait; one that cannot be loaded takes nobody's place.
//! `docs/upgrade.md` says the same to operators.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::EngineHandle;
use harness::load::{self, Call};
use harness::{Envoy, EnvoyOptions, ProberProcess, artifacts, eventually};
use serde_json::json;

use crate::common::{DEADLINE, Site, applied, chat, engine};

const CAP: usize = 8;
const WAITING: usize = 40;
/// 6 s at 50 tokens/s: longer than the change takes.
const STREAMED: u32 = 300;

/// Another module to Envoy, which does the same: one more custom section (id 0, size, length of the name, name).
fn another(module: &[u8]) -> Vec<u8> {
    [module, &[0, 5, 4], b"next"].concat()
}

/// Puts a file in the place of another, whole: an Envoy may be reading it.
fn replace(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// A site of one engine with [`CAP`] slots, whose module lies in a directory of its own.
async fn site(dir: &Path) -> (EngineHandle, Site, PathBuf) {
    let mut profile = Profile::new("steady", &[(1, 50.0), (64, 3_200.0)]);
    profile.batch_limit = 64;
    let engine = engine("a", profile).await;
    let mut site = Site::new(&[&engine]);
    let module = dir.join("weighbridge.wasm");
    std::fs::copy(artifacts::wasm().unwrap(), &module).unwrap();
    site.config["filter"]["wasm"] = json!(module);
    site.config["pools"][0]["endpoints"][0]["max_in_flight"] = json!(CAP);
    site.config["pools"][0]["admission"] = json!({"queue": 200, "max_wait": "60s"});
    (engine, site, module)
}

async fn push(prober: &ProberProcess, weight: f64) {
    prober.put("/v1/endpoints/a/pin", &json!({"weight": weight})).await.unwrap();
}

async fn vms(envoy: &Envoy) -> (u64, u64) {
    let stats = envoy.stats().await.unwrap();
    (stats.get("wasm.envoy.wasm.runtime.v8.created"), stats.get("wasm.envoy.wasm.runtime.v8.active"))
}

/// Requests that stream in every slot, others that wait, and newcomers all the while; `change` happens meanwhile.
async fn under_load(envoy: &Envoy, engine: &EngineHandle, change: impl AsyncFnOnce()) {
    let target = envoy.gateway();
    engine.reset_max();
    let streams = tokio::spawn(load::burst_at_once(target, CAP, Call::chat_stream("m", "hello", STREAMED)));
    eventually("every slot is taken", DEADLINE, async || {
        ensure!(engine.state().in_flight == CAP);
        Ok(())
    })
    .await
    .unwrap();
    let waiting = tokio::spawn(load::burst_at_once(target, WAITING, Call::chat("m", "hello", 4)));
    crate::common::queue::until_waiting(envoy, WAITING as u64).await;
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let newcomers = tokio::spawn(async move {
        let mut outcomes = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            outcomes.push(load::send(target, chat()).await);
        }
        outcomes
    });
    change().await;
    let (streams, waiting) = (streams.await.unwrap(), waiting.await.unwrap());
    over.store(true, Ordering::Relaxed);
    let newcomers = newcomers.await.unwrap();
    let slowest = newcomers.iter().map(|outcome| outcome.duration).max().unwrap_or_default();
    println!("{} newcomers, the slowest answered after {slowest:?}", newcomers.len());
    assert_eq!(streams.ok(), CAP, "{:?}", streams.by_status());
    assert!(streams.outcomes.iter().all(|outcome| outcome.tokens == u64::from(STREAMED)));
    assert_eq!(waiting.ok(), WAITING, "{:?}", waiting.by_status());
    let lost: Vec<_> = newcomers.iter().filter(|outcome| !outcome.is_ok()).collect();
    assert!(!newcomers.is_empty() && lost.is_empty(), "{lost:?}");
    envoy.idle(DEADLINE).await.unwrap();
    crate::common::queue::until_waiting(envoy, 0).await;
    assert!(engine.state().in_flight_max <= CAP, "{} at once", engine.state().in_flight_max);
    assert_eq!((engine.state().in_flight, engine.state().cancelled_total), (0, 0));
    assert_eq!(envoy.stats().await.unwrap().get("wasm.weighbridge.vm_reload"), 0);
    assert!(envoy.log().lines().all(|line| !line.contains("panicked")), "{}", envoy.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_module_takes_over_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, mut site, module) = site(dir.path()).await;
    let (prober, envoy) = site.start(2).await;
    push(&prober, 1.0).await;
    applied(&prober).await;
    let bytes = std::fs::read(&module).unwrap();

    // The file is replaced, and the next push of anything brings it.
    let (created, before) = vms(&envoy).await;
    under_load(&envoy, &engine, async || {
        replace(&module, &another(&bytes));
        push(&prober, 1.01).await;
        applied(&prober).await;
        // Old and new side by side: a VM per worker and one for the main thread of each, as long as a request is in the old.
        let (now, active) = vms(&envoy).await;
        assert!(now > created && active > before, "{created} made before and {now} after, {before} and {active} alive");
    })
    .await;

    // A prober that starts with another module: the way of a new release.
    let next = dir.path().join("next.wasm");
    std::fs::write(&next, another(&another(&bytes))).unwrap();
    site.config["filter"]["wasm"] = json!(next);
    let (created, _) = vms(&envoy).await;
    let mut prober = Some(prober);
    under_load(&envoy, &engine, async || {
        prober.take().unwrap().terminate().await.unwrap();
        let new = site.prober().await;
        applied(&new).await;
        prober = Some(new);
    })
    .await;
    assert!(vms(&envoy).await.0 > created);
    // Left are the newest, which filters, and the first, which the router's log of attempts has from the bootstrap.
    eventually("the module between is gone", DEADLINE, async || {
        let (_, active) = vms(&envoy).await;
        ensure!(active <= 2 * before, "{active} alive, {before} of one module");
        Ok(())
    })
    .await
    .unwrap();
}

// What cannot be loaded is refused, the prober knows why, and the module before it goes on with the snapshot before.
#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_cannot_be_loaded_takes_nobodys_place() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, mut site, module) = site(dir.path()).await;
    let (prober, envoy) = site.start(2).await;
    push(&prober, 1.0).await;
    applied(&prober).await;
    let bytes = std::fs::read(&module).unwrap();
    under_load(&envoy, &engine, async || {
        for (nth, broken) in [Some(&bytes[..bytes.len() / 2]), Some(&b"no wasm"[..]), None].into_iter().enumerate() {
            match broken {
                Some(bytes) => replace(&module, bytes),
                None => std::fs::remove_file(&module).unwrap(),
            }
            let weight = 1.1 + nth as f64 / 100.0;
            push(&prober, weight).await;
            eventually("the refusal is known", DEADLINE, async || {
                let answer = prober.get("/v1/envoys").await?;
                let nack = &answer["envoys"][0]["last_nack"];
                let version = answer["version"].to_string();
                ensure!(nack["type"] == "ecds" && nack["version"] == version, "{answer}");
                Ok(())
            })
            .await
            .unwrap();
        }
        replace(&module, &another(&bytes));
        push(&prober, 1.2).await;
        applied(&prober).await;
    })
    .await;
}

// Without a prober that has been heard, a gateway whose module is broken does not serve unfiltered: it does not start.
#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_gateway_with_a_broken_module_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("broken.wasm");
    std::fs::write(&module, b"no wasm").unwrap();
    let start = Envoy::start(EnvoyOptions { wasm: Some(module), ..EnvoyOptions::default() });
    let ended = tokio::time::timeout(Duration::from_secs(25), start).await.context("Envoy goes on").unwrap();
    let error = format!("{:#}", ended.expect_err("it serves without its filter"));
    assert!(error.contains("Unable to create Wasm plugin weighbridge"), "{error}");
}
