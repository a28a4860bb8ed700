//! Requests of which two readers might see different things. Each goes as raw bytes through the shipped gateway to an engine
//! that keeps exactly what it gets: either Envoy refuses it, or the engine gets one request that a strict reader reads in one
//! way, and nothing after it.

use std::net::SocketAddr;

use harness::engine_sim::model::Profile;
use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::raw::{self, Behaviour, Recorder, Request};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions};
use tokio::net::TcpStream;

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":4}"#;
const PATH: &str = "/v1/chat/completions";

/// What must become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Envoy or the filter answers with this status, and the engine gets nothing.
    Refused(u16),
    /// The engine gets [`BODY`] at [`PATH`].
    Served,
}
use Fate::{Refused, Served};

/// A request with these header lines and this body. `\n` in `headers` ends a line.
fn request(line: &str, headers: &str, body: &str) -> Vec<u8> {
    let headers = headers.replace('\n', "\r\n");
    format!("{line}\r\nhost: gateway\r\ncontent-type: application/json\r\n{headers}\r\n\r\n{body}").into_bytes()
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    request("POST /v1/chat/completions HTTP/1.1", headers, body)
}

fn sized(headers: &str) -> Vec<u8> {
    let separator = if headers.is_empty() { "" } else { "\n" };
    post(&format!("content-length: {}{separator}{headers}", BODY.len()), BODY)
}

/// `{}` in the target line.
fn to(line: &str) -> Vec<u8> {
    request(line, &format!("content-length: {}", BODY.len()), BODY)
}

fn chunked(headers: &str) -> Vec<u8> {
    post(headers, &format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len()))
}

fn chunks(body: &str) -> Vec<u8> {
    post("transfer-encoding: chunked", body)
}

/// What somebody would like to slip through.
const INNER: &str = "GET /smuggled HTTP/1.1\r\nhost: inner\r\n\r\n";

fn table() -> Vec<(&'static str, Vec<u8>, Fate)> {
    let length = BODY.len();
    vec![
        // Where the body ends.
        (
            "length and chunked",
            post(&format!("content-length: {length}\ntransfer-encoding: chunked"), &format!("0\r\n\r\n{INNER}")),
            Refused(400),
        ),
        (
            "chunked and length",
            post("transfer-encoding: chunked\ncontent-length: 5", &format!("0\r\n\r\n{INNER}")),
            Refused(400),
        ),
        ("chunked, misspelt", chunked("transfer-encoding: xchunked"), Refused(501)),
        ("chunked after gzip", chunked("transfer-encoding: gzip, chunked"), Refused(501)),
        ("chunked, then identity", chunked("transfer-encoding: chunked\ntransfer-encoding: identity"), Refused(501)),
        ("chunked in quotes", chunked("transfer-encoding: \"chunked\""), Refused(501)),
        (
            "identity and length",
            post(&format!("transfer-encoding: identity\ncontent-length: {length}"), BODY),
            Refused(400),
        ),
        ("space before the colon", chunked("transfer-encoding : chunked"), Refused(400)),
        ("vertical tab before the coding", chunked("transfer-encoding:\u{b}chunked"), Refused(400)),
        ("NUL after the coding", chunked("transfer-encoding: chunked\0"), Refused(400)),
        ("tab before the coding", chunked("transfer-encoding:\tchunked"), Served),
        ("coding in capitals", chunked("Transfer-Encoding: CHUNKED"), Served),
        ("coding on a folded line", chunked("transfer-encoding:\n chunked"), Served),
        ("length twice, the same", sized(&format!("content-length: {length}")), Refused(400)),
        ("length twice, different", sized("content-length: 3"), Refused(400)),
        ("lengths in a list", post(&format!("content-length: {length}, {length}"), BODY), Refused(400)),
        ("length with a plus", post(&format!("content-length: +{length}"), BODY), Refused(400)),
        ("length below zero", post("content-length: -1", BODY), Refused(400)),
        ("length in hex", post(&format!("content-length: 0x{length:x}"), BODY), Refused(400)),
        ("length with a space", post(&format!("content-length: {length} 1"), BODY), Refused(400)),
        ("length beyond 64 bits", post("content-length: 99999999999999999999999", BODY), Refused(400)),
        ("length taken off by connection", sized("connection: content-length"), Served),
        ("chunk with an extension", chunks(&format!("{length:x};a=b\r\n{BODY}\r\n0\r\n\r\n")), Served),
        ("chunk extension with a bare LF", chunks(&format!("{length:x};a\n{BODY}\r\n0\r\n\r\n")), Refused(400)),
        ("chunks with bare LFs", chunks(&format!("{length:x}\n{BODY}\n0\n\n")), Refused(400)),
        ("chunk below zero", chunks(&format!("-1\r\n{BODY}")), Refused(400)),
        ("chunk beyond 64 bits", chunks(&format!("fffffffffffffffff\r\n{BODY}")), Refused(400)),
        ("chunk with 0x", chunks(&format!("0x{length:x}\r\n{BODY}\r\n0\r\n\r\n")), Refused(400)),
        ("chunk longer than it says", chunks(&format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", length - 2)), Refused(400)),
        (
            "trailers that steer",
            chunks(&format!(
                "{length:x}\r\n{BODY}\r\n0\r\nx-weighbridge-host: 192.0.2.1:1\r\ncontent-length: 3\r\n\r\n"
            )),
            Served,
        ),
        // Lines and names.
        ("bare LFs", String::from_utf8(sized("")).unwrap().replace("\r\n", "\n").into_bytes(), Served),
        ("a folded header", sized("x-a: 1\n transfer-encoding: chunked"), Served),
        ("NUL in a value", sized("x-a: a\0b"), Refused(400)),
        ("CR in a value", sized("x-a: a\rtransfer-encoding: chunked"), Served),
        ("LF in a value", sized("x-a: a\u{a}x-weighbridge-host: 192.0.2.1:1"), Served),
        ("space in a name", sized("x a: b"), Refused(400)),
        ("empty name", sized(": b"), Refused(400)),
        ("letters beyond ASCII in a name", sized("x-ä: b"), Refused(400)),
        ("underscores for dashes", sized("transfer_encoding: chunked\nx_weighbridge_host: 192.0.2.1:1"), Served),
        ("two hosts", sized("host: other"), Served),
        (
            "no host",
            format!("POST {PATH} HTTP/1.1\r\ncontent-length: {length}\r\n\r\n{BODY}").into_bytes(),
            Refused(400),
        ),
        // Targets.
        ("absolute target", to("POST http://other/v1/chat/completions HTTP/1.1"), Served),
        ("absolute target with a user", to("POST http://u:p@other/v1/chat/completions HTTP/1.1"), Served),
        ("CONNECT", to("CONNECT other:80 HTTP/1.1"), Refused(400)),
        ("dots", to("POST /a/../v1/chat/completions HTTP/1.1"), Served),
        ("encoded dots", to("POST /v1/%2e%2e/v1/chat/completions HTTP/1.1"), Served),
        ("double slashes", to("POST //v1//chat/completions HTTP/1.1"), Served),
        ("backslashes", to("POST /v1\\chat\\completions HTTP/1.1"), Served),
        ("encoded slash", to("POST /v1%2fchat/completions HTTP/1.1"), Refused(404)),
        ("encoded NUL", to("POST /v1/chat/completions%00 HTTP/1.1"), Refused(400)),
        ("fragment", to("POST /v1/chat/completions#x HTTP/1.1"), Refused(400)),
        ("space in the target", to("POST /v1/chat/completions HTTP/1.1 x HTTP/1.1"), Refused(400)),
        ("lower-case method", to("post /v1/chat/completions HTTP/1.1"), Refused(400)),
        ("HTTP/0.9", b"GET /v1/models\r\n\r\n".to_vec(), Refused(426)),
        ("HTTP/1.0", to("POST /v1/chat/completions HTTP/1.0"), Refused(426)),
        ("HTTP/3.0", to("POST /v1/chat/completions HTTP/3.0"), Refused(426)),
        // Another request, another protocol, another will.
        ("a second request behind the first", [sized(""), INNER.into()].concat(), Served),
        (
            "upgrade to HTTP/2",
            sized("connection: upgrade, http2-settings\nupgrade: h2c\nhttp2-settings: AAMAAABkAAQAAP__"),
            Served,
        ),
        (
            "upgrade to a websocket",
            sized(
                "connection: upgrade\nupgrade: websocket\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\nsec-websocket-version: 13",
            ),
            Refused(403),
        ),
        (
            "our headers",
            sized(
                "x-weighbridge-host: 192.0.2.1:1\nx-weighbridge-cluster: other-static\nx-weighbridge-endpoint: z\nx-weighbridge-decision: z\nx-weighbridge-retry: z\nx-weighbridge-future: z",
            ),
            Served,
        ),
        (
            "our headers in capitals, twice",
            sized(
                "X-Weighbridge-Host: 192.0.2.1:1\nX-WEIGHBRIDGE-HOST: 192.0.2.2:1\nX-WEIGHBRIDGE-CLUSTER: other-static",
            ),
            Served,
        ),
        (
            "our headers named in connection",
            sized("connection: close, x-weighbridge-cluster\nx-weighbridge-cluster: other-static"),
            Served,
        ),
        (
            "Envoy's own headers",
            sized(
                "x-envoy-original-path: /z\nx-envoy-retry-on: 5xx\nx-envoy-max-retries: 9\nx-envoy-upstream-rq-timeout-ms: 1",
            ),
            Served,
        ),
    ]
}

async fn gateway(engine: &Recorder, other: &EngineHandle) -> Envoy {
    let fleet = snapshot(vec![
        pool("m", vec![endpoint("only", engine.addr(), 1.0)]),
        pool("other", vec![endpoint("wrong", other.addr(), 1.0)]),
    ]);
    Envoy::start(EnvoyOptions::fixed(fleet)).await.unwrap()
}

async fn other() -> EngineHandle {
    let config = EngineConfig {
        name: "wrong".into(),
        model: "other".into(),
        profile: Profile::instant(),
        ..EngineConfig::default()
    };
    EngineHandle::start(config).await.unwrap()
}

/// Checks what the engine got, strictly; `None` when it got nothing.
fn got(name: &str, engine: &Recorder) -> Option<Request> {
    let mut connections = engine.take();
    assert!(connections.len() <= 1, "{name}: {} connections", connections.len());
    let bytes = connections.pop()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let request = Request::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error:#}: {text:?}"));
    let request = request.unwrap_or_else(|| panic!("{name}: a part of a request: {text:?}"));
    assert!(request.rest.is_empty(), "{name}: smuggled {:?}", String::from_utf8_lossy(&request.rest));
    assert_eq!(request.line, format!("POST {PATH} HTTP/1.1"), "{name}");
    assert_eq!(String::from_utf8_lossy(&request.body), BODY, "{name}");
    assert_eq!(request.all("host").len(), 1, "{name}: {text:?}");
    for (header, _) in &request.headers {
        assert!(!header.starts_with("x-weighbridge-") && !header.contains('_'), "{name}: {text:?}");
        let of_envoy =
            ["x-envoy-original-path", "x-envoy-retry-on", "x-envoy-max-retries", "x-envoy-upstream-rq-timeout-ms"];
        assert!(!of_envoy.contains(&header.as_str()) && header != "upgrade", "{name}: {text:?}");
    }
    Some(request)
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http1_nothing_is_smuggled() {
    let (engine, other) = (Recorder::start(Behaviour::Answer).await.unwrap(), other().await);
    let envoy = gateway(&engine, &other).await;
    let table = table();
    for (name, bytes, fate) in &table {
        let answer = raw::exchange(envoy.gateway(), bytes, raw::is_complete).await.unwrap();
        let request = got(name, &engine);
        match fate {
            Served => assert!(
                request.is_some() && raw::status(&answer) == Some(200),
                "{name}: {}",
                String::from_utf8_lossy(&answer)
            ),
            Refused(status) => {
                assert!(request.is_none(), "{name}: {request:?}");
                assert_eq!(raw::status(&answer), Some(*status), "{name}: {}", String::from_utf8_lossy(&answer));
            }
        }
    }
    println!("{} shapes", table.len());
    assert_eq!(other.state().requests_total, 0, "somebody steered");
    envoy.idle(std::time::Duration::from_secs(10)).await.unwrap();
    assert_eq!(envoy.stats().await.unwrap().get("wasm.weighbridge.vm_reload"), 0);
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Header fields, none of them indexed or compressed (RFC 7541, 6.2.2).
fn fields(of: &[(&str, &str)]) -> Vec<u8> {
    let string = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    of.iter().flat_map(|(name, value)| [vec![0], string(name), string(value)].concat()).collect()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What came back on stream 1.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    /// The first byte of the header block: the index of the status (RFC 7541, appendix A), 0x88 for 200.
    Answer(u8),
    /// The stream was reset, or the connection ended.
    Reset,
}

fn replied(bytes: &[u8]) -> Option<Reply> {
    let mut rest = bytes;
    while let [a, b, c, kind, _, _, _, _, stream, after @ ..] = rest {
        let length = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap();
        let (payload, after) = after.split_at_checked(length)?;
        match (*kind, *stream) {
            (HEADERS, 1) => return Some(Reply::Answer(payload[0])),
            (RESET, 1) | (GOAWAY, _) => return Some(Reply::Reset),
            _ => rest = after,
        }
    }
    None
}

async fn h2(target: SocketAddr, extra: &[(&str, &str)], body: &str, trailers: &[(&str, &str)]) -> Reply {
    let mut all = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", PATH),
        (":authority", "gateway"),
        ("content-type", "application/json"),
    ];
    for (name, value) in extra {
        all.retain(|(known, _)| known != name || !name.starts_with(':'));
        if *value != "-" {
            all.push((name, value));
        }
    }
    // Pseudo headers go first.
    all.sort_by_key(|(name, _)| !name.starts_with(':'));
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, END_HEADERS, 1, &fields(&all)));
    if trailers.is_empty() {
        bytes.extend(frame(DATA, END_STREAM, 1, body.as_bytes()));
    } else {
        bytes.extend(frame(DATA, 0, 1, body.as_bytes()));
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(trailers)));
    }
    let mut stream = TcpStream::connect(target).await.unwrap();
    let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await;
    let answer = raw::read_until(&mut stream, |bytes| replied(bytes).is_some()).await;
    replied(&answer).unwrap_or(Reply::Reset)
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http2_nothing_is_smuggled() {
    const OK: u8 = 0x88;
    let (engine, other) = (Recorder::start(Behaviour::Answer).await.unwrap(), other().await);
    let envoy = gateway(&engine, &other).await;
    type Fields<'a> = &'a [(&'a str, &'a str)];
    let table: Vec<(&str, Fields, Fields, bool)> = vec![
        ("plain", &[], &[], true),
        ("transfer-encoding", &[("transfer-encoding", "chunked")], &[], false),
        ("connection", &[("connection", "close")], &[], false),
        ("keep-alive", &[("keep-alive", "timeout=5")], &[], false),
        ("upgrade", &[("upgrade", "h2c")], &[], false),
        ("te other than trailers", &[("te", "gzip")], &[], false),
        ("length below the body", &[("content-length", "5")], &[], false),
        ("length above the body", &[("content-length", "9999")], &[], false),
        ("length twice", &[("content-length", "5"), ("content-length", "72")], &[], false),
        ("CRLF in a value", &[("x-a", "a\r\ntransfer-encoding: chunked")], &[], false),
        ("LF in a value", &[("x-a", "a\nb")], &[], false),
        ("NUL in a value", &[("x-a", "a\0b")], &[], false),
        ("CRLF in a name", &[("x-a: b\r\nx-c", "d")], &[], false),
        ("capitals in a name", &[("X-A", "b")], &[], false),
        ("colon in a name", &[("x:a", "b")], &[], false),
        ("CRLF in the path", &[(":path", "/v1/chat/completions HTTP/1.1\r\nx-a: b")], &[], false),
        ("space in the path", &[(":path", "/v1/chat/completions HTTP/1.1")], &[], false),
        ("no path", &[(":path", "-")], &[], false),
        ("empty path", &[(":path", "")], &[], false),
        ("CRLF in the method", &[(":method", "POST / HTTP/1.1\r\nx-a: b\r\n\r\nPOST")], &[], false),
        ("space in the method", &[(":method", "POST /")], &[], false),
        ("CRLF in the authority", &[(":authority", "a\r\nx-a: b")], &[], false),
        ("a pseudo header of answers", &[(":status", "200")], &[], false),
        ("an unknown pseudo header", &[(":weighbridge", "1")], &[], false),
        (
            "our headers",
            &[
                ("x-weighbridge-host", "192.0.2.1:1"),
                ("x-weighbridge-cluster", "other-static"),
                ("x-weighbridge-future", "z"),
            ],
            &[],
            true,
        ),
        (
            "underscores for dashes",
            &[("transfer_encoding", "chunked"), ("x_weighbridge_host", "192.0.2.1:1")],
            &[],
            true,
        ),
        (
            "trailers that steer",
            &[],
            &[("x-weighbridge-host", "192.0.2.1:1"), ("x-weighbridge-cluster", "other-static")],
            true,
        ),
        ("trailers with a length", &[], &[("content-length", "3")], false),
        ("pseudo headers in trailers", &[], &[(":path", "/smuggled")], false),
    ];
    for (name, extra, trailers, served) in &table {
        let reply = h2(envoy.gateway(), extra, BODY, trailers).await;
        let request = got(name, &engine);
        assert_eq!(
            (reply == Reply::Answer(OK), request.is_some()),
            (*served, *served),
            "{name}: {reply:?} {request:?}"
        );
    }
    println!("{} shapes", table.len());
    assert_eq!(other.state().requests_total, 0, "somebody steered");
    envoy.idle(std::time::Duration::from_secs(10)).await.unwrap();
    assert_eq!(envoy.stats().await.unwrap().get("wasm.weighbridge.vm_reload"), 0);
}
