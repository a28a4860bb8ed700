//! A conversation stays with the endpoint that holds it, as long as that is the better place by capacity.

use std::collections::BTreeMap;

use anyhow::ensure;
use harness::echo::Echo;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::load::{self, Call, Conversation, Outcome};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually, wire};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::common::fleet::{gateway, instant, keep_busy, text, turn};
use crate::common::{DEADLINE, Site, even, in_state, number};

fn reason(outcome: &Outcome) -> String {
    outcome.decision()["reason"].as_str().unwrap_or_default().to_owned()
}

/// Tokens of the prompt that somebody is known to hold.
fn matched(outcome: &Outcome) -> u64 {
    outcome.decision()["prefix"]["matched_tokens"].as_u64().unwrap_or(0)
}

fn holders(outcome: &Outcome) -> Vec<String> {
    let holders = outcome.decision()["prefix"]["holders"].clone();
    serde_json::from_value(holders).unwrap_or_default()
}

fn explained(prompts: &[&str]) -> Call {
    let messages: Vec<Value> = prompts.iter().map(|content| json!({"role": "user", "content": content})).collect();
    Call::messages("m", &messages.into(), 2, false).explain()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_turn_goes_where_the_conversation_is() {
    let (_engines, pool) = instant(&[("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)]).await;
    let envoy = gateway(vec![pool]).await;
    let mut conversations: Vec<_> = (0..12).map(|_| (Conversation::default(), String::new(), 0)).collect();
    let mut homes = BTreeMap::new();
    for round in 0..4_u64 {
        for (nth, (conversation, home, prompt)) in conversations.iter_mut().enumerate() {
            let outcome = turn(&envoy, conversation, &text(200, round * 100 + nth as u64), 20).await;
            if round == 0 {
                *home = outcome.endpoint().to_owned();
                *homes.entry(home.clone()).or_insert(0) += 1;
                assert_eq!(matched(&outcome), 0, "nobody can hold what nobody has said");
            } else {
                assert_eq!((outcome.endpoint(), reason(&outcome).as_str()), (home.as_str(), "holder"), "{outcome:?}");
                assert_eq!(holders(&outcome), [home.as_str()]);
                // All of the turn before, less what the estimate of tokens is off by.
                assert!(matched(&outcome) as f64 >= *prompt as f64 * 0.7, "{} of {prompt}", matched(&outcome));
                // The engine itself says that it had it.
                assert!(outcome.usage.cached_tokens.unwrap() + 16 >= *prompt, "{:?} of {prompt}", outcome.usage);
            }
            *prompt = outcome.usage.prompt_tokens.unwrap();
        }
    }
    assert!(homes.len() > 1, "{homes:?}");
    eventually("look-ups are counted", DEADLINE, async || {
        let stats = envoy.stats().await?;
        let lookups =
            |result: &str| stats.sum(&format!("wasmcustom.weighbridge_prefix_lookups.pool.m.result.{result}"));
        // Three turns of each conversation had a beginning that was known, and one had none.
        ensure!((lookups("hit"), lookups("miss")) == (36, 12), "{} hits, {} misses", lookups("hit"), lookups("miss"));
        Ok(())
    })
    .await
    .unwrap();
}

// Row 5 of the mission: 10 in flight at weight 1.34 (7.5) against 3 at 0.66 (4.5).
#[tokio::test(flavor = "multi_thread")]
async fn ten_against_three_a_long_conversation_stays_and_a_short_one_moves() {
    let (engines, mut pool) = instant(&[("big", 1.34), ("small", 0.66)]).await;
    pool.median_tps = Some(730.0);
    for endpoint in &mut pool.endpoints {
        endpoint.prefill_tps = Some(6_000.0);
    }
    let envoy = gateway(vec![pool]).await;
    // On a quiet network, the heaviest answers: both conversations begin there.
    let (mut long, mut short) = (Conversation::default(), Conversation::default());
    for (conversation, tokens) in [(&mut long, 8_000), (&mut short, 100)] {
        assert_eq!(turn(&envoy, conversation, &text(tokens, tokens as u64), 128).await.endpoint(), "big");
    }
    let _held = keep_busy(&envoy, &engines, &[("big", 10), ("small", 3)]).await;
    let stays = turn(&envoy, &mut long, "and then?", 128).await;
    assert_eq!((stays.endpoint(), reason(&stays).as_str()), ("big", "holder"), "{}", stays.decision());
    let allowance = number(&stays.decision()["prefix"]["allowance"]);
    // 730 x 8,000 / (6,000 x 128) = 7.6, as well as tokens can be estimated before any are known.
    assert!((5.0..12.0).contains(&allowance), "{allowance}");
    let moves = turn(&envoy, &mut short, "and then?", 128).await;
    assert_eq!(moves.endpoint(), "small", "{}", moves.decision());
    assert_eq!(holders(&moves), ["big"]);
    assert!(number(&moves.decision()["prefix"]["allowance"]) < 1.0, "{}", moves.decision());
}

// The other way round: a small machine that is full loses its conversation, however long.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_small_holder_loses_its_conversation() {
    let (engines, pool) = instant(&[("big", 1.34), ("small", 0.66)]).await;
    let envoy = gateway(vec![pool]).await;
    let mut conversation = Conversation::default();
    let held = keep_busy(&envoy, &engines, &[("big", 1), ("small", 0)]).await;
    assert_eq!(turn(&envoy, &mut conversation, &text(8_000, 1), 128).await.endpoint(), "small");
    drop(held);
    // 24 x 0.66: its cap.
    let _held = keep_busy(&envoy, &engines, &[("big", 3), ("small", 16)]).await;
    let moves = turn(&envoy, &mut conversation, "and then?", 128).await;
    assert_eq!((moves.endpoint(), holders(&moves)), ("big", vec!["small".to_owned()]), "{}", moves.decision());
    // The new place has it all, and now more of it than the old one.
    let stays = turn(&envoy, &mut conversation, "and then?", 128).await;
    assert_eq!((stays.endpoint(), reason(&stays).as_str()), ("big", "holder"), "{}", stays.decision());
}

// Case C4: one hot endpoint: only prompts bound for it spill.
#[tokio::test(flavor = "multi_thread")]
async fn c4_only_prompts_bound_for_the_hot_endpoint_spill() {
    let (engines, mut pool) = instant(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]).await;
    pool.endpoints[0].cap = Some(4);
    let envoy = gateway(vec![pool]).await;
    let mut conversations: Vec<(Conversation, String)> = Vec::new();
    for nth in 0..60 {
        let mut conversation = Conversation::default();
        let home = turn(&envoy, &mut conversation, &text(400, nth), 8).await.endpoint().to_owned();
        conversations.push((conversation, home));
    }
    let bound = |name: &str| conversations.iter().filter(|(_, home)| home == name).count();
    assert!(bound("a") > 5 && bound("b") > 5 && bound("c") > 5, "{} {} {}", bound("a"), bound("b"), bound("c"));
    let _held = keep_busy(&envoy, &engines, &[("a", 4), ("b", 0), ("c", 0)]).await;
    for (conversation, home) in &mut conversations {
        let outcome = turn(&envoy, conversation, "and then?", 8).await;
        if home == "a" {
            assert_ne!(outcome.endpoint(), "a");
        } else {
            assert_eq!((outcome.endpoint(), reason(&outcome).as_str()), (home.as_str(), "holder"));
        }
    }
}

// Case C6: one request at a time, four idle equal endpoints, new prompts under one system prompt: spread.
#[tokio::test(flavor = "multi_thread")]
async fn c6_new_prompts_spread_over_idle_endpoints() {
    let (_engines, pool) = instant(&[("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)]).await;
    let envoy = gateway(vec![pool]).await;
    let report = load::closed_loop(envoy.gateway(), 1, 200, |nth| Call::chat("m", &text(100, nth as u64), 2)).await;
    let split = report.by_engine();
    assert!(split.len() == 4 && split.values().all(|count| (25..=80).contains(count)), "{split:?}");
}

// Case C7: two equally good endpoints among eight share the traffic.
#[tokio::test(flavor = "multi_thread")]
async fn c7_two_equally_good_endpoints_among_eight_share() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let of: Vec<_> = names.iter().map(|name| (*name, 1.0)).collect();
    let (engines, mut pool) = instant(&of).await;
    pool.policy.choices = wire::Choices::Word("all".into());
    let envoy = gateway(vec![pool]).await;
    let busy: Vec<_> = names.iter().map(|name| (*name, usize::from(!matches!(*name, "c" | "f")))).collect();
    let _held = keep_busy(&envoy, &engines, &busy).await;
    let report = load::closed_loop(envoy.gateway(), 1, 200, |nth| Call::chat("m", &text(100, nth as u64), 2)).await;
    let split = report.by_engine();
    assert!(split.len() == 2 && (60..=140).contains(&split["c"]) && (60..=140).contains(&split["f"]), "{split:?}");
}

// Case C8: a miss goes where the load per weight is least, not to a busy endpoint because its cache is empty.
#[tokio::test(flavor = "multi_thread")]
async fn c8_a_miss_does_not_seek_an_empty_cache() {
    let (engines, pool) = instant(&[("full", 1.34), ("empty", 0.66)]).await;
    let envoy = gateway(vec![pool]).await;
    // Alone on a quiet network, the heavier endpoint takes all of these and holds them.
    for nth in 0..30 {
        assert_eq!(load::send(envoy.gateway(), explained(&[&text(1_000, nth)])).await.endpoint(), "full");
    }
    let _held = keep_busy(&envoy, &engines, &[("full", 0), ("empty", 2)]).await;
    for nth in 100..130 {
        let outcome = load::send(envoy.gateway(), explained(&[&text(1_000, nth)])).await;
        assert_eq!((outcome.endpoint(), matched(&outcome)), ("full", 0), "{}", outcome.decision());
    }
}

// Case C11: the holder dies: the next turn is learnt at its new place at once.
#[tokio::test(flavor = "multi_thread")]
async fn c11_a_dead_holder_is_replaced_at_once() {
    let (engines, pool) = instant(&[("a", 1.34), ("b", 0.66)]).await;
    let envoy = gateway(vec![pool]).await;
    let mut conversation = Conversation::default();
    assert_eq!(turn(&envoy, &mut conversation, &text(2_000, 1), 8).await.endpoint(), "a");
    engines[0].kill().await;
    let second = turn(&envoy, &mut conversation, &text(400, 2), 8).await;
    assert_eq!((second.endpoint(), second.engine()), ("b", "b"), "{}", second.decision());
    let third = turn(&envoy, &mut conversation, "and then?", 8).await;
    assert_eq!((third.endpoint(), reason(&third).as_str()), ("b", "holder"), "{}", third.decision());
    assert_eq!(third.decision()["picked"], "b", "{}", third.decision());
}

// Case C11 with the prober: unhealthy, then back, restarted: what it held is forgotten, and nothing is stuck.
#[tokio::test(flavor = "multi_thread")]
async fn c11_an_unhealthy_or_restarted_holder_is_forgotten() {
    let engines = [crate::common::engine("a", even()).await, crate::common::engine("b", even()).await];
    let mut site = Site::new(&[&engines[0], &engines[1]]);
    let (prober, envoy) = site.start(2).await;
    let mut conversation = Conversation::default();
    let first = turn(&envoy, &mut conversation, &text(2_000, 1), 8).await;
    let (home, other) = if first.endpoint() == "a" { (0, 1) } else { (1, 0) };
    let life = prober.endpoint(engines[home].name()).await.unwrap()["epoch"].clone();
    engines[home].kill().await;
    in_state(&prober, engines[home].name(), "unhealthy").await;
    crate::common::applied(&prober).await;
    let second = turn(&envoy, &mut conversation, "and then?", 8).await;
    assert_eq!(second.endpoint(), engines[other].name());
    assert_ne!(reason(&second), "holder");
    let third = turn(&envoy, &mut conversation, "and then?", 8).await;
    assert_eq!((third.endpoint(), reason(&third).as_str()), (engines[other].name(), "holder"));
    // Back, and empty: it holds nothing of the first turn any more.
    engines[home].revive().await.unwrap();
    in_state(&prober, engines[home].name(), "ready").await;
    // It says itself when it started, so another life is known with the next reading of its metrics.
    eventually("another life is known", DEADLINE, async || {
        let endpoint = prober.endpoint(engines[home].name()).await?;
        ensure!(endpoint["epoch"] != life, "{endpoint}");
        Ok(())
    })
    .await
    .unwrap();
    crate::common::applied(&prober).await;
    let mut again = Conversation::default();
    let fourth = turn(&envoy, &mut again, &text(2_000, 1), 8).await;
    assert_eq!(holders(&fourth), [engines[other].name()], "{}", fourth.decision());
}

// Case C12: [A, B, B] after [A] matches A and no more; nor does the order get lost.
#[tokio::test(flavor = "multi_thread")]
async fn c12_a_chain_hash_tells_orders_and_repetitions_apart() {
    let (_engines, pool) = instant(&[("only", 1.0)]).await;
    let envoy = gateway(vec![pool]).await;
    let (a, b) = (text(300, 1), text(200, 2));
    let send = async |prompts: &[&str]| matched(&load::send(envoy.gateway(), explained(prompts)).await);
    assert_eq!(send(&[&a]).await, 0);
    let of_a = send(&[&a]).await;
    assert!((200..=400).contains(&of_a), "{of_a}");
    assert_eq!(send(&[&a, &b, &b]).await, of_a);
    assert!(send(&[&a, &b]).await > of_a, "its beginning is known now");
    assert_eq!(send(&[&b, &a]).await, 0);
    assert_eq!(send(&[&a, &a]).await, of_a);
}

// Case C13: the same prompt under another model or LoRA adapter is another prompt.
#[tokio::test(flavor = "multi_thread")]
async fn c13_models_and_adapters_share_no_prefixes() {
    let config = EngineConfig {
        name: "only".into(),
        model: "m".into(),
        adapters: vec!["poet".into(), "clerk".into()],
        ..EngineConfig::default()
    };
    let engine = EngineHandle::start(config).await.unwrap();
    let mut pool = pool("m", vec![endpoint("only", engine.addr(), 1.0)]);
    pool.models.extend(["alias".into(), "poet".into(), "clerk".into()]);
    pool.served_model = Some("m".into());
    pool.adapters = vec!["poet".into(), "clerk".into()];
    let envoy = gateway(vec![pool]).await;
    let prompt = text(500, 1);
    let send = async |model: &str| {
        let outcome = load::send(envoy.gateway(), Call::chat(model, &prompt, 2).explain()).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        matched(&outcome)
    };
    assert_eq!(send("m").await, 0);
    assert!(send("m").await > 0);
    assert_eq!(send("poet").await, 0);
    assert!(send("poet").await > 0);
    assert_eq!(send("clerk").await, 0);
    assert!(send("alias").await > 0, "another name of the same model");
}

// Case C14: prompts that never come again do not fill the memory.
#[tokio::test(flavor = "multi_thread")]
async fn c14_distinct_prompts_leave_memory_flat() {
    const PROMPTS: usize = 20_000;
    let echo = Echo::start().await.unwrap();
    let fleet = snapshot(vec![pool("m", vec![endpoint("a", echo.addr(1), 1.0), endpoint("b", echo.addr(2), 1.0)])]);
    let envoy = Envoy::start(EnvoyOptions::fixed(fleet)).await.unwrap();
    // Forty messages: as many checkpoints as a prompt can have. An entry that stays would take 16 bytes at the very
    // least, and all of them more than is allowed below.
    let make = |seed: usize| {
        let said =
            |nth| json!({"role": "user", "content": format!("{seed} says {nth} for the first time, ").repeat(10)});
        Call::messages("m", &(0..40).map(said).collect::<Vec<_>>().into(), 2, false)
    };
    let send = async |from: usize, to: usize| {
        let report = load::closed_loop(envoy.gateway(), 16, to - from, move |nth| make(from + nth)).await;
        assert_eq!(report.ok(), to - from, "{:?}", report.by_status());
        envoy.rss_bytes().unwrap()
    };
    let early = send(0, PROMPTS / 5).await;
    let late = send(PROMPTS / 5, PROMPTS).await;
    eventually("every prompt was looked up", DEADLINE, async || {
        let misses = envoy.stats().await?.sum("wasmcustom.weighbridge_prefix_lookups.pool.m.result.miss");
        ensure!(misses == PROMPTS as u64, "{misses} misses");
        Ok(())
    })
    .await
    .unwrap();
    println!("RSS after {} prompts {} KB, after {PROMPTS} {} KB", PROMPTS / 5, early >> 10, late >> 10);
    assert!(late < early + (8 << 20), "{early} -> {late}");
}

// One system prompt for everybody herds nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_system_prompt_leaves_every_endpoint_its_share() {
    const USERS: u64 = 64;
    const TURNS: u64 = 5;
    // As fast for each request at any load, so that shares are what the gateway makes them.
    let mut profile = Profile::new("even", &[(1, 200.0), (64, 12_800.0)]);
    profile.prefill_tps = 0.0;
    profile.batch_limit = 64;
    let weights = [("a", 1.34), ("b", 0.66), ("c", 1.0), ("d", 1.0)];
    let of: Vec<_> = weights.iter().map(|(name, weight)| (*name, profile.clone(), *weight)).collect();
    let (_engines, pool) = crate::common::fleet::fleet(&of).await;
    let envoy = gateway(vec![pool]).await;
    let (to, system) = (envoy.gateway(), text(1_000, 7));
    let mut users = JoinSet::new();
    for user in 0..USERS {
        let mut conversation = Conversation::new(&system);
        users.spawn(async move {
            let mut endpoints = Vec::new();
            for nth in 0..TURNS {
                let call = conversation.ask("m", &text(40, user * 100 + nth), 16, false);
                let outcome = load::send(to, call).await;
                assert!(outcome.is_ok(), "{outcome:?}");
                conversation.hear(&outcome);
                endpoints.push(outcome.endpoint().to_owned());
            }
            endpoints
        });
    }
    let answered: Vec<String> = users.join_all().await.into_iter().flatten().collect();
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut report = Vec::new();
    for (name, weight) in weights {
        let share = answered.iter().filter(|endpoint| *endpoint == name).count() as f64 / answered.len() as f64;
        report.push((name, weight / total, share));
    }
    println!("share by weight and as it was: {report:.3?}");
    assert!(report.iter().all(|(_, due, share)| (due - share).abs() < 0.10), "{report:?}");
}

// The same home for a prefix at every Envoy, however little each of them has seen.
#[tokio::test(flavor = "multi_thread")]
async fn cold_prefixes_have_the_same_home_at_every_envoy() {
    let (_engines, mut pool) = instant(&[("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)]).await;
    pool.affinity.cold = wire::Cold::Hash;
    let envoys = [gateway(vec![pool.clone()]).await, gateway(vec![pool]).await];
    let mut homes = BTreeMap::new();
    for seed in 0..40 {
        let mut picked = Vec::new();
        for envoy in &envoys {
            let outcome = load::send(envoy.gateway(), explained(&[&text(300, seed)])).await;
            assert_eq!(reason(&outcome), "home", "{}", outcome.decision());
            picked.push(outcome.endpoint().to_owned());
        }
        assert_eq!(picked[0], picked[1]);
        *homes.entry(picked.swap_remove(0)).or_insert(0) += 1;
    }
    assert_eq!(homes.len(), 4, "{homes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off_it_does_nothing() {
    let (_engines, mut pool) = instant(&[("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0)]).await;
    pool.affinity.enabled = false;
    let envoy = gateway(vec![pool]).await;
    let mut used = BTreeMap::new();
    let mut conversation = Conversation::default();
    for _ in 0..40 {
        let outcome = turn(&envoy, &mut conversation, &text(50, 1), 2).await;
        assert_eq!(outcome.decision()["prefix"], Value::Null);
        *used.entry(outcome.endpoint().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(used.len(), 4, "{used:?}");
}
