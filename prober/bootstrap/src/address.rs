//! Addresses as Envoy writes them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde_json::{Value, json};

/// A host, by address or by name, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// An IP address or a name.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Target {
    /// Whether nobody needs to resolve it.
    #[must_use]
    pub fn is_ip(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Target { host: address.ip().to_string(), port: address.port() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// What is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address: expected host:port, with a port from 1")]
pub struct NoTarget(String);

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        if let Ok(address) = text.parse::<SocketAddr>()
            && address.port() > 0
        {
            return Ok(address.into());
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| NoTarget(text.to_owned()))?;
        let name = (1..=253).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        match port.parse() {
            Ok(port) if name && port > 0 => Ok(Target { host: host.to_owned(), port }),
            _ => Err(NoTarget(text.to_owned())),
        }
    }
}

/// `{socket_address: {address, port_value}}`
pub(crate) fn socket(at: &Target) -> Value {
    json!({"socket_address": {"address": at.host, "port_value": at.port}})
}

/// One locality of a `load_assignment`.
pub(crate) fn hosts(at: &[Target]) -> Value {
    let hosts: Vec<_> = at.iter().map(|at| json!({"endpoint": {"address": socket(at)}})).collect();
    json!({"lb_endpoints": hosts})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_or_names() {
        for good in ["10.0.0.1:80", "[::1]:7070", "prober.example:7071"] {
            assert_eq!(good.parse::<Target>().unwrap().to_string(), good);
        }
        for bad in
            ["", "host", "host:", "host:x", "host:0", "10.0.0.1:0", "[::1]:0", ":80", "::1:80", "a b:80", "http://h:80"]
        {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
        assert!("[::1]:1".parse::<Target>().unwrap().is_ip() && !"localhost:1".parse::<Target>().unwrap().is_ip());
    }
}
