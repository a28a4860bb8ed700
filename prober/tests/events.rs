//! The page's files, and the fleet as people watch it.

mod common;

use common::{endpoint, start};
use harness::Events;
use serde_json::{Value, json};

#[tokio::test]
async fn the_page_is_served_with_its_policy_and_needs_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some("0123456789abcdef")).await;
    let get = async |path: &str| prober.http.get(prober.url(path)).send().await.unwrap();
    for (path, kind) in [("/", "text/html"), ("/page/app.js", "text/javascript"), ("/page/app.css", "text/css")] {
        let answer = get(path).await;
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-type").starts_with(kind), "{path}");
        assert!(header("content-security-policy").starts_with("default-src 'none'; script-src 'self'"), "{path}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("cross-origin-opener-policy"), "same-origin");
        let again = prober.http.get(prober.url(path)).header("if-none-match", header("etag")).send().await.unwrap();
        assert_eq!(again.status().as_u16(), 304, "{path}");
    }
    assert_eq!(get("/page/none.js").await.status().as_u16(), 404);
    assert_eq!(get("/page/..%2f..%2fCargo.toml").await.status().as_u16(), 404);
    prober.stop().await;
}

#[tokio::test]
async fn a_stream_begins_with_the_fleet_and_goes_on_with_its_changes() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), Some("0123456789abcdef")).await;
    let http = &prober.http;
    let ask = |request: reqwest::RequestBuilder| request.bearer_auth("0123456789abcdef");
    let refused = Events::open(http.get(prober.url("/v1/events"))).await.unwrap();
    assert_eq!(refused.err(), Some(401));
    let mut events = Events::open(ask(http.get(prober.url("/v1/events")))).await.unwrap().unwrap();
    let first = events.next().await.unwrap().unwrap();
    assert_eq!((&first["auth"], &first["endpoints"], &first["ready"]), (&json!("token"), &json!([]), &json!(false)));
    let names: Vec<&Value> = first["pools"].as_array().unwrap().iter().map(|pool| &pool["name"]).collect();
    assert_eq!(names, ["p", "q"]);
    ask(http.post(prober.url("/v1/endpoints")))
        .json(&endpoint("e", 9))
        .send()
        .await
        .unwrap()
        .error_for_status()
        .unwrap();
    let seen = events.until("the endpoint is there", |fleet| fleet["endpoints"][0]["id"] == "e").await.unwrap();
    let shown = &seen["endpoints"][0];
    // Nobody reports, so nobody can tell; a registration can be removed.
    assert_eq!((&shown["in_flight"], &shown["origin"], &shown["asked"]), (&json!(null), &json!("api"), &json!(false)));
    let pin = json!({"weight": 2.5, "reason": "trial"});
    ask(http.put(prober.url("/v1/endpoints/e/pin"))).json(&pin).send().await.unwrap().error_for_status().unwrap();
    events.until("it is pinned", |fleet| fleet["endpoints"][0]["pin"]["reason"] == "trial").await.unwrap();
    // Nobody is at its address.
    let unhealthy = |fleet: &Value| {
        let alarm = |alarm: &Value| {
            alarm["code"] == "unhealthy" && alarm["subject"] == json!({"kind": "endpoint", "id": "e", "pool": "p"})
        };
        fleet["alarms"].as_array().unwrap().iter().any(alarm)
    };
    let fleet = events.until("it is said to be unhealthy", unhealthy).await.unwrap();
    let alarms: Value = ask(http.get(prober.url("/v1/alarms"))).send().await.unwrap().json().await.unwrap();
    assert_eq!(alarms["alarms"][0]["since_ms"], fleet["alarms"][0]["since_ms"]);
    // The same as one document.
    let whole: Value = ask(http.get(prober.url("/v1/fleet"))).send().await.unwrap().json().await.unwrap();
    assert_eq!(whole["endpoints"][0]["pin"]["weight"], 2.5);
    let one: Value = ask(http.get(prober.url("/v1/endpoints"))).send().await.unwrap().json().await.unwrap();
    for (name, value) in one["endpoints"][0].as_object().unwrap().iter().filter(|(name, _)| *name != "signals") {
        assert_eq!(&whole["endpoints"][0][name], value, "{name}");
    }
    // The end of the prober is the end of the stream, and does not wait for it.
    prober.shutdown.cancel();
    while events.next().await.unwrap().is_some() {}
    prober.stop().await;
}

#[tokio::test]
async fn so_many_streams_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    let open = async || Events::open(prober.http.get(prober.url("/v1/events"))).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(open().await.unwrap());
    }
    assert_eq!(open().await.err(), Some(503));
    for stream in &mut streams {
        assert_eq!(stream.next().await.unwrap().unwrap()["auth"], "none");
    }
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 201);
    for stream in &mut streams {
        stream.until("the endpoint is there", |fleet| fleet["endpoints"][0]["id"] == "e").await.unwrap();
    }
    // One that leaves makes room.
    streams.pop();
    harness::eventually("there is room", std::time::Duration::from_secs(20), async || {
        open().await.map(drop).map_err(|status| anyhow::anyhow!("{status}"))
    })
    .await
    .unwrap();
    prober.stop().await;
}

#[tokio::test]
async fn what_envoys_report_is_seen_by_endpoint_by_pool_and_over_time() {
    let dir = tempfile::tempdir().unwrap();
    let prober = start(dir.path(), None).await;
    assert_eq!(prober.post(endpoint("e", 9)).await.0, 201);
    for (envoy, told) in [
        (
            "one",
            json!({"in_flight": 3, "ejected": true, "served": {"requests": 1, "errors": 0, "ttft_ms": {"n": 1, "sum": 80.0}}}),
        ),
        ("two", json!({"in_flight": 4, "cooling_down": true, "novel": 1})),
    ] {
        let report = json!({"envoy": envoy, "pools": {"p": {"waiting": 2, "endpoints": {"e": told}}}});
        let answer = prober.http.post(prober.url("/v1/signals")).json(&report).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
    }
    let fleet = prober.get("/v1/fleet").await;
    let shown = &fleet["endpoints"][0];
    let counts = ["in_flight", "ejected", "cooling_down"].map(|name| shown[name].as_u64().unwrap());
    assert_eq!(counts, [7, 1, 1]);
    let pool = &fleet["pools"][0];
    assert_eq!((&pool["in_flight"], &pool["waiting"], &pool["choices"]), (&json!(7), &json!(4), &json!("2")));
    harness::eventually("there is a point of it", std::time::Duration::from_secs(30), async || {
        let series = prober.get("/v1/series").await;
        let (endpoint, pool) = (&series["endpoints"]["e"], &series["pools"]["p"]);
        let last = |list: &Value| list.as_array().and_then(|list| list.last()).cloned().unwrap_or_default();
        anyhow::ensure!(last(&endpoint["ttft_ms"]) == 80.0 && last(&endpoint["in_flight"]) == 7, "{series}");
        anyhow::ensure!(last(&endpoint["tps"]).is_null() && last(&pool["waiting"]) == 4, "{series}");
        let since = last(&endpoint["at_ms"]);
        let later = prober.get(&format!("/v1/series?since_ms={since}")).await;
        anyhow::ensure!(later["endpoints"]["e"]["at_ms"] == json!([]), "{later}");
        Ok(())
    })
    .await
    .unwrap();
    prober.stop().await;
}
