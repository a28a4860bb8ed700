//! Load that one Envoy cannot see by itself: other Envoys', and traffic past all of them. Moving averages that outlive
//! everybody. With real Envoys, the prober and simulated engines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::EngineHandle;
use harness::load::{self, Call, Held};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, ProberProcess, eventually};
use serde_json::{Value, json};

use crate::common::{DEADLINE, Site, applied, chat, engine, even, explained, number};

/// 20 tokens/s per request, however many there are.
fn slow() -> Profile {
    Profile::new("slow", &[(1, 20.0), (64, 1_280.0)])
}

/// A site whose signals outlast a busy machine's pauses.
fn site(engines: &[&EngineHandle]) -> Site {
    let mut site = Site::new(engines);
    site.config["signals"] = json!({"interval": "250ms"});
    site
}

/// Another Envoy that the prober tells everything.
async fn second(prober: &ProberProcess) -> Envoy {
    let options = EnvoyOptions {
        prober: Some(prober.api()),
        snapshot: Some(snapshot(vec![pool("m", Vec::new())])),
        ..EnvoyOptions::with_xds(prober.xds())
    };
    Envoy::start(options).await.unwrap()
}

async fn pin(prober: &ProberProcess, weights: &[(&str, f64)]) {
    for (id, weight) in weights {
        prober.put(&format!("/v1/endpoints/{id}/pin"), &json!({"weight": weight, "reason": "test"})).await.unwrap();
    }
    applied(prober).await;
}

/// Waits until so many Envoys report.
async fn reporting(prober: &ProberProcess, wanted: usize) {
    let url = format!("http://{}/metrics", prober.api());
    eventually(&format!("{wanted} Envoys report"), DEADLINE, async || {
        let page = reqwest::get(&url).await?.text().await?;
        let line = format!("weighbridge_prober_envoys_reporting {wanted}.0");
        ensure!(page.lines().any(|found| found == line), "{page}");
        Ok(())
    })
    .await
    .unwrap();
}

async fn signals(prober: &ProberProcess, id: &str) -> anyhow::Result<Value> {
    Ok(prober.endpoint(id).await?["signals"].clone())
}

/// What the next decision sees from elsewhere at an endpoint.
async fn elsewhere(envoy: &Envoy, id: &str) -> anyhow::Result<u64> {
    let decision = explained(envoy).await.decision();
    let candidates = decision["candidates"].as_array().context("no candidates")?;
    let candidate = candidates.iter().find(|candidate| candidate["id"] == id).context("not a candidate")?;
    Ok(candidate["elsewhere"].as_u64().unwrap_or_default())
}

/// The most requests under way at once, over all engines, in a series of looks at their own counts.
fn watch(engines: Vec<Arc<EngineHandle>>) -> (tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<Vec<usize>>) {
    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    let watching = tokio::spawn(async move {
        let mut most = vec![0; engines.len()];
        let mut ticks = tokio::time::interval(Duration::from_millis(2));
        loop {
            tokio::select! {
                _ = &mut stopped => return most,
                _ = ticks.tick() => {}
            }
            for (most, engine) in most.iter_mut().zip(&engines) {
                *most = (*most).max(engine.state().in_flight);
            }
        }
    });
    (stop, watching)
}

// Two Envoys with 16 slots between them, and twice as many requests. What one lets in while it has not heard of the other
// is the polling error.
#[tokio::test(flavor = "multi_thread")]
async fn two_envoys_hold_one_cap() {
    const INTERVAL: Duration = Duration::from_millis(250);
    const EVERY: Duration = Duration::from_millis(120);
    const REQUESTS: usize = 48;
    let (a, b) = (Arc::new(engine("a", slow()).await), Arc::new(engine("b", slow()).await));
    let mut site = site(&[&a, &b]);
    site.config["pools"][0]["admission"] = json!({"base_cap": 8, "max_wait": "30s"});
    let (prober, one) = site.start(2).await;
    let two = second(&prober).await;
    pin(&prober, &[("a", 1.5), ("b", 0.5)]).await;
    reporting(&prober, 2).await;
    let (stop, watching) = watch(vec![Arc::clone(&a), Arc::clone(&b)]);
    let start = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for nth in 0..REQUESTS {
        let gateway = if nth % 2 == 0 { one.gateway() } else { two.gateway() };
        let call = Call::chat_stream("m", &format!("request {nth}"), 60).timeout(Duration::from_secs(90));
        calls.spawn(load::send(gateway, call));
        tokio::time::sleep(EVERY).await;
    }
    let paced = start.elapsed();
    let outcomes = calls.join_all().await;
    let _ = stop.send(());
    let most = watching.await.unwrap();
    let (mut ok, mut refused, mut split) = (0, 0, BTreeMap::<String, usize>::new());
    for outcome in &outcomes {
        match outcome.status {
            Some(200) => {
                ok += 1;
                *split.entry(outcome.engine().to_owned()).or_default() += 1;
            }
            Some(429) => refused += 1,
            _ => panic!("{outcome:?}"),
        }
    }
    // What may arrive at the other Envoy until both know of it: its report, the answer, and the next tick of each thread.
    let error = (3.0 * INTERVAL.as_secs_f64() * REQUESTS as f64 / paced.as_secs_f64()).ceil() as usize;
    println!(
        "caps 12 and 4; most in flight {most:?}, overshoot {:?}; {ok} served {split:?}, {refused} refused; polling error {error}",
        (most[0].saturating_sub(12), most[1].saturating_sub(4)),
    );
    assert!(most[0] + most[1] <= 16 + error, "{most:?} {error}");
    assert!(most[0] >= 12 && most[1] >= 4, "{most:?}");
    for envoy in [&one, &two] {
        envoy.idle(DEADLINE).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_envoys_split_by_weight() {
    let (a, b) = (engine("a", slow()).await, engine("b", slow()).await);
    let mut site = site(&[&a, &b]);
    let (prober, one) = site.start(2).await;
    let two = second(&prober).await;
    pin(&prober, &[("a", 1.5), ("b", 0.5)]).await;
    reporting(&prober, 2).await;
    let call = |nth: usize| Call::chat("m", &format!("request {nth}"), 10);
    let (first, other) =
        tokio::join!(load::closed_loop(one.gateway(), 8, 100, call), load::closed_loop(two.gateway(), 8, 100, call),);
    let mut split = BTreeMap::<String, usize>::new();
    for report in [&first, &other] {
        assert_eq!(report.ok(), 100, "{:?}", report.by_status());
        for (engine, count) in report.by_engine() {
            *split.entry(engine).or_default() += count;
        }
    }
    println!(
        "200 requests at two Envoys, weights 3 to 1: {split:?}; by each {:?} {:?}",
        first.by_engine(),
        other.by_engine()
    );
    assert!((130..=170).contains(&split["a"]), "{split:?}");
}

// What comes past the gateways counts; what comes through them is not taken for that (case C5).
#[tokio::test(flavor = "multi_thread")]
async fn c5_outside_traffic_is_seen_and_our_own_is_not_taken_for_it() {
    let (a, b) = (engine("a", slow()).await, engine("b", slow()).await);
    let mut site = site(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    let two = second(&prober).await;
    pin(&prober, &[("a", 1.0), ("b", 1.0)]).await;
    reporting(&prober, 2).await;
    // Six of our own, through one Envoy: known to the other one, outside of neither.
    let mut held: Vec<Held> = Vec::new();
    for nth in 0..6 {
        held.push(load::hold(envoy.gateway(), Call::chat_stream("m", &format!("hold {nth}"), 1_000)).await.unwrap());
    }
    let at = |id: &str| held.iter().filter(|held| held.endpoint() == id).count() as u64;
    eventually("the other Envoy knows of them", DEADLINE, async || {
        let seen = (elsewhere(&two, "a").await?, elsewhere(&two, "b").await?);
        ensure!(seen == (at("a"), at("b")), "{seen:?}");
        Ok(())
    })
    .await
    .unwrap();
    let (start, mut looks) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(2) {
        for id in ["a", "b"] {
            let signals = signals(&prober, id).await.unwrap();
            // What this test asks for itself may be under way, too.
            assert!(signals["outside"] == 0 && signals["in_flight"].as_u64() >= Some(at(id)), "{signals}");
        }
        // At most the other Envoy's last question; never its own three or so.
        assert!(elsewhere(&envoy, "a").await.unwrap() <= 1);
        looks += 1;
    }
    println!("six of our own, in {looks} looks never taken for outside traffic");
    // Five straight at an engine.
    let mut straight = Vec::new();
    for nth in 0..5 {
        straight.push(load::hold(a.addr(), Call::chat_stream("m", &format!("past {nth}"), 1_000)).await);
    }
    let begun = Instant::now();
    eventually("both Envoys see what goes past them", DEADLINE, async || {
        let seen = (elsewhere(&envoy, "a").await?, elsewhere(&two, "a").await?);
        ensure!(seen == (5, 5 + at("a")), "{seen:?}");
        Ok(())
    })
    .await
    .unwrap();
    println!("five requests past the gateways seen after {:?}", begun.elapsed());
    drop(straight);
    eventually("they are gone", DEADLINE, async || {
        let seen = elsewhere(&envoy, "a").await?;
        ensure!(seen == 0, "{seen}");
        Ok(())
    })
    .await
    .unwrap();
}

// Case C18: without the prober, own counts decide, and everybody can see that.
#[tokio::test(flavor = "multi_thread")]
async fn c18_without_the_prober_own_counts_decide() {
    let (a, b) = (engine("a", slow()).await, engine("b", even()).await);
    let mut site = site(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    let mut straight = Vec::new();
    for nth in 0..5 {
        straight.push(load::hold(a.addr(), Call::chat_stream("m", &format!("past {nth}"), 2_000)).await);
    }
    eventually("they are seen", DEADLINE, async || {
        let seen = elsewhere(&envoy, "a").await?;
        ensure!(seen == 5, "{seen}");
        Ok(())
    })
    .await
    .unwrap();
    let stats = envoy.stats().await.unwrap();
    assert_eq!(stats.get("wasmcustom.weighbridge_signals_stale"), 0);
    prober.kill().await.unwrap();
    eventually("what the prober said is stale", DEADLINE, async || {
        let stats = envoy.stats().await?;
        let age_ms = stats.get("wasmcustom.weighbridge_signals_age_ms");
        ensure!(stats.get("wasmcustom.weighbridge_signals_stale") == 1 && age_ms > 300, "{age_ms}");
        let seen = elsewhere(&envoy, "a").await?;
        ensure!(seen == 0, "{seen}");
        Ok(())
    })
    .await
    .unwrap();
    let report = load::closed_loop(envoy.gateway(), 4, 40, |_| chat()).await;
    assert_eq!(report.ok(), 40, "{:?}", report.by_status());
    let prober = site.prober().await;
    eventually("the prober is heard again", DEADLINE, async || {
        ensure!(envoy.stats().await?.get("wasmcustom.weighbridge_signals_stale") == 0);
        Ok(())
    })
    .await
    .unwrap();
    drop((prober, straight));
}

// Envoy and prober restart, both at once: what endpoints were like is known before the first request.
#[tokio::test(flavor = "multi_thread")]
async fn moving_averages_outlive_envoy_and_prober() {
    let (a, b) = (engine("a", slow()).await, engine("b", even()).await);
    let mut site = site(&[&a, &b]);
    let (prober, envoy) = site.start(2).await;
    let report =
        load::closed_loop(envoy.gateway(), 4, 60, |nth| Call::chat_stream("m", &format!("request {nth}"), 10)).await;
    assert_eq!(report.ok(), 60, "{:?}", report.by_status());
    let known =
        async |prober: &ProberProcess, id: &str| signals(prober, id).await.map(|signals| signals["averages"].clone());
    // Nothing is served any more, so after the last samples nothing changes any more.
    let (mut last, mut since) = ((Value::Null, Value::Null), Instant::now());
    let before = eventually("the averages rest", DEADLINE, async || {
        let now = (known(&prober, "a").await?, known(&prober, "b").await?);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        ensure!(since.elapsed() > Duration::from_secs(3) && last.0["tps"].is_number(), "{last:?}");
        Ok(last.clone())
    })
    .await
    .unwrap();
    println!("a: {}, b: {}", before.0, before.1);
    let speed = |averages: &Value| number(&averages["tps"]);
    assert!((15.0..25.0).contains(&speed(&before.0)) && speed(&before.1) > 2.0 * speed(&before.0), "{before:?}");
    drop(envoy);
    prober.terminate().await.unwrap();
    let (prober, envoy) = site.start(2).await;
    let after = (known(&prober, "a").await.unwrap(), known(&prober, "b").await.unwrap());
    assert_eq!(before, after);
    // And an Envoy is told so when it asks for the first time.
    let asked = json!({"envoy": "newcomer", "pools": {"m": {"endpoints": {"a": {}, "b": {}}}}});
    let told = prober.post("/v1/signals", &asked).await.unwrap();
    assert_eq!(told["pools"]["m"]["a"]["averages"], before.0, "{told}");
    drop(envoy);
}

// What an endpoint is like does not depend on how long requests waited for it here.
#[tokio::test(flavor = "multi_thread")]
async fn averages_leave_out_the_wait_for_a_slot() {
    let a = engine("a", even()).await;
    let mut site = site(&[&a]);
    site.config["pools"][0]["endpoints"][0]["max_in_flight"] = json!(1);
    let (prober, envoy) = site.start(2).await;
    // Eight at a time through one slot: seven of eight wait for several times as long as they are served.
    let report =
        load::closed_loop(envoy.gateway(), 8, 80, |nth| Call::chat_stream("m", &format!("request {nth}"), 10)).await;
    assert_eq!(report.ok(), 80, "{:?}", report.by_status());
    let waited_ms = report.duration_quantile(0.5).as_secs_f64() * 1_000.0;
    eventually("the averages are those of the engine", DEADLINE, async || {
        let averages = signals(&prober, "a").await?["averages"].clone();
        ensure!(averages["e2e_ms"].is_number(), "{averages}");
        let e2e_ms = number(&averages["e2e_ms"]);
        ensure!(e2e_ms < waited_ms / 2.0, "{averages}; of a client, {waited_ms} ms");
        Ok(())
    })
    .await
    .unwrap();
}

/// Changes the cluster that leads to the prober; `None` takes it out.
fn with_cluster(options: EnvoyOptions, change: Option<fn(&mut Value)>) -> EnvoyOptions {
    let edit = move |config: &mut Value| {
        let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
        let place = clusters.iter().position(|cluster| cluster["name"] == "weighbridge-prober").unwrap();
        match change {
            Some(change) => change(&mut clusters[place]),
            None => drop(clusters.remove(place)),
        }
    };
    EnvoyOptions { edit: Some(Box::new(edit)), ..options }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_cannot_reach_the_prober_serves_as_ever() {
    let (engines, fleet) = crate::common::fleet::instant(&[("a", 1.0), ("b", 1.0)]).await;
    let empty: fn(&mut Value) = |cluster| cluster["load_assignment"]["endpoints"] = json!([]);
    for (change, result) in [(None, "no_cluster"), (Some(empty), "n")] {
        let options = EnvoyOptions::fixed(snapshot(vec![fleet.clone()]));
        let envoy = Envoy::start(with_cluster(options, change)).await.unwrap();
        eventually("calls fail and are counted", DEADLINE, async || {
            let stats = envoy.stats().await?;
            let failed = stats.sum(&format!("wasmcustom.weighbridge_signals_calls.result.{result}"));
            ensure!(failed > 0);
            Ok(())
        })
        .await
        .unwrap();
        let report = load::closed_loop(envoy.gateway(), 4, 100, |_| chat()).await;
        assert_eq!(report.ok(), 100, "{:?}", report.by_status());
        assert!(!envoy.log().contains("panicked"), "{}", envoy.log());
        envoy.idle(DEADLINE).await.unwrap();
    }
    drop(engines);
}

// A filter's token comes with the prober's snapshot; without that, Envoy's configuration can have the operators' one.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_goes_with_the_report() {
    const TOKEN: &str = "0123456789abcdef";
    let a = engine("a", even()).await;
    let mut site = site(&[&a]);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), TOKEN).unwrap();
    site.config["api"]["token_file"] = json!(dir.path().join("token"));
    let prober = site.prober().await.with_token(TOKEN);
    let served = || EnvoyOptions {
        prober: Some(prober.api()),
        snapshot: Some(snapshot(vec![pool("m", Vec::new())])),
        ..EnvoyOptions::with_xds(prober.xds())
    };
    let alone = || EnvoyOptions {
        prober: Some(prober.api()),
        ..EnvoyOptions::fixed(snapshot(vec![pool("m", vec![endpoint("a", a.addr(), 1.0)])]))
    };
    let with_token: fn(&mut Value) = |cluster| {
        let options = cluster["typed_extension_protocol_options"].as_object_mut().unwrap();
        let http = options.values_mut().next().unwrap();
        let mutations = &mut http["http_filters"][0]["typed_config"]["mutations"]["request_mutations"];
        mutations.as_array_mut().unwrap().push(json!({"append": {
            "header": {"key": "authorization", "value": format!("Bearer {TOKEN}")},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }}));
    };
    for (options, result) in [(served(), "ok"), (with_cluster(alone(), Some(with_token)), "ok"), (alone(), "status")] {
        let envoy = Envoy::start(options).await.unwrap();
        eventually(&format!("calls end with {result}"), DEADLINE, async || {
            let stats = envoy.stats().await?;
            let found: Vec<_> = stats.with_prefix("wasmcustom.weighbridge_signals_calls").collect();
            let name = format!("wasmcustom.weighbridge_signals_calls.result.{result}");
            ensure!(stats.get(&name) > 0, "{found:?}");
            Ok(())
        })
        .await
        .unwrap();
    }
}
