//! Options of a buffer, and its start.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::lane::{self, Lane, Work};
use super::{Buffer, Inner, State};
use crate::error::Error;
use crate::on_error::OnError;
use crate::queen::Queen;
use crate::tasks;
use crate::wire;

/// What to do with a message for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Let its push wait.
    #[default]
    Wait,
    /// Refuse it, with [`ErrorKind::BufferFull`](crate::ErrorKind::BufferFull).
    Reject,
}

/// Options of a [`Buffer`].
#[derive(Clone)]
#[must_use = "nothing is buffered before start()"]
pub struct BufferBuilder {
    queen: Queen,
    queue: Arc<str>,
    partition: Option<Arc<str>>,
    limits: Limits,
    lanes: usize,
    when_full: WhenFull,
    on_error: OnError,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub messages: usize,
    pub bytes: usize,
    pub linger: Duration,
    pub batch_messages: usize,
    pub batch_bytes: usize,
}

impl BufferBuilder {
    pub(crate) fn new(queen: Queen, queue: Arc<str>, partition: Option<Arc<str>>) -> Self {
        let limits = Limits {
            messages: 10_000,
            bytes: 16 << 20,
            linger: Duration::from_millis(10),
            batch_messages: 1_000,
            batch_bytes: 4 << 20,
        };
        let (when_full, on_error) = (WhenFull::Wait, OnError::default());
        Self { queen, queue, partition, limits, lanes: 4, when_full, on_error }
    }

    /// How long a message may wait for others, 10 ms.
    pub fn linger(mut self, time: Duration) -> Self {
        self.limits.linger = time;
        self
    }

    /// The most messages in it, 10,000.
    pub fn max_messages(mut self, messages: usize) -> Self {
        self.limits.messages = messages;
        self
    }

    /// The most bytes in it, 16 MiB. A larger message fills it alone.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.limits.bytes = bytes;
        self
    }

    /// The most messages of one request, 1,000.
    pub fn batch_messages(mut self, messages: usize) -> Self {
        self.limits.batch_messages = messages;
        self
    }

    /// The most bytes of one request, 4 MiB. A larger message travels alone.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.limits.batch_bytes = bytes;
        self
    }

    /// How many requests may be under way, 4. Those of a partition are always one behind the other.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// What to do when it is full: wait.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Hears of messages that could not be delivered while nobody was waiting at their receipts. The error carries them.
    /// Without it they are logged with `tracing`.
    pub fn on_error(mut self, hear: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_error = OnError::new(hear);
        self
    }

    /// Starts its lanes in the background, on this tokio runtime.
    pub fn start(self) -> Result<Buffer, Error> {
        wire::check_name("the name of a queue", &self.queue)?;
        let limits = self.limits;
        if [limits.messages, limits.bytes, limits.batch_messages, limits.batch_bytes, self.lanes].contains(&0)
        {
            return Err(Error::bad_use("limits of a buffer must be at least 1"));
        }
        self.queen.shared.check_not_closed()?;
        let bytes = u32::try_from(limits.bytes.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let state = Arc::new(State {
            queen: self.queen,
            queue: self.queue,
            partition: self.partition,
            limits,
            messages: Semaphore::new(limits.messages.min(Semaphore::MAX_PERMITS)),
            bytes: Semaphore::new(bytes as usize),
            bytes_max: bytes,
            lanes: (0..self.lanes).map(|_| Lane::default()).collect(),
            undelivered: Mutex::default(),
            on_error: self.on_error,
        });
        for number in 0..self.lanes {
            tasks::spawn(lane::run(Work::new(state.clone(), number)));
        }
        Ok(Buffer { inner: Arc::new(Inner { state, when_full: self.when_full }) })
    }
}

impl fmt::Debug for BufferBuilder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BufferBuilder")
            .field("queue", &self.queue)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
