//! TLS of what the prober serves: the REST API and xDS.
//!
//! With `client_ca_file`, whoever connects must show a certificate that this authority has signed. Files that have changed
//! count for connections that come after; those that are there stay, so whoever takes trust away restarts the prober.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ring::digest;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::config::{FieldError, Stands, Tls};
use crate::reload::{Read, Reload};
use crate::service::Service;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes at once; more wait to be accepted.
const MOST_HANDSHAKES: usize = 64;
/// After accepting has failed (no file descriptors are left), so long nobody is accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// A file of certificates or keys is no larger.
const MOST_BYTES: u64 = 1 << 20;

/// A connection whose handshake is done.
pub type Secured = TlsStream<TcpStream>;

/// Ends TLS with the certificates that are in the files now.
#[derive(Debug)]
pub struct Terminator {
    /// The field of the configuration, such as `api.tls`.
    field: &'static str,
    files: Tls,
    alpn: &'static [u8],
    loaded: RwLock<Loaded>,
    refused: AtomicU64,
}

#[derive(Debug)]
struct Loaded {
    /// SHA-256 of what the files had.
    content: Vec<u8>,
    config: Arc<ServerConfig>,
}

impl Terminator {
    /// Reads the files; `alpn` is the one protocol that is spoken inside.
    ///
    /// # Errors
    /// When one of them cannot be read, or is not what it should be.
    pub fn read(field: &'static str, files: &Tls, alpn: &'static [u8]) -> Result<Self, FieldError> {
        let loaded = RwLock::new(load(field, files, alpn)?);
        Ok(Terminator { field, files: files.clone(), alpn, loaded, refused: AtomicU64::new(0) })
    }

    /// How many handshakes have failed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The field of the configuration.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.field
    }

    fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner).config)
    }

    /// The handshake with one that has connected. One that fails is counted; the first in a while is logged.
    pub async fn secure(&self, stream: TcpStream, peer: SocketAddr) -> Option<Secured> {
        let accepted = TlsAcceptor::from(self.config()).accept(stream);
        let why = match tokio::time::timeout(HANDSHAKE, accepted).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the handshake took too long".into(),
        };
        // Powers of two: whoever knocks for hours does not fill the log.
        if (self.refused.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            tracing::warn!(listener = self.field, %peer, why, refused = self.refused(), "a client is refused");
        }
        None
    }
}

impl Reload for Terminator {
    fn reload(&self, _: &Service) -> Vec<(String, Result<Read, String>)> {
        vec![(self.field.into(), self.read_again())]
    }
}

impl Terminator {
    fn read_again(&self) -> Result<Read, String> {
        // Parsing some certificates every second costs microseconds.
        let loaded = load(self.field, &self.files, self.alpn).map_err(|error| error.to_string())?;
        let mut known = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        if known.content == loaded.content {
            return Ok(Read::Same);
        }
        *known = loaded;
        Ok(Read::Changed)
    }
}

/// What is wrong with a file.
fn wrong(field: String, path: &Path, expected: impl Into<String>) -> FieldError {
    FieldError { field, stands: Stands::Value(path.display().to_string()), expected: expected.into() }
}

/// The content of a file that is not too large to be what it should be.
pub(crate) fn content(field: &str, path: &Path) -> Result<Vec<u8>, FieldError> {
    let unreadable = |why: String| wrong(field.to_owned(), path, format!("a file that can be read ({why})"));
    let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if length > MOST_BYTES {
        return Err(unreadable(format!("it has {length} bytes, more than {MOST_BYTES}")));
    }
    std::fs::read(path).map_err(|error| unreadable(error.to_string()))
}

/// The certificates of a PEM file, at least one.
fn certificates(field: &str, path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FieldError> {
    let expected = "certificates in PEM";
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| wrong(field.to_owned(), path, expected))
}

/// The authorities of a PEM file.
///
/// # Errors
/// When there is none in it, or one that cannot be used.
fn authorities(field: &str, path: &Path, pem: &[u8]) -> Result<RootCertStore, FieldError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(field, path, pem)? {
        roots
            .add(certificate)
            .map_err(|error| wrong(field.to_owned(), path, format!("certificates of authorities in PEM ({error})")))?;
    }
    Ok(roots)
}

/// The file of authorities that this system trusts.
///
/// # Errors
/// When there is none; `field` is the one that could name another.
pub fn system_authorities(field: &str) -> Result<PathBuf, FieldError> {
    openssl_probe::probe().cert_file.ok_or_else(|| FieldError {
        field: field.into(),
        stands: Stands::Missing,
        expected: "a file of certificates, since the system has none".into(),
    })
}

/// What a client needs who trusts the authorities of this file, and the file's content.
///
/// # Errors
/// When it cannot be read, or has no authorities.
pub fn client(field: &str, path: &Path) -> Result<(Arc<ClientConfig>, Vec<u8>), FieldError> {
    let pem = content(field, path)?;
    let roots = authorities(field, path, &pem)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(field.to_owned(), path, error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((Arc::new(config), pem))
}

/// What the files say now.
fn load(field: &str, files: &Tls, alpn: &[u8]) -> Result<Loaded, FieldError> {
    let Tls { cert_file, key_file, client_ca_file } = files;
    let name = |of: &str| format!("{field}.{of}");
    let cert = content(&name("cert_file"), cert_file)?;
    let key = content(&name("key_file"), key_file)?;
    let authority = client_ca_file.as_deref().map(|path| content(&name("client_ca_file"), path)).transpose()?;
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in [&cert, &key].into_iter().chain(&authority) {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let content = hash.finish().as_ref().to_vec();
    let chain = certificates(&name("cert_file"), cert_file, &cert)?;
    let private = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|_| wrong(name("key_file"), key_file, "a private key in PEM, not encrypted"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(name("cert_file"), cert_file, error.to_string()))?;
    let builder = match (client_ca_file, authority) {
        (Some(path), Some(pem)) => {
            let roots = Arc::new(authorities(&name("client_ca_file"), path, &pem)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| wrong(name("client_ca_file"), path, error.to_string()))?,
            )
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(chain, private)
        .map_err(|error| wrong(name("key_file"), key_file, format!("the private key of cert_file ({error})")))?;
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(Loaded { content, config: Arc::new(config) })
}

/// Connections to `listener` as their handshakes succeed, until `shutdown`. One that takes its time holds up nobody else.
pub fn incoming(
    listener: TcpListener,
    terminator: Arc<Terminator>,
    shutdown: CancellationToken,
) -> mpsc::Receiver<std::io::Result<Secured>> {
    let (sender, receiver) = mpsc::channel(MOST_HANDSHAKES);
    let slots = Arc::new(Semaphore::new(MOST_HANDSHAKES));
    let accept = async move {
        while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
            let (stream, peer) = accept(&listener).await;
            let (terminator, sender) = (Arc::clone(&terminator), sender.clone());
            tokio::spawn(async move {
                let _slot = slot;
                if let Some(stream) = terminator.secure(stream, peer).await {
                    // Nobody takes it only after a shutdown.
                    let _ = sender.send(Ok(stream)).await;
                }
            });
        }
    };
    tokio::spawn(async move { shutdown.run_until_cancelled(accept).await });
    receiver
}

/// The next connection. Accepting may fail for a while, but never for good.
pub(crate) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Only latency depends on it.
                let _ = stream.set_nodelay(true);
                return (stream, peer);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
