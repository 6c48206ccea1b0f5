//! One transaction in PostgreSQL: it creates partitions, appends, applies acks and commits, all or nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use queen_protocol::LeaseId;
use uuid::Uuid;

use super::bad_lease;
use crate::clock;
use crate::db::procedures::{self, Acked, Answer, Locked, Refusal, Settlement};
use crate::db::{Connection, Error as DbError, Priority, transaction};
use crate::directory::Known;
use crate::life::{self, Named, TracedMessage};
use crate::log::Partition;
use crate::log::frames::{Frame, read_string};
use crate::message::ack_outcome::AckOutcome;
use crate::message::ack_plan::{self, Verdict};
use crate::message::append::{self, Behind, Publication};
use crate::message::locate::Ack;
use crate::message::open;
use crate::message::parcel::{Absent, Outcome, Parcel, Placed};
use crate::message::settle;
use crate::shared::Shared;
use crate::sidecar::Operation;

/// How long a transaction waits for a row before it makes room for another transaction. Most of them hold a row for a
/// few milliseconds.
const LOCK_WAIT: Duration = Duration::from_millis(50);

/// A whole transaction: the only entry of its flight.
pub struct Transaction {
    pub(super) id: Uuid,
    /// Partitions to be created.
    pub(super) absent: Vec<Absent>,
    pub(super) parcels: Vec<Parcel>,
    pub(super) acks: Vec<Ack>,
    pub(super) required: Vec<(String, LeaseId)>,
}

pub enum Ended {
    Committed(Committed),
    RolledBack(String),
    /// A partition of this queue must not be created.
    Refused(Refusal, Arc<str>),
    /// These queues exist, and their options are not those that the parcels assume: how long they remember transaction
    /// ids, and whether they are encrypted.
    NotNew(Vec<(Arc<str>, (i32, bool))>),
    PartitionGone,
    /// A partition has deferred pushes, which must not be overtaken.
    Behind,
    /// A partition or a cursor is locked.
    Busy,
}

pub struct Committed {
    /// One for each parcel.
    pub partitions: Vec<Arc<Partition>>,
    pub placed: Vec<Vec<Placed>>,
    pub acks: Vec<AckOutcome>,
}

/// Why a transaction is rolled back.
enum Undone {
    Ended(Ended),
    Failed(DbError),
}

impl From<DbError> for Undone {
    fn from(error: DbError) -> Self {
        Self::Failed(error)
    }
}

/// What has to be published once the commit is certain.
struct Prepared {
    committed: Committed,
    /// Partitions that are new to the directory, and whether they were created here.
    opened: Vec<(Known, bool)>,
    published: Vec<Publication>,
    acked: Vec<(usize, Acked)>,
}

impl Operation for Transaction {
    const NAME: &'static str = "transaction";
    const PRIORITY: Priority = Priority::Consume;
    const MERGED_MAX: usize = 1;
    const ALONE: bool = true;
    type Key = Uuid;
    type Output = Ended;
    type Context = Shared;

    fn key(&self) -> Uuid {
        self.id
    }

    fn items(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.parcels.iter().map(|parcel| parcel.frames.len()).sum()
    }

    fn left(ended: &Ended) -> Option<DbError> {
        matches!(ended, Ended::Busy).then_some(DbError::Busy)
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Ended>, DbError> {
        run(shared, db, batch, LOCK_WAIT).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Ended>, DbError> {
        run(shared, db, batch, patience).await
    }
}

async fn run(
    shared: &Arc<Shared>,
    db: &Connection,
    batch: &[Transaction],
    lock_wait: Duration,
) -> Result<Vec<Ended>, DbError> {
    let mut ended = Vec::with_capacity(batch.len());
    for transaction in batch {
        ended.push(transaction.run(shared, db, lock_wait).await?);
    }
    Ok(ended)
}

impl Transaction {
    async fn run(&self, shared: &Shared, db: &Connection, lock_wait: Duration) -> Result<Ended, DbError> {
        let changes = shared.directory.changes();
        let work = async { self.prepare(shared, db).await?.map_err(Undone::Ended) };
        let prepared = match transaction::run(&shared.connections, db, Some(lock_wait), work).await {
            Ok(prepared) => prepared,
            Err(Undone::Ended(ended)) => return Ok(ended),
            Err(Undone::Failed(error)) if error.is_lock_timeout() => return Ok(Ended::Busy),
            Err(Undone::Failed(error)) => return Err(error),
        };
        let mut dedup = shared.dedup();
        for (known, _) in prepared.opened.iter().filter(|_| db.is_current()) {
            dedup.opened(known.partition.id, known.head);
        }
        drop(dedup);
        for (known, made) in prepared.opened {
            open::learn(shared, known, made, changes);
        }
        append::publish(shared, db, &prepared.published);
        self.note_relations(shared, &prepared.committed);
        for (index, answer) in &prepared.acked {
            settle::publish(shared, &self.acks[*index], answer);
        }
        Ok(Ended::Committed(prepared.committed))
    }

    /// A traced message that is acknowledged here is the parent of everything that is pushed here. Called before the
    /// leases are forgotten, because they know the traced messages.
    fn note_relations(&self, shared: &Shared, committed: &Committed) {
        let mut parents = Vec::new();
        for ack in &self.acks {
            let Some(traced) = shared.leases().traced(&ack.key()) else { continue };
            let Some(service) = &ack.service else { continue };
            let named = |message: &TracedMessage| Named {
                partition: service.partition.clone(),
                offset: message.offset,
                message_id: message.message_id,
                transaction_id: message.transaction_id.clone(),
            };
            let asked = |message: &&TracedMessage| ack.items.iter().any(|item| item.offset == message.offset);
            parents.extend(traced.messages.iter().filter(asked).map(named));
        }
        if parents.is_empty() {
            return;
        }
        let mut children = Vec::new();
        for ((parcel, partition), placed) in
            self.parcels.iter().zip(&committed.partitions).zip(&committed.placed)
        {
            let new = parcel.frames.split('\n').zip(placed).filter(|(_, placed)| !placed.duplicate);
            children.extend(new.filter_map(|(line, placed)| {
                Some(Named {
                    partition: partition.clone(),
                    offset: placed.offset?,
                    message_id: placed.id,
                    transaction_id: read_string(Frame::parse(line)?.transaction_id).into(),
                })
            }));
        }
        let (events, over) = life::related(clock::now(), self.id, &parents, &children);
        shared.life.note(events);
        shared.life.forgotten(over);
    }

    /// Creates the missing partitions as part of the transaction: if it rolls back, they never existed. They are invisible to
    /// others until it commits; another session that creates one of the same name waits for that.
    async fn open(
        &self,
        shared: &Shared,
        db: &Connection,
    ) -> Result<Result<Vec<(Known, bool)>, Ended>, DbError> {
        let mut ask = procedures::Open::default();
        for absent in &self.absent {
            absent.open.ask(absent.id, &mut ask);
        }
        let mut answers = procedures::open(db, &ask, Locked::Wait).await?;
        answers.sort_unstable_by_key(|answer| answer.position);
        let mut opened = Vec::with_capacity(self.absent.len());
        let mut not_new = Vec::new();
        for answer in answers {
            let absent = &self.absent[answer.position];
            let queue = &absent.open.queue;
            let row = match answer.answer {
                Answer::Found(row) => row,
                Answer::Locked => return Err(DbError::Busy),
                Answer::Refused(refusal) => {
                    shared.refused(refusal);
                    return Ok(Err(Ended::Refused(refusal, queue.clone())));
                }
            };
            let options = (row.dedup_seconds, row.encrypted);
            if options != (absent.dedup_seconds, absent.encrypted) {
                not_new.push((queue.clone(), options));
            }
            opened.push((absent.open.known(&row), row.id == absent.id));
        }
        if !not_new.is_empty() {
            return Ok(Err(Ended::NotNew(not_new)));
        }
        if opened.len() < self.absent.len() {
            return Ok(Err(Ended::PartitionGone));
        }
        Ok(Ok(opened))
    }

    /// Everything up to the commit. Locks queues and partitions first, then heads, then all cursors at once.
    async fn prepare(&self, shared: &Shared, db: &Connection) -> Result<Result<Prepared, Ended>, DbError> {
        let opened = match self.absent.is_empty() {
            true => Vec::new(),
            false => match self.open(shared, db).await? {
                Ok(opened) => opened,
                Err(ended) => return Ok(Err(ended)),
            },
        };
        self.add_readers(db).await?;
        let ids: HashMap<Uuid, &Known> =
            self.absent.iter().map(|absent| absent.id).zip(opened.iter().map(|(known, _)| known)).collect();
        let moved: Vec<Option<Parcel>> = self
            .parcels
            .iter()
            .map(|parcel| ids.get(&parcel.partition.id).map(|known| parcel.moved(known.partition.clone())))
            .collect();
        let parcels: Vec<&Parcel> =
            self.parcels.iter().zip(&moved).map(|(parcel, moved)| moved.as_ref().unwrap_or(parcel)).collect();
        let partitions = parcels.iter().map(|parcel| parcel.partition.clone()).collect();
        let mut published = Vec::new();
        let mut placed = Vec::with_capacity(parcels.len());
        for landed in append::append(shared, db, &parcels, Behind::Report, &mut published).await? {
            match landed {
                Outcome::Stored(messages) => placed.push(messages),
                Outcome::Behind(_) => return Ok(Err(Ended::Behind)),
                _ => return Ok(Err(Ended::PartitionGone)),
            }
        }
        let mut acked = Vec::new();
        let mut outcomes: Vec<Option<AckOutcome>> = vec![None; self.acks.len()];
        if !self.acks.is_empty() || !self.required.is_empty() {
            let mut cursors = match self.hold(db).await? {
                Ok(cursors) => cursors,
                Err(reason) => return Ok(Err(Ended::RolledBack(reason))),
            };
            while outcomes.iter().any(Option::is_none) {
                match self.acknowledge(db, &mut cursors, &mut outcomes, &mut acked).await? {
                    Ok(()) => {}
                    Err(ended) => return Ok(Err(ended)),
                }
            }
        }
        let acks = outcomes.into_iter().flatten().collect();
        Ok(Ok(Prepared { committed: Committed { partitions, placed, acks }, opened, published, acked }))
    }

    /// Without a lease a group may acknowledge where it has not read yet.
    async fn add_readers(&self, db: &Connection) -> Result<(), DbError> {
        let unread = self.acks.iter().filter(|ack| ack.lease.is_none() && ack.service.is_none());
        let readers: HashSet<(Uuid, &str)> = unread.map(|ack| (ack.partition, ack.group.as_ref())).collect();
        if readers.is_empty() {
            return Ok(());
        }
        let (partitions, groups): (Vec<Uuid>, Vec<&str>) = readers.into_iter().unzip();
        procedures::add_readers(db, &partitions, &groups).await
    }

    /// The cursors of everything to be acknowledged, or the required lease that is not live.
    async fn hold(&self, db: &Connection) -> Result<Result<HashMap<(Uuid, String), i64>, String>, DbError> {
        let (mut leases, mut numbers) = (Vec::new(), Vec::new());
        for (_, lease) in &self.required {
            for number in &lease.partitions {
                leases.push(lease.id);
                numbers.push(*number);
            }
        }
        let partitions: Vec<Uuid> = self.acks.iter().map(|ack| ack.partition).collect();
        let groups: Vec<&str> = self.acks.iter().map(|ack| ack.group.as_ref()).collect();
        let held = procedures::hold(db, &leases, &numbers, &partitions, &groups).await?;
        for (text, lease) in &self.required {
            if !held.iter().any(|row| row.lease == Some(lease.id)) {
                return Ok(Err(bad_lease(text)));
            }
        }
        Ok(Ok(held.into_iter().map(|row| ((row.partition, row.group), row.cursor)).collect()))
    }

    /// Applies one open ack of each (partition, group). Any refusal refuses the whole transaction.
    async fn acknowledge(
        &self,
        db: &Connection,
        cursors: &mut HashMap<(Uuid, String), i64>,
        outcomes: &mut [Option<AckOutcome>],
        acked: &mut Vec<(usize, Acked)>,
    ) -> Result<Result<(), Ended>, DbError> {
        let mut keys = HashSet::new();
        let chosen: Vec<usize> = (0..self.acks.len())
            .filter(|&index| outcomes[index].is_none())
            .filter(|&index| keys.insert((self.acks[index].partition, &self.acks[index].group)))
            .collect();
        let key = |ack: &Ack| (ack.partition, ack.group.to_string());
        let plans: Vec<_> = chosen
            .iter()
            .map(|&index| {
                let ack = &self.acks[index];
                let cursor = cursors.get(&key(ack)).copied().unwrap_or(ack.cursor);
                (cursor, ack_plan::plan(&ack.items, cursor))
            })
            .collect();
        let rows: Vec<_> = chosen
            .iter()
            .zip(&plans)
            .map(|(&index, (cursor, plan))| {
                (&self.acks[index], self.acks[index].items.as_slice(), *cursor, plan)
            })
            .collect();
        let answers = procedures::settle(db, &settle::ask(&rows)).await?;
        if answers.len() < chosen.len() {
            return Ok(Err(Ended::RolledBack("ack: the partition does not exist".to_owned())));
        }
        for answer in answers {
            let index = chosen[answer.position];
            let (cursor, plan) = &plans[answer.position];
            let outcome = AckOutcome::new(&self.acks[index], *cursor, plan, &answer, true);
            // A lease that is over is refused here even if the message is done: a transaction sent again must not push
            // again.
            let dead = (answer.status == Settlement::InvalidLease).then_some("Invalid or expired lease");
            if outcome.behind {
                return Ok(Err(Ended::Behind));
            }
            let refused = dead.or(outcome.refused).or_else(|| {
                outcome.verdicts.contains(&Verdict::Committed).then_some("already committed for this group")
            });
            if let Some(reason) = refused {
                return Ok(Err(Ended::RolledBack(format!("ack refused: {reason}"))));
            }
            cursors.insert(key(&self.acks[index]), answer.cursor);
            outcomes[index] = Some(outcome);
            acked.push((index, answer));
        }
        Ok(Ok(()))
    }
}
