//! Discrete-event simulation of one pool behind one gateway.
//!
//! The decisions are those of the filter: [`weighbridge_routing`]'s live table, holder index, affinity and policies, called
//! as the filter calls them. The engines are the simulator's model of time with its KV cache ([`engine_sim::model`]).
//! Everything follows from a seed; two policies with the same seed meet the same requests.
//!
//! - [`workload`]: what arrives, synthetic or from a trace.
//! - [`fleet`]: the engines, and the pool that the routing code sees.
//! - [`policy`]: ours, and baselines to compare with.
//! - [`gateway`]: the loop over events.
//! - [`report`]: percentiles, hit rates, shares.
//! - [`index`]: how many conversations the holder index remembers.
//!
//! Not modelled: the network, the prober (weights are what its bursts would measure), a snapshot that changes, several
//! Envoys, waiting at the gateway (a request that finds every endpoint at its cap is refused).

pub mod fleet;
pub mod gateway;
pub mod index;
pub mod policy;
pub mod report;
pub mod workload;
