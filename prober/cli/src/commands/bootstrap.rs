//! `bootstrap`

use std::net::SocketAddr;

use serde_json::Value;
use weighbridge_bootstrap::{Bootstrap, EditError, SNIPPET, STANDALONE, Target, Tls, print};
use weighbridge_prober::config::{self, Config, Endpoint, Reach};
use weighbridge_routing::snapshot::{FORMAT, wire};

use super::validate::{config as read, verdict, words};
use crate::args::{self, Mode};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::validate::{Expected, Report, check};

pub(super) fn run(options: &args::Bootstrap, out: Output) -> Result<Exit, Failure> {
    let config = read(&options.config)?;
    let Made { value, template, notes, report } = made(&config, options)?;
    for note in &notes {
        out.note(&format!("note: {note}"));
    }
    out.result(&value, || HEADER.to_owned() + &print::yaml(&value, template));
    if !report.findings.is_empty() {
        out.beside(&report, || words("what is printed", &report));
    }
    Ok(verdict(&report, false))
}

/// What is printed.
#[derive(Debug)]
struct Made {
    /// The configuration.
    value: Value,
    /// The text that it was made from.
    template: &'static str,
    /// What should be known about it.
    notes: Vec<String>,
    /// What is wrong with it: what was asked for may be a trap itself.
    report: Report,
}

fn made(config: &Config, options: &args::Bootstrap) -> Result<Made, Failure> {
    let (template, bootstrap) = match options.mode {
        Mode::Standalone => (STANDALONE, Bootstrap::standalone()),
        Mode::Mesh => (SNIPPET, Bootstrap::snippet()),
    };
    let (bootstrap, notes) = edited(bootstrap.map_err(uneditable)?, config, options)?;
    let value = bootstrap.into_value();
    let report = check(&value.to_string(), &Expected::from(config))
        .map_err(|error| Failure::new(Exit::Problems, "no_configuration", error.to_string()))?;
    Ok(Made { value, template, notes, report })
}

const HEADER: &str = "# Made by `weighbridge bootstrap`. What each setting is for stands in envoy/envoy.yaml and
# envoy/mesh/envoy-snippet.yaml of the repository; check your own changes with `weighbridge validate`.
";

fn uneditable(error: EditError) -> Failure {
    Failure::new(Exit::Problems, "uneditable", error.to_string())
}

/// What only an Envoy of our own has.
struct Gateway {
    listen: SocketAddr,
    admin: SocketAddr,
    node_id: String,
}

/// Nothing in a mesh, where somebody else's Envoy has its own.
fn gateway(options: &args::Bootstrap) -> Result<Option<Gateway>, Failure> {
    let args::Bootstrap { listen, admin, node_id, .. } = options;
    if options.mode == Mode::Standalone {
        return Ok(Some(Gateway {
            listen: listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080))),
            admin: admin.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 9901))),
            node_id: node_id.clone().unwrap_or_else(|| "weighbridge-gateway-1".to_owned()),
        }));
    }
    let given = [("--listen", listen.is_some()), ("--admin", admin.is_some()), ("--node-id", node_id.is_some())];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(None),
        Some((option, _)) => {
            let message = format!("{option} does not go with --mode mesh: the Envoy there has its own; leave it out");
            Err(Failure::usage("unused_option", message))
        }
    }
}

/// The configuration, and what should be known about it.
fn edited(
    mut bootstrap: Bootstrap,
    config: &Config,
    options: &args::Bootstrap,
) -> Result<(Bootstrap, Vec<String>), Failure> {
    let mut notes = Vec::new();
    let gateway = gateway(options)?;
    let api = targets("api", config.api_listen, &options.api)?;
    let xds = targets("xds", config.xds_listen, &options.xds)?;
    let wasm = options.wasm.as_ref().unwrap_or(&config.wasm);
    if wasm.is_relative() {
        notes.push(format!("{} is relative to the directory in which Envoy is started", wasm.display()));
    }
    let snapshot = snapshot(config, options.mode, &mut notes);
    let edit = |bootstrap: &mut Bootstrap| {
        if let Some(Gateway { listen, admin, node_id }) = &gateway {
            bootstrap.set_gateway(*listen)?;
            bootstrap.set_admin(*admin)?;
            bootstrap.set_node_id(node_id)?;
        }
        bootstrap.set_prober(&api)?;
        bootstrap.set_xds(&xds)?;
        bootstrap.set_wasm(wasm)?;
        bootstrap.make_room_for_bodies(config.filter.max_body);
        bootstrap.set_snapshot(snapshot)
    };
    edit(&mut bootstrap).map_err(uneditable)?;
    if let Some(files) = &config.api_tls {
        bootstrap.secure_prober(&tls("api", files, &api, options)?).map_err(uneditable)?;
    }
    if let Some(files) = &config.xds_tls {
        bootstrap.secure_xds(&tls("xds", files, &xds, options)?).map_err(uneditable)?;
    }
    Ok((bootstrap, notes))
}

/// Where Envoy reaches what listens there.
fn targets(part: &str, listen: SocketAddr, given: &[Target]) -> Result<Vec<Target>, Failure> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    // Everywhere is no place to go to, and port 0 is another one at each start.
    if listen.ip().is_unspecified() || listen.port() == 0 {
        let message = format!("{part}.listen is {listen}: say with --{part} HOST:PORT where Envoy reaches it");
        return Err(Failure::usage("no_address", message));
    }
    Ok(vec![listen.into()])
}

fn tls(part: &str, files: &config::Tls, at: &[Target], options: &args::Bootstrap) -> Result<Tls, Failure> {
    let missing = |option: &str, why: &str| {
        Failure::usage("no_tls", format!("{part}.tls {why}: say with {option} which file Envoy has"))
    };
    let ca_file = options.prober_ca_file.clone().ok_or_else(|| missing("--prober-ca-file", "is set"))?;
    let own = options.cert_file.clone().zip(options.key_file.clone());
    if files.client_ca_file.is_some() && own.is_none() {
        return Err(missing("--cert-file and --key-file", "asks for a certificate"));
    }
    let mut names = match &options.prober_name {
        Some(name) => vec![name.clone()],
        None => at.iter().map(|target| target.host.clone()).collect(),
    };
    // Several ports of one host.
    names.sort();
    names.dedup();
    Ok(Tls { names, ca_file, own: own.filter(|_| files.client_ca_file.is_some()) })
}

/// What serves until the prober has been heard.
fn snapshot(config: &Config, mode: Mode, notes: &mut Vec<String>) -> wire::Snapshot {
    let pools = config.pools.iter().map(|pool| {
        // In a mesh, endpoints come from the prober alone.
        let endpoints = pool.endpoints.iter().filter(|_| mode == Mode::Standalone);
        let endpoints = endpoints.filter_map(|endpoint| fixed(endpoint, notes)).collect();
        wire::Pool { endpoints, ..pool.wire.clone() }
    });
    wire::Snapshot { format: FORMAT, version: 0, pools: pools.collect(), filter: config.filter.clone() }
}

/// An endpoint that can be reached without the prober.
fn fixed(endpoint: &Endpoint, notes: &mut Vec<String>) -> Option<wire::Endpoint> {
    let Endpoint { id, address, context_window, max_in_flight, reach, .. } = endpoint;
    let why = match address.parse::<SocketAddr>() {
        Err(_) => Some("its name is resolved by the prober"),
        Ok(_) if *reach != Reach::default() => Some("its TLS and key are the prober's to tell"),
        Ok(_) => None,
    };
    if let Some(why) = why {
        notes.push(format!("{id} serves only when the prober has been heard: {why}"));
        return None;
    }
    Some(wire::Endpoint {
        id: id.clone(),
        address: address.clone(),
        weight: 1.0.into(),
        cap: *max_in_flight,
        curve: Vec::new(),
        context_window: *context_window,
        prefill_tps: None,
        kv_tokens: None,
        epoch: 0,
        state: wire::State::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, Options};
    use crate::validate::Severity;
    use clap::Parser;
    use serde_json::json;

    fn config(changes: &Value) -> Config {
        let mut config = json!({
            "api": {"listen": "127.0.0.1:7070"}, "xds": {"listen": "127.0.0.1:7071"},
            "filter": {"wasm": "/opt/weighbridge.wasm"}, "pools": [{"name": "small", "models": ["s"]}],
        });
        for (name, value) in changes.as_object().unwrap() {
            config[name] = value.clone();
        }
        Config::parse(&config.to_string()).unwrap()
    }

    fn options(line: &str) -> args::Bootstrap {
        let line = format!("weighbridge bootstrap prober.yaml {line}");
        match Options::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Bootstrap(bootstrap) => bootstrap,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_an_error_is_a_problem() {
        let found = |changes: Value, line: &str| {
            let Made { report, .. } = made(&config(&changes), &options(line)).unwrap();
            (report.findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), verdict(&report, false))
        };
        assert_eq!(found(json!({}), ""), (vec![], Exit::Ok));
        assert_eq!(found(json!({}), "--admin 0.0.0.0:9901"), (vec!["admin-exposed"], Exit::Ok));
        // Nothing that can be asked for is an error so far.
        let Made { mut report, .. } = made(&config(&json!({})), &options("--admin 0.0.0.0:9901")).unwrap();
        report.findings.iter_mut().for_each(|finding| finding.severity = Severity::Error);
        assert_eq!(verdict(&report, false), Exit::Problems);
    }

    #[test]
    fn each_prober_with_tls_is_known_by_its_own_name() {
        let config = config(&json!({
            "xds": {"listen": "10.0.0.1:7071", "tls": {"cert_file": "cert.pem", "key_file": "key.pem"}},
        }));
        let names = |line: &str| {
            let made = made(&config, &options(&format!("--prober-ca-file ca.pem {line}"))).unwrap();
            let cluster = &made.value["static_resources"]["clusters"][0]["transport_socket"]["typed_config"];
            let list = &cluster["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"];
            let list = list.as_array().unwrap().iter();
            list.map(|name| name["matcher"]["exact"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let two = "--xds one.example:7071 --xds two.example:7071 --xds two.example:7072";
        assert_eq!(names(two), ["one.example", "two.example"]);
        assert_eq!(names(&format!("{two} --prober-name prober.example")), ["prober.example"]);
        assert_eq!(names(""), ["10.0.0.1"]);
    }

    #[test]
    fn port_0_is_nowhere() {
        let config = config(&json!({"api": {"listen": "127.0.0.1:0"}}));
        let failure = made(&config, &options("")).unwrap_err();
        assert_eq!((failure.exit, failure.code.as_str()), (Exit::Usage, "no_address"));
        assert!(failure.message.contains("api.listen is 127.0.0.1:0: say with --api"), "{failure}");
        assert!(made(&config, &options("--api 127.0.0.1:7070")).is_ok());
    }

    #[test]
    fn what_a_mesh_has_of_its_own_is_not_passed_over() {
        for given in ["--listen 127.0.0.1:1", "--admin 127.0.0.1:1", "--node-id x"] {
            assert!(made(&config(&json!({})), &options(given)).is_ok());
            let failure = made(&config(&json!({})), &options(&format!("--mode mesh {given}"))).unwrap_err();
            let option = given.split(' ').next().unwrap();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.starts_with(option), "{failure}");
        }
        assert!(made(&config(&json!({})), &options("--mode mesh")).is_ok());
    }
}
