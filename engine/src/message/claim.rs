//! Claim: the claims of many pops as one statement. What a claim takes is given back unless it is delivered.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::warn;
use uuid::Uuid;

use crate::clock;
use crate::db::Error;
use crate::db::procedures::{self, LeaseStatus, Leased};
use crate::log::Partition;
use crate::pop::ready::Claim;
use crate::pop::watch::Watch;
use crate::shared::Shared;
use crate::sidecar::landed;

/// How soon a lease of another broker is looked at again: it may end at any time without a hint.
pub const FOREIGN_LEASE_LOOK: Duration = Duration::from_secs(1);

/// How soon to try again to read a message that could not be read.
const UNREADABLE_LOOK: Duration = Duration::from_secs(10);

/// One pop's claim on its candidates.
pub struct PopClaim {
    /// Distinct per claim: claims do not exclude each other.
    pub number: u64,
    pub candidates: Vec<Candidate>,
    pub group: Arc<str>,
    pub lease: Uuid,
    pub seconds: i32,
    pub batch: i32,
    pub partitions_max: i32,
    pub auto: bool,
}

pub struct Claimed {
    /// Given back together with this, if the pop is no longer there to take it.
    pub grants: Grants,
    /// A row was locked for the moment.
    pub busy: bool,
    /// A partition was deleted.
    pub deleted: bool,
}

/// The claims of one flight as rows of a statement.
pub struct Claiming<'a> {
    batch: Vec<&'a PopClaim>,
    pub ask: procedures::Lease<'a>,
    /// (pop, candidate) of each row.
    places: Vec<(usize, usize)>,
}

impl<'a> Claiming<'a> {
    pub fn new(shared: &Shared, batch: Vec<&'a PopClaim>) -> Self {
        let mut ask = procedures::Lease {
            bytes_max: shared.config.pop_bytes_max as i64,
            single: batch.iter().all(|entry| entry.candidates.len() == 1),
            ..Default::default()
        };
        let mut places: Vec<(usize, usize)> = Vec::new();
        let mut seen = HashSet::new();
        for (pop, entry) in batch.iter().enumerate() {
            for (index, candidate) in entry.candidates.iter().enumerate() {
                // A watch that was reset may hand out what the old one still claims; that row would be granted twice.
                if !seen.insert((candidate.partition.id, &entry.group)) {
                    continue;
                }
                places.push((pop, index));
                ask.readers |= !candidate.watch.has_served(candidate.partition.id);
                ask.pops.push(pop as i32);
                ask.partitions.push(candidate.partition.id);
                ask.groups.push(&entry.group);
                ask.leases.push(entry.lease);
                ask.seconds.push(entry.seconds);
                ask.batches.push(entry.batch);
                ask.partitions_max.push(entry.partitions_max);
                ask.auto.push(entry.auto);
            }
        }
        Self { batch, ask, places }
    }

    /// After the commit.
    pub fn landed(self, shared: &Arc<Shared>, answers: Vec<Leased>) -> Vec<Claimed> {
        let mut outcomes: Vec<Vec<Option<Leased>>> =
            self.batch.iter().map(|entry| entry.candidates.iter().map(|_| None).collect()).collect();
        for answer in answers {
            let (pop, index) = self.places[answer.position];
            outcomes[pop][index] = Some(answer);
        }
        let now = clock::now();
        let claimed = self.batch.iter().zip(outcomes);
        claimed.map(|(entry, outcomes)| entry.landed(shared, now, outcomes)).collect()
    }
}

impl PopClaim {
    fn landed(&self, shared: &Arc<Shared>, now: Instant, outcomes: Vec<Option<Leased>>) -> Claimed {
        let mut grants = Grants::none(shared);
        (grants.group, grants.lease) = (self.group.clone(), (!self.auto).then_some(self.lease));
        let mut claimed = Claimed { grants, busy: false, deleted: false };
        for (candidate, outcome) in self.candidates.iter().zip(outcomes) {
            let after = |ms: Option<i64>| now + Duration::from_millis(ms.unwrap_or(0).max(1) as u64);
            let claim = match &outcome {
                Some(leased) => match leased.status {
                    LeaseStatus::Granted => {
                        claimed.grants.claims.push(Grant {
                            partition: candidate.partition.clone(),
                            watch: candidate.watch.clone(),
                            first: leased.first,
                            last: leased.last,
                            head: leased.head,
                            attempts: leased.attempts,
                            lease_ms: if self.auto { 0 } else { leased.wait_ms.unwrap_or(0) },
                        });
                        if self.auto {
                            let (queue, messages) = (&candidate.partition.queue, leased.last - leased.first);
                            shared.tally.consumed(queue, &self.group, messages);
                            Claim::Committed { more: leased.last < leased.head }
                        } else {
                            if !candidate.watch.has_served(candidate.partition.id) {
                                shared.tally.leased(&candidate.partition.queue, &self.group);
                            }
                            Claim::Granted { lease: self.lease, until: after(leased.wait_ms) }
                        }
                    }
                    LeaseStatus::Empty => Claim::Nothing,
                    LeaseStatus::Leased => {
                        // This broker may know only an earlier lease.
                        let ours = shared.wake.is_alone()
                            && shared.leases().knows(&(candidate.partition.id, self.group.clone()));
                        let at = after(leased.wait_ms);
                        Claim::Later { at: if ours { at } else { at.min(now + FOREIGN_LEASE_LOOK) } }
                    }
                    LeaseStatus::Busy => Claim::Busy { now },
                    LeaseStatus::Gone => Claim::Gone,
                    LeaseStatus::Delayed => Claim::Later { at: after(leased.wait_ms) },
                    LeaseStatus::NoReader => {
                        candidate.watch.forget_service(candidate.partition.id);
                        Claim::Busy { now }
                    }
                    LeaseStatus::Window => Claim::Window {
                        pending: self.waiting_for_batch(leased.head - leased.first),
                        at: after(leased.wait_ms),
                    },
                    LeaseStatus::Unneeded => Claim::Unused,
                },
                None => Claim::Unused,
            };
            claimed.busy |= outcome
                .is_none_or(|leased| matches!(leased.status, LeaseStatus::Busy | LeaseStatus::NoReader));
            if claim == Claim::Gone {
                claimed.deleted = true;
                shared.directory.forget(&candidate.partition);
            }
            candidate.finish(claim);
        }
        claimed
    }

    /// Fewer than a batch: not all that is unread may be visible yet, but together it is too little for this batch.
    fn waiting_for_batch(&self, unread: i64) -> i64 {
        match i64::from(self.batch) {
            ..=1 => unread,
            batch => unread.min(batch - 1),
        }
    }
}

/// A partition taken from its ready list; goes back unless a claim decided otherwise.
pub struct Candidate {
    watch: Arc<Watch>,
    partition: Arc<Partition>,
    decided: AtomicBool,
}

impl Candidate {
    pub fn new(watch: Arc<Watch>, partition: Arc<Partition>) -> Self {
        Self { watch, partition, decided: AtomicBool::new(false) }
    }

    pub fn is_held(&self, grants: &Grants) -> bool {
        grants.claims.iter().any(|held| held.partition.id == self.partition.id)
    }

    /// Takes effect once: a later call might end the claim of the next pop.
    fn finish(&self, claim: Claim) {
        if !self.decided.swap(true, Relaxed) {
            self.watch.finish(&self.partition, claim);
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.finish(Claim::Unused);
    }
}

pub struct Grant {
    pub partition: Arc<Partition>,
    watch: Arc<Watch>,
    pub first: i64,
    pub last: i64,
    pub head: i64,
    pub attempts: i32,
    /// How long the lease lasts; 0 for an automatic ack.
    pub lease_ms: i64,
}

/// Claims that a pop holds. If dropped without `delivered`, they are given back.
pub struct Grants {
    shared: Arc<Shared>,
    pub claims: Vec<Grant>,
    pub group: Arc<str>,
    pub lease: Option<Uuid>,
    /// Incarnation of the server that granted them.
    pub incarnation: u64,
}

impl Grants {
    pub fn none(shared: &Arc<Shared>) -> Self {
        let incarnation = shared.connections.incarnation();
        Self { shared: shared.clone(), claims: Vec::new(), group: "".into(), lease: None, incarnation }
    }

    pub fn messages(&self) -> i64 {
        self.claims.iter().map(|claim| claim.last - claim.first).sum()
    }

    pub fn delivered(&mut self) {
        self.claims.clear();
    }

    /// Takes back one claim from `end` on, where a message cannot be read; anything before that stays claimed. For a
    /// while, only pops that name the partition try it again.
    ///
    /// # Cancel safety
    /// The claim is separate until this is done: if dropped, nothing of it is kept, and nothing is given back twice.
    pub async fn withdraw(&mut self, index: usize, end: i64) -> Result<(), Error> {
        let mut alone = Self::none(&self.shared);
        (alone.group, alone.lease) = (self.group.clone(), self.lease);
        alone.claims.push(self.claims.remove(index));
        let (done, doing) = oneshot::channel();
        self.shared.tasks.spawn(async move {
            let withdrawn = alone.withdraw_alone(end).await;
            _ = done.send(withdrawn.map(|()| alone));
        });
        let mut alone = landed(doing).await?;
        self.claims.splice(index..index, std::mem::take(&mut alone.claims));
        Ok(())
    }

    async fn withdraw_alone(&mut self, end: i64) -> Result<(), Error> {
        let shared = self.shared.clone();
        let Some(claim) = self.claims.first_mut() else { return Ok(()) };
        let row = (claim.partition.id, &*self.group, self.lease, claim.first, claim.last);
        let db = shared.connections.acquire().await?;
        procedures::withdraw(&db, row, end).await?;
        if self.lease.is_none() {
            shared.tally.consumed(&claim.partition.queue, &self.group, end - claim.last);
        }
        if end > claim.first {
            claim.last = end;
            // With an automatic ack, no later ack reports that there is more.
            if self.lease.is_none() {
                claim.watch.mark(&claim.partition, None);
            }
        } else {
            claim.watch.set_aside(&claim.partition, clock::now() + UNREADABLE_LOOK);
            self.claims.clear();
        }
        Ok(())
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let claims = std::mem::take(&mut self.claims);
        let (shared, group, lease) = (self.shared.clone(), self.group.clone(), self.lease);
        self.shared.tasks.spawn(async move { give_back(&shared, &claims, &group, lease).await });
    }
}

async fn give_back(shared: &Shared, claims: &[Grant], group: &str, lease: Option<Uuid>) {
    let rows: Vec<procedures::Claimed<'_>> =
        claims.iter().map(|claim| (claim.partition.id, group, lease, claim.first, claim.last)).collect();
    let released = async {
        let db = shared.connections.acquire().await?;
        procedures::release(&db, &rows).await
    };
    match released.await {
        Ok(()) => {
            for claim in claims {
                if lease.is_none() {
                    shared.tally.consumed(&claim.partition.queue, &group.into(), claim.first - claim.last);
                }
                let partition = &claim.partition;
                claim.watch.released(partition.id, &partition.name, lease, true, Some(partition));
                claim.watch.mark(partition, None);
            }
        }
        Err(error) => warn!(%error, consumer.group = group, "an undelivered lease runs until it expires"),
    }
}
