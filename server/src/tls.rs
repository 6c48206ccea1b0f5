//! TLS of the listener: reads the certificate, and reads it again after a change. It knows no HTTP.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

/// How long a new certificate may go unnoticed without a SIGHUP.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The certificate chain of this broker.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients need a certificate of one of these authorities.
    pub client_ca: Option<PathBuf>,
}

/// The contents of the files.
#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

pub struct Door {
    files: Files,
    current: RwLock<(Arc<ServerConfig>, Contents)>,
    /// Taken by `watch`.
    hangups: Mutex<Option<Signal>>,
}

impl Door {
    /// The error names the file that is invalid. From here on, a SIGHUP does not end the process, because the start may take
    /// long, and a certificate may be renewed meanwhile.
    pub fn open(files: Files) -> Result<Self> {
        let hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        let contents = files.read()?;
        let config = contents.config(&files)?;
        let hangups = Mutex::new(Some(hangups));
        Ok(Self { files, current: RwLock::new((config, contents)), hangups })
    }

    /// For a new connection. Open connections keep their certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.read().unwrap_or_else(PoisonError::into_inner).0.clone())
    }

    /// Checks the files periodically and on SIGHUP. Never returns; called once.
    pub async fn watch(&self) {
        let mut hangups = self.hangups.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut refused = None;
        loop {
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                Some(()) = async { hangups.as_mut()?.recv().await } => refused = None,
            }
            match self.look() {
                Ok(true) => {
                    info!(certificate = %self.files.certificate.display(), "using a new certificate for new connections")
                }
                Ok(false) => refused = None,
                Err(error) => {
                    let cause = format!("{error:#}");
                    if refused.as_ref() != Some(&cause) {
                        warn!(%cause, "cannot use the new certificate; keeping the old one");
                    }
                    refused = Some(cause);
                }
            }
        }
    }

    /// Whether the files had changed.
    fn look(&self) -> Result<bool> {
        let contents = self.files.read()?;
        if self.current.read().unwrap_or_else(PoisonError::into_inner).1 == contents {
            return Ok(false);
        }
        let config = contents.config(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (config, contents);
        Ok(true)
    }
}

/// Shows file names only, because the contents include a key.
impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.files.fmt(f)
    }
}

impl Files {
    fn read(&self) -> Result<Contents> {
        let read =
            |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        Ok(Contents {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            client_ca: self.client_ca.as_deref().map(read).transpose()?,
        })
    }
}

impl Contents {
    fn config(&self, files: &Files) -> Result<Arc<ServerConfig>> {
        let chain = certificates(&self.certificate, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| anyhow::anyhow!("{} holds no private key in PEM", files.key.display()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match (&self.client_ca, &files.client_ca) {
            (Some(authority), Some(path)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(authority, path)? {
                    roots.add(certificate).with_context(|| format!("in {}", path.display()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).with_context(|| {
            format!("{} and {} do not fit", files.certificate.display(), files.key.display())
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.with_context(|| format!("{} cannot be read as PEM", path.display()))?;
    ensure!(!found.is_empty(), "{} holds no certificate in PEM", path.display());
    Ok(found)
}
