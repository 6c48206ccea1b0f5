//! The connector for outgoing HTTP and HTTPS, to addresses from the settings. It sends nothing itself.

use std::sync::Arc;

use anyhow::{Context, Result};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore};

/// Trusts the certificate authorities that the system trusts.
pub fn connector(url: &str) -> Result<HttpsConnector<HttpConnector>> {
    let mut roots = RootCertStore::empty();
    if url.starts_with("https:") {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build())
}
