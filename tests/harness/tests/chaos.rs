//! The short form of `scripts/bench chaos`: a fixed seed, a few rounds, every invariant; and the prober killed while it
//! writes. No figure is asserted.

use std::path::Path;
use std::time::Duration;

use harness::chaos::store_kill::{damage_store, kill_while_pinning};
use harness::chaos::{Member, StageOptions, StoreKind, SuiteOptions, TrafficOptions, play};
use harness::engine_sim::model::Profile;
use harness::fault::EngineSpec;
use serde_json::json;

fn member(pool: &str, nth: usize) -> Member {
    let profile = Profile::new("even", &[(1, 200.0), (64, 12_800.0)]);
    let spec = EngineSpec { name: format!("{pool}-{nth}"), model: pool.to_owned(), profile };
    Member { spec, cap: Some(4), wired: nth == 3, spare: false }
}

fn suite(store: StoreKind, seed: u64, rounds: usize) -> SuiteOptions {
    let members = ["alpha", "beta"].into_iter().flat_map(|pool| (1..=3).map(move |nth| member(pool, nth)));
    SuiteOptions {
        stage: StageOptions {
            engine_program: Path::new(env!("CARGO_BIN_EXE_weighbridge-bench")).to_owned(),
            members: members.collect(),
            store,
            workers: 2,
            panics: true,
            prober: json!({"health": {"interval": "200ms", "timeout": "500ms"}}),
            pool: json!({"admission": {"queue": 200, "max_wait": "10s"}}),
            log_failures_only: true,
        },
        traffic: TrafficOptions {
            clients: 6,
            tokens: (4, 40),
            patience: Duration::from_secs(6),
            streams_only: false,
            seed,
        },
        seed,
        rounds,
        round: Duration::from_secs(4),
        mild: false,
    }
}

async fn holds(suite: SuiteOptions) {
    let findings = play(suite, |round| println!("{round}")).await.unwrap();
    assert_eq!(findings.violations, Vec::<String>::new());
    assert!(findings.rounds.iter().all(|round| round.ends.values().sum::<usize>() > 0), "a round without load");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_be_true_is_true_under_chaos_with_a_store_file() {
    holds(suite(StoreKind::File, 1, 4)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_be_true_is_true_under_chaos_with_redis() {
    holds(suite(StoreKind::Redis, 2, 4)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_kills_of_the_prober() {
    let counts = kill_while_pinning(10, 1).await.unwrap();
    println!("{counts:?}");
    assert!(counts.lost == 0 && counts.acknowledged > 0, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_store_is_no_reason_not_to_start_and_never_lost_silently() {
    let damages = damage_store(18, 1).await.unwrap();
    println!("{damages:?}");
    assert_eq!(damages.silent, 0, "{damages:?}");
    assert!(damages.put_aside > 0, "nothing was damaged: {damages:?}");
}
