//! An inference engine as seen from outside: vLLM's HTTP surface over a model of time.
//!
//! - [`model`]: the pure state machine (batching, prefill, KV cache, cold start); time is an argument.
//! - [`sweep`]: bursts on the pure model, without sockets.
//! - `server` (feature of that name, on by default): the model behind HTTP, with faults on demand. Start one with
//!   `server::EngineHandle::start`.
//! - `cli` (the same feature): the same as a command.

#[cfg(feature = "server")]
pub mod cli;
pub mod model;
#[cfg(feature = "server")]
pub mod server;
pub mod sweep;
