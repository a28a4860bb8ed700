//! An Envoy configuration with the Weighbridge filter, edited by structure: what is not touched here runs as it ships.
//!
//! - [`Bootstrap`]: the shipped files and what may be changed about them.
//! - [`address`]: where something listens, or is to be reached.
//! - [`room`]: how large a body may be.
//! - [`mod@print`]: as people read it.
//! - [`secure`]: TLS towards the prober.

pub mod address;
pub mod print;
pub mod room;
pub mod secure;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use weighbridge_routing::snapshot::wire;

pub use address::Target;
pub use secure::Tls;

/// Envoy's cluster that leads to the prober's xDS.
pub const XDS_CLUSTER: &str = "weighbridge-xds";
/// Envoy's cluster that leads to the prober's REST API.
pub const PROBER_CLUSTER: &str = "weighbridge-prober";
/// The filter's name.
pub const FILTER: &str = "weighbridge";
/// The header that says where a request goes.
pub const CLUSTER_HEADER: &str = "x-weighbridge-cluster";

/// `envoy/envoy.yaml` as it ships.
pub const STANDALONE: &str = include_str!("../../../envoy/envoy.yaml");
/// `envoy/mesh/envoy-snippet.yaml` as it ships.
pub const SNIPPET: &str = include_str!("../../../envoy/mesh/envoy-snippet.yaml");

/// Why a configuration cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The file cannot be read.
    #[error("{} cannot be read: {why}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        why: std::io::Error,
    },
    /// Not YAML.
    #[error("{} is not YAML: {why}", path.display())]
    NotYaml {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        why: serde_yaml_ng::Error,
    },
    /// Something that is to be changed is not there.
    #[error("the configuration has no {0}")]
    Missing(String),
    /// An endpoint of a static snapshot is not where it could be.
    #[error("{0:?} is no address: expected ip:port")]
    Address(String),
    /// A path that JSON cannot have.
    #[error("{} is not UTF-8", .0.display())]
    Path(PathBuf),
}

/// An Envoy configuration: a bootstrap, or parts of one as the mesh snippet has them.
#[derive(Debug, Clone)]
pub struct Bootstrap(Value);

impl From<Value> for Bootstrap {
    fn from(value: Value) -> Self {
        Bootstrap(value)
    }
}

impl Bootstrap {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is not YAML.
    pub fn load(path: &Path) -> Result<Self, EditError> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|why| EditError::Unreadable { path: path.to_owned(), why })?;
        Self::parse(&text, path)
    }

    /// What ships for an Envoy whose only job is the gateway.
    ///
    /// # Errors
    /// Never for what ships.
    pub fn standalone() -> Result<Self, EditError> {
        Self::parse(STANDALONE, Path::new("envoy/envoy.yaml"))
    }

    /// What ships for an Envoy that others run.
    ///
    /// # Errors
    /// Never for what ships.
    pub fn snippet() -> Result<Self, EditError> {
        Self::parse(SNIPPET, Path::new("envoy/mesh/envoy-snippet.yaml"))
    }

    fn parse(text: &str, path: &Path) -> Result<Self, EditError> {
        let value = serde_yaml_ng::from_str(text);
        value.map(Self).map_err(|why| EditError::NotYaml { path: path.to_owned(), why })
    }

    /// The configuration for Envoy.
    #[must_use]
    pub fn into_value(self) -> Value {
        self.0
    }

    /// Moves the admin interface.
    ///
    /// # Errors
    /// When there is none.
    pub fn set_admin(&mut self, to: SocketAddr) -> Result<(), EditError> {
        *self.at("/admin/address")? = address::socket(&to.into());
        Ok(())
    }

    /// Gives Envoy a name.
    ///
    /// # Errors
    /// When it has none.
    pub fn set_node_id(&mut self, id: &str) -> Result<(), EditError> {
        *self.at("/node/id")? = id.into();
        Ok(())
    }

    /// Moves the listener.
    ///
    /// # Errors
    /// When there is none.
    pub fn set_gateway(&mut self, to: SocketAddr) -> Result<(), EditError> {
        *self.at("/static_resources/listeners/0/address")? = address::socket(&to.into());
        Ok(())
    }

    /// Says where the probers' xDS is.
    ///
    /// # Errors
    /// When there is no cluster for it.
    pub fn set_xds(&mut self, to: &[Target]) -> Result<(), EditError> {
        // Whichever answers: all of them tell the same.
        self.lead(XDS_CLUSTER, to, json!([address::hosts(to)]))
    }

    /// Says where the probers' REST API is.
    ///
    /// # Errors
    /// When there is no cluster for it.
    pub fn set_prober(&mut self, to: &[Target]) -> Result<(), EditError> {
        // The same one for all Envoys as long as it lives: they hear of each other's load through it.
        let by_priority = to.iter().enumerate().map(|(priority, to)| {
            let mut hosts = address::hosts(std::slice::from_ref(to));
            if priority > 0 {
                hosts["priority"] = priority.into();
            }
            hosts
        });
        self.lead(PROBER_CLUSTER, to, by_priority.collect())
    }

    fn lead(&mut self, name: &str, to: &[Target], endpoints: Value) -> Result<(), EditError> {
        let cluster = self.cluster(name)?;
        cluster["load_assignment"]["endpoints"] = endpoints;
        cluster["type"] = if to.iter().all(Target::is_ip) { "STATIC" } else { "STRICT_DNS" }.into();
        Ok(())
    }

    /// Speaks TLS to the prober's xDS.
    ///
    /// # Errors
    /// When there is no cluster for it.
    pub fn secure_xds(&mut self, tls: &Tls) -> Result<(), EditError> {
        self.cluster(XDS_CLUSTER)?["transport_socket"] = tls.socket();
        Ok(())
    }

    /// Speaks TLS to the prober's REST API.
    ///
    /// # Errors
    /// When there is no cluster for it.
    pub fn secure_prober(&mut self, tls: &Tls) -> Result<(), EditError> {
        self.cluster(PROBER_CLUSTER)?["transport_socket"] = tls.socket();
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
    /// When there is no filter, or the path is not UTF-8.
    pub fn set_wasm(&mut self, path: &Path) -> Result<(), EditError> {
        let path = path.to_str().ok_or_else(|| EditError::Path(path.to_owned()))?;
        let mut found = false;
        visit(&mut self.0, &mut |object| {
            if let Some(vm) = object.get_mut("vm_config") {
                vm["code"]["local"]["filename"] = path.into();
                found = true;
            }
        });
        if found { Ok(()) } else { Err(missing("vm_config")) }
    }

    /// Puts a snapshot into the filter's default configuration. Standalone, its pools become `<pool>-static` clusters, made
    /// after the shipped one; in a mesh, the snippet's cluster per pool, with endpoints from the prober.
    ///
    /// # Errors
    /// When there are no such parts, or an address is not `ip:port`.
    pub fn set_snapshot(&mut self, mut snapshot: wire::Snapshot) -> Result<(), EditError> {
        let clusters = self.clusters()?;
        let position = clusters.iter().position(is_of_a_pool).ok_or_else(|| missing("cluster of a pool"))?;
        let template = clusters.remove(position);
        clusters.retain(|cluster| !is_of_a_pool(cluster));
        for pool in &mut snapshot.pools {
            let mut cluster = template.clone();
            if template["type"] == "EDS" {
                cluster["name"] = pool.name.clone().into();
            } else {
                // Always: a static cluster with the name of one from the prober would shadow it.
                let name = format!("{}-static", pool.name);
                pool.cluster = Some(name.clone());
                let addresses: Vec<Target> = pool
                    .endpoints
                    .iter()
                    .map(|endpoint| endpoint.address.parse::<SocketAddr>().map(Into::into))
                    .collect::<Result<_, _>>()
                    .map_err(|_| EditError::Address(format!("{:?}", pool.endpoints)))?;
                cluster["load_assignment"] = json!({"cluster_name": name, "endpoints": [address::hosts(&addresses)]});
                cluster["name"] = name.into();
            }
            clusters.push(cluster);
        }
        let json = serde_json::to_string_pretty(&snapshot).unwrap_or_default();
        let mut found = false;
        visit(&mut self.0, &mut |object| {
            if object.get("@type").is_some_and(|kind| kind == "type.googleapis.com/google.protobuf.StringValue") {
                object.insert("value".into(), json.clone().into());
                found = true;
            }
        });
        if found { Ok(()) } else { Err(missing("static snapshot")) }
    }

    /// Makes room for bodies of so many bytes: see [`room`].
    pub fn make_room_for_bodies(&mut self, max_body_bytes: u64) {
        room::make(&mut self.0, max_body_bytes);
    }

    /// Takes the filter out and sends its routes straight to the first pool's cluster.
    ///
    /// # Errors
    /// When there is no pool.
    pub fn remove_filter(&mut self) -> Result<(), EditError> {
        let first = self.clusters()?.iter().find(|cluster| is_of_a_pool(cluster));
        let first = first.ok_or_else(|| missing("cluster of a pool"))?["name"].clone();
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

    fn cluster(&mut self, name: &str) -> Result<&mut Value, EditError> {
        let cluster = self.clusters()?.iter_mut().find(|cluster| cluster["name"] == name);
        cluster.ok_or_else(|| missing(&format!("cluster {name}")))
    }

    fn clusters(&mut self) -> Result<&mut Vec<Value>, EditError> {
        let place = if self.0.get("clusters").is_some() { "/clusters" } else { "/static_resources/clusters" };
        self.at(place)?.as_array_mut().ok_or_else(|| missing("list of clusters"))
    }

    fn at(&mut self, pointer: &str) -> Result<&mut Value, EditError> {
        self.0.pointer_mut(pointer).ok_or_else(|| missing(pointer))
    }
}

fn missing(what: &str) -> EditError {
    EditError::Missing(what.to_owned())
}

fn is_of_a_pool(cluster: &Value) -> bool {
    cluster["name"] != XDS_CLUSTER && cluster["name"] != PROBER_CLUSTER
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_probers_by_name_are_resolved_and_have_priorities() {
        let probers: Vec<Target> = ["a.example:7070", "b.example:7070"].map(|text| text.parse().unwrap()).into();
        for mut config in [Bootstrap::standalone().unwrap(), Bootstrap::snippet().unwrap()] {
            config.set_prober(&probers).unwrap();
            config.set_xds(&[SocketAddr::from(([10, 0, 0, 1], 7071)).into()]).unwrap();
            let cluster = config.cluster(PROBER_CLUSTER).unwrap();
            assert_eq!(cluster["type"], "STRICT_DNS");
            let endpoints = cluster["load_assignment"]["endpoints"].as_array().unwrap();
            assert_eq!((&endpoints[0]["priority"], &endpoints[1]["priority"]), (&Value::Null, &json!(1)));
            assert_eq!(config.cluster(XDS_CLUSTER).unwrap()["type"], "STATIC");
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let mut config = Bootstrap::from(json!({"static_resources": {"clusters": []}}));
        assert_eq!(config.set_xds(&[]).unwrap_err().to_string(), "the configuration has no cluster weighbridge-xds");
        assert_eq!(config.set_wasm(Path::new("x")).unwrap_err().to_string(), "the configuration has no vm_config");
        let gone = Bootstrap::load(Path::new("nowhere.yaml")).unwrap_err();
        assert!(gone.to_string().starts_with("nowhere.yaml cannot be read"), "{gone}");
    }
}
