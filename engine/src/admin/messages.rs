//! Single messages: read, deleted, or dead-lettered by hand. None of this is on the path of a message.

use uuid::Uuid;

use super::message_status::Standing;
use crate::Engine;
use crate::crypt::{Keys, Unreadable};
use crate::db::messages::{self as db, MessageRow};
use crate::error::Error;
use crate::log::frames::{Frame, read_string};
use crate::log::ids::{TransactionHash, message_id};

/// A message as it is stored, and its status.
#[derive(Debug, Clone)]
pub struct StoredMessage {
    pub id: Uuid,
    pub transaction_id: String,
    pub partition_id: Uuid,
    pub trace_id: Option<Uuid>,
    pub producer_sub: Option<String>,
    /// The sender's JSON; null if it cannot be read.
    pub payload: String,
    pub encrypted: bool,
    pub unreadable: Option<Unreadable>,
    /// Microseconds since 1970.
    pub created_at: i64,
    pub queue: String,
    pub partition: String,
    pub namespace: String,
    pub task: String,
    pub priority: i32,
    pub lease_time: i32,
    pub retry_limit: i32,
    pub retry_delay: i32,
    pub ttl: i32,
    /// From its last dead letter.
    pub error: Option<String>,
    pub attempts: i32,
    pub standing: Standing,
}

impl StoredMessage {
    /// `None` if the frame cannot be parsed.
    pub(super) fn new(
        partition_id: Uuid,
        offset: i64,
        id: Option<Uuid>,
        row: MessageRow,
        standing: Standing,
        keys: &Keys,
    ) -> Option<Self> {
        let frame = Frame::parse(&row.frame)?;
        let uuid = |json: &str| Uuid::try_parse(json.trim_matches('"')).ok();
        let promised = id.or_else(|| frame.message_id.and_then(uuid));
        let (error, attempts) = row.dead.unwrap_or_default();
        let (payload, unreadable) = read(&frame, keys);
        Some(Self {
            id: promised.unwrap_or_else(|| message_id(row.created_at, offset, row.number)),
            transaction_id: read_string(frame.transaction_id),
            partition_id,
            trace_id: frame.trace_id.and_then(uuid),
            producer_sub: frame.producer_sub.map(read_string),
            payload,
            encrypted: frame.key_id.is_some(),
            unreadable,
            created_at: row.created_at,
            queue: row.queue,
            partition: row.partition,
            namespace: row.namespace,
            task: row.task,
            priority: row.priority,
            lease_time: row.lease_time,
            retry_limit: row.retry_limit,
            retry_delay: row.retry_delay,
            ttl: row.ttl,
            error,
            attempts,
            standing,
        })
    }
}

/// Which readers there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mode {
    pub queue_mode: bool,
    pub groups: usize,
}

impl Mode {
    pub(super) fn of<'a>(standings: impl Iterator<Item = &'a Standing>) -> Self {
        let mut names: Vec<&str> =
            standings.flat_map(|standing| &standing.groups).map(|group| group.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let queue_mode = names.contains(&queen_protocol::QUEUE_MODE);
        Self { queue_mode, groups: names.len() - usize::from(queue_mode) }
    }
}

/// The outcome of dead-lettering a message by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buried {
    Buried {
        message_id: Uuid,
        failed_at: i64,
    },
    /// There is no such message.
    Missing,
    /// A consumer of the group has it at the moment.
    Leased,
    /// The group has passed it.
    Committed,
}

impl Engine {
    /// The newest message of this transaction id; if it has left the log, from its dead letter.
    pub async fn message(&self, partition: Uuid, transaction: &str) -> Result<Option<StoredMessage>, Error> {
        self.check_open()?;
        let connections = &self.shared.reads;
        let stored = db::find_message(connections, partition, &hashes(transaction)).await?;
        let row = match stored {
            Some(offset) => {
                let row = db::messages_at(connections, &[(partition, offset)]).await?.into_iter().next();
                row.flatten().map(|row| (None, offset, row))
            }
            None => None,
        };
        let row = match row {
            None => {
                let dead = db::dead_message(connections, partition, transaction).await?;
                dead.map(|(id, offset, row)| (Some(id), offset, row))
            }
            row => row,
        };
        let Some((id, offset, row)) = row else { return Ok(None) };
        let readers: Vec<_> =
            db::readers_at(connections, &[partition]).await?.into_iter().map(|(_, r)| r).collect();
        let standing = Standing::of(offset, row.dead.is_some(), &readers);
        Ok(StoredMessage::new(partition, offset, id, row, standing, &self.shared.config.keys))
    }

    /// Returns whether there was such a message, or a dead letter of it. From now on no broker delivers it: a claim
    /// sees the deletion in the row it reads anyway.
    pub async fn delete_message(&self, partition: Uuid, transaction: &str) -> Result<bool, Error> {
        let (engine, transaction) = (self.clone(), transaction.to_owned());
        self.to_its_end(async move {
            let (connections, hashes) = (&engine.shared.connections, hashes(&transaction));
            Ok(db::delete_message(connections, partition, &hashes, &transaction).await?)
        })
        .await
    }

    /// Gives a message up for one group that has neither leased nor passed it.
    pub async fn bury_message(
        &self,
        partition: Uuid,
        transaction: &str,
        group: &str,
        error: Option<&str>,
    ) -> Result<Buried, Error> {
        let (engine, hashes) = (self.clone(), hashes(transaction));
        let (group, error) = (group.to_owned(), error.map(str::to_owned));
        let buried = self.to_its_end(async move {
            let connections = &engine.shared.connections;
            Ok(db::bury_message(connections, partition, &hashes, &group, error.as_deref()).await?)
        });
        let (word, letter) = buried.await?;
        Ok(match (word.as_str(), letter) {
            ("buried", Some((message_id, failed_at))) => Buried::Buried { message_id, failed_at },
            ("leased", _) => Buried::Leased,
            ("committed", _) => Buried::Committed,
            _ => Buried::Missing,
        })
    }
}

/// The payload for display. A message must show up even if its payload cannot be read.
pub(super) fn read(frame: &Frame<'_>, keys: &Keys) -> (String, Option<Unreadable>) {
    match frame.open(keys) {
        Ok(payload) => (payload.into_owned(), None),
        Err(unreadable) => ("null".to_owned(), Some(unreadable)),
    }
}

/// Both hashes: as an id chosen by a client, and as a minted one.
pub(super) fn hashes(transaction: &str) -> Vec<u8> {
    let hash = |chosen| TransactionHash::new(transaction, chosen).to_bytes();
    [hash(true), hash(false)].concat()
}
