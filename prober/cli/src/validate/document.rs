//! Reads a configuration, whichever way it is written (YAML, JSON, snake_case or camelCase as protobuf allows both), and says
//! what it is.

use serde_json::{Map, Value};
use serde_yaml_ng::Value as Yaml;

use super::Kind;

/// A configuration.
#[derive(Debug)]
pub enum Document {
    /// A prober's.
    Prober,
    /// An Envoy's.
    Envoy {
        /// All of it, in snake_case.
        root: Value,
        /// Parts that are to be put into another one.
        fragment: bool,
    },
}

impl Document {
    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Document::Prober => Kind::Prober,
            Document::Envoy { fragment: false, .. } => Kind::Bootstrap,
            Document::Envoy { fragment: true, .. } => Kind::Fragment,
        }
    }
}

/// Why it is none.
#[derive(Debug, thiserror::Error)]
pub enum NoDocument {
    /// Neither YAML nor JSON.
    #[error("it is not YAML: {0}")]
    NotYaml(#[from] serde_yaml_ng::Error),
    /// Something that JSON does not have.
    #[error("it has something that JSON has not: {0}")]
    NotJson(&'static str),
    /// Something else.
    #[error(
        "it is neither a prober's configuration (`pools`) nor an Envoy bootstrap (`static_resources`), nor parts of one \
         (`http_filters`, `routes`, `clusters`)"
    )]
    Unknown,
    /// What Envoy's admin interface says.
    #[error("it is a dump of /config_dump: expected the bootstrap that Envoy was started with")]
    Dump,
}

/// The end of the `@type` of a message whose `value` is an object of any kind.
pub const STRUCT: &str = "google.protobuf.Struct";

const BOOTSTRAP: [&str; 5] = ["static_resources", "dynamic_resources", "admin", "node", "stats_config"];
const FRAGMENT: [&str; 6] =
    ["early_header_mutation_extensions", "http_filters", "upstream_log", "routes", "clusters", "stats_tags"];
const PROBER: [&str; 8] = ["pools", "api", "xds", "filter", "store", "probe", "health", "signals"];

/// Reads it.
///
/// # Errors
/// When it is none.
pub fn read(text: &str) -> Result<Document, NoDocument> {
    let root = json(serde_yaml_ng::from_str(text)?, Keys::Fields)?;
    let has = |names: &[&str]| names.iter().any(|name| root.get(name).is_some());
    match () {
        () if has(&BOOTSTRAP) => Ok(Document::Envoy { root, fragment: false }),
        () if has(&FRAGMENT) => Ok(Document::Envoy { root, fragment: true }),
        () if has(&PROBER) => Ok(Document::Prober),
        () if has(&["configs"]) => Err(NoDocument::Dump),
        () => Err(NoDocument::Unknown),
    }
}

/// What the keys of an object are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Fields of a message, which protobuf writes either way.
    Fields,
    /// Somebody's own, in a `google.protobuf.Struct`: they stay as they are.
    Own,
}

/// The most up to which every whole number is a float, too.
const WHOLE: f64 = 9_007_199_254_740_992.0;

/// As JSON, in snake_case; what Envoy passes over (`!ignore`) is left out.
fn json(yaml: Yaml, keys: Keys) -> Result<Value, NoDocument> {
    Ok(match yaml {
        Yaml::Null => Value::Null,
        Yaml::Bool(flag) => flag.into(),
        Yaml::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), ..) => number.into(),
            (_, Some(number), _) => number.into(),
            // All numbers of a Struct are floats, and protobuf writes the whole ones without a fraction.
            (.., Some(number)) if keys == Keys::Own && number.fract() == 0.0 && number.abs() < WHOLE => {
                (number as i64).into()
            }
            (.., number) => number.map_or(Value::Null, Into::into),
        },
        Yaml::String(text) => text.into(),
        Yaml::Sequence(list) => Value::Array(list.into_iter().map(|item| json(item, keys)).collect::<Result<_, _>>()?),
        Yaml::Mapping(mapping) => {
            let mut object = Map::new();
            let kind = mapping.get("@type").and_then(Yaml::as_str);
            let is_struct = kind.is_some_and(|kind| kind.ends_with(STRUCT));
            for (key, value) in mapping {
                let Yaml::String(key) = key else { return Err(NoDocument::NotJson("a key that is no text")) };
                if matches!(&value, Yaml::Tagged(tagged) if tagged.tag == "!ignore") {
                    continue;
                }
                let within = if is_struct && key == "value" { Keys::Own } else { keys };
                let key = if keys == Keys::Fields { snake(key) } else { key };
                object.insert(key, json(value, within)?);
            }
            Value::Object(object)
        }
        Yaml::Tagged(tagged) => json(tagged.value, keys)?,
    })
}

/// `stripMatchingHostPort` as `strip_matching_host_port`; what is no name of a field stays.
fn snake(key: String) -> String {
    let field = key.starts_with(|first: char| first.is_ascii_lowercase())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && key.bytes().any(|byte| byte.is_ascii_uppercase());
    if !field {
        return key;
    }
    let mut snake = String::with_capacity(key.len() + 4);
    for character in key.chars() {
        if character.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envoy(text: &str) -> Value {
        match read(text).unwrap() {
            Document::Envoy { root, .. } => root,
            Document::Prober => panic!("{text}"),
        }
    }

    #[test]
    fn what_it_is_shows_in_its_fields() {
        let kind = |text| read(text).map(|document| document.kind());
        assert_eq!(kind("pools: []").unwrap(), Kind::Prober);
        assert_eq!(kind("api: {listen: '127.0.0.1:1'}").unwrap(), Kind::Prober);
        assert_eq!(kind(r#"{"staticResources": {}}"#).unwrap(), Kind::Bootstrap);
        assert_eq!(kind("http_filters: []").unwrap(), Kind::Fragment);
        for (text, says) in [("a: b", "neither"), ("configs: []", "config_dump"), ("- x", "neither"), ("a: [", "YAML")]
        {
            let error = kind(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn both_ways_of_writing_a_field_are_one() {
        let camel = r#"{"staticResources": {"clusters": [{"connectTimeout": "1s", "@type": "a.B"}]}}"#;
        let snake = "static_resources: {clusters: [{connect_timeout: 1s, '@type': a.B}]}";
        assert_eq!(envoy(camel), envoy(snake));
        // Names that are no fields stay as they are.
        let named = "node: {}\nstatic_resources: {envoy.filters.http.Router: 1, X-Header: 2, plain: 3}";
        assert_eq!(envoy(named)["static_resources"]["X-Header"], 2);
    }

    #[test]
    fn what_is_in_a_struct_stays_as_it_is() {
        let root = envoy(
            "node: {metadata: {'@type': type.googleapis.com/google.protobuf.Struct, value: {maxBody: 1.0, a: [{bC: 0.5}]}}}",
        );
        let value = &root["node"]["metadata"]["value"];
        assert_eq!(value.to_string(), serde_json::json!({"maxBody": 1, "a": [{"bC": 0.5}]}).to_string());
        // Around it, and in a message that is none, they are fields.
        let root = envoy("node: {'@type': a.B, value: {maxBody: 1.0}}");
        assert_eq!(root["node"]["value"]["max_body"], 1.0);
    }

    #[test]
    fn anchors_are_followed_and_ignored_parts_left_out() {
        let root = envoy("bits: !ignore {a: &limit 7}\nadmin: {x: *limit}");
        assert_eq!(root, serde_json::json!({"admin": {"x": 7}}));
    }
}
