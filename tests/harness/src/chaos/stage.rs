//! The whole system on one machine: engines in processes of their own, some behind a wire that can be cut, a prober with
//! its store, and an Envoy that knows nothing but the prober. Everything comes back where it was.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fault::{EngineProcess, EngineSpec, Proxy, ReservedPort};
use crate::snapshot::{pool, snapshot};
use crate::{Envoy, EnvoyOptions, ProberProcess, RedisServer, artifacts, eventually};

/// How long anything may take to come up. Generous: two cores do all this.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// The request header that names a request to the ledger, and its field in the access log.
pub const ID_HEADER: &str = "x-chaos-id";

/// One engine of the stage.
#[derive(Debug, Clone)]
pub struct Member {
    /// What to start; its model is the name of its pool.
    pub spec: EngineSpec,
    /// The most requests that the gateway may send there at once; `None`: as the weight says.
    pub cap: Option<u32>,
    /// Behind a [`Proxy`].
    pub wired: bool,
    /// Only started: the prober has not heard of it.
    pub spare: bool,
}

/// Where the prober keeps things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// The embedded store.
    File,
    /// A Redis of its own.
    Redis,
}

/// What to start.
#[derive(Debug)]
pub struct StageOptions {
    /// A program that takes `engine` and the options of `engine-sim`.
    pub engine_program: PathBuf,
    /// The engines.
    pub members: Vec<Member>,
    /// The store.
    pub store: StoreKind,
    /// Envoy's worker threads.
    pub workers: u32,
    /// With the filter that panics on request.
    pub panics: bool,
    /// Changes to the prober's configuration, top-level fields.
    pub prober: Value,
    /// Fields of every pool, such as `admission`.
    pub pool: Value,
    /// Only requests that ended badly are in the access log.
    pub log_failures_only: bool,
}

/// A running engine with its wire.
#[derive(Debug)]
pub struct Engine {
    /// The process.
    pub process: EngineProcess,
    /// Its wire, if it can be cut.
    pub wire: Option<Proxy>,
    /// How it was started.
    pub member: Member,
}

impl Engine {
    /// Where the gateway reaches it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.wire.as_ref().map_or(self.process.address(), Proxy::address)
    }

    /// Its id and name.
    #[must_use]
    pub fn id(&self) -> &str {
        self.process.name()
    }

    /// Its pool.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.member.spec.model
    }
}

/// A running stage; dropped, everything dies.
#[derive(Debug)]
pub struct Stage {
    /// The engines, in the order of the options.
    pub engines: Vec<Engine>,
    /// Gone while it is killed.
    pub prober: Option<ProberProcess>,
    /// Gone while it is killed.
    pub envoy: Option<Envoy>,
    /// Where the store is one.
    pub redis: Option<RedisServer>,
    /// Where clients send.
    pub gateway: SocketAddr,
    options: StageOptions,
    config: Value,
    admin: SocketAddr,
    dir: TempDir,
    _ports: Vec<ReservedPort>,
}

impl Stage {
    /// Starts everything, and waits until all endpoints are measured and Envoy has them.
    ///
    /// # Errors
    /// When a part does not come up.
    pub async fn start(options: StageOptions) -> Result<Self> {
        let ports = (0..4).map(|_| ReservedPort::any()).collect::<std::io::Result<Vec<_>>>()?;
        let at = |nth: usize| ports[nth].address();
        let mut engines = Vec::new();
        for member in &options.members {
            let process = EngineProcess::start(&options.engine_program, member.spec.clone()).await?;
            let wire = if member.wired { Some(Proxy::start(process.address()).await?) } else { None };
            engines.push(Engine { process, wire, member: member.clone() });
        }
        let redis = match options.store {
            StoreKind::File => None,
            StoreKind::Redis => Some(RedisServer::start().await?),
        };
        let mut config = json!({
            "api": {"listen": at(0).to_string()},
            "xds": {"listen": at(1).to_string()},
            "filter": {"wasm": wasm(&options)?, "client_headers": ["explain"]},
            "store": match &redis { None => json!({"path": STORE}), Some(redis) => json!({"redis": redis.url()}) },
            "probe": {"concurrency": 4, "tokens": 16, "prefill_tokens": 0},
            "envoy_admin": [format!("http://{}", at(3))],
            "pools": pools(&engines, &options.pool),
        });
        for (field, value) in options.prober.as_object().into_iter().flatten() {
            config[field] = value.clone();
        }
        let dir = TempDir::with_prefix("weighbridge-chaos-")?;
        let (prober, envoy) = (None, None);
        let (gateway, admin) = (at(2), at(3));
        let mut stage = Self { engines, prober, envoy, redis, gateway, options, config, admin, dir, _ports: ports };
        stage.start_prober().await?;
        stage.start_envoy().await?;
        stage.prober()?.ready(DEADLINE).await?;
        stage.applied().await?;
        Ok(stage)
    }

    /// Starts the prober where it was.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_prober(&mut self) -> Result<()> {
        self.prober = Some(ProberProcess::start_confined(&self.config.to_string(), self.dir.path()).await?);
        Ok(())
    }

    /// Starts Envoy where it was.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_envoy(&mut self) -> Result<()> {
        let prober = self.prober()?;
        let pools = self.pools().into_iter().map(|name| pool(name, Vec::new())).collect();
        let failures_only = self.options.log_failures_only;
        let envoy = Envoy::start(EnvoyOptions {
            concurrency: self.options.workers,
            gateway: self.gateway,
            admin: self.admin,
            snapshot: Some(snapshot(pools)),
            prober: Some(prober.api()),
            wasm: Some(wasm(&self.options)?),
            edit: Some(Box::new(move |config| name_requests(config, failures_only))),
            ..EnvoyOptions::with_xds(prober.xds())
        });
        self.envoy = Some(envoy.await?);
        Ok(())
    }

    /// The prober, which must run.
    ///
    /// # Errors
    /// When it has been killed.
    pub fn prober(&self) -> Result<&ProberProcess> {
        self.prober.as_ref().context("the prober has been killed")
    }

    /// Envoy, which must run.
    ///
    /// # Errors
    /// When it has been killed.
    pub fn envoy(&self) -> Result<&Envoy> {
        self.envoy.as_ref().context("Envoy has been killed")
    }

    /// Names of the pools, sorted.
    #[must_use]
    pub fn pools(&self) -> Vec<&str> {
        let mut pools: Vec<_> = self.engines.iter().map(Engine::pool).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// The engine of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn engine(&mut self, name: &str) -> Result<&mut Engine> {
        self.engines.iter_mut().find(|engine| engine.id() == name).with_context(|| format!("no engine {name}"))
    }

    /// The embedded store's file.
    #[must_use]
    pub fn store_file(&self) -> PathBuf {
        self.dir.path().join(STORE)
    }

    /// Waits until Envoy decides by what the prober last said.
    ///
    /// # Errors
    /// When it does not in time.
    pub async fn applied(&self) -> Result<()> {
        self.prober()?.applied(DEADLINE).await
    }

    /// Waits until every endpoint that the prober knows takes traffic.
    ///
    /// # Errors
    /// When one does not in time.
    pub async fn all_ready(&self) -> Result<()> {
        let prober = self.prober()?;
        eventually("every endpoint is ready", DEADLINE, async || {
            let answer = prober.get("/v1/endpoints").await?;
            let endpoints = answer["endpoints"].as_array().context("no list")?;
            let states: BTreeMap<_, _> =
                endpoints.iter().map(|endpoint| (endpoint["id"].to_string(), &endpoint["state"])).collect();
            ensure!(states.values().all(|state| *state == "ready"), "{states:?}");
            Ok(())
        })
        .await?;
        self.applied().await
    }
}

/// Name of the embedded store's file.
const STORE: &str = "prober.redb";

fn wasm(options: &StageOptions) -> Result<PathBuf> {
    if options.panics { artifacts::fault_wasm() } else { artifacts::wasm() }
}

fn pools(engines: &[Engine], fields: &Value) -> Value {
    let mut pools: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for engine in engines.iter().filter(|engine| !engine.member.spare) {
        let mut endpoint = json!({"id": engine.id(), "address": engine.address()});
        if let Some(cap) = engine.member.cap {
            endpoint["max_in_flight"] = cap.into();
        }
        pools.entry(engine.pool()).or_default().push(endpoint);
    }
    let pools = pools.into_iter().map(|(name, endpoints)| {
        let mut pool = json!({"name": name, "models": [name], "endpoints": endpoints});
        for (field, value) in fields.as_object().into_iter().flatten() {
            pool[field] = value.clone();
        }
        pool
    });
    pools.collect()
}

/// Lets the access log name requests as the clients do, so that both can be compared.
fn name_requests(config: &mut Value, failures_only: bool) {
    let log = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/access_log/0";
    let Some(log) = config.pointer_mut(log) else { return };
    log["typed_config"]["log_format"]["json_format"]["chaos_id"] =
        format!("%REQ({})%", ID_HEADER.to_uppercase()).into();
    if failures_only {
        let bad = json!({"status_code_filter": {"comparison": {"op": "GE", "value":
            {"default_value": 400, "runtime_key": "weighbridge.chaos_log"}}}});
        log["filter"] = json!({"or_filter": {"filters": [bad, {"response_flag_filter": {}}]}});
    }
}
