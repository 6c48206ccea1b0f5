//! Queues and partitions.

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
    /// Id of the queue.
    pub queue_id: String,
    /// Name of the queue.
    pub queue: String,
    /// All options in force.
    pub options: QueueOptions,
}

/// A page of queues, newest first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Queues {
    /// The queues of this page.
    pub queues: Vec<QueueInfo>,
}

/// A queue in a list.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct QueueInfo {
    /// Id of the queue.
    pub id: String,
    /// Name of the queue.
    pub name: String,
    /// Namespace label.
    pub namespace: String,
    /// Task label.
    pub task: String,
    /// When it was created.
    pub created_at: String,
    /// Number of partitions.
    pub partitions: u64,
    /// Number of messages.
    pub messages: QueueMessages,
    /// Bytes stored. Always 0: brokers do not count bytes per queue.
    pub retained_bytes: u64,
}

/// Messages of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct QueueMessages {
    /// All stored messages.
    pub total: u64,
    /// Unread messages.
    pub pending: u64,
    /// Leased messages.
    pub processing: u64,
}

/// Messages by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Counts {
    /// All stored messages.
    pub total: u64,
    /// Unread messages.
    pub pending: u64,
    /// Leased messages.
    pub processing: u64,
    /// Read messages.
    pub completed: u64,
    /// Always 0: a message whose delivery failed is pending again.
    pub failed: u64,
    /// Dead letters.
    pub dead_letter: u64,
}

/// A queue with a page of its partitions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct QueueDetail {
    /// Id of the queue.
    pub id: String,
    /// Name of the queue.
    pub name: String,
    /// Namespace label.
    pub namespace: String,
    /// Task label.
    pub task: String,
    /// When it was created.
    pub created_at: String,
    /// The partitions of this page.
    pub partitions: Vec<QueuePartition>,
    /// Number of partitions.
    pub partition_count: u64,
    /// Totals over all partitions.
    pub totals: Counts,
}

/// A partition of a queue.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct QueuePartition {
    /// Id of the partition.
    pub id: String,
    /// Name of the partition.
    pub name: String,
    /// Its messages.
    pub stats: Counts,
    /// When its oldest message was pushed.
    pub oldest_message: Option<String>,
    /// When its newest message was pushed.
    pub newest_message: Option<String>,
}

/// A group's backlog in a queue.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Depth {
    /// Name of the queue.
    pub queue: String,
    /// The group.
    pub group: String,
    /// Unread messages, including leased ones.
    pub pending: u64,
    /// Number of partitions with unread messages.
    pub partitions_pending: u64,
    /// The partitions with the most unread messages.
    pub partitions: Vec<DepthPartition>,
}

/// A group's backlog in one partition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DepthPartition {
    /// Name of the partition.
    pub partition: String,
    /// Unread messages.
    pub pending: u64,
}

/// A page of partitions, most unread messages first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Partitions {
    /// The partitions of this page.
    pub partitions: Vec<BusyPartition>,
}

/// A partition in a list over all queues.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct BusyPartition {
    /// Id of the partition.
    pub id: String,
    /// Name of the queue.
    pub queue: String,
    /// Name of the partition.
    pub partition: String,
    /// Unread messages.
    pub pending: u64,
    /// Leased messages.
    pub processing: u64,
    /// Age of the oldest unread message.
    pub lag_seconds: Option<f64>,
}

impl Admin {
    /// Lists queues.
    pub fn queues(&self) -> Get<Queues> {
        self.get("/api/v1/resources/queues")
    }

    /// Gets a queue and its partitions.
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

    /// Deletes a queue with everything in it. Returns whether it existed.
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

    /// Deletes the messages of a queue, or of one of its partitions, and keeps the queue. Returns their number.
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

    /// Gets a group's backlog. Cheap enough to poll frequently.
    pub fn depth(&self, queue: &str, group: &str) -> Get<Depth> {
        self.get(wire::path(&["/api/v1/resources/queues/", queue, "/depth"])).with("group", group)
    }

    /// Lists the busiest partitions.
    pub fn partitions(&self) -> Get<Partitions> {
        self.get("/api/v1/resources/partitions")
    }
}

impl Get<Queues> {
    /// Only with this namespace.
    pub fn namespace(self, namespace: &str) -> Self {
        self.with("namespace", namespace)
    }

    /// Only with this task.
    pub fn task(self, task: &str) -> Self {
        self.with("task", task)
    }

    /// Only with this text in the name.
    pub fn search(self, text: &str) -> Self {
        self.with("search", text)
    }
}

impl Get<QueueDetail> {
    /// Only partitions after this name, for paging.
    pub fn after(self, partition: &str) -> Self {
        self.with("after", partition)
    }
}

impl Get<Partitions> {
    /// Only of this queue.
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
