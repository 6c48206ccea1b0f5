//! Options of a buffer.

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

/// What to do when the buffer has no room for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The push waits.
    #[default]
    Wait,
    /// The push fails with [`ErrorKind::BufferFull`](crate::ErrorKind::BufferFull).
    Reject,
}

/// Options of a [`Buffer`].
#[derive(Clone)]
#[must_use = "nothing is buffered until start()"]
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

    /// How long a message may wait for others to share its request. Default 10 ms.
    pub fn linger(mut self, time: Duration) -> Self {
        self.limits.linger = time;
        self
    }

    /// Maximum number of messages in the buffer. Default 10,000.
    pub fn max_messages(mut self, messages: usize) -> Self {
        self.limits.messages = messages;
        self
    }

    /// Maximum bytes in the buffer. Default 16 MiB. A larger message is accepted when the buffer is empty.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.limits.bytes = bytes;
        self
    }

    /// Maximum messages per request. Default 1,000.
    pub fn batch_messages(mut self, messages: usize) -> Self {
        self.limits.batch_messages = messages;
        self
    }

    /// Maximum bytes per request. Default 4 MiB. A larger message is sent alone.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.limits.batch_bytes = bytes;
        self
    }

    /// Maximum concurrent requests. Default 4. Requests for the same partition are always sequential.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// What to do when the buffer is full. By default, pushes wait.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Called for messages that could not be delivered while no receipt was waiting for them. The error contains the messages.
    /// By default they are logged with `tracing`.
    pub fn on_error(mut self, hear: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_error = OnError::new(hear);
        self
    }

    /// Starts sending in the background, on the current tokio runtime.
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
