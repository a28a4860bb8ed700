//! Secrets and who is let in, with real Envoys: mTLS of xDS, TLS and keys of engines, and nothing that shows a secret.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, ensure};
use harness::load::{self, Call};
use harness::snapshot::{pool, snapshot};
use harness::tls::{Authority, Front, Issued, get};
use harness::upstream::{Reply, Upstream};
use harness::{Envoy, EnvoyOptions, ProberProcess, eventually};
use serde_json::{Value, json};

use crate::common::{DEADLINE, Site, applied, chat, engine, even};

const NAME: &str = "prober.test";

/// What an Envoy needs to speak TLS to the prober, as docs/security.md shows it.
fn transport_socket(authority: &Authority, client: Option<&Issued>) -> Value {
    let mut context = json!({"validation_context": {
        "trusted_ca": {"filename": authority.file()},
        "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": NAME}}],
    }});
    if let Some(issued) = client {
        context["tls_certificates"] =
            json!([{"certificate_chain": {"filename": issued.cert}, "private_key": {"filename": issued.key}}]);
    }
    json!({"name": "envoy.transport_sockets.tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": NAME, "common_tls_context": context}})
}

/// Gives the two clusters of the prober these transport sockets.
fn secure(config: &mut Value, sockets: &[(&str, Value)]) {
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        if let Some((_, socket)) = sockets.iter().find(|(name, _)| cluster["name"] == *name) {
            cluster["transport_socket"] = socket.clone();
        }
    }
}

async fn envoy(prober: &ProberProcess, sockets: Vec<(&'static str, Value)>) -> Envoy {
    let options = EnvoyOptions {
        snapshot: Some(snapshot(vec![pool("m", Vec::new())])),
        prober: Some(prober.api()),
        edit: Some(Box::new(move |config| secure(config, &sockets))),
        ..EnvoyOptions::with_xds(prober.xds())
    };
    Envoy::start(options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn xds_over_mtls_and_reports_over_tls_work_and_a_stranger_is_refused() {
    let a = engine("a", even()).await;
    let authority = Authority::new("weighbridge").unwrap();
    let issued = authority.issue(NAME).unwrap();
    let mut site = Site::new(&[&a]);
    let tls = json!({"cert_file": issued.cert, "key_file": issued.key});
    site.config["api"]["tls"] = tls.clone();
    site.config["xds"]["tls"] = tls;
    site.config["xds"]["tls"]["client_ca_file"] = json!(authority.file());
    let prober = site.prober().await;
    let client = authority.issue("envoy-1").unwrap();
    let known = envoy(
        &prober,
        vec![
            ("weighbridge-xds", transport_socket(&authority, Some(&client))),
            ("weighbridge-prober", transport_socket(&authority, None)),
        ],
    )
    .await;
    eventually("answers of the engine", DEADLINE, async || {
        let outcome = load::send(known.gateway(), chat()).await;
        ensure!(outcome.is_ok() && outcome.engine() == "a", "{outcome:?}");
        Ok(())
    })
    .await
    .unwrap();
    eventually("reports come through", DEADLINE, async || {
        let stats = known.stats().await?;
        ensure!(stats.get("wasmcustom.weighbridge_signals_calls.result.ok") > 0);
        ensure!(stats.get("wasmcustom.weighbridge_signals_stale") == 0);
        Ok(())
    })
    .await
    .unwrap();
    let stranger = envoy(
        &prober,
        vec![
            ("weighbridge-xds", transport_socket(&authority, None)),
            ("weighbridge-prober", transport_socket(&authority, None)),
        ],
    )
    .await;
    let refused = async || {
        let (_, page) = get(prober.api(), NAME, "/metrics", &authority, None).await?;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(r#"weighbridge_prober_tls_refused_total{listener="xds.tls"} "#));
        Ok::<u64, anyhow::Error>(line.context("no such metric")?.parse()?)
    };
    eventually("the stranger is refused", DEADLINE, async || {
        ensure!(refused().await? > 0);
        Ok(())
    })
    .await
    .unwrap();
    assert!(!load::send(stranger.gateway(), chat()).await.is_ok(), "a stranger was told where the engines are");
    let (_, envoys) = get(prober.api(), NAME, "/v1/envoys", &authority, None).await.unwrap();
    let envoys: Value = serde_json::from_str(&envoys).unwrap();
    assert_eq!(envoys["envoys"].as_array().unwrap().len(), 1, "{envoys}");
}

/// An answer that probes take for one as well.
fn answer(name: &str) -> Reply {
    let body = json!({"id": "c", "object": "chat.completion", "model": name, "choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": name}}], "usage": {"prompt_tokens": 8, "completion_tokens": 16, "total_tokens": 24}});
    Reply::json(body.to_string())
}

fn keys(seen: Vec<harness::upstream::Seen>) -> Vec<Option<String>> {
    seen.into_iter().map(|seen| seen.headers.get("authorization").cloned()).collect()
}

fn write(dir: &Path, name: &str, content: &str) -> std::path::PathBuf {
    std::fs::write(dir.join(name), content).unwrap();
    dir.join(name)
}

/// A prober and an Envoy before endpoints as they are written here.
async fn gateway(endpoints: Value) -> (Site, ProberProcess, Envoy) {
    let mut site = Site::new(&[]);
    site.config["pools"][0]["endpoints"] = endpoints;
    // Both are asked, whatever they measure.
    site.config["pools"][0]["policy"] = json!({"name": "round_robin"});
    let (prober, envoy) = site.start(1).await;
    (site, prober, envoy)
}

fn at(id: &str, port_of: SocketAddr, host: &str) -> Value {
    json!({"id": id, "address": format!("{host}:{}", port_of.port()), "launch_args": "-x"})
}

// One over TLS with a key, one without TLS with another key, one with neither: each gets its own, from the prober and from
// Envoy, at the first attempt and when it takes over from another.
#[tokio::test(flavor = "multi_thread")]
async fn every_engine_gets_its_own_key_and_tls() {
    let dir = tempfile::TempDir::with_prefix("weighbridge-keys-").unwrap();
    let authority = Authority::new("engines").unwrap();
    let (one, two, three) = (
        Upstream::start(answer("one")).await.unwrap(),
        Upstream::start(answer("two")).await.unwrap(),
        Upstream::start(answer("three")).await.unwrap(),
    );
    let front = Front::start(&authority.issue("engine-one.test").unwrap(), one.addr()).await.unwrap();
    let mut endpoints = [
        at("one", front.addr(), "127.0.0.1"),
        at("two", two.addr(), "127.0.0.1"),
        at("three", three.addr(), "127.0.0.1"),
    ];
    endpoints[0]["tls"] = json!({"sni": "engine-one.test", "ca_file": authority.file()});
    endpoints[0]["api_key_file"] = json!(write(dir.path(), "one", "key-of-one\n"));
    endpoints[1]["api_key_file"] = json!(write(dir.path(), "two", "key-of-two"));
    let (_site, prober, envoy) = gateway(json!(endpoints)).await;
    let all = [&one, &two, &three];
    let probed = all.map(|upstream| keys(upstream.take_seen()));
    let expected = [Some("Bearer key-of-one"), Some("Bearer key-of-two"), None];
    let own = |nth: usize, found: &Vec<Option<String>>| found.iter().all(|key| key.as_deref() == expected[nth]);
    for (nth, found) in probed.iter().enumerate() {
        assert!(!found.is_empty() && own(nth, found), "probes of {nth}: {found:?}");
    }
    let view = prober.endpoint("one").await.unwrap();
    assert_eq!((&view["tls"], &view["api_key"]), (&json!(true), &json!(true)), "{view}");
    let view = prober.endpoint("three").await.unwrap();
    assert_eq!((&view["tls"], &view["api_key"]), (&json!(false), &json!(false)), "{view}");
    // A client's own key goes to none of them, since one has a key; and no key to another engine, whoever was tried before.
    let ask = async || {
        let call = Call::chat("m", "hello", 4).header("authorization", "Bearer of-the-client");
        let outcome = load::send(envoy.gateway(), call).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        outcome.endpoint().to_owned()
    };
    let mut used = std::collections::BTreeSet::new();
    for _ in 0..12 {
        used.insert(ask().await);
    }
    assert_eq!(used.len(), 3, "{used:?}");
    let chats = |upstream: &Upstream| {
        let mut seen = upstream.take_seen();
        seen.retain(|seen| seen.headers.contains_key("x-request-id"));
        keys(seen)
    };
    for (nth, upstream) in all.iter().enumerate() {
        let found = chats(upstream);
        assert!(!found.is_empty() && found.iter().all(|key| key.as_deref() == expected[nth]), "{nth}: {found:?}");
    }
    // The first one dies: its requests go on to others, each with the key of who really answers.
    drop(front);
    for _ in 0..6 {
        assert_ne!(ask().await, "one");
    }
    for (nth, upstream) in all.iter().enumerate() {
        let found = chats(upstream);
        assert!(found.iter().all(|key| key.as_deref() == expected[nth]), "after the failure, {nth}: {found:?}");
    }
    // A key that turns is in force soon.
    write(dir.path(), "two", "another-key-of-two");
    eventually("the new key", DEADLINE, async || {
        ask().await;
        let found = chats(&two);
        ensure!(found.last().is_some_and(|key| key.as_deref() == Some("Bearer another-key-of-two")), "{found:?}");
        Ok(())
    })
    .await
    .unwrap();
}

// An endpoint with TLS joins a pool that serves: the cluster changes, and not a request is lost.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_with_tls_joins_while_requests_flow() {
    let authority = Authority::new("engines").unwrap();
    let (one, two) = (Upstream::start(answer("one")).await.unwrap(), Upstream::start(answer("two")).await.unwrap());
    let front = Front::start(&authority.issue("engine-two.test").unwrap(), two.addr()).await.unwrap();
    let mut site = Site::new(&[]);
    site.config["pools"][0]["endpoints"] = json!([at("one", one.addr(), "127.0.0.1")]);
    site.config["pools"][0]["policy"] = json!({"name": "round_robin"});
    site.config["api"]["key_dir"] = json!(authority.file().parent().unwrap());
    let (prober, envoy) = site.start(2).await;
    let gateway = envoy.gateway();
    let stop = tokio_util::sync::CancellationToken::new();
    let stopped = stop.clone();
    let flow = tokio::spawn(async move {
        let (mut sent, mut failed) = (0, Vec::new());
        while !stopped.is_cancelled() {
            let outcome = load::send(gateway, chat()).await;
            sent += 1;
            if !outcome.is_ok() {
                failed.push(format!("{outcome:?}"));
            }
        }
        (sent, failed)
    });
    let mut joining = at("two", front.addr(), "127.0.0.1");
    joining["pool"] = json!("m");
    joining["tls"] = json!({"sni": "engine-two.test", "ca_file": authority.file()});
    prober.post("/v1/endpoints", &joining).await.unwrap();
    prober.ready(DEADLINE).await.unwrap();
    eventually("answers of the new one", DEADLINE, async || {
        let outcome = load::send(gateway, chat()).await;
        ensure!(outcome.endpoint() == "two", "{:?}", outcome.endpoint());
        Ok(())
    })
    .await
    .unwrap();
    applied(&prober).await;
    stop.cancel();
    let (sent, failed) = flow.await.unwrap();
    assert!(sent > 0 && failed.is_empty(), "{} of {sent} failed: {:?}", failed.len(), failed.first());
}

// A wrong certificate is no engine: neither the prober nor Envoy speaks to it.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_with_a_strangers_certificate_gets_nothing() {
    let dir = tempfile::TempDir::with_prefix("weighbridge-keys-").unwrap();
    let (authority, stranger) = (Authority::new("engines").unwrap(), Authority::new("stranger").unwrap());
    let (one, two) = (Upstream::start(answer("one")).await.unwrap(), Upstream::start(answer("two")).await.unwrap());
    let front = Front::start(&stranger.issue("engine-one.test").unwrap(), one.addr()).await.unwrap();
    let mut endpoints = [at("one", front.addr(), "127.0.0.1"), at("two", two.addr(), "127.0.0.1")];
    endpoints[0]["tls"] = json!({"sni": "engine-one.test", "ca_file": authority.file()});
    endpoints[0]["api_key_file"] = json!(write(dir.path(), "one", "key-of-one"));
    let mut site = Site::new(&[]);
    site.config["pools"][0]["endpoints"] = json!(endpoints);
    site.config["pools"][0]["policy"] = json!({"name": "round_robin"});
    let prober = site.prober().await;
    let envoy = site.envoy(&prober, 1).await;
    eventually("the other one answers", DEADLINE, async || {
        let outcome = load::send(envoy.gateway(), chat()).await;
        ensure!(outcome.is_ok() && outcome.endpoint() == "two", "{outcome:?}");
        Ok(())
    })
    .await
    .unwrap();
    for _ in 0..6 {
        assert_eq!(load::send(envoy.gateway(), chat()).await.endpoint(), "two");
    }
    assert!(one.take_seen().is_empty());
    let health = eventually("unhealthy", DEADLINE, async || {
        let endpoint = prober.endpoint("one").await?;
        ensure!(endpoint["state"] == "unhealthy", "{endpoint}");
        Ok(endpoint["health"]["last_error"].to_string())
    });
    let why = health.await.unwrap();
    assert!(why.contains("certificate"), "{why}");
}

// Prompt, client's key, engine's key, operators' token: markers that are found in no log, answer, record or metric.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_and_prompts_are_shown_nowhere() {
    const MARKERS: [&str; 5] = [
        "marker-of-the-prompt",
        "marker-of-the-clients-key",
        "marker-of-the-engines-key",
        "marker-of-the-token",
        "marker-of-the-answer",
    ];
    let dir = tempfile::TempDir::with_prefix("weighbridge-keys-").unwrap();
    // It repeats the key in its errors, as some do; and answers what nobody must log either.
    let one = Upstream::start(answer("marker-of-the-answer")).await.unwrap();
    let mut endpoint = at("one", one.addr(), "127.0.0.1");
    endpoint["api_key_file"] = json!(write(dir.path(), "one", MARKERS[2]));
    let mut site = Site::new(&[]);
    site.config["pools"][0]["endpoints"] = json!([endpoint]);
    site.config["api"]["token_file"] = json!(write(dir.path(), "token", MARKERS[3]));
    let mut prober = site.prober().await.with_token(MARKERS[3]);
    let envoy = site.envoy(&prober, 1).await;
    prober.ready(DEADLINE).await.unwrap();
    let ask = |prompt: &str| {
        let key = format!("Bearer {}", MARKERS[1]);
        Call::chat("m", prompt, 4).header("authorization", &key).explain()
    };
    let good = load::send(envoy.gateway(), ask(&MARKERS[0].repeat(40))).await;
    assert!(good.is_ok(), "{good:?}");
    let said =
        json!({"error": {"message": format!("incorrect key {}", MARKERS[2]), "code": "invalid_api_key"}}).to_string();
    one.set(Reply { status: 401, ..Reply::json(said) });
    assert_eq!(load::send(envoy.gateway(), ask(MARKERS[0])).await.status, Some(401));
    eventually("the engine's words are an alarm", DEADLINE, async || {
        let endpoint = prober.endpoint("one").await?;
        ensure!(endpoint["health"]["last_error"].to_string().contains("incorrect key"), "{endpoint}");
        Ok(())
    })
    .await
    .unwrap();
    let refused =
        load::send(envoy.gateway(), Call::post("/v1/chat/completions", format!("{{\"model\": \"m\", {}", MARKERS[0])))
            .await;
    assert_eq!(refused.status, Some(400));
    eventually("the records have come", DEADLINE, async || {
        let found = prober.get("/v1/decisions").await?;
        ensure!(found["kept"].as_u64().is_some_and(|kept| kept >= 2), "{found}");
        ensure!(envoy.access_log().len() >= 3);
        Ok(())
    })
    .await
    .unwrap();
    let mut shown = vec![
        ("the decision", good.decision().to_string()),
        ("the refusal", String::from_utf8_lossy(&refused.body).into_owned()),
        ("the access log", json!(envoy.access_log()).to_string()),
        ("Envoy's log", envoy.log()),
        ("the prober's log", format!("{}{}", prober.process().stdout(), prober.process().stderr())),
    ];
    for path in [
        "/v1/endpoints",
        "/v1/endpoints/one",
        "/v1/snapshot",
        "/v1/envoys",
        "/v1/decisions",
        "/metrics",
        "/readyz",
        "/openapi.json",
    ] {
        let url = format!("http://{}{path}", prober.api());
        let page = reqwest::Client::new().get(url).bearer_auth(MARKERS[3]).send().await.unwrap().text().await.unwrap();
        assert!(!page.is_empty(), "{path}");
        shown.push((path, page));
    }
    let stats = reqwest::get(format!("http://{}/stats/prometheus", envoy.admin())).await.unwrap().text().await.unwrap();
    shown.push(("Envoy's statistics", stats));
    for (place, text) in &shown {
        for marker in MARKERS {
            assert!(!text.contains(marker), "{marker} is in {place}:\n{text}");
        }
    }
    // They would have been found: the markers did travel.
    assert!(good.body.windows(MARKERS[4].len()).any(|bytes| bytes == MARKERS[4].as_bytes()));
    let seen = one.take_seen();
    assert!(seen.iter().any(|seen| String::from_utf8_lossy(&seen.body).contains(MARKERS[0])));
    assert!(seen.iter().all(|seen| seen.headers.get("authorization").is_some_and(|key| key.contains(MARKERS[2]))));
}
