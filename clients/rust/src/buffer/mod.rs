//! A buffer in front of a queue: combines many small pushes into few requests, and reports every message that it loses.

mod batch;
mod builder;
mod lane;
mod undelivered;

pub(crate) use builder::Limits;
pub use builder::{BufferBuilder, WhenFull};
pub use undelivered::Undelivered;

use std::cell::RefCell;
use std::fmt;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use crate::brokers::{Route, key};
use crate::error::{Error, ErrorKind};
use crate::item::{DEFAULT_PARTITION, Place, Pushable};
use crate::log;
use crate::on_error::OnError;
use crate::push::{self, Pending, PushStatus, Pushed};
use crate::queen::Queen;

use batch::{Fate, Fates, Outcome, Sealed};
use lane::Lane;
use undelivered::List;

/// A buffer in front of a queue or partition. Cheap to clone. [`close`](Self::close) it: after the last clone is dropped, it
/// still delivers its contents, but only `on_error` learns of failures, and messages are lost if the program ends first.
#[derive(Clone)]
#[must_use = "a buffer must be closed"]
pub struct Buffer {
    inner: Arc<Inner>,
}

struct Inner {
    state: Arc<State>,
    when_full: WhenFull,
}

impl Buffer {
    /// A partition of the buffer's queue: `buffer.partition("customer-7").push(&order).await?`.
    pub fn partition<'a>(&'a self, name: &'a str) -> BufferPartition<'a> {
        BufferPartition { buffer: self, name }
    }

    /// Returns once the message is in the buffer, with a receipt for its result.
    ///
    /// # Cancel safety
    /// If dropped while it waits for room, the message is not in the buffer.
    pub async fn push(&self, message: impl Pushable) -> Result<Receipt, Error> {
        let added = self.inner.add(message, self.inner.state.partition());
        self.inner.finish(added).await
    }

    /// Waits for the results of all messages currently in the buffer. Fails if messages could not be delivered since the last call
    /// while no receipt was waiting for them; the error contains them.
    pub async fn flush(&self) -> Result<(), Error> {
        self.inner.state.flush().await
    }

    /// Accepts no further messages, and flushes. May be called again.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.state.close();
        self.flush().await
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Buffer").field("queue", &self.inner.state.queue).finish_non_exhaustive()
    }
}

/// A partition behind a buffer.
#[derive(Debug)]
pub struct BufferPartition<'a> {
    buffer: &'a Buffer,
    name: &'a str,
}

impl BufferPartition<'_> {
    /// Like [`Buffer::push`], for this partition.
    pub async fn push(&self, message: impl Pushable) -> Result<Receipt, Error> {
        let added = self.buffer.inner.add(message, self.name);
        self.buffer.inner.finish(added).await
    }
}

thread_local! {
    /// Scratch space: a message is serialized here before it is known whether there is room for it.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The result of the first attempt to add a message.
enum Added {
    Done(Result<Receipt, Error>),
    /// There is no room for it now.
    Full {
        message: Vec<u8>,
        lane: usize,
    },
}

impl Inner {
    /// Adds a message without waiting, which saves a copy of it.
    fn add(&self, message: impl Pushable, partition: &str) -> Added {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            let place = Place { queue: &self.state.queue, partition };
            let partition = message.own_partition().unwrap_or(partition);
            let lane = key(&[&self.state.queue, partition]) as usize % self.state.lanes.len();
            if let Err(error) = message.write(scratch, place) {
                return Added::Done(Err(error));
            }
            match self.state.try_room(scratch.len()) {
                true => Added::Done(self.state.put(scratch, lane)),
                false => Added::Full { message: scratch.clone(), lane },
            }
        })
    }

    async fn finish(&self, added: Added) -> Result<Receipt, Error> {
        let (message, lane) = match added {
            Added::Done(done) => return done,
            Added::Full { message, lane } => (message, lane),
        };
        // Without room for more, the current messages must not linger.
        self.state.lanes.iter().for_each(|lane| _ = lane.hurry());
        if self.state.messages.is_closed() {
            return Err(closed());
        }
        if self.when_full == WhenFull::Reject {
            return Err(Error::new(ErrorKind::BufferFull, "the buffer is full"));
        }
        self.state.room(message.len()).await?;
        self.state.put(&message, lane)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.state.close();
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the buffer is closed")
}

/// State shared by lanes, handles and receipts.
pub(crate) struct State {
    pub queen: Queen,
    queue: Arc<str>,
    partition: Option<Arc<str>>,
    pub limits: Limits,
    /// Permits for messages and for bytes, returned with the results.
    messages: Semaphore,
    bytes: Semaphore,
    bytes_max: u32,
    pub lanes: Vec<Lane>,
    undelivered: Mutex<List>,
    on_error: OnError,
}

impl State {
    fn partition(&self) -> &str {
        self.partition.as_deref().unwrap_or(DEFAULT_PARTITION)
    }

    /// The key of a lane: its partitions stay with one broker.
    pub fn route(&self, lane: usize) -> Route {
        match &self.partition {
            Some(partition) => Route::lane(&self.queue, partition),
            None => Route::Key(key(&[&self.queue, "lane", &lane.to_string()])),
        }
    }

    /// A message larger than the whole buffer takes all of it.
    fn clamped(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max)
    }

    fn try_room(&self, bytes: usize) -> bool {
        let Ok(message) = self.messages.try_acquire() else { return false };
        let Ok(memory) = self.bytes.try_acquire_many(self.clamped(bytes)) else { return false };
        message.forget();
        memory.forget();
        true
    }

    async fn room(&self, bytes: usize) -> Result<(), Error> {
        let message = self.messages.acquire().await.map_err(|_| closed())?;
        let memory = self.bytes.acquire_many(self.clamped(bytes)).await.map_err(|_| closed())?;
        message.forget();
        memory.forget();
        Ok(())
    }

    fn leave(&self, messages: usize, bytes: usize) {
        self.messages.add_permits(messages);
        self.bytes.add_permits(bytes);
    }

    /// There is room for the message.
    fn put(self: &Arc<Self>, message: &[u8], lane: usize) -> Result<Receipt, Error> {
        let room = self.clamped(message.len()) as usize;
        let added =
            self.check().and_then(|()| self.lanes[lane].add(message, room, &self.limits).ok_or_else(closed));
        match added {
            Ok((outcome, index)) => Ok(Receipt { outcome, index, state: self.clone() }),
            Err(refused) => {
                self.leave(1, room);
                Err(refused)
            }
        }
    }

    /// Whether a message may be added. Undelivered messages are kept for the next flush, so their number must be limited.
    fn check(&self) -> Result<(), Error> {
        self.queen.shared.check_open()?;
        match self.list().is_over(self.limits.messages, self.limits.bytes) {
            false => Ok(()),
            true => {
                Err(Error::new(ErrorKind::BufferFull, "too many undelivered messages; flush() returns them"))
            }
        }
    }

    fn close(&self) {
        // Fails pushes that wait for room.
        self.messages.close();
        self.bytes.close();
        self.lanes.iter().for_each(Lane::close);
    }

    async fn flush(&self) -> Result<(), Error> {
        let targets: Vec<u64> = self.lanes.iter().map(Lane::hurry).collect();
        for (lane, target) in self.lanes.iter().zip(targets) {
            lane.settled(target).await;
        }
        let undelivered = self.list().take();
        let Some(first) = undelivered.first() else { return Ok(()) };
        let text = format!("{} messages could not be delivered: {}", undelivered.len(), first.error.text());
        let error = Error::new(first.error.kind(), text).with_attempts(first.error.attempts());
        Err(error.with_undelivered(undelivered))
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.undelivered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The results of a part of a batch.
    pub fn read(
        &self,
        batch: &Sealed,
        from: usize,
        to: usize,
        sent: Result<Vec<Pushed>, Error>,
        results: &mut Vec<Fate>,
    ) {
        let error = match sent {
            Ok(pushed) => return results.extend(pushed.into_iter().map(Ok)),
            Err(error) => error,
        };
        for index in from..to {
            results.push(match error.results().get(index - from) {
                Some(pushed) if pushed.status != PushStatus::Failed => Ok(pushed.clone()),
                Some(pushed) => {
                    let refused = push::refusal(error.kind(), pushed, error.attempts());
                    Err(batch.undelivered(index, refused))
                }
                None => Err(batch.undelivered(index, error.clone())),
            });
        }
    }

    /// All results of a batch: frees its room and wakes its receipts. A failure without a waiting receipt goes to `on_error` and the
    /// next flush.
    pub fn settle(&self, batch: &Sealed, results: Fates) {
        let mut orphans = Vec::new();
        batch.outcome().settle(results, |index, undelivered| {
            self.list().add(batch.outcome(), index, undelivered.clone());
            orphans.push(undelivered.clone());
        });
        self.leave(batch.len(), batch.room);
        for undelivered in orphans {
            self.tell(&undelivered);
        }
    }

    fn tell(&self, undelivered: &Undelivered) {
        let error = undelivered.to_error();
        self.on_error.tell(&error, || log::not_delivered(&self.queue, &error));
    }

    /// Fails a batch that will not be sent anymore.
    pub fn abandon(&self, batch: &Sealed) {
        let error = Error::new(ErrorKind::Closed, "the runtime of the buffer has ended");
        let results = (0..batch.len()).map(|index| Err(batch.undelivered(index, error.clone())));
        self.settle(batch, Fates::Told(results.collect()));
    }
}

/// The pending result of a message in a buffer. Await it, or drop it and rely on [`Buffer::flush`].
pub struct Receipt {
    outcome: Arc<Outcome>,
    index: usize,
    state: Arc<State>,
}

impl Receipt {
    /// Waits for the result.
    ///
    /// # Cancel safety
    /// If dropped, failures are reported by `on_error` and the next [`Buffer::flush`].
    pub async fn result(self) -> Result<Pushed, Error> {
        let mut watch = Watch { receipt: &self, waits: true };
        let fate = self.outcome.result(self.index).await;
        watch.waits = false;
        fate?.map_err(|undelivered| {
            // It may have failed before this call. It is reported here, and so not again by a flush.
            self.state.list().remove(&self.outcome, self.index);
            undelivered.to_error()
        })
    }
}

/// A receipt that is being awaited.
struct Watch<'a> {
    receipt: &'a Receipt,
    waits: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let Receipt { outcome, index, state } = self.receipt;
        if self.waits
            && let Some(undelivered) = outcome.leave(*index)
        {
            state.list().add(outcome, *index, undelivered.clone());
            state.tell(&undelivered);
        }
    }
}

impl IntoFuture for Receipt {
    type Output = Result<Pushed, Error>;
    type IntoFuture = Pending<Pushed>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.result())
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Receipt").finish_non_exhaustive()
    }
}
