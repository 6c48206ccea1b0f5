//! Single messages: inspect, delete, dead-letter and replay them.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, Get};
use crate::control::Control;
use crate::error::Error;
use crate::wire;

/// A page of messages, newest first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Messages {
    /// The messages of this page.
    pub messages: Vec<StoredMessage>,
    /// Number of messages on this page.
    pub total: u64,
}

/// A stored message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct StoredMessage {
    /// Message id, assigned by the broker.
    pub id: String,
    /// Transaction id, chosen by the producer.
    pub transaction_id: String,
    /// Id of the partition.
    pub partition_id: String,
    /// Name of the queue.
    pub queue: String,
    /// Name of the partition.
    pub partition: String,
    /// `pending`, `processing`, `completed`, …
    pub status: String,
    /// The trace id that its producer set.
    pub trace_id: Option<String>,
    /// When it was pushed.
    pub created_at: String,
    /// When its lease ends.
    pub lease_expires_at: Option<String>,
    /// The payload.
    pub data: Value,
}

/// A message with its state in each group.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct MessageDetail {
    /// The message.
    #[serde(flatten)]
    pub message: StoredMessage,
    /// The most recent failure.
    pub error_message: Option<String>,
    /// Number of failures.
    pub retry_count: u32,
    /// The groups that read its partition.
    pub consumer_groups: Vec<MessageGroup>,
}

/// A group that reads the message's partition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct MessageGroup {
    /// Name of the group.
    pub name: String,
    /// Whether it has read the message.
    pub consumed: bool,
    /// When its lease on the message ends.
    pub lease_expires_at: Option<String>,
}

/// The history of a message, in the broker's format.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MessageLife {
    /// The push.
    pub push: Value,
    /// The state in each group.
    pub groups: Vec<Value>,
    /// The recorded events, if the message is traced.
    pub events: Vec<Value>,
}

/// The result of replaying a dead letter.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Replayed {
    /// Name of the queue.
    pub queue: String,
    /// Name of the partition.
    pub partition: String,
    /// The result of the push.
    pub replayed_as: Value,
}

/// The result of dead-lettering a message by hand.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Buried {
    /// Message id.
    pub message_id: String,
    /// The consumer group.
    pub consumer_group: String,
    /// Time of the dead letter.
    pub failed_at: String,
}

fn path(partition_id: &str, transaction_id: &str, rest: &'static str) -> String {
    wire::path(&["/api/v1/messages/", partition_id, "/", transaction_id, rest])
}

impl Admin {
    /// Lists messages; by default those of the last hour.
    pub fn messages(&self) -> Get<Messages> {
        self.get("/api/v1/messages")
    }

    /// Gets one message.
    pub fn message(&self, partition_id: &str, transaction_id: &str) -> Get<MessageDetail> {
        self.get(path(partition_id, transaction_id, ""))
    }

    /// Gets the history of a message.
    pub fn life(&self, partition_id: &str, transaction_id: &str) -> Get<MessageLife> {
        self.get(path(partition_id, transaction_id, "/life"))
    }

    /// Deletes a message, so that it is not delivered to any group.
    pub async fn delete_message(&self, partition_id: &str, transaction_id: &str) -> Result<(), Error> {
        let _: Value = self.ask(Control::delete(path(partition_id, transaction_id, "")).once()).await?;
        Ok(())
    }

    /// Dead-letters a message for a group that has not read it.
    pub async fn bury_message(
        &self,
        partition_id: &str,
        transaction_id: &str,
        group: &str,
        error: &str,
    ) -> Result<Buried, Error> {
        wire::check_name("the name of a consumer group", group)?;
        let body = json!({"consumerGroup": group, "error": error});
        self.ask(Control::post(path(partition_id, transaction_id, "/dlq"), &body)).await
    }

    /// Pushes a dead letter again, with a new transaction id.
    pub async fn replay_message(&self, partition_id: &str, transaction_id: &str) -> Result<Replayed, Error> {
        self.ask(Control::post(path(partition_id, transaction_id, "/retry"), &json!({})).once()).await
    }
}

impl Get<Messages> {
    /// Only of this queue.
    pub fn queue(self, name: &str) -> Self {
        self.with("queue", name)
    }

    /// Only of this partition.
    pub fn partition(self, name: &str) -> Self {
        self.with("partition", name)
    }

    /// Only in this state.
    pub fn status(self, word: &str) -> Self {
        self.with("status", word)
    }

    /// Only pushed after this time.
    pub fn from(self, time: SystemTime) -> Self {
        self.with_time("from", time)
    }

    /// Only pushed before this time.
    pub fn to(self, time: SystemTime) -> Self {
        self.with_time("to", time)
    }
}
