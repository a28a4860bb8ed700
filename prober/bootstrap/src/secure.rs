//! TLS towards the prober, as Envoy writes it.

use std::path::PathBuf;

use serde_json::{Value, json};

/// Files as Envoy sees them, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The name that the prober's certificate must have.
    pub name: String,
    /// Who must have signed it.
    pub ca_file: PathBuf,
    /// Certificate and key that Envoy shows, where the prober asks for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    pub(crate) fn socket(&self) -> Value {
        let by_address = self.name.parse::<std::net::IpAddr>().is_ok();
        let kind = if by_address { "IP_ADDRESS" } else { "DNS" };
        let mut context = json!({
            "validation_context": {
                "trusted_ca": {"filename": self.ca_file},
                "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": self.name}}],
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
        if !by_address {
            tls["sni"] = self.name.clone().into();
        }
        json!({"name": "envoy.transport_sockets.tls", "typed_config": tls})
    }
}
