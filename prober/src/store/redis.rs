//! The shared store: one Redis, any number of probers.
//!
//! | key | holds |
//! |---|---|
//! | `weighbridge:1:<table>` | hash: key to stamp and JSON |
//! | `weighbridge:1:changed` | sorted set: `<table> <key>` by the revision that last wrote it |
//! | `weighbridge:1:revision` | counter of writes |
//! | `weighbridge:1:generation` | a random word; another one means another store |
//! | `weighbridge:1:lease` | who probes, with its fence; expires |
//! | `weighbridge:1:fence` | the highest fence ever given |
//!
//! Each write is one script, so that it is all or nothing and compares stamps where they are. A reader asks for what was
//! written after the revision it has seen: nothing is lost when it was away, unlike with pub/sub, and asking costs one
//! small command. A revision that is lower than the one seen, or another generation, means that the store has lost
//! something, and everything is loaded. One server, or what behaves like one; not Redis Cluster.

mod link;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use redis::{Client, IntoConnectionInfo, RedisError, Script};

use super::backend::{Backend, Cursor, Found, LeaseHolder, StoreError};
use super::entry::{Entry, Key, Stamp, Table};
use link::Link;

/// Before every key. The number is that of the layout.
const PREFIX: &str = "weighbridge:1:";

/// A URL that names a Redis. Shown without user, password and options.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

impl RedisUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it; the password is not in the message.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let wrong = || StoreError::Url(Self::EXPECTED.to_owned());
        let (scheme, _) = url.split_once("://").ok_or_else(wrong)?;
        if !["redis", "rediss", "valkey", "valkeys"].contains(&scheme) {
            return Err(wrong());
        }
        install_tls();
        let info = url.into_connection_info().map_err(|_| wrong())?;
        Client::open(info).map_err(|_| wrong())?;
        Ok(RedisUrl(url.to_owned()))
    }

    /// What a URL looks like.
    pub const EXPECTED: &str = "redis://[[user]:password@]host[:port][/db], or rediss:// for TLS";
}

/// A URL without what is nobody's business, also where it is no URL.
#[must_use]
pub fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (secret, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("***@", rest));
    let slashes = if url.contains("://") { "://" } else { "" };
    format!("{scheme}{slashes}{secret}{rest}")
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.0))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The TLS library wants to be told once which cryptography it is to use; told again, it keeps the first.
fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A Redis.
pub struct Redis {
    url: RedisUrl,
    link: Link,
    /// For a store that has none.
    generation: String,
    write: Script,
    changes: Script,
    lease: Script,
    release: Script,
    forget: Script,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Redis {
    /// The Redis of this URL; nothing is sent yet. `generation` names the store if it is new.
    ///
    /// # Errors
    /// When the URL cannot be used.
    pub fn new(url: RedisUrl, generation: String) -> Result<Self, StoreError> {
        install_tls();
        let failed = |error: RedisError| StoreError::Redis { place: url.to_string(), reason: error.to_string() };
        let link = Link::new(url.0.as_str()).map_err(failed)?;
        Ok(Redis {
            link,
            generation,
            write: Script::new(include_str!("redis/write.lua")),
            changes: Script::new(include_str!("redis/changes.lua")),
            lease: Script::new(include_str!("redis/lease.lua")),
            release: Script::new(include_str!("redis/release.lua")),
            forget: Script::new(include_str!("redis/forget.lua")),
            url,
        })
    }

    fn failed(&self, error: &RedisError) -> StoreError {
        StoreError::Redis { place: self.url.to_string(), reason: error.to_string() }
    }

    /// Asks over the connection that there is, and leaves that behind when the answer says that another may do better.
    async fn ask<T: redis::FromRedisValue>(&self, what: Ask<'_>) -> Result<T, StoreError> {
        let (nth, mut connection) = self.link.current();
        let answer = match what {
            Ask::Script(call) => call.invoke_async(&mut connection).await,
            Ask::Pipe(pipe) => pipe.query_async(&mut connection).await,
        };
        answer.map_err(|error| {
            self.link.failed(nth, &error);
            self.failed(&error)
        })
    }
}

/// What is sent.
enum Ask<'a> {
    Script(&'a redis::ScriptInvocation<'a>),
    Pipe(&'a redis::Pipeline),
}

#[async_trait]
impl Backend for Redis {
    fn describe(&self) -> String {
        format!("Redis at {}", self.url)
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn load(&self) -> Result<Found, StoreError> {
        let mut all = redis::pipe();
        all.atomic().get(format!("{PREFIX}generation")).get(format!("{PREFIX}revision"));
        for table in Table::ALL {
            all.hgetall(format!("{PREFIX}{}", table.name()));
        }
        let values: Vec<redis::Value> = self.ask(Ask::Pipe(&all)).await?;
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or(redis::Value::Nil);
        let wrong = |error: redis::ParsingError| self.failed(&error.into());
        let generation: Option<String> = redis::from_redis_value(next()).map_err(wrong)?;
        let revision: Option<u64> = redis::from_redis_value(next()).map_err(wrong)?;
        let mut entries = Vec::new();
        for table in Table::ALL {
            let stored: Vec<(String, String)> = redis::from_redis_value(next()).map_err(wrong)?;
            entries.extend(stored.into_iter().map(|(key, stored)| Entry::decoded(table, key, &stored)));
        }
        let cursor = Cursor { generation: generation.unwrap_or_default(), revision: revision.unwrap_or(0) };
        Ok(Found { entries, cursor, mended: None })
    }

    async fn changes(&self, since: &Cursor) -> Result<Option<Found>, StoreError> {
        let mut asked = self.changes.key(PREFIX);
        let (generation, revision, found): (String, u64, Vec<String>) =
            self.ask(Ask::Script(asked.arg(since.revision))).await?;
        // A store that was empty when it was read gets its generation with its first write.
        let fresh = since.generation.is_empty() && since.revision == 0;
        if revision < since.revision || (generation != since.generation && !fresh) {
            return Ok(None);
        }
        let entries = found.chunks_exact(3).filter_map(|entry| match entry {
            [name, key, stored] => Some(Entry::decoded(Table::named(name)?, key.clone(), stored)),
            _ => None,
        });
        Ok(Some(Found { entries: entries.collect(), cursor: Cursor { generation, revision }, mended: None }))
    }

    async fn write(&self, entries: &[Entry]) -> Result<Vec<usize>, StoreError> {
        let mut call = self.write.key(PREFIX);
        call.arg(&self.generation);
        for entry in entries {
            call.arg(entry.table.name()).arg(&entry.key).arg(entry.encoded()).arg(entry.fence.unwrap_or(0));
        }
        self.ask(Ask::Script(&call)).await
    }

    async fn forget(&self, removals: &[(Key, Stamp)]) -> Result<(), StoreError> {
        if removals.is_empty() {
            return Ok(());
        }
        let mut call = self.forget.key(PREFIX);
        for ((table, key), stamp) in removals {
            call.arg(table.name()).arg(key).arg(format!("{stamp} "));
        }
        self.ask(Ask::Script(&call)).await
    }

    async fn lease(&self, who: &str, ttl: Duration) -> Result<LeaseHolder, StoreError> {
        let mut call = self.lease.key(PREFIX);
        call.arg(who).arg(ttl.as_millis() as u64);
        let (who, fence) = self.ask(Ask::Script(&call)).await?;
        Ok(LeaseHolder { who, fence })
    }

    async fn release(&self, who: &str) -> Result<(), StoreError> {
        let mut call = self.release.key(PREFIX);
        self.ask(Ask::Script(call.arg(who))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_and_never_show_a_password() {
        for good in [
            "redis://127.0.0.1:6379/0",
            "redis://redis",
            "rediss://user:s3cret@redis.example:6380/2",
            "redis://:s3cr%40et@[::1]:6379",
            "valkey://cache/1",
        ] {
            let url = RedisUrl::parse(good).unwrap_or_else(|error| panic!("{good}: {error}"));
            let shown = format!("{url} {url:?}");
            assert!(!shown.contains("s3cr") && !shown.contains("user"), "{shown}");
        }
        for bad in [
            "",
            "127.0.0.1:6379",
            "http://127.0.0.1",
            "redis://",
            "redis://host:port",
            "redis://:s3cret@host:99999",
            "redis://h/notanumber",
            "unix:///run/redis.sock?pass=s3cret",
        ] {
            let error = RedisUrl::parse(bad).err().unwrap_or_else(|| panic!("{bad} is accepted"));
            assert!(!error.to_string().contains("s3cret") && !redacted(bad).contains("s3cret"), "{bad}: {error}");
        }
        assert_eq!(redacted("rediss://user:p@ss@h:1/2?pass=x"), "rediss://***@h:1/2");
    }

    #[tokio::test]
    async fn nothing_that_can_be_shown_has_the_password() {
        let url = RedisUrl::parse("redis://:s3cret@127.0.0.1:1/0").unwrap();
        let redis = Redis::new(url, "g".into()).unwrap();
        let error = redis.load().await.unwrap_err();
        let shown = format!("{redis:?} {} {error} {error:?}", redis.describe());
        assert!(shown.contains("redis://***@127.0.0.1:1/0") && !shown.contains("s3cret"), "{shown}");
    }
}
