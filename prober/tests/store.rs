//! The store: one suite against the file and against a real Redis, and what only one of them can suffer.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use engine_sim::model::Profile;
use engine_sim::server::{EngineConfig, EngineHandle};
use harness::{RedisServer, eventually};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weighbridge_prober::config::Config;
use weighbridge_prober::store::{Change, Place, RedisUrl, Store, StoreError, Stored, Table};

const DEADLINE: Duration = Duration::from_secs(20);

/// A store with its task. Stopped, everything is written and the file is free.
struct Running {
    store: Store,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

/// What is wrong with it, for people.
fn words(store: &Store) -> Vec<String> {
    store.alarms().into_iter().map(|alarm| alarm.message).collect()
}

impl Running {
    async fn open(place: &Place) -> Self {
        let store = Store::open(place).await.unwrap();
        let shutdown = CancellationToken::new();
        let (running, stop) = (store.clone(), shutdown.clone());
        Running { store, shutdown, task: tokio::spawn(async move { running.run(stop).await }) }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }

    /// As if the process had been killed.
    fn vanish(self) {
        self.task.abort();
    }

    async fn put(&self, table: Table, key: &str, value: &Value) -> Stored {
        self.store.write(vec![Change::put(table, key, value).unwrap()]).await
    }

    fn pin(&self, key: &str) -> Option<Value> {
        self.store.get(Table::Pins, key)
    }

    async fn sees(&self, key: &str, value: Option<Value>) {
        eventually(&format!("{key} is {value:?}"), DEADLINE, async || {
            let found = self.pin(key);
            ensure!(found == value, "{found:?}");
            Ok(())
        })
        .await
        .unwrap();
    }

    async fn is_up(&self, up: bool) {
        eventually(&format!("the store is up: {up}"), DEADLINE, async || {
            let health = self.store.health();
            ensure!(health.up == up, "{health:?}");
            Ok(())
        })
        .await
        .unwrap();
    }
}

fn redis(server: &RedisServer) -> Place {
    Place::Redis(RedisUrl::parse(&server.url()).unwrap())
}

fn file(dir: &Path) -> Place {
    Place::File(dir.join("s.redb"))
}

/// What every store does.
async fn suite(place: Place) {
    let store = Running::open(&place).await;
    assert!(words(&store.store).is_empty(), "{:?}", words(&store.store));
    // All or none, and there at once for whoever reads here.
    let changes = vec![
        Change::put(Table::Pins, "a", &1).unwrap(),
        Change::put(Table::Pins, "b b", &json!({"umlaut": "ü \n \u{0}"})).unwrap(),
        Change::put(Table::Registrations, "gone", &1).unwrap(),
        Change::put(Table::Results, "unreadable", &"x").unwrap(),
    ];
    let place_in_order = store.store.put(changes);
    assert!(place_in_order > 0);
    assert_eq!(store.pin("a"), Some(json!(1)));
    let written = store.store.write(vec![Change::remove(Table::Registrations, "gone")]).await;
    assert_eq!((written, store.store.waiting()), (Stored::Now, 0));
    // Thousands of quick changes to few keys: the last ones count.
    for round in 0..3_000u32 {
        store.store.put(vec![Change::put(Table::Averages, &format!("e{}", round % 7), &round).unwrap()]);
    }
    store.put(Table::Snapshot, "newest", &json!({"version": 7, "content": "0"})).await;
    for table in Table::ALL {
        store.put(table, "every table", &json!([table.name()])).await;
    }
    store.stop().await;

    let store = Running::open(&place).await;
    let pins: HashMap<String, Value> = store.store.all(Table::Pins);
    assert_eq!(pins.len(), 3, "{pins:?}");
    assert_eq!(pins["b b"]["umlaut"], "ü \n \u{0}");
    assert_eq!(store.store.get::<Value>(Table::Registrations, "gone"), None);
    assert!(store.store.all::<u32>(Table::Results).is_empty());
    let averages: HashMap<String, Value> = store.store.all(Table::Averages);
    let last: BTreeSet<u64> = averages.values().filter_map(Value::as_u64).collect();
    assert_eq!(last, (2_993..3_000).collect());
    for table in Table::ALL.into_iter().filter(|table| !table.between_probers()) {
        assert_eq!(store.store.get::<Value>(table, "every table"), Some(json!([table.name()])));
    }
    assert_eq!(store.store.memory().snapshot.unwrap().version, 7);
    // Results are read, also where a later version has added to them.
    let result = |at_ms: u64| json!({"throughput_tps": 1.5, "measured_at_ms": at_ms});
    store.put(Table::Results, "young", &result(1)).await;
    store.put(Table::Last, "e", &json!({"key": "old", "measurement": result(0), "a later version": 1})).await;
    store.put(Table::Pins, "a", &json!(2)).await;
    let memory = store.store.memory();
    assert_eq!(memory.results.keys().collect::<Vec<_>>(), ["young"]);
    assert_eq!((memory.results["young"].prefill_tps, memory.last.len()), (None, 1));
    // Alone, it bursts.
    eventually("the lease is taken", DEADLINE, async || {
        ensure!(store.store.fence().is_some());
        Ok(())
    })
    .await
    .unwrap();
    store.stop().await;
    let store = Running::open(&place).await;
    assert_eq!(store.pin("a"), Some(json!(2)));
    assert_eq!(store.store.memory().results.len(), 1);
    store.stop().await;
}

#[tokio::test]
async fn the_suite_against_a_file() {
    let dir = tempfile::tempdir().unwrap();
    suite(file(dir.path())).await;
}

#[tokio::test]
async fn the_suite_against_redis() {
    let server = RedisServer::start().await.unwrap();
    suite(redis(&server)).await;
}

#[tokio::test]
async fn the_suite_against_redis_with_a_password_and_another_database() {
    let server = RedisServer::start_guarded("s3cret").await.unwrap();
    let url = server.url().replace("/0", "/3");
    suite(Place::Redis(RedisUrl::parse(&url).unwrap())).await;
    assert!(server.command("INFO keyspace").await.unwrap().contains("db3:"));
    let wrong = RedisUrl::parse(&server.url().replace("s3cret", "0ther")).unwrap();
    let store = Running::open(&Place::Redis(wrong)).await;
    let alarms = words(&store.store).join("\n");
    assert!(alarms.contains("authentication failed") && !alarms.contains("0ther"), "{alarms}");
    store.stop().await;
}

#[tokio::test]
async fn a_file_belongs_to_one_process_and_values_from_before_stamps_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let Place::File(path) = file(dir.path()) else { unreachable!() };
    {
        let database = redb::Database::create(&path).unwrap();
        let write = database.begin_write().unwrap();
        let pins = redb::TableDefinition::<&str, &str>::new("pins");
        write.open_table(pins).unwrap().insert("a", r#"{"weight": 2.5, "at_ms": 7}"#).unwrap();
        write.commit().unwrap();
    }
    let store = Running::open(&file(dir.path())).await;
    assert_eq!(store.store.memory().pins["a"].weight.get(), 2.5);
    assert!(matches!(Store::open(&file(dir.path())).await, Err(StoreError::Open { .. })));
    store.put(Table::Pins, "a", &json!({"weight": 3.5, "at_ms": 8})).await;
    store.stop().await;
    let store = Running::open(&file(dir.path())).await;
    assert_eq!(store.store.memory().pins["a"].weight.get(), 3.5);
    store.stop().await;
    let nowhere = Place::File(PathBuf::from("/no/such/directory/s.redb"));
    assert!(matches!(Store::open(&nowhere).await, Err(StoreError::Open { .. })));
}

#[tokio::test]
async fn what_somebody_has_written_is_not_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.redb");
    for text in ["pools: [{name: p, models: [m]}]\n", "x", "h\u{e9}\r\n"] {
        std::fs::write(&path, text).unwrap();
        let Err(StoreError::Open { reason, .. }) = Store::open(&file(dir.path())).await else { panic!("{text:?}") };
        assert!(reason.contains("it is a text"), "{reason}");
        assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), aside(dir.path()).len()), (text, 0));
    }
}

fn aside(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains(".broken-")).collect()
}

#[tokio::test]
async fn a_damaged_file_is_put_aside_and_said_so() {
    // No database at all; one that ends in the middle; one whose pages are overwritten.
    let damages: [fn(&mut Vec<u8>); 3] = [
        |bytes| bytes.fill(7),
        |bytes| bytes.truncate(bytes.len() / 3),
        |bytes| bytes.iter_mut().skip(4096).for_each(|byte| *byte ^= 0x5A),
    ];
    for (nth, damage) in damages.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let place = file(dir.path());
        let store = Running::open(&place).await;
        store.put(Table::Pins, "a", &json!(1)).await;
        store.stop().await;
        let path = dir.path().join("s.redb");
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let store = Running::open(&place).await;
        let alarms = words(&store.store).join("\n");
        assert!(alarms.contains("stands aside as") && alarms.contains(".broken-"), "damage {nth}: {alarms}");
        assert_eq!((store.pin("a"), aside(dir.path()).len()), (None, 1), "damage {nth}");
        assert_eq!(store.put(Table::Pins, "a", &json!(2)).await, Stored::Now, "damage {nth}");
        store.stop().await;
        let store = Running::open(&place).await;
        assert_eq!((store.pin("a"), words(&store.store)), (Some(json!(2)), Vec::new()), "damage {nth}");
        store.stop().await;
    }
}

// A file that was closed in an orderly way, with one bit of what is written in it turned over.
#[tokio::test]
async fn no_bit_flips_unnoticed() {
    const PLACES: usize = 64;
    let dir = tempfile::tempdir().unwrap();
    let (place, path) = (file(dir.path()), dir.path().join("s.redb"));
    let pin = |nth: usize| json!({"weight": nth, "reason": "a bit more than a few bytes, to be hit"});
    let store = Running::open(&place).await;
    for nth in 0..8 {
        assert_eq!(store.put(Table::Pins, &format!("e{nth}"), &pin(nth)).await, Stored::Now);
    }
    store.stop().await;
    let whole = std::fs::read(&path).unwrap();
    let written: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
    let mut noticed = 0;
    for nth in 0..PLACES {
        let at = written[written.len() * nth / PLACES];
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (nth % 8);
        std::fs::write(&path, bytes).unwrap();
        let store = Running::open(&place).await;
        let alarms = words(&store.store).join("\n");
        let all = (0..8).all(|nth| store.pin(&format!("e{nth}")) == Some(pin(nth)));
        assert!(all || alarms.contains("damaged"), "byte {at}: something is lost and nobody says so");
        noticed += usize::from(alarms.contains("damaged"));
        store.stop().await;
    }
    assert!(noticed > 0, "no flip was noticed at all");
}

#[tokio::test]
async fn two_probers_share_what_they_write_and_the_later_one_wins() {
    let server = RedisServer::start().await.unwrap();
    let place = redis(&server);
    let (a, b) = (Running::open(&place).await, Running::open(&place).await);
    let start = Instant::now();
    a.put(Table::Pins, "k", &json!(1)).await;
    b.sees("k", Some(json!(1))).await;
    println!("a change is seen at the other prober after {:?}", start.elapsed());
    b.put(Table::Pins, "k", &json!(2)).await;
    a.sees("k", Some(json!(2))).await;
    a.store.write(vec![Change::remove(Table::Pins, "k")]).await;
    b.sees("k", None).await;
    let news = tokio::time::timeout(DEADLINE, b.store.news()).await.unwrap();
    assert!(news.contains(&(Table::Pins, "k".into())), "{news:?}");
    // Changed at both while neither hears of the other: both end with the same.
    for round in 0..50 {
        let (of_a, of_b) = (json!([round, "a"]), json!([round, "b"]));
        tokio::join!(a.put(Table::Pins, "both", &of_a), b.put(Table::Pins, "both", &of_b));
    }
    eventually("both have the same", DEADLINE, async || {
        let (a, b) = (a.pin("both"), b.pin("both"));
        ensure!(a == b, "{a:?} {b:?}");
        Ok(())
    })
    .await
    .unwrap();
    a.stop().await;
    b.stop().await;
}

/// The one of the two that may burst; never both.
async fn leader<'a>(a: &'a Running, b: &'a Running) -> &'a Running {
    let of = eventually("one of two has the lease", DEADLINE, async || {
        let held = [a.store.fence().is_some(), b.store.fence().is_some()];
        assert_ne!(held, [true, true]);
        ensure!(held != [false, false]);
        Ok(held[0])
    });
    if of.await.unwrap() { a } else { b }
}

#[tokio::test]
async fn one_has_the_lease_and_what_a_stale_one_measured_is_refused() {
    let server = RedisServer::start().await.unwrap();
    let place = redis(&server);
    let (a, b) = (Running::open(&place).await, Running::open(&place).await);
    let stale = leader(&a, &b).await.store.fence().unwrap();
    let a_leads = a.store.fence().is_some();
    let (first, second) = if a_leads { (a, b) } else { (b, a) };
    // It vanishes without giving the lease back.
    first.vanish();
    let start = Instant::now();
    let fence = eventually("the other takes over", DEADLINE, async || {
        second.store.fence().ok_or_else(|| anyhow::anyhow!("{:?}", second.store.lease().borrow()))
    });
    let fence = fence.await.unwrap();
    println!("taken over {:?} after the holder vanished", start.elapsed());
    assert!(fence > stale, "{fence} {stale}");
    second.put(Table::Last, "e", &json!("by the second")).await;
    // The first was only stopped for a while, and writes what it measured.
    let late = Running::open(&place).await;
    let change = |value: &str, fence| Change::put(Table::Last, "e", &value).unwrap().fenced(fence);
    late.store.write(vec![change("by the first, too late", stale)]).await;
    let sees = async |expected: &str| {
        let seen = eventually(expected, DEADLINE, async || {
            let found: Option<String> = late.store.get(Table::Last, "e");
            ensure!(found.as_deref() == Some(expected), "{found:?}");
            Ok(())
        });
        seen.await.unwrap();
    };
    // The refused value is gone again.
    sees("by the second").await;
    // The holder's own is stored.
    second.store.write(vec![change("again by the second", fence)]).await;
    sees("again by the second").await;
    // Given back at a stop, it is free at once.
    second.stop().await;
    eventually("the last one takes it", DEADLINE, async || {
        ensure!(late.store.fence().is_some());
        Ok(())
    })
    .await
    .unwrap();
    late.stop().await;
}

/// Kills Redis under two probers, changes things, and starts it again.
async fn outage(mut server: RedisServer) -> Result<()> {
    let place = redis(&server);
    let (a, b) = (Running::open(&place).await, Running::open(&place).await);
    a.put(Table::Pins, "before", &json!(1)).await;
    b.sees("before", Some(json!(1))).await;
    server.kill().await?;
    assert_eq!(a.put(Table::Pins, "during", &json!(2)).await, Stored::Later);
    a.is_up(false).await;
    b.is_up(false).await;
    // Newer at B; the newest of each key, in order.
    for value in 3..10 {
        assert_eq!(b.put(Table::Pins, "during", &json!(value)).await, Stored::Later);
    }
    a.store.write(vec![Change::remove(Table::Pins, "before")]).await;
    let alarm = words(&a.store).join("\n");
    assert!(alarm.contains("wait to be stored") && a.store.waiting() >= 2, "{alarm}");
    server.restart().await?;
    let start = Instant::now();
    for prober in [&a, &b] {
        prober.is_up(true).await;
        prober.sees("during", Some(json!(9))).await;
        prober.sees("before", None).await;
    }
    println!("everything stored and agreed upon {:?} after Redis was back", start.elapsed());
    assert!(words(&a.store).is_empty() && a.store.waiting() == 0);
    let fresh = Running::open(&place).await;
    assert_eq!((fresh.pin("during"), fresh.pin("before")), (Some(json!(9)), None));
    for prober in [a, b, fresh] {
        prober.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn what_is_changed_while_redis_is_gone_is_stored_when_it_is_back() {
    outage(RedisServer::start().await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_redis_that_has_lost_everything_gets_it_again() {
    outage(RedisServer::start_forgetful().await.unwrap()).await.unwrap();
}

/// The way to a Redis.
struct Road {
    address: SocketAddr,
    to: watch::Sender<SocketAddr>,
    silence: watch::Sender<()>,
}

impl Road {
    async fn to(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let to = watch::Sender::new(server.address());
        let silence = watch::Sender::new(());
        let (target, silences) = (to.subscribe(), silence.subscribe());
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let (target, mut silences) = (*target.borrow(), silences.clone());
                silences.mark_unchanged();
                tokio::spawn(async move {
                    let mut onward = TcpStream::connect(target).await?;
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut from, &mut onward) => {}
                        // Both ends stay open, and hear nothing.
                        _ = silences.changed() => std::future::pending().await,
                    }
                    std::io::Result::Ok(())
                });
            }
        });
        Road { address, to, silence }
    }

    fn place(&self) -> Place {
        Place::Redis(RedisUrl::parse(&format!("redis://{}/0", self.address)).unwrap())
    }

    /// Nothing passes any more on the connections that there are, and nobody is told.
    fn falls_silent(&self) {
        self.silence.send_replace(());
    }

    /// New connections go to this server.
    fn moves(&self, server: &RedisServer) {
        self.to.send_replace(server.address());
    }
}

#[tokio::test]
async fn a_connection_that_hangs_is_left_for_a_new_one() {
    let server = RedisServer::start().await.unwrap();
    let road = Road::to(&server).await;
    let store = Running::open(&road.place()).await;
    assert_eq!(store.put(Table::Pins, "k", &json!(1)).await, Stored::Now);
    road.falls_silent();
    assert_eq!(store.put(Table::Pins, "k", &json!(2)).await, Stored::Later);
    let start = Instant::now();
    store.is_up(true).await;
    assert_eq!((store.put(Table::Pins, "k", &json!(3)).await, store.store.waiting()), (Stored::Now, 0));
    eventually("the lease is renewed", DEADLINE, async || {
        ensure!(store.store.fence().is_some(), "{:?}", store.store.lease().borrow());
        Ok(())
    })
    .await
    .unwrap();
    println!("a new connection {:?} after the first command without an answer", start.elapsed());
    store.stop().await;
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_for_whoever_has_its_name_now() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let road = Road::to(&old).await;
    let store = Running::open(&road.place()).await;
    assert_eq!(store.put(Table::Pins, "k", &json!(1)).await, Stored::Now);
    // The name goes to another server; the old connection stays, and the old server answers READONLY on it.
    road.moves(&new);
    let other = new.address();
    old.command(&format!("REPLICAOF {} {}", other.ip(), other.port())).await.unwrap();
    store.put(Table::Pins, "k", &json!(2)).await;
    eventually("the new server has it", DEADLINE, async || {
        let found = new.command("HGET weighbridge:1:pins k").await?;
        ensure!(found.ends_with(" 2\r\n+OK\r\n"), "{found}");
        Ok(())
    })
    .await
    .unwrap();
    store.is_up(true).await;
    store.stop().await;
}

#[tokio::test]
async fn a_redis_that_is_emptied_under_our_feet_is_filled_again() {
    let server = RedisServer::start().await.unwrap();
    let (a, b) = (Running::open(&redis(&server)).await, Running::open(&redis(&server)).await);
    a.put(Table::Pins, "k", &json!(1)).await;
    b.sees("k", Some(json!(1))).await;
    server.command("FLUSHALL").await.unwrap();
    eventually("it is there again", DEADLINE, async || {
        let found = server.command("HGET weighbridge:1:pins k").await?;
        ensure!(found.ends_with(" 1\r\n+OK\r\n"), "{found}");
        Ok(())
    })
    .await
    .unwrap();
    // And both go on hearing of each other.
    b.put(Table::Pins, "k", &json!(2)).await;
    a.sees("k", Some(json!(2))).await;
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn started_without_redis_it_loads_when_redis_comes() {
    let mut server = RedisServer::start().await.unwrap();
    let place = redis(&server);
    let store = Running::open(&place).await;
    store.put(Table::Pins, "theirs", &json!(1)).await;
    store.put(Table::Pins, "both", &json!("old")).await;
    store.stop().await;
    server.kill().await.unwrap();
    let store = Running::open(&place).await;
    let alarm = words(&store.store).join("\n");
    assert!(alarm.contains("not known yet") && alarm.contains(&server.address().to_string()), "{alarm}");
    assert!(store.store.fence().is_none());
    assert_eq!(store.put(Table::Pins, "both", &json!("changed meanwhile")).await, Stored::Later);
    server.restart().await.unwrap();
    store.sees("theirs", Some(json!(1))).await;
    store.is_up(true).await;
    assert_eq!(store.pin("both"), Some(json!("changed meanwhile")));
    let news = tokio::time::timeout(DEADLINE, store.store.news()).await.unwrap();
    assert!(news.contains(&(Table::Pins, "theirs".into())) && !news.contains(&(Table::Pins, "both".into())));
    store.stop().await;
    let store = Running::open(&place).await;
    assert_eq!(store.pin("both"), Some(json!("changed meanwhile")));
    store.stop().await;
}

/// A prober over this Redis, with these endpoints.
async fn prober(server: &RedisServer, endpoints: Value) -> (weighbridge_prober::Running, CancellationToken) {
    let config = json!({
        "api": {"listen": "127.0.0.1:0"}, "xds": {"listen": "127.0.0.1:0"}, "store": {"redis": server.url()},
        "health": {"interval": "50ms"}, "signals": {"interval": "50ms"},
        // At 20 tokens a second, minutes.
        "probe": {"concurrency": 2, "tokens": 4_000, "prefill_tokens": 0, "timeout": "600s"},
        "pools": [{"name": "p", "models": ["m"], "endpoints": endpoints}],
    });
    let shutdown = CancellationToken::new();
    let config = Config::parse(&config.to_string()).unwrap();
    (weighbridge_prober::run(config, shutdown.clone()).await.unwrap(), shutdown)
}

async fn pending_writes(prober: &weighbridge_prober::Running) -> Result<String> {
    let page = reqwest::get(format!("http://{}/metrics", prober.api)).await?.text().await?;
    let line = page.lines().find(|line| line.starts_with("weighbridge_store_pending_writes "));
    Ok(line.unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prober_that_loses_the_lease_stops_its_burst_and_leaves_the_marks_of_others() {
    let server = RedisServer::start().await.unwrap();
    let slow = EngineConfig {
        name: "e".into(),
        model: "m".into(),
        profile: Profile::new("slow", &[(1, 20.0), (64, 1_280.0)]),
        cold: false,
        ..EngineConfig::default()
    };
    let engine = EngineHandle::start(slow).await.unwrap();
    let (running, shutdown) = prober(&server, json!([{"id": "e", "address": engine.addr()}])).await;
    eventually("the burst is under way", DEADLINE, async || {
        ensure!(engine.state().running == 2, "{:?}", engine.state());
        Ok(())
    })
    .await
    .unwrap();
    // Another takes the lease from it, and bursts in its turn.
    let other = loop {
        server.command("DEL weighbridge:1:lease").await.unwrap();
        let other = Running::open(&redis(&server)).await;
        if other.store.fence().is_some() {
            break other;
        }
        other.stop().await;
    };
    let mark = json!({"fence": other.store.fence(), "burst": 0});
    assert_eq!(other.put(Table::Probing, "e", &mark).await, Stored::Now);
    let start = Instant::now();
    eventually("the burst has stopped", DEADLINE, async || {
        ensure!(engine.state().running == 0, "{:?}", engine.state());
        Ok(())
    })
    .await
    .unwrap();
    println!("stopped {:?} after another had the lease", start.elapsed());
    eventually("it has written all it has to", DEADLINE, async || {
        let waiting = pending_writes(&running).await?;
        ensure!(waiting.ends_with(" 0"), "{waiting}");
        Ok(())
    })
    .await
    .unwrap();
    let stored = server.command("HGET weighbridge:1:probing e").await.unwrap();
    assert!(stored.contains(&mark["fence"].to_string()), "{stored}");
    shutdown.cancel();
    running.stopped().await.unwrap();
    other.stop().await;
    engine.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_is_not_stored_yet_says_so() {
    let mut server = RedisServer::start().await.unwrap();
    let (running, shutdown) = prober(&server, json!([])).await;
    let register = async |id: &str| {
        let port = if id == "a" { 9 } else { 11 };
        let body = json!({"pool": "p", "id": id, "address": format!("127.0.0.1:{port}")});
        let url = format!("http://{}/v1/endpoints", running.api);
        reqwest::Client::new().post(url).json(&body).send().await.unwrap().status().as_u16()
    };
    assert_eq!((register("a").await, register("a").await), (201, 200));
    server.kill().await.unwrap();
    assert_eq!((register("b").await, register("a").await), (202, 202));
    server.restart().await.unwrap();
    eventually("it is stored again", DEADLINE, async || {
        let status = register("b").await;
        ensure!(status == 200, "{status}");
        Ok(())
    })
    .await
    .unwrap();
    shutdown.cancel();
    running.stopped().await.unwrap();
}
