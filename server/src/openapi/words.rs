//! Schemas of the requests and responses of the message plane. The types that are read and written are in `protocol`, which does
//! not know OpenAPI; tests compare real responses with these.

#![expect(dead_code, reason = "described, never built")]

use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

pub use super::options::QueueOptions;

#[derive(ToSchema)]
#[schema(example = json!({"items": [
    {"queue": "orders", "partition": "customer-42", "payload": {"total": 10}, "transactionId": "order-1001"},
    {"queue": "orders", "partition": "customer-42", "payload": {"total": 20}, "transactionId": "order-1002"},
]}))]
pub struct Push {
    #[schema(max_items = 50_000)]
    items: Vec<PushItem>,
}

/// One message.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct PushItem {
    /// Created by its first message if it does not exist.
    #[schema(max_length = 255)]
    queue: String,
    /// The unit of ordering inside the queue; absent or empty means `Default`.
    #[schema(max_length = 255, default = "Default")]
    partition: Option<String>,
    /// Any JSON; absent means `{}`.
    payload: Option<Value>,
    /// Used if there is no `payload`.
    data: Option<Value>,
    /// Makes the push safe to retry: within the queue's deduplication window, a partition stores it once.
    /// If absent, the broker generates one.
    #[schema(min_length = 1, max_length = 255)]
    transaction_id: Option<String>,
    /// Passed on to the consumer; dropped if it is not a UUID.
    trace_id: Option<String>,
    /// W3C trace context, passed on to the consumer. Takes precedence over that of the request; dropped if it is
    /// invalid.
    #[schema(example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: Option<String>,
    /// Belongs to `traceparent`; ignored without it.
    tracestate: Option<String>,
    /// Label of a queue made by this push.
    #[schema(max_length = 255)]
    namespace: Option<String>,
    /// Label of a queue made by this push.
    #[schema(max_length = 255)]
    task: Option<String>,
}

/// Result of one item, in the order of the request.
#[derive(ToSchema)]
#[schema(example = json!({
    "index": 0, "message_id": "01a1dee1-7461-7000-8000-000000000001", "transaction_id": "order-1001",
    "queueName": "orders", "status": "queued", "partition_id": "01a1dee1-745d-7538-917b-da0024957600",
    "trace_id": null,
}))]
pub struct PushResult {
    /// Position in the request.
    index: usize,
    /// For a duplicate, the id of the message that was stored first.
    message_id: Uuid,
    transaction_id: String,
    #[schema(rename = "queueName")]
    queue_name: String,
    status: PushStatus,
    partition_id: Uuid,
    #[schema(required)]
    trace_id: Option<Uuid>,
    /// Only if `status` is `failed`.
    #[schema(nullable = false)]
    error: Option<String>,
    /// Only if the item was deferred.
    #[schema(nullable = false, rename = "operationId")]
    operation_id: Option<Uuid>,
    /// Approximate number of open operations.
    #[schema(nullable = false, rename = "queuePosition")]
    queue_position: Option<u64>,
    /// Seconds.
    #[schema(nullable = false, rename = "estimatedWait")]
    estimated_wait: Option<u64>,
    /// `system_busy`, or `maintaining_order` if it waits for operations that were deferred earlier for its partition.
    #[schema(nullable = false)]
    reason: Option<String>,
}

/// An array of results, or, on request, one object.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[serde(untagged)]
pub enum PushAccepted {
    Array(Vec<PushResult>),
    Object(Queued),
}

/// An array of results, or, on request, one object.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[serde(untagged)]
pub enum AckAccepted {
    Array(Vec<AckResult>),
    Object(Queued),
}

/// A deferred request.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "status": "queued", "operationId": "01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01", "queuePosition": 12, "estimatedWait": 1,
    "reason": "system_busy", "operations": [
        {"operationId": "01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01", "queue": "orders", "partition": "customer-42"}],
}))]
pub struct Queued {
    status: String,
    operation_id: Uuid,
    queue_position: u64,
    estimated_wait: u64,
    reason: String,
    /// One for each partition of the request.
    operations: Vec<QueuedOperation>,
    /// Explanation for people; only for acknowledgements.
    #[schema(nullable = false)]
    note: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct QueuedOperation {
    operation_id: Uuid,
    queue: String,
    partition: String,
}

#[derive(ToSchema)]
pub struct DeferredOperation {
    id: Uuid,
    /// `PUSH`, `ACK_BATCH` or `ACK_SINGLE`.
    operation_type: String,
    queue_name: String,
    partition_name: String,
    /// `pending`, `processing`, `completed`, `failed` or `cancelled`.
    status: String,
    /// Lower values go first.
    priority: i32,
    #[schema(required, format = DateTime)]
    created_at: Option<String>,
    #[schema(required, format = DateTime)]
    processing_started_at: Option<String>,
    #[schema(required, format = DateTime)]
    processed_at: Option<String>,
    retry_count: i32,
    #[schema(required)]
    error_message: Option<String>,
    latency_seconds: f64,
    /// Number of messages.
    messages: i32,
    /// The broker that executes or executed it.
    #[schema(required)]
    worker: Option<Uuid>,
    /// The response that the direct call would have had, once it is completed.
    #[schema(required)]
    result: Option<Value>,
}

#[derive(ToSchema)]
pub struct OperationStats {
    operation_type: String,
    priority: i32,
    status: String,
    count: i64,
    #[schema(format = DateTime)]
    oldest: String,
    #[schema(format = DateTime)]
    newest: String,
    avg_latency_seconds: f64,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct SystemHealth {
    /// Share of connections that are busy.
    pool_utilization: f64,
    /// Callers waiting for a connection.
    pool_waiting: usize,
    /// Open operations.
    queue_depth: u64,
    /// Operations that currently finish per second.
    drain_rate: f64,
    oldest_age_seconds: f64,
}

/// `queued`: stored or deferred. `duplicate`: stored earlier. `failed`: not stored; other items are not affected.
/// `buffered`: in the broker's spool until the database is reachable.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum PushStatus {
    Queued,
    Duplicate,
    Failed,
    Buffered,
}

/// Messages grouped by partition, in order within each, all under one lease. The fields beside `messages`
/// describe the first partition.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "success": true, "queue": "orders", "partition": "customer-42",
    "partitionId": "01a1dee1-745d-7538-917b-da0024957600",
    "leaseId": "01a1dee1-78c9-74f5-9e39-2841dd1669f0.1", "leaseSeconds": 300, "consumerGroup": "shipping",
    "partitionsClaimed": 1,
    "messages": [{
        "id": "01a1dee1-7461-7000-8000-000000000001", "transactionId": "order-1001", "traceId": null,
        "data": {"total": 10}, "producerSub": null, "createdAt": "2026-11-15T11:04:39.777277Z",
        "partitionId": "01a1dee1-745d-7538-917b-da0024957600", "partition": "customer-42", "queue": "orders",
        "leaseId": "01a1dee1-78c9-74f5-9e39-2841dd1669f0.1", "consumerGroup": "shipping", "retryCount": 0,
    }],
}))]
pub struct Popped {
    success: bool,
    queue: String,
    partition: String,
    partition_id: Uuid,
    /// Opaque. Empty with `autoAck`.
    lease_id: String,
    /// Length of the lease: the shortest of all claimed partitions. 0 with `autoAck`.
    lease_seconds: u32,
    consumer_group: String,
    partitions_claimed: usize,
    messages: Vec<Message>,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct Message {
    /// Ids of a partition sort in delivery order.
    id: Uuid,
    transaction_id: String,
    /// Only for a redriven message: the transaction id that its producer sent.
    #[schema(nullable = false)]
    original_transaction_id: Option<String>,
    #[schema(required)]
    trace_id: Option<Uuid>,
    /// Only if there is one.
    #[schema(nullable = false)]
    traceparent: Option<String>,
    /// Only if there is one.
    #[schema(nullable = false)]
    tracestate: Option<String>,
    /// The payload that was pushed.
    data: Value,
    #[schema(required)]
    producer_sub: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    partition_id: Uuid,
    partition: String,
    queue: String,
    lease_id: String,
    consumer_group: String,
    /// How often the message has failed in this group. 0 for all but the first message of a partition.
    retry_count: i32,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "transactionId": "order-1002", "partitionId": "01a1dee1-745d-7538-917b-da0024957600",
    "leaseId": "01a1dee1-7491-7579-b829-c9b1758f133e.1.2", "status": "completed", "consumerGroup": "billing",
}))]
pub struct Ack {
    /// Without `messageId`, the first message with this id in the lease.
    #[schema(max_length = 255)]
    transaction_id: String,
    /// The `id` of the message. Selects one of several messages with the same `transactionId`; refused if the two do not match.
    message_id: Option<Uuid>,
    partition_id: Uuid,
    /// If absent or empty, no lease is checked. With access control on, it is required while the partition is leased.
    lease_id: Option<String>,
    /// `completed` (also `success`, `acked`, `ok`), `failed`, `retry` or `dlq`. Any other word means `failed`.
    #[schema(default = "completed")]
    status: Option<String>,
    /// Absent or empty means queue mode, the group of consumers that name none.
    #[schema(max_length = 255)]
    consumer_group: Option<String>,
    /// Error for the dead letter: text, or any JSON, which is stored as text.
    error: Option<Value>,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "consumerGroup": "billing",
    "acknowledgments": [{
        "transactionId": "01a1dee1-745d-7538-917b-d9ffb02ffaee",
        "partitionId": "01a1dee1-745d-7538-917b-da0156ed4800",
        "leaseId": "01a1dee1-7491-7579-b829-c9b1758f133e.1.2", "status": "dlq", "error": "no such customer",
    }],
}))]
pub struct AckBatch {
    #[schema(max_items = 50_000)]
    acknowledgments: Vec<Ack>,
    /// Applies to all acknowledgements. If absent, each one has its own.
    #[schema(max_length = 255)]
    consumer_group: Option<String>,
}

/// Result of one acknowledgement, in the order of the request.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "index": 0, "transactionId": "order-1002", "success": true, "error": null, "queueName": "orders",
    "partitionName": "customer-42", "leaseReleased": true, "dlq": false, "noop": false,
}))]
pub struct AckResult {
    index: usize,
    transaction_id: String,
    success: bool,
    /// The reason, if not successful.
    #[schema(required)]
    error: Option<String>,
    #[schema(required)]
    queue_name: Option<String>,
    #[schema(required)]
    partition_name: Option<String>,
    /// This call ended the lease on the partition.
    lease_released: bool,
    /// The message became a dead letter.
    dlq: bool,
    /// The message had already been completed.
    noop: bool,
    /// Only if the acknowledgement was deferred.
    #[schema(nullable = false)]
    operation_id: Option<Uuid>,
    /// Approximate number of open operations.
    #[schema(nullable = false)]
    queue_position: Option<u64>,
    /// Seconds.
    #[schema(nullable = false)]
    estimated_wait: Option<u64>,
    /// `system_busy`, or `maintaining_order` if it waits for operations that were deferred earlier for its cursor.
    #[schema(nullable = false)]
    reason: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "operations": [
        {"type": "push", "items": [{"queue": "parcels", "partition": "customer-42",
            "payload": {"order": 1001}, "transactionId": "parcel-1001"}]},
        {"type": "ack", "transactionId": "order-1001", "partitionId": "01a1dee1-745d-7538-917b-da0024957600",
            "consumerGroup": "shipping", "leaseId": "01a1dee1-78c9-74f5-9e39-2841dd1669f0.1"},
    ],
    "requiredLeases": ["01a1dee1-78c9-74f5-9e39-2841dd1669f0.1"],
}))]
pub struct Transaction {
    #[schema(min_items = 1)]
    operations: Vec<Operation>,
    /// Leases that must still be live when the transaction commits.
    required_leases: Option<Vec<String>>,
}

/// Several messages, one message, or one acknowledgement.
#[derive(ToSchema)]
#[serde(tag = "type")]
pub enum Operation {
    #[serde(rename = "push")]
    Items { items: Vec<PushItem> },
    #[serde(rename = "push")]
    Item(PushItem),
    #[serde(rename = "ack")]
    Ack(Ack),
}

/// Either all operations took effect, or none.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "transactionId": "01a1dee1-79e8-7504-bf7b-8520468e395c", "success": true, "results": [
        {"type": "push", "index": 0, "success": true, "transactionId": "parcel-1001",
            "messageId": "01a1dee1-79f0-7000-8000-000000000003",
            "partitionId": "01a1dee1-79e8-7504-bf7b-85217e533b00", "queueName": "parcels"},
        {"type": "ack", "index": 1, "success": true, "transactionId": "order-1001", "error": null, "dlq": false},
    ],
}))]
pub struct TransactionOutcome {
    transaction_id: Uuid,
    success: bool,
    /// The reason, if not successful.
    #[schema(nullable = false)]
    error: Option<String>,
    /// One result per message and per acknowledgement, in order; empty if not successful.
    results: Vec<TransactionResult>,
}

#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum TransactionResult {
    #[serde(rename_all = "camelCase")]
    Push {
        index: usize,
        success: bool,
        transaction_id: String,
        message_id: Uuid,
        partition_id: Uuid,
        queue_name: String,
        /// Only if the message had already been stored.
        #[schema(nullable = false)]
        duplicate: Option<bool>,
    },
    #[serde(rename_all = "camelCase")]
    Ack {
        index: usize,
        success: bool,
        transaction_id: String,
        #[schema(required)]
        error: Option<String>,
        dlq: bool,
    },
}

#[derive(ToSchema)]
#[schema(example = json!({"seconds": 120}))]
pub struct Renew {
    /// New length of the lease, from now. A lease is never shortened.
    #[schema(minimum = 1, maximum = 86_400, default = 60)]
    seconds: Option<i64>,
}

/// Three fields hold the same time, because existing clients read different ones.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "leaseId": "01a1dee1-7491-7579-b829-c9b1758f133e.1.2", "success": true, "renewed": 2,
    "newExpiresAt": "2026-11-15T11:06:40.757342Z", "expiresAt": "2026-11-15T11:06:40.757342Z",
    "lease_expires_at": "2026-11-15T11:06:40.757342Z", "error": null,
}))]
pub struct Renewed {
    lease_id: String,
    /// False if the lease had already ended.
    success: bool,
    /// Number of partitions whose lease was extended.
    renewed: usize,
    #[schema(required, format = DateTime)]
    new_expires_at: Option<String>,
    #[schema(required, format = DateTime)]
    expires_at: Option<String>,
    #[schema(required, format = DateTime, rename = "lease_expires_at")]
    lease_expires_at: Option<String>,
    #[schema(required)]
    error: Option<String>,
}

#[derive(ToSchema)]
#[schema(example = json!({"queue": "orders", "options": {"leaseTime": 60, "retryLimit": 3}}))]
pub struct Configure {
    #[schema(max_length = 255)]
    queue: String,
    /// May also stand among the options. By default what stands before the first dot of a new queue's name.
    #[schema(max_length = 255)]
    namespace: Option<String>,
    /// May also stand among the options. By default what stands behind the first dot of a new queue's
    /// name, up to the next.
    #[schema(max_length = 255)]
    task: Option<String>,
    /// `replace` starts from the defaults instead of from what is stored.
    mode: Option<String>,
    /// What is absent stays, what is null returns to its default.
    options: Option<QueueOptions>,
}
