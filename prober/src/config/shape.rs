//! Which fields a configuration file may have, and of which type each is. [`tidy`] reports everything that does not fit,
//! and leaves behind what serde reads without complaint: a file is told all its errors at once, which serde, stopping at
//! the first, cannot do.

use serde_yaml_ng::{Mapping, Value};

use super::{FieldError, Stands};

/// A type of value.
enum Kind {
    Text,
    /// Text such as `2s`.
    Duration,
    /// Text such as `16MiB`, or a number of bytes.
    Size,
    Flag,
    /// Fits into `u32`.
    Count,
    /// Fits into `u64`.
    Large,
    Number,
    Listen,
    /// A count, or a word.
    Choices,
    /// Two numbers.
    Bounds,
    Word(&'static [&'static str]),
    List(&'static Kind),
    Section(&'static [Field]),
}

struct Field {
    name: &'static str,
    kind: Kind,
    required: bool,
}

const fn field(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, required: false }
}

const fn required(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, required: true }
}

/// A configuration file.
static FILE: Kind = Kind::Section(&[
    field(
        "api",
        Kind::Section(&[
            field("listen", Kind::Listen),
            field("token_file", Kind::Text),
            field("key_dir", Kind::Text),
            field("tls", TLS),
        ]),
    ),
    field("xds", Kind::Section(&[field("listen", Kind::Listen), field("tls", TLS)])),
    field(
        "filter",
        Kind::Section(&[
            field("wasm", Kind::Text),
            field("max_body", Kind::Size),
            field("client_headers", Kind::List(&Kind::Text)),
            field("prefix_bytes", Kind::Size),
        ]),
    ),
    field("store", Kind::Section(&[field("path", Kind::Text), field("redis", Kind::Text)])),
    field(
        "probe",
        Kind::Section(&[
            field("concurrency", Kind::Count),
            field("tokens", Kind::Count),
            field("prefill_tokens", Kind::Count),
            field("interval", Kind::Duration),
            field("keep", Kind::Duration),
            field("timeout", Kind::Duration),
            field("sweep_max", Kind::Count),
            field("clamp", Kind::Bounds),
        ]),
    ),
    field(
        "health",
        Kind::Section(&[
            field("path", Kind::Text),
            field("interval", Kind::Duration),
            field("timeout", Kind::Duration),
            field("unhealthy_after", Kind::Count),
            field("healthy_after", Kind::Count),
            field("generate_every", Kind::Duration),
            field("generate_timeout", Kind::Duration),
        ]),
    ),
    field("drain", Kind::Section(&[field("deadline", Kind::Duration)])),
    field("decisions", Kind::Section(&[field("per_second", Kind::Count), field("keep", Kind::Count)])),
    field(
        "signals",
        Kind::Section(&[
            field("interval", Kind::Duration),
            field("average_over", Kind::Duration),
            field("dcgm", Kind::List(&DCGM)),
        ]),
    ),
    field("networks", Kind::List(&Kind::Text)),
    field("envoy_admin", Kind::List(&Kind::Text)),
    field("pools", Kind::List(&POOL)),
]);

const TLS: Kind = Kind::Section(&[
    required("cert_file", Kind::Text),
    required("key_file", Kind::Text),
    field("client_ca_file", Kind::Text),
]);

static POOL: Kind = Kind::Section(&[
    required("name", Kind::Text),
    required("models", Kind::List(&Kind::Text)),
    field("served_model", Kind::Text),
    field("adapters", Kind::List(&Kind::Text)),
    field(
        "policy",
        Kind::Section(&[
            field("name", Kind::Text),
            field("choices", Kind::Choices),
            field("score", SCORE),
            field(
                "shadow",
                Kind::Section(&[required("name", Kind::Text), field("choices", Kind::Choices), field("score", SCORE)]),
            ),
            field(
                "canary",
                Kind::Section(&[
                    required("name", Kind::Text),
                    field("choices", Kind::Choices),
                    field("score", SCORE),
                    required("percent", Kind::Number),
                ]),
            ),
        ]),
    ),
    field(
        "affinity",
        Kind::Section(&[
            field("enabled", Kind::Flag),
            field("cold", Kind::Word(&["policy", "hash"])),
            field("k", Kind::Number),
            field("max_share", Kind::Number),
            field("kv_tokens", Kind::Large),
            field("prefill_tps", Kind::Number),
        ]),
    ),
    field(
        "admission",
        Kind::Section(&[
            field("base_cap", Kind::Count),
            field("cap", Kind::Word(&["weight", "measured"])),
            field("min_tps", Kind::Number),
            field("queue", Kind::Count),
            field("queue_bytes", Kind::Size),
            field("max_wait", Kind::Duration),
            field("ageing", Kind::Duration),
            field("prefill_budget", Kind::Count),
            field("fairness", Kind::Text),
            field("spill_to", Kind::Text),
        ]),
    ),
    field(
        "passive_health",
        Kind::Section(&[
            field("consecutive_failures", Kind::Count),
            field("failure_percent", Kind::Count),
            field("min_requests", Kind::Count),
            field("ejection", Kind::Duration),
            field("max_ejection", Kind::Duration),
            field("max_ejected_percent", Kind::Count),
            field("cool_down", Kind::Duration),
            field("max_cool_down", Kind::Duration),
            field("silent_after", Kind::Duration),
        ]),
    ),
    field("endpoints", Kind::List(&ENDPOINT)),
]);

const SCORE: Kind = Kind::Section(&[
    field("active", Kind::Number),
    field("queue", Kind::Number),
    field("latency", Kind::Number),
    field("job", Kind::Number),
    field("throughput", Kind::Number),
    field("kv", Kind::Number),
    field("gpu", Kind::Number),
]);

static DCGM: Kind = Kind::Section(&[
    required("url", Kind::Text),
    field("node", Kind::Text),
    field("endpoint", Kind::Text),
    field("gpus", Kind::List(&Kind::Text)),
]);

static ENDPOINT: Kind = Kind::Section(&[
    required("id", Kind::Text),
    required("address", Kind::Text),
    field("node", Kind::Text),
    field("launch_args", Kind::Text),
    field("context_window", Kind::Count),
    field("max_in_flight", Kind::Count),
    field("tls", Kind::Section(&[field("sni", Kind::Text), field("ca_file", Kind::Text)])),
    field("api_key_file", Kind::Text),
    field("api_key_env", Kind::Text),
]);

impl Kind {
    fn expected(&self) -> String {
        match self {
            Kind::Text => "text, in quotes where it looks like something else".into(),
            Kind::Duration => "a duration, such as 2s or 6h".into(),
            Kind::Size => "a size, such as 16MiB".into(),
            Kind::Flag => "true or false".into(),
            Kind::Count => "a whole number from 0 to 4294967295".into(),
            Kind::Large => "a whole number from 0".into(),
            Kind::Number => "a number".into(),
            Kind::Listen => "ip:port".into(),
            Kind::Choices => "a number from 1, or all".into(),
            Kind::Bounds => "[least, most], two numbers".into(),
            Kind::Word(words) => words.join(" or "),
            Kind::List(_) => "a list".into(),
            Kind::Section(fields) => format!("a section with {}", names(fields)),
        }
    }

    /// Whether a value is of this type, apart from what is inside a list or section.
    fn fits(&self, value: &Value) -> bool {
        match self {
            Kind::Text | Kind::Duration => value.is_string(),
            Kind::Size => value.is_string() || value.is_u64(),
            Kind::Flag => value.is_bool(),
            Kind::Count => is_count(value),
            Kind::Large => value.is_u64(),
            Kind::Number => value.is_number(),
            Kind::Listen => value.as_str().is_some_and(|text| text.parse::<std::net::SocketAddr>().is_ok()),
            Kind::Choices => value.is_string() || is_count(value),
            Kind::Bounds => {
                value.as_sequence().is_some_and(|both| both.len() == 2 && both.iter().all(Value::is_number))
            }
            Kind::Word(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Kind::List(_) => value.is_sequence(),
            Kind::Section(_) => value.is_mapping(),
        }
    }

    /// What stands in for a required value that is missing or wrong, so that the rest can be read.
    fn stand_in(&self) -> Value {
        match self {
            Kind::List(_) => Value::Sequence(Vec::new()),
            Kind::Number => 0.into(),
            Kind::Section(fields) => {
                let required = fields.iter().filter(|field| field.required);
                Value::Mapping(required.map(|field| (field.name.into(), field.kind.stand_in())).collect())
            }
            // Nothing else is required, or an element of a list.
            _ => Value::String(String::new()),
        }
    }
}

fn is_count(value: &Value) -> bool {
    value.as_u64().is_some_and(|number| u32::try_from(number).is_ok())
}

fn names(fields: &[Field]) -> String {
    fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ")
}

/// Reports what does not belong into a file, and takes it out.
pub(super) fn tidy(file: &mut Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // A file of comments only.
    if file.is_null() {
        *file = Value::Mapping(Mapping::new());
    }
    walk(file, &FILE, "", &mut errors);
    errors
}

/// Whether the value fits now.
fn walk(value: &mut Value, kind: &Kind, path: &str, errors: &mut Vec<FieldError>) -> bool {
    if !kind.fits(value) {
        let field = if path.is_empty() { "the file" } else { path };
        errors.push(FieldError { field: field.into(), stands: Stands::of(value), expected: kind.expected() });
        *value = kind.stand_in();
        return false;
    }
    match (kind, value) {
        (Kind::List(kind), Value::Sequence(elements)) => {
            for (nth, element) in elements.iter_mut().enumerate() {
                walk(element, kind, &format!("{path}[{nth}]"), errors);
            }
        }
        (Kind::Section(fields), Value::Mapping(section)) => tidy_section(section, fields, path, errors),
        (Kind::Size, value) => {
            if let Some(bytes) = value.as_u64() {
                *value = bytes.to_string().into();
            }
        }
        _ => {}
    }
    true
}

fn tidy_section(section: &mut Mapping, fields: &[Field], path: &str, errors: &mut Vec<FieldError>) {
    let place = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    section.retain(|key, _| {
        let known = key.as_str().is_some_and(|key| fields.iter().any(|field| field.name == key));
        if !known {
            let expected = format!("one of {}", names(fields));
            let name = key.as_str().map_or_else(|| Stands::of(key).to_string(), str::to_owned);
            errors.push(FieldError { field: place(&name), stands: Stands::Unknown, expected });
        }
        known
    });
    for Field { name, kind, required } in fields {
        match section.get_mut(name) {
            // Written without a value: as good as not written.
            None | Some(Value::Null) if *required => {
                errors.push(FieldError { field: place(name), stands: Stands::Missing, expected: kind.expected() });
                section.insert((*name).into(), kind.stand_in());
            }
            None => {}
            Some(Value::Null) => {
                section.remove(name);
            }
            Some(value) => {
                let fits = walk(value, kind, &place(name), errors);
                if !fits && !required {
                    section.remove(name);
                }
            }
        }
    }
}
