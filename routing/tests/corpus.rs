//! Runs the fuzz targets over their committed corpus: interesting inputs, and whatever the fuzzer once found.

use weighbridge_routing::live::table::Table;

#[path = "../../tests/fuzz/src/lib.rs"]
#[allow(unreachable_pub)]
mod targets;

fn run(target: &str, entry: fn(&[u8])) {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&corpus).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "hardly any corpus in {}", corpus.display());
    for file in files {
        let data = std::fs::read(&file).unwrap();
        if std::panic::catch_unwind(|| entry(&data)).is_err() {
            panic!("{target} fails on {}", file.display());
        }
    }
}

#[test]
fn requests() {
    run("request", targets::request);
}

#[test]
fn json() {
    run("json_vs_serde", targets::json_vs_serde);
}

#[test]
fn forms() {
    run("multipart", targets::multipart);
}

#[test]
fn live_tables() {
    run("live_table", targets::live_table);
}

// What a table of another format has in it would not be looked at.
#[test]
fn some_seeds_are_tables() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/live_table");
    let seeds = std::fs::read_dir(corpus).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let tables = seeds.filter(|seed| {
        let length = seed.first_chunk().map_or(0, |length| usize::from(u16::from_le_bytes(*length)));
        seed.get(2..2 + length).is_some_and(|bytes| Table::decode(bytes.to_vec()).is_some_and(|table| table.rows() > 0))
    });
    assert!(tables.count() >= 3);
}

#[test]
fn live_queues() {
    run("live_queue", targets::live_queue);
}

#[test]
fn responses() {
    run("response", targets::response);
}
