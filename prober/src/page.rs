//! The page for people: `/` and what it loads. The files of `prober/page` stand in the binary, so there is nothing to install
//! beside it; nothing is built, and nothing is fetched from elsewhere.
//!
//! They hold no secret and are served to everybody: what the page shows it asks the API for, which is guarded.
//!
//! The policy lets nothing in but these files: no inline script or style, no frames, no other origin. A new file needs a line
//! in [`ASSETS`].

use std::fmt;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use xxhash_rust::xxh3::xxh3_64;

/// A file of the page.
struct Asset {
    name: &'static str,
    /// Its content type.
    kind: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! asset {
    ($name:literal, $kind:expr) => {
        Asset { name: $name, kind: $kind, bytes: include_bytes!(concat!("../page/", $name)) }
    };
}

/// Every file of `prober/page`.
const ASSETS: &[Asset] = &[
    asset!("actions.js", SCRIPT),
    asset!("alarms.js", SCRIPT),
    asset!("announce.js", SCRIPT),
    asset!("api.js", SCRIPT),
    asset!("app.css", STYLE),
    asset!("app.js", SCRIPT),
    asset!("burst.js", SCRIPT),
    asset!("curve.js", SCRIPT),
    asset!("decisions.js", SCRIPT),
    asset!("dialog.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("early.js", SCRIPT),
    asset!("endpoint.js", SCRIPT),
    asset!("envoys.js", SCRIPT),
    asset!("fleet.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("history.js", SCRIPT),
    asset!("icon.svg", SVG),
    asset!("index.html", HTML),
    asset!("live.js", SCRIPT),
    asset!("login.js", SCRIPT),
    asset!("menu.js", SCRIPT),
    asset!("meters.js", SCRIPT),
    asset!("plot.js", SCRIPT),
    asset!("record.js", SCRIPT),
    asset!("router.js", SCRIPT),
    asset!("shell.js", SCRIPT),
    asset!("spark.js", SCRIPT),
    asset!("state.js", SCRIPT),
    asset!("status.js", SCRIPT),
    asset!("theme.js", SCRIPT),
    asset!("timeline.js", SCRIPT),
];

/// What `/` is.
const INDEX: &str = "index.html";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    manifest-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

/// On every answer with a file of the page.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // Asked for again each time, and sent again only when another version serves it.
    (header::CACHE_CONTROL, "no-cache"),
];

/// Names the content of a file.
struct Tag(u64);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{:016x}\"", self.0)
    }
}

/// The routes of the page.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(index)).route("/page/{name}", get(named))
}

async fn index(asked: HeaderMap) -> Response {
    file(INDEX, &asked)
}

async fn named(Path(name): Path<String>, asked: HeaderMap) -> Response {
    file(&name, &asked)
}

fn file(name: &str, asked: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "the page has no such file\n").into_response();
    };
    let tag = Tag(xxh3_64(asset.bytes)).to_string();
    let has_it = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let has_it = has_it.flat_map(|list| list.split(',')).any(|one| {
        let one = one.trim();
        one == "*" || one.trim_start_matches("W/") == tag
    });
    let mut answer = match has_it {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, asset.kind)], asset.bytes).into_response(),
    };
    let headers = answer.headers_mut();
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    // A file that nobody serves is a page that is broken only when it is looked at.
    #[test]
    fn every_file_of_the_page_is_served() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let files: std::collections::BTreeSet<String> = files.collect();
        let served: std::collections::BTreeSet<String> = ASSETS.iter().map(|asset| asset.name.to_owned()).collect();
        assert_eq!(served, files);
        let index = std::str::from_utf8(ASSETS.iter().find(|asset| asset.name == INDEX).unwrap().bytes).unwrap();
        for link in index.split("\"/page/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(served.contains(link), "index.html names {link}");
        }
    }

    #[test]
    fn a_file_is_sent_once_and_the_policy_each_time() {
        for asset in ASSETS {
            let answer = file(asset.name, &HeaderMap::new());
            assert_eq!(answer.status(), StatusCode::OK);
            let tag = answer.headers()[header::ETAG].clone();
            let asked = |value: HeaderValue| file(asset.name, &HeaderMap::from_iter([(header::IF_NONE_MATCH, value)]));
            let weak = HeaderValue::from_str(&format!("\"other\", W/{}", tag.to_str().unwrap())).unwrap();
            for known in [tag, weak] {
                let again = asked(known);
                assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
                assert!(again.headers().contains_key(header::CONTENT_SECURITY_POLICY));
            }
            assert_eq!(asked(HeaderValue::from_static("\"other\"")).status(), StatusCode::OK);
        }
        assert_eq!(file("../Cargo.toml", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }

    // What the policy forbids would simply not run.
    #[test]
    fn the_page_has_nothing_inline_and_nothing_from_elsewhere() {
        for asset in ASSETS.iter().filter(|asset| asset.kind == HTML || asset.kind == SVG) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for forbidden in
                [" style=", "<style", "<script>", " onclick=", " onload=", "javascript:", "src=\"http", "href=\"http"]
            {
                assert!(!text.contains(forbidden), "{} has {forbidden}", asset.name);
            }
        }
    }
}
