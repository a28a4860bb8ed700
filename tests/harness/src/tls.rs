//! Certificates, and what speaks TLS in tests.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Signs certificates, and keeps them in files.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: TempDir,
}

/// A certificate and its key, in files.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Authority {
    /// One of its own.
    ///
    /// # Errors
    /// When its files cannot be written.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let dir = TempDir::with_prefix("weighbridge-certs-")?;
        std::fs::write(dir.path().join("authority.pem"), params.self_signed(&key)?.pem())?;
        Ok(Self { issuer: Issuer::new(params, key), dir })
    }

    /// Its own certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("authority.pem")
    }

    /// A certificate for this host name or address, for servers and clients. The files have its name; a second one of the same
    /// name replaces them.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn issue(&self, name: &str) -> Result<Issued> {
        let params = CertificateParams::new(vec![name.to_owned()])?;
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        let file = |kind: &str| self.dir.path().join(format!("{name}.{kind}.pem"));
        let issued = Issued { cert: file("cert"), key: file("key") };
        for (path, pem) in [(&issued.key, key.serialize_pem()), (&issued.cert, cert.pem())] {
            let next = path.with_extension("next");
            std::fs::write(&next, pem)?;
            std::fs::rename(&next, path)?;
        }
        Ok(issued)
    }
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_file_iter(path)?.collect::<Result<_, _>>()?)
}

/// GET over TLS from a server of this name: status and body. `client`: the certificate to show.
///
/// # Errors
/// When the handshake fails, or there is no answer.
pub async fn get(
    addr: SocketAddr,
    name: &str,
    path: &str,
    authority: &Authority,
    client: Option<&Issued>,
) -> Result<(StatusCode, String)> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(&authority.file())? {
        roots.add(certificate)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let config = match client {
        Some(issued) => {
            builder.with_client_auth_cert(chain(&issued.cert)?, PrivateKeyDer::from_pem_file(&issued.key)?)?
        }
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(addr).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name.to_owned())?, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let request = Request::get(path).header("host", name).body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::select! {
        answer = answer => answer,
        ended = connection => Err(ended.err().map_or_else(|| anyhow::anyhow!("closed without an answer"), Into::into)),
    }
}

/// Speaks TLS in front of an upstream that does not; dropped, it stops, and so do its connections.
#[derive(Debug)]
pub struct Front {
    addr: SocketAddr,
    _stop: DropGuard,
}

impl Front {
    /// Starts listening.
    ///
    /// # Errors
    /// When no port can be had, or the certificate cannot be used.
    pub async fn start(issued: &Issued, upstream: SocketAddr) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain(&issued.cert)?, PrivateKeyDer::from_pem_file(&issued.key)?)
            .context("the certificate")?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            let serve = async {
                while let Ok((stream, _)) = listener.accept().await {
                    let acceptor = acceptor.clone();
                    connections.spawn(async move {
                        // Whoever breaks off has what he wanted.
                        let mut outer = acceptor.accept(stream).await?;
                        let mut inner = TcpStream::connect(upstream).await?;
                        tokio::io::copy_bidirectional(&mut outer, &mut inner).await
                    });
                }
            };
            stopped.run_until_cancelled(serve).await;
        });
        Ok(Self { addr, _stop: stop.drop_guard() })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}
