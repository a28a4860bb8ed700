//! xDS for Weighbridge: how every Envoy learns clusters, endpoints, and the filter with its snapshot.
//!
//! State-of-the-world protocol, v3, over one aggregated stream (ADS) or over one stream per type for Envoys whose ADS
//! belongs to somebody else. Delta streams answer UNIMPLEMENTED.
//!
//! - [`resources`]: a snapshot becomes CDS, EDS and ECDS resources, each type with its own version (pure).
//! - [`upstream`]: TLS towards engines, and their keys (pure).
//! - [`stream`]: what one stream sends when a request or a new set arrives (pure; nonces, ACK, NACK, order).
//! - [`registry`]: who is connected and what each Envoy has applied or refused.
//! - [`server`]: the gRPC side, as thin as it gets.
//!
//! Why pure: the protocol's traps (stale nonces, endless resends of a refused resource, clusters gone before the filter
//! stops naming them) are all decided without I/O, so random interleavings can be tested in milliseconds.

pub mod registry;
pub mod resource_type;
pub mod resources;
pub mod server;
pub mod stream;
pub mod upstream;

mod capabilities;
mod limits;
mod proto;
mod secured;

pub use capabilities::CAPABILITIES;
pub use registry::{EnvoyStatus, Nack, TypeStatus};
pub use resource_type::ResourceType;
pub use resources::{FilterSource, ResourceError, ResourceSet};
pub use server::{XdsError, XdsServer};
pub use upstream::{Upstream, UpstreamTls, Upstreams};

/// Name of the ECDS resource and of the HTTP filter it configures; also the VM id and root id.
pub const EXTENSION_NAME: &str = "weighbridge";

/// The bootstrap cluster that leads to the prober. Clusters handed out on a stream of their own name it as the source
/// of their endpoints; on ADS the endpoints come over the same stream.
pub const XDS_CLUSTER: &str = "weighbridge-xds";

/// The header from which `override_host` takes the hosts to try.
pub const HOST_HEADER: &str = "x-weighbridge-host";

/// The header from which the route takes the cluster.
pub const CLUSTER_HEADER: &str = "x-weighbridge-cluster";
