//! The module may do what it uses, and nothing else: in every shipped configuration, and in what the prober hands out.

use std::collections::BTreeSet;

use harness::load::{self, Call};
use harness::raw::{Behaviour, Recorder};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, artifacts};
use serde_json::Value;
use wasmparser::{ExternalKind, Parser, Payload};

/// What Envoy checks of a module: imports of both namespaces, and callbacks. `proxy_on_memory_allocate` is how Envoy gets memory
/// of the module, and no callback.
fn used() -> BTreeSet<String> {
    let module = std::fs::read(artifacts::wasm().unwrap()).unwrap();
    let mut names = BTreeSet::new();
    for payload in Parser::new(0).parse_all(&module) {
        match payload.unwrap() {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    names.insert(import.unwrap().name.to_owned());
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.unwrap();
                    if export.kind == ExternalKind::Func && export.name.starts_with("proxy_on_") {
                        names.insert(export.name.to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    names.remove("proxy_on_memory_allocate");
    names
}

/// The list of each `vm_config` in a file.
fn allowed(file: &str) -> Vec<BTreeSet<String>> {
    fn collect(value: &Value, lists: &mut Vec<BTreeSet<String>>) {
        if let Some(vm) = value.get("vm_config") {
            let list = vm["capability_restriction_config"]["allowed_capabilities"].as_object();
            lists.push(list.map(|list| list.keys().cloned().collect()).unwrap_or_default());
        }
        match value {
            Value::Object(object) => object.values().for_each(|value| collect(value, lists)),
            Value::Array(list) => list.iter().for_each(|value| collect(value, lists)),
            _ => {}
        }
    }
    let text = std::fs::read_to_string(artifacts::root().join(file)).unwrap();
    let mut lists = Vec::new();
    collect(&serde_yaml_ng::from_str(&text).unwrap(), &mut lists);
    lists
}

#[test]
fn every_list_has_what_the_module_uses_and_nothing_else() {
    let used = used();
    assert!(
        used.contains("proxy_http_call") && used.contains("proxy_on_log") && used.contains("random_get"),
        "{used:?}"
    );
    let by_prober = weighbridge_xds::CAPABILITIES.map(str::to_owned).into();
    let mut lists = vec![("prober/xds/src/capabilities.rs", by_prober)];
    for file in ["envoy/envoy.yaml", "envoy/mesh/envoy-snippet.yaml"] {
        let found = allowed(file);
        assert!(!found.is_empty(), "{file} has no vm_config");
        lists.extend(found.into_iter().map(|list| (file, list)));
    }
    for (place, list) in lists {
        let missing: Vec<_> = used.difference(&list).collect();
        let superfluous: Vec<_> = list.difference(&used).collect();
        assert!(
            missing.is_empty() && superfluous.is_empty(),
            "{place}: missing {missing:?}, superfluous {superfluous:?}"
        );
    }
}

// Envoy does enforce it: without the callback for bodies nothing is decided, without the host call for headers neither.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_on_the_list_does_not_happen() {
    let engine = Recorder::start(Behaviour::Answer).await.unwrap();
    for (taken, status) in
        [(None, 200), (Some("proxy_on_request_body"), 503), (Some("proxy_replace_header_map_value"), 503)]
    {
        let mut options = EnvoyOptions::fixed(snapshot(vec![pool("m", vec![endpoint("only", engine.addr(), 1.0)])]));
        options.edit = Some(Box::new(move |config| {
            let filter =
                &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
            let vm = &mut filter["http_filters"][0]["config_discovery"]["default_config"]["config"]["vm_config"];
            let list = vm["capability_restriction_config"]["allowed_capabilities"].as_object_mut().unwrap();
            if let Some(name) = taken {
                list.remove(name).unwrap();
            }
        }));
        let envoy = Envoy::start(options).await.unwrap();
        let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 4)).await;
        assert_eq!(outcome.status, Some(status), "without {taken:?}: {outcome:?}");
        assert_eq!(envoy.log().contains("restricted"), taken.is_some_and(|name| !name.starts_with("proxy_on_")));
    }
}
