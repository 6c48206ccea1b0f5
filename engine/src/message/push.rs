//! Push: messages in, ids out, after the commit.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use queen_protocol::{PushItem, PushResult, PushStatus, QueueOptions, Ticket, Trace};
use uuid::Uuid;

use super::append::{self, Landed, Parcel, Placed};
use super::defer::{self, Accepted, Behind, Deferral, Deferred, Request};
use super::open::{Open, Opened};
use crate::Engine;
use crate::config::Config;
use crate::db::procedures::Locked;
use crate::db::procedures::Refusal;
use crate::db::{Connection, Error as DbError, Priority};
use crate::directory::Known;
use crate::error::Error;
use crate::load::{Kind, Reason, Way};
use crate::log::Partition;
use crate::log::frames::write_frame;
use crate::log::ids::{self, TransactionHash};
use crate::shared::Shared;
use crate::sidecar::{Operation, landed};

/// A parcel is cut here, and so is a segment: it is read back in one piece even by a pop of one message.
const PARCEL_MESSAGES_MAX: usize = 1_000;
const PARCEL_BYTES_MAX: usize = 256 << 10;

/// About what an envelope adds to a payload.
const FRAME_BYTES: usize = 80;

/// What becomes of a parcel.
pub enum Outcome {
    Placed(Vec<Placed>),
    Deferred(Deferred),
    /// There is no such partition any more.
    Gone,
    /// It may not overtake deferred pushes, and there is no room for more of them.
    Refused,
    /// And no other of its request.
    Failed(DbError),
    /// Not stored yet, although others of its flight are: it flies again.
    Left(DbError),
}

/// What a sender is told about a message.
#[derive(Clone)]
pub(super) struct Told {
    pub message_id: Uuid,
    pub partition_id: Uuid,
    pub status: PushStatus,
    pub ticket: Option<Ticket>,
}

/// Messages by what can be done with them.
pub(crate) struct Sorted {
    pub parcels: Vec<(Vec<usize>, Parcel)>,
    /// Their partition was deleted in the moment it was made.
    pub gone: Vec<usize>,
    /// A limit forbids to make their partition. Never those that were accepted before.
    pub refused: Vec<(usize, Refusal)>,
    pub absent: Vec<Absent>,
}

/// A partition that does not exist yet.
pub(crate) struct Absent {
    /// Its parcels carry this id, and no number.
    pub id: Uuid,
    pub open: Open,
    /// What its parcels were made for.
    pub dedup_seconds: i32,
    pub encrypted: bool,
}

/// What happens to partitions that do not exist.
pub(crate) enum Missing<'a> {
    Made,
    /// Left to the caller, who makes them in a transaction of its own. By queue, if it is not as a new one is: what the caller has learnt
    /// about its deduplication and its encryption.
    Left(&'a HashMap<Arc<str>, (i32, bool)>),
}

/// How often a push looks its partitions up again after they were deleted under it.
const REOPENS_MAX: usize = 5;

/// One message on its way in, with everything that is decided about it.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub queue: &'a str,
    pub partition: &'a str,
    pub namespace: Option<&'a str>,
    pub task: Option<&'a str>,
    pub transaction_id: &'a str,
    /// The client chose the transaction id.
    pub chosen: bool,
    /// It was accepted before it could be stored, under this id.
    pub promised: Option<Uuid>,
    /// It was accepted long ago, and no limit is a reason to refuse it now.
    pub accepted: bool,
    pub trace_id: Option<Uuid>,
    pub trace: Option<Trace<'a>>,
    pub producer_sub: Option<&'a str>,
    pub secrecy: Secrecy<'a>,
    pub payload: &'a str,
}

/// Who decides whether a payload is encrypted.
#[derive(Debug, Clone, Copy)]
pub enum Secrecy<'a> {
    Queue,
    /// The queue, and the message waits where it is while a key is required and there is none.
    Waiting,
    /// It was encrypted before, and must not become readable by being moved.
    Kept,
    /// It is, with this key; `in_doubt`: only because nobody could be asked what its queue wants.
    Done {
        key_id: &'a str,
        in_doubt: bool,
    },
}

impl<'a> Message<'a> {
    /// `minted`: the transaction id, should the client have chosen none.
    pub fn new(item: &'a PushItem<'_>, minted: &'a str, producer_sub: Option<&'a str>) -> Self {
        Self {
            queue: &item.queue,
            partition: item.partition(),
            namespace: item.namespace.as_deref(),
            task: item.task.as_deref(),
            transaction_id: item.transaction_id.as_deref().unwrap_or(minted),
            chosen: item.transaction_id.is_some(),
            promised: None,
            accepted: false,
            trace_id: item.trace_id(),
            trace: item.trace(),
            producer_sub,
            secrecy: Secrecy::Queue,
            payload: item.payload(),
        }
    }
}

/// What was not sent, without what stands behind a message of its partition that could not be stored: a later part of a request
/// does not go another way than the one before it, or it would overtake that. In the order of the request.
fn from_their_beginning(messages: &[Message<'_>], told: &[Option<Told>], unsent: &[usize]) -> Vec<usize> {
    if unsent.is_empty() {
        return Vec::new();
    }
    let unsent: HashSet<usize> = unsent.iter().copied().collect();
    let mut failed: HashSet<(&str, &str)> = HashSet::new();
    let mut kept = Vec::with_capacity(unsent.len());
    for (index, message) in messages.iter().enumerate().filter(|(index, _)| told[*index].is_none()) {
        let partition = (message.queue, message.partition);
        if unsent.contains(&index) && !failed.contains(&partition) {
            kept.push(index);
        } else {
            failed.insert(partition);
        }
    }
    kept
}

/// A transaction id for an item that has none.
pub(super) fn mint(item: &PushItem<'_>) -> String {
    match item.transaction_id {
        Some(_) => String::new(),
        None => Uuid::now_v7().to_string(),
    }
}

impl Engine {
    /// # Cancel safety
    /// What has left in a flight is appended even if the caller goes away; the rest is not. So of each partition a beginning of
    /// its messages is stored, which may be all or none.
    pub async fn push(
        &self,
        items: &[PushItem<'_>],
        producer_sub: Option<&str>,
    ) -> Result<Vec<PushResult>, Error> {
        self.check_open()?;
        let minted: Vec<String> = items.iter().map(mint).collect();
        let messages = items.iter().zip(&minted).map(|(item, id)| Message::new(item, id, producer_sub));
        let messages: Vec<Message<'_>> = messages.collect();
        let mut told: Vec<Option<Told>> = vec![None; messages.len()];
        let must_spool = self.must_spool(&messages);
        // What was not sent cannot be stored twice. Of the rest nobody knows.
        let mut unsent: Vec<usize> = match must_spool {
            true => (0..messages.len()).collect(),
            false => Vec::new(),
        };
        let mut refused = Vec::new();
        let mut failure = match must_spool {
            true => None,
            false => self.store(&messages, &mut told, &mut unsent, &mut refused).await.err(),
        };
        let unsent = from_their_beginning(&messages, &told, &unsent);
        if !unsent.is_empty() && self.shared.spool.is_some() {
            let spooled = self.spool(&messages, &unsent, &mut told).await;
            failure = spooled.err().or(failure);
        }
        self.count_requests(&messages);
        let missing = told.iter().filter(|told| told.is_none()).count();
        let deleted = || "the partition was deleted again and again while it was pushed to".to_owned();
        let reason = failure.as_ref().map_or_else(deleted, Error::public_text);
        match failure {
            // Nothing of it was stored. Otherwise each item says what became of it.
            Some(error) if missing == messages.len() => Err(error),
            _ => {
                refused.sort_unstable_by_key(|(index, _)| *index);
                let refusal = |index| {
                    let found = refused.binary_search_by_key(&index, |(index, _)| *index);
                    found.ok().map(|found| self.shared.refusal(refused[found].1, messages[index].queue))
                };
                if let [(index, Refusal::NoQueue), ..] = refused[..]
                    && missing == messages.len()
                    && refused.len() == missing
                {
                    return Err(Error::NoQueue(messages[index].queue.to_owned()));
                }
                let results = messages.iter().zip(told).enumerate();
                let results = results.map(|(index, (message, told))| {
                    let reason = refusal(index).unwrap_or_else(|| reason.clone());
                    result(index, message, told, &reason)
                });
                Ok(results.collect())
            }
        }
    }

    /// A request counts once in every queue it pushes to.
    fn count_requests(&self, messages: &[Message<'_>]) {
        let mut counted: Vec<&str> = Vec::new();
        for message in messages {
            if counted.last() != Some(&message.queue) && !counted.contains(&message.queue) {
                counted.push(message.queue);
                self.shared.tally.record(message.queue, |minute| minute.push_requests += 1);
            }
        }
    }

    /// Tells what became of each message, as far as it goes; the error is about the others, of which some were not sent.
    async fn store(
        &self,
        messages: &[Message<'_>],
        told: &mut [Option<Told>],
        unsent: &mut Vec<usize>,
        refused: &mut Vec<(usize, Refusal)>,
    ) -> Result<(), Error> {
        let mut open: Vec<usize> = (0..messages.len()).collect();
        let mut failure = None;
        for _ in 0..REOPENS_MAX {
            if open.is_empty() {
                break;
            }
            let sorted = match self.parcels(messages, &open, Missing::Made).await {
                Ok(sorted) => sorted,
                Err(error) => {
                    if matches!(error, Error::Database(DbError::Unreachable(_))) {
                        unsent.extend(open);
                    }
                    return Err(error);
                }
            };
            let parcels = sorted.parcels;
            open = sorted.gone;
            refused.extend(sorted.refused);
            if parcels.is_empty() {
                continue;
            }
            let partitions = parcels.iter().map(|(_, parcel)| parcel.partition.id);
            let outcomes = match self.shared.load.way(Kind::Push, partitions) {
                Way::Execute => self.append(parcels).await,
                Way::Defer(reason) => {
                    let members: Vec<usize> =
                        parcels.iter().flat_map(|(members, _)| members.clone()).collect();
                    match self.defer(parcels, reason).await {
                        Ok(outcomes) => outcomes,
                        Err(error) => {
                            if matches!(error, Error::Database(DbError::Unreachable(_))) {
                                unsent.extend(members);
                            }
                            return Err(error);
                        }
                    }
                }
                Way::Reject => return Err(self.overloaded(Kind::Push)),
            };
            for (members, partition, outcome) in outcomes {
                match outcome {
                    Outcome::Placed(placed) => {
                        for (index, placed) in members.into_iter().zip(placed) {
                            told[index] = Some(Told::placed(&partition, &placed));
                        }
                    }
                    Outcome::Deferred(deferred) => {
                        for (index, accepted) in members.into_iter().zip(&deferred.messages) {
                            told[index] = Some(Told::deferred(&partition, &deferred, accepted));
                        }
                    }
                    Outcome::Gone => open.extend(members),
                    Outcome::Refused => {
                        failure.get_or_insert_with(|| self.overloaded(Kind::Push));
                    }
                    Outcome::Failed(error) | Outcome::Left(error) => {
                        if matches!(error, DbError::Unreachable(_)) {
                            unsent.extend(members);
                        }
                        failure.get_or_insert(error.into());
                    }
                }
            }
            open.sort_unstable();
        }
        failure.map_or(Ok(()), Err)
    }

    async fn append(&self, parcels: Vec<(Vec<usize>, Parcel)>) -> Vec<(Vec<usize>, Arc<Partition>, Outcome)> {
        let mut waiting: Vec<(_, Arc<Partition>, Result<_, DbError>)> = Vec::with_capacity(parcels.len());
        for (members, parcel) in parcels {
            let partition = parcel.partition.clone();
            let answer = match waiting.last() {
                // There may be room again, but not before the one that found none.
                Some((_, last, Err(error))) if last.id == partition.id => Err(error.clone()),
                _ => self.lanes.push.enqueue(parcel),
            };
            waiting.push((members, partition, answer));
        }
        let mut outcomes = Vec::with_capacity(waiting.len());
        for (members, partition, answer) in waiting {
            let landed = match answer {
                Ok(answer) => landed(answer).await,
                Err(error) => Err(error),
            };
            outcomes.push((members, partition, landed.unwrap_or_else(Outcome::Failed)));
        }
        outcomes
    }

    /// All of them in one transaction.
    async fn defer(
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
        let parcels = merged;
        let new = |parcel: &Parcel| Deferral::new(parcel, &vec![None; parcel.hashes.len()]);
        let deferrals = parcels.iter().map(|(_, parcel)| new(parcel)).collect();
        let answers = self.lanes.defer.submit(Request { deferrals, reason }).await?.ok_or(DbError::Busy)?;
        let outcomes = parcels.into_iter().zip(answers).map(|((members, parcel), deferred)| {
            (members, parcel.partition, deferred.map_or(Outcome::Gone, Outcome::Deferred))
        });
        Ok(outcomes.collect())
    }

    pub(super) fn overloaded(&self, kind: Kind) -> Error {
        let load = &self.shared.load;
        Error::Overloaded { depth: load.depth(), retry_after: load.retry_after(kind) }
    }

    /// Groups messages by partition, in order, and cuts what is too large for one segment.
    pub(crate) async fn parcels(
        &self,
        messages: &[Message<'_>],
        open: &[usize],
        missing: Missing<'_>,
    ) -> Result<Sorted, Error> {
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        let mut wanted: Vec<Open> = Vec::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        for &index in open {
            let message = &messages[index];
            let place = *places.entry((message.queue, message.partition)).or_insert_with(|| {
                wanted.push(Open {
                    queue: message.queue.into(),
                    partition: message.partition.into(),
                    namespace: message.namespace.map(Arc::from),
                    task: message.task.map(Arc::from),
                    create: match missing {
                        Missing::Made => (!message.accepted).then_some(true),
                        Missing::Left(_) => Some(false),
                    },
                });
                members.push(Vec::new());
                wanted.len() - 1
            });
            members[place].push(index);
        }
        let named = matches!(missing, Missing::Left(_)).then(|| wanted.clone()).unwrap_or_default();
        let known = self.open(wanted).await?;
        let mut parcels = Vec::with_capacity(known.len());
        let (mut gone, mut refused, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        for (place, (opened, members)) in known.into_iter().zip(members).enumerate() {
            let known = match (opened, &missing) {
                (Opened::Known(known), _) => {
                    self.shared.dedup().opened(known.partition.id, known.head);
                    known
                }
                (Opened::Absent, Missing::Left(queues)) => {
                    let wanted = named[place].clone();
                    let (dedup_seconds, encrypted) =
                        queues.get(&wanted.queue).copied().unwrap_or_else(|| {
                            let new = QueueOptions::default();
                            (new.dedup_window_seconds, new.encryption_enabled)
                        });
                    let (queue, name) = (wanted.queue.clone(), wanted.partition.clone());
                    let partition = Partition { id: ids::partition_id(), number: 0, queue, name };
                    let open = Open { create: Some(true), ..wanted };
                    absent.push(Absent { id: partition.id, open, dedup_seconds, encrypted });
                    Known { partition: Arc::new(partition), dedup_seconds, encrypted, head: 0 }
                }
                (Opened::Absent, Missing::Made) => {
                    gone.extend(members);
                    continue;
                }
                (Opened::Refused(refusal), _) => {
                    refused.extend(members.into_iter().map(|index| (index, refusal)));
                    continue;
                }
            };
            // Without deduplication a chosen id may stand in the log twice: only an id of its own tells whether a message was
            // stored by an earlier try.
            let promises = known.dedup_seconds == 0 && members.iter().any(|&index| messages[index].chosen);
            let mut current: (Vec<usize>, Parcel) = (Vec::new(), empty(&known));
            let bytes: usize = members.iter().map(|&index| messages[index].payload.len() + FRAME_BYTES).sum();
            current.1.frames.reserve(bytes.min(PARCEL_BYTES_MAX));
            for index in members {
                let full =
                    current.0.len() >= PARCEL_MESSAGES_MAX || current.1.frames.len() >= PARCEL_BYTES_MAX;
                if full {
                    let failure = current.1.failure.get_or_insert_default().clone();
                    let next = Parcel { failure: Some(failure), ..empty(&known) };
                    parcels.push(std::mem::replace(&mut current, (Vec::new(), next)));
                }
                let promised = messages[index].promised.or_else(|| promises.then(Uuid::now_v7));
                let message = Message { promised, ..messages[index] };
                add(&mut current.1, &message, known.encrypted, &self.shared.config)?;
                current.0.push(index);
            }
            parcels.push(current);
        }
        for (_, refusal) in &refused {
            self.shared.refused(*refusal);
        }
        Ok(Sorted { parcels, gone, refused, absent })
    }
}

fn empty(known: &Known) -> Parcel {
    Parcel {
        partition: known.partition.clone(),
        dedup_seconds: known.dedup_seconds,
        hashes: Vec::new(),
        frames: String::new(),
        bytes_max: 0,
        promised: Vec::new(),
        deferral: OnceLock::new(),
        recheck: false,
        floor: AtomicI64::new(-1),
        failure: None,
    }
}

/// `encrypted`: its queue wants that.
fn add(parcel: &mut Parcel, message: &Message<'_>, encrypted: bool, config: &Config) -> Result<(), Error> {
    let keys = &config.keys;
    match message.secrecy {
        Secrecy::Queue | Secrecy::Waiting if !encrypted => write(parcel, message, None, message.payload),
        Secrecy::Queue | Secrecy::Waiting | Secrecy::Kept => {
            match keys.seal(message.payload, message.transaction_id)? {
                Some(sealed) => write(parcel, message, Some(&sealed.key_id), &sealed.envelope),
                None if matches!(message.secrecy, Secrecy::Kept) => return Err(Error::NoKey),
                // What was accepted is kept: it waited readable until now, and has no place to wait in.
                None if config.encryption_required
                    && (!message.accepted || matches!(message.secrecy, Secrecy::Waiting)) =>
                {
                    return Err(Error::KeyRequired(message.queue.to_owned()));
                }
                None => write(parcel, message, None, message.payload),
            }
        }
        Secrecy::Done { key_id, in_doubt } => {
            let readable = || keys.open(key_id, message.payload, message.transaction_id).ok();
            match Some(readable).filter(|_| in_doubt && !encrypted).and_then(|readable| readable()) {
                Some(payload) => write(parcel, message, None, &payload),
                None => write(parcel, message, Some(key_id), message.payload),
            }
        }
    }
    Ok(())
}

fn write(parcel: &mut Parcel, message: &Message<'_>, key_id: Option<&str>, payload: &str) {
    let before = parcel.frames.len();
    if before > 0 {
        parcel.frames.push('\n');
    }
    parcel.hashes.push(TransactionHash::new(message.transaction_id, message.chosen));
    parcel.promised.extend(message.promised);
    write_frame(
        &mut parcel.frames,
        message.transaction_id,
        message.promised,
        message.trace_id,
        message.trace,
        message.producer_sub,
        key_id,
        payload,
    );
    parcel.bytes_max = parcel.bytes_max.max(parcel.frames.len() - before);
}

/// `reason`: why nothing was told.
fn result(index: usize, message: &Message<'_>, told: Option<Told>, reason: &str) -> PushResult {
    let error = told.is_none().then(|| reason.to_owned());
    let told = told.unwrap_or(Told {
        message_id: Uuid::nil(),
        partition_id: Uuid::nil(),
        status: PushStatus::Failed,
        ticket: None,
    });
    PushResult {
        index,
        message_id: told.message_id,
        transaction_id: message.transaction_id.to_owned(),
        queue_name: message.queue.to_owned(),
        status: told.status,
        partition_id: told.partition_id,
        trace_id: message.trace_id,
        error,
        ticket: told.ticket,
    }
}

impl Told {
    fn placed(partition: &Partition, placed: &Placed) -> Self {
        Self {
            message_id: placed.message_id(partition.number),
            partition_id: partition.id,
            status: if placed.duplicate { PushStatus::Duplicate } else { PushStatus::Queued },
            ticket: None,
        }
    }

    fn deferred(partition: &Partition, deferred: &Deferred, message: &Accepted) -> Self {
        let (message_id, status) = match *message {
            Accepted::Stored(placed) => return Self::placed(partition, &placed),
            Accepted::Promised { id, repeats: true } => (id, PushStatus::Duplicate),
            Accepted::Promised { id, repeats: false } => (id, PushStatus::Queued),
        };
        let ticket = Ticket::new(deferred.operation, deferred.position, deferred.reason.word());
        Self { message_id, partition_id: partition.id, status, ticket: Some(ticket) }
    }
}

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

    fn left(outcome: &Outcome) -> Option<DbError> {
        match outcome {
            Outcome::Left(error) => Some(error.clone()),
            _ => None,
        }
    }

    fn ended(&self, error: &DbError) {
        // What PostgreSQL cannot store is no reason to refuse its neighbors.
        if !error.is_data() {
            self.fail_next(error);
        }
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Outcome>, DbError> {
        store(shared, db, batch, Locked::Skip).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Outcome>, DbError> {
        store(shared, db, batch, Locked::WaitFor(patience)).await
    }
}

async fn store(
    shared: &Arc<Shared>,
    db: &Connection,
    batch: &[Parcel],
    locked: Locked,
) -> Result<Vec<Outcome>, DbError> {
    // An earlier parcel of their request may have failed while these waited.
    let failed: Vec<Option<DbError>> = batch.iter().map(Parcel::failed_before).collect();
    let parcels: Vec<&Parcel> =
        batch.iter().zip(&failed).filter(|(_, failed)| failed.is_none()).map(|(parcel, _)| parcel).collect();
    let mut published = Vec::new();
    let appended = append::append_alone(shared, db, &parcels, locked, &mut published).await;
    append::publish(shared, db, &published);
    if batch.iter().any(|parcel| parcel.recheck) {
        // What an earlier try committed was never published.
        let look_at = shared.wake.look_at(crate::clock::now());
        shared.watches.pushed(batch.iter().map(|parcel| &parcel.partition), look_at);
        batch.iter().for_each(|parcel| shared.tally.doubt(&parcel.partition.queue));
    }
    let mut outcomes = Vec::with_capacity(batch.len());
    let mut behind = Vec::new();
    let mut appended = appended?.into_iter();
    for (parcel, failed) in batch.iter().zip(failed) {
        let landed = match failed {
            Some(error) => {
                outcomes.push(Some(Outcome::Failed(error)));
                continue;
            }
            None => appended.next().unwrap_or(Ok(Landed::Gone)),
        };
        outcomes.push(match landed {
            Ok(Landed::Placed(placed)) => Some(Outcome::Placed(placed)),
            Ok(Landed::Gone) => Some(Outcome::Gone),
            Ok(Landed::Behind(placed)) => {
                behind.push((parcel, placed));
                None
            }
            Err(error) => Some(Outcome::Left(error)),
        });
    }
    let deferred = match behind.is_empty() {
        true => Vec::new(),
        false => match defer::behind(shared, db, &behind, locked).await {
            Ok(told) => told.into_iter().map(Outcome::from).collect(),
            // The others have landed.
            Err(error) => behind.iter().map(|_| Outcome::Left(error.clone())).collect(),
        },
    };
    for (outcome, (parcel, _)) in deferred.iter().zip(&behind) {
        if matches!(outcome, Outcome::Refused) {
            parcel.fail_next(&DbError::Full);
        }
    }
    let mut deferred = deferred.into_iter();
    let outcome = |settled: Option<Outcome>| settled.or_else(|| deferred.next()).unwrap_or(Outcome::Gone);
    Ok(outcomes.into_iter().map(outcome).collect())
}

impl From<Behind> for Outcome {
    fn from(behind: Behind) -> Self {
        match behind {
            Behind::Deferred(deferred) => Self::Deferred(deferred),
            Behind::Gone => Self::Gone,
            Behind::Refused => Self::Refused,
            Behind::Busy => Self::Left(DbError::Busy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_spooled_behind_a_message_of_its_partition_that_failed() {
        let message = |partition: &'static str| Message {
            queue: "q",
            partition,
            namespace: None,
            task: None,
            transaction_id: "t",
            chosen: true,
            promised: None,
            accepted: false,
            trace_id: None,
            trace: None,
            producer_sub: None,
            secrecy: Secrecy::Queue,
            payload: "1",
        };
        let messages = ["a", "b", "a", "b", "a", "c"].map(message);
        let stored = Told {
            message_id: Uuid::nil(),
            partition_id: Uuid::nil(),
            status: PushStatus::Queued,
            ticket: None,
        };
        // The second of `a` failed; of `b` the first is stored; those of `c` were never sent.
        let mut told = vec![None; 6];
        (told[0], told[1]) = (Some(stored.clone()), Some(stored));
        assert_eq!(from_their_beginning(&messages, &told, &[5, 4, 3]), [3, 5]);
        assert_eq!(from_their_beginning(&messages, &told, &[4, 3, 2, 5]), [2, 3, 4, 5]);
        assert!(from_their_beginning(&messages, &told, &[]).is_empty());
    }
}
