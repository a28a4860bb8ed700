//! The integration tests: one program, since each of its own would be linked with all of Envoy's types, and would wait for the one before.
//!
//! A file here is a module below, or is not run; the last test sees to that.

mod affinity;
mod answers;
mod capabilities;
mod caps;
mod chaos;
mod cli;
mod common;
mod decisions;
mod docs;
mod drain;
mod failures;
mod fleet;
mod health;
mod host_calls;
mod http2;
mod launcher;
mod limits;
mod malformed;
mod measured;
mod multiturn;
mod one_each;
mod pages;
mod peers;
mod pins;
mod policies;
mod prober_outage;
mod pushes;
mod queue;
mod queue_faults;
mod real_engine;
mod restarts;
mod routing;
mod secrets;
mod shapes;
mod shared_store;
mod shipped_configs;
mod signals;
mod slow_clients;
mod smuggling;
mod spillover;
mod store_file;
mod tokens;
mod truth;
mod upgrade;
mod windows;
mod xds_shipped;

#[test]
fn every_file_is_a_module() {
    let modules = include_str!("main.rs");
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(name == "main" || modules.contains(&format!("\nmod {name};\n")), "{} is not run", path.display());
    }
}
