//! Defer: a push that is accepted now and appended later. Its messages get their ids here, and their order from the
//! database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use queen_protocol::Ticket;
use uuid::Uuid;

use super::parcel::{Outcome, Parcel, Placed};
use crate::Engine;
use crate::db::procedures::{Locked, deferred};
use crate::db::{Connection, Error, Priority};
use crate::load::{Kind, Reason, Way};
use crate::log::Partition;
use crate::log::frames::with_ids;
use crate::log::ids::TransactionHash;
use crate::shared::Shared;
use crate::sidecar::Operation;

/// As in the contract: acks before pushes.
const PUSH_PRIORITY: i32 = 5;

/// The part of a parcel that is not stored yet, as one entry of the deferred queue.
#[derive(Debug)]
pub struct Deferral {
    id: Uuid,
    partition: Arc<Partition>,
    count: usize,
    transactions: Vec<u8>,
    frames: String,
    /// All of the parcel's messages.
    placed: Vec<Placed>,
}

impl Deferral {
    /// `stored`: which messages of the parcel are already in the log.
    fn new(parcel: &Parcel, stored: &[Option<Placed>]) -> Self {
        let mut first: HashMap<TransactionHash, Uuid> = HashMap::new();
        let mut placed = Vec::with_capacity(parcel.hashes.len());
        let (mut lines, mut ids, mut transactions) = (Vec::new(), Vec::new(), Vec::new());
        let parts = parcel.hashes.iter().zip(parcel.frames.split('\n')).zip(stored);
        for (index, ((&hash, line), stored)) in parts.enumerate() {
            let repeated = first.get(&hash).filter(|_| hash.is_chosen() && parcel.dedup_seconds > 0);
            placed.push(match (stored, repeated) {
                (Some(stored), _) => *stored,
                (None, Some(&id)) => Placed { id, offset: None, duplicate: true },
                (None, None) => {
                    let id = parcel.promised.get(index).copied().unwrap_or_else(Uuid::now_v7);
                    first.insert(hash, id);
                    lines.push(line);
                    ids.push(id);
                    transactions.extend_from_slice(&hash.to_bytes());
                    Placed { id, offset: None, duplicate: false }
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
            placed,
        }
    }

    fn accepted(&self, shared: &Shared, reason: Reason) -> Outcome {
        let ticket = Ticket::new(self.id, shared.load.depth().max(1), reason.word());
        Outcome::Deferred(ticket, self.placed.clone())
    }
}

impl Engine {
    /// Defers parcels that were not sent yet, all in one transaction.
    pub(super) async fn defer(
        &self,
        parcels: Vec<(Vec<usize>, Parcel)>,
        reason: Reason,
    ) -> Result<Vec<(Vec<usize>, Arc<Partition>, Outcome)>, Error> {
        // One operation for each partition, however large.
        let mut merged: Vec<(Vec<usize>, Parcel)> = Vec::with_capacity(parcels.len());
        for (members, parcel) in parcels {
            match merged.last_mut() {
                Some((last, whole)) if whole.partition.id == parcel.partition.id => {
                    last.extend(members);
                    whole.frames.push('\n');
                    whole.frames.push_str(&parcel.frames);
                    whole.hashes.extend(parcel.hashes);
                    whole.promised.extend(parcel.promised);
                }
                _ => merged.push((members, parcel)),
            }
        }
        let new = |parcel: &Parcel| Deferral::new(parcel, &vec![None; parcel.hashes.len()]);
        let deferrals = merged.iter().map(|(_, parcel)| new(parcel)).collect();
        let outcomes = self.lanes.defer.submit(Request { deferrals, reason }).await?;
        let parcels = merged.into_iter().map(|(members, parcel)| (members, parcel.partition));
        Ok(parcels
            .zip(outcomes)
            .map(|((members, partition), outcome)| (members, partition, outcome))
            .collect())
    }
}

/// An entry on its way to the deferred queue. Those of one request are stored together or not at all.
type Entry<'a> = (i32, &'a Deferral, Reason);

/// Puts entries behind everything that is deferred for their partitions.
async fn store(
    shared: &Shared,
    db: &Connection,
    entries: &[Entry<'_>],
    locked: Locked,
) -> Result<Vec<Outcome>, Error> {
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let settings = shared.load.settings();
    let mut ask = deferred::DeferPushes {
        timeout: i32::try_from(settings.timeout.as_secs()).unwrap_or(i32::MAX).max(1),
        attempts_max: settings.retries_max,
        priority: PUSH_PRIORITY,
        locked,
        ..Default::default()
    };
    for (request, deferral, _) in entries {
        ask.requests.push(*request);
        ask.ids.push(deferral.id);
        ask.partitions.push(deferral.partition.id);
        ask.counts.push(deferral.count as i32);
        ask.transactions.push(&deferral.transactions);
        ask.bodies.push(&deferral.frames);
    }
    let answer = deferred::defer_pushes(db, &ask).await?;
    shared.load.deferred(entries.len() - answer.refused.len() - answer.busy.len());
    let mut outcomes: Vec<Outcome> =
        entries.iter().map(|(_, deferral, reason)| deferral.accepted(shared, *reason)).collect();
    for position in answer.refused {
        outcomes[position] = Outcome::Gone;
        shared.directory.forget(&entries[position].1.partition);
    }
    for position in answer.busy {
        outcomes[position] = Outcome::Left(Error::Busy);
    }
    Ok(outcomes)
}

/// Everything that one request defers: stored in one transaction.
pub struct Request {
    deferrals: Vec<Deferral>,
    reason: Reason,
}

impl Operation for Request {
    const NAME: &'static str = "defer";
    const PRIORITY: Priority = Priority::Push;
    const MERGED_MAX: usize = usize::MAX;
    /// Requests for one partition are stored in the order they came.
    type Key = Option<Uuid>;
    /// By deferral.
    type Output = Vec<Outcome>;
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

    fn left(outcomes: &Vec<Outcome>) -> Option<Error> {
        outcomes.iter().find_map(Parcel::left)
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Vec<Outcome>>, Error> {
        store_requests(shared, db, batch, Locked::Skip).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Vec<Outcome>>, Error> {
        store_requests(shared, db, batch, Locked::WaitFor(patience)).await
    }
}

async fn store_requests(
    shared: &Shared,
    db: &Connection,
    batch: &[Request],
    locked: Locked,
) -> Result<Vec<Vec<Outcome>>, Error> {
    let entries = (0..).zip(batch).flat_map(|(number, request)| {
        request.deferrals.iter().map(move |deferral| (number, deferral, request.reason))
    });
    let entries: Vec<Entry<'_>> = entries.collect();
    let mut outcomes = store(shared, db, &entries, locked).await?.into_iter();
    Ok(batch.iter().map(|request| outcomes.by_ref().take(request.deferrals.len()).collect()).collect())
}

/// Defers what a flight found behind deferred pushes, before any later push to the same partition may fly.
pub async fn behind(
    shared: &Shared,
    db: &Connection,
    parcels: &[&Parcel],
    outcomes: &mut [Outcome],
    locked: Locked,
) {
    let mut found = Vec::new();
    for (parcel, outcome) in parcels.iter().zip(outcomes) {
        if matches!(outcome, Outcome::Behind(_)) {
            found.push((*parcel, outcome));
        }
    }
    if found.is_empty() {
        return;
    }
    shared.load.seen(found.iter().map(|(parcel, _)| parcel.partition.id));
    let way = shared.load.behind(Kind::Push);
    let mut entries: Vec<Entry<'_>> = Vec::with_capacity(found.len());
    let mut places = Vec::with_capacity(found.len());
    for (parcel, outcome) in found {
        shared.load.count(Kind::Push, way);
        let deferral = match (way, &*outcome) {
            // A parcel sent again after a lost response has the same entry, which keeps its place if it got one.
            (Way::Reject, _) => parcel.deferral.get(),
            (_, Outcome::Behind(stored)) => {
                Some(parcel.deferral.get_or_init(|| Box::new(Deferral::new(parcel, stored))))
            }
            _ => None,
        };
        match deferral.map(Box::as_ref) {
            Some(deferral) => {
                // Parcels of one partition are locked out together.
                entries.push((entries.len() as i32, deferral, Reason::MaintainingOrder));
                places.push(outcome);
            }
            None => {
                parcel.fail_next(&Error::Full);
                *outcome = Outcome::Refused;
            }
        }
    }
    let stored = store(shared, db, &entries, locked).await;
    // If this fails, the rest of the flight has landed nevertheless.
    let stored =
        stored.unwrap_or_else(|error| vec![error; entries.len()].into_iter().map(Outcome::Left).collect());
    for (place, outcome) in places.into_iter().zip(stored) {
        *place = outcome;
    }
}

/// The same in a transaction that has locked the partitions.
pub async fn behind_within(
    shared: &Shared,
    db: &Connection,
    parcels: &[&Parcel],
    outcomes: &mut [Outcome],
) -> Result<(), Error> {
    let mut deferrals = Vec::new();
    for (parcel, outcome) in parcels.iter().zip(outcomes) {
        if let Outcome::Behind(stored) = outcome {
            deferrals.push((Deferral::new(parcel, stored), outcome));
        }
    }
    let entries: Vec<Entry<'_>> =
        deferrals.iter().map(|(deferral, _)| (0, deferral, Reason::MaintainingOrder)).collect();
    let stored = store(shared, db, &entries, Locked::Wait).await?;
    for ((_, place), outcome) in deferrals.into_iter().zip(stored) {
        *place = outcome;
    }
    Ok(())
}
