//! A plain Envoy as somebody may run it, with the parts of the mesh snippet put where the snippet says. Its own route answers
//! 200 with the body `host`.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weighbridge_bootstrap::Bootstrap;

/// The configuration of such a host.
///
/// # Errors
/// When the snippet lacks a part.
pub(super) fn mesh_host(snippet: &Path) -> Result<Bootstrap> {
    let snippet = Bootstrap::load(snippet)?.into_value();
    let part = |name: &str| {
        let list = snippet.get(name).and_then(Value::as_array);
        list.cloned().with_context(|| format!("the snippet has no list {name}"))
    };
    let mut routes = part("routes")?;
    routes
        .push(json!({"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "host"}}}));
    let mut http_filters = part("http_filters")?;
    http_filters.push(json!({"name": "envoy.filters.http.router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        "upstream_log": part("upstream_log")?}}));
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "host",
        "early_header_mutation_extensions": part("early_header_mutation_extensions")?,
        "route_config": {"name": "host", "virtual_hosts": [{"name": "host", "domains": ["*"], "routes": routes}]},
        "http_filters": http_filters,
        "local_reply_config": {"mappers": part("local_reply_mappers")?},
        "access_log": part("access_log")?,
    });
    Ok(Bootstrap::from(json!({
        "node": {"id": "mesh-host", "cluster": "mesh"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {
            "listeners": [{
                "name": "host",
                "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                "filter_chains": [{"filters": [
                    {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                ]}]
            }],
            "clusters": part("clusters")?,
        },
        "stats_config": {
            "stats_tags": part("stats_tags")?,
            "histogram_bucket_settings": part("histogram_bucket_settings")?,
        },
    })))
}
