//! The prober: measures every endpoint with a warmed burst, keeps pins and results, watches health, and tells every
//! Envoy over xDS.
//!
//! - [`config`]: the file, checked whole.
//! - [`registry`]: the fleet and the snapshot that follows from it (pure).
//! - [`service`]: the one place where the fleet changes and is published.
//! - [`scheduler`], [`probe`]: when to measure, and how.
//! - [`caps`]: how many requests an endpoint may have at once (pure).
//! - [`watch`], [`engine`], [`envoy_admin`]: what engines and Envoys say of themselves.
//! - [`members`], [`registrations`]: who belongs to the fleet.
//! - [`store`]: what survives a restart, and what several probers share; [`follow`], [`peers`]: the other probers.
//! - [`decisions`]: the last decision records, as the Envoys send them.
//! - [`explain`]: a decision record in sentences (pure).
//! - [`api`], [`metrics`]: for people and machines; [`page`]: what browsers load, [`live`], [`series`]: what they watch;
//!   [`alarms`]: what is wrong (pure); [`serve`], [`tls`]: connections; [`mod@line`]: a client's.
//! - [`reload`]: files that may change meanwhile; [`keys`]: those of engines.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod alarms;
pub mod api;
pub mod caps;
pub mod config;
pub mod decisions;
pub mod engine;
pub mod envoy_admin;
pub mod exchange;
pub mod explain;
pub mod follow;
pub mod keys;
pub mod line;
pub mod live;
pub mod members;
pub mod metrics;
pub mod page;
pub mod peers;
pub mod probe;
pub mod registrations;
pub mod registry;
pub mod reload;
pub mod scheduler;
pub mod series;
pub mod serve;
pub mod service;
pub mod store;
pub mod tls;
pub mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use weighbridge_xds::{FilterSource, XdsError, XdsServer};

use crate::config::Config;
use crate::service::Service;
use crate::store::Store;

/// How long a stopping prober waits for answers under way.
const DRAIN: Duration = Duration::from_secs(5);

/// How long Envoys may take to hear the last word of a stopping prober.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A prober that runs.
#[derive(Debug)]
pub struct Running {
    /// Where the REST API listens.
    pub api: SocketAddr,
    /// Where xDS listens.
    pub xds: SocketAddr,
    service: Arc<Service>,
    tasks: JoinSet<anyhow::Result<()>>,
    shutdown: CancellationToken,
    xds_task: JoinHandle<Result<(), XdsError>>,
    xds_shutdown: CancellationToken,
    store_task: JoinHandle<()>,
    store_shutdown: CancellationToken,
}

impl Running {
    /// Waits until it has stopped: after the token that it was given was cancelled, or because a part of it failed.
    ///
    /// # Errors
    /// What failed.
    pub async fn stopped(mut self) -> anyhow::Result<()> {
        let mut result = Ok(());
        loop {
            let done = tokio::select! {
                done = self.tasks.join_next() => match done {
                    Some(done) => done.context("a task of the prober was lost").flatten(),
                    None => break,
                },
                // xDS is to outlive the others; when it ends, it has failed.
                done = &mut self.xds_task, if !self.xds_shutdown.is_cancelled() => {
                    self.xds_shutdown.cancel();
                    done.context("xDS was lost").and_then(|done| done.context("xDS"))
                }
                // So is the store: without its task nothing is stored, and the lease runs out.
                done = &mut self.store_task, if !self.store_shutdown.is_cancelled() => {
                    self.store_shutdown.cancel();
                    done.context("the store was lost").and_then(|()| Err(anyhow!("the store has ended")))
                }
            };
            if done.is_err() && result.is_ok() {
                result = done;
            }
            // One part without the others is of no use.
            self.shutdown.cancel();
        }
        if !self.xds_shutdown.is_cancelled() {
            // A burst that was cut short has put its endpoint back into service: Envoys must hear of it.
            self.service.xds.wait_applied(self.service.version(), LAST_WORD).await;
            self.xds_shutdown.cancel();
            let done = self.xds_task.await.context("xDS was lost").and_then(|done| done.context("xDS"));
            result = result.and(done);
        }
        // The last to go: what the others have changed is to be stored.
        if !self.store_shutdown.is_cancelled() {
            self.store_shutdown.cancel();
            result = result.and(self.store_task.await.context("the store was lost"));
        }
        result
    }
}

/// Starts a prober; it stops when `shutdown` is cancelled.
///
/// # Errors
/// When an address cannot be bound, the store cannot be opened, or the token file cannot be read.
pub async fn run(config: Config, shutdown: CancellationToken) -> anyhow::Result<Running> {
    let guard = config.token_file.as_deref().map(api::Guard::read).transpose()?.map(Arc::new);
    let tls = |field, files: &Option<config::Tls>, alpn| {
        files.as_ref().map(|files| tls::Terminator::read(field, files, alpn)).transpose()
    };
    let api_tls = tls("api.tls", &config.api_tls, b"http/1.1")?.map(Arc::new);
    let xds_tls = tls("xds.tls", &config.xds_tls, b"h2")?.map(Arc::new);
    if let Some(warning) = config.warning() {
        tracing::warn!("{warning}");
    }
    let mut config = config;
    config.filter.reports_token = guard.as_ref().map(|guard| guard.for_reports()).unwrap_or_default();
    let store = Store::open(&config.store).await?;
    let memory = store.memory();
    let wasm = std::path::absolute(&config.wasm).context("filter.wasm")?;
    let xds = XdsServer::new(FilterSource { wasm_path: wasm.to_string_lossy().into_owned() });
    let service = Service::new(config, xds.clone(), store.clone(), memory)?;
    store.put(service.note(|registry| service.prune(registry)));
    let store_shutdown = CancellationToken::new();
    // A prober that does not come up gives the lease back, too.
    let store_guard = store_shutdown.clone().drop_guard();
    let stop = store_shutdown.clone();
    let store_task = tokio::spawn(async move { store.run(stop).await });
    follow::hear_of_the_lease(&service);
    members::resolve_all(&service).await;
    let bind = |address: SocketAddr, field: &'static str| async move {
        TcpListener::bind(address).await.with_context(|| format!("{field} {address} cannot be bound"))
    };
    let api_listener = bind(service.config.api_listen, "api.listen").await?;
    let xds_listener = bind(service.config.xds_listen, "xds.listen").await?;
    let (api, xds_address) = (api_listener.local_addr()?, xds_listener.local_addr()?);

    let mut tasks = JoinSet::new();
    for pool in &service.config.pools {
        start(&mut tasks, scheduler::run(Arc::clone(&service), pool.wire.name.clone(), shutdown.clone()));
    }
    start(&mut tasks, follow::run(Arc::clone(&service), shutdown.clone()));
    if service.store.is_shared() {
        start(&mut tasks, peers::run(Arc::clone(&service), shutdown.clone()));
    }
    start(&mut tasks, members::run(Arc::clone(&service), shutdown.clone()));
    for url in service.read(|registry| registry.gpus.urls()) {
        start(&mut tasks, watch::gpus(Arc::clone(&service), url, shutdown.clone()));
    }
    start(&mut tasks, live::run(Arc::clone(&service), shutdown.clone()));
    start(&mut tasks, live::sample(Arc::clone(&service), shutdown.clone()));
    start(&mut tasks, watch::averages(Arc::clone(&service), shutdown.clone()));
    let mut files: Vec<Arc<dyn reload::Reload>> = vec![Arc::new(keys::Keys)];
    files.extend(guard.clone().map(|guard| guard as _));
    for terminator in api_tls.iter().chain(&xds_tls) {
        files.push(Arc::clone(terminator) as _);
    }
    service.note_tls(api_tls.iter().chain(&xds_tls).cloned().collect());
    start(&mut tasks, reload::run(Arc::clone(&service), files, shutdown.clone()));
    start(&mut tasks, stay_above(Arc::clone(&service), shutdown.clone()));
    let xds_shutdown = CancellationToken::new();
    let (serving, stop) = (xds.clone(), xds_shutdown.clone());
    let xds_task = tokio::spawn(async move {
        match xds_tls {
            None => serving.serve(xds_listener, stop).await,
            Some(tls) => {
                let incoming = ReceiverStream::new(tls::incoming(xds_listener, tls, stop.clone()));
                serving.serve_secured(incoming, stop).await
            }
        }
    });
    let router = api::router(Arc::clone(&service), guard.clone());
    let stop = shutdown.clone();
    tasks.spawn(async move {
        let serve = serve::run(api_listener, router, api_tls, serve::Bounds::default(), stop.clone());
        tokio::select! {
            () = serve => {}
            () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await } => {}
        }
        Ok(())
    });
    store_guard.disarm();
    Ok(Running { api, xds: xds_address, service, tasks, shutdown, xds_task, xds_shutdown, store_task, store_shutdown })
}

/// Starts a part that ends by itself only at shutdown, and cannot fail.
fn start(tasks: &mut JoinSet<anyhow::Result<()>>, part: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(async move {
        part.await;
        Ok(())
    });
}

/// An Envoy that holds a higher version (of another prober, or from before the store was lost) would ignore ours.
async fn stay_above(service: Arc<Service>, shutdown: CancellationToken) {
    let mut changes = service.xds.changes();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        if service.xds.highest_seen_version() > service.version() {
            service.change(|_| ());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_prober_whose_store_is_lost_stops_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let config = serde_json::json!({
            "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "store": {"path": dir.path().join("s.redb")},
            "pools": [{"name": "p", "models": ["m"]}],
        });
        let config = Config::parse(&config.to_string()).unwrap();
        let running = run(config, CancellationToken::new()).await.unwrap();
        running.store_task.abort();
        let stopped = tokio::time::timeout(Duration::from_secs(20), running.stopped()).await;
        let error = stopped.expect("it goes on without its store").unwrap_err();
        assert!(error.to_string().contains("the store was lost"), "{error:#}");
    }
}
