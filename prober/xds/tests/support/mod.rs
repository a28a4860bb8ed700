//! A real Envoy, an xDS server, and engines that answer with what they were asked.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weighbridge_xds::{EnvoyStatus, FilterSource, XdsServer};

/// How long anything may take before a test gives up.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Polls until the condition holds.
pub(crate) async fn until<F: AsyncFnMut() -> Result<bool>>(what: &str, mut holds: F) -> Result<()> {
    let start = Instant::now();
    while !holds().await.with_context(|| what.to_owned())? {
        ensure!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn envoy_binary() -> Result<PathBuf> {
    for variable in ["WEIGHBRIDGE_ENVOY", "ENVOY_PATH"] {
        if let Some(path) = std::env::var_os(variable) {
            return Ok(path.into());
        }
    }
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools");
    let places = ["bin/envoy", "venv/bin/envoy"].map(|place| tools.join(place));
    let found = places.iter().find(|path| path.exists());
    found.cloned().with_context(|| format!("no Envoy: run scripts/setup or set ENVOY_PATH (looked at {places:?})"))
}

/// An Envoy process; killed on drop, its log shown unless the test [passed](Envoy::passed).
pub(crate) struct Envoy {
    child: Child,
    dir: TempDir,
    pub(crate) admin: SocketAddr,
    passed: bool,
}

impl Envoy {
    pub(crate) async fn start(bootstrap: &Value) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = |name: &str| dir.path().join(name);
        std::fs::write(file("envoy.json"), serde_json::to_vec_pretty(bootstrap)?)?;
        let binary = envoy_binary()?;
        let child = Command::new(&binary)
            .arg("-c")
            .arg(file("envoy.json"))
            .arg("--admin-address-path")
            .arg(file("admin"))
            .args(["--use-dynamic-base-id", "--concurrency", "2", "--log-level", "info"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(file("log"))?)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut envoy = Envoy { child, dir, admin: ([127, 0, 0, 1], 0).into(), passed: false };
        let path = envoy.dir.path().join("admin");
        until("Envoy opens its admin port", async || {
            if let Some(status) = envoy.child.try_wait()? {
                bail!("Envoy ended: {status}");
            }
            let address = std::fs::read_to_string(&path).unwrap_or_default();
            Ok(address.parse().map(|address| envoy.admin = address).is_ok())
        })
        .await?;
        Ok(envoy)
    }

    /// Ends it without showing its log.
    pub(crate) fn passed(mut self) {
        self.passed = true;
    }

    pub(crate) async fn admin(&self, path: &str) -> Result<String> {
        get(self.admin, path, "").await
    }

    /// The value of a counter or gauge.
    pub(crate) async fn stat(&self, name: &str) -> Result<u64> {
        let stats = self.admin("/stats").await?;
        let value = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        Ok(value.map(str::parse).transpose()?.unwrap_or(0))
    }

    /// Waits until `/clusters` shows the text, or no longer does.
    pub(crate) async fn clusters_show(&self, text: &str, shown: bool) -> Result<()> {
        let what = format!("/clusters {} {text}", if shown { "shows" } else { "no longer shows" });
        until(&what, async || Ok(self.admin("/clusters").await?.contains(text) == shown)).await
    }

    pub(crate) async fn gateway(&self) -> Result<SocketAddr> {
        let listeners = self.admin("/listeners").await?;
        let address = listeners.lines().find_map(|line| line.strip_prefix("gateway::"));
        Ok(address.with_context(|| listeners.clone())?.trim().parse()?)
    }

    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        ensure!(Command::new("kill").args([name, &self.child.id().to_string()]).status()?.success());
        Ok(())
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.passed {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("the end of Envoy's log:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// One GET on a connection of its own; the whole response as text. `headers` are whole lines.
pub(crate) async fn get(to: SocketAddr, path: &str, headers: &str) -> Result<String> {
    let mut connection = TcpStream::connect(to).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    tokio::time::timeout(DEADLINE, connection.read_to_end(&mut response)).await??;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

/// An HTTP/1.1 server whose answers carry its name and the request's head. Stops on drop.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Engine {
    pub(crate) async fn start(name: &'static str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        match connection.read_u8().await {
                            Ok(byte) => head.push(byte),
                            Err(_) => return,
                        }
                    }
                    let body = format!("engine {name} got\n{}", String::from_utf8_lossy(&head));
                    let length = body.len();
                    let response =
                        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
                    let _ = connection.write_all(response.as_bytes()).await;
                });
            }
        });
        Ok(Engine { address, task })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An xDS server on a port of its own, with a wasm file that may come and go. Stops on drop.
pub(crate) struct Server {
    pub(crate) xds: XdsServer,
    pub(crate) address: SocketAddr,
    wasm: PathBuf,
    _dir: Arc<TempDir>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start() -> Result<Self> {
        let dir = Arc::new(tempfile::tempdir()?);
        let wasm = dir.path().join("filter.wasm");
        std::fs::write(&wasm, smallest_filter())?;
        Self::listen("127.0.0.1:0".parse()?, wasm, dir).await
    }

    async fn listen(address: SocketAddr, wasm: PathBuf, dir: Arc<TempDir>) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let xds = XdsServer::new(FilterSource { wasm_path: wasm.to_string_lossy().into_owned() });
        let shutdown = CancellationToken::new();
        let (serving, stop) = (xds.clone(), shutdown.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = serving.serve(listener, stop).await {
                eprintln!("{error}");
            }
        });
        Ok(Server { xds, address, wasm, _dir: dir, shutdown, task })
    }

    /// Ends this server and starts one that knows nothing, on the same port and with the same wasm file.
    pub(crate) async fn replace(mut self) -> Result<Self> {
        self.shutdown.cancel();
        (&mut self.task).await?;
        Self::listen(self.address, self.wasm.clone(), Arc::clone(&self._dir)).await
    }

    pub(crate) fn publish(&self, version: u64, pools: &[(&str, &[SocketAddr])]) -> Result<()> {
        self.publish_weighted(version, 1.0, pools)
    }

    pub(crate) fn publish_weighted(&self, version: u64, weight: f64, pools: &[(&str, &[SocketAddr])]) -> Result<()> {
        let endpoint = |(nth, address): (usize, &SocketAddr)| json!({"id": format!("e{nth}"), "address": address.to_string(), "weight": weight});
        let pool = |(name, addresses): &(&str, &[SocketAddr])| {
            let endpoints: Vec<_> = addresses.iter().enumerate().map(endpoint).collect();
            json!({"name": name, "models": [name], "endpoints": endpoints})
        };
        let pools: Vec<_> = pools.iter().map(pool).collect();
        let snapshot = serde_json::from_value(json!({"format": 1, "version": version, "pools": pools}))?;
        Ok(self.xds.try_publish(&snapshot)?)
    }

    pub(crate) async fn applied(&self, version: u64) -> Result<()> {
        ensure!(self.xds.wait_applied(version, DEADLINE).await, "not applied: {:#?}", self.xds.envoys());
        Ok(())
    }

    /// Waits until the only Envoy is in the state asked for, and returns it.
    pub(crate) async fn envoy(&self, what: &str, holds: impl Fn(&EnvoyStatus) -> bool) -> Result<EnvoyStatus> {
        let only = || self.xds.envoys().into_iter().next();
        until(what, async || Ok(only().is_some_and(|envoy| holds(&envoy))))
            .await
            .with_context(|| format!("{:#?}", self.xds.envoys()))?;
        only().context("it was there")
    }

    pub(crate) fn hide_wasm(&self) -> Result<()> {
        Ok(std::fs::rename(&self.wasm, self.wasm.with_extension("hidden"))?)
    }

    pub(crate) fn show_wasm(&self) -> Result<()> {
        Ok(std::fs::rename(self.wasm.with_extension("hidden"), &self.wasm)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.task.abort();
    }
}

/// A wasm module that Envoy accepts as a filter and that does nothing: a memory, the mark of the ABI it speaks, and an
/// allocator that nobody calls.
fn smallest_filter() -> Vec<u8> {
    let mut exports = vec![3];
    for (name, kind, index) in [("memory", 2, 0), ("proxy_abi_version_0_2_1", 0, 0), ("malloc", 0, 1)] {
        exports.push(name.len() as u8);
        exports.extend(name.bytes());
        exports.extend([kind, index]);
    }
    let sections: [(u8, Vec<u8>); 5] = [
        (1, vec![2, 0x60, 0, 0, 0x60, 1, 0x7f, 1, 0x7f]), // two function types, () -> () and (i32) -> i32
        (3, vec![2, 0, 1]),                               // a function of each
        (5, vec![1, 0, 1]),                               // one memory of a page
        (7, exports),
        (10, vec![2, 2, 0, 0x0b, 4, 0, 0x41, 0, 0x0b]), // their bodies: nothing, and zero
    ];
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    for (id, content) in sections {
        module.extend([id, content.len() as u8]);
        module.extend(content);
    }
    module
}

/// Where an Envoy gets its configuration from.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Streams {
    Ads,
    OnePerType,
}

/// A bootstrap with one listener, `gateway`, whose filter comes by ECDS and whose route follows the cluster header.
pub(crate) fn bootstrap(node: &str, xds: SocketAddr, streams: Streams) -> Value {
    let grpc = json!({"api_type": "GRPC", "transport_api_version": "V3",
        "grpc_services": [{"envoy_grpc": {"cluster_name": "weighbridge-xds"}}]});
    let mut source = json!({"resource_api_version": "V3", "initial_fetch_timeout": "1s"});
    match streams {
        Streams::Ads => source["ads"] = json!({}),
        Streams::OnePerType => source["api_config_source"] = grpc.clone(),
    }
    let mut dynamic = json!({"cds_config": source});
    if streams == Streams::Ads {
        dynamic["ads_config"] = grpc;
    }
    let route =
        json!({"match": {"prefix": "/"}, "route": {"cluster_header": "x-weighbridge-cluster", "timeout": "0s"}});
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "weighbridge", "config_discovery": {
                "config_source": source,
                "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"]}},
            {"name": "envoy.filters.http.router",
             "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]});
    let socket = |address: SocketAddr| json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
    let any_port = socket(([127, 0, 0, 1], 0).into());
    json!({
        "node": {"id": node, "cluster": "test"},
        "admin": {"address": any_port},
        "dynamic_resources": dynamic,
        "static_resources": {
            "listeners": [{"name": "gateway", "address": any_port, "filter_chains": [{"filters": [
                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]}],
            "clusters": [{
                "name": "weighbridge-xds", "type": "STATIC", "connect_timeout": "1s",
                "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {}}}},
                "load_assignment": {"cluster_name": "weighbridge-xds", "endpoints": [
                    {"lb_endpoints": [{"endpoint": {"address": socket(xds)}}]}]}}]}})
}
