//! Transaction: pushes and acks in one PostgreSQL transaction, never merged with another's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use queen_protocol::{
    AckItem, AckResult, LeaseId, Operation as Asked, PushItem, TransactionBody, TransactionOutcome,
    TransactionResult,
};
use uuid::Uuid;

use super::ack::{self, Ack, AckOutcome};
use super::ack_plan;
use super::append::{self, Behind, Publication};
use super::open;
use super::parcel::{Absent, Message, Missing, Outcome, Parcel, Placed};
use super::push;
use crate::Engine;
use crate::clock;
use crate::db::procedures::{self, Acked, Answer, Locked, Refusal};
use crate::db::{Connection, Error as DbError, Priority, RETRY_PAUSE, transaction};
use crate::directory::Known;
use crate::error::Error;
use crate::life::{self, Named, TracedMessage};
use crate::load::Kind;
use crate::log::Partition;
use crate::log::frames::{Frame, read_string};
use crate::shared::Shared;
use crate::sidecar::Operation;

/// How often a transaction looks its partitions up again after they were deleted under it.
const REOPENS_MAX: usize = 5;

/// A transaction cannot be deferred, so it waits until what is ahead of it has landed.
const BEHIND_PAUSE: Duration = Duration::from_millis(20);

/// How long a transaction waits for a row before it makes room for another. Others of its kind hold one for a few
/// milliseconds.
const LOCK_WAIT: Duration = Duration::from_millis(50);

impl Engine {
    pub async fn transaction(
        &self,
        body: &TransactionBody<'_>,
        producer_sub: Option<&str>,
    ) -> Result<TransactionOutcome, Error> {
        self.check_open()?;
        let transaction_id = Uuid::now_v7();
        let rolled_back = |error: String| TransactionOutcome {
            transaction_id,
            success: false,
            error: Some(error),
            results: Vec::new(),
        };
        let mut pushes: Vec<&PushItem<'_>> = Vec::new();
        let mut acks: Vec<AckItem> = Vec::new();
        for operation in &body.operations {
            match operation {
                Asked::Push(items) => pushes.extend(items),
                Asked::Ack(item) => acks.push(item.clone()),
                Asked::Unknown(kind) => return Ok(rolled_back(format!("unknown operation type {kind:?}"))),
            }
        }
        let mut required = Vec::new();
        for text in &body.required_leases {
            match LeaseId::parse(text) {
                Some(lease) => required.push((text.clone(), lease)),
                None => return Ok(rolled_back(bad_lease(text))),
            }
        }
        let minted: Vec<String> = pushes.iter().map(|item| push::mint(item)).collect();
        let messages = pushes.iter().zip(&minted).map(|(item, id)| Message::new(item, id, producer_sub));
        let messages: Vec<Message<'_>> = messages.collect();
        let started = clock::now();
        let mut reopened = 0;
        // What queues that are no new ones are like, as far as it matters.
        let mut queues = HashMap::new();
        while reopened < REOPENS_MAX {
            let mut results: Vec<AckResult> =
                acks.iter().enumerate().map(|(index, item)| ack::refusal(index, item)).collect();
            let mut resolved = Vec::new();
            for set in ack::sets(&acks) {
                let Some(lease) = set.lease(&acks) else {
                    let text = acks[set.members[0]].lease_id.as_deref().unwrap_or_default();
                    return Ok(rolled_back(bad_lease(text)));
                };
                resolved.extend(self.locate(&acks, &set, lease, &mut results).await?);
            }
            if let Some(refused) = results.iter().find(|result| result.error.is_some()) {
                let reason = refused.error.clone().unwrap_or_default();
                if let Some(lease) =
                    acks[refused.index].lease_id.as_ref().filter(|_| reason == ack::BAD_LEASE)
                {
                    return Ok(rolled_back(bad_lease(lease)));
                }
                return Ok(rolled_back(format!("ack of {:?}: {reason}", refused.transaction_id)));
            }
            // What is in the spool is ahead of it, too.
            if self.spool_holds(&messages) {
                self.wait_behind(started).await?;
                continue;
            }
            let all: Vec<usize> = (0..messages.len()).collect();
            let sorted = match self.parcels(&messages, &all, Missing::Left(&queues)).await {
                // The lane does not wait for the database, because pushes need not; a transaction must.
                Err(Error::Database(DbError::Unreachable(_)))
                    if clock::now() - started < self.shared.config.retry_for =>
                {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    continue;
                }
                other => other?,
            };
            let (members, parcels): (Vec<_>, Vec<_>) = sorted.parcels.into_iter().unzip();
            let (ack_members, acks_resolved): (Vec<_>, Vec<_>) = resolved.into_iter().unzip();
            let transaction = Transaction {
                id: transaction_id,
                absent: sorted.absent,
                parcels,
                acks: acks_resolved,
                required: required.clone(),
            };
            let committed = match self.lanes.transaction.submit(transaction).await {
                Ok(Settled::Committed(committed)) => committed,
                Ok(Settled::RolledBack(reason)) => return Ok(rolled_back(reason)),
                Ok(Settled::Refused(Refusal::NoQueue, queue)) => {
                    return Err(Error::NoQueue(queue.to_string()));
                }
                Ok(Settled::Refused(refusal, queue)) => {
                    return Ok(rolled_back(self.shared.refusal(refusal, &queue)));
                }
                Ok(Settled::NotNew(found)) => {
                    reopened += 1;
                    queues.extend(found);
                    continue;
                }
                Ok(Settled::PartitionGone) => {
                    reopened += 1;
                    continue;
                }
                Ok(Settled::Busy) => return Err(DbError::Busy.into()),
                Ok(Settled::Behind) => {
                    self.wait_behind(started).await?;
                    continue;
                }
                Err(error) if error.is_data() => return Ok(rolled_back(error.public_text())),
                Err(error) => return Err(error.into()),
            };
            let mut placed: Vec<Option<(usize, Placed)>> = vec![None; pushes.len()];
            for (parcel, (members, messages)) in members.into_iter().zip(committed.placed).enumerate() {
                for (index, message) in members.into_iter().zip(messages) {
                    placed[index] = Some((parcel, message));
                }
            }
            for (members, outcome) in ack_members.iter().zip(&committed.acks) {
                for (index, verdict) in members.iter().zip(&outcome.verdicts) {
                    outcome.tell(&mut results[*index], *verdict);
                }
            }
            let partitions = committed.partitions;
            self.count(&partitions, &results);
            let push_result = |index: usize, push: usize| {
                let (parcel, message) = placed[push]?;
                let partition = &partitions[parcel];
                Some(TransactionResult::Push {
                    index,
                    success: true,
                    transaction_id: messages[push].transaction_id.to_owned(),
                    message_id: message.id,
                    partition_id: partition.id,
                    queue_name: partition.queue.to_string(),
                    duplicate: message.duplicate,
                })
            };
            let ack_result = |index: usize, ack: usize| TransactionResult::Ack {
                index,
                success: results[ack].success,
                transaction_id: results[ack].transaction_id.clone(),
                error: results[ack].error.clone(),
                dlq: results[ack].dlq,
            };
            let mut told = Vec::new();
            let (mut push, mut ack) = (0, 0);
            for operation in &body.operations {
                match operation {
                    Asked::Push(items) => {
                        for _ in items {
                            told.extend(push_result(told.len(), push));
                            push += 1;
                        }
                    }
                    Asked::Ack(_) => {
                        told.push(ack_result(told.len(), ack));
                        ack += 1;
                    }
                    Asked::Unknown(_) => {}
                }
            }
            return Ok(TransactionOutcome { transaction_id, success: true, error: None, results: told });
        }
        Ok(rolled_back("a partition was deleted again and again while it was pushed to".to_owned()))
    }
}

impl Engine {
    /// A transaction counts once in every queue it touches.
    fn count(&self, pushed: &[Arc<Partition>], acked: &[AckResult]) {
        ack::count(&self.shared, acked);
        let mut queues: Vec<&str> = pushed.iter().map(|partition| partition.queue.as_ref()).collect();
        queues.extend(acked.iter().filter_map(|result| result.queue_name.as_deref()));
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            self.shared.tally.record(queue, |minute| minute.transactions += 1);
        }
    }

    /// For a transaction that must not overtake what was accepted before it.
    pub(crate) async fn wait_behind(&self, started: Instant) -> Result<(), Error> {
        if clock::now() - started > self.shared.config.retry_for {
            return Err(self.overloaded(Kind::Push));
        }
        self.shared.load.signal.notify_one();
        tokio::time::sleep(BEHIND_PAUSE).await;
        Ok(())
    }
}

fn bad_lease(text: &str) -> String {
    format!("Invalid or expired lease: {text}")
}

/// A whole transaction: the only entry of its flight.
pub struct Transaction {
    id: Uuid,
    /// Partitions to be made.
    absent: Vec<Absent>,
    parcels: Vec<Parcel>,
    acks: Vec<Ack>,
    required: Vec<(String, LeaseId)>,
}

pub enum Settled {
    Committed(Committed),
    RolledBack(String),
    /// A partition may not be made, of this queue.
    Refused(Refusal, Arc<str>),
    /// These queues are there, and their options are not those its parcels were made for: how long they remember transaction ids, and
    /// whether they are encrypted.
    NotNew(Vec<(Arc<str>, (i32, bool))>),
    PartitionGone,
    /// A partition has deferred pushes, which must not be overtaken.
    Behind,
    /// A partition or a cursor is locked.
    Busy,
}

pub struct Committed {
    /// One for each parcel.
    partitions: Vec<Arc<Partition>>,
    placed: Vec<Vec<Placed>>,
    acks: Vec<AckOutcome>,
}

/// What has to be made known once the commit is certain.
struct Prepared {
    committed: Committed,
    /// Partitions that are new to the directory, and whether they were made here.
    opened: Vec<(Known, bool)>,
    published: Vec<Publication>,
    acked: Vec<(usize, Acked)>,
}

impl Operation for Transaction {
    const NAME: &'static str = "transaction";
    const PRIORITY: Priority = Priority::Turn;
    const MERGED_MAX: usize = 1;
    const ALONE: bool = true;
    type Key = Uuid;
    type Output = Settled;
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

    fn left(settled: &Settled) -> Option<DbError> {
        matches!(settled, Settled::Busy).then_some(DbError::Busy)
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Settled>, DbError> {
        run(shared, db, batch, LOCK_WAIT).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Settled>, DbError> {
        run(shared, db, batch, patience).await
    }
}

async fn run(
    shared: &Arc<Shared>,
    db: &Connection,
    batch: &[Transaction],
    lock_wait: Duration,
) -> Result<Vec<Settled>, DbError> {
    let mut settled = Vec::with_capacity(batch.len());
    for transaction in batch {
        settled.push(transaction.run(shared, db, lock_wait).await?);
    }
    Ok(settled)
}

impl Transaction {
    async fn run(&self, shared: &Shared, db: &Connection, lock_wait: Duration) -> Result<Settled, DbError> {
        let changes = shared.directory.changes();
        let number = transaction::begin_within(db, lock_wait).await?;
        let prepared = match self.prepare(shared, db).await {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(settled)) => {
                transaction::rollback(db).await;
                return Ok(settled);
            }
            Err(error) => {
                transaction::rollback(db).await;
                return if error.is_lock_timeout() { Ok(Settled::Busy) } else { Err(error) };
            }
        };
        transaction::commit(db, shared.connections.connector(), &number, shared.config.retry_for).await?;
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
            ack::settled(shared, &self.acks[*index], answer);
        }
        Ok(Settled::Committed(prepared.committed))
    }

    /// A traced message that is acknowledged here is the parent of all that is pushed here. Before the leases are
    /// forgotten, which know the traced ones.
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

    /// Makes the partitions that are missing, as part of the transaction: if it is rolled back, they never were. Nobody else knows
    /// of them until it is committed; who wants to make one of the same name waits for that.
    async fn open(
        &self,
        shared: &Shared,
        db: &Connection,
    ) -> Result<Result<Vec<(Known, bool)>, Settled>, DbError> {
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
                    return Ok(Err(Settled::Refused(refusal, queue.clone())));
                }
            };
            let options = (row.dedup_seconds, row.encrypted);
            if options != (absent.dedup_seconds, absent.encrypted) {
                not_new.push((queue.clone(), options));
            }
            opened.push((absent.open.known(&row), row.id == absent.id));
        }
        if !not_new.is_empty() {
            return Ok(Err(Settled::NotNew(not_new)));
        }
        if opened.len() < self.absent.len() {
            return Ok(Err(Settled::PartitionGone));
        }
        Ok(Ok(opened))
    }

    /// Everything up to the commit. Locks queues and partitions first, then heads, then all cursors at once.
    async fn prepare(&self, shared: &Shared, db: &Connection) -> Result<Result<Prepared, Settled>, DbError> {
        let opened = match self.absent.is_empty() {
            true => Vec::new(),
            false => match self.open(shared, db).await? {
                Ok(opened) => opened,
                Err(settled) => return Ok(Err(settled)),
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
                Outcome::Behind(_) => return Ok(Err(Settled::Behind)),
                _ => return Ok(Err(Settled::PartitionGone)),
            }
        }
        let mut acked = Vec::new();
        let mut outcomes: Vec<Option<AckOutcome>> = vec![None; self.acks.len()];
        if !self.acks.is_empty() || !self.required.is_empty() {
            let mut cursors = match self.hold(db).await? {
                Ok(cursors) => cursors,
                Err(reason) => return Ok(Err(Settled::RolledBack(reason))),
            };
            while outcomes.iter().any(Option::is_none) {
                match self.acknowledge(db, &mut cursors, &mut outcomes, &mut acked).await? {
                    Ok(()) => {}
                    Err(settled) => return Ok(Err(settled)),
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

    /// The cursors of everything to be acknowledged, or which required lease is not live.
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

    /// Applies one ack of each (partition, group) that still waits. Any refusal refuses the whole transaction.
    async fn acknowledge(
        &self,
        db: &Connection,
        cursors: &mut HashMap<(Uuid, String), i64>,
        outcomes: &mut [Option<AckOutcome>],
        acked: &mut Vec<(usize, Acked)>,
    ) -> Result<Result<(), Settled>, DbError> {
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
        let answers = procedures::settle(db, &ack::ask(&rows)).await?;
        if answers.len() < chosen.len() {
            return Ok(Err(Settled::RolledBack("ack: the partition does not exist".to_owned())));
        }
        for answer in answers {
            let index = chosen[answer.position];
            let (cursor, plan) = &plans[answer.position];
            let outcome = ack::outcome(&self.acks[index], *cursor, plan, &answer, true);
            // A dead lease is refused here even if the message is done: a transaction sent again must not push again.
            let dead = (answer.status == 2).then_some("Invalid or expired lease");
            if outcome.behind {
                return Ok(Err(Settled::Behind));
            }
            let refused = dead.or(outcome.refused).or_else(|| {
                outcome
                    .verdicts
                    .contains(&ack_plan::Verdict::Committed)
                    .then_some("already committed for this group")
            });
            if let Some(reason) = refused {
                return Ok(Err(Settled::RolledBack(format!("ack refused: {reason}"))));
            }
            cursors.insert(key(&self.acks[index]), answer.cursor);
            outcomes[index] = Some(outcome);
            acked.push((index, answer));
        }
        Ok(Ok(()))
    }
}
