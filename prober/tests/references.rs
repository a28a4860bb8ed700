//! The pages that are made from the code are what the code makes now. `UPDATE_DOCS=1` writes them instead.

mod generators;

use std::path::Path;

use utoipa::OpenApi;
use weighbridge_prober::{api, config};

/// Compares a file with what it should be, or writes it.
fn generated(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, text).unwrap();
        return;
    }
    let stands = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = stands.lines().zip(text.lines()).find(|(stands, made)| stands != made);
    assert!(
        stands == text,
        "{path} is not what the code says (first: {differs:?}); UPDATE_DOCS=1 cargo test --workspace --test references makes it anew"
    );
}

#[test]
fn the_configuration_reference_is_what_the_types_say() {
    generated("docs/configuration.md", &config::reference::markdown().unwrap());
}

#[test]
fn the_schema_for_editors_is_what_the_types_say() {
    let schema = serde_json::to_string_pretty(&config::reference::schema().unwrap()).unwrap();
    generated("docs/weighbridge.schema.json", &(schema + "\n"));
}

#[test]
fn the_api_reference_is_what_the_openapi_document_says() {
    let document = serde_json::to_value(api::Document::openapi()).unwrap();
    let codes = generators::codes::codes();
    assert!(
        codes.contains(&("invalid_field".into(), 400)) && codes.contains(&("no_endpoint".into(), 404)),
        "{codes:?}"
    );
    generated("docs/api.md", &generators::openapi::markdown(&document, &codes));
}
