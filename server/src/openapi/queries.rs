//! What may stand behind the question mark of each route. Like `words.rs` these only describe; `http/request.rs` reads.

#![expect(dead_code, reason = "described, never built")]

use utoipa::IntoParams;
use uuid::Uuid;

/// W3C trace context of all messages of the request that bring none of their own.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct TraceHeaders {
    /// One that cannot be read is dropped.
    #[param(example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: Option<String>,
    tracestate: Option<String>,
}

/// What cannot be read counts as not given.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct OperationsQuery {
    /// `pending`, `processing`, `completed`, `failed` or `cancelled`.
    status: Option<String>,
    #[param(max_length = 255)]
    queue: Option<String>,
    /// Only those accepted longer ago.
    older_than_seconds: Option<u32>,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    #[param(default = 0)]
    offset: Option<u32>,
}

/// What cannot be read counts as not given.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct PopQuery {
    /// The group that reads. Without one, all who name none share one cursor.
    #[param(max_length = 255, example = "billing")]
    consumer_group: Option<String>,
    /// Most messages, over all partitions; out of range means the nearest bound. Without it the broker's
    /// `DEFAULT_BATCH_SIZE` counts.
    #[param(minimum = 1, maximum = 10_000)]
    batch: Option<u32>,
    /// Most partitions to claim. Without effect when the path names one.
    #[param(minimum = 1, maximum = 100, default = 1)]
    partitions: Option<u32>,
    /// Wait for a message when there is none.
    #[param(default = false)]
    wait: Option<bool>,
    /// How long, in milliseconds; at most ten minutes. Without it the broker's `DEFAULT_TIMEOUT` counts.
    #[param(maximum = 600_000)]
    timeout: Option<u64>,
    /// Commit at delivery: no lease, no acknowledgement, at most once.
    #[param(default = false)]
    auto_ack: Option<bool>,
    /// Length of the lease; 0 takes the queue's `leaseTime`.
    #[param(maximum = 86_400, default = 0)]
    lease_seconds: Option<u32>,
    /// Where a group that is new here starts: `new` skips what is stored, any other word starts at the oldest
    /// message.
    #[param(example = "new")]
    subscription_mode: Option<String>,
    /// The same by time: `now`, or an ISO 8601 time. Goes before the mode.
    #[param(example = "2026-01-01T00:00:00Z")]
    subscription_from: Option<String>,
    /// Without `batch`: take 100.
    #[param(default = false)]
    autopilot: Option<bool>,
    /// An id under which this wait may be ended. Refused if it is no UUID, or that of another pop which waits here.
    wait_id: Option<Uuid>,
    /// Leave out of a message what is the same as in the one before it in the list: its partition, queue, lease, group and retries. The first of
    /// each partition has them. `traceId` and `producerSub` are left out when there are none.
    #[param(default = false)]
    brief: Option<bool>,
}

/// Which queues; at least one of the two.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LabelQuery {
    #[param(max_length = 255, example = "parcels")]
    namespace: Option<String>,
    #[param(max_length = 255)]
    task: Option<String>,
}

/// A filter left blank matches everything.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct DeadLetterQuery {
    queue: Option<String>,
    partition: Option<String>,
    consumer_group: Option<String>,
    /// A part of the error, in any case.
    error: Option<String>,
    /// Whose errors look like this, as `/api/v1/dlq/shapes` told. An empty one counts: those without an error.
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

/// A filter left blank matches everything.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct ShapesQuery {
    queue: Option<String>,
    partition: Option<String>,
    consumer_group: Option<String>,
    /// A part of the error, in any case.
    error: Option<String>,
    /// Failed at this time or later.
    #[param(format = DateTime)]
    from: Option<String>,
    /// Failed at this time or earlier.
    #[param(format = DateTime)]
    to: Option<String>,
    /// Shapes.
    #[param(minimum = 1, maximum = 1_000, default = 100)]
    limit: Option<i64>,
}

/// Which dead letters of a queue. A filter left blank matches everything.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct PurgeQuery {
    queue: String,
    partition: Option<String>,
    consumer_group: Option<String>,
    /// A part of the error, in any case.
    error: Option<String>,
    /// Whose errors look like this, as `/api/v1/dlq/shapes` told. An empty one counts: those without an error.
    #[param(max_length = 255)]
    shape: Option<String>,
    /// Failed at this time or later.
    #[param(format = DateTime)]
    from: Option<String>,
    /// Failed at this time or earlier, and in any case before the purge began.
    #[param(format = DateTime)]
    to: Option<String>,
}

#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct DeleteGroupQuery {
    /// Also forget where the group was told to start.
    #[param(default = true)]
    delete_metadata: Option<bool>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct GroupsQuery {
    /// Absent: all of them.
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
    /// Absent: all that the group reads, up to a hundred.
    queue: Option<String>,
    /// A part of the partition's name, in any case. Only with a queue.
    search: Option<String>,
    /// Partitions to name in each queue, those with the most unread messages first.
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
    /// Only with a queue.
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct QueuesQuery {
    namespace: Option<String>,
    task: Option<String>,
    /// A part of the name, in any case.
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
    /// The last name of the page before: cheaper than an offset.
    after: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DepthQuery {
    /// Absent: queue mode.
    group: Option<String>,
    /// Partitions to name.
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct BusyQuery {
    /// Absent: of all queues, those that stood out when they were last measured.
    queue: Option<String>,
    /// A part of the partition's name, in any case.
    search: Option<String>,
    #[param(minimum = 1, maximum = 1_000, default = 200)]
    limit: Option<i64>,
    #[param(minimum = 0, default = 0)]
    offset: Option<i64>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ClearQuery {
    /// Absent: all of them.
    partition: Option<String>,
}

/// A filter left blank matches everything.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct MessagesQuery {
    queue: Option<String>,
    partition: Option<String>,
    /// `namespace` says the same.
    ns: Option<String>,
    task: Option<String>,
    /// `pending`, `processing`, `completed` or `dead_letter`.
    status: Option<String>,
    /// Pushed at this time or later. Without it: the last hour, or the hour before `to`.
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

/// Times are ISO 8601; a range is cut to 400 days.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct HistoryQuery {
    /// The last hour if neither is given.
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

/// Times are ISO 8601; a range is cut to 400 days.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct BrokerHistoryQuery {
    /// The last hour if neither is given.
    #[param(format = DateTime)]
    from: Option<String>,
    #[param(format = DateTime)]
    to: Option<String>,
    hostname: Option<String>,
    /// `host:port` of a broker.
    worker_id: Option<String>,
}

/// Times are ISO 8601; a range is cut to 400 days.
#[derive(IntoParams)]
#[into_params(rename_all = "camelCase", parameter_in = Query)]
pub struct QueueHistoryQuery {
    /// The last hour if neither is given.
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
    /// The last 24 hours if neither is given.
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
