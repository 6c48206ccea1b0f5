//! The control plane: queues, groups, messages, operations and brokers. The structs contain the most useful fields; brokers may
//! return more.

mod groups;
mod messages;
mod operations;
mod queue_options;
mod queues;
mod system;

pub use crate::traces::{TraceList, TraceName};
pub use groups::{
    GroupInPartition, GroupInQueue, GroupSummary, LaggingPartition, PartitionSought, Position, SeekForecast,
    Sought,
};
pub use messages::{Buried, MessageDetail, MessageGroup, MessageLife, Messages, Replayed, StoredMessage};
pub use operations::{Operation, OperationCount, OperationStats, Operations, SystemHealth};
pub use queue_options::QueueOptions;
pub use queues::{
    BusyPartition, Configured, Counts, Depth, DepthPartition, Partitions, QueueDetail, QueueInfo,
    QueueMessages, QueuePartition, Queues,
};
pub use system::{Doctor, Finding, Health, Maintenance, Overview};

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;

use crate::clock;
use crate::control::Control;
use crate::error::Error;
use crate::push::Pending;
use crate::queen::Queen;
use crate::wire::Query;

/// Access to the control plane.
#[derive(Debug, Clone)]
pub struct Admin {
    pub(crate) queen: Queen,
    deadline: Option<Duration>,
}

impl Admin {
    pub(crate) fn new(queen: Queen) -> Self {
        Self { queen, deadline: None }
    }

    /// Time limit of each call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    fn get<T>(&self, path: impl Into<String>) -> Get<T> {
        Get { deadline: self.deadline, ..Get::new(&self.queen, path) }
    }

    async fn ask<T: DeserializeOwned>(&self, control: Control) -> Result<T, Error> {
        control.deadline(self.deadline).send(&self.queen.shared).await
    }
}

/// A request. Await it to send it.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Get<T> {
    queen: Queen,
    query: Query,
    deadline: Option<Duration>,
    answer: PhantomData<fn() -> T>,
}

impl<T> Get<T> {
    pub(crate) fn new(queen: &Queen, path: impl Into<String>) -> Self {
        Self { queen: queen.clone(), query: Query::new(path), deadline: None, answer: PhantomData }
    }

    fn with(mut self, key: &str, value: impl AsRef<str>) -> Self {
        self.query.add(key, value);
        self
    }

    fn with_time(self, key: &str, time: SystemTime) -> Self {
        self.with(key, clock::iso(time))
    }

    /// Maximum number of entries, for lists with pages.
    pub fn limit(self, entries: u32) -> Self {
        self.with("limit", entries.to_string())
    }

    /// Number of entries to skip, for lists with pages.
    pub fn offset(self, entries: u64) -> Self {
        self.with("offset", entries.to_string())
    }

    /// Time limit of the call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for Get<T> {
    type Output = Result<T, Error>;
    type IntoFuture = Pending<T>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let asking = Control::get(self.query.into_text()).deadline(self.deadline);
            asking.send(&self.queen.shared).await
        })
    }
}
