//! The gRPC side: four services over one handle. Decisions are in [`crate::stream`], bookkeeping in
//! [`crate::registry`]; this file moves messages.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::cluster::v3::cluster_discovery_service_server::{
    ClusterDiscoveryService, ClusterDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_server::{
    EndpointDiscoveryService, EndpointDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_server::{
    ExtensionConfigDiscoveryService, ExtensionConfigDiscoveryServiceServer,
};
use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpIncoming};
use tonic::{Request, Response, Status, Streaming};
use weighbridge_routing::snapshot::wire;

use crate::registry::{Entry, EnvoyStatus, Registry};
use crate::secured::Secured;
use crate::stream::{Scope, Stream};
use crate::{FilterSource, ResourceError, ResourceSet, ResourceType, Upstreams};

/// How often a silent connection is asked whether it is still there.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How long it may take to answer.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long connections may take to close after a shutdown.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
pub enum XdsError {
    /// The listener or a connection's transport failed.
    #[error("xDS server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

#[derive(Debug)]
struct Shared {
    source: FilterSource,
    current: watch::Sender<Option<Arc<ResourceSet>>>,
    registry: Arc<Registry>,
}

/// The xDS server. A clone is another handle to the same one.
#[derive(Debug, Clone)]
pub struct XdsServer {
    shared: Arc<Shared>,
}

impl XdsServer {
    /// A server with nothing to say yet; Envoys that connect wait for the first snapshot.
    #[must_use]
    pub fn new(source: FilterSource) -> Self {
        XdsServer { shared: Arc::new(Shared { source, current: watch::Sender::new(None), registry: Arc::default() }) }
    }

    /// Makes a snapshot current and pushes it to every stream. One that cannot be served is logged, and the current
    /// one stays; [`XdsServer::try_publish`] says why.
    pub fn publish(&self, snapshot: Arc<wire::Snapshot>) {
        self.publish_with(&snapshot, &Upstreams::default());
    }

    /// The same, with what it takes to speak to engines.
    pub fn publish_with(&self, snapshot: &wire::Snapshot, upstreams: &Upstreams) {
        if let Err(error) = self.try_publish_with(snapshot, upstreams) {
            tracing::error!(version = snapshot.version, %error, "snapshot is not served");
        }
    }

    /// Makes a snapshot current and pushes it to every stream.
    ///
    /// # Errors
    /// When its version is not above the current one, or it cannot be served. The current one stays then.
    pub fn try_publish(&self, snapshot: &wire::Snapshot) -> Result<(), ResourceError> {
        self.try_publish_with(snapshot, &Upstreams::default())
    }

    fn try_publish_with(&self, snapshot: &wire::Snapshot, upstreams: &Upstreams) -> Result<(), ResourceError> {
        let mut result = Ok(());
        self.shared.current.send_if_modified(|current| {
            match ResourceSet::build(snapshot, upstreams, &self.shared.source, current.as_deref()) {
                Ok(set) => {
                    *current = Some(Arc::new(set));
                    true
                }
                Err(error) => {
                    result = Err(error);
                    false
                }
            }
        });
        self.shared.registry.touch();
        result
    }

    /// Version of the current snapshot.
    #[must_use]
    pub fn published_version(&self) -> Option<u64> {
        self.shared.current.borrow().as_ref().map(|set| set.version)
    }

    /// What is known of every Envoy, by node id; those that left come with `connected: false`.
    #[must_use]
    pub fn envoys(&self) -> Vec<EnvoyStatus> {
        self.shared.registry.envoys()
    }

    /// Waits until every connected Envoy that takes the filter from here has ACKed everything of this snapshot or a
    /// later one. False when that has not happened in time. True at once when there is no such Envoy.
    ///
    /// Envoy ACKs from its main thread when it has handed the configuration to its worker threads; each takes it up in
    /// its own event loop, so a busy one may be some milliseconds behind the ACK.
    pub async fn wait_applied(&self, version: u64, timeout: Duration) -> bool {
        let mut changes = self.shared.registry.changes();
        let applied = async {
            while self.published_version() < Some(version) || !self.shared.registry.applied(version) {
                if changes.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(timeout, applied).await.unwrap_or(false)
    }

    /// How many configurations Envoys have refused.
    #[must_use]
    pub fn nacks(&self) -> u64 {
        self.shared.registry.nacks()
    }

    /// The highest version that a client ever named. A snapshot below it would be ignored by filters that hold that
    /// one, so the next version has to exceed it.
    #[must_use]
    pub fn highest_seen_version(&self) -> u64 {
        self.shared.registry.highest_seen()
    }

    /// At least one Envoy is connected, and every connected one has ACKed all it subscribes to, as of the current
    /// snapshot.
    #[must_use]
    pub fn all_acked(&self) -> bool {
        self.published_version().is_some_and(|version| self.shared.registry.all_in_sync_with(version))
    }

    /// Ticks whenever an Envoy comes, goes or answers, or a snapshot is published.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.registry.changes()
    }

    /// Serves until the shutdown, then ends every stream.
    ///
    /// # Errors
    /// When the transport fails.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken) -> Result<(), XdsError> {
        self.serve_on(TcpIncoming::from(listener).with_nodelay(Some(true)), shutdown).await
    }

    /// The same on connections that somebody else has accepted, and secured.
    ///
    /// # Errors
    /// When the transport fails.
    pub async fn serve_secured<S>(
        &self,
        incoming: impl futures::Stream<Item = io::Result<S>> + Send + 'static,
        shutdown: CancellationToken,
    ) -> Result<(), XdsError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.serve_on(incoming.map(|stream| stream.map(Secured)), shutdown).await
    }

    async fn serve_on<S>(
        &self,
        incoming: impl futures::Stream<Item = io::Result<S>> + Send + 'static,
        shutdown: CancellationToken,
    ) -> Result<(), XdsError>
    where
        S: AsyncRead + AsyncWrite + Connected + Send + Unpin + 'static,
    {
        let service = Arc::new(Service { shared: Arc::clone(&self.shared), shutdown: shutdown.clone() });
        let serving = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_service(AggregatedDiscoveryServiceServer::from_arc(Arc::clone(&service)))
            .add_service(ClusterDiscoveryServiceServer::from_arc(Arc::clone(&service)))
            .add_service(EndpointDiscoveryServiceServer::from_arc(Arc::clone(&service)))
            .add_service(ExtensionConfigDiscoveryServiceServer::from_arc(service))
            .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
        let deadline = async {
            shutdown.cancelled().await;
            tokio::time::sleep(DRAIN_DEADLINE).await;
        };
        tokio::select! {
            served = serving => served.map_err(XdsError::from),
            () = deadline => Ok(()),
        }
    }
}

type Responses = ReceiverStream<Result<DiscoveryResponse, Status>>;
type DeltaResponses = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

#[derive(Debug)]
struct Service {
    shared: Arc<Shared>,
    shutdown: CancellationToken,
}

impl Service {
    fn open(&self, scope: Scope, inbound: Streaming<DiscoveryRequest>) -> Response<Responses> {
        let (outbound, responses) = mpsc::channel(4);
        let connection =
            Connection { shared: Arc::clone(&self.shared), stream: Stream::new(scope), entry: None, inbound, outbound };
        // Ends with the client, with the server, or when nobody reads the responses.
        let shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            shutdown.run_until_cancelled(connection.run()).await;
        });
        Response::new(ReceiverStream::new(responses))
    }
}

struct Connection {
    shared: Arc<Shared>,
    stream: Stream,
    /// There from the first request on: only that one must carry the node.
    entry: Option<Entry>,
    inbound: Streaming<DiscoveryRequest>,
    outbound: mpsc::Sender<Result<DiscoveryResponse, Status>>,
}

impl Connection {
    async fn run(mut self) {
        let mut sets = self.shared.current.subscribe();
        sets.mark_changed();
        loop {
            let responses = tokio::select! {
                () = self.outbound.closed() => return,
                message = self.inbound.message() => match message {
                    Ok(Some(request)) => self.on_request(&request),
                    // The client is gone; a transport error on the way says no more than that.
                    Ok(None) | Err(_) => return,
                },
                changed = sets.changed() => match changed {
                    Ok(()) => {
                        let set = sets.borrow_and_update().clone();
                        Ok(set.map(|set| self.stream.on_resources(set)).unwrap_or_default())
                    }
                    Err(_) => return,
                },
            };
            if let Some(entry) = &self.entry {
                entry.update(self.stream.status());
            }
            let (responses, end) = match responses {
                Ok(responses) => (responses, None),
                Err(status) => (Vec::new(), Some(Err(status))),
            };
            let last = end.is_some();
            for item in responses.into_iter().map(Ok).chain(end) {
                if self.outbound.send(item).await.is_err() {
                    return;
                }
            }
            if last {
                return;
            }
        }
    }

    fn on_request(&mut self, request: &DiscoveryRequest) -> Result<Vec<DiscoveryResponse>, Status> {
        if self.entry.is_none() {
            let (id, cluster) = match &request.node {
                Some(node) => (node.id.as_str(), node.cluster.as_str()),
                None => ("", ""),
            };
            if id.is_empty() {
                return Err(Status::invalid_argument("the first request of a stream must carry node.id"));
            }
            tracing::info!(node = id, cluster, "Envoy connected");
            self.entry = Some(self.shared.registry.connect(id, cluster));
        }
        if let Some(error) = &request.error_detail {
            let node = self.entry.as_ref().map(Entry::node_id);
            let (kind, message) = (&request.type_url, &error.message);
            tracing::warn!(node, kind, message, "Envoy refused a configuration; it keeps its last good one");
        }
        self.stream.on_request(request).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

fn no_delta<T>() -> Result<T, Status> {
    Err(Status::unimplemented("only the state-of-the-world protocol is served: use api_type GRPC"))
}

fn no_fetch<T>() -> Result<T, Status> {
    Err(Status::unimplemented("only streams are served"))
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = Responses;
    type DeltaAggregatedResourcesStream = DeltaResponses;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        Ok(self.open(Scope::Aggregated, request.into_inner()))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<DeltaResponses>, Status> {
        no_delta()
    }
}

#[tonic::async_trait]
impl ClusterDiscoveryService for Service {
    type StreamClustersStream = Responses;
    type DeltaClustersStream = DeltaResponses;

    async fn stream_clusters(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        Ok(self.open(Scope::Only(ResourceType::Clusters), request.into_inner()))
    }

    async fn delta_clusters(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<DeltaResponses>, Status> {
        no_delta()
    }

    async fn fetch_clusters(&self, _: Request<DiscoveryRequest>) -> Result<Response<DiscoveryResponse>, Status> {
        no_fetch()
    }
}

#[tonic::async_trait]
impl EndpointDiscoveryService for Service {
    type StreamEndpointsStream = Responses;
    type DeltaEndpointsStream = DeltaResponses;

    async fn stream_endpoints(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        Ok(self.open(Scope::Only(ResourceType::Endpoints), request.into_inner()))
    }

    async fn delta_endpoints(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<DeltaResponses>, Status> {
        no_delta()
    }

    async fn fetch_endpoints(&self, _: Request<DiscoveryRequest>) -> Result<Response<DiscoveryResponse>, Status> {
        no_fetch()
    }
}

#[tonic::async_trait]
impl ExtensionConfigDiscoveryService for Service {
    type StreamExtensionConfigsStream = Responses;
    type DeltaExtensionConfigsStream = DeltaResponses;

    async fn stream_extension_configs(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        Ok(self.open(Scope::Only(ResourceType::Extensions), request.into_inner()))
    }

    async fn delta_extension_configs(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<DeltaResponses>, Status> {
        no_delta()
    }

    async fn fetch_extension_configs(
        &self,
        _: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        no_fetch()
    }
}
