//! Discrete-event simulation of a pool of engines behind one or many gateways.
//!
//! The decisions are those of the filter: [`weighbridge_routing`]'s live table, queue, holder index, affinity and policies,
//! called as the filter calls them, with one table and one index per gateway. The engines are the simulator's model of time
//! with its KV cache ([`engine_sim::model`]). Everything follows from a seed; two policies with the same seed meet the same
//! requests, and the same run twice gives the same answer to the last bit.
//!
//! - [`workload`]: what arrives, synthetic or from a trace.
//! - [`fleet`]: the engines, and the pool that the routing code sees.
//! - [`policy`]: ours, what others do, and an oracle.
//! - [`sim`]: the loop over events, what gateways hear of each other, and faults.
//! - [`outcome`], [`report`]: what came out; percentiles, goodput, fairness, plots.
//! - [`scene`]: all of that from a command line.
//! - [`index`]: how many conversations the holder index remembers.
//!
//! What is modelled and what is not stands in `docs/simulation.md`.

pub mod fleet;
pub mod index;
pub mod outcome;
pub mod policy;
pub mod report;
pub mod scene;
pub mod sim;
pub mod workload;
