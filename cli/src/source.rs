//! Flags of `pop` and `consume`: what to read, and as which group.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use queen_client::{self as client, Queen, Subscription};
use serde_json::value::RawValue;

use super::times;
use queen_protocol::units::some_seconds;

#[derive(Debug, Clone, Args)]
pub struct Source {
    /// Queue to read.
    #[arg(required_unless_present_any = ["namespace", "task"])]
    pub queue: Option<String>,
    /// Only this partition.
    #[arg(long, short, requires = "queue")]
    pub partition: Option<String>,
    /// Consumer group to read as. Consumers without a group share the queue's messages.
    #[arg(long, short)]
    pub group: Option<String>,
    /// Read all queues with this namespace, instead of one queue.
    #[arg(long, conflicts_with = "queue")]
    pub namespace: Option<String>,
    /// Read all queues with this task, instead of one queue.
    #[arg(long, conflicts_with = "queue")]
    pub task: Option<String>,
    /// Maximum partitions to take from at once.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub partitions: u32,
    /// How long messages are leased; the queue's lease time by default.
    #[arg(long, value_name = "TIME", value_parser = some_seconds)]
    pub lease: Option<Duration>,
    /// Where a new group starts: `all`, `new`, a time, or how long ago (`2h`).
    #[arg(long, value_name = "START", value_parser = start, requires = "group")]
    pub from: Option<Start>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    All,
    New,
    Time(SystemTime),
}

fn start(text: &str) -> Result<Start, String> {
    match text {
        "all" => Ok(Start::All),
        "new" => Ok(Start::New),
        time => {
            times::point(time).map(Start::Time).map_err(|error| format!("not `all` or `new`, and {error}"))
        }
    }
}

impl From<Start> for Subscription {
    fn from(start: Start) -> Self {
        match start {
            Start::All => Self::All,
            Start::New => Self::New,
            Start::Time(time) => Self::From(time),
        }
    }
}

impl Source {
    /// Name of the source for messages.
    pub fn name(&self) -> String {
        match (&self.queue, &self.namespace, &self.task) {
            (Some(queue), _, _) => queue.clone(),
            (None, Some(namespace), Some(task)) => format!("{namespace}/{task}"),
            (None, label, other) => label.as_ref().or(other.as_ref()).cloned().unwrap_or_default(),
        }
    }

    pub fn pop(&self, queen: &Queen) -> client::Pop<Box<RawValue>> {
        let pop = match (&self.queue, &self.partition, &self.group) {
            (None, _, None) => self.discover(queen).pop(),
            (None, _, Some(group)) => self.discover(queen).group(group).pop(),
            (Some(queue), None, None) => queen.queue(queue).pop(),
            (Some(queue), None, Some(group)) => queen.queue(queue).group(group).pop(),
            (Some(queue), Some(partition), None) => queen.queue(queue).partition(partition).pop(),
            (Some(queue), Some(partition), Some(group)) => {
                queen.queue(queue).partition(partition).group(group).pop()
            }
        };
        let pop = pop.partitions(self.partitions);
        let pop = if let Some(lease) = self.lease { pop.lease(lease) } else { pop };
        if let Some(from) = self.from { pop.subscription(from.into()) } else { pop }
    }

    pub fn consume(&self, queen: &Queen) -> client::Consume {
        let consume = match (&self.queue, &self.partition, &self.group) {
            (None, _, None) => self.discover(queen).consume(),
            (None, _, Some(group)) => self.discover(queen).group(group).consume(),
            (Some(queue), None, None) => queen.queue(queue).consume(),
            (Some(queue), None, Some(group)) => queen.queue(queue).group(group).consume(),
            (Some(queue), Some(partition), None) => queen.queue(queue).partition(partition).consume(),
            (Some(queue), Some(partition), Some(group)) => {
                queen.queue(queue).partition(partition).group(group).consume()
            }
        };
        let consume = consume.partitions(self.partitions);
        let consume = if let Some(lease) = self.lease { consume.lease(lease) } else { consume };
        if let Some(from) = self.from { consume.subscription(from.into()) } else { consume }
    }

    fn discover(&self, queen: &Queen) -> client::Discover {
        queen.discover(self.namespace.as_deref(), self.task.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_starts_with_everything_with_what_is_new_or_at_a_time() {
        assert_eq!(start("all"), Ok(Start::All));
        assert_eq!(start("new"), Ok(Start::New));
        assert!(matches!(start("2h"), Ok(Start::Time(_))));
        assert!(start("newest").unwrap_err().contains("must be a time"));
    }
}
