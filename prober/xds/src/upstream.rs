//! What an Envoy needs beside the address to speak to an engine: TLS, and the key that the engine asks for.
//!
//! **Key.** It stands in the metadata of the endpoint, and an upstream HTTP filter of the cluster puts it into the request. That
//! filter runs once per attempt, when the host is known: each attempt carries the key of the engine that it goes to. All
//! attempts share one set of headers, though: what one has put in, the next one finds. So where any engine of the cluster has
//! a key, `authorization` is taken out before, and no engine of it gets what a client sent, or another engine's key. SDS can hold a key as well, but only one
//! per cluster, not one per host.
//!
//! **TLS.** The cluster has one transport socket per set of authorities that its endpoints need, and each endpoint's metadata
//! says which is its own; the name comes from the endpoint's `hostname`. Clusters and endpoints do not change in the same
//! moment, so there is a last socket for every endpoint that wants TLS: it trusts nobody. Without it, Envoy would fall
//! back to plain text, and send the key with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::cluster::TransportSocketMatch;
use envoy_types::pb::envoy::config::common::mutation_rules::v3 as mutation;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use envoy_types::util::pack_any;
use xxhash_rust::xxh3::xxh3_128;

use crate::EXTENSION_NAME;

/// TLS towards an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The name that its certificate must have.
    pub server_name: String,
    /// Who must have signed it, in PEM.
    pub authorities: Arc<str>,
}

/// How an engine is spoken to.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Upstream {
    /// TLS; `None`: none.
    pub tls: Option<UpstreamTls>,
    /// The whole value of the `authorization` header; `None`: what the client sent.
    pub authorization: Option<String>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorization = self.authorization.as_ref().map(|_| "..");
        f.debug_struct("Upstream").field("tls", &self.tls.is_some()).field("authorization", &authorization).finish()
    }
}

/// Those of all engines that need anything.
pub type Upstreams = BTreeMap<SocketAddr, Upstream>;

/// What the hosts of a cluster need of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The authorities of those with TLS.
    pub(crate) authorities: BTreeSet<Arc<str>>,
    /// One of them has a key.
    pub(crate) keys: bool,
}

impl<'a> FromIterator<&'a Upstream> for Needs {
    fn from_iter<T: IntoIterator<Item = &'a Upstream>>(upstreams: T) -> Self {
        let mut needs = Needs::default();
        for upstream in upstreams {
            needs.authorities.extend(upstream.tls.as_ref().map(|tls| Arc::clone(&tls.authorities)));
            needs.keys |= upstream.authorization.is_some();
        }
        needs
    }
}

/// Where Envoy looks for what selects a transport socket.
const MATCH: &str = "envoy.transport_socket_match";
/// The field there that says which authorities count.
const AUTHORITIES: &str = "weighbridge_authorities";
/// The field there that every endpoint with TLS has.
const TLS: &str = "weighbridge_tls";

/// Stands for authorities, the same as long as they are the same.
fn name(authorities: &str) -> String {
    format!("{:032x}", xxh3_128(authorities.as_bytes()))
}

fn fields<const N: usize>(fields: [(&str, String); N]) -> Struct {
    let value = |text| Value { kind: Some(Kind::StringValue(text)) };
    Struct { fields: fields.into_iter().map(|(name, text)| (name.to_owned(), value(text))).collect() }
}

/// What the endpoint's metadata says; none where there is nothing to say.
pub(crate) fn metadata(upstream: &Upstream) -> Option<core::Metadata> {
    let mut filter_metadata = HashMap::new();
    if let Some(tls) = &upstream.tls {
        let own = fields([(AUTHORITIES, name(&tls.authorities)), (TLS, "yes".into())]);
        filter_metadata.insert(MATCH.to_owned(), own);
    }
    if let Some(authorization) = &upstream.authorization {
        filter_metadata.insert(EXTENSION_NAME.to_owned(), fields([("authorization", authorization.clone())]));
    }
    (!filter_metadata.is_empty()).then(|| core::Metadata { filter_metadata, ..Default::default() })
}

/// The transport sockets of a cluster whose hosts need these authorities.
pub(crate) fn socket_matches(authorities: &BTreeSet<Arc<str>>) -> Vec<TransportSocketMatch> {
    let each = authorities.iter().map(|pem| {
        let trusted = core::DataSource {
            specifier: Some(core::data_source::Specifier::InlineString(pem.to_string())),
            ..Default::default()
        };
        let validation = tls::CertificateValidationContext { trusted_ca: Some(trusted), ..Default::default() };
        socket_match("tls", fields([(AUTHORITIES, name(pem))]), validation)
    });
    let nobody = tls::CertificateValidationContext {
        // No certificate has this hash.
        verify_certificate_hash: vec!["00".repeat(32)],
        ..Default::default()
    };
    each.chain([socket_match("tls-of-nobody", fields([(TLS, "yes".into())]), nobody)]).collect()
}

fn socket_match(name: &str, criteria: Struct, validation: tls::CertificateValidationContext) -> TransportSocketMatch {
    // Envoy refuses to look at names where it trusts nobody.
    let auto_sni_san_validation = validation.trusted_ca.is_some();
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(tls::CommonTlsContext {
            alpn_protocols: vec!["http/1.1".into()],
            validation_context_type: Some(tls::common_tls_context::ValidationContextType::ValidationContext(
                validation,
            )),
            ..Default::default()
        }),
        auto_host_sni: true,
        auto_sni_san_validation,
        ..Default::default()
    };
    TransportSocketMatch {
        name: name.into(),
        r#match: Some(criteria),
        transport_socket: Some(core::TransportSocket {
            name: "envoy.transport_sockets.tls".into(),
            config_type: Some(core::transport_socket::ConfigType::TypedConfig(pack_any(context))),
        }),
    }
}

/// Takes out what a client, or an attempt before, has put in, and puts in the key of the host, if it has one.
pub(crate) fn authorize() -> [mutation::HeaderMutation; 2] {
    use core::header_value_option::HeaderAppendAction;
    let remove = mutation::header_mutation::Action::Remove("authorization".into());
    let value = format!("%UPSTREAM_METADATA({EXTENSION_NAME}:authorization)%");
    // Of a host without a key the value is empty, and nothing is put in.
    let append = mutation::header_mutation::Action::Append(core::HeaderValueOption {
        header: Some(core::HeaderValue { key: "authorization".into(), value, ..Default::default() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..Default::default()
    });
    [remove, append].map(|action| mutation::HeaderMutation { action: Some(action) })
}
