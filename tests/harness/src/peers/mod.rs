//! What people use instead, on the wire: the same engines behind each router in turn, the same requests, and figures of what
//! clients saw and what the router used.
//!
//! - [`Arrivals`]: open-loop requests, the same bytes at the same moments for every router.
//! - [`Engines`]: the unequal fleet, a process per engine, started anew before every run.
//! - [`Router`]: who stands in front; one entry of [`ROUTERS`] each, with a way to start it and to know that it is ready.
//! - [`Scenario`]: at what load, and what goes wrong meanwhile.
//! - [`Run`], [`Cell`]: what came of one run, and of all rounds of a scenario together.
//! - [`Results`]: all of it, as JSON, and as the page [`page`] makes of it.

mod arrivals;
mod cost;
mod drive;
mod engines;
mod figures;
mod machine;
mod order;
pub mod page;
mod results;
mod routers;
mod scenario;
mod trial;

pub use arrivals::{Arrival, Arrivals};
pub use cost::{SIZES, cost};
pub use drive::{Sent, drive};
pub use engines::{Engines, Seen};
pub use figures::{Cell, DISTURBED_LATE_MS, Quantiles, Round, Run, Span};
pub use machine::{Machine, came_after, commit, load_averages};
pub use order::order;
pub use results::{CommandInfo, Cost, MeasuredEndpoint, Results, RouterInfo, ScenarioInfo};
pub use routers::{Front, Measured, ROUTERS, Router, Running, Setup, When};
pub use scenario::{Event, SCENARIOS, Scenario};
pub use trial::{asks_too_much, trial};
