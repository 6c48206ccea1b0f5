//! Certificates for tests: a private authority, and certificates signed by it. They last as long as the test.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use uuid::Uuid;

/// PEM of a certificate and of its key.
#[derive(Debug, Clone)]
pub struct Certificate {
    pub certificate: String,
    pub key: String,
}

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    #[expect(clippy::new_without_default, reason = "every instance is different")]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        // Two authorities of the same name would differ by their signatures only.
        params.distinguished_name.push(DnType::CommonName, format!("authority {}", Uuid::new_v4()));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key can be made");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority can be made"))
    }

    /// PEM, for clients that should trust it.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A self-signed certificate as `openssl req -x509` makes it: an authority that also has names.
    pub fn self_signed(names: &[&str]) -> Certificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::new(names).expect("names make sense");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a key signs");
        Certificate { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A certificate for host names and addresses.
    pub fn issue(&self, names: &[&str]) -> Certificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key can be made");
        let params = CertificateParams::new(names).expect("names make sense");
        let certificate = params.signed_by(&key, &self.0).expect("an authority signs");
        Certificate { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}
