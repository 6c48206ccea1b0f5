//! Handles: a queue, a partition, a group, or queues by label. They hold names and send nothing; verbs do.

use std::sync::Arc;

use crate::buffer::BufferBuilder;
use crate::consume::Consume;
use crate::dead_letters::DeadLetters;
use crate::item::Pushable;
use crate::pop::Pop;
use crate::push::{Push, PushAll};
use crate::queen::Queen;
use crate::want::Source;

/// A queue.
#[derive(Debug, Clone)]
pub struct Queue {
    queen: Queen,
    name: Arc<str>,
}

impl Queue {
    pub(crate) fn new(queen: Queen, name: String) -> Self {
        Self { queen, name: name.into() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A partition of the queue.
    pub fn partition(&self, name: impl Into<String>) -> Partition {
        Partition { queen: self.queen.clone(), queue: self.name.clone(), name: name.into().into() }
    }

    /// A consumer group that reads the queue.
    pub fn group(&self, name: impl Into<String>) -> Group {
        Group { queen: self.queen.clone(), queue: self.name.clone(), partition: None, name: name.into() }
    }

    /// Pushes a message to the partition `Default`: `orders.push(&order).await?`.
    pub fn push(&self, message: impl Pushable) -> Push {
        Push::new(self.queen.clone(), self.name.clone(), None, message.into_item())
    }

    /// Pushes many messages in one request: `orders.push_all(&batch).await?`. Each may name its partition.
    pub fn push_all(&self, messages: impl IntoIterator<Item = impl Pushable>) -> PushAll {
        PushAll::new(self.queen.clone(), self.name.clone(), None, messages)
    }

    /// A buffer for many small pushes.
    pub fn buffer(&self) -> BufferBuilder {
        BufferBuilder::new(self.queen.clone(), self.name.clone(), None)
    }

    fn source(&self) -> Source {
        Source::Queue { queue: self.name.clone(), partition: None }
    }

    /// Pops messages of any partition, in queue mode.
    pub fn pop<T>(&self) -> Pop<T> {
        Pop::new(self.queen.clone(), self.source(), None)
    }

    /// Consumes messages continuously, in queue mode.
    pub fn consume(&self) -> Consume {
        Consume::new(self.queen.clone(), self.source(), None)
    }

    /// Its dead letters.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.queen.clone(), &self.name, None, None)
    }
}

/// A partition of a queue.
#[derive(Debug, Clone)]
pub struct Partition {
    queen: Queen,
    queue: Arc<str>,
    name: Arc<str>,
}

impl Partition {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A consumer group that reads this partition.
    pub fn group(&self, name: impl Into<String>) -> Group {
        let partition = Some(self.name.clone());
        Group { queen: self.queen.clone(), queue: self.queue.clone(), partition, name: name.into() }
    }

    /// Pushes a message: `orders.partition("customer-7").push(&order).await?`.
    pub fn push(&self, message: impl Pushable) -> Push {
        Push::new(self.queen.clone(), self.queue.clone(), Some(self.name.clone()), message.into_item())
    }

    /// Pushes many messages, in this order.
    pub fn push_all(&self, messages: impl IntoIterator<Item = impl Pushable>) -> PushAll {
        PushAll::new(self.queen.clone(), self.queue.clone(), Some(&*self.name), messages)
    }

    /// A buffer for many small pushes.
    pub fn buffer(&self) -> BufferBuilder {
        BufferBuilder::new(self.queen.clone(), self.queue.clone(), Some(self.name.clone()))
    }

    fn source(&self) -> Source {
        Source::Queue { queue: self.queue.clone(), partition: Some(self.name.clone()) }
    }

    /// Pops messages of this partition, in queue mode.
    pub fn pop<T>(&self) -> Pop<T> {
        Pop::new(self.queen.clone(), self.source(), None)
    }

    /// Consumes messages of this partition continuously, in queue mode.
    pub fn consume(&self) -> Consume {
        Consume::new(self.queen.clone(), self.source(), None)
    }

    /// Its dead letters.
    pub fn dead_letters(&self) -> DeadLetters {
        DeadLetters::new(self.queen.clone(), &self.queue, Some(self.name.to_string()), None)
    }
}

/// A consumer group on a queue, or on one of its partitions.
#[derive(Debug, Clone)]
pub struct Group {
    queen: Queen,
    queue: Arc<str>,
    partition: Option<Arc<str>>,
    name: String,
}

impl Group {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn source(&self) -> Source {
        Source::Queue { queue: self.queue.clone(), partition: self.partition.clone() }
    }

    /// Pops messages that the group has not read yet.
    pub fn pop<T>(&self) -> Pop<T> {
        Pop::new(self.queen.clone(), self.source(), Some(self.name.clone()))
    }

    /// Consumes messages continuously.
    pub fn consume(&self) -> Consume {
        Consume::new(self.queen.clone(), self.source(), Some(self.name.clone()))
    }

    /// The group's dead letters.
    pub fn dead_letters(&self) -> DeadLetters {
        let partition = self.partition.as_deref().map(str::to_owned);
        DeadLetters::new(self.queen.clone(), &self.queue, partition, Some(self.name.clone()))
    }
}

/// All queues with a label, including ones created later.
#[derive(Debug, Clone)]
pub struct Discover {
    queen: Queen,
    source: Source,
    group: Option<String>,
}

impl Discover {
    pub(crate) fn new(queen: Queen, namespace: Option<String>, task: Option<String>) -> Self {
        Self { queen, source: Source::Labels { namespace, task }, group: None }
    }

    /// A consumer group that reads them.
    pub fn group(&self, name: impl Into<String>) -> Self {
        Self { group: Some(name.into()), ..self.clone() }
    }

    /// Pops messages of any of them.
    pub fn pop<T>(&self) -> Pop<T> {
        Pop::new(self.queen.clone(), self.source.clone(), self.group.clone())
    }

    /// Consumes messages of any of them continuously.
    pub fn consume(&self) -> Consume {
        Consume::new(self.queen.clone(), self.source.clone(), self.group.clone())
    }
}
