//! What of an Envoy configuration is ours: where the filter, its routes, the clusters of pools and those of the prober are.

use std::borrow::Cow;

use serde_json::Value;
use weighbridge_bootstrap::{CLUSTER_HEADER, FILTER, PROBER_CLUSTER, XDS_CLUSTER};

use super::Expected;
use super::document::STRUCT;
use super::place::Place;

/// The header that names the hosts.
pub const HOST_HEADER: &str = "x-weighbridge-host";
const MANAGER: &str = "http_connection_manager.v3.HttpConnectionManager";
const WASM: &str = "wasm.v3.Wasm";

/// A route that leads where the filter says.
#[derive(Debug, Clone)]
pub struct Route<'a> {
    /// The route itself.
    pub at: Place<'a>,
    /// Its action.
    pub action: Place<'a>,
    /// The retry policy that counts: its own, else the virtual host's.
    pub retries: Place<'a>,
    /// The client wants one attempt at most.
    pub once: bool,
    /// Its limit of bodies, or where one would stand.
    pub body_limit: Place<'a>,
    /// What may take a header away again: this route, its virtual host, the whole table.
    pub levels: Vec<Place<'a>>,
}

/// An `http_connection_manager` that has the filter, or the parts for one.
#[derive(Debug, Clone)]
pub struct Manager<'a> {
    /// Its settings.
    pub at: Place<'a>,
    /// The listener, where it is known.
    pub listener: Option<Place<'a>>,
    /// All HTTP filters.
    pub filters: Vec<Place<'a>>,
    /// Which of them is ours.
    pub ours: usize,
    /// Our routes.
    pub routes: Vec<Route<'a>>,
    /// Where routes come from.
    pub routing: Routing,
}

/// Where the routes of a manager come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// They stand there.
    Here,
    /// Over RDS or SRDS.
    Elsewhere,
    /// A fragment says nothing of them.
    Unsaid,
}

/// An Envoy configuration as far as it concerns us.
#[derive(Debug)]
pub struct Wiring<'a> {
    /// All of it.
    pub root: Place<'a>,
    /// Parts that are to be put into another one: what is not there may be elsewhere.
    pub fragment: bool,
    /// What the prober's configuration says.
    pub expected: &'a Expected,
    /// Those that have the filter.
    pub managers: Vec<Manager<'a>>,
    /// All clusters.
    pub clusters: Vec<Place<'a>>,
    /// Logs of attempts, as the router has them.
    pub attempts: Vec<Place<'a>>,
    /// The static snapshots of the filters.
    pub snapshots: Vec<StaticSnapshot<'a>>,
}

/// What a filter is configured with.
#[derive(Debug)]
pub struct StaticSnapshot<'a> {
    /// Where it stands.
    pub at: Place<'a>,
    /// What the filter gets.
    pub text: Cow<'a, str>,
    /// The same, when it is JSON.
    pub json: Option<Value>,
}

impl<'a> StaticSnapshot<'a> {
    /// A `configuration`: Envoy gives a text as it is, and a Struct as JSON.
    fn of(configuration: Place<'a>) -> Self {
        let at = configuration.get("value");
        let is_struct = configuration.get("@type").text().is_some_and(|kind| kind.ends_with(STRUCT));
        let text = match at.value().filter(|value| is_struct && value.is_object()) {
            Some(object) => Cow::Owned(object.to_string()),
            None => Cow::Borrowed(at.text().unwrap_or_default()),
        };
        let json = serde_json::from_str(&text).ok();
        StaticSnapshot { at, text, json }
    }
}

impl<'a> Wiring<'a> {
    /// Finds it all.
    #[must_use]
    pub fn of(root: &'a Value, fragment: bool, expected: &'a Expected) -> Self {
        let root = Place::root(root);
        let managers: Vec<_> = if fragment { of_fragment(&root) } else { of_listeners(&root) };
        let clusters = list_of_clusters(&root, fragment).items();
        let routers = managers.iter().flat_map(|manager| manager.filters.iter().filter(|filter| is_router(filter)));
        let mut logs: Vec<_> = routers.flat_map(|router| router.typed().get("upstream_log").items()).collect();
        logs.extend(root.get("upstream_log").items());
        let attempts = logs.into_iter().filter(|log| log.is_a("WasmAccessLog")).collect();
        let mut wiring = Wiring { root, fragment, expected, managers, clusters, attempts, snapshots: Vec::new() };
        let given = wiring.filters().map(|wasm| wasm.get("configuration"));
        let given = given.filter(|configuration| configuration.get("value").exists());
        wiring.snapshots = given.map(StaticSnapshot::of).collect();
        wiring
    }

    /// The `config` of each of our filters, as it stands in the file.
    pub fn filters(&self) -> impl Iterator<Item = Place<'a>> + '_ {
        self.managers.iter().map(|manager| wasm(manager.filter()).get("config"))
    }

    /// Every plugin of our VM: filters and logs of attempts.
    pub fn plugins(&self) -> impl Iterator<Item = Place<'a>> + '_ {
        let logs = self.attempts.iter().map(|log| log.typed().get("config"));
        self.filters().filter(Place::exists).chain(logs)
    }

    /// All of our routes.
    pub fn routes(&self) -> impl Iterator<Item = &Route<'a>> {
        self.managers.iter().flat_map(|manager| &manager.routes)
    }

    /// A cluster by its name.
    #[must_use]
    pub fn cluster(&self, name: &str) -> Option<&Place<'a>> {
        self.clusters.iter().find(|cluster| cluster.get("name").is(name))
    }

    /// Where clusters stand, or would.
    #[must_use]
    pub fn list_of_clusters(&self) -> Place<'a> {
        list_of_clusters(&self.root, self.fragment)
    }

    /// Whether a pool of the prober has its cluster here: one of its name, or, where the filter goes by its static snapshot for
    /// good, the one that this names.
    #[must_use]
    pub fn has_cluster_of(&self, pool: &str) -> bool {
        let is_told = self.managers.iter().any(|manager| manager.filter().get("config_discovery").exists());
        let named = |(_, told): (_, &Value)| {
            let of_pool = told.get("name").and_then(Value::as_str) == Some(pool);
            of_pool && cluster_of(told).is_some_and(|name| self.cluster(name).is_some())
        };
        self.cluster(pool).is_some() || (!is_told && self.snapshot_pools().any(named))
    }

    /// The clusters of pools: those that a static snapshot or the prober's configuration names, that come from the prober, and that
    /// look at our header.
    pub fn pools(&self) -> impl Iterator<Item = &Place<'a>> {
        self.clusters.iter().filter(|cluster| {
            let name = cluster.get("name").text().unwrap_or_default();
            let named = self.snapshot_pools().any(|(_, pool)| cluster_of(pool) == Some(name));
            let expected = self.expected.pools.iter().any(|pool| pool == name);
            ![XDS_CLUSTER, PROBER_CLUSTER].contains(&name)
                && (named
                    || expected
                    || leads_to_prober(&cluster.at(&["eds_cluster_config", "eds_config"]))
                    || looks_at_host(cluster))
        })
    }

    /// The pools of static snapshots, and where these are.
    pub fn snapshot_pools(&self) -> impl Iterator<Item = (&Place<'a>, &Value)> {
        self.snapshots.iter().flat_map(|snapshot| {
            let pools = snapshot.json.as_ref().and_then(|json| json.get("pools")?.as_array());
            pools.into_iter().flatten().map(move |pool| (&snapshot.at, pool))
        })
    }

    /// Where Envoy is told to hear the prober: clusters, endpoints, the filter.
    #[must_use]
    pub fn sources(&self) -> Vec<Place<'a>> {
        let discovery = self.managers.iter().map(|manager| manager.filter().at(&["config_discovery", "config_source"]));
        let clusters = self.clusters.iter().map(|cluster| cluster.at(&["eds_cluster_config", "eds_config"]));
        let mut sources: Vec<_> = discovery.chain(clusters).filter(Place::exists).collect();
        let own = |source: &Place<'a>| leads_to_prober(source) || (source.get("ads").exists() && self.ads_is_ours());
        sources.push(self.root.at(&["dynamic_resources", "cds_config"]));
        sources.retain(|source| source.exists() && own(source));
        sources
    }

    /// The services that are asked for what the prober tells.
    #[must_use]
    pub fn services(&self) -> Vec<Place<'a>> {
        let mut services = if self.ads_is_ours() { self.ads() } else { Vec::new() };
        for source in self.sources() {
            services.extend(source.at(&["api_config_source", "grpc_services"]).items());
        }
        services
    }

    fn ads(&self) -> Vec<Place<'a>> {
        self.root.at(&["dynamic_resources", "ads_config", "grpc_services"]).items()
    }

    /// Whether Envoy's ADS is the prober: one of its services leads to a cluster whose name begins with `weighbridge`.
    #[must_use]
    pub fn ads_is_ours(&self) -> bool {
        self.ads().iter().any(is_of_prober)
    }

    /// Whether this kind of resource (`cds` or `lds`) comes from somewhere, whoever that is.
    #[must_use]
    pub fn comes_over(&self, kind: &str) -> bool {
        let dynamic = self.root.get("dynamic_resources");
        ["config", "resources_locator"].iter().any(|source| dynamic.get(&format!("{kind}_{source}")).exists())
    }

    /// Whether clusters come from the prober.
    #[must_use]
    pub fn clusters_are_told(&self) -> bool {
        let cds = self.root.at(&["dynamic_resources", "cds_config"]);
        leads_to_prober(&cds) || (cds.get("ads").exists() && self.ads_is_ours())
    }
}

impl<'a> Manager<'a> {
    /// Our filter.
    #[must_use]
    pub fn filter(&self) -> &Place<'a> {
        // `ours` was found in this list.
        self.filters.get(self.ours).unwrap_or(&self.at)
    }
}

/// The `Wasm` message of a filter, wherever it stands.
#[must_use]
pub fn wasm<'a>(filter: &Place<'a>) -> Place<'a> {
    let discovery = filter.get("config_discovery");
    if discovery.exists() { discovery.get("default_config") } else { filter.typed() }
}

/// Whether a filter is the router.
#[must_use]
pub fn is_router(filter: &Place<'_>) -> bool {
    filter.is_a("router.v3.Router") || filter.get("name").is("envoy.filters.http.router")
}

fn list_of_clusters<'a>(root: &Place<'a>, fragment: bool) -> Place<'a> {
    if fragment { root.get("clusters") } else { root.at(&["static_resources", "clusters"]) }
}

/// The cluster that a pool of a snapshot names.
#[must_use]
pub fn cluster_of(pool: &Value) -> Option<&str> {
    pool.get("cluster").or_else(|| pool.get("name"))?.as_str()
}

/// The override_host policy of a cluster; empty where it has none.
#[must_use]
pub fn override_host<'a>(cluster: &Place<'a>) -> Place<'a> {
    let policies = cluster.at(&["load_balancing_policy", "policies"]);
    let policies = policies.items().into_iter().map(|policy| policy.get("typed_extension_config"));
    let found = policies.into_iter().find(|policy| policy.is_a("override_host.v3.OverrideHost"));
    found.map_or_else(|| cluster.at(&["load_balancing_policy", "override_host"]), |policy| policy.typed())
}

/// HTTP filters and options of a cluster.
#[must_use]
pub fn http_options<'a>(cluster: &Place<'a>) -> Place<'a> {
    cluster.at(&["typed_extension_protocol_options", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"])
}

fn looks_at_host(cluster: &Place<'_>) -> bool {
    let sources = override_host(cluster).get("override_host_sources").items();
    let ours = |name: &str| name.to_ascii_lowercase().starts_with("x-weighbridge-");
    sources.iter().any(|source| source.get("header").text().is_some_and(ours))
}

fn is_of_prober(service: &Place<'_>) -> bool {
    service.at(&["envoy_grpc", "cluster_name"]).text().is_some_and(|name| name.starts_with("weighbridge"))
}

fn leads_to_prober(source: &Place<'_>) -> bool {
    source.at(&["api_config_source", "grpc_services"]).items().iter().any(is_of_prober)
}

/// Whether this HTTP filter is ours: called so, or running our module.
fn is_ours(filter: &Place<'_>) -> bool {
    let config = wasm(filter).get("config");
    let called = config.get("root_id").is(FILTER) || config.at(&["vm_config", "vm_id"]).is(FILTER);
    let module = config.at(&["vm_config", "code", "local", "filename"]);
    let module = module.text().is_some_and(|name| name.ends_with("weighbridge.wasm"));
    let named = filter.get("name").is(FILTER) && (filter.get("config_discovery").exists() || filter.is_a(WASM));
    named || called || module
}

fn of_listeners<'a>(root: &Place<'a>) -> Vec<Manager<'a>> {
    let mut managers = Vec::new();
    for listener in root.at(&["static_resources", "listeners"]).items() {
        let mut chains = listener.get("filter_chains").items();
        chains.push(listener.get("default_filter_chain"));
        for filter in chains.iter().flat_map(|chain| chain.get("filters").items()) {
            if filter.is_a(MANAGER) {
                managers.extend(manager(filter.typed(), Some(&listener)));
            }
        }
    }
    managers
}

fn manager<'a>(at: Place<'a>, listener: Option<&Place<'a>>) -> Option<Manager<'a>> {
    let filters = at.get("http_filters").items();
    let ours = filters.iter().position(is_ours)?;
    let table = at.get("route_config");
    let routing = if table.exists() { Routing::Here } else { Routing::Elsewhere };
    let mut routes = Vec::new();
    for host in table.get("virtual_hosts").items() {
        let above = [host.clone(), table.clone()];
        routes.extend(host.get("routes").items().into_iter().filter_map(|at| route(at, &above)));
    }
    Some(Manager { at, listener: listener.cloned(), filters, ours, routes, routing })
}

/// The parts of the snippet, as if they were put where they belong.
fn of_fragment<'a>(root: &Place<'a>) -> Vec<Manager<'a>> {
    let filters = root.get("http_filters").items();
    let Some(ours) = filters.iter().position(is_ours) else { return Vec::new() };
    let listed = root.get("routes");
    let routes = listed.items().into_iter().filter_map(|at| route(at, &[])).collect();
    let routing = if listed.exists() { Routing::Here } else { Routing::Unsaid };
    vec![Manager { at: root.clone(), listener: None, filters, ours, routes, routing }]
}

fn route<'a>(at: Place<'a>, above: &[Place<'a>]) -> Option<Route<'a>> {
    let action = at.get("route");
    if !action.get("cluster_header").is_header(CLUSTER_HEADER) {
        return None;
    }
    let inherited = above.first().map(|host| host.get("retry_policy")).filter(Place::exists);
    let own = action.get("retry_policy");
    let retries = if own.exists() { own } else { inherited.unwrap_or(own) };
    let matched = at.at(&["match", "headers"]).items();
    let once = matched.iter().any(|header| header.get("name").is_header("x-weighbridge-retry"));
    let limit = |place: &Place<'a>| place.get("request_body_buffer_limit");
    let inherited = above.first().map(limit).filter(Place::exists);
    let body_limit = if limit(&at).exists() { limit(&at) } else { inherited.unwrap_or_else(|| limit(&at)) };
    let levels = [at.clone()].into_iter().chain(above.iter().cloned()).collect();
    Some(Route { at, action, retries, once, body_limit, levels })
}
