//! `scripts/run`, from its launcher on: a demo fleet answers, and nothing is left when it is told to stop.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::child::ManagedChild;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::load::{self, Call};
use harness::{artifacts, eventually};
use serde_json::json;
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

/// A chat request whose body has so many bytes.
fn chat_of(bytes: usize) -> Call {
    let frame = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"metadata":"","model":"m"}"#;
    let filling = "x".repeat(bytes - frame.len());
    Call::post("/v1/chat/completions", frame.replace(r#""metadata":"""#, &format!(r#""metadata":"{filling}""#)))
}

// Also where the prober's API wants a token.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_has_room_for_what_the_configuration_allows() {
    let config = EngineConfig { model: "m".into(), cold: false, ..EngineConfig::default() };
    let engine = EngineHandle::start(config).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "a-token-for-this-test\n").unwrap();
    let config = json!({
        "api": {"listen": "127.0.0.1:0", "token_file": dir.path().join("token")},
        "xds": {"listen": "127.0.0.1:0"},
        "filter": {"wasm": artifacts::wasm().unwrap(), "max_body": "20MiB"},
        "store": {"path": dir.path().join("prober.redb")},
        "probe": {"concurrency": 4, "tokens": 16, "prefill_tokens": 0},
        "pools": [{"name": "m", "models": ["m"], "endpoints": [{"id": "a", "address": engine.addr().to_string()}]}],
    });
    let path = dir.path().join("prober.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weighbridge-run"));
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--concurrency", "1", "--config"]).arg(&path);
    let mut launcher = ManagedChild::spawn("weighbridge-run", command, dir.path()).unwrap();
    let deadline = Duration::from_secs(60);
    let gateway = eventually("the launcher says where it listens", deadline, async || {
        launcher.check_running()?;
        printed(&launcher.stdout(), "gateway http://")
    })
    .await
    .unwrap();

    // More than the shipped configuration has room for.
    eventually("an answer to a body of 18 MiB", deadline, async || {
        let outcome = load::send(gateway, chat_of(18 << 20)).await;
        ensure!(outcome.is_ok(), "{outcome:?}");
        Ok(())
    })
    .await
    .unwrap();
    let outcome = load::send(gateway, chat_of((20 << 20) + 1)).await;
    assert_eq!(outcome.status, Some(413), "{outcome:?}");
    let message = outcome.json()["error"]["message"].to_string();
    assert!(message.contains("20971520") && message.contains("filter.max_body"), "{message}");
    assert!(launcher.terminate(Duration::from_secs(30)).await.unwrap().success(), "{}", launcher.log_tail());
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
