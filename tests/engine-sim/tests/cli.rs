//! The binary.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_engine-sim");

#[test]
fn sweep_prints_the_published_figures() {
    for (profile, cold, figures) in
        [("fast", 275.0, [106.0, 688.0, 980.0, 1440.0]), ("pair", 134.4, [94.0, 400.0, 479.0, 465.0])]
    {
        let output = Command::new(BINARY).args(["sweep", "--profile", profile, "--concurrency", "1,8,16,32"]).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let measured: Vec<f64> = text
            .lines()
            .filter_map(|line| line.strip_suffix(" tok/s")?.split_whitespace().last()?.parse().ok())
            .collect();
        let wanted: Vec<f64> = std::iter::once(cold).chain(figures).collect();
        assert_eq!(measured.len(), wanted.len(), "{text}");
        for (measured, wanted) in measured.iter().zip(wanted) {
            assert!((measured / wanted - 1.0).abs() < 0.01, "{text}");
        }
    }
}

#[tokio::test]
async fn serves_and_stops_when_told() {
    let mut child = Command::new(BINARY)
        .args(["--profile", "instant", "--name", "n7", "--model", "m", "--launch-args", "--max-num-seqs 8"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().rsplit(' ').next().unwrap();
    let state = reqwest::get(format!("{url}/sim/state")).await.unwrap();
    assert_eq!(state.headers()["x-engine-id"], "n7");
    assert_eq!(state.json::<serde_json::Value>().await.unwrap()["launch_args"], "--max-num-seqs 8");
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_wrong_profile_is_named() {
    let output = Command::new(BINARY).args(["--profile", "nonsense"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("nonsense"));
}
