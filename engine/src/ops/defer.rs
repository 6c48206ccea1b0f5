//! Defer: a push that is accepted now and appended later. Its messages get their ids here, and the database its order.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use super::append::{Parcel, Placed};
use crate::db::procedures::deferred;
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
    let settings = shared.load.settings();
    let mut ask = deferred::DeferPushes {
        timeout: i32::try_from(settings.timeout.as_secs()).unwrap_or(i32::MAX).max(1),
        attempts_max: settings.retries_max,
        priority: PUSH_PRIORITY,
        ..Default::default()
    };
    for deferral in deferrals {
        ask.ids.push(deferral.id);
        ask.partitions.push(deferral.partition.id);
        ask.counts.push(deferral.count as i32);
        ask.transactions.push(&deferral.transactions);
        ask.bodies.push(&deferral.frames);
    }
    let mut gone = vec![false; deferrals.len()];
    for position in deferred::defer_pushes(db, &ask).await? {
        gone[position] = true;
        shared.directory.forget(&deferrals[position].partition);
    }
    shared.load.deferred(gone.iter().filter(|gone| !**gone).count());
    Ok(gone)
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
    /// Requests for one partition are stored in the order they came; one that is locked holds up only its own flight.
    type Key = Option<Uuid>;
    /// By entry: what its sender is told, or `None` if the partition is gone.
    type Output = Vec<Option<Deferred>>;
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

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Self::Output>, Error> {
        let all: Vec<&Deferral> = batch.iter().flat_map(|request| &request.deferrals).collect();
        let mut gone = store(shared, db, &all).await?.into_iter();
        let mut told = |deferral: &Deferral, reason| match gone.next() {
            Some(false) => Some(deferral.told(shared, reason)),
            _ => None,
        };
        let mut outputs = Vec::with_capacity(batch.len());
        for request in batch {
            outputs.push(request.deferrals.iter().map(|deferral| told(deferral, request.reason)).collect());
        }
        Ok(outputs)
    }
}

/// Puts aside what a flight found behind deferred pushes, before any later push to the same partition may fly.
pub async fn behind(
    shared: &Shared,
    db: &Connection,
    parcels: &[(&Parcel, Vec<Option<Placed>>)],
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
    let stored: Vec<&Deferral> = deferrals.iter().copied().flatten().collect();
    let mut gone = match stored.is_empty() {
        true => Vec::new(),
        false => store(shared, db, &stored).await?,
    }
    .into_iter();
    let told = deferrals.iter().map(|deferral| match deferral {
        None => Behind::Refused,
        Some(_) if gone.next() == Some(true) => Behind::Gone,
        Some(deferral) => Behind::Deferred(deferral.told(shared, Reason::MaintainingOrder)),
    });
    Ok(told.collect())
}

pub enum Behind {
    Deferred(Deferred),
    Gone,
    /// There is no room in the deferred queue.
    Refused,
}
