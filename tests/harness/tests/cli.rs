//! The command line as operators and scripts use it: the program itself, a real prober, and a real Envoy that runs what
//! `weighbridge bootstrap` has printed.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::load::{self, Call};
use harness::tls::Authority;
use harness::{Envoy, EnvoyOptions, ProberProcess, artifacts, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::common::{DEADLINE, Site, chat, engine, even, free_address, in_state};

/// How a command ended.
#[derive(Debug)]
struct Done {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Done {
    /// What it printed, when it ended so.
    #[track_caller]
    fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// The JSON on stdout.
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// The code of the JSON error on stderr.
    #[track_caller]
    fn error_code(&self) -> String {
        let error: Value = serde_json::from_str(&self.err).unwrap_or_else(|error| panic!("{error}: {self:#?}"));
        error["error"]["code"].as_str().unwrap_or_else(|| panic!("{self:#?}")).to_owned()
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(artifacts::cli().unwrap());
    // What ships is shown with paths of the repository.
    command.current_dir(artifacts::root()).args(args).kill_on_drop(true);
    for variable in ["WEIGHBRIDGE_URL", "WEIGHBRIDGE_TOKEN", "WEIGHBRIDGE_TOKEN_FILE", "WEIGHBRIDGE_CA_FILE"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

async fn run(mut command: Command) -> Done {
    let output =
        tokio::time::timeout(Duration::from_secs(120), command.output()).await.expect("it never ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

async fn weighbridge(args: &[&str]) -> Done {
    run(command(args)).await
}

/// An operator at this prober.
struct Operator {
    url: String,
}

impl Operator {
    fn command(&self, line: &str) -> Command {
        let mut command = command(&line.split_whitespace().collect::<Vec<_>>());
        command.env("WEIGHBRIDGE_URL", &self.url);
        command
    }

    async fn run(&self, line: &str) -> Done {
        run(self.command(line)).await
    }
}

fn written(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What ships, each trap once: what it is, the edit, the rule that finds it, where.
const BROKEN: [(&str, &str, &str, &str, &str); 10] = [
    (
        "nothing waits for the body",
        "                  allow_on_headers_stop_iteration: true\n",
        "",
        "body-wait",
        "config.allow_on_headers_stop_iteration",
    ),
    (
        "one trap closes a worker for good",
        "                  failure_policy: FAIL_RELOAD\n                  reload_config: {backoff: {base_interval: 0.05s, max_interval: 1s}}\n                  # Without it",
        "                  failure_policy: FAIL_CLOSED\n                  # Without it",
        "failure-policy",
        "config.failure_policy",
    ),
    (
        "clients may name the host",
        "              - remove: x-weighbridge-host\n",
        "",
        "client-headers",
        "typed_config.mutations",
    ),
    (
        "the host is removed on the route, before it is read",
        "          route_config:\n            name: gateway\n",
        "          route_config:\n            name: gateway\n            request_headers_to_remove: [x-weighbridge-host]\n",
        "header-removed-early",
        "route_config.request_headers_to_remove[0]",
    ),
    (
        "the load balancer looks at another header",
        "override_host_sources: [{header: x-weighbridge-host}]",
        "override_host_sources: [{header: x-gateway-destination-endpoint}]",
        "override-header",
        "override_host_sources[0].header",
    ),
    (
        "a static cluster shadows the prober's",
        "qwen-27b-static",
        "qwen-27b",
        "static-name",
        "static_resources.clusters[2].name",
    ),
    (
        "answers end after 15 s",
        "                  cluster_not_found_response_code: SERVICE_UNAVAILABLE\n                  timeout: 0s\n                  # The filter names",
        "                  cluster_not_found_response_code: SERVICE_UNAVAILABLE\n                  # The filter names",
        "route-timeout",
        "routes[1].route.timeout",
    ),
    (
        "an engine that dies is not retried elsewhere",
        "retry_on: connect-failure,refused-stream,reset,retriable-status-codes",
        "retry_on: connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        "retry-on",
        "routes[1].route.retry_policy.retry_on",
    ),
    (
        "the start waits 15 s for a prober that is away",
        "    # filter follow one another; with Envoy's own start, both together stay under 2 s.\n    initial_fetch_timeout: 0.3s\n",
        "",
        "initial-fetch-timeout",
        "dynamic_resources.cds_config.initial_fetch_timeout",
    ),
    (
        "the log of attempts runs in a VM of its own",
        "                    root_id: weighbridge-attempts\n                    failure_policy: FAIL_RELOAD\n                    reload_config: {backoff: {base_interval: 0.05s, max_interval: 1s}}\n                    vm_config:\n                      vm_id: weighbridge\n",
        "                    root_id: weighbridge-attempts\n                    failure_policy: FAIL_RELOAD\n                    reload_config: {backoff: {base_interval: 0.05s, max_interval: 1s}}\n                    vm_config:\n                      vm_id: attempts\n",
        "attempts-vm",
        "vm_config.vm_id",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn ten_broken_bootstraps_are_each_found_out() {
    let dir = TempDir::new().unwrap();
    let shipped = std::fs::read_to_string(artifacts::root().join("envoy/envoy.yaml")).unwrap();
    for (trap, from, to, rule, place) in BROKEN {
        assert!(shipped.contains(from), "{trap}: envoy/envoy.yaml has no {from:?}");
        let file = written(dir.path(), "envoy.yaml", &shipped.replace(from, to));
        let report = weighbridge(&["validate", "--strict", "--json", &file]).await.with(1).json();
        let findings = report["findings"].as_array().unwrap();
        // What many routes share by an anchor is wrong in each of them.
        assert!(!findings.is_empty() && findings.iter().all(|finding| finding["rule"] == rule), "{trap}: {report:#}");
        let paths: Vec<_> = findings.iter().filter_map(|finding| finding["path"].as_str()).collect();
        assert!(paths.iter().any(|path| path.ends_with(place)), "{trap}: {paths:?}");
        let change = findings[0]["change"].as_str().unwrap();
        println!("{trap}\n  [{rule}] {}\n  change: {change}", paths[0]);
        // In words, it is the same.
        let words = weighbridge(&["validate", "--strict", &file]).await.with(1).out;
        assert!(words.contains(&format!("[{rule}]")) && words.contains(change) && words.contains(paths[0]), "{words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ships_and_what_is_no_configuration() {
    for shipped in ["envoy/envoy.yaml", "envoy/mesh/envoy-snippet.yaml"] {
        let done = weighbridge(&["validate", "--strict", shipped]).await.with(0);
        assert!(done.out.contains("nothing is wrong"), "{done:#?}");
    }
    // A prober's file is checked as the prober itself does.
    let dir = TempDir::new().unwrap();
    let prober = "pools: [{name: m, models: [m]}]\nprobe: {concurrency: 0}\nweights: guessed\n";
    let file = written(dir.path(), "prober.yaml", prober);
    let report = weighbridge(&["validate", "--json", &file]).await.with(1).json();
    let mut own = Command::new(artifacts::prober().unwrap());
    let own = run({
        own.args(["--check", &file]);
        own
    })
    .await
    .with(1);
    for finding in report["findings"].as_array().unwrap().iter().filter(|finding| finding["severity"] == "error") {
        let (path, found, change) = (&finding["path"], &finding["found"], &finding["change"]);
        let sentence = [path, found, change].map(|part| part.as_str().unwrap().to_owned());
        assert!(sentence.iter().all(|part| own.err.contains(part.as_str())), "{sentence:?}\n{}", own.err);
    }
    assert_eq!(report["kind"], "prober");
    // What cannot be judged is no verdict.
    assert_eq!(weighbridge(&["validate", "--json", "Cargo.toml"]).await.with(1).error_code(), "no_configuration");
    assert_eq!(weighbridge(&["validate", "--json", "nowhere.yaml"]).await.with(2).error_code(), "unreadable_file");
    assert_eq!(weighbridge(&["explain", "--json", "nowhere.json"]).await.with(2).error_code(), "unreadable_file");
    weighbridge(&["validate"]).await.with(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_are_scripts_of_their_shells() {
    let bash = weighbridge(&["completions", "bash"]).await.with(0).out;
    let mut shell = Command::new("bash");
    shell.args(["--norc", "-c", &format!("{bash}\nCOMP_WORDS=(weighbridge und); COMP_CWORD=1; _weighbridge weighbridge und weighbridge; echo \"${{COMPREPLY[*]}}\"")]);
    assert_eq!(run(shell).await.with(0).out.trim(), "undrain");
    for shell in ["zsh", "fish"] {
        let script = weighbridge(&["completions", shell]).await.with(0).out;
        assert!(script.contains("undrain") && script.contains("token-file"), "{shell}: {script}");
    }
}

/// What `bootstrap` prints for a site, in a real Envoy.
async fn gateway(site: &Site, prober: &ProberProcess, dir: &Path) -> Envoy {
    let file = written(dir, "prober.yaml", &site.config.to_string());
    let (api, xds, admin) = (prober.api().to_string(), prober.xds().to_string(), site.admin.to_string());
    let args = ["bootstrap", &file, "--listen", "127.0.0.1:0", "--admin", &admin, "--api", &api, "--xds", &xds];
    let printed = weighbridge(&args).await.with(0).out;
    let path = written(dir, "envoy.yaml", &printed);
    weighbridge(&["validate", "--strict", "--prober", &file, &path]).await.with(0);
    let printed: Value = serde_yaml_ng::from_str(&printed).unwrap();
    let edit: harness::envoy::Edit = Box::new(move |config| *config = printed);
    Envoy::start(EnvoyOptions { edit: Some(edit), ..EnvoyOptions::default() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_runs_a_fleet_by_commands_alone() {
    let (a, b) = (engine("a", even()).await, engine("b", even()).await);
    let mut site = Site::new(&[&a, &b]);
    let dir = TempDir::new().unwrap();
    let prober = site.prober().await;
    let envoy = gateway(&site, &prober, dir.path()).await;
    let operator = Operator { url: format!("http://{}", prober.api()) };
    eventually("status says that all is well", DEADLINE, async || {
        let status = operator.run("status").await;
        ensure!(status.code == Some(0), "{status:#?}");
        Ok(())
    })
    .await
    .unwrap();
    let outcome = load::send(envoy.gateway(), chat()).await;
    assert!(outcome.is_ok(), "{outcome:?}");

    looks(&operator).await;
    pins(&operator, &prober).await;
    probes(&operator, &envoy).await;
    drains(&operator, &prober, &envoy).await;
    explains(&operator, &prober, &envoy).await;
    refusals(&operator).await;

    prober.terminate().await.unwrap();
    let away = operator.run("status --json").await.with(3);
    assert_eq!(away.error_code(), "unreachable");
    for line in ["top", "pin a 1", "drain a --wait", "probe a --wait", "explain --since 5m"] {
        let away = operator.run(line).await.with(3);
        assert!(away.err.starts_with("error: the prober at http://127.0.0.1") && away.out.is_empty(), "{away:#?}");
    }
}

async fn looks(operator: &Operator) {
    let status = operator.run("status").await.with(0).out;
    assert!(status.starts_with("ready, measures, 1 of 1 Envoys have snapshot "), "{status}");
    for row in ["m  ", "a  ", "b  ", "weighbridge-gateway-1  has the snapshot"] {
        assert!(status.lines().any(|line| line.starts_with(row)), "no {row:?} in {status}");
    }
    // Nobody looks at a pipe: no colours, unless they are asked for.
    assert!(!status.contains('\u{1b}'));
    let mut coloured = operator.command("status");
    coloured.env("CLICOLOR_FORCE", "1");
    assert!(run(coloured).await.with(0).out.contains("\u{1b}[32mready"));
    let document = operator.run("status --json").await.with(0).json();
    assert_eq!(document["endpoints"].as_array().unwrap().len(), 2, "{document}");
    let once = operator.run("top").await.with(0).out;
    assert_eq!(once.matches("ENDPOINT").count(), 1, "{once}");
    let twice = operator.run("top --iterations 2 --json").await.with(0).out;
    assert_eq!(twice.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count(), 2, "{twice}");
    on_a_terminal(operator).await;
}

/// `script` gives it a terminal; afterwards the terminal must be as it was.
async fn on_a_terminal(operator: &Operator) {
    let program = artifacts::cli().unwrap();
    let line = format!(
        "stty cols 100 rows 30; before=$(stty -g); '{}' top --iterations 2; test \"$before\" = \"$(stty -g)\" && echo restored",
        program.display()
    );
    for (no_colour, colours) in [("", true), ("1", false)] {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("WEIGHBRIDGE_URL", &operator.url);
        script.env("TERM", "xterm").env("NO_COLOR", no_colour).stdin(Stdio::null());
        let shown = run(script).await.with(0).out;
        let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("no {text:?} in {shown:?}"));
        assert!(at("\u{1b}[?1049h") < at("ENDPOINT") && at("ENDPOINT") < at("\u{1b}[?1049l"), "{shown:?}");
        assert!(at("\u{1b}[?1049l") < at("restored"), "{shown:?}");
        assert_eq!(shown.contains("\u{1b}[32m"), colours, "NO_COLOR={no_colour:?}: {shown:?}");
    }
}

async fn pins(operator: &Operator, prober: &ProberProcess) {
    let pinned = operator.run("pin a 2.5 --reason slow-disk").await.with(0);
    assert_eq!(pinned.out.trim(), "a is pinned to weight 2.50");
    let endpoint = prober.endpoint("a").await.unwrap();
    assert_eq!((&endpoint["weight"], &endpoint["pin"]["reason"]), (&json!(2.5), &json!("slow-disk")));
    let unpinned = operator.run("unpin a --json").await.with(0).json();
    assert_eq!((&unpinned["pin"], &unpinned["weight_source"]), (&Value::Null, &json!("measured")));
}

async fn probes(operator: &Operator, envoy: &Envoy) {
    let asked = operator.run("probe a --json").await.with(0).json();
    assert_eq!(asked["id"], "a");
    let done = operator.run("probe a --wait").await.with(0);
    assert!(done.out.starts_with("a: ") && done.out.contains("the first burst, which does not count: "), "{done:#?}");
    // Fast engines: a phase may come and go between two looks of the stream. The second burst is told in the first's words.
    let lines: Vec<_> = done.err.lines().collect();
    assert!(lines.iter().any(|line| line.starts_with("a: ")), "{done:#?}");
    let busy = load::hold(envoy.gateway(), Call::chat_stream("m", "keep it busy", 4_000)).await.unwrap();
    let late = operator.run(&format!("probe {} --wait --timeout 500ms --json", busy.endpoint())).await.with(5);
    assert_eq!(late.error_code(), "timed_out");
    let forced = operator.run(&format!("probe {} --wait --force", busy.endpoint())).await;
    // Measured, or not since it had other requests; it has not waited for them in any case.
    assert!([Some(0), Some(1)].contains(&forced.code), "{forced:#?}");
}

async fn drains(operator: &Operator, prober: &ProberProcess, envoy: &Envoy) {
    let done = operator.run("drain a --wait --timeout 30s --reason maintenance").await.with(0);
    assert!(done.out.contains("a takes no more requests (drained): no request is left"), "{done:#?}");
    in_state(prober, "a", "draining").await;
    let held = load::hold(envoy.gateway(), Call::chat_stream("m", "stays", 4_000)).await.unwrap();
    assert_eq!(held.endpoint(), "b");
    let late = operator.run("drain b --wait --timeout 30s --deadline 1s --json").await.with(1);
    assert_eq!(late.json()["drain"]["state"], "overdue", "{late:#?}");
    assert!(late.err.contains("\"last_serving\"") && !done.err.contains("warning"), "{late:#?}");
    let out_of_time = operator.run("drain b --wait --timeout 700ms --deadline 1h").await.with(5);
    assert!(out_of_time.err.contains("b is not empty after 700ms"), "{out_of_time:#?}");
    drop(held);
    for id in ["a", "b"] {
        let back = operator.run(&format!("undrain {id}")).await.with(0);
        assert!(back.out.starts_with(&format!("{id} is back: ")), "{back:#?}");
        in_state(prober, id, "ready").await;
    }
}

async fn explains(operator: &Operator, prober: &ProberProcess, envoy: &Envoy) {
    crate::common::applied(prober).await;
    let outcome = load::send(envoy.gateway(), chat()).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    let record = eventually("the prober has a record", DEADLINE, async || {
        let answer = prober.get("/v1/decisions?limit=1").await?;
        answer["decisions"].get(0).cloned().context("none yet")
    });
    let record = record.await.unwrap();
    let id = record["request_id"].as_str().unwrap().to_owned();
    let asked = operator.run(&format!("explain --request-id {id}")).await.with(0).out;
    assert!(asked.contains(&id) && asked.contains("Choice") && asked.contains("What happened"), "{asked}");
    // The same record in a file, explained by the prober's own program, has the same words.
    let dir = TempDir::new().unwrap();
    let file = written(dir.path(), "record.json", &record.to_string());
    assert_eq!(weighbridge(&["explain", &file]).await.with(0).out, asked);
    let mut own = Command::new(artifacts::prober().unwrap());
    own.args(["explain", &file]);
    assert_eq!(run(own).await.with(0).out, asked);
    let json = operator.run(&format!("explain --request-id {id} --json")).await.with(0).json();
    assert_eq!(json["explanations"][0][0]["title"], "Request", "{json}");
    let none = operator.run("explain --slow-ms 3600000 --since 15m --json").await.with(1);
    assert_eq!(none.error_code(), "no_records");
}

async fn refusals(operator: &Operator) {
    for line in
        ["pin nobody 1", "unpin nobody", "drain nobody", "undrain nobody", "probe nobody", "probe nobody --wait"]
    {
        let refused = operator.run(line).await.with(4);
        assert!(refused.err.contains("there is no endpoint \"nobody\": expected one of a, b"), "{refused:#?}");
        let json = operator.run(&format!("{line} --json")).await.with(4);
        assert_eq!(json.error_code(), "no_endpoint");
    }
    for weight in ["1000", "-1", "0"] {
        let refused = operator.run(&format!("pin a {weight}")).await.with(4);
        let expected = format!("weight is {weight}: expected a number from 0.01 to 100");
        assert!(refused.err.contains(&expected), "{refused:#?}");
    }
    let refused = operator.run("explain --since yesterday").await.with(4);
    assert!(refused.err.contains("since is \"yesterday\""), "{refused:#?}");
    operator.run("pin a much").await.with(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_and_tls_are_what_the_prober_asks_for() {
    let authority = Authority::new("prober authority").unwrap();
    let issued = authority.issue("127.0.0.1").unwrap();
    let envoys = Authority::new("authority of Envoys").unwrap();
    let client = envoys.issue("gateway").unwrap();
    let dir = TempDir::new().unwrap();
    let token = written(dir.path(), "token", "0123456789abcdef-of-operators\n");
    let wrong = written(dir.path(), "wrong", "0123456789abcdef-of-nobody\n");
    let only = engine("only", even()).await;
    let mut site = Site::new(&[&only]);
    let tls = json!({"cert_file": issued.cert, "key_file": issued.key});
    let mut xds_tls = tls.clone();
    xds_tls["client_ca_file"] = json!(envoys.file());
    site.config["api"] = json!({"listen": free_address(), "token_file": token, "tls": tls});
    site.config["xds"] = json!({"listen": free_address(), "tls": xds_tls});
    let prober = site.prober().await;

    let operator = Operator { url: format!("https://{}", prober.api()) };
    let ca = authority.file();
    let with = |line: &str| format!("{line} --ca-file {}", ca.display());
    // Not ready, since no Envoy is there yet: looked at, and not well.
    operator.run(&with(&format!("status --token-file {token}"))).await.with(1);
    let mut by_variable = operator.command(&with("status --json"));
    by_variable.env("WEIGHBRIDGE_TOKEN", "0123456789abcdef-of-operators");
    run(by_variable).await.with(1);
    for line in [with("status --json"), with(&format!("status --json --token-file {wrong}"))] {
        let refused = operator.run(&line).await.with(4);
        assert_eq!(refused.error_code(), "unauthorized");
        assert!(!refused.err.contains("of-nobody"));
    }
    // Whom nobody has signed is not asked.
    let foreign = operator
        .run(&format!("status --json --token-file {token} --ca-file {}", envoys.file().display()))
        .await
        .with(3);
    assert_eq!(foreign.error_code(), "unreachable");

    // Envoy with what is printed for it: TLS towards both, a certificate of its own for xDS.
    let file = written(dir.path(), "prober.yaml", &site.config.to_string());
    let admin = site.admin.to_string();
    let args = ["bootstrap", "--json", &file, "--listen", "127.0.0.1:0", "--admin", &admin];
    let refused = weighbridge(&args).await.with(2);
    assert_eq!(refused.error_code(), "no_tls");
    let [ca, cert, key] = [&ca, &client.cert, &client.key].map(|path| path.to_str().unwrap());
    let files = ["--prober-ca-file", ca, "--cert-file", cert, "--key-file", key];
    let printed = weighbridge(&[args.as_slice(), &files].concat()).await.with(0).json();
    let edit: harness::envoy::Edit = Box::new(move |config| *config = printed);
    let envoy = Envoy::start(EnvoyOptions { edit: Some(edit), ..EnvoyOptions::default() }).await.unwrap();
    eventually("status says that all is well", DEADLINE, async || {
        let status = operator.run(&with(&format!("status --token-file {token}"))).await;
        ensure!(status.code == Some(0), "{status:#?}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(load::send(envoy.gateway(), chat()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_for_a_mesh_are_those_of_the_pools() {
    let dir = TempDir::new().unwrap();
    let config = json!({
        "api": {"listen": "0.0.0.0:7070", "token_file": "token"}, "xds": {"listen": "10.0.0.5:7071"},
        "filter": {"wasm": "/opt/weighbridge.wasm", "max_body": "32MiB"},
        "pools": [{"name": "small", "models": ["s"]}, {"name": "large", "models": ["l"], "endpoints": [{"id": "x", "address": "engine.example:80"}]}],
    });
    let file = written(dir.path(), "prober.yaml", &config.to_string());
    let args = ["bootstrap", "--mode", "mesh", &file];
    let refused = weighbridge(&args).await.with(2);
    assert!(refused.err.contains("--api HOST:PORT"), "{refused:#?}");
    let probers = ["--api", "one.example:7070", "--api", "two.example:7070"];
    let printed = weighbridge(&[args.as_slice(), &probers].concat()).await.with(0).out;
    let parts: Value = serde_yaml_ng::from_str(&printed).unwrap();
    let names: Vec<_> =
        parts["clusters"].as_array().unwrap().iter().map(|cluster| cluster["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["weighbridge-xds", "weighbridge-prober", "small", "large"]);
    assert_eq!(parts["clusters"][1]["type"], "STRICT_DNS");
    assert!(
        parts["routes"].as_array().unwrap().iter().all(|route| route["request_body_buffer_limit"] == 33 << 20),
        "{printed}"
    );
    // The order is the one of the file that it was made from.
    let at = |key: &str| printed.find(&format!("\n{key}:")).unwrap_or_else(|| panic!("no {key}"));
    assert!(
        at("early_header_mutation_extensions") < at("http_filters")
            && at("http_filters") < at("routes")
            && at("routes") < at("clusters")
    );
}
