//! The routing logic of Weighbridge, free of I/O.
//!
//! Everything here is a function of its arguments: time comes in as a number, randomness as an [`rng::SplitMix64`] that the
//! caller seeds, shared memory as a [`live::SharedValue`]. The same code therefore runs in the wasm module inside
//! Envoy, in native tests and in the fleet simulator.
//!
//! Where to find what:
//! - [`snapshot`]: what the prober tells the filter, and the types that cannot hold a wrong value.
//! - [`weight`]: capacity as a number: measured throughput against the pool's median.
//! - [`live`]: the shared table of in-flight and waiting requests, one row per VM, one compare-and-swap per change.
//! - [`admission`]: the limits within which requests wait.
//! - [`eligibility`], [`policy`], [`route`]: which endpoints may take a request, which one does, and why.
//! - [`signals`]: what engines and other Envoys say about the endpoints.
//! - [`decision`]: the record of it.
//! - [`json`], [`request`]: reading a request body as it arrives.
//! - [`response`]: reading an answer as it streams through; [`learnt`]: what a pool's answers teach about the next request.
//! - [`prefix`], [`affinity`]: the checkpoints of a prompt, who holds them, and how much that is worth.
//! - [`exchange`]: what filter and prober tell each other about load and service.
//! - [`window`]: how large a request is, by estimate, and whether a context window holds it.
//! - [`api_error`]: errors in the shape that OpenAI clients expect.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)
)]

pub mod admission;
pub mod affinity;
pub mod api_error;
pub mod curve;
pub mod decision;
pub mod eligibility;
pub mod exchange;
pub mod json;
pub mod learnt;
pub mod live;
pub mod policy;
pub mod prefix;
pub mod request;
pub mod response;
pub mod rng;
pub mod route;
pub mod signals;
pub mod snapshot;
pub mod weight;
pub mod window;
