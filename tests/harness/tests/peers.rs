//! The routers that the benchmark compares us with: those that every machine with the test packages has are started as the
//! benchmark starts them, and the page of results is what the generator makes of the committed figures.

use harness::artifacts;
use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::load::{self, Call};
use harness::peers::{Measured, ROUTERS, Results, Router, Setup, page};

/// Those that need a Python environment each are left to `scripts/bench --install-peers`; what they are told is tested beside it.
const EVERYWHERE: [&str; 11] = [
    "direct",
    "weighbridge",
    "weighbridge-by-weight",
    "envoy-least-request",
    "envoy-least-request-weighted",
    "envoy-ring-hash",
    "envoy-round-robin",
    "nginx",
    "nginx-weighted",
    "haproxy",
    "haproxy-weighted",
];

async fn engines() -> (Vec<EngineHandle>, Setup) {
    let (mut engines, mut members) = (Vec::new(), Vec::new());
    for name in ["a", "b"] {
        let config = EngineConfig {
            name: name.into(),
            model: "bench".into(),
            profile: Profile::instant(),
            ..EngineConfig::default()
        };
        let engine = EngineHandle::start(config).await.unwrap();
        members.push((name.to_owned(), engine.addr(), 1.0));
        engines.push(engine);
    }
    (engines, Setup { engines: members, measured: None, pool: serde_json::Value::Null })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_starts_serves_a_stream_and_stops() {
    let (engines, setup) = engines().await;
    for name in EVERYWHERE {
        let router = Router::named(name).unwrap();
        let mut running = router.start(&setup).await.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let answered = || engines.iter().map(|engine| engine.state().finished_total).sum::<u64>();
        let before = answered();
        let call = Call::chat_stream("bench", "hello", 20).header("x-prefix-hash", "7");
        let outcome = load::send(running.front.target(0), call).await;
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
        assert_eq!((outcome.tokens, answered() - before), (20, 1), "{name}");
        let (cpu, memory) = (running.cpu_seconds().unwrap(), running.peak_rss_bytes().unwrap());
        assert_eq!(cpu.len(), memory.len(), "{name}");
        assert_eq!(memory.is_empty(), router.is_control(), "{name}");
        assert!(
            cpu.values().all(|seconds| *seconds > 0.0) && memory.values().all(|bytes| *bytes > 1_000_000),
            "{name}"
        );
        assert!(router.is_control() || router.version().await.is_ok_and(|version| !version.is_empty()), "{name}");
        let target = running.front.target(0);
        running.stop().await.unwrap();
        let gone = load::send(target, Call::get("/health")).await;
        assert_eq!(gone.is_ok(), router.is_control(), "{name}: {gone:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prober_that_has_measured_does_not_measure_again() {
    let (engines, setup) = engines().await;
    let measured = Measured::measure(&setup).await.unwrap();
    assert_eq!(measured.endpoints.as_array().unwrap().len(), 2);
    let tokens = || engines.iter().map(|engine| engine.state().generation_tokens_total).sum::<u64>();
    let burst = tokens();
    assert!(burst > 0);
    let setup = Setup { measured: Some(measured.store()), ..setup };
    Router::named("weighbridge").unwrap().start(&setup).await.unwrap().stop().await.unwrap();
    assert_eq!(tokens(), burst);
}

// Each of the others is a Python package: there is a list of exactly what `scripts/bench --install-peers` installs for it.
#[test]
fn whoever_is_not_started_here_has_a_list_of_what_it_needs() {
    let dir = artifacts::root().join("tests/harness/peers");
    let mut seen = 0;
    for router in ROUTERS.iter().filter(|router| !EVERYWHERE.contains(&router.name)) {
        let Some(package) = router.package() else { continue };
        let list = std::fs::read_to_string(dir.join(format!("{package}.txt"))).unwrap();
        let mut lines = list.lines().filter(|line| !line.starts_with('#'));
        assert!(lines.clone().any(|line| line.starts_with(&format!("{package}=="))), "{package}");
        assert!(lines.all(|line| line.contains("==")), "{package}");
        if let Err(why) = router.program() {
            assert!(why.to_string().contains("scripts/bench --install-peers"), "{}: {why}", router.name);
        }
        seen += 1;
    }
    assert!(seen > 3);
}

#[test]
fn the_page_is_made_of_the_figures() {
    let read = |path: &str| std::fs::read_to_string(artifacts::root().join(path)).unwrap();
    let results: Results = serde_json::from_str(&read("docs/benchmarks.json")).unwrap();
    assert!(!results.cells.is_empty());
    assert!(page::page(&results) == read("docs/benchmarks.md"), "run scripts/bench peers-page");
}
