//! Stores of other releases: what the one before wrote is found, what a later one wrote is refused and left as it is.
//!
//! `fixtures/store-of-issue-5.redb.gz` is a file as the state of commit 11d9878 wrote it, before the first release and
//! before files said of which format they are: that prober ran over three engine simulators, one endpoint from its
//! configuration and two registered; `registered` was then probed on demand and pinned, `drained` drained, and the prober
//! stopped. A release adds its own file (docs/release.md), and none is ever removed before its format is.

use std::io::Read;
use std::path::Path;

use redb::{Database, ReadableDatabase, TableDefinition};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weighbridge_prober::config::Config;
use weighbridge_prober::store::{Place, Store, StoreError};

const META: TableDefinition<'static, &'static str, &'static str> = TableDefinition::new("meta");

fn unpack(name: &str, to: &Path) {
    let packed = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*packed).read_to_end(&mut bytes).unwrap();
    std::fs::write(to, bytes).unwrap();
}

/// Runs a prober over the store, asks for its endpoints one by one, pins one of them, and stops.
async fn run(store: &Path, pin: f64) -> [Value; 3] {
    let config = json!({
        "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": store},
        // Nobody is there.
        "health": {"interval": "60s"}, "signals": {"interval": "10s"},
        "pools": [{"name": "m", "models": ["m"], "endpoints": [
            {"id": "from-file", "address": "127.77.0.1:8000", "node": "gpu-a"},
        ]}],
    });
    let shutdown = CancellationToken::new();
    let prober = weighbridge_prober::run(Config::parse(&config.to_string()).unwrap(), shutdown.clone()).await.unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = |path: &str| format!("http://{}/v1/endpoints{path}", prober.api);
    let mut found = [const { Value::Null }; 3];
    for (found, id) in found.iter_mut().zip(["/from-file", "/registered", "/drained"]) {
        *found = http.get(url(id)).send().await.unwrap().json().await.unwrap();
    }
    let all: Value = http.get(url("")).send().await.unwrap().json().await.unwrap();
    assert!(!all["alarms"].to_string().contains("store"), "{}", all["alarms"]);
    let body = json!({"weight": pin, "reason": "by this release"});
    let pinned = http.put(url("/from-file/pin")).json(&body).send().await.unwrap();
    assert_eq!(pinned.status(), 200);
    shutdown.cancel();
    prober.stopped().await.unwrap();
    found
}

fn format(store: &Path) -> Option<String> {
    let database = Database::open(store).unwrap();
    let meta = match database.begin_read().unwrap().open_table(META) {
        Ok(meta) => meta,
        Err(redb::TableError::TableDoesNotExist(_)) => return None,
        Err(error) => panic!("{error}"),
    };
    Some(meta.get("format").unwrap()?.value().to_owned())
}

fn set_format(store: &Path, format: &str) {
    let database = Database::open(store).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(META).unwrap().insert("format", format).unwrap();
    write.commit().unwrap();
}

#[tokio::test]
async fn the_store_of_the_release_before_opens_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store.redb");
    unpack("store-of-issue-5.redb.gz", &store);
    assert_eq!(format(&store), None);
    let [from_file, registered, drained] = run(&store, 2.5).await;
    assert_eq!(registered["pin"]["reason"], "thermal limit, ticket 118");
    assert_eq!((&registered["weight"], &registered["weight_source"]), (&json!(1.75), &json!("pinned")));
    assert_eq!((&registered["max_in_flight"], &registered["cap_source"]), (&json!(7), &json!("hand")));
    assert_eq!((&registered["launch_args"], &registered["node"]), (&json!("-tp 2"), &json!("gpu-b")));
    assert_eq!(registered["throughput_tps"], 37_607.416_182_471_185);
    let kinds: Vec<&Value> = registered["history"].as_array().unwrap().iter().map(|probe| &probe["kind"]).collect();
    assert_eq!(kinds, ["registration", "demand"]);
    assert_eq!(registered["history"][1]["at"], "2026-11-30T07:55:38.973Z");
    assert_eq!(drained["drain"]["reason"], "new power supply");
    assert_eq!(drained["state"], "draining");
    assert_eq!(from_file["throughput_tps"], 52_577.790_484_077_15);
    assert_eq!(from_file["history"][0]["kind"], "registration");
    // Written by this release it says so, and has the rest as before.
    assert_eq!(format(&store).as_deref(), Some("1"));
    let [from_file, again, _] = run(&store, 2.5).await;
    assert_eq!(from_file["pin"]["weight"], 2.5);
    assert_eq!((&again["pin"], &again["history"]), (&registered["pin"], &registered["history"]));
}

#[tokio::test]
async fn a_store_of_a_later_format_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    unpack("store-of-issue-5.redb.gz", &path);
    set_format(&path, "2");
    let error = Store::open(&Place::File(path.clone())).await.unwrap_err();
    assert!(matches!(error, StoreError::Open { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("store.redb") && said.contains("format 2") && said.contains("up to 1"), "{said}");
    assert_eq!(format(&path).as_deref(), Some("2"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "it has been moved aside");
    // Whoever comes back to the newer one finds everything.
    set_format(&path, "1");
    let store = Store::open(&Place::File(path)).await.unwrap();
    assert_eq!(store.memory().pins.len(), 1);
}
