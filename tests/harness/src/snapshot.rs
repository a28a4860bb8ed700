//! Short ways to write the snapshots that tests need.

use std::net::SocketAddr;

use crate::wire;

/// A snapshot with these pools and defaults for the rest. Version 1.
#[must_use]
pub fn snapshot(pools: Vec<wire::Pool>) -> wire::Snapshot {
    wire::Snapshot { format: 1, version: 1, filter: wire::Filter::default(), pools }
}

/// A pool that serves one model of the same name.
#[must_use]
pub fn pool(name: &str, endpoints: Vec<wire::Endpoint>) -> wire::Pool {
    wire::Pool { name: name.to_owned(), models: vec![name.to_owned()], endpoints, ..wire::Pool::default() }
}

/// An endpoint that takes traffic.
#[must_use]
pub fn endpoint(id: &str, address: SocketAddr, weight: f64) -> wire::Endpoint {
    wire::Endpoint {
        id: id.to_owned(),
        address: address.to_string(),
        weight: weight.into(),
        ..wire::Endpoint::default()
    }
}
