//! Clients that dribble, stall, or do not read: they lose their connection, not the others their service, and slots come back.
//! The shipped timeouts are shortened here, by name; what is not in the file cannot be shortened.

use anyhow::ensure;
use harness::load::{self, Call};
use harness::raw::{self, Behaviour, Recorder};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually, wire};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::common::DEADLINE;

/// A gateway of these pools, with other timeouts of its listener. Each must be in the file already.
async fn gateway(pools: Vec<wire::Pool>, timeouts: Vec<(&'static str, Value)>) -> Envoy {
    let edit = move |config: &mut Value| {
        let listener = &mut config["static_resources"]["listeners"][0];
        for (pointer, value) in timeouts {
            *listener.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer} is not set")) = value;
        }
    };
    Envoy::start(EnvoyOptions { edit: Some(Box::new(edit)), ..EnvoyOptions::fixed(snapshot(pools)) }).await.unwrap()
}

/// Somebody else's request is answered.
async fn others_are_served(envoy: &Envoy) {
    let outcome = load::send(envoy.gateway(), Call::chat("fine", "hello", 4)).await;
    assert!(outcome.is_ok(), "{outcome:?}");
}

async fn counted(envoy: &Envoy, name: &str, wanted: u64) {
    eventually(name, DEADLINE, async || {
        let found = envoy.stats().await?.get(name);
        ensure!(found >= wanted, "{found}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Sends a byte now and then until the other side has had enough, and returns what it said.
async fn dribble(mut client: TcpStream) -> Vec<u8> {
    let (mut reading, mut writing) = client.split();
    let mut answer = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut answer);
    let write = async {
        while writing.write_all(b"a").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    // A reset is an answer, too.
    tokio::select! { read = read => drop(read), () = write => {} }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_bodies_that_dribble_end_by_themselves() {
    const EACH: usize = 200;
    // Both begin with a request's first byte: apart, so that it is known which of them ends it.
    const TIMEOUTS: [(&str, &str); 3] = [
        ("/filter_chains/0/filters/0/typed_config/request_headers_timeout", "2s"),
        ("/filter_chains/0/filters/0/typed_config/request_timeout", "6s"),
        ("/filter_chains/0/filters/0/typed_config/common_http_protocol_options/idle_timeout", "2s"),
    ];
    let engine = Recorder::start(Behaviour::Answer).await.unwrap();
    let fine = pool("fine", vec![endpoint("e", engine.addr(), 1.0)]);
    let envoy = gateway(vec![fine], TIMEOUTS.map(|(pointer, time)| (pointer, json!(time))).to_vec()).await;
    let before = envoy.rss_bytes().unwrap();
    let mut clients = Vec::new();
    for _ in 0..EACH {
        for beginning in [
            &b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-a: "[..],
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{",
        ] {
            let mut client = TcpStream::connect(envoy.gateway()).await.unwrap();
            client.write_all(beginning).await.unwrap();
            clients.push(tokio::spawn(dribble(client)));
        }
    }
    let mut idle = Vec::new();
    for _ in 0..EACH {
        idle.push(TcpStream::connect(envoy.gateway()).await.unwrap());
    }
    others_are_served(&envoy).await;
    let grown = envoy.rss_bytes().unwrap().saturating_sub(before);
    println!("{} slow clients: {} KB of memory", 3 * EACH, grown >> 10);
    assert!(grown < (3 * EACH as u64) * (128 << 10), "{grown}");
    for client in clients {
        let answer = client.await.unwrap();
        assert!(answer.is_empty() || raw::status(&answer) == Some(408), "{}", String::from_utf8_lossy(&answer));
    }
    for mut client in idle {
        assert_eq!(raw::read_until(&mut client, |_| false).await, b"");
    }
    others_are_served(&envoy).await;
    counted(&envoy, "http.gateway.downstream_rq_header_timeout", EACH as u64).await;
    counted(&envoy, "http.gateway.downstream_rq_timeout", EACH as u64).await;
    counted(&envoy, "http.gateway.downstream_cx_idle_timeout", EACH as u64).await;
    envoy.idle(DEADLINE).await.unwrap();
    assert_eq!(engine.seen().len(), 2, "no part of a request reached the engine");
}

// The engine sends without end, and nobody reads: the engine is held back, and the slot is free again when the client has read
// nothing for TCP_USER_TIMEOUT.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_reads_gives_its_slot_back() {
    const CLIENTS: u64 = 40;
    const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    let (flood, engine) =
        (Recorder::start(Behaviour::Flood).await.unwrap(), Recorder::start(Behaviour::Answer).await.unwrap());
    let mut floods = pool("m", vec![endpoint("flood", flood.addr(), 1.0)]);
    floods.admission.base_cap = u32::try_from(CLIENTS).unwrap();
    let fine = pool("fine", vec![endpoint("e", engine.addr(), 1.0)]);
    let envoy = gateway(vec![floods, fine], vec![("/socket_options/0/int_value", json!(3_000))]).await;
    others_are_served(&envoy).await;
    let before = envoy.rss_bytes().unwrap();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = raw::connect_narrow(envoy.gateway()).await.unwrap();
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", CHAT.len());
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(CHAT.as_bytes()).await.unwrap();
        clients.push(client);
    }
    eventually("every stream has begun", DEADLINE, async || {
        let begun = flood.seen().len() as u64;
        ensure!(begun == CLIENTS, "{begun}");
        Ok(())
    })
    .await
    .unwrap();
    others_are_served(&envoy).await;
    // All that want a slot get one after those are cut off.
    let mut late = raw::connect_narrow(envoy.gateway()).await.unwrap();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{CHAT}", CHAT.len());
    late.write_all(head.as_bytes()).await.unwrap();
    let answer = raw::read_until(&mut late, |bytes| bytes.len() > 1_000).await;
    assert_eq!(raw::status(&answer), Some(200));
    let grown = envoy.rss_bytes().unwrap().saturating_sub(before);
    println!("{CLIENTS} clients that did not read an endless stream: {} KB each", (grown >> 10) / CLIENTS);
    // The listener's buffer and the cluster's, 1 MiB each, which one read may pass.
    assert!(grown < CLIENTS * (4 << 20), "{grown}");
    drop(late);
    envoy.idle(DEADLINE).await.unwrap();
    // The client's fault: nobody blames the endpoint.
    assert_eq!(envoy.stats().await.unwrap().sum("wasmcustom.weighbridge_ejections."), 0);
    drop(clients);
}
