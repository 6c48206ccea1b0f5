//! Operations that brokers have deferred.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, Get};
use crate::control::Control;
use crate::error::Error;
use crate::wire;

/// Deferred operations, the oldest first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Operations {
    /// This page.
    pub operations: Vec<Operation>,
}

/// A deferred operation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Operation {
    /// Its id.
    pub id: String,
    /// `PUSH`, `ACK_BATCH` or `ACK_SINGLE`.
    pub operation_type: String,
    /// The queue it is about.
    pub queue_name: String,
    /// The partition it is about.
    pub partition_name: String,
    /// `pending`, `processing`, `completed`, `failed` or `cancelled`.
    pub status: String,
    /// When it was accepted.
    pub created_at: Option<String>,
    /// When it was done.
    pub processed_at: Option<String>,
    /// How often it was tried again.
    pub retry_count: u32,
    /// Why it failed.
    pub error_message: Option<String>,
    /// How many messages it is about.
    pub messages: u64,
    /// What the direct call would have answered, once it is done.
    pub result: Option<Value>,
}

/// Deferred operations in numbers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct OperationStats {
    /// By kind and status.
    pub stats: Vec<OperationCount>,
    /// How the broker is.
    pub system_health: SystemHealth,
}

/// How many operations of a kind are in a state.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OperationCount {
    /// The kind.
    pub operation_type: String,
    /// The state.
    pub status: String,
    /// How many.
    pub count: u64,
    /// How long they took.
    pub avg_latency_seconds: f64,
}

/// What decides whether operations are deferred.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct SystemHealth {
    /// Busy connections by all.
    pub pool_utilization: f64,
    /// Callers that wait for one.
    pub pool_waiting: u64,
    /// Open operations.
    pub queue_depth: u64,
    /// Operations that were finished in a second, of late.
    pub drain_rate: f64,
    /// Seconds since the oldest open one was accepted.
    pub oldest_age_seconds: f64,
}

impl Admin {
    /// Lists deferred operations.
    pub fn operations(&self) -> Get<Operations> {
        self.get("/api/v1/operations")
    }

    /// What became of one.
    pub fn operation(&self, id: &str) -> Get<Operation> {
        self.get(wire::path(&["/api/v1/operations/", id]))
    }

    /// Counts them.
    pub fn operation_stats(&self) -> Get<OperationStats> {
        self.get("/api/v1/operations/stats")
    }

    /// Tries a failed one again, behind all that was accepted since.
    pub async fn retry_operation(&self, id: &str) -> Result<(), Error> {
        let path = wire::path(&["/api/v1/operations/", id, "/retry"]);
        let _: Value = self.ask(Control::post(path, &json!({}))).await?;
        Ok(())
    }

    /// Takes back one that nobody works on yet, or gives up one that has failed.
    pub async fn cancel_operation(&self, id: &str) -> Result<(), Error> {
        let _: Value = self.ask(Control::delete(wire::path(&["/api/v1/operations/", id]))).await?;
        Ok(())
    }
}

impl Get<Operations> {
    /// In this state.
    pub fn status(self, word: &str) -> Self {
        self.with("status", word)
    }

    /// About this queue.
    pub fn queue(self, name: &str) -> Self {
        self.with("queue", name)
    }

    /// Accepted at least so long ago.
    pub fn older_than_seconds(self, seconds: u64) -> Self {
        self.with("olderThanSeconds", seconds.to_string())
    }
}
