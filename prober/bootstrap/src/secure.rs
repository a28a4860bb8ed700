//! TLS towards the prober, as Envoy writes it.

use std::path::PathBuf;

use serde_json::{Value, json};

/// Files as Envoy sees them, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The names of which a prober's certificate must have one: Envoy's cluster has one context for all of its hosts.
    pub names: Vec<String>,
    /// Who must have signed it.
    pub ca_file: PathBuf,
    /// Certificate and key that Envoy shows, where the prober asks for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    pub(crate) fn socket(&self) -> Value {
        let is_address = |name: &str| name.parse::<std::net::IpAddr>().is_ok();
        let matchers = self.names.iter().map(|name| {
            let kind = if is_address(name) { "IP_ADDRESS" } else { "DNS" };
            json!({"san_type": kind, "matcher": {"exact": name}})
        });
        let mut context = json!({
            "validation_context": {
                "trusted_ca": {"filename": self.ca_file},
                "match_typed_subject_alt_names": matchers.collect::<Vec<_>>(),
            },
        });
        if let Some((cert, key)) = &self.own {
            let certificate = json!({"certificate_chain": {"filename": cert}, "private_key": {"filename": key}});
            context["tls_certificates"] = json!([certificate]);
        }
        let mut tls = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": context,
        });
        // One of several would be asked of all.
        if let [name] = self.names.as_slice()
            && !is_address(name)
        {
            tls["sni"] = name.as_str().into();
        }
        json!({"name": "envoy.transport_sockets.tls", "typed_config": tls})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(names: &[&str]) -> (Value, Value) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let socket = Tls { names, ca_file: "ca.pem".into(), own: None }.socket();
        let typed = &socket["typed_config"];
        let context = &typed["common_tls_context"]["validation_context"];
        (context["match_typed_subject_alt_names"].clone(), typed["sni"].clone())
    }

    #[test]
    fn each_of_several_probers_may_have_its_own_name() {
        let dns = |name: &str| json!({"san_type": "DNS", "matcher": {"exact": name}});
        let ip = |name: &str| json!({"san_type": "IP_ADDRESS", "matcher": {"exact": name}});
        assert_eq!(socket(&["one.example"]), (json!([dns("one.example")]), "one.example".into()));
        assert_eq!(socket(&["10.0.0.1"]), (json!([ip("10.0.0.1")]), Value::Null));
        let two = json!([dns("one.example"), ip("10.0.0.2")]);
        assert_eq!(socket(&["one.example", "10.0.0.2"]), (two, Value::Null));
    }
}
