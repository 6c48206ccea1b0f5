//! Options of a queue. Written by protocol/tests/options.rs from the table in protocol/src/options.rs.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Options of a queue. What is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueOptions {
    /// How long a lease lasts if the pop does not set a time; 0 means 60 seconds. Default: 300 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_time: Option<u32>,
    /// How many times a failed message is delivered again before it becomes a dead letter. Default: 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_limit: Option<u32>,
    /// Deliver a message only when it is this old. Default: 0 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed_processing: Option<u32>,
    /// Hold a partition back until it has a full batch or its oldest waiting message is this old. A pop
    /// with `batch=1` always waits for the age. Default: 0 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_buffer: Option<u32>,
    /// The order in which a pop by label tries queues, highest first. It can be negative. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Keep dead letters. They are dropped only if `dlqAfterMaxRetries` is false as well. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_queue: Option<bool>,
    /// Keep dead letters. They are dropped only if `deadLetterQueue` is false as well. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlq_after_max_retries: Option<bool>,
    /// Enable `retentionSeconds` and `completedRetentionSeconds`. While this is false they have no effect,
    /// and messages are kept forever unless `maxWaitTimeSeconds` removes them. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_enabled: Option<bool>,
    /// Remove messages older than this, read or not; 0 keeps them. Default: 0 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_seconds: Option<u32>,
    /// Remove messages older than this once every group that reads the partition has passed them; 0 keeps
    /// them. Default: 0 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_retention_seconds: Option<u32>,
    /// Remove messages that at least one group has not read by this age, also without `retentionEnabled`; 0
    /// keeps them. Default: 0 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_time_seconds: Option<u32>,
    /// How long a `transactionId` is remembered; 0 turns deduplication off. Default: 3600 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_window_seconds: Option<u32>,
    /// Store payloads pushed from now on encrypted, if the broker has a key. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption_enabled: Option<bool>,
    /// No effect: a failed message is available again at once. Default: 1000 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<u32>,
    /// No effect: the retention options remove old messages. Default: 3600 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u32>,
    /// No effect: queues have no size limit. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u64>,
    /// No effect: a pop waits as long as it asks to. Numbers out of range become 0 or 60000. Default: 0 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_pop_wait_time: Option<u32>,
    /// A label, for a pop by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// A label, for a pop by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Any other option, by the broker's name for it.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}
