//! The gRPC side against a plain client: what is refused, and how streams end.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_client::EndpointDiscoveryServiceClient;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, Status, Streaming};
use weighbridge_routing::snapshot::wire;
use weighbridge_xds::{FilterSource, ResourceType, XdsServer};

const DEADLINE: Duration = Duration::from_secs(10);

struct Server {
    xds: XdsServer,
    url: String,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    _stop: DropGuard,
}

async fn server() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let xds = XdsServer::new(FilterSource { wasm_path: "w.wasm".into() });
    let shutdown = CancellationToken::new();
    let (serving, stop) = (xds.clone(), shutdown.clone());
    let task = tokio::spawn(async move { serving.serve(listener, stop).await.unwrap() });
    Server { xds, url, task, _stop: shutdown.clone().drop_guard(), shutdown }
}

fn snapshot(version: u64, address: &str) -> Arc<wire::Snapshot> {
    let value = json!({"format": 1, "version": version, "pools": [
        {"name": "a", "models": ["m"], "endpoints": [{"id": "e", "address": address, "weight": 1.0}]}]});
    Arc::new(serde_json::from_value(value).unwrap())
}

fn request(kind: ResourceType, node: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        node: Some(Node { id: node.into(), ..Default::default() }),
        type_url: kind.type_url().into(),
        ..Default::default()
    }
}

/// Opens an aggregated stream with this first request.
async fn open(url: &str, first: DiscoveryRequest) -> (mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>) {
    let (requests, outbound) = mpsc::channel(4);
    requests.send(first).await.unwrap();
    let mut client = AggregatedDiscoveryServiceClient::connect(url.to_owned()).await.unwrap();
    let responses = client.stream_aggregated_resources(ReceiverStream::new(outbound)).await.unwrap().into_inner();
    (requests, responses)
}

async fn next(responses: &mut Streaming<DiscoveryResponse>) -> Result<Option<DiscoveryResponse>, Status> {
    tokio::time::timeout(DEADLINE, responses.message()).await.unwrap()
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_served_leaves_the_current_one() {
    let server = server().await;
    assert_eq!(server.xds.published_version(), None);
    assert!(!server.xds.wait_applied(1, Duration::ZERO).await, "nothing is published");
    server.xds.publish(snapshot(5, "10.0.0.1:80"));
    server.xds.publish(snapshot(6, "gpu:80"));
    server.xds.publish(snapshot(4, "10.0.0.1:80"));
    assert_eq!(server.xds.published_version(), Some(5));
    assert!(server.xds.wait_applied(5, Duration::ZERO).await, "there is no Envoy to wait for");
    assert!(!server.xds.all_acked(), "there is no Envoy at all");
}

#[tokio::test]
async fn delta_streams_are_not_served() {
    let server = server().await;
    let mut client = AggregatedDiscoveryServiceClient::connect(server.url.clone()).await.unwrap();
    let answer = client.delta_aggregated_resources(tokio_stream::empty::<DeltaDiscoveryRequest>()).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
    let mut client = EndpointDiscoveryServiceClient::connect(server.url.clone()).await.unwrap();
    let answer = client.fetch_endpoints(request(ResourceType::Endpoints, "n")).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_stream_without_a_node_or_of_the_wrong_type_ends() {
    let server = server().await;
    let (_requests, mut responses) = open(&server.url, request(ResourceType::Clusters, "")).await;
    assert_eq!(next(&mut responses).await.unwrap_err().code(), Code::InvalidArgument);

    let mut client = EndpointDiscoveryServiceClient::connect(server.url.clone()).await.unwrap();
    let wrong = tokio_stream::iter([request(ResourceType::Clusters, "n")]);
    let mut responses = client.stream_endpoints(wrong).await.unwrap().into_inner();
    let status = next(&mut responses).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("ClusterLoadAssignment"), "{status}");
}

#[tokio::test]
async fn a_client_that_comes_first_is_served_when_there_is_something() {
    let server = server().await;
    let (_requests, mut responses) = open(&server.url, request(ResourceType::Clusters, "early")).await;
    server.xds.publish(snapshot(5, "10.0.0.1:80"));
    let response = next(&mut responses).await.unwrap().unwrap();
    assert_eq!((response.version_info.as_str(), response.resources.len()), ("5", 1));
}

#[tokio::test]
async fn a_shutdown_ends_streams_and_then_the_server() {
    let server = server().await;
    server.xds.publish(snapshot(5, "10.0.0.1:80"));
    let (_requests, mut responses) = open(&server.url, request(ResourceType::Clusters, "n")).await;
    next(&mut responses).await.unwrap().unwrap();
    server.shutdown.cancel();
    assert_eq!(next(&mut responses).await.unwrap(), None);
    tokio::time::timeout(DEADLINE, server.task).await.unwrap().unwrap();
    assert!(server.xds.envoys().iter().all(|envoy| !envoy.connected));
}
