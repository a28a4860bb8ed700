//! The three resource types served here.

use serde::Serialize;

/// A resource type, in the order in which changes go out (make before break).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum ResourceType {
    /// Clusters (CDS): one per pool.
    #[serde(rename = "cds")]
    Clusters,
    /// Endpoints (EDS): one assignment per cluster.
    #[serde(rename = "eds")]
    Endpoints,
    /// Extension configuration (ECDS): the filter with its snapshot.
    #[serde(rename = "ecds")]
    Extensions,
}

impl ResourceType {
    /// All of them, in sending order.
    pub const ALL: [ResourceType; 3] = [ResourceType::Clusters, ResourceType::Endpoints, ResourceType::Extensions];

    /// The protobuf type URL.
    #[must_use]
    pub fn type_url(self) -> &'static str {
        match self {
            ResourceType::Clusters => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            ResourceType::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            ResourceType::Extensions => "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        }
    }

    /// The type with this URL, unless it is one that is not served here.
    #[must_use]
    pub fn from_type_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == url)
    }

    /// The abbreviation used in logs and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ResourceType::Clusters => "cds",
            ResourceType::Endpoints => "eds",
            ResourceType::Extensions => "ecds",
        }
    }
}

impl std::fmt::Display for ResourceType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
