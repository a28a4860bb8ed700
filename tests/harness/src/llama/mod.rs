//! A real engine: llama.cpp's server with a small random model, on the CPU.
//!
//! - [`LlamaServer`]: the process.
//! - [`measure`]: bursts, prompts and a mixed load, as a client sees them.
//! - [`fit`]: an engine-sim profile from measured points; pure.
//! - [`predict`]: what the simulated engine with that profile does under the same load; pure.
//!
//! `scripts/bench --install-real` installs the server and makes the models. The ordinary tests do without both.

pub mod fit;
pub mod measure;
pub mod predict;
mod server;

pub use server::{LlamaOptions, LlamaServer, MODEL};
