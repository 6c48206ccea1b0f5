//! Appending to the log: parcels become segments, by partition. The lane of pushes ends here, and so does every
//! transaction that pushes.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::defer;
use super::draft::Draft;
use super::parcel::{Outcome, PARCEL_BYTES_MAX, Parcel};
use crate::clock;
use crate::db::procedures::{self, Locked, PushOutcome};
use crate::db::{Connection, Error, Priority};
use crate::log::Partition;
use crate::log::ids::TransactionHash;
use crate::log::segments::Segment;
use crate::shared::Shared;
use crate::sidecar::Operation;

/// What an append in a transaction does while a partition has deferred pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// It reports them and appends nothing there.
    Report,
    /// It defers its messages behind them, in the same transaction.
    Defer,
    /// It appends, because its own pushes are the oldest of them.
    Append,
}

/// Passed instead of an expected head, as in push.sql.
const NOTHING_TO_COMPARE: i64 = -2;
const COMPARE_ALL: i64 = -3;

/// Two rounds settle a conflict; more happen only if others keep writing the same transaction ids.
const ROUNDS_MAX: usize = 10;

impl Operation for Parcel {
    const NAME: &'static str = "push";
    const PRIORITY: Priority = Priority::Push;
    const MERGED_MAX: usize = usize::MAX;
    const MERGED_BYTES_MAX: usize = PARCEL_BYTES_MAX;
    type Key = Uuid;
    type Output = Outcome;
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

    fn left(outcome: &Outcome) -> Option<Error> {
        match outcome {
            Outcome::Left(error) => Some(error.clone()),
            _ => None,
        }
    }

    fn ended(&self, error: &Error) {
        // What PostgreSQL cannot store is no reason to refuse its neighbors.
        if !error.is_data() {
            self.fail_next(error);
        }
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Outcome>, Error> {
        fly(shared, db, batch, Locked::Skip).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Outcome>, Error> {
        fly(shared, db, batch, Locked::WaitFor(patience)).await
    }
}

/// One flight. Each of its statements is committed by itself.
async fn fly(
    shared: &Shared,
    db: &Connection,
    batch: &[Parcel],
    locked: Locked,
) -> Result<Vec<Outcome>, Error> {
    // An earlier parcel of their request may have failed while these waited.
    let failed: Vec<Option<Error>> = batch.iter().map(Parcel::failed_before).collect();
    let parcels: Vec<&Parcel> =
        batch.iter().zip(&failed).filter(|(_, failed)| failed.is_none()).map(|(parcel, _)| parcel).collect();
    let mut published = Vec::new();
    let appended = append_alone(shared, db, &parcels, locked, &mut published).await;
    publish(shared, db, &published);
    if batch.iter().any(|parcel| parcel.recheck) {
        // What an earlier try committed was never published.
        let look_at = shared.wake.look_at(clock::now());
        shared.watches.pushed(batch.iter().map(|parcel| &parcel.partition), look_at);
        batch.iter().for_each(|parcel| shared.tally.doubt(&parcel.partition.queue));
    }
    let mut outcomes = appended?;
    defer::behind(shared, db, &parcels, &mut outcomes, locked).await;
    let mut outcomes = outcomes.into_iter();
    let outcome = |failed: Option<Error>| match failed {
        Some(error) => Outcome::Failed(error),
        None => outcomes.next().unwrap_or(Outcome::Gone),
    };
    Ok(failed.into_iter().map(outcome).collect())
}

/// Appends parcels within a transaction; those of one partition must be adjacent. What was appended is added to
/// `published`, which the caller publishes once it is committed.
pub async fn append(
    shared: &Shared,
    db: &Connection,
    parcels: &[&Parcel],
    behind: Behind,
    published: &mut Vec<Publication>,
) -> Result<Vec<Outcome>, Error> {
    let mut drafts = Draft::of(parcels);
    drop_accepted(db, &mut drafts).await?;
    rounds(shared, db, &mut drafts, (behind, Locked::Wait), published).await?;
    let mut outcomes: Vec<Outcome> = drafts.into_iter().flat_map(Draft::into_outcomes).collect();
    if behind == Behind::Defer {
        defer::behind_within(shared, db, parcels, &mut outcomes).await?;
    }
    Ok(outcomes)
}

/// The same without a transaction: each round is committed by itself, so what was appended is published even if a
/// later round fails. Parcels that are not in the log then get that error, as those of locked partitions do.
async fn append_alone(
    shared: &Shared,
    db: &Connection,
    parcels: &[&Parcel],
    locked: Locked,
    published: &mut Vec<Publication>,
) -> Result<Vec<Outcome>, Error> {
    let mut drafts = Draft::of(parcels);
    let failure = rounds(shared, db, &mut drafts, (Behind::Report, locked), published).await.err();
    if let Some(error) = failure.as_ref().filter(|_| published.is_empty()) {
        return Err(error.clone());
    }
    let mut outcomes = Vec::with_capacity(parcels.len());
    for draft in drafts {
        let failure = match &failure {
            Some(error) if draft.is_open() => Some(error.clone()),
            _ if draft.busy => Some(Error::Busy),
            _ => None,
        };
        let left = |outcome| failure.clone().map_or(outcome, Outcome::Left);
        outcomes.extend(draft.into_outcomes().map(left));
    }
    Ok(outcomes)
}

/// A message that was accepted long ago may repeat one that has left the window since. Its own window ends when it was
/// accepted; every round compares with what is in the window now.
async fn drop_accepted(db: &Connection, drafts: &mut [Draft<'_>]) -> Result<(), Error> {
    let mut ask = procedures::Accepted::default();
    let mut asked = Vec::new();
    for (index, draft) in drafts.iter_mut().enumerate() {
        let Some(accepted) = draft.accepted() else { continue };
        draft.write();
        asked.push((index, accepted));
    }
    if asked.is_empty() {
        return Ok(());
    }
    for &(index, accepted) in &asked {
        let draft = &drafts[index];
        ask.partitions.push(draft.partition().id);
        ask.times.push(clock::system_time(accepted));
        ask.windows.push(draft.dedup_seconds());
        ask.transactions.push(&draft.transactions);
    }
    let stored = procedures::find_accepted(db, &ask).await?;
    for ((index, _), stored) in asked.into_iter().zip(stored) {
        drafts[index].drop_accepted(&stored);
    }
    Ok(())
}

async fn rounds(
    shared: &Shared,
    db: &Connection,
    drafts: &mut [Draft<'_>],
    how: (Behind, Locked),
    published: &mut Vec<Publication>,
) -> Result<(), Error> {
    // The procedure locks in this order.
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_unstable_by_key(|&index| drafts[index].partition().id);
    // More rounds for each window that is learned, or that there is no room for.
    for _ in 0..ROUNDS_MAX + 2 * drafts.len() {
        order.retain(|&index| drafts[index].is_open());
        if order.is_empty() {
            break;
        }
        round(shared, db, drafts, &order, how, published).await?;
    }
    if drafts.iter().any(Draft::is_open) {
        return Err(Error::Changed("the partition kept changing while messages were appended to it"));
    }
    Ok(())
}

async fn round(
    shared: &Shared,
    db: &Connection,
    drafts: &mut [Draft<'_>],
    order: &[usize],
    (behind, locked): (Behind, Locked),
    published: &mut Vec<Publication>,
) -> Result<(), Error> {
    let mut heads = Vec::with_capacity(order.len());
    let mut suspects = Vec::with_capacity(order.len());
    for &index in order {
        let draft = &mut drafts[index];
        draft.write();
        let hashes = draft.hashes.iter().copied();
        let expectation = shared.dedup().expect(draft.window(), draft.partition().id, hashes);
        draft.floor = draft.first_try(expectation.head);
        draft.compares = draft.deduplicates() && draft.hashes.iter().any(|hash| hash.is_chosen());
        draft.expected = expectation.complete;
        heads.push(match expectation.complete {
            _ if !draft.compares => NOTHING_TO_COMPARE,
            -1 | 0 if draft.taught => COMPARE_ALL,
            complete => complete,
        });
        suspects.push(draft.compares && expectation.suspect);
    }
    let deferred = behind == Behind::Append;
    let mut ask = procedures::Push { expected: heads, suspects, deferred, locked, ..Default::default() };
    for &index in order {
        let draft = &drafts[index];
        ask.partitions.push(draft.partition().id);
        ask.counts.push(draft.hashes.len() as i32);
        ask.bytes.push(draft.parcels.iter().map(|parcel| parcel.bytes_max).max().unwrap_or(0) as i32);
        ask.transactions.push(&draft.transactions);
        ask.frames.push(&draft.frames);
        // A deferred push is executed in the transaction that marks it as done, so no earlier try has committed.
        let recheck = draft.floor.max(draft.compared);
        ask.recheck.push(if deferred || draft.may_repeat() { i64::MAX } else { recheck });
    }
    let answers = procedures::push(db, &ask).await?;
    let now = clock::now();
    for answer in answers {
        let draft = &mut drafts[order[answer.position]];
        let partition = draft.partition().clone();
        let window = draft.window();
        match answer.outcome {
            PushOutcome::Appended { base_offset, created_at } => {
                let frames = std::mem::take(&mut draft.frames);
                let transactions = std::mem::take(&mut draft.transactions);
                published.push(Publication {
                    partition,
                    segment: Arc::new(Segment::new(base_offset, created_at, transactions, frames)),
                    window,
                    unseen: answer.unseen,
                    compared: draft.compares.then_some(draft.expected),
                });
                draft.appended(base_offset, created_at);
            }
            PushOutcome::Conflict { head, stored } => {
                let too_much = answer.unseen.is_none() && stored.is_empty();
                draft.taught |= answer.unseen.is_some();
                if draft.compares && !too_much {
                    let mut dedup = shared.dedup();
                    if db.is_current() {
                        let unseen = answer.unseen.as_deref();
                        dedup.caught_up(now, window, partition.id, head, unseen, draft.expected);
                    }
                }
                if !draft.compares {
                    draft.compared = head;
                }
                draft.drop_stored(&stored);
            }
            PushOutcome::Behind => draft.behind = true,
            PushOutcome::Busy => draft.busy = true,
            PushOutcome::Gone => {
                shared.directory.forget(&partition);
                shared.dedup().forget(partition.id);
                draft.gone();
            }
        }
    }
    Ok(())
}

/// A segment that is about to become visible, and what the dedup cache learns from it.
pub struct Publication {
    partition: Arc<Partition>,
    segment: Arc<Segment>,
    window: Duration,
    unseen: Option<Vec<u8>>,
    compared: Option<i64>,
}

/// Called after the commit, never before: a cache that knew of an append that was rolled back would take another
/// broker's segment for it.
pub fn publish(shared: &Shared, db: &Connection, published: &[Publication]) {
    if published.is_empty() {
        return;
    }
    let now = clock::now();
    let mut dedup = shared.dedup();
    let kept = if db.is_current() { published } else { &[] };
    for publication in kept {
        let segment = &publication.segment;
        let hashes: Vec<TransactionHash> = TransactionHash::read_all(&segment.transactions).collect();
        dedup.appended(
            now,
            publication.window,
            publication.partition.id,
            segment.base_offset,
            &hashes,
            publication.unseen.as_deref(),
            publication.compared,
        );
    }
    drop(dedup);
    let mut segments = shared.segments();
    let kept = if db.is_current() { published } else { &[] };
    for publication in kept {
        segments.insert(publication.partition.id, publication.segment.clone());
    }
    drop(segments);
    let counted = |publication: &'_ Publication| publication.segment.count();
    shared.tally.appended(published.iter().map(|new| (&new.partition.queue, counted(new))));
    let look_at = shared.wake.look_at(now);
    shared.watches.pushed(published.iter().map(|publication| &publication.partition), look_at);
    shared.wake.pushed();
}
