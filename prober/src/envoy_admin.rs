//! How many requests Envoys have under way at an address: `rq_active` of `/clusters`.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

#[derive(Deserialize)]
struct Clusters {
    #[serde(default)]
    cluster_statuses: Vec<Cluster>,
}

#[derive(Deserialize)]
struct Cluster {
    #[serde(default)]
    host_statuses: Vec<Host>,
}

#[derive(Deserialize)]
struct Host {
    address: Address,
    #[serde(default)]
    stats: Vec<Stat>,
}

#[derive(Deserialize)]
struct Address {
    socket_address: Option<Socket>,
}

#[derive(Deserialize)]
struct Socket {
    address: String,
    port_value: u16,
}

#[derive(Deserialize)]
struct Stat {
    name: String,
    #[serde(default)]
    value: serde_json::Value,
}

/// Sums `rq_active` of an address over the clusters in the answer of `/clusters?format=json`.
///
/// # Errors
/// When it is not that answer.
pub fn active(json: &str, address: SocketAddr) -> Result<u64, serde_json::Error> {
    let clusters: Clusters = serde_json::from_str(json)?;
    let here = |host: &&Host| {
        host.address
            .socket_address
            .as_ref()
            .is_some_and(|socket| socket.port_value == address.port() && socket.address.parse() == Ok(address.ip()))
    };
    let number = |value: &serde_json::Value| {
        value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok())).unwrap_or(0)
    };
    Ok(clusters
        .cluster_statuses
        .iter()
        .flat_map(|cluster| &cluster.host_statuses)
        .filter(here)
        .flat_map(|host| &host.stats)
        .filter(|stat| stat.name == "rq_active")
        .map(|stat| number(&stat.value))
        .sum())
}

/// Asks every Envoy. One that does not answer has no requests under way that we could see, and is skipped.
pub async fn active_everywhere(http: &reqwest::Client, admins: &[String], address: SocketAddr) -> u64 {
    let mut sum = 0;
    for admin in admins {
        let url = format!("{admin}/clusters?format=json");
        let answer = match http.get(&url).timeout(Duration::from_secs(2)).send().await {
            Ok(answer) => answer.text().await,
            Err(error) => Err(error),
        };
        match answer.map(|json| active(&json, address)) {
            Ok(Ok(count)) => sum += count,
            Ok(Err(error)) => tracing::warn!(url, %error, "no list of clusters"),
            Err(error) => tracing::debug!(url, %error, "Envoy's admin interface does not answer"),
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_requests_are_summed_over_clusters() {
        let host = |port: u16, active: &str| {
            format!(
                r#"{{"address":{{"socket_address":{{"address":"10.0.0.1","port_value":{port}}}}},
                    "stats":[{{"type":"GAUGE","name":"rq_active","value":"{active}"}},{{"name":"rq_total","value":"9"}}]}}"#
            )
        };
        let json = format!(
            r#"{{"cluster_statuses":[{{"name":"a","host_statuses":[{},{}]}},{{"host_statuses":[{}]}},{{"name":"c"}}]}}"#,
            host(80, "2"),
            host(81, "5"),
            host(80, "1")
        );
        assert_eq!(active(&json, "10.0.0.1:80".parse().unwrap()).unwrap(), 3);
        assert_eq!(active(&json, "10.0.0.2:80".parse().unwrap()).unwrap(), 0);
        assert!(active("<html>", "10.0.0.2:80".parse().unwrap()).is_err());
    }
}
