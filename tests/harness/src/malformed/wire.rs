//! How a body travels, or what travels instead of one.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use super::Input;
use super::bodies::{self, Body};

/// What can be wrong outside the body.
pub(super) const KINDS: [&str; 10] = [
    "length too long",
    "length too short",
    "chunks",
    "many headers",
    "huge header",
    "odd headers",
    "odd target",
    "noise",
    "HTTP/2 noise",
    "another protocol",
];

fn head(body: &Body, more: &str) -> Vec<u8> {
    format!("POST {} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n{}{more}\r\n", body.path, body.headers)
        .into_bytes()
}

fn sized(body: &Body, more: &str) -> Vec<u8> {
    let mut bytes = head(body, &format!("content-length: {}\r\n{more}", body.bytes.len()));
    bytes.extend_from_slice(&body.bytes);
    bytes
}

fn noise(random: &mut StdRng, up_to: usize) -> Vec<u8> {
    let mut noise = vec![0; random.random_range(1..up_to)];
    random.fill_bytes(&mut noise);
    noise
}

fn any<T: Copy>(random: &mut StdRng, of: &[T]) -> Option<T> {
    of.get(random.random_range(0..of.len().max(1))).copied()
}

/// The next input: two of three are well framed.
pub(super) fn input(random: &mut StdRng) -> Input {
    let body = bodies::body(random);
    if random.random_ratio(2, 3) {
        return Input { kind: body.kind, bytes: sized(&body, ""), framed: true };
    }
    let kind = any(random, &KINDS).unwrap_or("noise");
    let bytes = match kind {
        "length too long" => {
            let mut bytes =
                head(&body, &format!("content-length: {}\r\n", body.bytes.len() + random.random_range(1..100_000)));
            bytes.extend_from_slice(&body.bytes);
            bytes
        }
        "length too short" => {
            let length = random.random_range(0..=body.bytes.len());
            let mut bytes = head(&body, &format!("content-length: {length}\r\n"));
            bytes.extend_from_slice(&body.bytes);
            bytes
        }
        "chunks" => {
            let mut bytes = head(&body, "transfer-encoding: chunked\r\n");
            let size = any(random, &["", "-1", "0", "zz", "ffffffffffffffffff", "10", "8;a=\"", "\u{0}"]);
            bytes.extend_from_slice(format!("{:x}\r\n", body.bytes.len()).as_bytes());
            bytes.extend_from_slice(&body.bytes);
            bytes.extend_from_slice(format!("\r\n{}\r\n\r\n", size.unwrap_or_default()).as_bytes());
            bytes
        }
        "many headers" => {
            let count = random.random_range(50..2_000);
            let more: String = (0..count).map(|nth| format!("x-h{nth}: {nth}\r\n")).collect();
            sized(&body, &more)
        }
        "huge header" => sized(&body, &format!("x-h: {}\r\n", "a".repeat(random.random_range(10_000..200_000)))),
        "odd headers" => {
            let header = any(
                random,
                &[
                    "x-weighbridge-priority: -1",
                    "x-weighbridge-priority: 10e9",
                    "x-weighbridge-max-wait-ms: NaN",
                    "x-weighbridge-max-wait-ms: 99999999999999999999",
                    "x-weighbridge-explain: \u{fc}",
                    "x-weighbridge-retry: never",
                    "content-encoding: \u{fc}",
                    "expect: 100-continue",
                    "content-type: \u{fc}",
                    "te: x",
                    "connection: x-weighbridge-host",
                    "upgrade: h2c",
                ],
            );
            sized(&body, &format!("{}\r\n", header.unwrap_or_default()))
        }
        "odd target" => {
            let method = any(random, &["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "M\u{fc}", ""])
                .unwrap_or_default();
            let target = any(
                random,
                &[
                    "*",
                    "",
                    "/v1/models",
                    "/v1/chat/completions?\u{0}",
                    "http://[::1",
                    "//",
                    "/%",
                    "/%zz/../v1/models",
                    "/v1/chat/completions/..",
                    "gateway:80",
                ],
            );
            let mut bytes =
                format!("{method} {} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n", target.unwrap_or_default())
                    .into_bytes();
            bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.bytes.len()).as_bytes());
            bytes.extend_from_slice(&body.bytes);
            bytes
        }
        "HTTP/2 noise" => {
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
            bytes.extend(noise(random, 2_000));
            bytes
        }
        "another protocol" => {
            let others: [&[u8]; 4] = [
                b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
                b"SSH-2.0-OpenSSH_9.0\r\n",
                b"\x00\x00\x00\x17\x00\x03\x00\x00user\x00x\x00\x00",
                b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            ];
            any(random, &others).unwrap_or_default().to_vec()
        }
        _ => noise(random, 20_000),
    };
    Input { kind, bytes, framed: false }
}
