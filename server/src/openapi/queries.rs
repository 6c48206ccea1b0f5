//! Query parameters, as they are documented. `http/request.rs` reads them.

#![expect(dead_code, reason = "described, never built")]

use utoipa::IntoParams;
use uuid::Uuid;

/// W3C trace context of all messages of the request that have none of their own.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct TraceHeaders {
    /// Ignored if it is invalid.
    #[param(example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: Option<String>,
    tracestate: Option<String>,
}

/// An invalid value counts as absent.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct OperationsQuery {
    /// `pending`, `processing`, `completed`, `failed` or `cancelled`.
    status: Option<String>,
    #[param(max_length = 255)]
    queue: Option<String>,
    /// Only operations that were accepted longer ago than this.
    older_than_seconds: Option<u32>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    #[param(default = 0)]
    offset: Option<u32>,
}

/// An invalid value counts as absent.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct PopQuery {
    /// The consumer group. Consumers that name none share one cursor.
    #[param(max_length = 255, example = "billing")]
    consumer_group: Option<String>,
    /// Maximum number of messages, over all partitions; a value out of range becomes the nearest bound. If absent, the
    /// broker's `DEFAULT_BATCH_SIZE` applies.
    #[param(minimum = 1, maximum = 10_000)]
    batch: Option<u32>,
    /// Maximum number of partitions to claim. Ignored if the path names one.
    #[param(minimum = 1, maximum = 100, default = 1)]
    partitions: Option<u32>,
    /// Wait for a message if there is none.
    #[param(default = false)]
    wait: Option<bool>,
    /// How long to wait, in milliseconds; at most ten minutes. If absent, the broker's `DEFAULT_TIMEOUT` applies.
    #[param(maximum = 600_000)]
    timeout: Option<u64>,
    /// Commit at delivery: no lease, no acknowledgement, at-most-once delivery.
    #[param(default = false)]
    auto_ack: Option<bool>,
    /// Length of the lease in seconds; 0 uses the queue's `leaseTime`.
    #[param(maximum = 86_400, default = 0)]
    lease_seconds: Option<u32>,
    /// Where a new group starts: `new` skips stored messages; any other word starts at the oldest
    /// message.
    #[param(example = "new")]
    subscription_mode: Option<String>,
    /// Where a new group starts, by time: `now`, or an ISO 8601 time. Takes precedence over `subscriptionMode`.
    #[param(example = "2026-01-01T00:00:00Z")]
    subscription_from: Option<String>,
    /// Use a batch of 100 if there is no `batch`.
    #[param(default = false)]
    autopilot: Option<bool>,
    /// Id under which the wait can be ended. Refused if it is not a UUID, or if another pop that waits at this broker has it.
    wait_id: Option<Uuid>,
    /// Leave out the fields of a message that have the same value as in the previous message: partition, queue, lease, group and
    /// retries. The first message of each partition has them. `traceId` and `producerSub` are left out if they are null.
    #[param(default = false)]
    brief: Option<bool>,
}

/// Labels of queues; at least one of the two.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LabelQuery {
    #[param(max_length = 255, example = "parcels")]
    namespace: Option<String>,
    #[param(max_length = 255)]
    task: Option<String>,
}

/// An empty filter matches everything.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct DeadLetterQuery {
    queue: Option<String>,
    partition: Option<String>,
    consumer_group: Option<String>,
    /// Part of the error text; case does not matter.
    error: Option<String>,
    /// Shape of the error, as `/api/v1/dlq/shapes` returns it. An empty shape matches dead letters without an error.
    #[param(max_length = 255)]
    shape: Option<String>,
    /// Failed at this time or later.
    #[param(format = DateTime)]
    from: Option<String>,
    /// Failed at this time or earlier.
    #[param(format = DateTime)]
    to: Option<String>,
    #[param(minimum = 1, maximum = 1_000, default = 100)]
    limit: Option<i64>,
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

/// An empty filter matches everything.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct ShapesQuery {
    queue: Option<String>,
    partition: Option<String>,
    consumer_group: Option<String>,
    /// Part of the error text; case does not matter.
    error: Option<String>,
    /// Failed at this time or later.
    #[param(format = DateTime)]
    from: Option<String>,
    /// Failed at this time or earlier.
    #[param(format = DateTime)]
    to: Option<String>,
    /// Maximum number of shapes.
    #[param(minimum = 1, maximum = 1_000, default = 100)]
    limit: Option<i64>,
}

/// Which dead letters of a queue. An empty filter matches everything.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct PurgeQuery {
    queue: String,
    partition: Option<String>,
    consumer_group: Option<String>,
    /// Part of the error text; case does not matter.
    error: Option<String>,
    /// Shape of the error, as `/api/v1/dlq/shapes` returns it. An empty shape matches dead letters without an error.
    #[param(max_length = 255)]
    shape: Option<String>,
    /// Failed at this time or later.
    #[param(format = DateTime)]
    from: Option<String>,
    /// Failed at this time or earlier. Later failures than the start of the purge never match.
    #[param(format = DateTime)]
    to: Option<String>,
}

#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct DeleteGroupQuery {
    /// Also delete the registration, which holds where the group starts.
    #[param(default = true)]
    delete_metadata: Option<bool>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct GroupsQuery {
    /// Absent: all queues.
    queue: Option<String>,
    #[param(minimum = 1, maximum = 10_000, default = 1000)]
    limit: Option<i64>,
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct LaggingQuery {
    #[param(minimum = 0, default = 3600)]
    min_lag_seconds: Option<i64>,
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct GroupQuery {
    /// Absent: all queues that the group reads, up to 100.
    queue: Option<String>,
    /// Part of the partition's name; case does not matter. Only with `queue`.
    search: Option<String>,
    /// Maximum number of partitions per queue, those with the most unread messages first.
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
    /// Only with `queue`.
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct QueuesQuery {
    namespace: Option<String>,
    task: Option<String>,
    /// Part of the name; case does not matter.
    search: Option<String>,
    #[param(minimum = 1, maximum = 10_000, default = 1000)]
    limit: Option<i64>,
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
    /// The last name of the previous page; cheaper than an offset.
    after: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DepthQuery {
    /// Absent: queue mode.
    group: Option<String>,
    /// Maximum number of partitions.
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct BusyQuery {
    /// Absent: the notable partitions of all queues, as of the last measurement.
    queue: Option<String>,
    /// Part of the partition's name; case does not matter.
    search: Option<String>,
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ClearQuery {
    /// Absent: all partitions.
    partition: Option<String>,
}

/// An empty filter matches everything.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct MessagesQuery {
    queue: Option<String>,
    partition: Option<String>,
    /// Namespace of the queue; `namespace` is another name for this parameter.
    ns: Option<String>,
    task: Option<String>,
    /// `pending`, `processing`, `completed` or `dead_letter`.
    status: Option<String>,
    /// Pushed at this time or later. If absent: the last hour, or the hour before `to`.
    #[param(format = DateTime)]
    from: Option<String>,
    /// Pushed in this minute or earlier.
    #[param(format = DateTime)]
    to: Option<String>,
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct LimitQuery {
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<i64>,
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

/// Times are ISO 8601; a longer range is cut to 400 days.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct HistoryQuery {
    /// If neither `from` nor `to` is given: the last hour.
    #[param(format = DateTime)]
    from: Option<String>,
    #[param(format = DateTime)]
    to: Option<String>,
    #[param(max_length = 255)]
    queue: Option<String>,
    #[param(max_length = 255)]
    namespace: Option<String>,
    #[param(max_length = 255)]
    task: Option<String>,
    hostname: Option<String>,
    /// `host:port` of a broker.
    worker_id: Option<String>,
}

/// Times are ISO 8601; a longer range is cut to 400 days.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct BrokerHistoryQuery {
    /// If neither `from` nor `to` is given: the last hour.
    #[param(format = DateTime)]
    from: Option<String>,
    #[param(format = DateTime)]
    to: Option<String>,
    hostname: Option<String>,
    /// `host:port` of a broker.
    worker_id: Option<String>,
}

/// Times are ISO 8601; a longer range is cut to 400 days.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct QueueHistoryQuery {
    /// If neither `from` nor `to` is given: the last hour.
    #[param(format = DateTime)]
    from: Option<String>,
    #[param(format = DateTime)]
    to: Option<String>,
    #[param(max_length = 255)]
    queue: Option<String>,
    #[param(max_length = 255)]
    namespace: Option<String>,
    #[param(max_length = 255)]
    task: Option<String>,
}

/// Times are ISO 8601.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct AnalyticsQuery {
    /// `minute`, `hour` or `day`.
    #[param(default = "hour")]
    interval: Option<String>,
    /// If neither `from` nor `to` is given: the last 24 hours.
    #[param(format = DateTime)]
    from: Option<String>,
    #[param(format = DateTime)]
    to: Option<String>,
    #[param(max_length = 255)]
    queue: Option<String>,
    #[param(max_length = 255)]
    namespace: Option<String>,
    #[param(max_length = 255)]
    task: Option<String>,
}
