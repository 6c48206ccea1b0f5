//! Parcels: the messages of one request, sorted by partition and written as frames, and their outcomes.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};

use queen_protocol::{PushItem, QueueOptions, Ticket, Trace};
use uuid::Uuid;

use super::defer::Deferral;
use super::open::{Open, Opened};
use crate::Engine;
use crate::config::Config;
use crate::db::Error as DbError;
use crate::db::procedures::Refusal;
use crate::directory::Known;
use crate::error::Error;
use crate::log::Partition;
use crate::log::frames::write_frame;
use crate::log::ids::{self, TransactionHash};

/// A parcel is cut here, and so is a segment, because it is read back in one piece even by a pop of one message.
const PARCEL_MESSAGES_MAX: usize = 1_000;
pub const PARCEL_BYTES_MAX: usize = 256 << 10;

/// Approximate size that an envelope adds to a payload.
const FRAME_BYTES: usize = 80;

/// Messages of one caller for one partition, in order.
#[derive(Debug)]
pub struct Parcel {
    pub partition: Arc<Partition>,
    pub dedup_seconds: i32,
    pub hashes: Vec<TransactionHash>,
    /// One line per hash.
    pub frames: String,
    pub bytes_max: usize,
    /// The ids that its messages were promised, if any: those of deferred messages, and of queues without
    /// deduplication.
    pub promised: Vec<Uuid>,
    /// Its entry in the deferred queue, once a flight has found it behind deferred pushes. Boxed, because it is rarely
    /// set and parcels are moved a lot.
    pub deferral: OnceLock<Box<Deferral>>,
    /// An earlier try may have committed.
    pub recheck: bool,
    /// The head before the first try, from where that may have landed. -1: not tried yet.
    pub floor: AtomicI64,
    /// Shared by the parcels of one request for one partition, if there are several: why an earlier one failed. Later
    /// ones fail as well, instead of overtaking it.
    pub failure: Option<Arc<OnceLock<DbError>>>,
}

/// The outcome of a parcel.
#[derive(Debug)]
pub enum Outcome {
    /// It is in the log.
    Stored(Vec<Placed>),
    /// The messages that were not in the log yet are deferred, under this ticket.
    Deferred(Ticket, Vec<Placed>),
    /// Deferred pushes of its partition are ahead of it. Nothing was appended; messages with `Some` were in the log
    /// before.
    Behind(Vec<Option<Placed>>),
    /// Deferred pushes are ahead of it, and the deferred queue is full.
    Refused,
    /// The partition no longer exists.
    Gone,
    /// It failed, and so do the parcels that follow it in its request.
    Failed(DbError),
    /// Not stored yet, although others of its flight are: it flies again.
    Left(DbError),
}

/// The outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub id: Uuid,
    /// `None` while it is deferred.
    pub offset: Option<i64>,
    /// It repeats an earlier message, which has this id and offset.
    pub duplicate: bool,
}

/// Messages, sorted by what can be done with them.
pub(crate) struct Sorted {
    /// With the positions of their messages.
    pub parcels: Vec<(Vec<usize>, Parcel)>,
    /// Their partition was deleted at the moment it was created.
    pub gone: Vec<usize>,
    /// A limit forbids creating their partition. Never messages that were accepted earlier.
    pub refused: Vec<(usize, Refusal)>,
    pub absent: Vec<Absent>,
}

/// A partition that does not exist yet.
pub(crate) struct Absent {
    /// Its parcels carry this id, and no number.
    pub id: Uuid,
    pub open: Open,
    /// What its parcels assume.
    pub dedup_seconds: i32,
    pub encrypted: bool,
}

/// What happens to partitions that do not exist.
pub(crate) enum Missing<'a> {
    Made,
    /// The caller creates them in a transaction of its own. By queue, if it differs from a new one: what the caller
    /// has learned about its deduplication and its encryption.
    Left(&'a HashMap<Arc<str>, (i32, bool)>),
}

/// One message on its way in, with everything that is decided about it.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub queue: &'a str,
    pub partition: &'a str,
    pub namespace: Option<&'a str>,
    pub task: Option<&'a str>,
    pub transaction_id: &'a str,
    /// Whether the client chose the transaction id.
    pub chosen: bool,
    /// It was accepted before it could be stored, under this id.
    pub promised: Option<Uuid>,
    /// It was accepted earlier, so no limit may refuse it now.
    pub accepted: bool,
    pub trace_id: Option<Uuid>,
    pub trace: Option<Trace<'a>>,
    pub producer_sub: Option<&'a str>,
    pub secrecy: Secrecy<'a>,
    pub payload: &'a str,
}

/// What decides whether a payload is encrypted.
#[derive(Debug, Clone, Copy)]
pub enum Secrecy<'a> {
    Queue,
    /// The queue, and while a required key is missing, the message waits where it is.
    Waiting,
    /// It was encrypted before, and must not become readable by being moved.
    Kept,
    /// It is already encrypted, with this key. `in_doubt`: only because the queue's options could not be read at the
    /// time.
    Done {
        key_id: &'a str,
        in_doubt: bool,
    },
}

impl<'a> Message<'a> {
    /// `minted`: the transaction id if the client has chosen none.
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

    /// A message that was accepted earlier, and waits outside the log.
    pub fn accepted(queue: &'a str, partition: &'a str, transaction_id: &'a str, payload: &'a str) -> Self {
        Self {
            queue,
            partition,
            namespace: None,
            task: None,
            transaction_id,
            chosen: false,
            promised: None,
            accepted: true,
            trace_id: None,
            trace: None,
            producer_sub: None,
            secrecy: Secrecy::Waiting,
            payload,
        }
    }
}

impl Parcel {
    pub fn new(partition: Arc<Partition>, dedup_seconds: i32) -> Self {
        Self {
            partition,
            dedup_seconds,
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

    /// Fails the later parcels of its request and partition.
    pub fn fail_next(&self, error: &DbError) {
        if let Some(failure) = &self.failure {
            let _ = failure.set(error.clone());
        }
    }

    /// Why an earlier parcel of its request and partition failed.
    pub fn failed_before(&self) -> Option<DbError> {
        self.failure.as_ref()?.get().cloned()
    }

    /// When a message was accepted, if that was before it could be stored: microseconds since 1970.
    pub fn accepted(&self, message: usize) -> Option<i64> {
        let (seconds, nanos) = self.promised.get(message)?.get_timestamp()?.to_unix();
        Some(seconds as i64 * 1_000_000 + i64::from(nanos) / 1_000)
    }

    /// The same parcel for another partition. Only before its first try.
    pub fn moved(&self, partition: Arc<Partition>) -> Self {
        Self {
            hashes: self.hashes.clone(),
            frames: self.frames.clone(),
            bytes_max: self.bytes_max,
            promised: self.promised.clone(),
            recheck: self.recheck,
            failure: self.failure.clone(),
            ..Self::new(partition, self.dedup_seconds)
        }
    }

    /// `encrypted`: whether its queue requires that.
    fn add(&mut self, message: &Message<'_>, encrypted: bool, config: &Config) -> Result<(), Error> {
        let keys = &config.keys;
        match message.secrecy {
            Secrecy::Queue | Secrecy::Waiting if !encrypted => self.write(message, None, message.payload),
            Secrecy::Queue | Secrecy::Waiting | Secrecy::Kept => {
                match keys.seal(message.payload, message.transaction_id)? {
                    Some(sealed) => self.write(message, Some(&sealed.key_id), &sealed.envelope),
                    None if matches!(message.secrecy, Secrecy::Kept) => return Err(Error::NoKey),
                    // An accepted message is kept: it was readable while it waited, and has no place to wait any
                    // longer.
                    None if config.encryption_required
                        && (!message.accepted || matches!(message.secrecy, Secrecy::Waiting)) =>
                    {
                        return Err(Error::KeyRequired(message.queue.to_owned()));
                    }
                    None => self.write(message, None, message.payload),
                }
            }
            Secrecy::Done { key_id, in_doubt } => {
                let readable = || keys.open(key_id, message.payload, message.transaction_id).ok();
                match Some(readable).filter(|_| in_doubt && !encrypted).and_then(|readable| readable()) {
                    Some(payload) => self.write(message, None, &payload),
                    None => self.write(message, Some(key_id), message.payload),
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, message: &Message<'_>, key_id: Option<&str>, payload: &str) {
        let before = self.frames.len();
        if before > 0 {
            self.frames.push('\n');
        }
        self.hashes.push(TransactionHash::new(message.transaction_id, message.chosen));
        self.promised.extend(message.promised);
        write_frame(
            &mut self.frames,
            message.transaction_id,
            message.promised,
            message.trace_id,
            message.trace,
            message.producer_sub,
            key_id,
            payload,
        );
        self.bytes_max = self.bytes_max.max(self.frames.len() - before);
    }
}

impl Engine {
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
        let mut sorted = Sorted {
            parcels: Vec::with_capacity(known.len()),
            gone: Vec::new(),
            refused: Vec::new(),
            absent: Vec::new(),
        };
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
                    sorted.absent.push(Absent { id: partition.id, open, dedup_seconds, encrypted });
                    Known { partition: Arc::new(partition), dedup_seconds, encrypted, head: 0 }
                }
                (Opened::Absent, Missing::Made) => {
                    sorted.gone.extend(members);
                    continue;
                }
                (Opened::Refused(refusal), _) => {
                    sorted.refused.extend(members.into_iter().map(|index| (index, refusal)));
                    continue;
                }
            };
            self.parcels_of(messages, members, &known, &mut sorted.parcels)?;
        }
        for (_, refusal) in &sorted.refused {
            self.shared.refused(*refusal);
        }
        Ok(sorted)
    }

    /// The messages of one partition as parcels, each small enough for a segment.
    fn parcels_of(
        &self,
        messages: &[Message<'_>],
        members: Vec<usize>,
        known: &Known,
        parcels: &mut Vec<(Vec<usize>, Parcel)>,
    ) -> Result<(), Error> {
        // Without deduplication a chosen id may be in the log twice: only an id of its own shows whether an earlier
        // try stored a message.
        let promises = known.dedup_seconds == 0 && members.iter().any(|&index| messages[index].chosen);
        let empty = || Parcel::new(known.partition.clone(), known.dedup_seconds);
        let mut current: (Vec<usize>, Parcel) = (Vec::new(), empty());
        let bytes: usize = members.iter().map(|&index| messages[index].payload.len() + FRAME_BYTES).sum();
        current.1.frames.reserve(bytes.min(PARCEL_BYTES_MAX));
        for index in members {
            if current.0.len() >= PARCEL_MESSAGES_MAX || current.1.frames.len() >= PARCEL_BYTES_MAX {
                let failure = current.1.failure.get_or_insert_default().clone();
                let next = Parcel { failure: Some(failure), ..empty() };
                parcels.push(std::mem::replace(&mut current, (Vec::new(), next)));
            }
            let promised = messages[index].promised.or_else(|| promises.then(Uuid::now_v7));
            let message = Message { promised, ..messages[index] };
            current.1.add(&message, known.encrypted, &self.shared.config)?;
            current.0.push(index);
        }
        parcels.push(current);
        Ok(())
    }
}
