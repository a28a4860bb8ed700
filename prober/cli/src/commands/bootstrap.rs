//! `bootstrap`

use std::net::SocketAddr;

use weighbridge_bootstrap::{Bootstrap, EditError, SNIPPET, STANDALONE, Target, Tls, print};
use weighbridge_prober::config::{self, Config, Endpoint, Reach};
use weighbridge_routing::snapshot::{FORMAT, wire};

use super::validate::{config as read, words};
use crate::args::{self, Mode};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::validate::{Expected, check};

pub(super) fn run(options: &args::Bootstrap, out: Output) -> Result<Exit, Failure> {
    let config = read(&options.config)?;
    let (template, bootstrap) = match options.mode {
        Mode::Standalone => (STANDALONE, Bootstrap::standalone()),
        Mode::Mesh => (SNIPPET, Bootstrap::snippet()),
    };
    let (bootstrap, notes) = edited(bootstrap.map_err(uneditable)?, &config, options)?;
    let value = bootstrap.into_value();
    for note in &notes {
        out.note(&format!("note: {note}"));
    }
    out.result(&value, || HEADER.to_owned() + &print::yaml(&value, template));
    // What was asked for may be a trap itself.
    let report = check(&value.to_string(), &Expected::from(&config))
        .map_err(|error| Failure::new(Exit::Problems, "no_configuration", error.to_string()))?;
    if report.findings.is_empty() {
        return Ok(Exit::Ok);
    }
    out.note(&words("what is printed", &report));
    Ok(Exit::Problems)
}

const HEADER: &str = "# Made by `weighbridge bootstrap`. What each setting is for stands in envoy/envoy.yaml and
# envoy/mesh/envoy-snippet.yaml of the repository; check your own changes with `weighbridge validate`.
";

fn uneditable(error: EditError) -> Failure {
    Failure::new(Exit::Problems, "uneditable", error.to_string())
}

/// The configuration, and what should be known about it.
fn edited(
    mut bootstrap: Bootstrap,
    config: &Config,
    options: &args::Bootstrap,
) -> Result<(Bootstrap, Vec<String>), Failure> {
    let mut notes = Vec::new();
    let api = targets("api", config.api_listen, &options.api)?;
    let xds = targets("xds", config.xds_listen, &options.xds)?;
    let wasm = options.wasm.as_ref().unwrap_or(&config.wasm);
    if wasm.is_relative() {
        notes.push(format!("{} is relative to the directory in which Envoy is started", wasm.display()));
    }
    let snapshot = snapshot(config, options.mode, &mut notes);
    let edit = |bootstrap: &mut Bootstrap| {
        if options.mode == Mode::Standalone {
            bootstrap.set_gateway(options.listen)?;
            bootstrap.set_admin(options.admin)?;
            bootstrap.set_node_id(&options.node_id)?;
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
    if listen.ip().is_unspecified() {
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
    let host = at.first().map(|target| target.host.clone()).unwrap_or_default();
    let name = options.prober_name.clone().unwrap_or(host);
    Ok(Tls { name, ca_file, own: own.filter(|_| files.client_ca_file.is_some()) })
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
        context_window: *context_window,
        prefill_tps: None,
        kv_tokens: None,
        epoch: 0,
        state: wire::State::default(),
    })
}
