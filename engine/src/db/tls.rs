//! TLS to PostgreSQL: which certificates are trusted, and which one is presented. Read once at start, which fails if a
//! setting cannot be honored.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::config::{Roots, Tls, TlsMode};
use crate::error::StartError;

pub fn client(tls: &Tls) -> Result<ClientConfig, StartError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| StartError::Tls(error.to_string()))?;
    let builder = match tls.mode {
        TlsMode::VerifyFull => builder.with_root_certificates(roots(&tls.roots)?),
        TlsMode::VerifyCa => {
            let verifier = Arc::new(Lenient { provider, roots: Some(roots(&tls.roots)?) });
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
        TlsMode::Off | TlsMode::Prefer | TlsMode::Unverified => {
            let verifier = Arc::new(Lenient { provider, roots: None });
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
    let Some((certificate, key)) = &tls.client else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error.to_string()))?;
    builder.with_client_auth_cert(chain, secret).map_err(|error| unusable(certificate, &error.to_string()))
}

fn roots(from: &Roots) -> Result<RootCertStore, StartError> {
    let mut roots = RootCertStore::empty();
    match from {
        Roots::System => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let text =
                    "this system trusts no certificates: install them, or name a file with PG_SSL_ROOT_CERT";
                return Err(StartError::Tls(text.to_owned()));
            }
        }
        Roots::File(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| unusable(path, &error.to_string()))?;
            }
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| unusable(path, &error.to_string()))?;
    if found.is_empty() { Err(unusable(path, "there is no certificate in it")) } else { Ok(found) }
}

fn unusable(path: &Path, cause: &str) -> StartError {
    StartError::Tls(format!("{} cannot be used for TLS to the database: {cause}", path.display()))
}

/// Verifies less than it should, as configured. Without roots, anyone may be at the other end; with them, anyone with
/// a certificate from an authority we trust.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(certificate)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
