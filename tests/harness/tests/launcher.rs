//! `scripts/run`, from its launcher on: a demo fleet answers, and nothing is left when it is told to stop.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::child::ManagedChild;
use harness::eventually;
use harness::load::{self, Call};
use tokio::net::TcpStream;
use tokio::process::Command;

/// The address after `word` in what the launcher printed.
fn printed(text: &str, word: &str) -> anyhow::Result<SocketAddr> {
    let (_, rest) = text.split_once(word).with_context(|| format!("{word:?} is not in {text:?}"))?;
    Ok(rest.split([',', '\n']).next().unwrap_or_default().trim().parse()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_answers_and_stops_without_leftovers() {
    let logs = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weighbridge-run"));
    for option in ["--listen", "--admin", "--api", "--xds"] {
        command.args([option, "127.0.0.1:0"]);
    }
    command.args(["--concurrency", "2"]);
    let mut launcher = ManagedChild::spawn("weighbridge-run", command, logs.path()).unwrap();
    let deadline = Duration::from_secs(60);

    let (gateway, admin, api) = eventually("the launcher says where it listens", deadline, async || {
        launcher.check_running()?;
        let text = launcher.stdout();
        let address = |word| printed(&text, word);
        Ok((address("gateway http://")?, address("admin http://")?, address("API http://")?))
    })
    .await
    .unwrap();
    // Before anything is measured, too: an endpoint of a pool that nobody has measured takes traffic.
    let outcome = eventually("a routed request", deadline, async || {
        let outcome = load::send(gateway, Call::chat("demo", "Hello", 8)).await;
        ensure!(outcome.is_ok(), "{outcome:?}");
        Ok(outcome)
    })
    .await
    .unwrap();
    assert!(!outcome.endpoint().is_empty());
    assert_eq!(outcome.endpoint(), outcome.engine());

    let status = launcher.terminate(Duration::from_secs(30)).await.unwrap();
    assert!(status.success(), "{status}\n{}", launcher.log_tail());
    for (what, address) in [("gateway", gateway), ("admin", admin), ("prober", api)] {
        assert!(TcpStream::connect(address).await.is_err(), "the {what} still listens");
    }
}

#[tokio::test]
async fn a_launcher_that_cannot_start_says_why() {
    let output = Command::new(env!("CARGO_BIN_EXE_weighbridge-run"))
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", "/nowhere/prober.yaml"])
        .output()
        .await
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/prober.yaml"), "{output:?}");
}
