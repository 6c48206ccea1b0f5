//! Replaying dead letters: their messages are pushed again under new transaction ids, and the letters deleted, in one
//! database transaction. Whoever dies when, a letter is replayed once.

use std::borrow::Cow;
use std::time::Duration;

use queen_protocol::{PushResult, PushStatus, Trace};
use uuid::Uuid;

use crate::Engine;
use crate::clock;
use crate::crypt::Keys;
use crate::db::redrive::{self, Letter, NotAdded, Redrive, RedriveAsk, Stepped};
use crate::db::{Connection, Error as DbError, transaction};
use crate::error::{Error, UnreadableMessage};
use crate::log::frames::{Frame, read_string};
use crate::log::ids::replay_id;
use crate::message::append::{self, Landed, Placed, Publication, Turn};
use crate::message::push::{Message, Missing, Secrecy, Sorted};

/// How often a replay looks its letters and partitions up again after they changed under it.
const ROUNDS_MAX: usize = 5;

#[derive(Debug)]
pub struct Replayed {
    pub queue: String,
    pub partition: String,
    pub push: PushResult,
}

/// What came of one try.
pub(crate) enum Tried {
    Done(Vec<PushResult>),
    /// The letters, or what the replay is part of, are not what they were.
    Changed,
    /// Deferred or spooled pushes are ahead, which must not be overtaken.
    Behind,
    /// A partition was deleted meanwhile.
    Gone,
}

/// The step of a redrive that a replay is part of.
pub(crate) struct Step<'a> {
    pub id: Uuid,
    pub worker: Uuid,
    pub stands: (Uuid, i64),
    pub stepped: Stepped<'a>,
    pub hold: Duration,
}

impl Engine {
    /// Pushes the message of a dead letter again. `None`: there is no such dead letter.
    pub async fn replay_message(
        &self,
        partition: Uuid,
        transaction: &str,
    ) -> Result<Option<Replayed>, Error> {
        let (engine, transaction) = (self.clone(), transaction.to_owned());
        self.to_its_end(async move { engine.replay_in_rounds(partition, &transaction).await }).await
    }

    async fn replay_in_rounds(&self, partition: Uuid, transaction: &str) -> Result<Option<Replayed>, Error> {
        let started = clock::now();
        let mut rounds = 0;
        while rounds < ROUNDS_MAX {
            let letters = redrive::letters_of(&self.shared.connections, partition, transaction).await?;
            let Some(first) = letters.first() else { return Ok(None) };
            match self.replay(&[letters.as_slice()], None).await? {
                Tried::Done(mut pushed) => {
                    let push = pushed.pop();
                    let (queue, partition) = (first.queue.clone(), first.partition.clone());
                    return Ok(push.map(|push| Replayed { queue, partition, push }));
                }
                Tried::Behind => self.wait_behind(started).await?,
                Tried::Changed | Tried::Gone => rounds += 1,
            }
        }
        Err(DbError::Lost("the dead letter kept changing while it was replayed".to_owned()).into())
    }

    /// Each element holds the letters of one message, which is pushed once; those of one partition are adjacent and in order.
    pub(crate) async fn replay(
        &self,
        letters: &[&[Letter]],
        step: Option<&Step<'_>>,
    ) -> Result<Tried, Error> {
        // One that makes no sense stays where it is. One that is encrypted with an unknown key ends the try.
        let mut snapshots: Vec<Snapshot<'_>> = Vec::with_capacity(letters.len());
        let mut kept: Vec<&[Letter]> = Vec::with_capacity(letters.len());
        for same in letters {
            if let Some(snapshot) =
                same.first().and_then(|first| Snapshot::of(first, &self.shared.config.keys))
            {
                snapshots.push(snapshot?);
                kept.push(same);
            }
        }
        let letters = kept;
        let messages: Vec<Message<'_>> = snapshots.iter().map(Snapshot::message).collect();
        if self.spool_holds(&messages) {
            return Ok(Tried::Behind);
        }
        let all: Vec<usize> = (0..messages.len()).collect();
        let Sorted { parcels, gone, .. } = self.parcels(&messages, &all, Missing::Made).await?;
        if !gone.is_empty() {
            return Ok(Tried::Gone);
        }
        let ids: Vec<Uuid> =
            letters.iter().flat_map(|letters| letters.iter()).map(|letter| letter.id).collect();
        let db = self.shared.connections.acquire().await?;
        let number = transaction::begin(&db).await?;
        if step.is_some() {
            // It holds many partitions, which must not wait long for one that somebody else has.
            let limit = db.client.batch_execute("set local lock_timeout = '100ms'");
            db.within("set lock_timeout", limit).await?;
        }
        let mut published = Vec::new();
        let prepared = match self.prepare_replay(&db, &parcels, &ids, step, &mut published).await {
            Ok(Ok(placed)) => placed,
            Ok(Err(tried)) => {
                transaction::rollback(&db).await;
                return Ok(tried);
            }
            Err(error) => {
                transaction::rollback(&db).await;
                return Err(error.into());
            }
        };
        let connector = self.shared.connections.connector();
        transaction::commit(&db, connector, &number, self.shared.config.retry_for).await?;
        append::publish(&self.shared, &db, &published);
        let mut results: Vec<Option<PushResult>> = messages.iter().map(|_| None).collect();
        for ((members, parcel), placed) in parcels.iter().zip(prepared) {
            for (&index, placed) in members.iter().zip(placed) {
                let message = &messages[index];
                results[index] = Some(PushResult {
                    index,
                    message_id: placed.message_id(parcel.partition.number),
                    transaction_id: message.transaction_id.to_owned(),
                    queue_name: message.queue.to_owned(),
                    status: PushStatus::Queued,
                    partition_id: parcel.partition.id,
                    trace_id: message.trace_id,
                    error: None,
                    ticket: None,
                });
            }
        }
        Ok(Tried::Done(results.into_iter().flatten().collect()))
    }

    /// Everything up to the commit. Locks the redrive first, then heads, then dead letters.
    async fn prepare_replay(
        &self,
        db: &Connection,
        parcels: &[(Vec<usize>, append::Parcel)],
        letters: &[Uuid],
        step: Option<&Step<'_>>,
        published: &mut Vec<Publication>,
    ) -> Result<Result<Vec<Vec<Placed>>, Tried>, DbError> {
        if let Some(step) = step
            && !redrive::hold_redrive(db, step.id, step.worker, step.stands).await?
        {
            return Ok(Err(Tried::Changed));
        }
        let parcels: Vec<&append::Parcel> = parcels.iter().map(|(_, parcel)| parcel).collect();
        let mut placed = Vec::with_capacity(parcels.len());
        for landed in append::append(&self.shared, db, &parcels, Turn::Direct, published).await? {
            match landed {
                Landed::Placed(messages) => placed.push(messages),
                Landed::Behind(_) => return Ok(Err(Tried::Behind)),
                Landed::Gone => return Ok(Err(Tried::Gone)),
            }
        }
        if redrive::drop_letters(db, letters).await? != letters.len() as i64 {
            return Ok(Err(Tried::Changed));
        }
        if let Some(step) = step {
            redrive::step_redrive(db, step.id, &step.stepped, step.hold).await?;
        }
        Ok(Ok(placed))
    }

    /// How many dead letters match; `None`: no such queue.
    pub async fn count_redrive(&self, ask: &RedriveAsk) -> Result<Option<i64>, Error> {
        self.check_open()?;
        Ok(redrive::count_redrive(&self.shared.reads, ask).await?.map(|counted| counted.total))
    }

    /// Starts to replay all that match; a job of one of the brokers does it. `None`: no such queue.
    pub async fn start_redrive(&self, ask: &RedriveAsk) -> Result<Option<Redrive>, Error> {
        self.check_open()?;
        // A list may take long; what the message plane's connections do may not.
        let Some(counted) = redrive::count_redrive(&self.shared.reads, ask).await? else { return Ok(None) };
        let (engine, ask, id) = (self.clone(), ask.clone(), Uuid::now_v7());
        let added = self.to_its_end(async move {
            let shared = &engine.shared;
            match redrive::add_redrive(&shared.connections, id, &ask, counted).await? {
                Ok(()) => shared.redrives.notify_one(),
                Err(NotAdded::NoQueue) => return Ok(false),
                Err(NotAdded::QueueLimit) => return Err(Error::QueueLimit(shared.config.queues_max)),
                Err(NotAdded::NoTarget) => return Err(Error::NoQueue(ask.target_queue.unwrap_or_default())),
            }
            Ok(true)
        });
        match added.await? {
            true => self.redrive(id).await,
            false => Ok(None),
        }
    }

    pub async fn redrive(&self, id: Uuid) -> Result<Option<Redrive>, Error> {
        Ok(redrive::redrives(&self.shared.reads, Some(id), 1, 0).await?.pop())
    }

    /// The newest first.
    pub async fn redrives(&self, limit: i64, offset: i64) -> Result<Vec<Redrive>, Error> {
        Ok(redrive::redrives(&self.shared.reads, None, limit, offset).await?)
    }

    /// Ends it behind the step under way; one that has ended stays what it is. `None`: there is no such redrive.
    pub async fn cancel_redrive(&self, id: Uuid) -> Result<Option<Redrive>, Error> {
        let engine = self.clone();
        self.to_its_end(async move { Ok(redrive::cancel_redrive(&engine.shared.connections, id).await?) })
            .await?;
        self.redrive(id).await
    }
}

/// What a dead letter says of its message.
struct Snapshot<'a> {
    queue: &'a str,
    partition: &'a str,
    transaction_id: String,
    trace_id: Option<Uuid>,
    trace: Option<(String, Option<String>)>,
    producer_sub: Option<String>,
    encrypted: bool,
    payload: Cow<'a, str>,
}

impl<'a> Snapshot<'a> {
    fn of(letter: &'a Letter, keys: &Keys) -> Option<Result<Self, Error>> {
        let frame = Frame::parse(&letter.frame)?;
        let payload = match frame.open(keys) {
            Ok(payload) => payload,
            Err(cause) => {
                return Some(Err(Error::Unreadable(Box::new(UnreadableMessage {
                    queue: letter.queue.clone(),
                    partition: letter.partition.clone(),
                    transaction_id: read_string(frame.transaction_id),
                    cause,
                }))));
            }
        };
        Some(Ok(Self {
            queue: &letter.queue,
            partition: &letter.partition,
            transaction_id: replay_id(&read_string(frame.transaction_id)),
            trace_id: frame.trace_id.and_then(|id| Uuid::try_parse(&read_string(id)).ok()),
            trace: frame.trace_parent.map(|parent| (read_string(parent), frame.trace_state.map(read_string))),
            producer_sub: frame.producer_sub.map(read_string),
            encrypted: frame.key_id.is_some(),
            payload,
        }))
    }

    fn message(&self) -> Message<'_> {
        Message {
            queue: self.queue,
            partition: self.partition,
            namespace: None,
            task: None,
            transaction_id: &self.transaction_id,
            chosen: false,
            promised: None,
            accepted: true,
            trace_id: self.trace_id,
            trace: self.trace.as_ref().and_then(|(parent, state)| Trace::parse(parent, state.as_deref())),
            producer_sub: self.producer_sub.as_deref(),
            // While a key is missing that is required, the dead letter stays.
            secrecy: if self.encrypted { Secrecy::Kept } else { Secrecy::Waiting },
            payload: &self.payload,
        }
    }
}
