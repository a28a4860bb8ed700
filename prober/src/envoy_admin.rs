//! How many requests Envoys have under way at an address: `rq_active` of `/clusters`.
//!
//! An Envoy that does not tell is not one that has nothing under way. Where nobody listens there is no Envoy, hence no
//! request; one that is silent in another way (no route, no answer, an answer that is no list) may be serving, and
//! whoever asks has to wait. When it has been silent for 30 s it is taken for gone, so that an Envoy that somebody has
//! switched off, and left in the configuration, does not keep its endpoints from being measured for ever.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::EngineError;

/// How long an Envoy may be silent before it is taken for gone.
const GONE_AFTER: Duration = Duration::from_secs(30);

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

/// The admin interfaces of the Envoys.
#[derive(Debug)]
pub struct Admins {
    http: reqwest::Client,
    envoys: Vec<Admin>,
}

#[derive(Debug)]
struct Admin {
    url: String,
    /// Since when it has not told.
    silent: Mutex<Option<Instant>>,
}

impl Admins {
    /// Those with these base URLs.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(urls: &[String]) -> Result<Self, reqwest::Error> {
        let admin = |url: &String| Admin { url: format!("{url}/clusters?format=json"), silent: Mutex::new(None) };
        Ok(Admins { http: reqwest::Client::builder().no_proxy().build()?, envoys: urls.iter().map(admin).collect() })
    }

    /// Whether there is nobody to ask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.envoys.is_empty()
    }

    /// Whether no Envoy has a request under way at an address, as far as can be known.
    pub async fn idle(&self, address: SocketAddr) -> bool {
        for envoy in &self.envoys {
            if !envoy.idle(&self.http, address).await {
                return false;
            }
        }
        true
    }
}

impl Admin {
    async fn idle(&self, http: &reqwest::Client, address: SocketAddr) -> bool {
        let Admin { url, .. } = self;
        let answer = async {
            let answer = http.get(url).timeout(Duration::from_secs(2)).send().await?;
            answer.error_for_status()?.text().await
        };
        match answer.await.map_err(EngineError::from).map(|json| active(&json, address)) {
            Ok(Ok(count)) => {
                self.spoke();
                return count == 0;
            }
            Err(error @ EngineError::Refused(_)) => {
                tracing::debug!(url, %error, "no Envoy there");
                self.spoke();
                return true;
            }
            Ok(Err(error)) => tracing::warn!(url, %error, "no list of clusters"),
            Err(error) => tracing::warn!(url, %error, "Envoy's admin interface does not answer"),
        }
        self.gone(Instant::now())
    }

    fn spoke(&self) {
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// It did not tell; whether that has been so for long enough.
    fn gone(&self, now: Instant) -> bool {
        let since = *self.silent.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(now);
        now.saturating_duration_since(since) >= GONE_AFTER
    }
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

    #[tokio::test]
    async fn where_nobody_listens_there_is_no_request() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let admins = Admins::new(&[format!("http://{nobody}")]).unwrap();
        assert!(admins.idle("10.0.0.1:80".parse().unwrap()).await);
    }

    #[tokio::test]
    async fn an_envoy_that_does_not_tell_is_waited_for() {
        // Whatever listens here answers nothing that is a list of clusters.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admins = Admins::new(&[format!("http://{}", listener.local_addr().unwrap())]).unwrap();
        let answers = async {
            loop {
                drop(listener.accept().await.unwrap());
            }
        };
        tokio::select! {
            () = answers => {}
            idle = admins.idle("10.0.0.1:80".parse().unwrap()) => assert!(!idle),
        }
        let envoy = &admins.envoys[0];
        let since = envoy.silent.lock().unwrap().unwrap();
        assert!(!envoy.gone(since + GONE_AFTER / 2) && envoy.gone(since + GONE_AFTER));
        envoy.spoke();
        assert!(!envoy.gone(since + GONE_AFTER));
    }
}
