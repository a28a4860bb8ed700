//! A few thousand malformed inputs against the running gateway; `scripts/bench malformed` sends 100,000.

use harness::echo::Echo;
use harness::load::{self, Call};
use harness::malformed;
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};

use crate::common::DEADLINE;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_malformed_brings_a_vm_down_or_an_error_that_is_not_ours() {
    const INPUTS: u64 = 3_000;
    let echo = Echo::start().await.unwrap();
    let mut fleet = snapshot(vec![pool("m", vec![endpoint("e", echo.addr(1), 1.0)])]);
    fleet.filter.client_headers = vec!["explain".into(), "priority".into(), "max-wait".into()];
    let envoy = Envoy::start(EnvoyOptions::fixed(fleet)).await.unwrap();
    // The first third warms up: the allocator keeps what it once had.
    let mut report = malformed::run(envoy.gateway(), 1, 0..INPUTS / 3, 16).await.unwrap();
    let warm = envoy.rss_bytes().unwrap();
    report.merge(malformed::run(envoy.gateway(), 1, INPUTS / 3..INPUTS, 16).await.unwrap());
    let grown = envoy.rss_bytes().unwrap().saturating_sub(warm);
    println!("{INPUTS} inputs: {:?}; {} KB more memory after the first third", report.by_status, grown >> 10);
    assert_eq!(report.kinds.values().sum::<u64>(), INPUTS);
    assert!(report.foreign.is_empty(), "{:#?}", report.foreign);
    assert!(report.stuck.is_empty(), "{:?}", report.stuck);
    // The inputs are what they say: some are good, and some are refused for each reason.
    for status in ["200", "400", "404", "413", "415", "431", "closed"] {
        assert!(report.by_status.contains_key(status), "no {status} in {:?}", report.by_status);
    }
    envoy.idle(DEADLINE).await.unwrap();
    assert_eq!(envoy.stats().await.unwrap().sum("wasm.weighbridge.vm_reload"), 0);
    assert!(envoy.log().lines().all(|line| !line.contains("panicked")), "{}", envoy.log());
    assert!(grown < 64 << 20, "{grown}");
    assert!(load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await.is_ok());
}
