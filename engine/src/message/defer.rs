//! Defer: a push that is accepted now and appended later. Its messages get their ids here, and the database its order.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::append::{Parcel, Placed};
use crate::db::procedures::{Locked, deferred};
use crate::db::{Connection, Error, Priority};
use crate::load::{Kind, Reason, Way};
use crate::log::Partition;
use crate::log::frames::with_ids;
use crate::log::ids::TransactionHash;
use crate::shared::Shared;
use crate::sidecar::Operation;

/// As in the contract: acknowledgements before pushes.
pub const PUSH_PRIORITY: i32 = 5;

/// The part of a parcel that is not stored yet, as one entry of the deferred queue.
#[derive(Debug)]
pub struct Deferral {
    pub id: Uuid,
    partition: Arc<Partition>,
    count: usize,
    transactions: Vec<u8>,
    frames: String,
    /// Of all the parcel's messages.
    messages: Vec<Accepted>,
}

/// What the sender of a message is told when its push was deferred.
#[derive(Debug, Clone, Copy)]
pub enum Accepted {
    /// It was in the log before.
    Stored(Placed),
    Promised {
        id: Uuid,
        /// By an earlier message of the same push.
        repeats: bool,
    },
}

/// An entry of the deferred queue, as its sender knows it.
#[derive(Debug, Clone)]
pub struct Deferred {
    pub operation: Uuid,
    pub position: u64,
    pub reason: Reason,
    pub messages: Vec<Accepted>,
}

impl Deferral {
    /// `placed`: what of the parcel is stored already.
    pub fn new(parcel: &Parcel, placed: &[Option<Placed>]) -> Self {
        let mut first: HashMap<TransactionHash, Uuid> = HashMap::new();
        let mut messages = Vec::with_capacity(parcel.hashes.len());
        let (mut lines, mut ids, mut transactions) = (Vec::new(), Vec::new(), Vec::new());
        let parts = parcel.hashes.iter().zip(parcel.frames.split('\n')).zip(placed);
        for (index, ((&hash, line), placed)) in parts.enumerate() {
            let repeated = first.get(&hash).filter(|_| hash.is_chosen() && parcel.dedup_seconds > 0);
            messages.push(match (placed, repeated) {
                (Some(placed), _) => Accepted::Stored(*placed),
                (None, Some(&id)) => Accepted::Promised { id, repeats: true },
                (None, None) => {
                    let id = parcel.promised.get(index).copied().unwrap_or_else(Uuid::now_v7);
                    first.insert(hash, id);
                    lines.push(line);
                    ids.push(id);
                    transactions.extend_from_slice(&hash.to_bytes());
                    Accepted::Promised { id, repeats: false }
                }
            });
        }
        let frames = lines.join("\n");
        Self {
            id: Uuid::now_v7(),
            partition: parcel.partition.clone(),
            count: ids.len(),
            transactions,
            frames: if parcel.promised.is_empty() { with_ids(&frames, &ids) } else { frames },
            messages,
        }
    }

    pub fn told(&self, shared: &Shared, reason: Reason) -> Deferred {
        Deferred {
            operation: self.id,
            position: shared.load.depth().max(1),
            reason,
            messages: self.messages.clone(),
        }
    }
}

/// Puts entries behind all that is put aside for their partitions. Answers which of them have no partition any more.
pub async fn store(shared: &Shared, db: &Connection, deferrals: &[&Deferral]) -> Result<Vec<bool>, Error> {
    let entries: Vec<(i32, &Deferral)> = deferrals.iter().map(|deferral| (0, *deferral)).collect();
    let stored = store_all(shared, db, &entries, Locked::Wait).await?;
    Ok(stored.into_iter().map(|stored| stored == Aside::Gone).collect())
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aside {
    Stored,
    Gone,
    /// A partition of its request is locked.
    Busy,
}

/// Entries, each with the number of its request: those of one are stored together or not at all.
async fn store_all(
    shared: &Shared,
    db: &Connection,
    entries: &[(i32, &Deferral)],
    locked: Locked,
) -> Result<Vec<Aside>, Error> {
    let settings = shared.load.settings();
    let mut ask = deferred::DeferPushes {
        timeout: i32::try_from(settings.timeout.as_secs()).unwrap_or(i32::MAX).max(1),
        attempts_max: settings.retries_max,
        priority: PUSH_PRIORITY,
        locked,
        ..Default::default()
    };
    for (request, deferral) in entries {
        ask.requests.push(*request);
        ask.ids.push(deferral.id);
        ask.partitions.push(deferral.partition.id);
        ask.counts.push(deferral.count as i32);
        ask.transactions.push(&deferral.transactions);
        ask.bodies.push(&deferral.frames);
    }
    let mut stored = vec![Aside::Stored; entries.len()];
    let answer = deferred::defer_pushes(db, &ask).await?;
    for position in answer.refused {
        stored[position] = Aside::Gone;
        shared.directory.forget(&entries[position].1.partition);
    }
    for position in answer.busy {
        stored[position] = Aside::Busy;
    }
    shared.load.deferred(stored.iter().filter(|stored| **stored == Aside::Stored).count());
    Ok(stored)
}

/// Everything one request has put aside: stored in one transaction.
pub struct Request {
    pub deferrals: Vec<Deferral>,
    pub reason: Reason,
}

impl Operation for Request {
    const NAME: &'static str = "defer";
    const PRIORITY: Priority = Priority::Push;
    const MERGED_MAX: usize = usize::MAX;
    /// Requests for one partition are stored in the order they came.
    type Key = Option<Uuid>;
    /// By entry: what its sender is told, or `None` if the partition is gone. `None` for all: one of them is locked.
    type Output = Option<Vec<Option<Deferred>>>;
    type Context = Shared;

    fn key(&self) -> Self::Key {
        self.deferrals.first().map(|deferral| deferral.partition.id)
    }

    fn items(&self) -> usize {
        self.deferrals.iter().map(|deferral| deferral.count).sum()
    }

    fn bytes(&self) -> usize {
        self.deferrals.iter().map(|deferral| deferral.frames.len()).sum()
    }

    fn left(output: &Self::Output) -> Option<Error> {
        output.is_none().then_some(Error::Busy)
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Self::Output>, Error> {
        store_requests(shared, db, batch, Locked::Skip).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Self::Output>, Error> {
        store_requests(shared, db, batch, Locked::WaitFor(patience)).await
    }
}

async fn store_requests(
    shared: &Shared,
    db: &Connection,
    batch: &[Request],
    locked: Locked,
) -> Result<Vec<Option<Vec<Option<Deferred>>>>, Error> {
    let mut entries = Vec::new();
    for (request, number) in batch.iter().zip(0..) {
        entries.extend(request.deferrals.iter().map(|deferral| (number, deferral)));
    }
    let mut stored = store_all(shared, db, &entries, locked).await?.into_iter();
    let mut outputs = Vec::with_capacity(batch.len());
    for Request { deferrals, reason } in batch {
        let own: Vec<Aside> = stored.by_ref().take(deferrals.len()).collect();
        let told = deferrals.iter().zip(&own);
        let told =
            told.map(|(deferral, aside)| (*aside == Aside::Stored).then(|| deferral.told(shared, *reason)));
        outputs.push((!own.contains(&Aside::Busy)).then(|| told.collect()));
    }
    Ok(outputs)
}

/// Puts aside what a flight found behind deferred pushes, before any later push to the same partition may fly.
pub async fn behind(
    shared: &Shared,
    db: &Connection,
    parcels: &[(&Parcel, Vec<Option<Placed>>)],
    locked: Locked,
) -> Result<Vec<Behind>, Error> {
    shared.load.seen(parcels.iter().map(|(parcel, _)| parcel.partition.id));
    let way = shared.load.behind(Kind::Push);
    for _ in parcels {
        shared.load.count(Kind::Push, way);
    }
    let mut deferrals = Vec::with_capacity(parcels.len());
    for (parcel, placed) in parcels {
        deferrals.push(match way {
            // Sent again after a lost answer it is the same entry, and has its place already if there was one.
            Way::Reject => parcel.deferral.get().map(Box::as_ref),
            _ => Some(parcel.deferral.get_or_init(|| Box::new(Deferral::new(parcel, placed))).as_ref()),
        });
    }
    // Parcels of one partition are locked out together.
    let entries: Vec<(i32, &Deferral)> = (0..).zip(deferrals.iter().copied().flatten()).collect();
    let mut stored = match entries.is_empty() {
        true => Vec::new(),
        false => store_all(shared, db, &entries, locked).await?,
    }
    .into_iter();
    let told = deferrals.iter().map(|deferral| match deferral {
        None => Behind::Refused,
        Some(deferral) => match stored.next() {
            Some(Aside::Gone) => Behind::Gone,
            Some(Aside::Busy) => Behind::Busy,
            _ => Behind::Deferred(deferral.told(shared, Reason::MaintainingOrder)),
        },
    });
    Ok(told.collect())
}

pub enum Behind {
    Deferred(Deferred),
    Gone,
    /// There is no room in the deferred queue.
    Refused,
    /// The partition is locked.
    Busy,
}
