//! Things that go wrong, on demand: engines in processes of their own that can be killed and frozen ([`EngineProcess`]),
//! a wire that can be cut ([`Proxy`]), a file that is damaged ([`damage`]). The prober, Redis and Envoy have their own
//! handles, whose processes can be killed, frozen ([`crate::child::ManagedChild`]) and started again where they were.
//!
//! Network faults are made by a proxy, not in a network namespace: they need no privileges, and run everywhere the tests
//! do. What a proxy cannot show is a SYN that is lost: a connection to a silent proxy is accepted by the kernel.

pub mod damage;
mod engine;
mod port;
mod proxy;

pub use engine::{EngineProcess, EngineSpec};
pub use port::ReservedPort;
pub use proxy::{Proxy, Wire};
