//! The reference of the configuration file, made from the table of its fields ([`super::fields`]) and the defaults of what is
//! read ([`super::raw`]): [`markdown`] is `docs/configuration.md`, [`schema`] is `docs/weighbridge.schema.json` and what
//! `weighbridge-prober --schema` prints.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use weighbridge_routing::snapshot::wire;

use super::fields::{FILE, Field};
use super::raw;
use super::shape::Kind;
use super::{ConfigError, Networks};

/// What `humantime` reads.
const DURATION: &str = r"^\s*([0-9]+\s*[A-Za-zµ]+\s*)+$";
const SIZE: &str = r"^[0-9]+\s*([bB]|[kKmMgG][iI]?[bB])?$";

/// The file as a JSON schema, for editors. It knows fields, types and the ranges of numbers; what depends on other fields, on
/// lengths of time or on files, only `--check` knows.
///
/// # Errors
/// When table and types do not fit together.
pub fn schema() -> Result<Value, ConfigError> {
    let mut schema = node(&FILE, "", &defaults()?);
    if let Value::Object(schema) = &mut schema {
        schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        schema.insert("title".into(), "Configuration of weighbridge-prober".into());
    }
    Ok(schema)
}

/// The file as a page.
///
/// # Errors
/// When table and types do not fit together.
pub fn markdown() -> Result<String, ConfigError> {
    let mut page = Page { text: INTRODUCTION.into(), sections: Vec::new() };
    page.section(&FILE, "", "", &defaults()?);
    Ok(page.text)
}

const INTRODUCTION: &str = "# Configuration reference

Made from the types that read the file; do not edit (`UPDATE_DOCS=1 cargo test --workspace --test references` makes it anew).
[`prober/example.yaml`](../prober/example.yaml) shows all of it in one file, and `weighbridge-prober --check FILE` tells everything
that is wrong with yours. Unknown fields are errors.

Editors complete and check with [`weighbridge.schema.json`](weighbridge.schema.json), which `weighbridge-prober --schema` prints, too. For
those that speak to the YAML language server, the first line of a file names it:

```yaml
# yaml-language-server: $schema=weighbridge.schema.json
pools: [{name: m, models: [m]}]
```

A **duration** is a number with its unit, such as `250ms`, `2s`, `5m`, `6h`, `7days`, or several of them: `1h 30m`. A **size** is a number of bytes,
or one with its unit: `64KiB`, `16MiB`, `1GB`. A field without a value counts as left out. A change takes a restart of the prober, but
for the files of tokens, keys and certificates.
";

/// What every field is when it is left out, in the shape of the file, with one element in each list of sections.
pub(super) fn defaults() -> Result<Value, ConfigError> {
    let raw: raw::Config = serde_yaml_ng::from_value(specimen(&FILE))?;
    let file = raw.store.file();
    let mut defaults = serde_json::to_value(raw).unwrap_or_default();
    if let Some(Value::Object(store)) = defaults.pointer_mut("/store") {
        store.insert("path".into(), json!(file));
    }
    // Not sent to filters, and so not written, while it is the default.
    for of in ["/pools/0/policy", "/pools/0/policy/shadow", "/pools/0/policy/canary"] {
        if let Some(Value::Object(policy)) = defaults.pointer_mut(of) {
            policy.insert("score".into(), json!(wire::Score::default()));
        }
    }
    Ok(defaults)
}

/// A file with every section and what is required, and nothing else.
fn specimen(kind: &Kind) -> serde_yaml_ng::Value {
    match kind {
        Kind::Section(fields) => {
            let written = fields.iter().filter(|field| field.required || field.kind.section().is_some());
            let written = written.map(|field| (field.name.into(), specimen(field.kind)));
            serde_yaml_ng::Value::Mapping(written.collect())
        }
        Kind::List(kind) if kind.section().is_some() => serde_yaml_ng::Value::Sequence(vec![specimen(kind)]),
        kind => kind.stand_in(),
    }
}

impl Kind {
    /// The fields of a section, or of each section in a list.
    fn section(&self) -> Option<&'static [Field]> {
        match self {
            Kind::Section(fields) => Some(fields),
            Kind::List(kind) => kind.section(),
            _ => None,
        }
    }

    /// Its name for people.
    fn name(&self) -> String {
        match self {
            Kind::Text => "text".into(),
            Kind::OneOf(words) | Kind::Word(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            }
            Kind::Duration => "duration".into(),
            Kind::Size => "size".into(),
            Kind::Flag => "`true`, `false`".into(),
            Kind::Count | Kind::Large => "whole number".into(),
            Kind::Number => "number".into(),
            Kind::Listen => "`ip:port`".into(),
            Kind::Choices => "whole number from 1, `all`".into(),
            Kind::Bounds => "two numbers".into(),
            Kind::List(Kind::Section(_)) => "list of sections".into(),
            Kind::List(kind) => format!("list of {}", kind.name()),
            Kind::Section(_) => "section".into(),
        }
    }
}

impl Field {
    /// What is right, but for its type.
    fn range(&self) -> String {
        let range = match (self.least, self.most) {
            ("", "") => String::new(),
            (least, "") => format!("from {least}"),
            ("", most) => format!("up to {most}"),
            (least, most) => format!("{least} to {most}"),
        };
        let comma = if range.is_empty() || self.but.is_empty() { "" } else { ", " };
        format!("{range}{comma}{}", self.but)
    }

    /// What counts when it is left out.
    fn default(&self, path: &str, default: &Value) -> String {
        match (path, default) {
            _ if self.required => "**required**".into(),
            ("networks", _) => Networks::default().expected(),
            (_, Value::Null) => self.otherwise.into(),
            _ if !self.otherwise.is_empty() && !matches!(self.name, "path") => self.otherwise.into(),
            (_, Value::Object(_)) => String::new(),
            (_, Value::Array(_)) if self.kind.section().is_some() => "`[]`".into(),
            (_, Value::String(text)) => format!("`{text}`"),
            (_, value) => format!("`{}`", value.to_string().replace(',', ", ")),
        }
    }
}

/// `a.b`, or `b` at the top.
fn place(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The default under a name; of a list, of its element.
fn inside<'a>(defaults: &'a Value, name: &str) -> &'a Value {
    let found = defaults.get(name).unwrap_or(&Value::Null);
    match found {
        Value::Array(elements) => elements.first().filter(|element| element.is_object()).unwrap_or(found),
        found => found,
    }
}

struct Page {
    text: String,
    /// The sections that have been shown, with their paths: one that comes in several places is shown once.
    sections: Vec<(&'static [Field], String)>,
}

impl Page {
    /// Writes a section, and then those inside it.
    fn section(&mut self, kind: &'static Kind, path: &str, about: &str, defaults: &Value) {
        let Some(fields) = kind.section() else { return };
        self.sections.push((fields, path.to_owned()));
        let (level, heading) = match path {
            "" => ("##", "The file".to_owned()),
            path => (if path.contains('.') { "###" } else { "##" }, format!("`{path}`")),
        };
        let about = if about.is_empty() { String::new() } else { format!("{about}\n\n") };
        let _ = write!(
            self.text,
            "\n{level} {heading}\n\n{about}| field | type | default | range | meaning |\n|---|---|---|---|---|\n"
        );
        for field in fields {
            let path = place(path, field.name);
            let mut kind = field.kind.name();
            if let Some(fields) = field.kind.section() {
                let shown = self.sections.iter().find(|(shown, _)| std::ptr::eq(*shown, fields));
                let shown = shown.map_or_else(|| within(field.kind, &path), |(_, path)| path.clone());
                let anchor = shown.to_lowercase().replace(['.', '[', ']'], "");
                kind = format!("[{kind}](#{anchor})");
            }
            let default = field.default(&path, defaults.get(field.name).unwrap_or(&Value::Null));
            let Field { name, about, .. } = field;
            let _ = writeln!(self.text, "| `{name}` | {kind} | {default} | {} | {about} |", field.range());
        }
        for field in fields {
            let Some(inner) = field.kind.section() else { continue };
            if !self.sections.iter().any(|(shown, _)| std::ptr::eq(*shown, inner)) {
                let path = within(field.kind, &place(path, field.name));
                self.section(field.kind, &path, field.about, inside(defaults, field.name));
            }
        }
    }
}

/// The path of what is in a field.
fn within(kind: &Kind, path: &str) -> String {
    if matches!(kind, Kind::List(_)) { format!("{path}[]") } else { path.to_owned() }
}

/// Markdown without links: where they lead is named instead.
fn plain(about: &str) -> String {
    let mut plain = String::new();
    let mut rest = about;
    while let Some((before, (text, (target, after)))) = rest.split_once('[').and_then(|(before, link)| {
        let (text, link) = link.split_once("](")?;
        Some((before, (text, link.split_once(')')?)))
    }) {
        let _ = match text.ends_with(".md") {
            true => write!(plain, "{before}docs/{target}"),
            false => write!(plain, "{before}{text} (docs/{target})"),
        };
        rest = after;
    }
    plain + rest
}

/// A field as a JSON schema.
fn node(kind: &'static Kind, path: &str, defaults: &Value) -> Value {
    match kind {
        Kind::Text => json!({"type": "string"}),
        Kind::OneOf(words) | Kind::Word(words) => json!({"enum": words}),
        Kind::Duration => json!({"type": "string", "pattern": DURATION}),
        Kind::Size => json!({"type": ["string", "integer"], "minimum": 0, "pattern": SIZE}),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Count => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
        Kind::Large => json!({"type": "integer", "minimum": 0}),
        Kind::Number => json!({"type": "number"}),
        Kind::Listen => json!({"type": "string", "pattern": r"^.+:[0-9]+$"}),
        Kind::Choices => json!({"anyOf": [{"type": "integer", "minimum": 1, "maximum": u32::MAX}, {"const": "all"}]}),
        Kind::Bounds => json!({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
        Kind::List(kind) => json!({"type": "array", "items": node(kind, path, defaults)}),
        Kind::Section(fields) => {
            let properties: Map<String, Value> = fields
                .iter()
                .map(|field| (field.name.to_owned(), property(field, &place(path, field.name), defaults)))
                .collect();
            let required: Vec<_> = fields.iter().filter(|field| field.required).map(|field| field.name).collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
    }
}

fn property(field: &'static Field, path: &str, defaults: &Value) -> Value {
    let mut node = node(field.kind, path, inside(defaults, field.name));
    let Value::Object(schema) = &mut node else { return node };
    let mut about = plain(field.about);
    let range = field.range();
    if !range.is_empty() {
        let _ = write!(about, " Range: {range}.");
    }
    let default = defaults.get(field.name).unwrap_or(&Value::Null);
    match (field.required, field.kind.section(), default) {
        (true, ..) => {}
        (false, None, default) if !default.is_null() => {
            schema.insert("default".into(), default.clone());
        }
        _ => {
            let otherwise = field.default(path, &Value::Null);
            if !otherwise.is_empty() {
                let _ = write!(about, " Left out: {otherwise}.");
            }
        }
    }
    // What else is right may lie outside of the range.
    if matches!(field.kind, Kind::Count | Kind::Large | Kind::Number) && field.but.is_empty() {
        for (bound, text) in [("minimum", field.least), ("maximum", field.most)] {
            if let Ok(number) = text.parse::<u64>() {
                schema.insert(bound.into(), number.into());
            }
        }
    }
    schema.insert("description".into(), about.into());
    if !field.required {
        // Written without a value is as good as not written.
        match schema.remove("type") {
            Some(Value::Array(mut types)) => {
                types.push("null".into());
                schema.insert("type".into(), types.into());
            }
            Some(kind) => {
                schema.insert("type".into(), json!([kind, "null"]));
            }
            None => {}
        }
        for words in ["enum", "anyOf"] {
            if let Some(Value::Array(words_or_schemas)) = schema.get_mut(words) {
                words_or_schemas.push(if words == "enum" { Value::Null } else { json!({"type": "null"}) });
            }
        }
    }
    node
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Config;
    use super::*;

    /// Every field with its path, in which lists have the index 0.
    fn walk(fields: &'static [Field], path: &str, visit: &mut impl FnMut(&str, &'static Field)) {
        for field in fields {
            let path = place(path, field.name);
            visit(&path, field);
            if let Some(fields) = field.kind.section() {
                let element = if matches!(field.kind, Kind::List(_)) { format!("{path}[0]") } else { path };
                walk(fields, &element, visit);
            }
        }
    }

    fn all() -> Vec<(String, &'static Field)> {
        let mut all = Vec::new();
        walk(FILE.section().unwrap(), "", &mut |path, field| all.push((path.to_owned(), field)));
        assert!(all.len() > 80, "{}", all.len());
        all
    }

    fn pointer(path: &str) -> String {
        format!("/{}", path.replace("[0]", "/0").replace('.', "/"))
    }

    #[test]
    fn the_table_has_the_fields_that_are_read_and_no_others() {
        fn compare(fields: &'static [Field], defaults: &Value, path: &str) {
            let read: Vec<&String> = defaults.as_object().unwrap().keys().collect();
            for name in &read {
                assert!(fields.iter().any(|field| field.name == **name), "{path}.{name} is read, and not in the table");
            }
            for field in fields {
                // What has no default may not be written at all.
                let known = read.iter().any(|name| *name == field.name) || !field.otherwise.is_empty();
                assert!(known, "{path}.{} is in the table, and not read", field.name);
                if let Some(inner) = field.kind.section() {
                    compare(inner, inside(defaults, field.name), &place(path, field.name));
                }
            }
        }
        compare(FILE.section().unwrap(), &defaults().unwrap(), "");
    }

    #[test]
    fn every_field_says_what_it_means_and_what_counts_without_it() {
        let defaults = defaults().unwrap();
        for (path, field) in all() {
            assert!(!field.about.is_empty(), "{path}");
            let default = defaults.pointer(&pointer(&path)).unwrap_or(&Value::Null);
            let told = !field.default(&path, default).is_empty();
            assert!(
                told || matches!(field.kind, Kind::Section(_)),
                "{path} has no default, and does not say what counts then"
            );
        }
    }

    /// A file in which everything is right, with this in this field.
    fn with(path: &str, value: Value) -> String {
        // What must be at most as long as something else is short.
        let mut file = json!({"pools": [{
            "name": "p", "models": ["m"], "passive_health": {"ejection": "1ms", "cool_down": "0s"},
            "endpoints": [{"id": "e", "address": "10.0.0.1:80"}],
        }]});
        let mut at = &mut file;
        for part in pointer(path).split('/').skip(1) {
            at = match part.parse::<usize>() {
                Ok(nth) => &mut at[nth],
                Err(_) => {
                    if matches!(part, "shadow" | "canary") && at[part].is_null() {
                        at[part] = json!({"name": "score"});
                        if part == "canary" {
                            at[part]["percent"] = 5.into();
                        }
                    }
                    &mut at[part]
                }
            };
        }
        *at = value;
        file.to_string()
    }

    /// Whether the check has something against this value of this field.
    fn is_refused(path: &str, value: &Value) -> bool {
        match Config::parse(&with(path, value.clone())) {
            Ok(_) => false,
            Err(ConfigError::Fields(errors)) => {
                let named: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
                assert!(named.contains(&path) || !named.is_empty(), "{path}");
                named.iter().any(|named| *named == path || (path.contains(".score.") && named.ends_with(".score")))
            }
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// A value, and the next one below or above it.
    fn ends(kind: &Kind, bound: &str) -> Option<(Value, Option<Value>, Value)> {
        Some(match kind {
            Kind::Count | Kind::Large | Kind::Size => {
                let bound: u64 = bound.parse().unwrap();
                (bound.into(), bound.checked_sub(1).map(Value::from), (bound + 1).into())
            }
            Kind::Number => {
                let bound: f64 = bound.parse().unwrap();
                (bound.into(), Some((bound - 0.01).into()), (bound + 0.01).into())
            }
            Kind::Duration => {
                let bound = humantime::parse_duration(bound).unwrap();
                let text = |time| Value::from(humantime::format_duration(time).to_string());
                let step = Duration::from_millis(1);
                (text(bound), bound.checked_sub(step).map(text), text(bound + step))
            }
            _ => return None,
        })
    }

    #[test]
    fn both_ends_of_every_range_are_those_of_the_check() {
        let mut tried = 0;
        for (path, field) in all() {
            if !field.least.is_empty() {
                let (least, below, _) = ends(field.kind, field.least).unwrap_or_else(|| panic!("{path} has no order"));
                assert!(!is_refused(&path, &least), "{path}: {least} is refused");
                let below = below.unwrap_or_else(|| panic!("{path}: nothing is below {least}"));
                assert!(is_refused(&path, &below), "{path}: {below} passes");
                tried += 1;
            }
            if !field.most.is_empty() {
                let (most, _, above) = ends(field.kind, field.most).unwrap_or_else(|| panic!("{path} has no order"));
                assert!(!is_refused(&path, &most), "{path}: {most} is refused");
                assert!(is_refused(&path, &above), "{path}: {above} passes");
                tried += 1;
            }
            let zero = match field.kind {
                Kind::Count | Kind::Large | Kind::Number => 0.into(),
                Kind::Duration => "0s".into(),
                _ => continue,
            };
            // Where the table says nothing of the least, it is nought.
            let may =
                field.least.is_empty() && field.but != "above 0" || field.but.starts_with("or 0") || field.least == "0";
            if field.name != "max_ejection" {
                assert_eq!(is_refused(&path, &zero), !may, "{path}: {zero}");
            }
        }
        assert!(tried > 60, "{tried}");
    }

    #[test]
    fn links_of_a_description_are_named() {
        assert_eq!(plain("A. [health.md](health.md#drain) b"), "A. docs/health.md#drain b");
        assert_eq!(plain("[the key](security.md) [x]"), "the key (docs/security.md) [x]");
    }
}
