//! Locate: turns the message names of an ack into offsets, from the leases that were served here, or by asking the log
//! if another broker served the lease or this one has forgotten it.

use std::collections::HashMap;
use std::sync::Arc;

use queen_protocol::{AckItem, AckResult, LeaseId};
use uuid::Uuid;

use super::ack::AckOf;
use super::ack_outcome::{BAD_LEASE, NOT_FOUND, OTHER_MESSAGE};
use super::ack_plan::Item;
use crate::Engine;
use crate::db::procedures;
use crate::db::{Connection, Error as DbError, Priority};
use crate::error::Error;
use crate::log::ids::{Reference, TransactionHash};
use crate::pop::leases::Service;
use crate::shared::Shared;
use crate::sidecar::Operation;

/// Items of one request with one (partition, group, lease): they succeed or fail together.
#[derive(Debug, Clone)]
pub struct Ack {
    /// Lets the database distinguish the same ack sent again from another ack.
    pub id: Uuid,
    pub partition: Uuid,
    pub group: Arc<str>,
    pub lease: Option<Uuid>,
    /// Known for a lease that was served here.
    pub service: Option<Service>,
    /// Its lease has traced messages, and only another broker knows which.
    pub look_up: bool,
    /// The cursor as this broker last knew it.
    pub cursor: i64,
    pub items: Vec<Item>,
}

impl Ack {
    pub fn key(&self) -> (Uuid, Arc<str>) {
        (self.partition, self.group.clone())
    }
}

impl Engine {
    /// Items that cannot be found are left out, and their results say why.
    pub(super) async fn locate(
        &self,
        items: &[AckItem],
        results: &mut [AckResult],
    ) -> Result<Vec<AckOf>, Error> {
        let mut acks = Vec::new();
        for members in sets(items) {
            acks.extend(self.locate_set(items, &members, results).await?);
        }
        Ok(acks)
    }

    async fn locate_set(
        &self,
        items: &[AckItem],
        members: &[usize],
        results: &mut [AckResult],
    ) -> Result<Option<AckOf>, Error> {
        let mut refuse = |reason: &str| {
            members.iter().for_each(|&index| results[index].error = Some(reason.to_owned()));
        };
        let first = &items[members[0]];
        let claimed = match first.lease_id.as_deref().map(LeaseId::parse) {
            Some(None) => {
                refuse(BAD_LEASE);
                return Ok(None);
            }
            claimed => claimed.flatten(),
        };
        let lease = claimed.as_ref().map(|lease| lease.id);
        let key = (first.partition_id, Arc::<str>::from(first.group.as_str()));
        let reference = |&index: &usize| Reference {
            hash: TransactionHash::new(&items[index].transaction_id, true),
            id: items[index].message_id,
        };
        let asked: Vec<Reference> = members.iter().map(reference).collect();
        let served = self.shared.leases().resolve(&key, lease, &asked);
        let (mut service, mut look_up) = (None, false);
        let located = match served {
            Some(resolved) => {
                service = Some(resolved.service);
                let offsets = resolved.offsets.into_iter().map(Some).collect();
                Located { cursor: resolved.cursor, live: true, offsets }
            }
            None => {
                look_up = claimed.is_some_and(|lease| lease.traced);
                let locate = Locate { partition: key.0, group: key.1.clone(), lease, asked };
                let Some(located) = self.lanes.locate.submit(locate).await? else {
                    refuse(NOT_FOUND);
                    return Ok(None);
                };
                located
            }
        };
        // Under a lease that is over, an ack is accepted only if all of it has been applied already.
        if lease.is_some() && !located.live && located.offsets.iter().any(Option::is_none) {
            refuse(BAD_LEASE);
            return Ok(None);
        }
        let (id, cursor) = (Uuid::now_v7(), located.cursor);
        let mut ack =
            Ack { id, partition: key.0, group: key.1, lease, service, look_up, cursor, items: Vec::new() };
        let mut found = Vec::new();
        for (&index, offset) in members.iter().zip(located.offsets) {
            match offset {
                Some(offset) => {
                    found.push(index);
                    let item = &items[index];
                    ack.items.push(Item { offset, status: item.status, error: item.error.clone() });
                }
                None => {
                    let why = if items[index].message_id.is_some() { OTHER_MESSAGE } else { NOT_FOUND };
                    results[index].error = Some(why.to_owned());
                }
            }
        }
        Ok((!found.is_empty()).then_some((found, ack)))
    }
}

/// Items by (partition, group, lease).
fn sets(items: &[AckItem]) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    let mut places: HashMap<(Uuid, &str, Option<&str>), usize> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let place =
            *places.entry((item.partition_id, &item.group, item.lease_id.as_deref())).or_insert_with(|| {
                sets.push(Vec::new());
                sets.len() - 1
            });
        sets[place].push(index);
    }
    sets
}

/// A set of items to be looked up in the log.
pub struct Locate {
    pub partition: Uuid,
    pub group: Arc<str>,
    /// `None`: no lease is claimed.
    pub lease: Option<Uuid>,
    pub asked: Vec<Reference>,
}

pub struct Located {
    /// The group's cursor.
    pub cursor: i64,
    /// Whether the lease is live.
    pub live: bool,
    /// Of each message; `None` if it was not found.
    pub offsets: Vec<Option<i64>>,
}

impl Operation for Locate {
    const NAME: &'static str = "locate";
    const PRIORITY: Priority = Priority::Consume;
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

    async fn call(_: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Option<Located>>, DbError> {
        // A transaction id was either chosen by a client or minted for it, so both hashes are looked up.
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
