//! Push: messages in, ids out, after the commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use queen_protocol::{PushItem, PushResult, PushStatus};
use uuid::Uuid;

use super::append::{self, Parcel, Placed};
use super::open::Open;
use crate::Engine;
use crate::db::{Connection, Error as DbError, Priority};
use crate::directory::Known;
use crate::error::Error;
use crate::log::frames::write_frame;
use crate::log::ids::{TransactionHash, message_id};
use crate::shared::Shared;
use crate::sidecar::Operation;

/// A parcel is cut here, and so is a segment: it is read back in one piece even by a pop of one message.
const PARCEL_MESSAGES_MAX: usize = 1_000;
const PARCEL_BYTES_MAX: usize = 256 << 10;

/// About what an envelope adds to a payload.
const FRAME_BYTES: usize = 80;

/// How often a push looks its partitions up again after they were deleted under it.
const REOPENS_MAX: usize = 5;

impl Engine {
    /// # Cancel safety
    /// Once queued the messages are appended even if the caller goes away; only the answer is dropped.
    pub async fn push(
        &self,
        items: &[PushItem<'_>],
        producer_sub: Option<&str>,
    ) -> Result<Vec<PushResult>, Error> {
        self.check_open()?;
        let items: Vec<&PushItem<'_>> = items.iter().collect();
        let minted: Vec<Option<String>> = items
            .iter()
            .map(|item| item.transaction_id.is_none().then(|| Uuid::now_v7().to_string()))
            .collect();
        let ids: Vec<&str> = items
            .iter()
            .zip(&minted)
            .map(|(item, minted)| item.transaction_id.as_deref().or(minted.as_deref()).unwrap_or_default())
            .collect();
        let mut placed: Vec<Option<(Arc<crate::log::Partition>, Placed)>> = vec![None; items.len()];
        let mut open: Vec<usize> = (0..items.len()).collect();
        for _ in 0..REOPENS_MAX {
            if open.is_empty() {
                break;
            }
            let mut waiting = Vec::new();
            let (parcels, gone) = self.parcels(&items, &ids, &open, producer_sub).await?;
            for (members, parcel) in parcels {
                let partition = parcel.partition.clone();
                waiting.push((members, partition, self.lanes.push.enqueue(parcel)?));
            }
            open = gone;
            for (members, partition, answer) in waiting {
                match answer.await.unwrap_or(Err(DbError::Stopping))? {
                    Some(messages) => {
                        for (index, message) in members.into_iter().zip(messages) {
                            placed[index] = Some((partition.clone(), message));
                        }
                    }
                    None => open.extend(members),
                }
            }
            open.sort_unstable();
        }
        let results = items.iter().zip(&ids).zip(placed).enumerate();
        Ok(results.map(|(index, ((item, id), placed))| result(index, item, id, placed)).collect())
    }

    /// Groups items by partition, in order, and cuts what is too large for one segment. Also answers which items have
    /// no partition, because it was deleted in the moment it was made.
    pub(super) async fn parcels(
        &self,
        items: &[&PushItem<'_>],
        ids: &[&str],
        open: &[usize],
        producer_sub: Option<&str>,
    ) -> Result<(Vec<(Vec<usize>, Parcel)>, Vec<usize>), Error> {
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        let mut wanted: Vec<Open> = Vec::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        for &index in open {
            let item = items[index];
            let place = *places.entry((&item.queue, item.partition())).or_insert_with(|| {
                wanted.push(Open {
                    queue: item.queue.as_ref().into(),
                    partition: item.partition().into(),
                    namespace: item.namespace.as_deref().map(Arc::from),
                    task: item.task.as_deref().map(Arc::from),
                    create: true,
                });
                members.push(Vec::new());
                wanted.len() - 1
            });
            members[place].push(index);
        }
        let known = self.open(wanted).await?;
        let mut parcels = Vec::with_capacity(known.len());
        let mut gone = Vec::new();
        for (known, members) in known.into_iter().zip(members) {
            let Some(known) = known else {
                gone.extend(members);
                continue;
            };
            self.shared.dedup().opened(known.partition.id, known.head);
            let mut current: (Vec<usize>, Parcel) = (Vec::new(), empty(&known));
            let bytes: usize = members.iter().map(|&index| items[index].payload().len() + FRAME_BYTES).sum();
            current.1.frames.reserve(bytes.min(PARCEL_BYTES_MAX));
            for index in members {
                let full =
                    current.0.len() >= PARCEL_MESSAGES_MAX || current.1.frames.len() >= PARCEL_BYTES_MAX;
                if full {
                    parcels.push(std::mem::replace(&mut current, (Vec::new(), empty(&known))));
                }
                add(&mut current.1, items[index], ids[index], producer_sub);
                current.0.push(index);
            }
            parcels.push(current);
        }
        Ok((parcels, gone))
    }
}

fn empty(known: &Known) -> Parcel {
    Parcel {
        partition: known.partition.clone(),
        dedup_seconds: known.dedup_seconds,
        hashes: Vec::new(),
        frames: String::new(),
        bytes_max: 0,
        recheck: false,
        floor: AtomicI64::new(-1),
    }
}

fn add(parcel: &mut Parcel, item: &PushItem<'_>, id: &str, producer_sub: Option<&str>) {
    let before = parcel.frames.len();
    if before > 0 {
        parcel.frames.push('\n');
    }
    parcel.hashes.push(TransactionHash::new(id, item.transaction_id.is_some()));
    write_frame(&mut parcel.frames, id, item.trace_id(), producer_sub, item.payload());
    parcel.bytes_max = parcel.bytes_max.max(parcel.frames.len() - before);
}

fn result(
    index: usize,
    item: &PushItem<'_>,
    id: &str,
    placed: Option<(Arc<crate::log::Partition>, Placed)>,
) -> PushResult {
    let (message_id, partition_id, status, error) = match placed {
        Some((partition, placed)) => {
            let status = if placed.duplicate { PushStatus::Duplicate } else { PushStatus::Queued };
            (message_id(placed.created_at, placed.offset, partition.number), partition.id, status, None)
        }
        None => {
            let error = "the partition was deleted again and again while it was pushed to".to_owned();
            (Uuid::nil(), Uuid::nil(), PushStatus::Failed, Some(error))
        }
    };
    PushResult {
        index,
        message_id,
        transaction_id: id.to_owned(),
        queue_name: item.queue.clone().into_owned(),
        status,
        partition_id,
        trace_id: item.trace_id(),
        error,
    }
}

impl Operation for Parcel {
    const NAME: &'static str = "push";
    const PRIORITY: Priority = Priority::Push;
    const MERGED_MAX: usize = usize::MAX;
    const MERGED_BYTES_MAX: usize = PARCEL_BYTES_MAX;
    type Key = Uuid;
    /// `None`: the partition is gone.
    type Output = Option<Vec<Placed>>;
    type Context = Shared;

    fn key(&self) -> Uuid {
        self.partition.id
    }

    fn items(&self) -> usize {
        self.hashes.len()
    }

    fn bytes(&self) -> usize {
        self.frames.len()
    }

    fn again(&mut self) {
        self.recheck = true;
    }

    async fn call(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
    ) -> Result<Vec<Self::Output>, DbError> {
        let parcels: Vec<&Self> = batch.iter().collect();
        let mut published = Vec::new();
        let appended = append::append(shared, db, &parcels, &mut published).await;
        append::publish(shared, &published);
        if batch.iter().any(|parcel| parcel.recheck) {
            // What an earlier try committed was never published.
            let look_at = shared.wake.look_at(crate::clock::now());
            shared.watches.pushed(batch.iter().map(|parcel| &parcel.partition), look_at);
        }
        appended
    }
}
