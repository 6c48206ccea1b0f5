//! Deferred operations, as `/api/v1/operations` and every 202 describe them.

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

/// Operations that are expected to finish per second, for the estimate.
const EXPECTED_PER_SECOND: u64 = 100;

/// What the sender of a deferred request receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    pub operation_id: Uuid,
    /// Approximate number of open operations when it was accepted, including itself.
    pub queue_position: u64,
    /// Seconds.
    pub estimated_wait: u64,
    /// `system_busy` or `maintaining_order`.
    pub reason: &'static str,
}

impl Ticket {
    pub fn new(operation_id: Uuid, queue_position: u64, reason: &'static str) -> Self {
        let estimated_wait = queue_position.div_ceil(EXPECTED_PER_SECOND);
        Self { operation_id, queue_position, estimated_wait, reason }
    }
}

/// The body of a 202 for requests that ask for an object.
#[derive(Debug, Clone, Serialize)]
pub struct Queued {
    /// Always `queued`.
    pub status: &'static str,
    #[serde(flatten)]
    pub ticket: Ticket,
    pub operations: Vec<QueuedOperation>,
    /// An explanation for people; only for acknowledgements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedOperation {
    pub operation_id: Uuid,
    pub queue: String,
    pub partition: String,
}

/// `GET /api/v1/operations/:operationId`. The casing is the published contract.
#[derive(Debug, Serialize)]
pub struct OperationStatus {
    pub id: Uuid,
    /// `PUSH`, `ACK_BATCH` or `ACK_SINGLE`.
    pub operation_type: String,
    pub queue_name: String,
    pub partition_name: String,
    /// `pending`, `processing`, `completed`, `failed` or `cancelled`.
    pub status: String,
    pub priority: i32,
    pub created_at: Option<String>,
    pub processing_started_at: Option<String>,
    pub processed_at: Option<String>,
    pub retry_count: i32,
    pub error_message: Option<String>,
    pub latency_seconds: f64,
    /// Number of messages.
    pub messages: i32,
    /// The broker that executes or executed it.
    pub worker: Option<Uuid>,
    /// The response that the direct call would have had, once it is completed.
    pub result: Option<Box<RawValue>>,
}

/// One entry of `GET /api/v1/operations/stats`.
#[derive(Debug, Serialize)]
pub struct OperationStats {
    pub operation_type: String,
    pub priority: i32,
    pub status: String,
    pub count: i64,
    pub oldest: String,
    pub newest: String,
    pub avg_latency_seconds: f64,
}

/// The load of the broker, next to the entries.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SystemHealth {
    /// Share of connections that are busy.
    pub pool_utilization: f64,
    /// Callers that wait for a connection.
    pub pool_waiting: usize,
    /// Open operations.
    pub queue_depth: u64,
    /// Operations that currently finish per second.
    pub drain_rate: f64,
    /// Seconds since the oldest open operation was accepted.
    pub oldest_age_seconds: f64,
}
