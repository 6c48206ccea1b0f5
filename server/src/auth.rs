//! Access control: who is the caller, and what may it do. `guard.rs` checks each request; handlers ask `Caller` about
//! queues that only a body names. With access control off, none of this runs.

pub mod access;
pub mod audit;
pub mod grants;
pub mod guard;
pub mod jwks;
pub mod keys;
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

/// The kind of credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Token,
    Key,
}

/// The address of a request that came without a connection.
pub const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What a token or an API key says about its holder.
#[derive(Debug)]
pub struct Identity {
    pub kind: Kind,
    pub subject: Option<Arc<str>>,
    /// The id of an API key.
    pub key: Option<Arc<str>>,
    /// `None` if it names no known role.
    pub role: Option<Role>,
    /// `None` = all queues.
    pub grants: Option<Arc<Grants>>,
    /// When it expires; `None` if never, or not soon.
    pub until: Option<Instant>,
    /// Cancelled when the API key is revoked.
    pub revoked: Option<CancellationToken>,
}

/// How to treat a partition that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// Like a partition of another queue: it is refused.
    Refused,
    /// It passes, and the operation reports that there is no such partition. A consumer whose queue was deleted gets this answer,
    /// and not that it has lost a right.
    Passes,
}

const NAMESPACE: &str = "namespace";
const TASK: &str = "task";

/// The labels that a request would give a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels<'a> {
    pub queue: &'a str,
    pub namespace: Option<&'a str>,
    pub task: Option<&'a str>,
}

impl<'a> Labels<'a> {
    /// Labels that do not follow from the name of the queue.
    fn news(&self) -> impl Iterator<Item = (&'static str, &'a str)> + use<'a> {
        let mut words = self.queue.split('.');
        [(NAMESPACE, self.namespace), (TASK, self.task)].into_iter().filter_map(move |(what, label)| {
            let implied = words.next().unwrap_or_default();
            label.filter(|label| !label.is_empty() && *label != implied).map(|label| (what, label))
        })
    }
}

/// The sender of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The subject of its token, or the name of its API key.
    pub subject: Option<Arc<str>>,
    pub address: IpAddr,
    grants: Option<Arc<Grants>>,
    /// `None` without access control, and on an open path.
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
    /// Its grants; `None` = all queues.
    pub fn grants(&self) -> Option<&Grants> {
        self.grants.as_deref()
    }

    /// How long its credential remains valid.
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

    /// For a queue that the request names; the refusal repeats the name.
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

    /// Text that is not a lease, and leases of deleted queues, cover nothing and pass.
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

/// An acknowledgement without a lease id commits messages regardless of who has leased them. That is allowed without
/// access control, and once the lease has ended. With access control, a live lease is settled only with its id.
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

    /// Consumers find queues by label, so a caller with grants may only use labels whose queues are all granted. Labels that the
    /// queue already has, or that follow from its name, are allowed.
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
            // Also for a queue that exists: it may be deleted and created again before the messages are stored.
            let own = by_name
                .get(labels.queue)
                .map(|queue| [(NAMESPACE, &*queue.namespace), (TASK, &*queue.task)])
                .unwrap_or_default();
            if let Some((what, label)) = labels.news().find(|new| !own.contains(new) && foreign.contains(new))
            {
                return Err(forbidden(format!(
                    "{what} {label:?} belongs to queues that the caller has no right to {}; their consumers would receive the messages",
                    need.words()
                )));
            }
        }
        Ok(())
    }

    /// Whether its role may administer queues. For a caller with grants, its right to the queue is checked instead.
    pub fn administers(&self) -> bool {
        self.grants.is_some()
            || self.identity.as_ref().is_none_or(|identity| identity.role == Some(Role::Admin))
    }
}

pub fn forbidden(text: impl Into<String>) -> ApiError {
    ApiError::denied(Denied::Grants, text)
}
