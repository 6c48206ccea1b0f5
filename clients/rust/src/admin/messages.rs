//! Single messages: looking at them, deleting, burying and replaying them.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, Get};
use crate::control::Control;
use crate::error::Error;
use crate::wire;

/// Messages, the newest first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Messages {
    /// This page.
    pub messages: Vec<StoredMessage>,
    /// All that match.
    pub total: u64,
}

/// A message as it is stored.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct StoredMessage {
    /// The broker's id.
    pub id: String,
    /// The producer's.
    pub transaction_id: String,
    /// The broker's id of its partition.
    pub partition_id: String,
    /// Its queue.
    pub queue: String,
    /// Its lane.
    pub partition: String,
    /// `pending`, `processing`, `completed`, …
    pub status: String,
    /// The UUID its producer sent with it.
    pub trace_id: Option<String>,
    /// When it was pushed.
    pub created_at: String,
    /// When the lease on it ends.
    pub lease_expires_at: Option<String>,
    /// The payload.
    pub data: Value,
}

/// A message, and who has read it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct MessageDetail {
    /// The message.
    #[serde(flatten)]
    pub message: StoredMessage,
    /// Why it failed last.
    pub error_message: Option<String>,
    /// How often it failed.
    pub retry_count: u32,
    /// Who reads its partition.
    pub consumer_groups: Vec<MessageGroup>,
}

/// A group that reads the partition of a message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct MessageGroup {
    /// Its name.
    pub name: String,
    /// Whether it has read the message.
    pub consumed: bool,
    /// When its lease on the message ends.
    pub lease_expires_at: Option<String>,
}

/// What happened to a message. The parts are as the broker tells them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MessageLife {
    /// How it came.
    pub push: Value,
    /// What every group has made of it.
    pub groups: Vec<Value>,
    /// What was recorded, if it is traced.
    pub events: Vec<Value>,
}

/// A dead letter that was pushed again.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Replayed {
    /// Its queue.
    pub queue: String,
    /// Its lane.
    pub partition: String,
    /// The result of the push.
    pub replayed_as: Value,
}

/// A message that was made a dead letter by hand.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Buried {
    /// The broker's id.
    pub message_id: String,
    /// For whom.
    pub consumer_group: String,
    /// When.
    pub failed_at: String,
}

fn path(partition_id: &str, transaction_id: &str, rest: &'static str) -> String {
    wire::path(&["/api/v1/messages/", partition_id, "/", transaction_id, rest])
}

impl Admin {
    /// Lists messages; of the last hour, if no time is named.
    pub fn messages(&self) -> Get<Messages> {
        self.get("/api/v1/messages")
    }

    /// One message.
    pub fn message(&self, partition_id: &str, transaction_id: &str) -> Get<MessageDetail> {
        self.get(path(partition_id, transaction_id, ""))
    }

    /// What happened to it.
    pub fn life(&self, partition_id: &str, transaction_id: &str) -> Get<MessageLife> {
        self.get(path(partition_id, transaction_id, "/life"))
    }

    /// Never delivers it again, to nobody.
    pub async fn delete_message(&self, partition_id: &str, transaction_id: &str) -> Result<(), Error> {
        let _: Value = self.ask(Control::delete(path(partition_id, transaction_id, "")).once()).await?;
        Ok(())
    }

    /// Makes it a dead letter of a group that has not read it.
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

    /// Pushes a dead letter again, under a new transaction id.
    pub async fn replay_message(&self, partition_id: &str, transaction_id: &str) -> Result<Replayed, Error> {
        self.ask(Control::post(path(partition_id, transaction_id, "/retry"), &json!({})).once()).await
    }
}

impl Get<Messages> {
    /// Of this queue.
    pub fn queue(self, name: &str) -> Self {
        self.with("queue", name)
    }

    /// Of this partition.
    pub fn partition(self, name: &str) -> Self {
        self.with("partition", name)
    }

    /// In this state.
    pub fn status(self, word: &str) -> Self {
        self.with("status", word)
    }

    /// Pushed after this time.
    pub fn from(self, time: SystemTime) -> Self {
        self.with_time("from", time)
    }

    /// Pushed before this time.
    pub fn to(self, time: SystemTime) -> Self {
        self.with_time("to", time)
    }
}
