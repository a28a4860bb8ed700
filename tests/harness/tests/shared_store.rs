//! Several probers over one Redis, as processes: one bursts, all agree, and nobody minds when Redis or one of them goes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::engine_sim::server::EngineHandle;
use harness::load;
use harness::snapshot::{pool, snapshot};
use harness::{Envoy, EnvoyOptions, ProberProcess, RedisServer, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::common::{DEADLINE, Site, applied, chat, decided_with, engine, even, last_probe, number};

/// Requests of one burst, sent twice.
const BURST: u64 = 2 * 4;

/// Two sites over one Redis: the same pools, and every Envoy that there may be.
fn sites(engines: &[&EngineHandle], redis: &RedisServer) -> [Site; 2] {
    let mut sites = [Site::new(engines), Site::new(engines)];
    let admins: Vec<String> = sites.iter().map(|site| format!("http://{}", site.admin)).collect();
    for site in &mut sites {
        site.config["store"] = json!({"redis": redis.url()});
        // An Envoy that is not there is taken to be idle.
        site.config["envoy_admin"] = json!(admins);
    }
    sites
}

async fn metric(prober: &ProberProcess, name: &str) -> Result<f64> {
    let text = reqwest::get(format!("http://{}/metrics", prober.api())).await?.text().await?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name} in {text}"))?;
    Ok(line.trim().parse()?)
}

async fn leads(prober: &ProberProcess) -> bool {
    metric(prober, "weighbridge_probe_lease ").await.unwrap() == 1.0
}

async fn alarms(prober: &ProberProcess) -> Result<String> {
    Ok(prober.get("/v1/endpoints").await?["alarms"].to_string())
}

/// Every endpoint measured, as this prober sees it.
async fn all_measured(prober: &ProberProcess) {
    eventually("every endpoint is measured", DEADLINE, async || {
        let answer = prober.get("/v1/endpoints").await?;
        let endpoints = answer["endpoints"].as_array().context("no list")?;
        let measured =
            |endpoint: &Value| endpoint["weight_source"] == "measured" || endpoint["weight_source"] == "pinned";
        ensure!(endpoints.iter().all(measured), "{answer}");
        Ok(())
    })
    .await
    .unwrap();
}

/// Both publish the same content under the same number.
async fn agree(a: &ProberProcess, b: &ProberProcess) -> Value {
    eventually("both probers say the same under the same version", DEADLINE, async || {
        let (a, b) = (a.get("/v1/snapshot").await?, b.get("/v1/snapshot").await?);
        ensure!(a == b, "{a}\n{b}");
        Ok(a)
    })
    .await
    .unwrap()
}

async fn pin(prober: &ProberProcess, id: &str, weight: f64) -> u16 {
    let body = json!({"weight": weight, "reason": "test"});
    prober.call(Method::PUT, &format!("/v1/endpoints/{id}/pin"), Some(&body)).await.unwrap().0
}

async fn has_weight(prober: &ProberProcess, id: &str, weight: f64) {
    eventually(&format!("{id} has weight {weight}"), DEADLINE, async || {
        let endpoint = prober.endpoint(id).await?;
        ensure!(number(&endpoint["weight"]) == weight, "{endpoint}");
        Ok(())
    })
    .await
    .unwrap();
}

fn generated(engine: &EngineHandle) -> u64 {
    engine.state().requests_total
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_bursts_and_the_other_takes_over() {
    let (x, y) = (engine("x", even()).await, engine("y", even()).await);
    let redis = RedisServer::start().await.unwrap();
    let [mut first, mut second] = sites(&[&x, &y], &redis);
    let (a, b) = tokio::join!(first.prober(), second.prober());
    all_measured(&a).await;
    all_measured(&b).await;
    // The engines' own count: one registration burst each, whoever sent it.
    assert_eq!((generated(&x), generated(&y)), (BURST, BURST));
    agree(&a, &b).await;
    let history = b.endpoint("x").await.unwrap();
    assert_eq!(last_probe(&history)["throughput_tps"], last_probe(&a.endpoint("x").await.unwrap())["throughput_tps"]);

    // A probe that is asked for at either is sent once, and both have its result.
    for prober in [&a, &b] {
        let before = generated(&x);
        let record = prober.post("/v1/endpoints/x/probe?wait=true", &Value::Null).await.unwrap();
        assert_eq!((record["kind"].as_str(), generated(&x) - before), (Some("demand"), BURST), "{record}");
        for each in [&a, &b] {
            eventually("the result is at both", DEADLINE, async || {
                let endpoint = each.endpoint("x").await?;
                ensure!(number(&endpoint["throughput_tps"]) == number(&record["throughput_tps"]), "{endpoint}");
                Ok(())
            })
            .await
            .unwrap();
        }
    }
    agree(&a, &b).await;

    // What is done at one is seen at the other.
    assert_eq!(pin(&a, "x", 2.5).await, 200);
    let start = Instant::now();
    has_weight(&b, "x", 2.5).await;
    println!("a pin is in force at the other prober {:?} after it was answered", start.elapsed());
    let z = engine("z", even()).await;
    let registration = json!({"pool": "m", "id": "z", "address": z.addr()});
    assert_eq!(b.call(Method::POST, "/v1/endpoints", Some(&registration)).await.unwrap().0, 201);
    for prober in [&a, &b] {
        eventually("the newcomer is measured", DEADLINE, async || {
            let endpoint = prober.endpoint("z").await?;
            ensure!(endpoint["weight_source"] == "measured", "{endpoint}");
            Ok(())
        })
        .await
        .unwrap();
    }
    assert_eq!(generated(&z), BURST);
    a.put("/v1/endpoints/y/drain", &json!({"reason": "maintenance"})).await.unwrap();
    crate::common::in_state(&b, "y", "draining").await;
    b.delete("/v1/endpoints/y/drain").await.unwrap();
    crate::common::in_state(&a, "y", "ready").await;
    let before = agree(&a, &b).await;

    // The one that bursts is killed.
    let (killed, left) = if leads(&a).await { (a, b) } else { (b, a) };
    assert!(!leads(&left).await);
    killed.kill().await.unwrap();
    let start = Instant::now();
    eventually("the other takes over", Duration::from_secs(10), async || {
        ensure!(leads(&left).await);
        Ok(())
    })
    .await
    .unwrap();
    println!("taken over {:?} after the prober that bursts was killed", start.elapsed());
    let started = generated(&x);
    let record = left.post("/v1/endpoints/x/probe?wait=true", &Value::Null).await.unwrap();
    assert_eq!((record["error"].as_str(), generated(&x) - started), (None, BURST), "{record}");
    // Nobody was measured again for that.
    assert_eq!((generated(&y), generated(&z)), (BURST, BURST));
    assert!(left.get("/v1/snapshot").await.unwrap()["version"].as_u64() >= before["version"].as_u64());
    left.terminate().await.unwrap();
    for engine in [x, y, z] {
        engine.shutdown(Duration::from_secs(1)).await;
    }
}

/// The way from an Envoy to its prober. Connections break when it is led elsewhere.
struct Road {
    address: SocketAddr,
    to: watch::Sender<SocketAddr>,
}

impl Road {
    async fn to(prober: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let to = watch::Sender::new(prober);
        let targets = to.subscribe();
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let mut targets = targets.clone();
                tokio::spawn(async move {
                    let target = *targets.borrow_and_update();
                    let Ok(mut onward) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut from, &mut onward) => {}
                        _ = targets.changed() => {}
                    }
                });
            }
        });
        Road { address, to }
    }

    fn lead_to(&self, prober: SocketAddr) {
        self.to.send_replace(prober);
    }
}

async fn envoy_of(site: &Site, xds: SocketAddr) -> Envoy {
    let options = EnvoyOptions {
        admin: site.admin,
        snapshot: Some(snapshot(vec![pool("m", Vec::new())])),
        ..EnvoyOptions::with_xds(xds)
    };
    Envoy::start(options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_goes_and_comes_back_and_nothing_is_lost() {
    let (x, y) = (engine("x", even()).await, engine("y", even()).await);
    let mut redis = RedisServer::start_guarded("s3cret").await.unwrap();
    let [mut first, mut second] = sites(&[&x, &y], &redis);
    let (mut a, mut b) = tokio::join!(first.prober(), second.prober());
    let road = Road::to(a.xds()).await;
    let (e, f) = tokio::join!(envoy_of(&first, road.address), envoy_of(&second, b.xds()));
    a.ready(DEADLINE).await.unwrap();
    b.ready(DEADLINE).await.unwrap();
    assert_eq!(metric(&a, "weighbridge_store_up ").await.unwrap(), 1.0);
    assert_eq!(pin(&a, "x", 2.0).await, 200);
    decided_with(&e, "x", 2.0).await;
    decided_with(&f, "x", 2.0).await;

    redis.kill().await.unwrap();
    // In force at once; stored later, and said so.
    assert_eq!(pin(&a, "x", 3.0).await, 202);
    assert_eq!(pin(&b, "y", 0.5).await, 202);
    decided_with(&e, "x", 3.0).await;
    decided_with(&f, "y", 0.5).await;
    for prober in [&a, &b] {
        eventually("the alarm is raised", DEADLINE, async || {
            let alarms = alarms(prober).await?;
            ensure!(alarms.contains("wait to be stored") && alarms.contains("Redis at redis://***@"), "{alarms}");
            ensure!(metric(prober, "weighbridge_store_up ").await? == 0.0);
            ensure!(metric(prober, "weighbridge_store_pending_writes ").await? >= 1.0);
            Ok(())
        })
        .await
        .unwrap();
    }
    // Routing does not notice, and the probers stay ready.
    for envoy in [&e, &f] {
        for _ in 0..20 {
            let outcome = load::send(envoy.gateway(), chat()).await;
            assert!(outcome.is_ok(), "{outcome:?}");
        }
    }
    a.ready(DEADLINE).await.unwrap();

    redis.restart().await.unwrap();
    let start = Instant::now();
    has_weight(&b, "x", 3.0).await;
    has_weight(&a, "y", 0.5).await;
    println!("both have the other's pin {:?} after Redis was back", start.elapsed());
    for prober in [&a, &b] {
        eventually("the alarm is over", DEADLINE, async || {
            ensure!(alarms(prober).await? == "[]" && metric(prober, "weighbridge_store_up ").await? == 1.0);
            ensure!(metric(prober, "weighbridge_store_pending_writes ").await? == 0.0);
            Ok(())
        })
        .await
        .unwrap();
        applied(prober).await;
    }
    decided_with(&e, "y", 0.5).await;
    decided_with(&f, "x", 3.0).await;

    // An Envoy that moves to the other prober hears nothing that is older than what it has.
    let told = agree(&a, &b).await;
    road.lead_to(b.xds());
    eventually("the Envoy has moved", DEADLINE, async || {
        let answer = b.get("/v1/envoys").await?;
        let connected = answer["envoys"].as_array().context("no list")?.iter().filter(|e| e["connected"] == true);
        ensure!(connected.map(|envoy| envoy["streams"].as_u64().unwrap_or(0)).sum::<u64>() >= 2, "{answer}");
        Ok(())
    })
    .await
    .unwrap();
    applied(&b).await;
    decided_with(&e, "x", 3.0).await;
    // Averages may have brought a newer one meanwhile.
    let version = |snapshot: &Value| snapshot["version"].as_u64().unwrap();
    assert!(version(&b.get("/v1/snapshot").await.unwrap()) >= version(&told));

    // Everything restarts; nobody is measured again, and the password stands nowhere.
    let measured = (generated(&x), generated(&y));
    for prober in [&mut a, &mut b] {
        let log = prober.process().log_tail() + &prober.process().stderr() + &prober.process().stdout();
        assert!(!log.contains("s3cret"), "{log}");
    }
    drop((e, f));
    a.terminate().await.unwrap();
    b.terminate().await.unwrap();
    redis.kill().await.unwrap();
    redis.restart().await.unwrap();
    let (a, b) = tokio::join!(first.prober(), second.prober());
    for prober in [&a, &b] {
        has_weight(prober, "x", 3.0).await;
        has_weight(prober, "y", 0.5).await;
        let endpoint = prober.endpoint("x").await.unwrap();
        assert!(last_probe(&endpoint)["throughput_tps"].is_number(), "{endpoint}");
    }
    // Before an Envoy sends anything: these count requests of any kind.
    assert_eq!((generated(&x), generated(&y)), measured);
    let f = envoy_of(&second, b.xds()).await;
    decided_with(&f, "x", 3.0).await;
    decided_with(&f, "y", 0.5).await;
}
