//! Starts the real Envoy, the prober and simulated engines for the integration tests, the benchmarks and the demo.
//!
//! - [`envoy`]: the **shipped** configuration, edited structurally (ports, snapshot, xDS address), in a real Envoy.
//! - [`prober`]: the `weighbridge-prober` binary as a child process, and a client for its REST API.
//! - [`events`]: the prober's stream of events.
//! - [`redis`]: a real Redis on a port of its own.
//! - [`llama`]: a real engine, llama.cpp with a small random model.
//! - [`load`]: a load generator on keep-alive connections that notes who answered, when, and how it ended.
//! - [`echo`]: the smallest upstream that answers like an engine, for measuring the gateway alone.
//! - [`hostcalls`]: what a request makes the filter ask of Envoy, call by call.
//! - [`raw`]: bytes that no client library would send, and an upstream that keeps exactly what it got.
//! - [`malformed`]: inputs that no client should send, by the thousand and repeatable.
//! - [`upstream`]: an upstream that answers what a test tells it, in the pieces it says, and remembers what it was asked.
//! - [`tls`]: certificates, a client, and a front that speaks TLS for an upstream that does not.
//! - [`workload`]: conversations and single prompts for an unequal fleet, the policies to compare, and their figures.
//! - [`fault`]: engines, wires and files that go wrong on demand.
//! - [`chaos`]: the whole system under seeded faults, and what must be true throughout.
//! - [`peers`]: the routers that people use instead, in front of the same engines, and what came of it.
//! - [`wait`]: polling until something is true, instead of sleeping and hoping.
//!
//! Every port is chosen by the system, every process dies with its handle, and a failing test prints the end of the
//! logs of what it started. Simulated engines come from [`engine_sim`], re-exported here.

pub mod artifacts;
pub mod chaos;
pub mod child;
pub mod echo;
pub mod envoy;
pub mod events;
pub mod fault;
pub mod hostcalls;
pub mod llama;
pub mod load;
pub mod malformed;
pub mod paced;
pub mod peers;
pub mod prober;
mod proc;
pub mod raw;
pub mod redis;
pub mod snapshot;
pub mod tls;
pub mod upstream;
pub mod wait;
pub mod workload;

pub use engine_sim;
pub use envoy::{Envoy, EnvoyOptions};
pub use events::Events;
pub use prober::ProberProcess;
pub use redis::RedisServer;
pub use wait::eventually;
pub use weighbridge_routing::snapshot::wire;
