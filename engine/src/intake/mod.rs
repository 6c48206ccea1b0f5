//! Intake: moves what was accepted outside the log into the log. Deferred operations, the spool, pushes from SQL and
//! redriven dead letters each wait in a store of their own, because their promises about order differ. Each is a
//! [`Source`]; the loop, the transaction and what happens after a failure are here, once.
//!
//! # Exactly once
//! An entry of a source is appended in the transaction that also marks it as done: its row is finished or deleted, or the
//! source's position moves past it. Before it appends, that transaction locks the mark and compares it with what the
//! broker has read ([`Source::hold`]), or counts what it deletes ([`Source::done`]). So
//! - if the process dies, both have happened or neither;
//! - if two brokers move the same entry, the second waits for the lock of the first, sees that the mark has changed, and
//!   rolls back. The same holds for an earlier try of this broker whose statements arrive late;
//! - if the response to the commit is lost, PostgreSQL is asked what became of the transaction. If it does not know, the
//!   batch is not repeated: it is read again, and the mark says what is left.
//!
//! What happens outside of the transaction can be repeated: creating a partition, or removing a spool file whose records
//! are below the position.
//!
//! # When a batch fails
//! The whole batch is tried first, then each partition of it, then each item. An item that PostgreSQL cannot store is
//! refused by its source, which keeps it for people. If a row is locked or a key is missing, the partition waits and the
//! others go on. After any other failure the source waits and reads its batch again.

mod dead_letters;
mod deferred;
mod inbox;
mod spool;

use std::time::Duration;

use tracing::debug;

pub(crate) use dead_letters::replay;

use crate::Engine;
use crate::db::{Connection, Error as DbError, transaction};
use crate::error::Error;
use crate::message::append::{self, Behind, Publication};
use crate::message::parcel::{Message, Missing, Outcome, Parcel};
use crate::shared::Shared;

/// For a row that another session has locked. A batch holds many partitions, which must not wait long for one of them.
const LOCK_WAIT: Duration = Duration::from_millis(100);

/// Where entries wait for their way into the log.
pub(crate) trait Source {
    /// For the log.
    const NAME: &'static str;
    /// What happens to entries whose partition has deferred pushes.
    const BEHIND: Behind;
    /// Whether it pauses during maintenance.
    const PAUSES: bool = true;
    /// What one transaction moves.
    type Batch;

    /// The next batch. `None`: nothing is left to do now.
    async fn take(&mut self) -> Result<Option<Self::Batch>, Undone>;

    /// Before the transaction: creates the parcels of the batch, and the partitions they need.
    async fn prepare(&self, _batch: &mut Self::Batch) -> Result<(), Undone> {
        Ok(())
    }

    /// In the transaction, before the append: locks the mark, and checks that the batch is still what it was.
    async fn hold(&self, _db: &Connection, _batch: &mut Self::Batch) -> Result<(), Undone> {
        Ok(())
    }

    fn parcels(batch: &Self::Batch) -> &[Parcel];

    /// In the transaction, after the append: marks the batch as done.
    async fn done(&self, _db: &Connection, _batch: &mut Self::Batch, _: Vec<Outcome>) -> Result<(), Undone> {
        Ok(())
    }

    /// After the commit.
    fn landed(&mut self, batch: &Self::Batch);

    fn fault(&self, _batch: &Self::Batch, why: &Undone) -> Fault {
        match why {
            Undone::Behind => Fault::Blocked,
            Undone::Failed(Error::Database(error)) if error.is_data() => Fault::Own,
            Undone::Failed(Error::Database(error)) if error.is_lock_timeout() => Fault::Blocked,
            Undone::Failed(Error::Unreadable(_) | Error::NoKey | Error::KeyRequired(_)) => Fault::Own,
            _ => Fault::Fatal,
        }
    }

    /// Smaller batches to try instead of one that failed, or the batch itself if splitting it would not help.
    fn split(&self, batch: Self::Batch, fault: Fault) -> Result<Vec<Self::Batch>, Self::Batch>;

    /// Sets an item aside that cannot be stored, for people to see.
    async fn refuse(&mut self, item: Self::Batch, error: &Error) -> Result<(), Undone>;

    /// This batch has to wait. The pass ends, unless the source can go on without the batch.
    async fn later(&mut self, _batch: Self::Batch, why: Undone) -> Result<(), Undone> {
        Err(why)
    }

    /// Waits until it is time to look again, after a pass that has ended like this.
    async fn wait(&mut self, ended: Result<(), Undone>);

    /// Whether this broker is no longer responsible for it.
    fn is_over(&self) -> bool {
        false
    }

    /// The source's own connection, if it has one.
    fn connection(&self) -> Option<&Connection> {
        None
    }

    /// How long its transaction waits for a locked row. `None`: as long as any other transaction.
    fn lock_wait(&self, _batch: &Self::Batch) -> Option<Duration> {
        Some(LOCK_WAIT)
    }
}

/// Why nothing of a batch was moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undone {
    #[error("it has changed since it was read")]
    Changed,
    #[error("earlier entries of its partition wait")]
    Behind,
    #[error("{0}")]
    Failed(#[from] Error),
}

impl From<DbError> for Undone {
    fn from(error: DbError) -> Self {
        Self::Failed(error.into())
    }
}

/// What a failure means for the rest of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Something in the batch cannot be stored, now or later.
    Own,
    /// Something in the batch has to wait for another session, for a key, or for what is ahead of it.
    Blocked,
    /// No other part of the source would fare better now.
    Fatal,
}

pub(crate) fn start(engine: &Engine) {
    deferred::start(engine);
    spool::start(engine);
    inbox::start(engine);
    dead_letters::start(engine);
}

/// Moves what a source has until the broker stops. Must not be dropped: it may be inside a transaction.
async fn run<S: Source>(shared: &Shared, source: &mut S) {
    loop {
        let ended = pass(shared, source).await;
        if let Err(why) = &ended {
            debug!(source = S::NAME, %why, "the intake waits");
        }
        if source.is_over() {
            return;
        }
        tokio::select! {
            () = shared.tasks.stopping() => return,
            () = source.wait(ended) => {}
        }
    }
}

/// Moves batches until nothing is left, or something is in the way.
async fn pass<S: Source>(shared: &Shared, source: &mut S) -> Result<(), Undone> {
    while !shared.tasks.is_stopping() && !source.is_over() {
        if S::PAUSES && shared.load.maintenance() {
            break;
        }
        let Some(batch) = source.take().await? else { break };
        admit(shared, source, batch).await?;
    }
    Ok(())
}

/// Moves the whole batch, or, if that fails, smaller ones in its place.
async fn admit<S: Source>(shared: &Shared, source: &mut S, batch: S::Batch) -> Result<(), Undone> {
    let mut batches = vec![batch];
    while let Some(mut batch) = batches.pop() {
        if shared.tasks.is_stopping() {
            return Err(DbError::Stopping.into());
        }
        let Err(why) = enter(shared, source, &mut batch).await else { continue };
        let fault = source.fault(&batch, &why);
        if fault == Fault::Fatal {
            return Err(why);
        }
        debug!(source = S::NAME, %why, "a batch of the intake has failed");
        match (source.split(batch, fault), why) {
            (Ok(smaller), _) => batches.extend(smaller.into_iter().rev()),
            (Err(item), Undone::Failed(error)) if fault == Fault::Own => source.refuse(item, &error).await?,
            (Err(batch), why) => source.later(batch, why).await?,
        }
    }
    Ok(())
}

/// Moves a batch in one transaction: all of it or nothing.
async fn enter<S: Source>(shared: &Shared, source: &mut S, batch: &mut S::Batch) -> Result<(), Undone> {
    source.prepare(batch).await?;
    let pooled;
    let db = match source.connection() {
        Some(own) => own,
        None => {
            pooled = shared.connections.acquire().await?;
            &*pooled
        }
    };
    let lock_wait = source.lock_wait(batch);
    let work = fill(shared, db, source, batch);
    let published = transaction::run(&shared.connections, db, lock_wait, work).await?;
    append::publish(shared, db, &published);
    source.landed(batch);
    Ok(())
}

/// Runs everything between begin and commit.
async fn fill<S: Source>(
    shared: &Shared,
    db: &Connection,
    source: &S,
    batch: &mut S::Batch,
) -> Result<Vec<Publication>, Undone> {
    source.hold(db, batch).await?;
    let parcels: Vec<&Parcel> = S::parcels(batch).iter().collect();
    let mut published = Vec::new();
    let outcomes = append::append(shared, db, &parcels, S::BEHIND, &mut published).await?;
    for outcome in &outcomes {
        match outcome {
            Outcome::Stored(_) | Outcome::Deferred(..) => {}
            // Operations that were deferred for a partition end with it.
            Outcome::Gone if S::BEHIND == Behind::Append => {}
            Outcome::Behind(_) => return Err(Undone::Behind),
            _ => return Err(Undone::Changed),
        }
    }
    source.done(db, batch, outcomes).await?;
    Ok(published)
}

/// Parcels of messages that were accepted earlier, with the positions of their messages.
async fn parcels(
    engine: &Engine,
    messages: &[Message<'_>],
) -> Result<(Vec<Vec<usize>>, Vec<Parcel>), Undone> {
    let all: Vec<usize> = (0..messages.len()).collect();
    let sorted = engine.parcels(messages, &all, Missing::Made).await?;
    match sorted.gone.is_empty() {
        true => Ok(sorted.parcels.into_iter().unzip()),
        false => Err(Undone::Changed),
    }
}
