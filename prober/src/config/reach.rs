//! `tls`, `api_key_file`, `api_key_env` of an endpoint: what it takes to speak to it beside its address, as written.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::checked::{Check, is_name};

/// TLS towards an engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EngineTls {
    /// The name that the engine's certificate must have, and that it is asked for; the host of the address when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// Authorities in PEM, one of which must have signed that certificate; those of the system when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub ca_file: Option<PathBuf>,
}

impl EngineTls {
    /// The name that counts, of an endpoint at this `host:port`.
    #[must_use]
    pub fn server_name(&self, address: &str) -> String {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        self.sni.clone().unwrap_or_else(|| host.to_owned())
    }
}

/// Where a key stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPlace {
    /// In the first line of a file, read again as it changes.
    File(PathBuf),
    /// In an environment variable of the prober.
    Env(String),
}

/// What it takes to speak to an engine beside its address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// TLS; `None`: none.
    pub tls: Option<EngineTls>,
    /// The key that it asks for; `None`: none.
    pub api_key: Option<KeyPlace>,
}

fn is_short(path: &Path) -> bool {
    path.as_os_str().len() <= 4096
}

impl Reach {
    /// From the three fields as they are written. Of two places for a key, the file counts; [`Self::check`] has refused them.
    #[must_use]
    pub fn new(tls: Option<EngineTls>, file: Option<PathBuf>, env: Option<String>) -> Self {
        Reach { tls, api_key: file.map(KeyPlace::File).or(env.map(KeyPlace::Env)) }
    }

    pub(super) fn check(&self, address: &str, field: &impl Fn(&str) -> String, check: &mut Check) {
        if let Some(tls) = &self.tls {
            let name = tls.server_name(address);
            // An address is no name that a certificate is asked for.
            let named = is_name(&name) && name.parse::<IpAddr>().is_err();
            check.that(named, field("tls.sni"), &name, "the host name that the engine's certificate has");
            let short = tls.ca_file.as_deref().is_none_or(is_short);
            check.that(short, field("tls.ca_file"), "too long", "at most 4096 bytes");
        }
        if let Some(KeyPlace::File(path)) = &self.api_key {
            check.that(is_short(path), field("api_key_file"), "too long", "at most 4096 bytes");
        }
        if let Some(KeyPlace::Env(name)) = &self.api_key {
            let good = (1..=256).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            check.that(good, field("api_key_env"), name, "the name of an environment variable");
        }
    }
}
