//! Who asks. It decides nothing by itself.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// The other end of the connection, as `connections.rs` saw it.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Whoever sent the request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The subject of its token; nobody without one.
    pub subject: Option<Arc<str>>,
    pub address: IpAddr,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<Peer>();
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0.ip());
        Ok(Self { subject: None, address })
    }
}
