//! The whole system under things that go wrong, and what must be true throughout.
//!
//! - [`plan`](plan::plan): what goes wrong and when; a pure function of a seed.
//! - [`Stage`]: engines, prober, store and Envoy as processes that can be killed, frozen and started again.
//! - [`Traffic`] and [`Ledger`]: steady mixed load, and what became of every request.
//! - [`excuse`]: which requests may fail, and why.
//! - [`Watch`]: gauges, engines and clients compared.
//! - [`suite::play`]: all of it together.
//! - [`store_kill`]: the prober alone, killed while it writes, and with damaged files.

pub mod act;
pub mod excuse;
mod ledger;
pub mod plan;
mod stage;
pub mod store_kill;
pub mod suite;
mod traffic;
mod watch;

pub use ledger::{End, Kind, Ledger, Line};
pub use stage::{DEADLINE, Engine, ID_HEADER, Member, Stage, StageOptions, StoreKind};
pub use suite::{Findings, Round, SuiteOptions, play};
pub use traffic::{Traffic, TrafficOptions};
pub use watch::Watch;
