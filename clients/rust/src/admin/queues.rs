//! Queues and their partitions.

use serde::{Deserialize, Serialize};

use super::{Admin, Get, QueueOptions};
use crate::control::Control;
use crate::error::Error;
use crate::wire::{self, Query};

/// A queue that was configured.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Configured {
    /// The broker's id of the queue.
    pub queue_id: String,
    /// Its name.
    pub queue: String,
    /// All its options, as they are now.
    pub options: QueueOptions,
}

/// Queues, the newest first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Queues {
    /// This page.
    pub queues: Vec<QueueInfo>,
}

/// A queue in a list.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct QueueInfo {
    /// The broker's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// A label.
    pub namespace: String,
    /// A label.
    pub task: String,
    /// When it came into being.
    pub created_at: String,
    /// How many partitions it has.
    pub partitions: u64,
    /// How many messages it has.
    pub messages: QueueMessages,
    /// How many bytes it keeps.
    pub retained_bytes: u64,
}

/// Messages of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct QueueMessages {
    /// All that are stored.
    pub total: u64,
    /// Not read yet.
    pub pending: u64,
    /// Leased.
    pub processing: u64,
}

/// Messages by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Counts {
    /// All that are stored.
    pub total: u64,
    /// Not read yet.
    pub pending: u64,
    /// Leased.
    pub processing: u64,
    /// Read.
    pub completed: u64,
    /// Failed, and to be delivered again.
    pub failed: u64,
    /// Given up.
    pub dead_letter: u64,
}

/// A queue with a page of its partitions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct QueueDetail {
    /// The broker's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// A label.
    pub namespace: String,
    /// A label.
    pub task: String,
    /// When it came into being.
    pub created_at: String,
    /// This page of its partitions.
    pub partitions: Vec<QueuePartition>,
    /// How many there are.
    pub partition_count: u64,
    /// Over all partitions.
    pub totals: Counts,
}

/// A partition of a queue.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct QueuePartition {
    /// The broker's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its messages.
    pub stats: Counts,
    /// When its oldest message was pushed.
    pub oldest_message: Option<String>,
    /// When its newest message was pushed.
    pub newest_message: Option<String>,
}

/// What a group has still to read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Depth {
    /// Its queue.
    pub queue: String,
    /// Who reads.
    pub group: String,
    /// Messages, with those under a lease.
    pub pending: u64,
    /// In how many partitions.
    pub partitions_pending: u64,
    /// The partitions with most of them.
    pub partitions: Vec<DepthPartition>,
}

/// What a group has still to read in one partition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DepthPartition {
    /// Its name.
    pub partition: String,
    /// Messages.
    pub pending: u64,
}

/// Partitions, those with the most unread messages first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Partitions {
    /// This page.
    pub partitions: Vec<BusyPartition>,
}

/// A partition in a list over all queues.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct BusyPartition {
    /// The broker's id.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// Its name.
    pub partition: String,
    /// Not read yet.
    pub pending: u64,
    /// Leased.
    pub processing: u64,
    /// Age of the oldest unread message.
    pub lag_seconds: Option<f64>,
}

impl Admin {
    /// Lists queues.
    pub fn queues(&self) -> Get<Queues> {
        self.get("/api/v1/resources/queues")
    }

    /// A queue and its partitions.
    pub fn queue(&self, name: &str) -> Get<QueueDetail> {
        self.get(wire::path(&["/api/v1/resources/queues/", name]))
    }

    /// Creates a queue, or changes its options.
    pub async fn configure(&self, queue: &str, options: &QueueOptions) -> Result<Configured, Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            queue: &'a str,
            options: &'a QueueOptions,
        }
        wire::check_name("the name of a queue", queue)?;
        self.ask(Control::post("/api/v1/configure", &Body { queue, options })).await
    }

    /// Deletes a queue with all it holds. Whether there was one.
    pub async fn delete_queue(&self, name: &str) -> Result<bool, Error> {
        #[derive(Deserialize)]
        struct Deleted {
            existed: bool,
        }
        wire::check_name("the name of a queue", name)?;
        let path = wire::path(&["/api/v1/resources/queues/", name]);
        let deleted: Deleted = self.ask(Control::delete(path).once()).await?;
        Ok(deleted.existed)
    }

    /// Removes the messages of a queue, or of one of its partitions, and keeps the queue. How many there were.
    pub async fn clear_queue(&self, name: &str, partition: Option<&str>) -> Result<u64, Error> {
        #[derive(Deserialize)]
        struct Cleared {
            deleted: u64,
        }
        wire::check_name("the name of a queue", name)?;
        let mut query = Query::new(wire::path(&["/api/v1/queues/", name, "/clear"]));
        query.add_some("partition", partition);
        let cleared: Cleared = self.ask(Control::delete(query.into_text()).once()).await?;
        Ok(cleared.deleted)
    }

    /// What a group has still to read. Made to be asked often.
    pub fn depth(&self, queue: &str, group: &str) -> Get<Depth> {
        self.get(wire::path(&["/api/v1/resources/queues/", queue, "/depth"])).with("group", group)
    }

    /// Lists the busiest partitions.
    pub fn partitions(&self) -> Get<Partitions> {
        self.get("/api/v1/resources/partitions")
    }
}

impl Get<Queues> {
    /// With this label.
    pub fn namespace(self, namespace: &str) -> Self {
        self.with("namespace", namespace)
    }

    /// With this label.
    pub fn task(self, task: &str) -> Self {
        self.with("task", task)
    }

    /// With this text in the name.
    pub fn search(self, text: &str) -> Self {
        self.with("search", text)
    }
}

impl Get<QueueDetail> {
    /// Only partitions behind this name.
    pub fn after(self, partition: &str) -> Self {
        self.with("after", partition)
    }
}

impl Get<Partitions> {
    /// Of this queue.
    pub fn queue(self, name: &str) -> Self {
        self.with("queue", name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    #[test]
    fn options_that_are_not_named_are_not_sent_and_others_can_be() {
        let other = Map::from_iter([("futureOption".to_owned(), json!(7))]);
        let options = QueueOptions { lease_time: Some(5), other, ..QueueOptions::default() };
        let written = serde_json::to_value(&options).unwrap();
        assert_eq!(written, json!({"leaseTime": 5, "futureOption": 7}));
        assert_eq!(serde_json::from_value::<QueueOptions>(written).unwrap(), options);
    }
}
