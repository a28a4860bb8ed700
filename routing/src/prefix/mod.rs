//! Prefix affinity: where a prompt's prefix may end, and which endpoint's KV cache already holds it.
//!
//! - [`checkpoints`]: the places of a prompt at which a prefix may end, each with the hash of all that comes before.
//! - [`index`], [`holders`]: who holds it.

pub mod checkpoints;
pub mod holders;
pub mod index;

pub use checkpoints::{Checkpoint, Checkpoints, MAX_CHECKPOINTS};
