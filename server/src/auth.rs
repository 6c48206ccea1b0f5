//! Who asks, and what they may do. `guard.rs` lets a request in or not; handlers that learn only from a body which queues
//! it is about ask `Caller`. With access control off nothing of this runs.

pub mod grants;
pub mod guard;
pub mod jwks;
pub mod keys;
pub mod marks;
pub mod refusal;
pub mod role;
mod seen;
pub mod token;

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use queen_engine::Engine;
use queen_protocol::{ErrorCode, Holder, LeaseId};
use uuid::Uuid;

use crate::http::error::ApiError;
use grants::{Grants, Need};
use role::Role;

/// The other end of the connection, as `connections.rs` saw it.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// What somebody has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Token,
    Key,
}

/// What a token or a key says about who holds it.
#[derive(Debug)]
pub struct Identity {
    pub kind: Kind,
    pub subject: Option<Arc<str>>,
    /// `None` if it names no role of ours.
    pub role: Option<Role>,
    /// `None` = all queues.
    pub grants: Option<Arc<Grants>>,
}

/// What becomes of a partition that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// It looks the same as one of another queue.
    Refused,
    /// The operation says that there is nothing. A consumer whose queue was deleted is told so, and not that it has lost a
    /// right.
    Passes,
}

/// Whoever sent the request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The subject of its token, or the name of its API key; nobody without one.
    pub subject: Option<Arc<str>>,
    pub address: IpAddr,
    grants: Option<Arc<Grants>>,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<Peer>();
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0.ip());
        let identity = parts.extensions.get::<Arc<Identity>>();
        Ok(Self {
            subject: identity.and_then(|identity| identity.subject.clone()),
            grants: identity.and_then(|identity| identity.grants.clone()),
            address,
        })
    }
}

impl From<&Caller> for Holder {
    fn from(caller: &Caller) -> Self {
        Self { name: caller.subject.clone(), address: caller.address.to_canonical() }
    }
}

impl Caller {
    /// Which queues may be touched; `None` = all.
    pub fn grants(&self) -> Option<&Grants> {
        self.grants.as_deref()
    }

    pub fn can(&self, need: Need, queue: &str) -> bool {
        self.grants.as_ref().is_none_or(|grants| grants.allow(need, queue))
    }

    /// For a queue that the request names itself: the refusal repeats the name.
    pub fn may(&self, need: Need, queue: &str) -> Result<(), ApiError> {
        match self.can(need, queue) {
            true => Ok(()),
            false => Err(forbidden(format!("no right to {} queue {queue:?}", need.words()))),
        }
    }

    pub async fn may_partitions(
        &self,
        engine: &Engine,
        need: Need,
        unknown: Unknown,
        partitions: &[Uuid],
    ) -> Result<(), ApiError> {
        let Some(grants) = &self.grants else { return Ok(()) };
        let owners = engine.owners(partitions).await?;
        for (partition, owner) in partitions.iter().zip(&owners) {
            let allowed = match owner.as_deref() {
                Some(queue) => grants.allow(need, queue),
                None => unknown == Unknown::Passes,
            };
            if !allowed {
                return Err(forbidden(format!(
                    "no right to {} the queue of partition {partition}",
                    need.words()
                )));
            }
        }
        Ok(())
    }

    /// A text that is no lease covers nothing, and neither does a lease on what was deleted meanwhile.
    pub async fn may_leases<'a>(
        &self,
        engine: &Engine,
        need: Need,
        leases: impl Iterator<Item = &'a str> + Send,
    ) -> Result<(), ApiError> {
        let Some(grants) = &self.grants else { return Ok(()) };
        let numbers: Vec<i64> =
            leases.filter_map(LeaseId::parse).flat_map(|lease| lease.partitions).collect();
        let owners = engine.owners_of_numbers(&numbers).await?;
        let all = owners.iter().flatten().all(|queue| grants.allow(need, queue));
        if all {
            Ok(())
        } else {
            Err(forbidden(format!("no right to {} the queue of this lease", need.words())))
        }
    }
}

pub fn forbidden(text: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::Forbidden, text)
}
