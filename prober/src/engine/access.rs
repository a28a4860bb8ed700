//! What it takes to speak to an engine beside its address: TLS, and the key that it asks for.
//!
//! Keys come from files or from the environment, never out of the configuration or the API, and are shown by nothing: what
//! holds one has no other `Debug` than `..`. Envoys get them over xDS, since the requests that carry them are Envoy's.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use hyper::header::HeaderValue;
use ring::digest;
use rustls::ClientConfig;
use weighbridge_xds::{Upstream, UpstreamTls, Upstreams};

use crate::config::{FieldError, KeyPlace, Reach, Stands};
use crate::tls;

/// The longest key in bytes.
const MOST: usize = 8 << 10;
/// Environment variables of keys that registrations may name begin so.
const ENV_PREFIX: &str = "WEIGHBRIDGE_KEY_";

/// Which files and variables may be named: whoever registers an endpoint says where its key is sent, so it must not be able
/// to name just any file of this machine.
#[derive(Debug, Clone, Copy)]
pub enum May<'a> {
    /// By the configuration file: all.
    NameAll,
    /// By a registration: files in this directory, and variables that begin with `WEIGHBRIDGE_KEY_`.
    NameIn(Option<&'a Path>),
}

/// TLS towards an engine.
#[derive(Clone)]
pub struct Tls {
    /// The name that its certificate must have.
    pub(super) server_name: String,
    authorities: Arc<str>,
    pub(super) config: Arc<ClientConfig>,
}

/// How an engine is spoken to.
#[derive(Clone, Default)]
pub struct Access {
    pub(super) tls: Option<Tls>,
    key: Option<String>,
    /// SHA-256 of all of it.
    digest: Vec<u8>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access(..)")
    }
}

impl PartialEq for Access {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Access {
    /// Reads what `reach` names. `host`: the endpoint's address as written, whose name its certificate has unless told otherwise.
    ///
    /// # Errors
    /// When something cannot be read, is not what it should be, or may not be named.
    pub fn read(reach: &Reach, host: &str, may: May<'_>) -> Result<Self, FieldError> {
        if *reach == Reach::default() {
            return Ok(Access::default());
        }
        let key = reach.api_key.as_ref().map(|place| key(place, may)).transpose()?;
        let mut hash = digest::Context::new(&digest::SHA256);
        let mut add = |part: &[u8]| {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        };
        add(key.as_deref().unwrap_or_default().as_bytes());
        let tls = reach.tls.as_ref().map(|written| -> Result<Tls, FieldError> {
            let server_name = written.server_name(host);
            let (field, path) = ("tls.ca_file", authorities_file(written.ca_file.as_deref(), may)?);
            let (config, pem) = tls::client(field, &path)?;
            add(server_name.as_bytes());
            add(&pem);
            let authorities: Arc<str> = String::from_utf8_lossy(&pem).into();
            Ok(Tls { server_name, authorities, config })
        });
        let tls = tls.transpose()?;
        Ok(Access { tls, key, digest: hash.finish().as_ref().to_vec() })
    }

    /// The header with the key.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.key.as_ref()?)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// What an engine says of a key that it does not like may have it in full.
    pub(super) fn without_key(&self, text: String) -> String {
        match &self.key {
            Some(key) if text.contains(key.as_str()) => text.replace(key.as_str(), "(the key)"),
            _ => text,
        }
    }

    fn for_envoy(&self) -> Upstream {
        let tls = self.tls.as_ref();
        Upstream {
            tls: tls.map(|tls| UpstreamTls {
                server_name: tls.server_name.clone(),
                authorities: Arc::clone(&tls.authorities),
            }),
            authorization: self.key.as_ref().map(|key| format!("Bearer {key}")),
        }
    }
}

fn refusal(field: &str, stands: &str, expected: impl Into<String>) -> FieldError {
    FieldError { field: field.into(), stands: Stands::Value(stands.into()), expected: expected.into() }
}

/// A file, when it may be named.
fn permitted(field: &str, path: &Path, may: May<'_>) -> Result<(), FieldError> {
    let May::NameIn(directory) = may else { return Ok(()) };
    let shown = path.display().to_string();
    let Some(directory) = directory else {
        return Err(refusal(field, &shown, "nothing, since api.key_dir is not set"));
    };
    // Links are followed first: a way out of the directory is none.
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    match real(path).zip(real(directory)) {
        Some((file, directory)) if file.starts_with(&directory) => Ok(()),
        _ => Err(refusal(field, &shown, format!("a file in api.key_dir, which is {}", directory.display()))),
    }
}

/// The authorities of this file, or of the system.
fn authorities_file(written: Option<&Path>, may: May<'_>) -> Result<PathBuf, FieldError> {
    if let Some(path) = written {
        permitted("tls.ca_file", path, may)?;
        return Ok(path.to_owned());
    }
    tls::system_authorities("tls.ca_file")
}

fn key(place: &KeyPlace, may: May<'_>) -> Result<String, FieldError> {
    let (field, stands, text) = match place {
        KeyPlace::File(path) => {
            permitted("api_key_file", path, may)?;
            let text = String::from_utf8(tls::content("api_key_file", path)?).unwrap_or_default();
            ("api_key_file", path.display().to_string(), text)
        }
        KeyPlace::Env(name) => {
            if matches!(may, May::NameIn(_)) && !name.starts_with(ENV_PREFIX) {
                return Err(refusal("api_key_env", name, format!("a variable that begins with {ENV_PREFIX}")));
            }
            let text = std::env::var(name).map_err(|_| refusal("api_key_env", name, "a variable that is set"))?;
            ("api_key_env", name.clone(), text)
        }
    };
    let key = text.lines().next().unwrap_or_default().trim();
    let good = (1..=MOST).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if !good {
        let expected = format!("a key in its first line: 1 to {MOST} printable characters without spaces");
        return Err(refusal(field, &stands, expected));
    }
    Ok(key.to_owned())
}

/// How every engine is spoken to that needs more than its address.
#[derive(Debug, Default)]
pub struct Book(RwLock<Pages>);

#[derive(Debug, Default)]
struct Pages {
    by_address: HashMap<SocketAddr, Arc<Access>>,
    /// The same for Envoys, and what stands for it.
    for_envoys: Arc<Upstreams>,
    digest: String,
}

impl Book {
    /// How this engine is spoken to.
    #[must_use]
    pub fn of(&self, engine: SocketAddr) -> Arc<Access> {
        let pages = self.0.read().unwrap_or_else(PoisonError::into_inner);
        pages.by_address.get(&engine).cloned().unwrap_or_default()
    }

    /// From now on it is spoken to like this; `true` when that is something else than before.
    pub fn set(&self, engine: SocketAddr, access: &Arc<Access>) -> bool {
        if *self.of(engine) == **access {
            return false;
        }
        self.change(|by_address| {
            if **access == Access::default() {
                by_address.remove(&engine);
            } else {
                by_address.insert(engine, Arc::clone(access));
            }
        });
        true
    }

    /// Forgets engines that nobody needs any more.
    pub fn retain(&self, needed: impl Fn(SocketAddr) -> bool) {
        let pages = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let superfluous = pages.by_address.keys().any(|engine| !needed(*engine));
        drop(pages);
        if superfluous {
            self.change(|by_address| by_address.retain(|engine, _| needed(*engine)));
        }
    }

    /// What Envoys are told, and 64 hexadecimal digits that stand for it (none for nothing).
    #[must_use]
    pub fn for_envoys(&self) -> (Arc<Upstreams>, String) {
        let pages = self.0.read().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&pages.for_envoys), pages.digest.clone())
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<SocketAddr, Arc<Access>>)) {
        let mut pages = self.0.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut pages.by_address);
        let ordered: BTreeMap<SocketAddr, &Arc<Access>> =
            pages.by_address.iter().map(|(engine, access)| (*engine, access)).collect();
        let mut hash = digest::Context::new(&digest::SHA256);
        for (engine, access) in &ordered {
            hash.update(engine.to_string().as_bytes());
            hash.update(&access.digest);
        }
        let digest = match ordered.is_empty() {
            true => String::new(),
            false => hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        let for_envoys = Arc::new(ordered.into_iter().map(|(engine, access)| (engine, access.for_envoy())).collect());
        (pages.for_envoys, pages.digest) = (for_envoys, digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineTls;

    fn with_key(place: KeyPlace) -> Reach {
        Reach { api_key: Some(place), tls: None }
    }

    #[test]
    fn a_key_is_read_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "sk-marker\n").unwrap();
        let access = Access::read(&with_key(KeyPlace::File(file.clone())), "h:1", May::NameAll).unwrap();
        assert_eq!(access.authorization().unwrap(), "Bearer sk-marker");
        assert_eq!(access.without_key("no key sk-marker here".into()), "no key (the key) here");
        let book = Book::default();
        assert!(book.set("10.0.0.1:1".parse().unwrap(), &Arc::new(access.clone())));
        assert!(!book.set("10.0.0.1:1".parse().unwrap(), &Arc::new(access.clone())));
        let shown = format!("{access:?} {book:?} {:?}", access.authorization());
        assert!(!shown.contains("marker"), "{shown}");
        let (told, digest) = book.for_envoys();
        assert_eq!((told.len(), digest.len()), (1, 64));
        book.retain(|_| false);
        assert_eq!(book.for_envoys(), (Arc::default(), String::new()));
        for (content, what) in [("", "empty"), ("two words", "spaces"), ("kéy", "not ASCII")] {
            std::fs::write(&file, content).unwrap();
            let error = Access::read(&with_key(KeyPlace::File(file.clone())), "h:1", May::NameAll).unwrap_err();
            assert!(error.to_string().starts_with("api_key_file is "), "{what}: {error}");
            assert!(content.is_empty() || !error.to_string().contains(content), "{error}");
        }
    }

    #[test]
    fn registrations_name_no_file_outside_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        std::fs::create_dir(&keys).unwrap();
        for path in [dir.path().join("token"), keys.join("key")] {
            std::fs::write(path, "content").unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("token"), keys.join("way-out")).unwrap();
        let read = |path: PathBuf, may| Access::read(&with_key(KeyPlace::File(path)), "h:1", may).map(|_| ());
        let inside = May::NameIn(Some(&keys));
        assert_eq!(read(keys.join("key"), inside), Ok(()));
        for outside in [dir.path().join("token"), keys.join("../token"), keys.join("way-out"), keys.join("none")] {
            let error = read(outside, inside).unwrap_err().to_string();
            assert!(error.contains("api.key_dir"), "{error}");
        }
        assert!(read(keys.join("key"), May::NameIn(None)).unwrap_err().to_string().contains("api.key_dir is not set"));
        let env = |may| Access::read(&with_key(KeyPlace::Env("PATH".into())), "h:1", may).map(|_| ()).unwrap_err();
        assert!(env(inside).to_string().contains(ENV_PREFIX));
        let tls = Reach { api_key: None, tls: Some(EngineTls { sni: None, ca_file: Some("/etc/passwd".into()) }) };
        assert!(Access::read(&tls, "h:1", inside).unwrap_err().to_string().contains("api.key_dir"));
    }
}
