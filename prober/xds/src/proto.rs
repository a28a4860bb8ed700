//! Builds the protobuf messages. Nothing here decides anything but field values.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::cluster::v3 as cluster;
use envoy_types::pb::envoy::config::common::mutation_rules::v3 as mutation;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
use envoy_types::pb::envoy::extensions::filters::http::header_mutation::v3 as header_mutation;
use envoy_types::pb::envoy::extensions::filters::http::upstream_codec::v3::UpstreamCodec;
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use envoy_types::pb::envoy::extensions::load_balancing_policies::override_host::v3 as override_host;
use envoy_types::pb::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use envoy_types::pb::envoy::extensions::upstreams::http::v3 as upstream;
use envoy_types::pb::envoy::extensions::wasm::v3 as wasm;
use envoy_types::pb::envoy::r#type::matcher::v3::{StringMatcher, string_matcher};
use envoy_types::pb::envoy::r#type::metadata::v3 as metadata;
use envoy_types::pb::google::protobuf::{Any, BoolValue, Duration, StringValue, UInt32Value};
use envoy_types::util::pack_any;

use crate::upstream::{Needs, Upstream, authorize, metadata as host_metadata, socket_matches};
use crate::{EXTENSION_NAME, HOST_HEADER, XDS_CLUSTER, capabilities, limits};

/// Headers that begin so are between clients and the filter. Engines do not get to see them, and clients none that an engine
/// sends: only the filter says who answered and why.
const OURS: &str = "x-weighbridge-";

/// Where an Envoy gets a cluster's endpoints from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointSource {
    /// The aggregated stream that carried the cluster.
    Ads,
    /// A stream of its own to [`XDS_CLUSTER`].
    OwnStream,
}

/// One upstream host of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    /// Weight x 100; only the fallback policy looks at it.
    pub(crate) weight: u32,
    /// Only the fallback policy looks at it: `override_host` picks a host whatever its health.
    pub(crate) health: core::HealthStatus,
    /// TLS towards it, and its key.
    pub(crate) upstream: Upstream,
}

fn millis(ms: i32) -> Option<Duration> {
    Some(Duration { seconds: i64::from(ms / 1000), nanos: ms % 1000 * 1_000_000 })
}

fn extension(name: &str, config: Any) -> core::TypedExtensionConfig {
    core::TypedExtensionConfig { name: name.into(), typed_config: Some(config) }
}

fn policy(name: &str, config: Any) -> cluster::LoadBalancingPolicy {
    cluster::LoadBalancingPolicy {
        policies: vec![cluster::load_balancing_policy::Policy {
            typed_extension_config: Some(extension(name, config)),
        }],
    }
}

/// The cluster of a pool, with what its hosts need.
pub(crate) fn cluster(name: &str, source: EndpointSource, needs: &Needs) -> Any {
    pack_any(limits::limited(cluster::Cluster {
        name: name.into(),
        cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::Type(
            cluster::cluster::DiscoveryType::Eds.into(),
        )),
        eds_cluster_config: Some(cluster::cluster::EdsClusterConfig {
            eds_config: Some(eds_config(source)),
            service_name: String::new(),
        }),
        connect_timeout: millis(1000),
        transport_socket_matches: socket_matches(&needs.authorities),
        // A host that left EDS goes at once; what runs on it finishes.
        ignore_health_on_host_removal: true,
        load_balancing_policy: Some(policy("envoy.load_balancing_policies.override_host", override_host())),
        typed_extension_protocol_options: [(
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions".into(),
            protocol_options(needs.keys),
        )]
        .into(),
        ..Default::default()
    }))
}

fn eds_config(source: EndpointSource) -> core::ConfigSource {
    let specifier = match source {
        EndpointSource::Ads => core::config_source::ConfigSourceSpecifier::Ads(core::AggregatedConfigSource {}),
        EndpointSource::OwnStream => {
            core::config_source::ConfigSourceSpecifier::ApiConfigSource(core::ApiConfigSource {
                api_type: core::api_config_source::ApiType::Grpc.into(),
                transport_api_version: core::ApiVersion::V3.into(),
                grpc_services: vec![core::GrpcService {
                    target_specifier: Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(
                        core::grpc_service::EnvoyGrpc { cluster_name: XDS_CLUSTER.into(), ..Default::default() },
                    )),
                    ..Default::default()
                }],
                ..Default::default()
            })
        }
    };
    core::ConfigSource {
        // The default of 15 s would hold up a start while the prober is down.
        initial_fetch_timeout: millis(1000),
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(specifier),
        ..Default::default()
    }
}

fn override_host() -> Any {
    pack_any(override_host::OverrideHost {
        override_host_sources: vec![override_host::override_host::OverrideHostSource {
            header: HOST_HEADER.into(),
            metadata: None,
        }],
        selected_host_key: Some(metadata::MetadataKey {
            key: EXTENSION_NAME.into(),
            path: vec![metadata::metadata_key::PathSegment {
                segment: Some(metadata::metadata_key::path_segment::Segment::Key("picked".into())),
            }],
        }),
        fallback_policy: Some(policy("envoy.load_balancing_policies.round_robin", pack_any(RoundRobin::default()))),
    })
}

/// HTTP/1.1, and an upstream filter that takes our headers off: a request's after the load balancer has read them, an
/// answer's before the filter adds its own. It puts the engine's key in, too, where
/// there are keys.
fn protocol_options(keys: bool) -> Any {
    let remove = || {
        let key_matcher =
            StringMatcher { ignore_case: true, match_pattern: Some(string_matcher::MatchPattern::Prefix(OURS.into())) };
        let remove = mutation::header_mutation::RemoveOnMatch { key_matcher: Some(key_matcher) };
        vec![mutation::HeaderMutation { action: Some(mutation::header_mutation::Action::RemoveOnMatch(remove)) }]
    };
    let strip = header_mutation::HeaderMutation {
        mutations: Some(header_mutation::Mutations {
            request_mutations: remove().into_iter().chain(keys.then(authorize).into_iter().flatten()).collect(),
            response_mutations: remove(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let filter = |name: &str, config: Any| hcm::HttpFilter {
        name: name.into(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    };
    use upstream::http_protocol_options as options;
    pack_any(upstream::HttpProtocolOptions {
        common_http_protocol_options: Some(limits::connections()),
        upstream_protocol_options: Some(options::UpstreamProtocolOptions::ExplicitHttpConfig(
            options::ExplicitHttpConfig {
                protocol_config: Some(options::explicit_http_config::ProtocolConfig::HttpProtocolOptions(
                    core::Http1ProtocolOptions::default(),
                )),
            },
        )),
        http_filters: vec![
            filter("envoy.filters.http.header_mutation", pack_any(strip)),
            filter("envoy.filters.http.upstream_codec", pack_any(UpstreamCodec {})),
        ],
        ..Default::default()
    })
}

/// The endpoints of a cluster, in one locality.
pub(crate) fn load_assignment(cluster: &str, hosts: &[Host]) -> Any {
    let lb_endpoints = hosts
        .iter()
        .map(|host| endpoint::LbEndpoint {
            health_status: host.health.into(),
            load_balancing_weight: Some(UInt32Value { value: host.weight }),
            metadata: host_metadata(&host.upstream),
            host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(endpoint::Endpoint {
                // The name that TLS asks for.
                hostname: host.upstream.tls.as_ref().map(|tls| tls.server_name.clone()).unwrap_or_default(),
                address: Some(core::Address {
                    address: Some(core::address::Address::SocketAddress(core::SocketAddress {
                        address: host.address.ip().to_string(),
                        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(u32::from(
                            host.address.port(),
                        ))),
                        ..Default::default()
                    })),
                }),
                ..Default::default()
            })),
        })
        .collect();
    pack_any(endpoint::ClusterLoadAssignment {
        cluster_name: cluster.into(),
        endpoints: vec![endpoint::LocalityLbEndpoints { lb_endpoints, ..Default::default() }],
        ..Default::default()
    })
}

/// The filter: the wasm module at this path, configured with this snapshot (JSON).
pub(crate) fn filter(wasm_path: &str, snapshot_json: String) -> Any {
    let code = core::AsyncDataSource {
        specifier: Some(core::async_data_source::Specifier::Local(core::DataSource {
            specifier: Some(core::data_source::Specifier::Filename(wasm_path.into())),
            ..Default::default()
        })),
    };
    let plugin = wasm::PluginConfig {
        name: EXTENSION_NAME.into(),
        root_id: EXTENSION_NAME.into(),
        configuration: Some(pack_any(StringValue { value: snapshot_json })),
        // The default would leave a worker at 503 after one trap until Envoy restarts.
        failure_policy: wasm::FailurePolicy::FailReload.into(),
        reload_config: Some(wasm::ReloadConfig {
            backoff: Some(core::BackoffStrategy { base_interval: millis(50), max_interval: millis(1000) }),
        }),
        // Without it, a filter that waits for the body in the headers callback hangs for ever.
        allow_on_headers_stop_iteration: Some(BoolValue { value: true }),
        vm: Some(wasm::plugin_config::Vm::VmConfig(wasm::VmConfig {
            vm_id: EXTENSION_NAME.into(),
            runtime: "envoy.wasm.runtime.v8".into(),
            code: Some(code),
            capability_restriction_config: Some(capabilities::restriction()),
            ..Default::default()
        })),
        ..Default::default()
    };
    pack_any(extension(EXTENSION_NAME, pack_any(Wasm { config: Some(plugin) })))
}
