//! The OpenAPI document as a page.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

const INTRODUCTION: &str = "# The REST API

Made from the OpenAPI document, which the prober serves at `/openapi.json`; do not edit
(`UPDATE_DOCS=1 cargo test --workspace --test references` makes it anew). Everything under `/v1` asks for the bearer token, where one is configured:
[security.md](security.md#the-token). Bodies are JSON. A change is in force when it is answered; 202 where 200 or 201 could stand means that the store
does not answer and the change waits to be stored ([store.md](store.md#when-redis-is-away)).
";

/// The order of a page.
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Every operation, every body, every code of an error.
pub(crate) fn markdown(document: &Value, codes: &BTreeSet<(String, u16)>) -> String {
    let mut page = INTRODUCTION.to_owned();
    let paths = document["paths"].as_object().unwrap();
    page.push_str("\n| | |\n|---|---|\n");
    for (path, item) in paths {
        for (method, operation) in operations(item) {
            let title = format!("{} {path}", method.to_uppercase());
            let first = one_line(&operation["summary"]);
            let _ = writeln!(page, "| [`{title}`](#{}) | {first} |", anchor(&title));
        }
    }
    page.push_str("\n## Operations\n");
    for (path, item) in paths {
        for (method, operation) in operations(item) {
            write_operation(&mut page, &format!("{} {path}", method.to_uppercase()), operation);
        }
    }
    page.push_str("\n## Bodies\n");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        write_schema(&mut page, name, schema);
    }
    page.push_str("\n## Errors\n\nEvery error is `{\"error\": {\"code\", \"message\"}}`: the code for programs, the message for people.\n\n| code | status |\n|---|---|\n");
    for (code, status) in codes {
        let _ = writeln!(page, "| `{code}` | {status} |");
    }
    page
}

fn operations(item: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    METHODS.into_iter().filter_map(|method| Some((method, item.get(method)?)))
}

/// As GitHub makes it of a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase();
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c),
        _ => None,
    });
    kept.collect()
}

fn one_line(text: &Value) -> String {
    text.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn write_operation(page: &mut String, title: &str, operation: &Value) {
    let _ = write!(page, "\n### `{title}`\n\n{}\n", one_line(&operation["summary"]));
    if let Some(more) = operation["description"].as_str() {
        let _ = write!(page, "\n{}\n", more.trim());
    }
    let parameters = operation["parameters"].as_array();
    if let Some(parameters) = parameters.filter(|parameters| !parameters.is_empty()) {
        page.push_str("\n| parameter | in | type | meaning |\n|---|---|---|---|\n");
        for parameter in parameters {
            let (name, place) = (one_line(&parameter["name"]), one_line(&parameter["in"]));
            let (kind, about) = (kind(&parameter["schema"]), one_line(&parameter["description"]));
            let _ = writeln!(page, "| `{name}` | {place} | {kind} | {about} |");
        }
    }
    if let Some(body) = operation.get("requestBody") {
        let _ = write!(page, "\nBody: {}\n", content(&body["content"]));
        write_example(page, &body["content"]);
    }
    page.push_str("\n| answer | body |\n|---|---|\n");
    for (status, response) in operation["responses"].as_object().unwrap() {
        let about = one_line(&response["description"]);
        let _ = writeln!(page, "| {status} | {} |", [content(&response["content"]), about].join(" ").trim());
    }
    for response in operation["responses"].as_object().unwrap().values() {
        write_example(page, &response["content"]);
    }
}

fn write_example(page: &mut String, content: &Value) {
    if let Some(example) = content.pointer("/application~1json/example") {
        let _ = write!(page, "\n```json\n{}\n```\n", serde_json::to_string_pretty(example).unwrap());
    }
}

/// What a body is; JSON unless it is said.
fn content(content: &Value) -> String {
    let Some(content) = content.as_object() else { return String::new() };
    let kinds = content.iter().map(|(media, content)| match media.as_str() {
        "application/json" => kind(&content["schema"]),
        media => format!("`{media}`"),
    });
    kinds.collect::<Vec<_>>().join(", ")
}

/// The type of a value, without `null`: whatever need not be there may be that.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return format!("[{name}](#{})", anchor(name));
    }
    for many in ["oneOf", "anyOf", "allOf"] {
        if let Some(schemas) = schema[many].as_array() {
            let schemas = schemas.iter().filter(|schema| schema["type"] != "null");
            return schemas.map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        return words
            .iter()
            .map(|word| format!("`{}`", word.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(types) => types.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect(),
        _ => return "any JSON".into(),
    };
    match types[..] {
        ["array"] => format!("list of {}", kind(&schema["items"])),
        ["object"] if schema["additionalProperties"].is_object() => {
            format!("map to {}", kind(&schema["additionalProperties"]))
        }
        _ => types.join(" or "),
    }
}

fn write_schema(page: &mut String, name: &str, schema: &Value) {
    let _ = write!(page, "\n### {name}\n");
    let about = one_line(&schema["description"]);
    if !about.is_empty() {
        let _ = write!(page, "\n{about}\n");
    }
    let Some(properties) = schema["properties"].as_object() else {
        let _ = write!(page, "\n{}\n", kind(schema));
        return;
    };
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    page.push_str("\n| field | type | always there | meaning |\n|---|---|---|---|\n");
    for (name, schema) in properties {
        // Of a type that may be nothing, the description stands with the type.
        let inner = schema["oneOf"].as_array().into_iter().flatten().find(|inner| inner["description"].is_string());
        let about = one_line(
            &schema.get("description").or(inner.map(|inner| &inner["description"])).cloned().unwrap_or_default(),
        );
        let always = if required.contains(&name.as_str()) { "yes" } else { "" };
        let _ = writeln!(page, "| `{name}` | {} | {always} | {about} |", kind(schema));
    }
}
