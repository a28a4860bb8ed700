//! The server against a real Envoy.

mod support;

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use support::{Engine, Envoy, Server, Streams, bootstrap, get, until};
use weighbridge_xds::ResourceType;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("a literal address")
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_endpoints_and_filter_arrive_and_follow_changes() -> Result<()> {
    let server = Server::start().await?;
    let (one, two) = (address("192.0.2.1:80"), address("192.0.2.2:80"));
    server.publish(100, &[("a", &[one])])?;
    let envoy = Envoy::start(&bootstrap("ads", server.address, Streams::Ads)).await?;

    let status = server.envoy("everything is ACKed", |envoy| envoy.applied_version == Some(100)).await?;
    ensure!((status.node_id.as_str(), status.node_cluster.as_str(), status.streams) == ("ads", "test", 1));
    ensure!(server.xds.all_acked() && status.types.len() == 3, "{status:#?}");
    envoy.clusters_show("a::192.0.2.1:80::", true).await?;

    server.publish(101, &[("a", &[one, two])])?;
    server.applied(101).await?;
    envoy.clusters_show("a::192.0.2.2:80::", true).await?;
    ensure!(envoy.stat("cluster_manager.cluster_modified").await? == 0, "endpoints came without touching clusters");

    server.publish(102, &[("a", &[two]), ("b", &[one])])?;
    server.applied(102).await?;
    envoy.clusters_show("a::192.0.2.1:80::", false).await?;
    envoy.clusters_show("b::192.0.2.1:80::", true).await?;

    server.publish(103, &[("b", &[one])])?;
    server.applied(103).await?;
    envoy.clusters_show("a::", false).await?;

    // A pool that comes back has its endpoints again.
    server.publish(104, &[("a", &[two]), ("b", &[one])])?;
    server.applied(104).await?;
    envoy.clusters_show("a::192.0.2.2:80::", true).await?;
    let status = server.envoy("nothing is under way", |envoy| !envoy.types.values().any(|kind| kind.pending)).await?;
    ensure!(status.last_nack.is_none() && status.applied_version == Some(104), "{status:#?}");

    envoy.passed();
    let gone = server.envoy("the Envoy is gone", |envoy| !envoy.connected).await?;
    ensure!(gone.applied_version == Some(104) && !server.xds.all_acked());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_header_picks_the_host_and_does_not_reach_it() -> Result<()> {
    let (first, second) = (Engine::start("first").await?, Engine::start("second").await?);
    let server = Server::start().await?;
    server.publish(100, &[("a", &[first.address, second.address])])?;
    let envoy = Envoy::start(&bootstrap("override", server.address, Streams::Ads)).await?;
    server.envoy("everything is ACKed", |envoy| envoy.applied_version == Some(100)).await?;
    let gateway = envoy.gateway().await?;
    // The listener opens to the workers a moment after the last ACK.
    until("the gateway answers", async || {
        Ok(get(gateway, "/", "x-weighbridge-cluster: a\r\n").await?.contains("200 OK"))
    })
    .await?;
    for _ in 0..5 {
        for (engine, name) in [(&second, "second"), (&first, "first")] {
            let headers = format!("x-weighbridge-cluster: a\r\nx-weighbridge-host: {}\r\n", engine.address);
            let answer = get(gateway, "/", &headers).await?;
            ensure!(answer.contains(&format!("engine {name} got")), "{answer}");
            ensure!(!answer.contains("x-weighbridge"), "{answer}");
        }
    }
    envoy.passed();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_filter_is_told_once_and_the_last_good_one_stays() -> Result<()> {
    let engine = Engine::start("only").await?;
    let server = Server::start().await?;
    server.publish(100, &[("a", &[engine.address])])?;
    let envoy = Envoy::start(&bootstrap("nack", server.address, Streams::Ads)).await?;
    server.envoy("everything is ACKed", |envoy| envoy.applied_version == Some(100)).await?;

    server.hide_wasm()?;
    server.publish(101, &[("a", &[engine.address])])?;
    let status = server.envoy("the refusal is known", |envoy| envoy.last_nack.is_some()).await?;
    let nack = status.last_nack.context("just seen")?;
    ensure!((nack.version.as_str(), nack.kind) == ("101", ResourceType::Extensions), "{nack:?}");
    ensure!(nack.message.contains("filter.wasm"), "{nack:?}");
    ensure!(status.applied_version == Some(100) && status.connected);
    ensure!(!server.xds.all_acked());

    // Whatever else happens on the stream, the refused version is not said again: weights move EDS, and only EDS.
    let refusals = async || {
        let stats = envoy.admin("/stats?filter=extension_config_discovery").await?;
        let count = stats.lines().find(|line| line.contains("update_rejected")).map(str::to_owned);
        count.with_context(|| stats)
    };
    let before = refusals().await?;
    ensure!(before.ends_with(": 1"), "{before}");
    let gateway = envoy.gateway().await?;
    for _ in 0..50 {
        let answer = get(gateway, "/", "x-weighbridge-cluster: a\r\n").await?;
        ensure!(answer.contains("200 OK"), "the last good filter serves: {answer}");
    }
    ensure!(refusals().await? == before);

    server.show_wasm()?;
    server.publish(102, &[("a", &[engine.address])])?;
    server.applied(102).await?;
    let status = server.envoy("all is well", |envoy| envoy.applied_version == Some(102)).await?;
    ensure!(status.types[&ResourceType::Extensions].rejected_version.is_none() && status.last_nack == Some(nack));
    ensure!(server.xds.all_acked());
    envoy.passed();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stream_per_type_serves_as_well() -> Result<()> {
    let engine = Engine::start("only").await?;
    let server = Server::start().await?;
    server.publish(100, &[("a", &[engine.address])])?;
    let envoy = Envoy::start(&bootstrap("separate", server.address, Streams::OnePerType)).await?;
    let status = server.envoy("everything is ACKed", |envoy| envoy.applied_version == Some(100)).await?;
    ensure!(status.streams == 3 && status.types.len() == 3, "{status:#?}");
    let gateway = envoy.gateway().await?;
    until("the gateway answers", async || {
        Ok(get(gateway, "/", "x-weighbridge-cluster: a\r\n").await?.contains("200 OK"))
    })
    .await?;
    server.publish(101, &[("a", &[address("192.0.2.1:80")])])?;
    server.applied(101).await?;
    envoy.clusters_show("a::192.0.2.1:80::", true).await?;
    envoy.passed();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_changes_coalesce_and_the_last_one_counts() -> Result<()> {
    let server = Server::start().await?;
    let host = address("192.0.2.1:80");
    server.publish(1, &[("a", &[host])])?;
    let envoy = Envoy::start(&bootstrap("fast", server.address, Streams::Ads)).await?;
    server.envoy("everything is ACKed", |envoy| envoy.applied_version == Some(1)).await?;
    let start = Instant::now();
    for version in 2..=2001 {
        server.publish_weighted(version, version as f64 / 100.0, &[("a", &[host])])?;
        tokio::task::yield_now().await;
    }
    let published = start.elapsed();
    server.applied(2001).await?;
    let applied = start.elapsed();
    let pushes = envoy.stat("cluster.a.update_success").await?;
    println!("2000 changes published in {published:?}, the last one applied after {applied:?}, {pushes} EDS pushes");
    ensure!(pushes < 2000, "every change was pushed");

    let start = Instant::now();
    server.publish_weighted(2002, 3.5, &[("a", &[host])])?;
    server.applied(2002).await?;
    println!("one change, published to ACKed: {:?}", start.elapsed());
    envoy.passed();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_server_learns_which_version_the_envoys_hold() -> Result<()> {
    let server = Server::start().await?;
    let host = address("192.0.2.1:80");
    server.publish(5000, &[("a", &[host])])?;
    let envoy = Envoy::start(&bootstrap("reconnects", server.address, Streams::Ads)).await?;
    server.envoy("everything is ACKed", |envoy| envoy.applied_version == Some(5000)).await?;

    let server = server.replace().await?;
    ensure!(server.xds.highest_seen_version() == 0);
    server.publish(10, &[("a", &[host])])?;
    until("the Envoy names its version", async || Ok(server.xds.highest_seen_version() == 5000)).await?;
    envoy.clusters_show("a::192.0.2.1:80::", true).await?;
    server.publish(5001, &[("a", &[host])])?;
    server.envoy("the newer version is ACKed", |envoy| envoy.applied_version == Some(5001)).await?;
    envoy.passed();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_hangs_is_noticed() -> Result<()> {
    let server = Server::start().await?;
    server.publish(1, &[("a", &[address("192.0.2.1:80")])])?;
    let envoy = Envoy::start(&bootstrap("hangs", server.address, Streams::Ads)).await?;
    server.envoy("everything is ACKed", |envoy| envoy.applied_version == Some(1)).await?;
    envoy.signal("-STOP")?;
    server.publish(2, &[("a", &[address("192.0.2.1:80")])])?;
    let start = Instant::now();
    server.envoy("the Envoy counts as gone", |envoy| !envoy.connected).await?;
    println!("noticed after {:?}", start.elapsed());
    ensure!(server.xds.wait_applied(2, std::time::Duration::ZERO).await, "nobody is held up any more");
    envoy.passed();
    Ok(())
}
