//! Requests that wait: ways to fill slots, to let requests queue up one after another, and to see how many do.

use anyhow::ensure;
use harness::engine_sim::server::{EngineHandle, Fault, FaultKind};
use harness::load::{self, Call, Held, Outcome};
use harness::snapshot::snapshot;
use harness::{Envoy, EnvoyOptions, eventually, wire};
use tokio::task::JoinHandle;

use super::DEADLINE;

/// An Envoy of these pools, where everything that clients may say counts.
pub(crate) async fn gateway(concurrency: u32, pools: Vec<wire::Pool>) -> Envoy {
    Envoy::start(options(concurrency, pools)).await.unwrap()
}

/// What [`gateway`] starts.
pub(crate) fn options(concurrency: u32, pools: Vec<wire::Pool>) -> EnvoyOptions {
    let mut snapshot = snapshot(pools);
    snapshot.filter.client_headers = vec!["explain".into(), "priority".into(), "max-wait".into()];
    EnvoyOptions { concurrency, ..EnvoyOptions::fixed(snapshot) }
}

/// A chat that names itself to the engine, and asks for the decision.
pub(crate) fn named(name: impl ToString, tokens: u32) -> Call {
    Call::chat("m", "hello", tokens).header("x-test-name", &name.to_string()).explain()
}

/// Takes `count` slots and keeps them until what is returned is dropped. The engines work as before afterwards.
pub(crate) async fn fill(envoy: &Envoy, engines: &[EngineHandle], count: usize) -> Vec<Held> {
    for engine in engines {
        engine.set_fault(Fault { kind: FaultKind::Hang, after_tokens: Some(1), ..Fault::default() });
    }
    let mut held = Vec::new();
    for nth in 0..count {
        let call = Call::chat_stream("m", &format!("hold slot {nth}"), 8).header("x-test-name", "held");
        held.push(load::hold(envoy.gateway(), call).await.unwrap());
    }
    for engine in engines {
        engine.set_fault(Fault::default());
    }
    held
}

/// How many wait, as Envoy's statistics have it.
pub(crate) async fn depth(envoy: &Envoy) -> anyhow::Result<u64> {
    Ok(envoy.stats().await?.get("wasmcustom.weighbridge_queue_depth.pool.m"))
}

/// Waits until so many wait.
pub(crate) async fn until_waiting(envoy: &Envoy, wanted: u64) {
    eventually(&format!("{wanted} requests wait"), DEADLINE, async || {
        let depth = depth(envoy).await?;
        ensure!(depth == wanted, "{depth} wait");
        Ok(())
    })
    .await
    .unwrap();
}

/// Sends each request when the one before it waits, so that the order in which they came is known.
pub(crate) async fn queue_up(envoy: &Envoy, calls: Vec<Call>) -> Vec<JoinHandle<Outcome>> {
    let before = depth(envoy).await.unwrap();
    let mut waiting = Vec::new();
    for (nth, call) in calls.into_iter().enumerate() {
        waiting.push(tokio::spawn(load::send(envoy.gateway(), call)));
        until_waiting(envoy, before + nth as u64 + 1).await;
    }
    waiting
}

/// The names of the requests in the order in which they reached these engines.
pub(crate) fn order_of_arrival(engines: &[EngineHandle]) -> Vec<String> {
    let mut records: Vec<_> = engines.iter().flat_map(EngineHandle::records).collect();
    records.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
    let name = |headers: &[(String, String)]| {
        headers.iter().find(|(name, _)| name == "x-test-name").map(|(_, value)| value.clone()).unwrap_or_default()
    };
    records.iter().map(|record| name(&record.headers)).filter(|name| name != "held").collect()
}
