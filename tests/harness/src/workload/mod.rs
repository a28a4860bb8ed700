//! Workloads for comparing policies: what users send ([`talks`], [`singles`]), the unequal fleet that answers
//! ([`Fleet`]), the policies in front of it ([`Policy`]), and what came of it ([`Figures`]).
//!
//! Everything that is random comes from a seed, and a simulated engine's answer is a function of the prompt: every policy
//! is given exactly the same requests. All times are in seconds of the engines' time, which may run faster than the
//! wall clock's; `scale` says how much.

mod figures;
mod fleet;
mod plan;
mod run;

pub(crate) use figures::tpot_ms;
pub(crate) use fleet::{ENGINES, HASH_HEADER, PREFILL_TPS, pool_clusters, ring_hash};
pub(crate) use plan::{exponential, log_uniform, prose};
pub(crate) use run::{HASHED_CHARACTERS, hash};

pub use figures::{Figures, quantile};
pub use fleet::{Fleet, MODEL, Policy, profile};
pub use plan::{Single, SinglesOptions, Talk, TalksOptions, Turn, singles, talks};
pub use run::{run_singles, run_talks};
