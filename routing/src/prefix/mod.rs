//! Prefix affinity: which endpoint's KV cache already holds the beginning of a prompt.

pub mod holders;
pub mod index;
