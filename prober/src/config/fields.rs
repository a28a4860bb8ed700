//! Every field that a configuration file may have: its type, the least and the most that it may be, what it means, and the
//! page that explains it. The one table behind the reading of a file ([`super::shape`]), `docs/configuration.md` and the
//! schema for editors ([`super::reference`]). Defaults are not here but in [`super::raw`]; the tests compare the two, and try
//! both ends of every range on the check.

use weighbridge_routing::policy::AnyPolicy;

use super::shape::Kind;

/// A field.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: &'static Kind,
    pub(super) required: bool,
    /// What it means, in Markdown; links are those of a page in `docs/`.
    pub(super) about: &'static str,
    /// What counts where it is left out, of a field that has no default.
    pub(super) otherwise: &'static str,
    /// The least and the most, as one writes them; empty: none but those of its type.
    pub(super) least: &'static str,
    pub(super) most: &'static str,
    /// What else is right, or what is not right between the two.
    pub(super) but: &'static str,
}

const fn field(name: &'static str, kind: &'static Kind, about: &'static str) -> Field {
    Field { name, kind, required: false, about, otherwise: "", least: "", most: "", but: "" }
}

impl Field {
    const fn required(self) -> Self {
        Field { required: true, ..self }
    }

    const fn otherwise(self, otherwise: &'static str) -> Self {
        Field { otherwise, ..self }
    }

    const fn within(self, least: &'static str, most: &'static str) -> Self {
        Field { least, most, ..self }
    }

    const fn but(self, but: &'static str) -> Self {
        Field { but, ..self }
    }

    /// What could stand there instead of something of another type: of a number, its range besides.
    pub(super) fn expected(&self) -> String {
        let (number, least, most) = match self.kind {
            Kind::Count => ("a whole number", "0", "4294967295"),
            Kind::Large => ("a whole number", "0", ""),
            Kind::Number => ("a number", "", ""),
            kind => return kind.expected(),
        };
        let or = |limit: &'static str, of_type: &'static str| if limit.is_empty() { of_type } else { limit };
        let (least, most) = (or(self.least, least), or(self.most, most));
        let mut expected = number.to_owned();
        for (word, limit) in [("from", least), ("to", most)] {
            if !limit.is_empty() {
                expected += &format!(" {word} {limit}");
            }
        }
        match self.but {
            "" => expected,
            or if or.starts_with("or ") => format!("{expected}, {or}"),
            but => format!("{expected} {but}"),
        }
    }
}

/// What to say to somebody who writes a field that others have, and that is not one here for a reason.
pub(super) fn hint(path: &str, name: &str) -> Option<&'static str> {
    let (list, nth) = path.rsplit_once('[')?;
    let of_an_endpoint = list.ends_with("].endpoints") && nth.ends_with(']');
    match name {
        "weight" if of_an_endpoint => Some(
            "weights are measured, and `weighbridge pin ENDPOINT WEIGHT` sets one by hand (`PUT /v1/endpoints/{id}/pin`)",
        ),
        _ => None,
    }
}

const TEXT: &Kind = &Kind::Text;
const DURATION: &Kind = &Kind::Duration;
const SIZE: &Kind = &Kind::Size;
const COUNT: &Kind = &Kind::Count;
const NUMBER: &Kind = &Kind::Number;
const LISTEN: &Kind = &Kind::Listen;
const TEXTS: &Kind = &Kind::List(TEXT);

/// A configuration file.
pub(super) static FILE: Kind = Kind::Section(&[
    field("api", &API, "The REST API and the admin page. [security.md](security.md#the-token) has the token and TLS."),
    field(
        "xds",
        &XDS,
        "Where Envoys hear their clusters, endpoints and snapshots. [security.md](security.md#tls-of-the-prober)",
    ),
    field("filter", &FILTER, "What every filter is told. [requests.md](requests.md#bodies)"),
    field("store", &STORE, "What survives a restart: either a file or a Redis. [store.md](store.md)"),
    field("probe", &PROBE, "How endpoints are measured. [caps.md](caps.md#how-it-is-measured) has the sweep."),
    field("health", &HEALTH, "Who may serve. [health.md](health.md#two-things-must-be-well)"),
    field("drain", &DRAIN, "How long it may take until an endpoint is empty. [health.md](health.md#drain)"),
    field(
        "decisions",
        &DECISIONS,
        "Records of decisions that the prober keeps. [decisions.md](decisions.md#at-the-prober)",
    ),
    field("signals", &SIGNALS, "Load, and how often it is looked at. [signals.md](signals.md)"),
    field(
        "networks",
        TEXTS,
        "Where endpoints may be: networks such as `10.0.0.0/8`, without bits behind the prefix. \
         [security.md](security.md#where-endpoints-may-be)",
    ),
    field(
        "envoy_admin",
        TEXTS,
        "Admin interfaces of every Envoy, as `http://host:port`: before a re-probe they are asked whether the endpoint has \
         anything in flight. [security.md](security.md)",
    ),
    field("pools", &Kind::List(&POOL), "A pool for each model. At least one, at most 256.").required(),
]);

static API: Kind = Kind::Section(&[
    field("listen", LISTEN, "Where it listens. Off loopback, `token_file` is required."),
    field("token_file", TEXT, "File whose first line is the bearer token. Read again as it changes.")
        .otherwise("no token; on loopback only"),
    field("key_dir", TEXT, "Directory of the files that a registration may name as key or authority. [security.md](security.md#tls-and-keys-of-engines)")
        .otherwise("registrations may name none"),
    field("tls", &TLS, "Speaks TLS. [security.md](security.md#tls-of-the-prober)").otherwise("plain text"),
]);

static XDS: Kind = Kind::Section(&[
    field("listen", LISTEN, "Where it listens; not where `api.listen` does, unless the port is 0."),
    field(
        "tls",
        &TLS,
        "Speaks TLS. Off loopback, set it with a `client_ca_file`: Envoys are told the keys of engines.",
    )
    .otherwise("plain text"),
]);

static TLS: Kind = Kind::Section(&[
    field("cert_file", TEXT, "The certificate with its chain in PEM, the own one first. Read again as it changes.")
        .required(),
    field("key_file", TEXT, "Its private key in PEM.").required(),
    field("client_ca_file", TEXT, "Authorities in PEM, one of which must have signed what a client shows.")
        .otherwise("clients need show nothing"),
]);

static FILTER: Kind = Kind::Section(&[
    field(
        "wasm",
        TEXT,
        "The module, as a path that **Envoy** reads; relative to the prober's working directory. [upgrade.md](upgrade.md#a-new-filter)",
    ),
    field("max_body", SIZE, "Largest request body; a larger one is answered 413. Envoy's own limits must allow it: [requests.md](requests.md#larger-bodies).")
        .within("1", ""),
    field(
        "client_headers",
        &Kind::List(&Kind::OneOf(&["priority", "max-wait", "explain"])),
        "Which `x-weighbridge-` request headers of clients count. [admission.md](admission.md#what-clients-may-say)",
    ),
    field("prefix_bytes", SIZE, "How much of a prompt is hashed for prefix affinity; 0: nothing. [affinity.md](affinity.md)"),
]);

static STORE: Kind = Kind::Section(&[
    field("path", TEXT, "The file of this prober alone. Not beside `redis`."),
    field("redis", TEXT, "`redis://[[user]:password@]host[:port][/db]`, or `rediss://` for TLS; for several probers. The password is shown nowhere.")
        .otherwise("the file"),
]);

static PROBE: Kind = Kind::Section(&[
    field("concurrency", COUNT, "Requests at once in a burst.").within("1", "1024"),
    field("tokens", COUNT, "Output tokens of each of them, exactly.").within("1", "65536"),
    field("prefill_tokens", COUNT, "Length of the one long prompt that measures prefill, in tokens; at most half the context window. 0: no such request. [affinity.md](affinity.md#the-allowance)")
        .within("64", "131072")
        .but("or 0"),
    field("interval", DURATION, "How often an endpoint that has nothing in flight is measured again.").within("1s", ""),
    field("keep", DURATION, "How old a result may be that spares an endpoint its burst at registration; same node, model and launch arguments."),
    field("timeout", DURATION, "The longest that one burst, the long prompt, or one step of a sweep may take.").within("100ms", ""),
    field("sweep_max", COUNT, "The most requests at once that a sweep of concurrency tries, for `cap: measured` and `by: curve`. At least `probe.concurrency` where a pool has `policy.by: curve`.")
        .within("1", "4096"),
    field("clamp", &Kind::Bounds, "`[least, most]` of a measured weight. A pin is not clamped.").but("both above 0, at most 10000, and in order"),
]);

static HEALTH: Kind = Kind::Section(&[
    field("path", TEXT, "Where engines answer health checks.")
        .but("begins with `/`, at most 256 printable ASCII characters"),
    field("interval", DURATION, "How often each endpoint is checked; one that does not answer, twice a second.")
        .within("50ms", ""),
    field("timeout", DURATION, "The longest that one check may take.").within("10ms", ""),
    field("unhealthy_after", COUNT, "Failures in a row that take an endpoint out; a refused connection does at once.")
        .within("1", ""),
    field("healthy_after", COUNT, "Successes in a row that bring it back.").within("1", ""),
    field(
        "generate_every",
        DURATION,
        "An engine that has not been seen to generate for so long is asked for one token. 0s: never.",
    )
    .within("100ms", "")
    .but("or 0s"),
    field(
        "generate_timeout",
        DURATION,
        "The longest that this may take; then the endpoint is out, whatever it answers at `path`.",
    )
    .within("100ms", ""),
]);

static DRAIN: Kind = Kind::Section(&[field(
    "deadline",
    DURATION,
    "How long an endpoint may take to become empty: a removed one is forgotten then, a drained one is said to be late.",
)
.within("", "7days")]);

static DECISIONS: Kind = Kind::Section(&[
    field("per_second", COUNT, "Records that each Envoy sends a second; sampled above. 0: none.").within("", "1000"),
    field("keep", COUNT, "Records kept in memory per pool. 0: none.").within("", "10000"),
]);

static SIGNALS: Kind = Kind::Section(&[
    field("interval", DURATION, "How often the engines' metrics are read and filters report their load.")
        .within("20ms", "10s"),
    field("average_over", DURATION, "Time constant of the moving averages. [signals.md](signals.md#moving-averages)")
        .within("1s", "7days"),
    field("dcgm", &Kind::List(&DCGM), "Exporters of GPU figures. [signals.md](signals.md#what-is-read)"),
]);

static DCGM: Kind = Kind::Section(&[
    field("url", TEXT, "Where its metrics are: `http://host:port/path`.").required(),
    field("node", TEXT, "It tells of every endpoint of this node. Either this or `endpoint`.")
        .otherwise("see `endpoint`"),
    field("endpoint", TEXT, "It tells of this endpoint alone; goes before its node.").otherwise("see `node`"),
    field("gpus", TEXTS, "Which of its GPUs, by index or UUID. Empty: all."),
]);

static POOL: Kind = Kind::Section(&[
    field("name", TEXT, "The pool, and the Envoy cluster of its endpoints.")
        .required()
        .but("1 to 64 of `A-Z a-z 0-9 _ -`; does not begin with `weighbridge-` or end with `-static`"),
    field(
        "models",
        TEXTS,
        "The names that clients may ask for; no two pools share one. [requests.md](requests.md#names-of-models)",
    )
    .required()
    .but("at least one, each of 1 to 256 bytes"),
    field("served_model", TEXT, "What the engines call the model; a body that asks for another name is rewritten.")
        .otherwise("the first of `models`")
        .but("1 to 256 bytes"),
    field(
        "adapters",
        TEXTS,
        "Those of `models` that are LoRA adapters: the engines know them by that name, and they are never rewritten.",
    ),
    field("policy", &POLICY, "Which of those that may take a request does. [policies.md](policies.md)"),
    field(
        "affinity",
        &AFFINITY,
        "When to stay with the endpoint that holds a prompt's prefix. [affinity.md](affinity.md#settings)",
    ),
    field(
        "admission",
        &ADMISSION,
        "How many requests an endpoint may have, and what happens beyond. [admission.md](admission.md)",
    ),
    field(
        "passive_health",
        &PASSIVE_HEALTH,
        "Who is out for what requests meet there. [failover.md](failover.md#ejection)",
    ),
    field(
        "endpoints",
        &Kind::List(&ENDPOINT),
        "Those that this file names; others register with `POST /v1/endpoints`. At most 1024.",
    ),
]);

const POLICY_NAME: &Kind = &Kind::OneOf(&AnyPolicy::NAMES);
const CHOICES_ABOUT: &str = "How many distinct endpoints are drawn and compared, or `all`; of `p2c`, `least_pending_tokens` and `least_request`.";

static POLICY: Kind = Kind::Section(&[
    field("name", POLICY_NAME, "The policy. [policies.md](policies.md#when-to-use-which)"),
    field("choices", &Kind::Choices, CHOICES_ABOUT),
    field(
        "by",
        &Kind::Word(&["weight", "curve"]),
        "What `p2c` compares endpoints by: requests per weight, or the speed that the request would get by the measured curve. [policies.md](policies.md#by-curve)",
    )
    .otherwise("`weight`"),
    field("score", &SCORE, "Coefficients of the policy `score`. [policies.md](policies.md#score)").otherwise("all as below"),
    field("shadow", &SHADOW, "A second policy that decides too, is logged and compared, and routes nothing. [policies.md](policies.md#shadow)")
        .otherwise("none"),
    field("canary", &CANARY, "A policy that takes some of the requests. [policies.md](policies.md#canary)").otherwise("none"),
]);

static SHADOW: Kind = Kind::Section(&[
    field("name", POLICY_NAME, "The policy.").required(),
    field("choices", &Kind::Choices, CHOICES_ABOUT),
    field("score", &SCORE, "Its coefficients."),
]);

static CANARY: Kind = Kind::Section(&[
    field("name", POLICY_NAME, "The policy.").required(),
    field("choices", &Kind::Choices, CHOICES_ABOUT),
    field("score", &SCORE, "Its coefficients."),
    field("percent", NUMBER, "Its share of the pool's requests in percent, in steps of 0.01.")
        .required()
        .within("0", "100"),
]);

static SCORE: Kind = Kind::Section(&[
    field("active", NUMBER, "Points for each request in flight.").within("0", "10000"),
    field("queue", NUMBER, "For each request that waits inside the engine.").within("0", "10000"),
    field("latency", NUMBER, "For the candidate that is slowest to its first token; the others in proportion.")
        .within("0", "10000"),
    field("job", NUMBER, "For the candidate at which the request costs most; the others in proportion.")
        .within("0", "10000"),
    field("throughput", NUMBER, "For the fastest in tokens/s, subtracted; the others in proportion.")
        .within("0", "10000"),
    field("kv", NUMBER, "For a full KV cache.").within("0", "10000"),
    field("gpu", NUMBER, "For a busy GPU.").within("0", "10000"),
]);

static AFFINITY: Kind = Kind::Section(&[
    field("enabled", &Kind::Flag, "Whether prefixes matter at all."),
    field(
        "cold",
        &Kind::Word(&["policy", "hash"]),
        "Where a prompt goes whose prefix nobody holds: where the policy says, or by `hash`: the same home at every Envoy.",
    ),
    field(
        "k",
        NUMBER,
        "Factor of what a holder may carry more than the alternative. [affinity.md](affinity.md#the-allowance)",
    )
    .within("0", "1000"),
    field("max_share", NUMBER, "The most of that, as a share of `admission.base_cap`.").within("0", "1"),
    field("kv_tokens", &Kind::Large, "Tokens that a KV cache holds, of engines that do not tell.").within("1", ""),
    field("prefill_tps", NUMBER, "Prefill speed in tokens/s, of endpoints whose own is not measured.").but("above 0"),
]);

static ADMISSION: Kind = Kind::Section(&[
    field("base_cap", COUNT, "In-flight requests per unit of weight.").within("1", ""),
    field(
        "cap",
        &Kind::Word(&["weight", "measured"]),
        "Where caps come from: `base_cap` x weight, or the knee of a sweep of concurrency. [caps.md](caps.md)",
    ),
    field(
        "min_tps",
        NUMBER,
        "Tokens/s that every request keeps at a measured cap; 0: no floor. [caps.md](caps.md#the-knee)",
    )
    .within("0", "10000"),
    field("queue", COUNT, "Requests that may wait at a time; 0: none, 429 at once.").within("", "4096"),
    field("queue_bytes", SIZE, "Bytes of their bodies together. [admission.md](admission.md#memory)"),
    field("max_wait", DURATION, "The longest that a request waits; then 429. A client may ask for less.")
        .within("", "1h"),
    field("ageing", DURATION, "Waiting so long is worth one step of priority; 0s: nothing is.").within("", "1h"),
    field(
        "prefill_budget",
        COUNT,
        "Uncached prompt tokens that an endpoint may have to compute at a time, at the pool's median prefill speed, and in proportion to its own; two prompts always may. 0: as many as come. [admission.md](admission.md#how-it-works)",
    ),
    field("fairness", TEXT, "Between whom turns are taken inside a priority: `none`, `user`, or `header:<name>`.")
        .but("`none`, `user`, or `header:` and a name in lower case"),
    field("spill_to", TEXT, "The pool that takes what this one would refuse.")
        .otherwise("none")
        .but("another pool; never round in a circle"),
]);

static PASSIVE_HEALTH: Kind = Kind::Section(&[
    field("consecutive_failures", COUNT, "Failures in a row that eject an endpoint; 0: they do not.")
        .within("", "65535"),
    field(
        "failure_percent",
        COUNT,
        "Share of failures that ejects, in percent, within 15 to 30 seconds; 0: it does not.",
    )
    .within("", "100"),
    field("min_requests", COUNT, "Requests that must have ended before their share says something.")
        .within("", "65535"),
    field("ejection", DURATION, "The first ejection; each further one without a success between is twice as long.")
        .within("1ms", "1h"),
    field("max_ejection", DURATION, "The longest ejection.").within("1ms", "1h").but("at least `ejection`"),
    field(
        "max_ejected_percent",
        COUNT,
        "How many of the pool's ready endpoints may be out at a time, in percent; 0: nobody is ever ejected.",
    )
    .within("", "100"),
    field(
        "cool_down",
        DURATION,
        "How long an endpoint is left alone after a 429 that does not say. [failover.md](failover.md#back-pressure)",
    )
    .within("", "1h"),
    field("max_cool_down", DURATION, "The longest, whatever it says.").within("", "1h").but("at least `cool_down`"),
    field(
        "silent_after",
        DURATION,
        "A stream given up by its client without a byte after so long counts as a failure; 0s: never.",
    )
    .within("", "1h"),
]);

static ENDPOINT: Kind = Kind::Section(&[
    field("id", TEXT, "Its name in headers, metrics and the API; used once in the file.")
        .required()
        .but("1 to 64 of `A-Z a-z 0-9 _ -`"),
    field(
        "address",
        TEXT,
        "`host:port` of the engine. A name with several addresses makes an endpoint of each, `<id>-<ip>-<port>`.",
    )
    .required()
    .but("inside `networks`; used once in the pool"),
    field("node", TEXT, "The machine: results are kept by it, and GPU figures found.")
        .otherwise("the id")
        .but("1 to 4096 bytes"),
    field("launch_args", TEXT, "How the engine was started: with other arguments it is measured anew.")
        .otherwise("what the engine tells")
        .but("at most 4096 bytes"),
    field("context_window", COUNT, "Tokens of prompt and answer together that it takes.")
        .otherwise("what the engine tells")
        .within("1", ""),
    field("max_in_flight", COUNT, "Its cap, by hand.").otherwise("as `admission.cap` says").within("1", ""),
    field("tls", &ENGINE_TLS, "Speaks TLS to it. [security.md](security.md#tls-and-keys-of-engines)")
        .otherwise("plain text"),
    field("api_key_file", TEXT, "File whose first line is the key that it asks for. Read again as it changes.")
        .otherwise("no key"),
    field("api_key_env", TEXT, "Environment variable of the prober that has the key. Not beside `api_key_file`.")
        .otherwise("no key"),
]);

static ENGINE_TLS: Kind = Kind::Section(&[
    field("sni", TEXT, "The name that its certificate must have, and that it is asked for.")
        .otherwise("the host of `address`"),
    field("ca_file", TEXT, "Authorities in PEM, one of which must have signed it.").otherwise("those of the system"),
]);
