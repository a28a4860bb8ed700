//! What clients read: models, errors, headers, decision records, and bodies that are passed on.

use std::time::Duration;

use harness::engine_sim::server::{EngineConfig, EngineHandle};
use harness::load::{self, Call};
use harness::snapshot::{endpoint, pool, snapshot};
use harness::{Envoy, EnvoyOptions, eventually, wire};
use serde_json::{Value, json};

struct Gateway {
    envoy: Envoy,
    engine: EngineHandle,
}

/// One engine that calls its model `m`; clients may also say `alias`. `edit` changes the snapshot.
async fn gateway(edit: impl FnOnce(&mut wire::Snapshot)) -> Gateway {
    let config = EngineConfig { name: "e1".into(), model: "m".into(), ..EngineConfig::default() };
    let engine = EngineHandle::start(config).await.unwrap();
    let mut pool = pool("m", vec![endpoint("gpu-1", engine.addr(), 1.0)]);
    pool.models.push("alias".into());
    pool.served_model = Some("m".into());
    pool.endpoints[0].context_window = Some(4096);
    let mut snapshot = snapshot(vec![pool]);
    edit(&mut snapshot);
    Gateway { envoy: Envoy::start(EnvoyOptions::fixed(snapshot)).await.unwrap(), engine }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_refused_by_name() {
    let Gateway { envoy, engine } = gateway(|_| ()).await;
    let nested = format!("{{\"model\":\"m\",\"x\":{}1{}}}", "[".repeat(300), "]".repeat(300));
    let cases: [(&str, &[u8], u16, &str, Value); 12] = [
        ("broken JSON", b"{\"model\":", 400, "invalid_request_body", Value::Null),
        ("empty", b"", 400, "invalid_request_body", Value::Null),
        ("a list", b"[]", 400, "invalid_request_body", Value::Null),
        ("no model", b"{\"messages\":[]}", 400, "invalid_request_body", json!("model")),
        ("model of another type", b"{\"model\":7}", 400, "invalid_request_body", json!("model")),
        ("invalid UTF-8", b"{\"model\":\"m\",\"x\":\"\xff\"}", 400, "invalid_request_body", Value::Null),
        ("a byte order mark", b"\xef\xbb\xbf{\"model\":\"m\"}", 400, "invalid_request_body", Value::Null),
        ("NaN", b"{\"model\":\"m\",\"temperature\":NaN}", 400, "invalid_request_body", Value::Null),
        ("infinity", b"{\"model\":\"m\",\"x\":[-Infinity]}", 400, "invalid_request_body", Value::Null),
        ("NUL", b"\x00", 400, "invalid_request_body", Value::Null),
        ("too deep", nested.as_bytes(), 400, "invalid_request_body", Value::Null),
        ("another model", b"{\"model\":\"gpt\"}", 404, "model_not_found", json!("model")),
    ];
    for path in ["/v1/chat/completions", "/v1/completions?x=1"] {
        for (what, body, status, code, param) in &cases {
            let outcome = load::send(envoy.gateway(), Call::post(path, body.to_vec())).await;
            assert_eq!(outcome.status, Some(*status), "{what}: {outcome:?}");
            assert_eq!(outcome.header("content-type"), "application/json", "{what}");
            let error = &outcome.json()["error"];
            assert_eq!((&error["code"], &error["param"]), (&json!(code), param), "{what}");
            assert!(error["message"].as_str().is_some_and(|message| message.len() > 20), "{what}");
        }
    }
    let outcome = load::send(envoy.gateway(), Call::get("/v1/chat/completions")).await;
    assert_eq!((outcome.status, outcome.header("allow")), (Some(405), "POST"));
    assert_eq!(engine.state().requests_total, 0);
}

// Case C1: bodies of 128 KB, 660 KB and 16 MB pass; beyond the limit 413 names it.
#[tokio::test(flavor = "multi_thread")]
async fn c1_large_bodies_pass_up_to_the_limit() {
    let Gateway { envoy, engine } = gateway(|snapshot| {
        snapshot.filter.max_body = 16 * 1024 * 1024;
        snapshot.pools[0].endpoints[0].context_window = None;
    })
    .await;
    let limit = 16 * 1024 * 1024;
    for (size, status) in
        [(128 << 10, 200), (660 << 10, 200), (limit, 200), (limit + 1, 413), (17 << 20, 413), (20 << 20, 413)]
    {
        // The field is none of the engine's: what counts here is the way to it. `model` comes last.
        let frame = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"metadata":"","model":"m"}"#;
        let body = frame.replace(r#""metadata":"""#, &format!(r#""metadata":"{}""#, "x".repeat(size - frame.len())));
        assert_eq!(body.len(), size);
        let outcome = load::send(envoy.gateway(), Call::post("/v1/chat/completions", body)).await;
        assert_eq!(outcome.status, Some(status), "{size} bytes: {:?}", outcome.error);
        if status == 413 && size == limit + 1 {
            let message = outcome.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(message.contains("16777216"), "{message}");
        }
    }
    assert_eq!(engine.state().finished_total, 3);
    envoy.idle(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_from_the_snapshot() {
    let Gateway { envoy, .. } = gateway(|_| ()).await;
    let outcome = load::send(envoy.gateway(), Call::get("/v1/models")).await;
    assert_eq!(outcome.status, Some(200));
    let list = outcome.json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["m", "alias"]);
    assert_eq!(list["data"][0]["max_model_len"], 4096);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_is_renamed_and_nothing_else_is_touched() {
    let Gateway { envoy, engine } = gateway(|_| ()).await;
    let body = r#"{"messages":[{"role":"user","content":"say \"model\""}], "max_tokens":3, "model" : "alias","min_tokens":3,"ignore_eos":true}"#;
    let outcome = load::send(envoy.gateway(), Call::post("/v1/chat/completions", body)).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!((outcome.tokens, outcome.engine(), outcome.endpoint()), (3, "e1", "gpu-1"));
    // The engine knows the model only by its own name, and refuses any other.
    assert_eq!(engine.state().refused_total, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_explained_where_that_is_allowed_and_always_logged() {
    let Gateway { envoy, engine: _engine } =
        gateway(|snapshot| snapshot.filter.client_headers = vec!["explain".into()]).await;
    let call = Call::chat("m", "hello", 2).header("x-weighbridge-explain", "1");
    let outcome = load::send(envoy.gateway(), call).await;
    let decision: Value = serde_json::from_str(outcome.header("x-weighbridge-decision")).unwrap();
    assert_eq!(decision["reason"], "only_one");
    assert_eq!(decision["candidates"][0]["id"], "gpu-1");
    let plain = load::send(envoy.gateway(), Call::chat("m", "hello", 2)).await;
    assert_eq!(plain.header("x-weighbridge-decision"), "");
    // Envoy's access log has the record with its result, as an object in a string.
    let logged = eventually("the access log", Duration::from_secs(15), async || {
        envoy
            .access_log()
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line["decision"].as_str()?).ok())
            .next()
            .ok_or_else(|| anyhow::anyhow!("no decision in {:?}", envoy.access_log()))
    })
    .await
    .unwrap();
    assert_eq!(logged["picked"], "gpu-1");
    assert_eq!((&logged["result"]["endpoint"], &logged["result"]["status"]), (&json!("gpu-1"), &json!(200)));
    let other = gateway(|_| ()).await;
    let call = Call::chat("m", "hello", 2).header("x-weighbridge-explain", "1");
    assert_eq!(load::send(other.envoy.gateway(), call).await.header("x-weighbridge-decision"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_passes_through_untouched_and_is_not_held_back() {
    let Gateway { envoy, engine } = gateway(|_| ()).await;
    let direct = load::send(engine.addr(), Call::chat_stream("m", "hello", 20)).await;
    let through = load::send(envoy.gateway(), Call::chat_stream("m", "hello", 20)).await;
    assert!(direct.is_ok() && through.is_ok(), "{through:?}");
    assert_eq!((direct.tokens, through.tokens), (20, 20));
    assert!(through.body.ends_with(b"data: [DONE]\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_endpoint_the_answer_is_503() {
    let Gateway { envoy, .. } = gateway(|snapshot| snapshot.pools[0].endpoints[0].state = wire::State::Unhealthy).await;
    let outcome = load::send(envoy.gateway(), Call::chat("m", "hello", 2)).await;
    assert_eq!(outcome.status, Some(503));
    assert_eq!(outcome.json()["error"]["code"], "no_endpoint");
    assert_eq!(outcome.header("retry-after"), "1");
}

// Case C24: names that clients make up do not become labels.
#[tokio::test(flavor = "multi_thread")]
async fn c24_made_up_model_names_make_no_metrics() {
    let Gateway { envoy, .. } = gateway(|_| ()).await;
    let report = load::closed_loop(envoy.gateway(), 8, 300, |nth| Call::chat(&format!("made-up-{nth}"), "x", 1)).await;
    assert_eq!(report.by_status().get("404"), Some(&300));
    eventually("the refusals are counted", Duration::from_secs(10), async || {
        let stats = envoy.stats().await?;
        let name = "wasmcustom.weighbridge_requests.pool.none.endpoint.none.reason.model_not_found";
        anyhow::ensure!(stats.get(name) == 300, "{}", stats.get(name));
        anyhow::ensure!(stats.with_prefix("wasmcustom.").all(|(name, _)| !name.contains("made-up")));
        Ok(())
    })
    .await
    .unwrap();
}
