//! Runs the fuzz targets over their committed corpus: interesting inputs, and whatever the fuzzer once found.

use std::path::{Path, PathBuf};

use weighbridge_routing::live::table::Table;

#[path = "../../tests/fuzz/src/lib.rs"]
#[allow(unreachable_pub)]
mod targets;

#[path = "corpus/seeds.rs"]
mod seeds;

fn corpus(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(path)
}

fn run(target: &str, entry: fn(&[u8])) {
    let corpus = corpus(target);
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

// What a table of another format has in it would not be looked at. `UPDATE_SEEDS=1` writes the files.
#[test]
fn seeds_with_a_table_are_what_the_code_writes() {
    for seed in seeds::all() {
        let file = corpus(seed.path);
        if std::env::var_os("UPDATE_SEEDS").is_some() {
            std::fs::write(&file, seed.bytes()).unwrap();
        }
        assert!(
            std::fs::read(&file).unwrap() == seed.bytes(),
            "{} is of another time; UPDATE_SEEDS=1 cargo test --workspace --test corpus makes it anew",
            file.display()
        );
    }
}

#[test]
fn seeds_have_something_in_their_tables() {
    let (mut broken, mut empty, mut counting, mut queues) = (0, 0, 0, 0);
    for seed in seeds::all() {
        match Table::decode(seed.table) {
            None => broken += 1,
            Some(table) if table.rows() == 0 => empty += 1,
            Some(table) => {
                counting += usize::from((0..table.slots()).all(|slot| table.total(slot).in_flight > 0));
                let waiters: Vec<_> = (0..table.waiters()).filter_map(|place| table.waiter(place)).collect();
                let granted = waiters.iter().filter(|waiter| waiter.grant.is_some()).count();
                queues += usize::from(0 < granted && granted < waiters.len());
            }
        }
    }
    assert_eq!((broken, empty, counting, queues), (1, 1, 7, 4));
}

#[test]
fn live_queues() {
    run("live_queue", targets::live_queue);
}

#[test]
fn responses() {
    run("response", targets::response);
}
