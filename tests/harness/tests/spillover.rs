//! What one pool would refuse, another takes.

use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool};
use harness::upstream::{Reply, Upstream};
use harness::wire;

use crate::common::fleet::instant;
use crate::common::queue::{fill, gateway};

const ANSWER: &str = r#"{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}"#;

/// A pool `other` behind an upstream that remembers what it was asked.
async fn other() -> (Upstream, wire::Pool) {
    let upstream = Upstream::start(Reply::json(ANSWER)).await.unwrap();
    let mut pool = pool("other", vec![endpoint("spare", upstream.addr(), 1.0)]);
    pool.served_model = Some("other-7b".into());
    (upstream, pool)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_pool_spills_and_the_body_names_the_other_model() {
    let (engines, mut full) = instant(&[("only", 1.0)]).await;
    full.endpoints[0].cap = Some(1);
    full.admission = wire::Admission { queue: 0, spill_to: Some("other".into()), ..full.admission };
    let (upstream, other) = other().await;
    let envoy = gateway(2, vec![full, other]).await;
    let held = fill(&envoy, &engines, 1).await;
    for _ in 0..3 {
        let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 2).explain()).await;
        assert_eq!((outcome.is_ok(), outcome.endpoint()), (true, "spare"), "{outcome:?}");
        let decision = outcome.decision();
        assert_eq!((&decision["pool"], &decision["reason"]), (&"other".into(), &"spill".into()), "{decision}");
        assert_eq!(decision["spilled_from"], "m", "{decision}");
    }
    let seen = upstream.take_seen();
    assert_eq!(seen.iter().map(|seen| seen.json()["model"].clone()).collect::<Vec<_>>(), ["other-7b"; 3]);
    assert!(seen.iter().all(|seen| seen.json()["messages"][0]["content"] == "hello"));
    // With room again, its own endpoints serve.
    drop(held);
    envoy.idle(crate::common::DEADLINE).await.unwrap();
    assert_eq!(load::send(envoy.gateway(), Call::chat("m", "hello", 2)).await.endpoint(), "only");
    let spilled = "wasmcustom.weighbridge_requests.pool.other.endpoint.spare.reason.spill";
    harness::eventually("spills are counted", crate::common::DEADLINE, async || {
        let count = envoy.stats().await?.get(spilled);
        anyhow::ensure!(count == 3, "{count}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_spills_only_what_its_queue_does_not_take() {
    let (engines, mut full) = instant(&[("only", 1.0)]).await;
    full.endpoints[0].cap = Some(1);
    full.admission = wire::Admission { queue: 1, spill_to: Some("other".into()), ..full.admission };
    let (_upstream, other) = other().await;
    let envoy = gateway(2, vec![full, other]).await;
    let held = fill(&envoy, &engines, 1).await;
    let waiting = crate::common::queue::queue_up(&envoy, vec![Call::chat("m", "first", 2)]).await;
    assert_eq!(load::send(envoy.gateway(), Call::chat("m", "second", 2)).await.endpoint(), "spare");
    drop(held);
    for request in waiting {
        assert_eq!(request.await.unwrap().endpoint(), "only");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_without_endpoints_spills_and_adapters_do_not_turn_into_other_models() {
    let mut empty = pool("m", Vec::new());
    empty.models.push("poet".into());
    empty.adapters = vec!["poet".into()];
    empty.admission.spill_to = Some("other".into());
    let (_upstream, other) = other().await;
    let envoy = gateway(1, vec![empty, other]).await;
    assert_eq!(load::send(envoy.gateway(), Call::chat("m", "hello", 2)).await.endpoint(), "spare");
    let outcome = load::send(envoy.gateway(), Call::chat("poet", "hello", 2)).await;
    assert_eq!((outcome.status, &outcome.json()["error"]["code"]), (Some(503), &"no_endpoint".into()), "{outcome:?}");
}
