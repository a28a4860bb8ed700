//! The routers that come as Python packages, each in an environment of its own under `.tools/peers`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{Front, Part, Running, Setup, answers, place, write};
use crate::artifacts;
use crate::child::ManagedChild;
use crate::fault::ReservedPort;
use crate::workload::MODEL;

/// LiteLLM takes no requests without a key. It guards nothing: everything listens on loopback only.
const LITELLM_KEY: &str = "sk-weighbridge-benchmark";

/// The package that asks engines for their load.
const SMG: &str = "smg";

fn environment(package: &str) -> PathBuf {
    artifacts::root().join(".tools/peers").join(package)
}

pub(super) fn program(package: &str) -> Result<PathBuf> {
    let program = environment(package).join("bin").join(package);
    ensure!(program.is_file(), "no {package}: scripts/bench --install-peers installs it");
    Ok(program)
}

/// By what pip has left there.
pub(super) fn version(package: &str) -> Result<String> {
    let lib = environment(package).join("lib");
    let begins = format!("{}-", package.replace('-', "_"));
    for python in std::fs::read_dir(&lib).with_context(|| lib.display().to_string())? {
        for entry in std::fs::read_dir(python?.path().join("site-packages"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some(version) = name.strip_prefix(&begins).and_then(|rest| rest.strip_suffix(".dist-info")) {
                return Ok(version.to_owned());
            }
        }
    }
    anyhow::bail!("{}: {package} is not there", lib.display())
}

/// sglang-router, smg and vllm-router: one family, with the same options.
pub(super) async fn router(package: &str, words: &[&str], policy: &str, setup: &Setup) -> Result<Running> {
    let program = program(package)?;
    let (dir, port) = place()?;
    let metrics = ReservedPort::any()?;
    let mut command = Command::new(&program);
    command.current_dir(dir.path()).args(arguments(package, words, policy, setup, port.address(), metrics.address()));
    let mut child = ManagedChild::spawn("router", command, dir.path())?;
    // It serves before it has asked all engines who they are; the split would be an artefact.
    let engines = setup.engines.len();
    let all = move |answer: &Value| answer["healthy_workers"].as_u64() == Some(engines as u64);
    answers(&mut child, port.address(), "/readiness", all).await?;
    if package == SMG {
        // Before it has asked once, it takes all engines for equally fast and idle.
        let asked = move |answer: &Value| {
            let workers = answer["workers"].as_array().map_or(&[][..], Vec::as_slice);
            workers.iter().filter(|worker| worker["engine_load"].is_object()).count() == engines
        };
        answers(&mut child, port.address(), "/workers", asked).await?;
    }
    let front = Front::one(port.address());
    Ok(Running { front, parts: vec![("router", Part::Child(Box::new(child)))], _dir: dir, _ports: vec![port, metrics] })
}

fn arguments(
    package: &str,
    words: &[&str],
    policy: &str,
    setup: &Setup,
    listen: SocketAddr,
    metrics: SocketAddr,
) -> Vec<String> {
    let mut arguments: Vec<String> = words.iter().map(ToString::to_string).collect();
    arguments.push("--worker-urls".into());
    arguments.extend(setup.engines.iter().map(|(_, address, _)| format!("http://{address}")));
    for (option, value) in [
        ("--policy", policy.to_owned()),
        ("--host", listen.ip().to_string()),
        ("--port", listen.port().to_string()),
        ("--prometheus-host", metrics.ip().to_string()),
        ("--prometheus-port", metrics.port().to_string()),
        ("--health-check-interval-secs", "2".to_owned()),
    ] {
        arguments.extend([option.to_owned(), value]);
    }
    if package == SMG {
        arguments.extend(["--load-monitor-interval", "1"].map(str::to_owned));
    }
    arguments
}

pub(super) async fn litellm(program: &Path, setup: &Setup) -> Result<Running> {
    let (dir, port) = place()?;
    let mut command = Command::new(program);
    command.current_dir(dir.path()).arg("--config").arg(write(
        dir.path(),
        "litellm.yaml",
        &litellm_config(setup).to_string(),
    )?);
    command.args(["--host", "127.0.0.1", "--port", &port.address().port().to_string()]);
    // It would fetch its table of prices from elsewhere.
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    let mut child = ManagedChild::spawn("litellm", command, dir.path())?;
    answers(&mut child, port.address(), "/health/readiness", |answer| answer["status"] == "healthy").await?;
    let mut front = Front::one(port.address());
    front.headers.push(("authorization".into(), format!("Bearer {LITELLM_KEY}")));
    Ok(Running { front, parts: vec![("router", Part::Child(Box::new(child)))], _dir: dir, _ports: vec![port] })
}

fn litellm_config(setup: &Setup) -> Value {
    let deployments = setup.engines.iter().map(|(_, address, _)| {
        json!({"model_name": MODEL, "litellm_params": {
            "model": format!("hosted_vllm/{MODEL}"), "api_base": format!("http://{address}/v1"), "api_key": "none"}})
    });
    json!({
        "model_list": deployments.collect::<Vec<_>>(),
        "router_settings": {"routing_strategy": "least-busy", "num_retries": 2},
        "litellm_settings": {"telemetry": false, "request_timeout": 600},
        "general_settings": {"master_key": LITELLM_KEY},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_told_every_engine() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let setup = Setup {
            engines: vec![("a".into(), at(11), 1.0), ("b".into(), at(12), 1.0)],
            measured: None,
            pool: serde_json::Value::Null,
        };
        let line = arguments("sglang-router", &["launch"], "cache_aware", &setup, at(10), at(20)).join(" ");
        let begins = "launch --worker-urls http://127.0.0.1:11 http://127.0.0.1:12 --policy cache_aware --host 127.0.0.1 --port 10";
        assert!(line.starts_with(begins), "{line}");
        assert!(!line.contains("load-monitor"), "{line}");
        let line = arguments(SMG, &["launch"], "least_load", &setup, at(10), at(20)).join(" ");
        assert!(line.ends_with(" --load-monitor-interval 1"), "{line}");
        let config = litellm_config(&setup);
        let bases: Vec<_> = (0..2).map(|nth| config["model_list"][nth]["litellm_params"]["api_base"].clone()).collect();
        assert_eq!(bases, ["http://127.0.0.1:11/v1", "http://127.0.0.1:12/v1"]);
    }
}
