//! What keeps a cluster of a pool from overload, and from waiting for what is gone. `docs/limits.md` has the reasons; the same
//! values stand in the shipped configurations.

use envoy_types::pb::envoy::config::cluster::v3 as cluster;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::{Duration, UInt32Value};

/// What Envoy buffers of one connection to an engine, in bytes, before it stops reading: back-pressure of a client that does
/// not read.
const CONNECTION_BUFFER_BYTES: u32 = 1 << 20;
/// Admission is the filter's job: no cap comes near this. Envoy's default of 1,024 would refuse what the filter has admitted.
const NO_BREAKER: u32 = 100_000;
/// Of the requests under way, so many percent may be retries: as many retries as first attempts.
const RETRY_PERCENT: f64 = 50.0;
/// So many may be retries however little is under way.
const RETRIES_ALWAYS: u32 = 32;
/// Engines close idle connections after 5 s (uvicorn, cpp-httplib); closing first, we never send on one that is just being closed.
const IDLE_S: i64 = 4;
/// A machine that vanished is noticed after `KEEPALIVE_TIME_S + KEEPALIVE_PROBES x KEEPALIVE_INTERVAL_S`: a minute.
const KEEPALIVE_TIME_S: u32 = 30;
const KEEPALIVE_INTERVAL_S: u32 = 10;
const KEEPALIVE_PROBES: u32 = 3;

fn number(value: u32) -> Option<UInt32Value> {
    Some(UInt32Value { value })
}

/// Puts the limits on a cluster.
pub(crate) fn limited(cluster: cluster::Cluster) -> cluster::Cluster {
    let budget = cluster::circuit_breakers::thresholds::RetryBudget {
        budget_percent: Some(Percent { value: RETRY_PERCENT }),
        min_retry_concurrency: number(RETRIES_ALWAYS),
        ..Default::default()
    };
    let thresholds = cluster::circuit_breakers::Thresholds {
        max_connections: number(NO_BREAKER),
        max_pending_requests: number(NO_BREAKER),
        max_requests: number(NO_BREAKER),
        retry_budget: Some(budget),
        ..Default::default()
    };
    let keepalive = core::TcpKeepalive {
        keepalive_time: number(KEEPALIVE_TIME_S),
        keepalive_interval: number(KEEPALIVE_INTERVAL_S),
        keepalive_probes: number(KEEPALIVE_PROBES),
    };
    cluster::Cluster {
        per_connection_buffer_limit_bytes: number(CONNECTION_BUFFER_BYTES),
        circuit_breakers: Some(cluster::CircuitBreakers { thresholds: vec![thresholds], ..Default::default() }),
        upstream_connection_options: Some(cluster::UpstreamConnectionOptions {
            tcp_keepalive: Some(keepalive),
            ..Default::default()
        }),
        ..cluster
    }
}

/// How long connections to engines live without a request.
pub(crate) fn connections() -> core::HttpProtocolOptions {
    core::HttpProtocolOptions { idle_timeout: Some(Duration { seconds: IDLE_S, nanos: 0 }), ..Default::default() }
}
