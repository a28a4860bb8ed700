//! Limits of the REST API, as docs/security.md lists them.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use weighbridge_prober::Running;
use weighbridge_prober::config::Config;
use weighbridge_prober::serve::{self, Bounds};

async fn start(dir: &Path) -> (Running, CancellationToken) {
    let config = json!({"api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"},
        "store": {"path": dir.join("s.redb")}, "pools": [{"name": "p", "models": ["m"]}]});
    let shutdown = CancellationToken::new();
    let config = Config::parse(&config.to_string()).unwrap();
    (weighbridge_prober::run(config, shutdown.clone()).await.unwrap(), shutdown)
}

#[tokio::test]
async fn what_is_too_long_too_many_or_absurd_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (running, shutdown) = start(dir.path()).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let long = |bytes: usize| "x".repeat(bytes);
    let endpoint = |field: &str, value: Value| {
        let mut body = json!({"pool": "p", "id": "e", "address": "127.0.0.1:9", "launch_args": "-x"});
        body[field] = value;
        body
    };
    let known =
        http.post(format!("http://{}/v1/endpoints", running.api)).json(&endpoint("id", json!("e"))).send().await;
    assert_eq!(known.unwrap().status().as_u16(), 201);
    let absurd = |ttft: Value| {
        let served = json!({"requests": 1, "errors": 0, "ttft_ms": {"n": 1, "sum": ttft}});
        json!({"envoy": "e", "pools": {"p": {"endpoints": {"e": {"served": served}}}}})
    };
    let table = [
        // Registrations.
        ("POST", "/v1/endpoints", endpoint("id", json!(long(65))), 400, "id"),
        ("POST", "/v1/endpoints", endpoint("node", json!(long(4097))), 400, "node"),
        ("POST", "/v1/endpoints", endpoint("node", json!("")), 400, "node"),
        ("POST", "/v1/endpoints", endpoint("launch_args", json!(long(4097))), 400, "launch_args"),
        ("POST", "/v1/endpoints", endpoint("address", json!(format!("{}:80", long(254)))), 400, "address"),
        ("POST", "/v1/endpoints", endpoint("pool", json!(long(65))), 400, "pool"),
        ("POST", "/v1/endpoints", endpoint("context_window", json!(4_294_967_296_u64)), 400, "context_window"),
        ("POST", "/v1/endpoints", endpoint("max_in_flight", json!(-1)), 400, "max_in_flight"),
        ("POST", "/v1/endpoints", endpoint("tls", json!({"sni": long(254)})), 400, "tls.sni"),
        ("POST", "/v1/endpoints", endpoint("tls", json!({"insecure": true})), 400, "insecure"),
        ("POST", "/v1/endpoints", endpoint("tls", json!({})), 400, "tls.sni"),
        ("POST", "/v1/endpoints", endpoint("api_key", json!("a key itself")), 400, "api_key"),
        ("POST", "/v1/endpoints", endpoint("api_key_file", json!("/etc/passwd")), 400, "api.key_dir is not set"),
        ("POST", "/v1/endpoints", endpoint("api_key_file", json!(long(4097))), 400, "api_key_file"),
        ("POST", "/v1/endpoints", endpoint("api_key_env", json!("PATH")), 400, "WEIGHBRIDGE_KEY_"),
        ("POST", "/v1/endpoints", endpoint("node", json!(long(300 << 10))), 413, ""),
        // Operators.
        ("PUT", "/v1/endpoints/e/pin", json!({"weight": 0.009}), 400, "0.01 to 100"),
        ("PUT", "/v1/endpoints/e/pin", json!({"weight": 100.1}), 400, "0.01 to 100"),
        ("PUT", "/v1/endpoints/e/pin", json!({"weight": -1}), 400, "0.01 to 100"),
        ("PUT", "/v1/endpoints/e/pin", json!({"weight": 1, "reason": long(501)}), 400, "reason"),
        ("PUT", "/v1/endpoints/e/pin", json!({"weight": 0.01, "reason": long(500)}), 200, ""),
        ("PUT", "/v1/endpoints/e/pin", json!({"weight": 100}), 200, ""),
        ("PUT", "/v1/endpoints/e/drain", json!({"reason": long(501)}), 400, "reason"),
        ("POST", "/v1/endpoints/e/probe?wait=maybe", Value::Null, 400, "wait"),
        // Reports.
        ("POST", "/v1/signals", json!({"envoy": long(65), "pools": {}}), 400, "envoy"),
        ("POST", "/v1/signals", absurd(json!(-5)), 200, ""),
        ("POST", "/v1/signals", absurd(json!(1e300)), 200, ""),
        ("POST", "/v1/signals", absurd(json!("fast")), 400, "sum"),
        ("POST", "/v1/signals", json!({"envoy": "e", "pools": {}, "more": long(3 << 20)}), 413, ""),
        ("POST", "/v1/decisions", json!({"envoy": long(257), "decisions": []}), 400, "envoy"),
        ("POST", "/v1/decisions", json!({"envoy": "e", "vm": long(257), "decisions": []}), 400, "vm"),
        ("POST", "/v1/decisions", json!({"envoy": "e", "decisions": vec![json!({}); 1001]}), 400, "1001"),
        ("POST", "/v1/decisions", json!({"envoy": "e", "decisions": [long(2 << 20)]}), 413, ""),
        // Searches.
        ("GET", "/v1/decisions?limit=0", Value::Null, 400, "limit"),
        ("GET", "/v1/decisions?limit=1001", Value::Null, 400, "limit"),
        ("GET", "/v1/decisions?limit=many", Value::Null, 400, "limit"),
        ("GET", "/v1/decisions?nothing=1", Value::Null, 400, "nothing"),
        ("GET", &format!("/v1/decisions?request_id={}", long(257)), Value::Null, 400, "request_id"),
        ("GET", &format!("/v1/decisions?endpoint={}", long(257)), Value::Null, 400, "endpoint"),
        ("GET", &format!("/v1/endpoints/{}", long(10_000)), Value::Null, 404, "there is no endpoint"),
        ("GET", &format!("/v1/decisions?since={}", long(40 << 10)), Value::Null, 431, ""),
    ];
    for (method, path, body, status, said) in table {
        let mut request = http.request(method.parse().unwrap(), format!("http://{}{path}", running.api));
        if !body.is_null() {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let (found, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        let shown = path.chars().take(80).collect::<String>();
        assert!(found == status && text.contains(said), "{method} {shown} {said}: {found} {text}");
        assert!(text.len() < 20_000, "{method} {shown}: an answer of {} bytes", text.len());
    }
    let view: Value =
        http.get(format!("http://{}/v1/endpoints/e", running.api)).send().await.unwrap().json().await.unwrap();
    assert_eq!(view["signals"]["averages"]["ttft_ms"], Value::Null, "a forged figure is taken");
    shutdown.cancel();
    running.stopped().await.unwrap();
}

/// A server of one route with narrow bounds.
async fn narrow(bounds: Bounds) -> (std::net::SocketAddr, tokio_util::sync::DropGuard) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let large = axum::body::Bytes::from(vec![0; 64 << 20]);
    let router = axum::Router::new()
        .route("/", axum::routing::get(|| async { "ok" }))
        .route("/large", axum::routing::get(move || async move { large }));
    let shutdown = CancellationToken::new();
    tokio::spawn(serve::run(listener, router, None, bounds, shutdown.clone()));
    (addr, shutdown.drop_guard())
}

/// Reads to the end, however it comes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut all).await;
    all
}

#[tokio::test]
async fn slow_clients_are_cut_off_and_hold_nobody_up() {
    // One takes the only place there is; the next waits, and gets its answer once that one is cut off.
    let cut_off = async |bounds: Bounds, sends: &[u8]| {
        let (addr, _stop) = narrow(Bounds { connections: 1, ..bounds }).await;
        let mut slow = TcpStream::connect(addr).await.unwrap();
        slow.write_all(sends).await.unwrap();
        let mut next = TcpStream::connect(addr).await.unwrap();
        next.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(20), rest(&mut next)).await.expect("it waits for ever");
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
        tokio::time::timeout(Duration::from_secs(20), rest(&mut slow)).await.expect("it is not cut off")
    };
    let short = Duration::from_millis(200);
    let never_ends = b"GET / HTTP/1.1\r\nhost: x\r\nslow";
    let cut = cut_off(Bounds { headers: short, ..Bounds::default() }, never_ends).await;
    assert!(!cut.starts_with(b"HTTP/1.1 200"));
    let never_reads = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n";
    let part = cut_off(Bounds { write: short, ..Bounds::default() }, never_reads).await;
    assert!(part.len() < 64 << 20, "all of it came");
}
