//! Who asks, and what they may do. `guard.rs` lets a request in or not; handlers that learn only from a body which queues
//! it is about ask `Caller`. With access control off nothing of this runs.

pub mod audit;
pub mod grants;
pub mod guard;
pub mod jwks;
pub mod keys;
pub mod marks;
pub mod refusal;
pub mod role;
mod seen;
pub mod token;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use queen_engine::{Engine, QueueLabels};
use queen_protocol::{AckItem, Holder, LeaseId};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::http::error::ApiError;
use grants::{Grants, Need};
use refusal::Denied;
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

/// Where a request came from that no connection brought.
pub const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What a token or a key says about who holds it.
#[derive(Debug)]
pub struct Identity {
    pub kind: Kind,
    pub subject: Option<Arc<str>>,
    /// The id of an API key.
    pub key: Option<Arc<str>>,
    /// `None` if it names no role of ours.
    pub role: Option<Role>,
    /// `None` = all queues.
    pub grants: Option<Arc<Grants>>,
    /// When it expires; `None`: never, or not soon.
    pub until: Option<Instant>,
    /// Of an API key: cancelled when it is revoked.
    pub revoked: Option<CancellationToken>,
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

const NAMESPACE: &str = "namespace";
const TASK: &str = "task";

/// What a request would label a queue with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels<'a> {
    pub queue: &'a str,
    pub namespace: Option<&'a str>,
    pub task: Option<&'a str>,
}

impl<'a> Labels<'a> {
    /// Those that its name does not stand for.
    fn news(&self) -> impl Iterator<Item = (&'static str, &'a str)> + use<'a> {
        let mut words = self.queue.split('.');
        [(NAMESPACE, self.namespace), (TASK, self.task)].into_iter().filter_map(move |(what, label)| {
            let implied = words.next().unwrap_or_default();
            label.filter(|label| !label.is_empty() && *label != implied).map(|label| (what, label))
        })
    }
}

/// Whoever sent the request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The subject of its token, or the name of its API key; nobody without one.
    pub subject: Option<Arc<str>>,
    pub address: IpAddr,
    grants: Option<Arc<Grants>>,
    /// `None` without access control, and on a path that is open.
    identity: Option<Arc<Identity>>,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<Peer>();
        let address = peer.map_or(NOWHERE, |peer| peer.0.ip());
        let identity = parts.extensions.get::<Arc<Identity>>();
        Ok(Self {
            subject: identity.and_then(|identity| identity.subject.clone()),
            grants: identity.and_then(|identity| identity.grants.clone()),
            address,
            identity: identity.cloned(),
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

    /// How long what it has shown is valid.
    pub fn left(&self) -> Duration {
        let until = self.identity.as_ref().and_then(|identity| identity.until);
        until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Cancelled when its API key is revoked.
    pub fn revoked(&self) -> Option<&CancellationToken> {
        self.identity.as_ref()?.revoked.as_ref()
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

/// An acknowledgement that names no lease commits whatever is leased: fine among friends, and a late handler may do so once
/// its lease is over. With access control a lease is its holder's: only its id settles it.
impl Caller {
    /// `named`: leases that are named elsewhere in the request.
    pub async fn may_settle<'a>(
        &self,
        engine: &Engine,
        acks: impl Iterator<Item = &'a AckItem> + Send,
        named: &[LeaseId],
    ) -> Result<(), ApiError> {
        if self.identity.is_none() {
            return Ok(());
        }
        let mut readers: Vec<(Uuid, &str)> = acks
            .filter(|ack| ack.lease_id.is_none())
            .map(|ack| (ack.partition_id, ack.group.as_str()))
            .collect();
        readers.sort_unstable();
        readers.dedup();
        if readers.is_empty() {
            return Ok(());
        }
        let leases = engine.live_leases(&readers).await?;
        let foreign = |lease: &Uuid| named.iter().all(|named| named.id != *lease);
        let mut refused =
            readers.iter().zip(&leases).filter(|(_, lease)| lease.as_ref().is_some_and(foreign));
        match refused.next() {
            None => Ok(()),
            Some(((partition, group), _)) => Err(forbidden(format!(
                "partition {partition} is leased to a consumer of group {group:?}: an acknowledgement needs the leaseId of \
                 its pop"
            ))),
        }
    }

    /// Labels lead consumers to a queue: who is limited to some queues may only use those whose queues are all granted.
    /// A queue's own labels, and those its name stands for, are no news.
    pub async fn may_label(&self, engine: &Engine, need: Need, given: &[Labels<'_>]) -> Result<(), ApiError> {
        let Some(grants) = &self.grants else { return Ok(()) };
        let given: Vec<_> = given.iter().filter(|labels| labels.news().next().is_some()).collect();
        if given.is_empty() {
            return Ok(());
        }
        let news = |of: &'static str| {
            given
                .iter()
                .flat_map(|labels| labels.news())
                .filter(move |(what, _)| *what == of)
                .map(|(_, label)| label)
        };
        let names: Vec<&str> = given.iter().map(|labels| labels.queue).collect();
        let (namespaces, tasks): (Vec<&str>, Vec<&str>) = (news(NAMESPACE).collect(), news(TASK).collect());
        let known = engine.queues_labelled(&names, &namespaces, &tasks).await?;
        let by_name: HashMap<&str, &QueueLabels> = known.iter().map(|queue| (&*queue.name, queue)).collect();
        let foreign: HashSet<(&str, &str)> = known
            .iter()
            .filter(|queue| !grants.allow(need, &queue.name))
            .flat_map(|queue| [(NAMESPACE, &*queue.namespace), (TASK, &*queue.task)])
            .collect();
        for labels in given {
            // Also of a queue that exists: it may be deleted before what is pushed to it lands, and made anew.
            let own = by_name
                .get(labels.queue)
                .map(|queue| [(NAMESPACE, &*queue.namespace), (TASK, &*queue.task)])
                .unwrap_or_default();
            if let Some((what, label)) = labels.news().find(|new| !own.contains(new) && foreign.contains(new))
            {
                return Err(forbidden(format!(
                    "{what} {label:?} is that of queues you have no right to {}: consumers of it would get your messages",
                    need.words()
                )));
            }
        }
        Ok(())
    }

    /// Whether its role may do this to queues; a limited caller is asked for its right to the queue instead.
    pub fn administers(&self) -> bool {
        self.grants.is_some()
            || self.identity.as_ref().is_none_or(|identity| identity.role == Some(Role::Admin))
    }
}

pub fn forbidden(text: impl Into<String>) -> ApiError {
    ApiError::denied(Denied::Grants, text)
}
