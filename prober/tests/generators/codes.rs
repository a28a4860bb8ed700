//! The codes of errors, as they stand in the source of the API: a status, and the code after it.

use std::collections::BTreeSet;
use std::path::Path;

/// Every code with its status.
pub(crate) fn codes() -> BTreeSet<(String, u16)> {
    let mut codes = BTreeSet::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api")).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for after in source.split("StatusCode::").skip(1) {
            let Some((status, rest)) = after.split_once(',') else { continue };
            let code = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
            if let (Some(status), Some(code)) = (status_of(status), code) {
                codes.insert((code.to_owned(), status));
            }
        }
    }
    codes
}

fn status_of(constant: &str) -> Option<u16> {
    let words = constant.replace('_', " ");
    let all = (400..600).filter_map(|number| axum::http::StatusCode::from_u16(number).ok());
    let mut all = all.filter(|status| status.canonical_reason().is_some_and(|reason| reason.to_uppercase() == words));
    all.next().map(|status| status.as_u16())
}
