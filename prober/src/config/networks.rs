//! `networks`: where endpoints may be. Whoever may register an endpoint, and whoever answers for a name, decides where the
//! gateway sends prompts and the prober its requests; this list decides where that may never be.

use std::net::SocketAddr;

use ipnet::IpNet;

use super::checked::{Check, is_one_host};

/// Where nobody runs an engine, and where a request can do harm: metadata services of clouds, which hand out credentials to
/// whoever asks from inside (169.254.169.254 and its like are link-local).
const UNLESS_LISTED: [&str; 5] =
    ["169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32", "168.63.129.16/32"];

/// The networks in which endpoints may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Networks {
    /// As written; `None`: everywhere but in those of [`UNLESS_LISTED`].
    listed: Option<Vec<IpNet>>,
    refused: Vec<IpNet>,
}

impl Default for Networks {
    fn default() -> Self {
        Networks { listed: None, refused: UNLESS_LISTED.iter().filter_map(|network| network.parse().ok()).collect() }
    }
}

impl Networks {
    /// Whether an endpoint may be there: an address that one host can have, inside of what is listed.
    #[must_use]
    pub fn permit(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let within = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&ip));
        let inside = match &self.listed {
            Some(listed) => within(listed),
            None => !within(&self.refused),
        };
        inside && is_one_host(address)
    }

    /// What is permitted, in words.
    #[must_use]
    pub fn expected(&self) -> String {
        let names = |networks: &[IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match &self.listed {
            Some(listed) => format!("the address of one host in one of `networks`: {}", names(listed)),
            None => format!("the address of one host, and none of {} unless `networks` lists it", names(&self.refused)),
        }
    }
}

pub(super) fn networks(raw: Option<Vec<String>>, check: &mut Check) -> Networks {
    let Some(raw) = raw else { return Networks::default() };
    check.that(!raw.is_empty(), "networks", "[]", "at least one network, or no such field");
    let mut listed = Vec::new();
    for (nth, text) in raw.iter().enumerate() {
        let network = text.parse::<IpNet>().ok().filter(|network| *network == network.trunc());
        check.that(
            network.is_some(),
            format!("networks[{nth}]"),
            text,
            "a network such as 10.0.0.0/8, without bits behind its prefix",
        );
        listed.extend(network);
    }
    Networks { listed: Some(listed), ..Networks::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(networks: &[&str]) -> Networks {
        let mut check = Check::default();
        let networks =
            super::networks(Some(networks.iter().map(|network| (*network).to_owned()).collect()), &mut check);
        assert_eq!(check.into_errors(), []);
        networks
    }

    #[test]
    fn metadata_services_are_no_engines_unless_listed() {
        let metadata = [
            "169.254.169.254:80",
            "[fe80::1]:80",
            "[::ffff:169.254.169.254]:80",
            "[fd00:ec2::254]:80",
            "100.100.100.200:80",
            "168.63.129.16:80",
        ];
        let networks = Networks::default();
        assert_eq!(networks.refused.len(), UNLESS_LISTED.len());
        for address in metadata.map(|address| address.parse().unwrap()) {
            assert!(!networks.permit(address), "{address}");
        }
        for address in ["10.0.0.1:80", "127.0.0.1:80", "[::1]:80", "[fd00::1]:80", "203.0.113.1:80", "100.64.0.1:80"] {
            assert!(networks.permit(address.parse().unwrap()), "{address}");
        }
        assert!(listed(&["169.254.0.0/16"]).permit("169.254.1.1:80".parse().unwrap()));
    }

    #[test]
    fn only_what_is_listed_is_permitted_and_only_hosts() {
        let networks = listed(&["10.0.0.0/8", "fd00::/8"]);
        for (address, permitted) in [
            ("10.255.255.255:80", true),
            ("[::ffff:10.1.2.3]:80", true),
            ("[fd00::1]:80", true),
            ("11.0.0.1:80", false),
            ("127.0.0.1:80", false),
            ("[::1]:80", false),
            ("10.0.0.1:0", false),
        ] {
            assert_eq!(networks.permit(address.parse().unwrap()), permitted, "{address}");
        }
        assert!(!listed(&["0.0.0.0/0", "::/0"]).permit("224.0.0.1:80".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_is_named() {
        let mut check = Check::default();
        let raw = ["10.0.0.1/8", "10.0.0.0/33", "10.0.0.1", "all"].map(str::to_owned).to_vec();
        super::networks(Some(raw), &mut check);
        let errors = check.into_errors();
        assert_eq!(errors.len(), 4, "{errors:?}");
        assert!(errors[3].to_string().starts_with("networks[3] is \"all\": expected a network such as"), "{errors:?}");
        let mut check = Check::default();
        super::networks(Some(Vec::new()), &mut check);
        assert_eq!(check.into_errors().len(), 1);
    }
}
