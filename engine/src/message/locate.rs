//! Locate: transaction ids and message ids become offsets by asking the log, for acks of leases that this broker did not serve or
//! no longer remembers.

use std::sync::Arc;

use uuid::Uuid;

use crate::db::procedures;
use crate::db::{Connection, Error, Priority};
use crate::log::ids::{Reference, TransactionHash};
use crate::shared::Shared;
use crate::sidecar::Operation;

pub struct Locate {
    pub partition: Uuid,
    pub group: Arc<str>,
    /// `None`: no lease is claimed.
    pub lease: Option<Uuid>,
    pub asked: Vec<Reference>,
}

pub struct Located {
    /// The group's.
    pub cursor: i64,
    /// The lease is.
    pub live: bool,
    /// Of each message that was found.
    pub offsets: Vec<Option<i64>>,
}

impl Operation for Locate {
    const NAME: &'static str = "locate";
    const PRIORITY: Priority = Priority::Turn;
    const MERGED_MAX: usize = usize::MAX;
    type Key = (Uuid, Arc<str>);
    /// `None`: no such partition.
    type Output = Option<Located>;
    type Context = Shared;

    fn key(&self) -> Self::Key {
        (self.partition, self.group.clone())
    }

    fn items(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.asked.len() * (2 * TransactionHash::BYTES + size_of::<Uuid>())
    }

    async fn call(_: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Option<Located>>, Error> {
        // A transaction id was chosen by a client or minted for it: both spellings are asked for.
        let hashes = |locate: &Self, chosen: bool| {
            let hashes = locate.asked.iter().map(move |reference| reference.hash.flagged(chosen));
            hashes.flat_map(TransactionHash::to_bytes).collect::<Vec<u8>>()
        };
        let mut ask = procedures::Locate::default();
        for locate in batch {
            ask.partitions.push(locate.partition);
            ask.groups.push(&locate.group);
            ask.leases.push(locate.lease);
            ask.hashes.push([hashes(locate, true), hashes(locate, false)].concat());
            let ids = locate.asked.iter().map(|reference| reference.id.unwrap_or_default());
            ask.ids.push(ids.flat_map(Uuid::into_bytes).collect());
        }
        let mut located: Vec<Option<Located>> = batch.iter().map(|_| None).collect();
        for answer in procedures::locate(db, &ask).await? {
            let located = located[answer.position].get_or_insert_with(|| Located {
                cursor: answer.cursor,
                live: answer.live,
                offsets: vec![None; batch[answer.position].asked.len()],
            });
            if let Some((index, offset)) = answer.found {
                located.offsets[index] = Some(offset);
            }
        }
        Ok(located)
    }
}
