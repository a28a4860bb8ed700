//! `scripts/run`, from its launcher on: a demo fleet answers, what is printed to try works, nothing is left when it is told to stop,
//! and the logs are when a part dies.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
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

/// The launcher of a demo on ports that nobody has; its own files go into `dir`.
fn demo(dir: &Path) -> ManagedChild {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weighbridge-run"));
    for option in ["--listen", "--admin", "--api", "--xds"] {
        command.args([option, "127.0.0.1:0"]);
    }
    command.args(["--concurrency", "2", "--demo-load", "off"]).env("TMPDIR", dir);
    ManagedChild::spawn("weighbridge-run", command, dir).unwrap()
}

/// The directory of logs that it has named.
fn logs(text: &str) -> PathBuf {
    let (_, rest) = text.split_once("\nLogs, in ").unwrap_or_else(|| panic!("no logs are named in {text}"));
    rest.split(": ").next().unwrap_or_default().into()
}

/// Runs the command of ours that it has printed to try, and returns what that says.
async fn tried(text: &str, word: &str) -> anyhow::Result<String> {
    let line = text.lines().find(|line| line.contains("dist/weighbridge ") && line.contains(&format!(" {word}")));
    let line = line.with_context(|| format!("no {word} in {text}"))?;
    let line = line.replace("dist/weighbridge ", &format!("'{}' ", artifacts::cli()?.display()));
    let output = Command::new("sh").args(["-c", &line]).output().await?;
    ensure!(output.status.success(), "{line}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_answers_and_stops_without_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let mut launcher = demo(dir.path());
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

    let text = launcher.stdout();
    assert!(text.contains("Demo load: off"), "{text}");
    eventually("an explanation", deadline, async || {
        let said = tried(&text, "explain").await?;
        ensure!(said.contains(&format!("It went to {}", outcome.endpoint())), "{said}");
        Ok(())
    })
    .await
    .unwrap();
    let logs = logs(&text);
    eventually("a line of the access log", deadline, async || {
        let lines = std::fs::read_to_string(logs.join("envoy.out"))?;
        ensure!(lines.contains("/v1/chat/completions"), "{lines:?}");
        Ok(())
    })
    .await
    .unwrap();

    let status = launcher.terminate(Duration::from_secs(30)).await.unwrap();
    assert!(status.success(), "{status}\n{}", launcher.log_tail());
    for (what, address) in [("gateway", gateway), ("admin", admin), ("prober", api)] {
        assert!(TcpStream::connect(address).await.is_err(), "the {what} still listens");
    }
    assert!(!logs.exists(), "{} is left", logs.display());
}

/// The child of this process that has this name.
fn child_of(pid: u32, name: &str) -> anyhow::Result<u32> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let children = std::fs::read_to_string(thread?.path().join("children"))?;
        for child in children.split_whitespace() {
            if std::fs::read_to_string(format!("/proc/{child}/comm"))?.trim() == name {
                return Ok(child.parse()?);
            }
        }
    }
    anyhow::bail!("{pid} has no child {name}")
}

#[tokio::test(flavor = "multi_thread")]
async fn when_envoy_dies_the_rest_ends_and_the_logs_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut launcher = demo(dir.path());
    let deadline = Duration::from_secs(60);
    let api = eventually("the launcher says where its logs are", deadline, async || {
        launcher.check_running()?;
        let text = launcher.stdout();
        ensure!(text.contains("\nLogs, in "), "{text}");
        printed(&text, "API http://")
    })
    .await
    .unwrap();
    let logs = logs(&launcher.stdout());
    let envoy = child_of(launcher.pid(), "envoy").unwrap().to_string();
    assert!(Command::new("kill").args(["-KILL", &envoy]).status().await.unwrap().success());

    let status = tokio::time::timeout(deadline, launcher.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(1));
    let said = launcher.stderr();
    assert!(said.starts_with("error: envoy ended") && said.contains("kept in"), "{said}");
    assert!(said.contains(&logs.display().to_string()), "{said}");
    for file in ["envoy.err", "envoy.out", "prober.err"] {
        assert!(logs.join(file).exists(), "{file} is gone");
    }
    assert!(TcpStream::connect(api).await.is_err(), "the prober still listens");
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

    let text = launcher.stdout();
    assert!(text.contains(r#"{"model": "m", "messages""#) && text.contains(" pin a 4 "), "{text}");
    assert!(!text.contains("Demo"), "{text}");
    // With the token.
    assert!(tried(&text, "status").await.unwrap().contains('a'));
    eventually("an explanation", deadline, async || tried(&text, "explain").await).await.unwrap();
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
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/nowhere/prober.yaml") && !said.contains("kept"), "{said}");
}
