//! The Weighbridge filter for Envoy: proxy-wasm callbacks on one side, [`weighbridge_routing`] on the other.
//!
//! - [`abi`]: what Envoy calls.
//! - [`root`]: configuration and ticks.
//! - [`stream`]: one HTTP request, from its headers to its log entry: [`reading`] while its body arrives, [`place`] when it is
//!   there, [`waiting`] while no slot is free, [`steer`] when it has its endpoint, [`placed`] from then on.
//! - [`wake`]: how VMs tell each other that waiting requests have got slots.
//! - [`calls`]: HTTP calls to the prober; [`signals`]: what this Envoy tells it about load, and hears from it.
//! - [`vm`]: what one VM (one worker thread) keeps between requests.
//! - [`records`]: decision records on their way to the prober.
//! - [`stats`]: counters kept in the VM and flushed on a tick.
//! - [`quick`]: the hash of its maps.
//! - [`host`]: every call into Envoy, each status an error or an absence.
//!
//! Nothing here panics: a panic takes the VM down with every request it holds. What fails is either fail-closed (a
//! request that cannot be read or placed gets an error answer) or fail-open (a count that cannot be written heals at
//! the next change; a statistic that cannot be recorded is lost).
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)
)]

mod abi;
mod answer;
mod attempts;
mod calls;
mod host;
mod place;
mod placed;
mod quick;
mod reading;
mod records;
mod root;
mod signals;
mod stats;
mod steer;
mod stream;
mod vm;
mod waiting;
mod wake;
