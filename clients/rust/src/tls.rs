//! Certificate trust for HTTPS: the system's authorities, or given certificates. Opens no connection.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};

use crate::error::Error;

/// `named`: PEM of certificates to trust in place of the system's. `needed`: whether any URL is https.
pub fn config(named: Option<&[u8]>, needed: bool) -> Result<ClientConfig, Error> {
    let trusted = match named {
        Some(pem) => read(pem)?,
        None if needed => rustls_native_certs::load_native_certs().certs,
        None => Vec::new(),
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::bad_use("cannot set up TLS").with_source(error))?;
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(trusted.iter().cloned());
    if named.is_some() && usable < trusted.len() {
        return Err(Error::bad_use("cannot read one of the CA certificates"));
    }
    if roots.is_empty() {
        return Ok(builder.with_root_certificates(roots).with_no_client_auth());
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| Error::bad_use("cannot set up TLS").with_source(error))?;
    let verifier = Arc::new(Verifier { inner: verifier, trusted });
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn read(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found =
        found.map_err(|error| Error::bad_use("the CA certificates are not PEM").with_source(error))?;
    match found.is_empty() {
        true => Err(Error::bad_use("the CA certificates contain no PEM certificate")),
        false => Ok(found),
    }
}

/// Verifies like rustls, but also accepts a server whose own certificate is a trusted one with the CA flag: `openssl req -x509`
/// creates such certificates, and curl accepts them.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.inner.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // Its validity period was checked by webpki before.
            Err(error) if is_authority(&error) && self.trusted.contains(certificate) => {
                rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified.map_err(|error| match is_strange(&error) && signed_itself(certificate) {
                true => rustls::Error::InvalidCertificate(SelfSigned.into()),
                false => error,
            }),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// It was not issued by a trusted authority.
#[derive(Debug)]
struct SelfSigned;

impl fmt::Display for SelfSigned {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("it is self-signed")
    }
}

impl StdError for SelfSigned {}

impl From<SelfSigned> for CertificateError {
    fn from(why: SelfSigned) -> Self {
        Self::Other(OtherError(Arc::new(why)))
    }
}

fn is_strange(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) || is_authority(error)
}

fn signed_itself(certificate: &CertificateDer<'_>) -> bool {
    webpki::EndEntityCert::try_from(certificate).is_ok_and(|read| read.issuer() == read.subject())
}

/// It was only refused for being a CA certificate.
fn is_authority(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = error else {
        return false;
    };
    matches!(cause.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Why a broker's certificate is not trusted, if that is the cause of an error. A retry cannot help then.
pub fn distrust(error: &(dyn StdError + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(failed @ rustls::Error::InvalidCertificate(reason)) = error.downcast_ref() {
            return Some(match reason {
                CertificateError::UnknownIssuer => "it was not issued by a trusted authority".to_owned(),
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "it has expired".to_owned()
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    "it is not valid yet".to_owned()
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    "its name does not match the URL".to_owned()
                }
                _ if is_authority(failed) => "it is a CA certificate that is not trusted".to_owned(),
                CertificateError::Other(OtherError(cause)) => cause.to_string(),
                other => other.to_string(),
            });
        }
        // The source of an I/O error is only reachable through its inner error.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    None
}
