//! Claim: the LEASING step of many pops as one statement. What a claim takes is given back unless it is delivered.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tracing::warn;
use uuid::Uuid;

use crate::clock;
use crate::db::procedures::{self, Leased};
use crate::db::{Connection, Error, Priority};
use crate::log::Partition;
use crate::pop::ready::Claim;
use crate::pop::watch::Watch;
use crate::shared::Shared;
use crate::sidecar::Operation;

/// Somebody else's lease may end at any time without us hearing of it.
pub const FOREIGN_LEASE_LOOK: Duration = Duration::from_secs(1);

/// One pop's claim on its candidates: an entry of the pop lane.
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
    grants: Vec<Grant>,
    group: Arc<str>,
    lease: Option<Uuid>,
    /// A row was locked just for the moment.
    pub busy: bool,
    pub gone: bool,
}

impl Operation for PopClaim {
    const NAME: &'static str = "pop";
    const PRIORITY: Priority = Priority::Pop;
    const MERGED_MAX: usize = 1;
    /// Of five hundred pops at once, the first are answered while the database still works on the last.
    const ITEMS_MAX: usize = 128;
    /// Ready lists see to it that no partition is claimed twice at once, so no two entries exclude each other.
    type Key = u64;
    type Output = Claimed;
    type Context = Shared;

    fn key(&self) -> u64 {
        self.number
    }

    fn items(&self) -> usize {
        self.candidates.len()
    }

    fn bytes(&self) -> usize {
        0
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Claimed>, Error> {
        let mut ask = procedures::Lease {
            bytes_max: shared.config.pop_bytes_max as i64,
            single: batch.iter().all(|entry| entry.candidates.len() == 1),
            ..Default::default()
        };
        let mut places: Vec<(usize, usize)> = Vec::new();
        let mut seen = HashSet::new();
        for (pop, entry) in batch.iter().enumerate() {
            for (index, candidate) in entry.candidates.iter().enumerate() {
                // A watch that was reset may hand out what the old one still claims; the row would be granted twice.
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
        let answers = procedures::lease(db, &ask).await?;
        let mut outcomes: Vec<Vec<Option<Leased>>> =
            batch.iter().map(|entry| entry.candidates.iter().map(|_| None).collect()).collect();
        for answer in answers {
            let (pop, index) = places[answer.position];
            outcomes[pop][index] = Some(answer);
        }
        let now = clock::now();
        let claimed = batch.iter().zip(outcomes);
        Ok(claimed.map(|(entry, outcomes)| entry.settle(shared, now, outcomes)).collect())
    }

    fn orphaned(shared: &Arc<Shared>, claimed: Claimed) {
        drop(Grants::new(shared, claimed));
    }
}

impl PopClaim {
    fn settle(&self, shared: &Arc<Shared>, now: Instant, outcomes: Vec<Option<Leased>>) -> Claimed {
        let mut claimed = Claimed {
            grants: Vec::new(),
            group: self.group.clone(),
            lease: (!self.auto).then_some(self.lease),
            busy: false,
            gone: false,
        };
        for (candidate, outcome) in self.candidates.iter().zip(outcomes) {
            let after = |ms: Option<i64>| now + Duration::from_millis(ms.unwrap_or(0).max(1) as u64);
            let claim = match &outcome {
                Some(leased) => match leased.status {
                    0 => {
                        claimed.grants.push(Grant {
                            partition: candidate.partition.clone(),
                            watch: candidate.watch.clone(),
                            first: leased.first,
                            last: leased.last,
                            attempts: leased.attempts,
                        });
                        if self.auto {
                            Claim::Committed { more: leased.last < leased.head }
                        } else {
                            Claim::Granted { until: after(leased.wait_ms) }
                        }
                    }
                    1 => Claim::Nothing,
                    2 => {
                        let ours = shared.leases().knows(&(candidate.partition.id, self.group.clone()));
                        let at = after(leased.wait_ms);
                        Claim::Later { at: if ours { at } else { at.min(now + FOREIGN_LEASE_LOOK) } }
                    }
                    3 => Claim::Unused,
                    4 => Claim::Gone,
                    5 => Claim::Later { at: after(leased.wait_ms) },
                    8 => {
                        candidate.watch.forget_service(candidate.partition.id);
                        Claim::Unused
                    }
                    7 => Claim::Window { pending: leased.head - leased.first, at: after(leased.wait_ms) },
                    _ => Claim::Unused,
                },
                None => Claim::Unused,
            };
            claimed.busy |= outcome.is_none_or(|leased| matches!(leased.status, 3 | 8));
            if claim == Claim::Gone {
                claimed.gone = true;
                shared.directory.forget(&candidate.partition);
            }
            candidate.finish(claim);
        }
        claimed
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

    /// Once: a later call might end the claim of the next pop.
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
    pub attempts: i32,
}

/// Claims this pop holds. Dropped without `delivered`, they are given back.
pub struct Grants {
    shared: Arc<Shared>,
    pub claims: Vec<Grant>,
    pub group: Arc<str>,
    pub lease: Option<Uuid>,
}

impl Grants {
    pub fn none(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), claims: Vec::new(), group: "".into(), lease: None }
    }

    pub fn new(shared: &Arc<Shared>, claimed: Claimed) -> Self {
        Self { shared: shared.clone(), claims: claimed.grants, group: claimed.group, lease: claimed.lease }
    }

    pub fn messages(&self) -> i64 {
        self.claims.iter().map(|claim| claim.last - claim.first).sum()
    }

    pub fn delivered(&mut self) {
        self.claims.clear();
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
                claim.watch.released(claim.partition.id, &claim.partition.name, true);
                claim.watch.mark(&claim.partition, None);
            }
        }
        Err(error) => warn!(%error, consumer.group = group, "an undelivered lease runs until it expires"),
    }
}
