//! A shipped configuration, edited by structure: what is not touched here runs as it ships.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::wire;

const XDS_CLUSTER: &str = "weighbridge-xds";
const PROBER_CLUSTER: &str = "weighbridge-prober";
const FILTER: &str = "weighbridge";
const CLUSTER_HEADER: &str = "x-weighbridge-cluster";
/// What Envoy buffers beyond the filter's `max_body`, as in the shipped files: 17 MiB for 16.
const ABOVE_MAX_BODY_BYTES: u64 = 1 << 20;

/// An Envoy bootstrap configuration.
#[derive(Debug, Clone)]
pub struct Bootstrap(Value);

impl Bootstrap {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is not YAML.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let value = serde_yaml_ng::from_str(&text).with_context(|| format!("{} is not YAML", path.display()))?;
        Ok(Self(value))
    }

    /// A plain Envoy as somebody may run it, with the parts of the mesh snippet put where the snippet says. Its own
    /// route answers 200 with the body `host`.
    ///
    /// # Errors
    /// When the snippet lacks a part.
    pub fn mesh_host(snippet: &Path) -> Result<Self> {
        let snippet = Self::load(snippet)?.0;
        let part = |name: &str| {
            let list = snippet.get(name).and_then(Value::as_array);
            list.cloned().with_context(|| format!("the snippet has no list {name}"))
        };
        let mut routes = part("routes")?;
        routes.push(
            json!({"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "host"}}}),
        );
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
        Ok(Self(json!({
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

    /// The configuration for Envoy.
    #[must_use]
    pub fn into_value(self) -> Value {
        self.0
    }

    /// Moves the admin interface.
    ///
    /// # Errors
    /// When the file has none.
    pub fn set_admin(&mut self, to: SocketAddr) -> Result<()> {
        *self.at("/admin/address")? = socket_address(to);
        Ok(())
    }

    /// Moves the listener.
    ///
    /// # Errors
    /// When the file has none.
    pub fn set_gateway(&mut self, to: SocketAddr) -> Result<()> {
        *self.at("/static_resources/listeners/0/address")? = socket_address(to);
        Ok(())
    }

    /// Says where the prober is.
    ///
    /// # Errors
    /// When the file has no cluster for it.
    pub fn set_xds(&mut self, to: SocketAddr) -> Result<()> {
        self.set_addresses(XDS_CLUSTER, to)
    }

    /// Says where the prober's REST API is.
    ///
    /// # Errors
    /// When the file has no cluster for it.
    pub fn set_prober(&mut self, to: SocketAddr) -> Result<()> {
        self.set_addresses(PROBER_CLUSTER, to)
    }

    fn set_addresses(&mut self, name: &str, to: SocketAddr) -> Result<()> {
        let cluster = self.clusters()?.iter_mut().find(|cluster| cluster["name"] == name);
        cluster.with_context(|| format!("no cluster {name}"))?["load_assignment"]["endpoints"] = endpoints(&[to]);
        Ok(())
    }

    /// Shortens every wait for the prober.
    pub fn set_initial_fetch_timeouts(&mut self, to: &str) {
        visit(&mut self.0, &mut |object| {
            if let Some(timeout) = object.get_mut("initial_fetch_timeout") {
                *timeout = to.into();
            }
        });
    }

    /// Names the module.
    ///
    /// # Errors
    /// When the file has no filter, or the path is not UTF-8.
    pub fn set_wasm(&mut self, path: &Path) -> Result<()> {
        let path = path.to_str().context("the module's path is not UTF-8")?;
        let mut found = false;
        visit(&mut self.0, &mut |object| {
            if let Some(vm) = object.get_mut("vm_config") {
                vm["code"]["local"]["filename"] = path.into();
                found = true;
            }
        });
        if !found {
            bail!("no vm_config in the configuration");
        }
        Ok(())
    }

    /// Puts a snapshot into the filter's default configuration. Standalone, its pools become `<pool>-static` clusters, made
    /// after the shipped one; in a mesh, the snippet's cluster per pool, with endpoints from the prober.
    ///
    /// # Errors
    /// When the file has no such parts, or an address is not `ip:port`.
    pub fn set_snapshot(&mut self, mut snapshot: wire::Snapshot) -> Result<()> {
        let clusters = self.clusters()?;
        let position = clusters.iter().position(is_of_a_pool);
        let template = clusters.remove(position.context("no cluster of a pool")?);
        clusters.retain(|cluster| !is_of_a_pool(cluster));
        for pool in &mut snapshot.pools {
            let mut cluster = template.clone();
            if template["type"] == "EDS" {
                cluster["name"] = pool.name.clone().into();
            } else {
                // Always: a static cluster with the name of one from the prober would shadow it.
                let name = format!("{}-static", pool.name);
                pool.cluster = Some(name.clone());
                let addresses: Vec<SocketAddr> = pool
                    .endpoints
                    .iter()
                    .map(|endpoint| endpoint.address.parse().with_context(|| format!("address {:?}", endpoint.address)))
                    .collect::<Result<_>>()?;
                cluster["load_assignment"] = json!({"cluster_name": name, "endpoints": endpoints(&addresses)});
                cluster["name"] = name.into();
            }
            clusters.push(cluster);
        }
        let json = serde_json::to_string(&snapshot)?;
        let mut found = false;
        visit(&mut self.0, &mut |object| {
            if object.get("@type").is_some_and(|kind| kind == "type.googleapis.com/google.protobuf.StringValue") {
                object.insert("value".into(), json.clone().into());
                found = true;
            }
        });
        if !found {
            bail!("no static snapshot in the configuration");
        }
        Ok(())
    }

    /// Makes room for bodies of so many bytes (the filter's `max_body`) and a little more, so that the filter's own 413, which
    /// names its limit, comes first. Where there is room already, nothing changes. What a connection may buffer bounds no body
    /// on a route that has a limit of its own, and stays as it is.
    pub fn make_room_for_bodies(config: &mut Value, max_body_bytes: u64) {
        const LIMIT: &str = "request_body_buffer_limit";
        let limit = max_body_bytes.saturating_add(ABOVE_MAX_BODY_BYTES);
        let mut raised = Vec::new();
        visit(config, &mut |object| {
            if let Some(old) = object.get(LIMIT).and_then(Value::as_u64).filter(|old| *old < limit) {
                object.insert(LIMIT.to_owned(), limit.into());
                raised.push(old.to_string());
            }
        });
        // Envoy's own 413 names the limit, too.
        visit(config, &mut |object| {
            if let Some(Value::String(message)) = object.get_mut("message")
                && let Some(old) = raised.iter().find(|old| message.contains(old.as_str()))
            {
                *message = message.replace(old.as_str(), &limit.to_string());
            }
        });
    }

    /// Takes the filter out and sends its routes straight to the first pool's cluster.
    ///
    /// # Errors
    /// When the file has no pool.
    pub fn remove_filter(&mut self) -> Result<()> {
        let first = self.clusters()?.iter().find(|cluster| is_of_a_pool(cluster));
        let first = first.context("no cluster of a pool")?["name"].clone();
        visit(&mut self.0, &mut |object| {
            if let Some(filters) = object.get_mut("http_filters").and_then(Value::as_array_mut) {
                filters.retain(|filter| filter["name"] != FILTER);
            }
            if object.get("cluster_header").is_some_and(|header| header == CLUSTER_HEADER) {
                object.remove("cluster_header");
                object.remove("cluster_not_found_response_code");
                object.insert("cluster".into(), first.clone());
            }
        });
        Ok(())
    }

    fn clusters(&mut self) -> Result<&mut Vec<Value>> {
        self.at("/static_resources/clusters")?.as_array_mut().context("clusters is not a list")
    }

    fn at(&mut self, pointer: &str) -> Result<&mut Value> {
        self.0.pointer_mut(pointer).with_context(|| format!("no {pointer} in the configuration"))
    }
}

fn is_of_a_pool(cluster: &Value) -> bool {
    cluster["name"] != XDS_CLUSTER && cluster["name"] != PROBER_CLUSTER
}

fn socket_address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

fn endpoints(addresses: &[SocketAddr]) -> Value {
    let hosts: Vec<_> = addresses.iter().map(|to| json!({"endpoint": {"address": socket_address(*to)}})).collect();
    json!([{"lb_endpoints": hosts}])
}

/// Calls `change` for every object of the tree, parents first.
fn visit(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            change(object);
            for child in object.values_mut() {
                visit(child, change);
            }
        }
        Value::Array(list) => {
            for child in list {
                visit(child, change);
            }
        }
        _ => {}
    }
}
