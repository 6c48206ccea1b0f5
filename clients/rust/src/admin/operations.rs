//! Deferred operations.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, Get};
use crate::control::Control;
use crate::error::Error;
use crate::wire;

/// A page of deferred operations, oldest first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Operations {
    /// The operations of this page.
    pub operations: Vec<Operation>,
}

/// A deferred operation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Operation {
    /// Operation id.
    pub id: String,
    /// `PUSH`, `ACK_BATCH` or `ACK_SINGLE`.
    pub operation_type: String,
    /// Name of the queue.
    pub queue_name: String,
    /// Name of the partition.
    pub partition_name: String,
    /// `pending`, `processing`, `completed`, `failed` or `cancelled`.
    pub status: String,
    /// When it was accepted.
    pub created_at: Option<String>,
    /// When it was finished.
    pub processed_at: Option<String>,
    /// Number of retries.
    pub retry_count: u32,
    /// Why it failed.
    pub error_message: Option<String>,
    /// Number of messages.
    pub messages: u64,
    /// The result of the direct call, once completed.
    pub result: Option<Value>,
}

/// Counts of deferred operations.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct OperationStats {
    /// By kind and status.
    pub stats: Vec<OperationCount>,
    /// The load that decides about deferring.
    pub system_health: SystemHealth,
}

/// The number of operations of a kind and status.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OperationCount {
    /// Kind of operation.
    pub operation_type: String,
    /// Status.
    pub status: String,
    /// Number of operations.
    pub count: u64,
    /// Average duration.
    pub avg_latency_seconds: f64,
}

/// The load that decides whether operations are deferred.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct SystemHealth {
    /// Share of the connections that are busy.
    pub pool_utilization: f64,
    /// Requests waiting for a connection.
    pub pool_waiting: u64,
    /// Number of open operations.
    pub queue_depth: u64,
    /// Recently finished operations per second.
    pub drain_rate: f64,
    /// Age of the oldest open operation in seconds.
    pub oldest_age_seconds: f64,
}

impl Admin {
    /// Lists deferred operations.
    pub fn operations(&self) -> Get<Operations> {
        self.get("/api/v1/operations")
    }

    /// Gets an operation.
    pub fn operation(&self, id: &str) -> Get<Operation> {
        self.get(wire::path(&["/api/v1/operations/", id]))
    }

    /// Counts operations.
    pub fn operation_stats(&self) -> Get<OperationStats> {
        self.get("/api/v1/operations/stats")
    }

    /// Retries a failed operation, behind everything accepted since.
    pub async fn retry_operation(&self, id: &str) -> Result<(), Error> {
        let path = wire::path(&["/api/v1/operations/", id, "/retry"]);
        let _: Value = self.ask(Control::post(path, &json!({}))).await?;
        Ok(())
    }

    /// Cancels an operation that is pending or has failed.
    pub async fn cancel_operation(&self, id: &str) -> Result<(), Error> {
        let _: Value = self.ask(Control::delete(wire::path(&["/api/v1/operations/", id]))).await?;
        Ok(())
    }
}

impl Get<Operations> {
    /// Only in this state.
    pub fn status(self, word: &str) -> Self {
        self.with("status", word)
    }

    /// Only of this queue.
    pub fn queue(self, name: &str) -> Self {
        self.with("queue", name)
    }

    /// Accepted at least this long ago.
    pub fn older_than_seconds(self, seconds: u64) -> Self {
        self.with("olderThanSeconds", seconds.to_string())
    }
}
