//! Browsers sign in: what a session opens, what it does not, and when it is over.

mod common;

use common::{Prober, endpoint, start};
use harness::Events;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

const TOKEN: &str = "0123456789abcdef";

/// A browser with a cookie, or none.
struct Browser<'a> {
    prober: &'a Prober,
    cookie: String,
}

impl<'a> Browser<'a> {
    async fn sign_in(prober: &'a Prober) -> Self {
        let answer = post_token(prober, TOKEN).await;
        assert_eq!(answer.status().as_u16(), 204);
        let set = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
        assert!(set.contains("; HttpOnly; SameSite=Strict; Path=/") && !set.contains("Secure"), "{set}");
        Browser { prober, cookie: set.split(';').next().unwrap().to_owned() }
    }

    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.prober.http.request(method, self.prober.url(path)).header("cookie", format!("theme=dark; {}", self.cookie))
    }

    /// As the page sends it.
    fn as_page(&self, method: Method, path: &str) -> RequestBuilder {
        let origin = format!("http://{}", self.prober.running.api);
        self.ask(method, path).header("x-weighbridge-page", "1").header("origin", origin)
    }

    async fn fleet(&self) -> u16 {
        status(self.ask(Method::GET, "/v1/fleet")).await
    }
}

async fn post_token(prober: &Prober, token: &str) -> Response {
    prober.http.post(prober.url("/v1/session")).json(&json!({"token": token})).send().await.unwrap()
}

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

async fn code(request: RequestBuilder) -> (u16, String) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let body: Value = answer.json().await.unwrap();
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_session_reads_and_changes_only_what_our_page_asks() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some(TOKEN)).await;
    let browser = Browser::sign_in(&prober).await;
    let fleet: Value = browser.ask(Method::GET, "/v1/fleet").send().await.unwrap().json().await.unwrap();
    assert_eq!(fleet["auth"], "session");
    let own = format!("http://{}", prober.running.api);
    let register = || browser.ask(Method::POST, "/v1/endpoints").json(&endpoint("e", 9));
    // By itself, with one half of it, and from elsewhere.
    for (request, expected) in [
        (register(), "not_of_the_page"),
        (register().header("origin", &own), "not_of_the_page"),
        (register().header("x-weighbridge-page", "1"), "not_of_the_page"),
        (register().header("x-weighbridge-page", "yes").header("origin", &own), "not_of_the_page"),
        (register().header("x-weighbridge-page", "1").header("origin", "https://evil.example"), "foreign_origin"),
        (register().header("x-weighbridge-page", "1").header("origin", "null"), "foreign_origin"),
    ] {
        assert_eq!(code(request).await, (403, expected.to_owned()));
    }
    let endpoints: Value = browser.ask(Method::GET, "/v1/endpoints").send().await.unwrap().json().await.unwrap();
    assert_eq!(endpoints["endpoints"], json!([]));
    assert_eq!(status(browser.as_page(Method::POST, "/v1/endpoints").json(&endpoint("e", 9))).await, 201);
    // Reading is not for pages of other sites either.
    assert_eq!(status(browser.ask(Method::GET, "/v1/fleet").header("origin", "https://evil.example")).await, 403);
    // What a proxy in front asks for is none of ours; nothing that only some may read is kept on the way.
    let answer = browser.ask(Method::GET, "/v1/fleet").basic_auth("ops", Some("secret")).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["cache-control"]), (200, &"no-store".parse().unwrap()));
    // A token that is shown is what counts.
    assert_eq!(status(browser.ask(Method::GET, "/v1/fleet").bearer_auth("0123456789abcdeX")).await, 401);
    prober.stop().await;
}

#[tokio::test]
async fn signing_in_takes_the_token_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some(TOKEN)).await;
    for wrong in ["", "0123456789abcdeX", "0123456789abcdef0"] {
        let answer = post_token(&prober, wrong).await;
        assert_eq!((answer.status().as_u16(), answer.headers().get("set-cookie")), (401, None), "{wrong}");
    }
    // Nor does what filters show with their reports.
    let snapshot = prober.http.get(prober.url("/v1/snapshot")).bearer_auth(TOKEN).send().await.unwrap();
    let snapshot: Value = snapshot.json().await.unwrap();
    let reports = snapshot["filter"]["reports_token"].as_str().unwrap();
    assert_eq!(post_token(&prober, reports).await.status().as_u16(), 401);
    // Another site's page signs nobody in.
    let foreign = prober.http.post(prober.url("/v1/session")).header("origin", "https://evil.example");
    assert_eq!(code(foreign.json(&json!({"token": TOKEN}))).await, (403, "foreign_origin".into()));
    // Where a proxy in front ends TLS, the cookie is for TLS all the same.
    let host = prober.running.api.to_string();
    let secured = prober.http.post(prober.url("/v1/session")).header("origin", format!("https://{host}"));
    let secured = secured.json(&json!({"token": TOKEN})).send().await.unwrap();
    assert!(secured.headers()["set-cookie"].to_str().unwrap().ends_with("; Secure"), "{secured:?}");
    let long = json!({"token": "x".repeat(8_192)});
    assert_eq!(status(prober.http.post(prober.url("/v1/session")).json(&long)).await, 413);
    let view = async |request: RequestBuilder| request.send().await.unwrap().json::<Value>().await.unwrap();
    let shown = view(prober.http.get(prober.url("/v1/session"))).await;
    assert_eq!(shown, json!({"required": true, "signed_in": false}));
    let browser = Browser::sign_in(&prober).await;
    let shown = view(browser.ask(Method::GET, "/v1/session")).await;
    assert_eq!(shown, json!({"required": true, "signed_in": true}));
    let guess = Browser { prober: &prober, cookie: format!("weighbridge_session={}", "0".repeat(64)) };
    assert_eq!(guess.fleet().await, 401);
    prober.stop().await;
}

#[tokio::test]
async fn without_a_token_nobody_has_to_sign_in() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    let shown = prober.get("/v1/session").await;
    assert_eq!(shown, json!({"required": false, "signed_in": false}));
    let answer = post_token(&prober, "whatever").await;
    assert_eq!((answer.status().as_u16(), answer.headers().get("set-cookie")), (204, None));
    assert_eq!(prober.get("/v1/fleet").await["auth"], "none");
    prober.stop().await;
}

#[tokio::test]
async fn signing_out_ends_the_session_and_its_streams() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some(TOKEN)).await;
    let (browser, other) = (Browser::sign_in(&prober).await, Browser::sign_in(&prober).await);
    let mut events = Events::open(browser.ask(Method::GET, "/v1/events")).await.unwrap().unwrap();
    let mut others = Events::open(other.ask(Method::GET, "/v1/events")).await.unwrap().unwrap();
    assert_eq!(events.next().await.unwrap().unwrap()["auth"], "session");
    // Another site's page cannot do it.
    assert_eq!(status(browser.ask(Method::DELETE, "/v1/session")).await, 403);
    assert_eq!(browser.fleet().await, 200);
    let answer = browser.as_page(Method::DELETE, "/v1/session").send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 204);
    assert!(answer.headers()["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    while events.next().await.unwrap().is_some() {}
    assert_eq!(browser.fleet().await, 401);
    // Twice is no error, and the others stay.
    assert_eq!(status(browser.as_page(Method::DELETE, "/v1/session")).await, 204);
    assert_eq!(other.fleet().await, 200);
    assert!(others.next().await.unwrap().is_some());
    prober.stop().await;
}

#[tokio::test]
async fn another_token_ends_sessions_and_every_stream() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some(TOKEN)).await;
    let browser = Browser::sign_in(&prober).await;
    let mut events = Events::open(browser.ask(Method::GET, "/v1/events")).await.unwrap().unwrap();
    let shown = prober.http.get(prober.url("/v1/events")).bearer_auth(TOKEN);
    let mut others = Events::open(shown).await.unwrap().unwrap();
    std::fs::write(dir.path().join("token"), "fedcba9876543210\n").unwrap();
    while events.next().await.unwrap().is_some() {}
    while others.next().await.unwrap().is_some() {}
    assert_eq!(browser.fleet().await, 401);
    assert_eq!(post_token(&prober, TOKEN).await.status().as_u16(), 401);
    assert_eq!(post_token(&prober, "fedcba9876543210").await.status().as_u16(), 204);
    prober.stop().await;
}

#[tokio::test]
async fn of_too_many_sessions_the_oldest_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some(TOKEN)).await;
    let first = Browser::sign_in(&prober).await;
    for _ in 0..999 {
        assert_eq!(post_token(&prober, TOKEN).await.status().as_u16(), 204);
    }
    assert_eq!(first.fleet().await, 200);
    let last = Browser::sign_in(&prober).await;
    assert_eq!((first.fleet().await, last.fleet().await), (401, 200));
    prober.stop().await;
}
