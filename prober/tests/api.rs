//! The REST API in-process: token, foreign origins, errors, and what a restart finds.

mod common;

use common::{Prober, endpoint, start};
use serde_json::{Value, json};

#[tokio::test]
async fn with_a_token_everything_under_v1_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some("0123456789abcdef")).await;
    let status = async |token: Option<&str>, path: &str| {
        let mut request = prober.http.get(prober.url(path));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(None, "/v1/endpoints").await, 401);
    assert_eq!(status(Some("0123456789abcdeX"), "/v1/endpoints").await, 401);
    assert_eq!(status(Some("0123456789abcdef0"), "/v1/endpoints").await, 401);
    assert_eq!(status(Some("0123456789abcdef"), "/v1/endpoints").await, 200);
    for open in ["/healthz", "/metrics", "/openapi.json"] {
        assert_eq!(status(None, open).await, 200, "{open}");
    }
    // What filters show with their reports is in the snapshot, and opens nothing else.
    let snapshot = prober.http.get(prober.url("/v1/snapshot")).bearer_auth("0123456789abcdef").send().await.unwrap();
    let snapshot: Value = snapshot.json().await.unwrap();
    let reports = snapshot["filter"]["reports_token"].as_str().unwrap().to_owned();
    assert!(reports.len() == 64 && !reports.contains("0123456789abcdef"), "{reports}");
    let report = async |token: Option<&str>, path: &str, body: Value| {
        let mut request = prober.http.post(prober.url(path)).body(body.to_string());
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.header("content-type", "application/json").send().await.unwrap().status().as_u16()
    };
    let load = || json!({"envoy": "e", "pools": {}});
    let records = || json!({"envoy": "e", "seen": 0, "dropped": 0, "decisions": []});
    for token in [Some(reports.as_str()), Some("0123456789abcdef")] {
        assert_eq!(report(token, "/v1/signals", load()).await, 200);
        assert_eq!(report(token, "/v1/decisions", records()).await, 200);
    }
    assert_eq!((report(None, "/v1/signals", load()).await, report(None, "/v1/decisions", records()).await), (401, 401));
    for path in ["/v1/endpoints", "/v1/decisions", "/v1/snapshot"] {
        assert_eq!(status(Some(&reports), path).await, 401, "{path}");
    }
    assert_eq!(report(Some(&reports), "/v1/endpoints", endpoint("e", 9)).await, 401);
    prober.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    let send = async |origin: String| {
        let request = prober.http.post(prober.url("/v1/endpoints")).header("origin", origin);
        request.body(endpoint("e", 9).to_string()).send().await.unwrap().status().as_u16()
    };
    assert_eq!(send("http://evil.example".into()).await, 403);
    assert_eq!(send("null".into()).await, 403);
    assert_eq!(send(format!("http://{}", prober.running.api)).await, 201);
    // A name that was made to lead here: its page reads from its own origin, of which the browser says no more.
    for (host, expected) in
        [("evil.example", 403), ("evil.example:7070", 403), ("localhost:7070", 200), ("[::1]:7070", 200)]
    {
        let answer = prober.http.get(prober.url("/v1/fleet")).header("host", host).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), expected, "{host}");
    }
    prober.stop().await;
}

#[tokio::test]
async fn wrong_registrations_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    for (field, value) in [
        ("id", json!("a b")),
        ("address", json!("127.0.0.1")),
        ("address", json!("127.0.0.1:0")),
        ("address", json!("0.0.0.0:80")),
        ("address", json!("no-such-host.invalid:80")),
        ("pool", json!("none")),
        ("context_window", json!(0)),
        ("max_in_flight", json!(0)),
        ("max_in_flight", json!("many")),
        ("node", json!(7)),
    ] {
        let mut body = endpoint("e", 9);
        body[field] = value.clone();
        let (status, answer) = prober.post(body).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(field), "{field} {value}: {status} {message}");
    }
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 201);
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 200);
    let mut elsewhere = endpoint("e", 9);
    elsewhere["pool"] = json!("q");
    assert_eq!(prober.post(elsewhere).await.0, 409);
    let gone = prober.http.delete(prober.url("/v1/endpoints/none")).send().await.unwrap();
    assert_eq!(gone.status().as_u16(), 404);
    prober.stop().await;
}

#[tokio::test]
async fn what_is_no_object_or_no_text_is_refused_in_the_apis_own_shape() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    for body in [json!(["p", "e", "127.0.0.1:9"]), json!([]), json!("p"), json!(7), json!(null)] {
        let (status, answer) = prober.post(body.clone()).await;
        assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("invalid_body")), "{body}: {answer}");
    }
    let answer = prober.http.get(prober.url("/v1/endpoints/%ff")).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["error"]["code"], "invalid_path", "{answer}");
    let document: Value = prober.http.get(prober.url("/openapi.json")).send().await.unwrap().json().await.unwrap();
    assert_eq!(document["paths"]["/v1/endpoints/{id}"]["get"]["parameters"][0]["name"], "id");
    prober.stop().await;
}

#[tokio::test]
async fn a_restart_finds_registrations_pins_and_drains() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 201);
    for (what, body) in [("pin", json!({"weight": 2.5, "reason": "why"})), ("drain", json!({}))] {
        let answer = prober.http.put(prober.url(&format!("/v1/endpoints/e/{what}"))).json(&body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
    }
    prober.stop().await;
    let prober = start(dir.path(), None).await;
    let seen: Value = prober.http.get(prober.url("/v1/endpoints/e")).send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&seen["weight"], &seen["weight_source"], &seen["state"]),
        (&json!(2.5), &json!("pinned"), &json!("draining"))
    );
    assert_eq!(seen["pin"]["reason"], "why");
    prober.stop().await;
}

#[tokio::test]
async fn one_that_registers_again_before_it_is_forgotten_keeps_pin_and_drain() {
    let dir = tempfile::tempdir().unwrap();
    let stands = async |prober: &Prober| {
        let view = prober.get("/v1/endpoints/e").await;
        (view["pin"]["weight"].as_f64(), view["drain"]["reason"].clone(), view["removal"].clone())
    };
    let prober = start(dir.path(), None).await;
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 201);
    for (path, body) in [("pin", json!({"weight": 7.0})), ("drain", json!({"reason": "fan broken"}))] {
        let put = prober.http.put(prober.url(&format!("/v1/endpoints/e/{path}"))).json(&body).send().await.unwrap();
        assert_eq!(put.status().as_u16(), 200);
    }
    let removed = prober.http.delete(prober.url("/v1/endpoints/e")).send().await.unwrap();
    assert_eq!(removed.status().as_u16(), 202);
    assert!(stands(&prober).await.2.is_object(), "it goes");
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 200);
    let here = stands(&prober).await;
    assert_eq!(here, (Some(7.0), json!("fan broken"), Value::Null));
    prober.stop().await;
    let prober = start(dir.path(), None).await;
    assert_eq!(stands(&prober).await, here, "what is stored is what was in force");
    prober.stop().await;
}

#[tokio::test]
async fn an_envoy_hears_what_the_others_have_and_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 201);
    let report = async |body: Value| {
        let answer = prober.http.post(prober.url("/v1/signals")).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let of = |envoy: &str, in_flight: u32, served: Value| {
        let told = json!({"in_flight": in_flight, "pending_tokens": 100 * in_flight, "served": served});
        json!({"envoy": envoy, "pools": {"p": {"waiting": 1, "endpoints": {"e": told, "unknown": {}}}, "gone": {"endpoints": {"x": {}}}}})
    };
    let (status, first) = report(of("one", 3, Value::Null)).await;
    assert_eq!(
        (status, &first),
        (200, &json!({"pools": {"gone": {}, "p": {"e": {"others": 0, "others_tokens": 0, "outside": 0}}}}))
    );
    let served = json!({"requests": 4, "errors": 1, "e2e_ms": {"n": 3, "sum": 300.0}});
    let (_, second) = report(of("two", 5, served)).await;
    assert_eq!(
        (&second["pools"]["p"]["e"]["others"], &second["pools"]["p"]["e"]["others_tokens"]),
        (&json!(3), &json!(300))
    );
    let (_, again) = report(of("one", 4, Value::Null)).await;
    assert_eq!(again["pools"]["p"]["e"]["others"], 5, "{again}");
    let page = prober.http.get(prober.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for line in
        ["weighbridge_prober_envoys_reporting 2.0", r#"weighbridge_prober_envoys_in_flight{pool="p",endpoint="e"} 9.0"#]
    {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    prober.stop().await;
}

#[tokio::test]
async fn a_report_that_cannot_be_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    let report = async |body: String| {
        let answer = prober.http.post(prober.url("/v1/signals")).body(body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap())
    };
    let many = |count: usize| (0..count).map(|nth| (format!("e{nth}"), json!({}))).collect::<serde_json::Map<_, _>>();
    let too_many = json!({"envoy": "e", "pools": {"p": {"endpoints": many(1_025)}}});
    let too_many_pools = json!({"envoy": "e", "pools": many(257)});
    for (body, status, said) in [
        (json!({"pools": {}}), 400, "envoy"),
        (json!({"envoy": "a b", "pools": {}}), 400, "envoy is"),
        (json!({"envoy": "x".repeat(65), "pools": {}}), 400, "envoy is"),
        (json!({"envoy": "e", "pools": {"p": {"endpoints": {"e": {"in_flight": -1}}}}}), 400, "in_flight"),
        (too_many, 400, "1025"),
        (too_many_pools, 400, "257"),
        (json!({"envoy": "e", "padding": "x".repeat(3 << 20)}), 413, ""),
    ] {
        let (found, text) = report(body.to_string()).await;
        assert!(found == status && text.contains(said), "{status} {said}: {found} {text}");
    }
    let (status, _) = report(json!({"envoy": "e", "pools": {}, "novel": "x".repeat(1 << 20)}).to_string()).await;
    assert_eq!(status, 200, "a newer filter may say more");
    prober.stop().await;
}

#[tokio::test]
async fn decisions_are_found_by_their_first_token_and_put_into_words() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    let record = |time_ms: u64, ttft_ms: u64| {
        let result = json!({"endpoint": "a", "status": 200, "attempts": 1, "ttft_ms": ttft_ms, "duration_ms": 2_000});
        json!({"time_ms": time_ms, "request_id": format!("r{ttft_ms}"), "pool": "p", "snapshot": 1,
            "reason": "lower_load", "picked": "a", "result": result})
    };
    let batch = json!({"envoy": "e", "decisions": [record(10_000, 50), record(20_000, 900), record(30_000, 1_500)]});
    let answer = prober.http.post(prober.url("/v1/decisions")).json(&batch).send().await.unwrap();
    assert_eq!(answer.json::<Value>().await.unwrap()["kept"], 3);
    let ids = async |query: &str| {
        let found = prober.get(&format!("/v1/decisions?{query}")).await;
        let all = found["decisions"].as_array().unwrap().clone();
        all.iter().map(|record| record["request_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("ttft_ms=900").await, ["r1500", "r900"]);
    assert_eq!(ids("until=22000").await, ["r900", "r50"]);
    assert_eq!(ids("since=22000&until=22000").await, ["r900"]);
    let found = prober.get("/v1/decisions?words=true&limit=1").await;
    let about: Vec<&Value> = found["explanations"][0].as_array().unwrap().iter().map(|part| &part["about"]).collect();
    assert_eq!((found["explanations"].as_array().unwrap().len(), about[0]), (1, &json!("request")));
    let first = &found["explanations"][0][0];
    assert!(first["title"] == "Request" && first["sentences"][0].as_str().unwrap().contains("r1500"), "{first}");
    assert!(prober.get("/v1/decisions").await.get("explanations").is_none());
    let wrong = prober.http.get(prober.url("/v1/decisions?until=never")).send().await.unwrap();
    let wrong: Value = wrong.json().await.unwrap();
    assert!(wrong["error"]["message"].as_str().unwrap().starts_with("until is \"never\""), "{wrong}");
    prober.stop().await;
}

#[tokio::test]
async fn a_batch_of_decisions_that_comes_again_is_taken_once() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    let record = json!({"time_ms": 1_000, "request_id": "r", "pool": "p", "snapshot": 1, "reason": "lower_load"});
    let post = async |vm: Value, batch: Value| {
        let mut body = json!({"envoy": "e", "decisions": [record]});
        for (field, value) in [("vm", vm), ("batch", batch)] {
            if !value.is_null() {
                body[field] = value;
            }
        }
        let answer = prober.http.post(prober.url("/v1/decisions")).json(&body).send().await.unwrap();
        let (status, answer) = (answer.status().as_u16(), answer.json::<Value>().await.unwrap());
        assert_eq!(status, 200, "{answer}");
        answer["kept"].as_u64().unwrap()
    };
    for (vm, batch, kept) in [
        (json!("one"), json!(1), 1),
        (json!("one"), json!(1), 0),
        (json!("one"), json!(2), 1),
        (json!(u64::MAX), json!(2), 1),
        (json!(u64::MAX), json!(2), 0),
        // A filter that does not count its batches.
        (Value::Null, Value::Null, 1),
        (Value::Null, Value::Null, 1),
    ] {
        assert_eq!(post(vm.clone(), batch.clone()).await, kept, "{vm} {batch}");
    }
    prober.stop().await;
}
