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

const BOOTSTRAP: [&str; 5] = ["static_resources", "dynamic_resources", "admin", "node", "stats_config"];
const FRAGMENT: [&str; 6] =
    ["early_header_mutation_extensions", "http_filters", "upstream_log", "routes", "clusters", "stats_tags"];
const PROBER: [&str; 8] = ["pools", "api", "xds", "filter", "store", "probe", "health", "signals"];

/// Reads it.
///
/// # Errors
/// When it is none.
pub fn read(text: &str) -> Result<Document, NoDocument> {
    let root = json(serde_yaml_ng::from_str(text)?)?;
    let has = |names: &[&str]| names.iter().any(|name| root.get(name).is_some());
    match () {
        () if has(&BOOTSTRAP) => Ok(Document::Envoy { root, fragment: false }),
        () if has(&FRAGMENT) => Ok(Document::Envoy { root, fragment: true }),
        () if has(&PROBER) => Ok(Document::Prober),
        () if has(&["configs"]) => Err(NoDocument::Dump),
        () => Err(NoDocument::Unknown),
    }
}

/// As JSON, in snake_case; what Envoy passes over (`!ignore`) is left out.
fn json(yaml: Yaml) -> Result<Value, NoDocument> {
    Ok(match yaml {
        Yaml::Null => Value::Null,
        Yaml::Bool(flag) => flag.into(),
        Yaml::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), ..) => number.into(),
            (_, Some(number), _) => number.into(),
            (.., number) => number.map_or(Value::Null, Into::into),
        },
        Yaml::String(text) => text.into(),
        Yaml::Sequence(list) => Value::Array(list.into_iter().map(json).collect::<Result<_, _>>()?),
        Yaml::Mapping(mapping) => {
            let mut object = Map::new();
            for (key, value) in mapping {
                let Yaml::String(key) = key else { return Err(NoDocument::NotJson("a key that is no text")) };
                if matches!(&value, Yaml::Tagged(tagged) if tagged.tag == "!ignore") {
                    continue;
                }
                object.insert(snake(key), json(value)?);
            }
            Value::Object(object)
        }
        Yaml::Tagged(tagged) => json(tagged.value)?,
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
    fn anchors_are_followed_and_ignored_parts_left_out() {
        let root = envoy("bits: !ignore {a: &limit 7}\nadmin: {x: *limit}");
        assert_eq!(root, serde_json::json!({"admin": {"x": 7}}));
    }
}
