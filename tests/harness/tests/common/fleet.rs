//! A real Envoy with a snapshot set by hand, simulated engines behind it, and ways to keep them busy.

use std::time::Duration;

use anyhow::ensure;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle, Fault, FaultKind};
use harness::load::{self, Call, Conversation, Held, Outcome};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually, wire};

use super::DEADLINE;

/// Warm engines of the model `m`, and the pool of them.
pub(crate) async fn fleet(of: &[(&str, Profile, f64)]) -> (Vec<EngineHandle>, wire::Pool) {
    let mut engines = Vec::new();
    let mut endpoints = Vec::new();
    for (name, profile, weight) in of {
        let profile = profile.clone();
        let (name, model) = ((*name).to_owned(), "m".to_owned());
        let config = EngineConfig { name, model, profile, cold: false, ..EngineConfig::default() };
        let engine = EngineHandle::start(config).await.unwrap();
        endpoints.push(endpoint(engine.name(), engine.addr(), *weight));
        engines.push(engine);
    }
    (engines, pool("m", endpoints))
}

/// Engines that take no time, one per name and weight.
pub(crate) async fn instant(of: &[(&str, f64)]) -> (Vec<EngineHandle>, wire::Pool) {
    let of: Vec<_> = of.iter().map(|(name, weight)| (*name, Profile::instant(), *weight)).collect();
    fleet(&of).await
}

/// An Envoy of these pools, where clients may ask for the decision.
pub(crate) async fn gateway(pools: Vec<wire::Pool>) -> Envoy {
    let mut snapshot = snapshot(pools);
    snapshot.filter.client_headers = vec!["explain".into()];
    Envoy::start(EnvoyOptions::fixed(snapshot)).await.unwrap()
}

/// Holds exactly so many streams open at each of these endpoints of the pool `m`, and waits until the gateway counts them
/// so. They go when they are dropped.
pub(crate) async fn keep_busy(envoy: &Envoy, engines: &[EngineHandle], wanted: &[(&str, usize)]) -> Vec<Held> {
    for engine in engines {
        engine.set_fault(Fault { kind: FaultKind::Hang, after_tokens: Some(1), ..Fault::default() });
    }
    let mut held: Vec<Held> = Vec::new();
    let count = |held: &[Held], name: &str| held.iter().filter(|held| held.endpoint() == name).count();
    while wanted.iter().any(|(name, wanted)| count(&held, name) < *wanted) {
        assert!(held.len() < 400, "the policy never fills {wanted:?}");
        let call = Call::chat_stream("m", &format!("keep {} busy", held.len()), 8);
        held.push(load::hold(envoy.gateway(), call).await.unwrap());
    }
    for engine in engines {
        engine.set_fault(Fault::default());
    }
    let mut kept: Vec<Held> = Vec::new();
    for stream in held {
        let limit = wanted.iter().find(|(name, _)| *name == stream.endpoint()).map_or(0, |(_, wanted)| *wanted);
        if count(&kept, stream.endpoint()) < limit {
            kept.push(stream);
        }
    }
    eventually("the gateway counts what is held", DEADLINE, async || {
        let stats = envoy.stats().await?;
        for (name, wanted) in wanted {
            let found = stats.in_flight("m", name);
            ensure!(found == *wanted as u64, "{name} has {found}, not {wanted}");
        }
        Ok(())
    })
    .await
    .unwrap();
    kept
}

/// One turn of a conversation through the gateway, explained; the answer becomes part of it.
pub(crate) async fn turn(envoy: &Envoy, conversation: &mut Conversation, said: &str, tokens: u32) -> Outcome {
    let call = conversation.ask("m", said, tokens, false).explain().timeout(Duration::from_secs(60));
    let outcome = load::send(envoy.gateway(), call).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    conversation.hear(&outcome);
    outcome
}

/// About so many tokens of text (4 bytes each, as the engines count), which no other seed gives.
pub(crate) fn text(tokens: usize, seed: u64) -> String {
    let mut text = String::with_capacity(tokens * 4 + 24);
    let mut state = seed;
    while text.len() < tokens * 4 {
        // SplitMix64's increment and a multiplication: words without a pattern.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        text.push_str(&format!("{:x} ", (state ^ (state >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 20));
    }
    text.truncate(tokens * 4);
    text
}
