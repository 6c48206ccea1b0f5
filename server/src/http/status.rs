//! `/api/v1/status`: the status of the installation, and of each queue.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::QueueFigures;
use queen_protocol::format_millis;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures, Missing};
use super::queues::Options;
use super::request::{Pagination, Query, Segments};
use super::resources::{Counts, Queue, filter, find, missing_queue, partitions_of, to_millis};
use super::series::{self, TimeRange, WorkerState};
use super::throughput::{BatchEfficiency, ErrorCounts, RequestCounts, Throughput};
use crate::app::App;
use crate::auth::Caller;
use crate::openapi::queries;

const QUEUES_DEFAULT: i64 = 100;
/// Number of queues that the status lists: the newest.
const STATUS_QUEUES: i64 = 1_000;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatusPage)]
struct Status<'a> {
    time_range: TimeRange,
    bucket_minutes: i32,
    point_count: usize,
    /// Newest first.
    throughput: Vec<Throughput>,
    /// Newest first, up to 1,000.
    queues: Vec<StatusQueue>,
    messages: StatusMessages,
    leases: Leases,
    dead_letter_queue: DeadLetterQueue,
    workers: Vec<WorkerState<'a>>,
    errors: ErrorCounts,
    /// Findings about the database, as of `queen doctor`.
    findings: Vec<StatusFinding<'a>>,
    /// Age in seconds of the oldest measurement of a queue; -1 if there is none.
    stats_age: f64,
}

#[derive(Serialize, ToSchema)]
struct StatusFinding<'a> {
    /// `problem`, `warning` or `info`.
    severity: &'static str,
    code: &'static str,
    message: &'a str,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StatusQueue {
    id: Uuid,
    name: String,
    namespace: String,
    task: String,
    partitions: i64,
    /// Messages that are completed and still stored.
    total_consumed: i64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StatusMessages {
    #[serde(flatten)]
    counts: Counts,
    requests: RequestCounts,
    batch_efficiency: BatchEfficiency,
}

/// When queues were last measured.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Leases {
    active: i64,
    partitions_with_leases: i64,
    /// Leased messages.
    total_batch_size: i64,
    /// Messages completed, summed over all groups.
    total_acked: i64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct DeadLetterQueue {
    total_messages: i64,
    affected_partitions: i64,
    /// The ten most frequent errors among 10,000 dead letters.
    top_errors: Vec<TopError>,
}

#[derive(Serialize, ToSchema)]
struct TopError {
    error: String,
    count: i64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StatusQueues)]
struct Queues {
    queues: Vec<Queue>,
    pagination: Pagination,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StatusQueueDetail)]
struct Detail<'a> {
    queue: DetailQueue<'a>,
    /// One page, by name.
    partitions: Vec<DetailPartition>,
    totals: Totals,
    pagination: Pagination,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatusDetailQueue)]
struct DetailQueue<'a> {
    id: Uuid,
    name: &'a str,
    namespace: &'a str,
    task: &'a str,
    priority: i32,
    #[schema(format = DateTime)]
    created_at: String,
    partition_count: i64,
    config: Config,
    /// All options, as in the response of `configure`.
    options: Options<'a>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatusDetailConfig)]
struct Config {
    lease_time: i32,
    retry_limit: i32,
    retry_delay: i32,
    ttl: i32,
    /// The option `maxSize`, which has no effect: queues have no size limit.
    max_queue_size: i64,
    dead_letter_queue: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatusDetailPartition)]
struct DetailPartition {
    id: Uuid,
    name: String,
    #[schema(format = DateTime)]
    created_at: String,
    messages: Counts,
    stats: Counts,
    cursor: Cursor,
    #[schema(required, format = DateTime)]
    last_activity: Option<String>,
    #[schema(required, format = DateTime)]
    oldest_message: Option<String>,
    #[schema(required, format = DateTime)]
    newest_message: Option<String>,
}

/// Of queue mode or, if only groups read, of the slowest group.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatusDetailCursor)]
struct Cursor {
    total_consumed: i64,
    /// Always 0: batches are not recorded.
    batches_consumed: i64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StatusDetailTotals)]
struct Totals {
    messages: Counts,
    #[serde(flatten)]
    counts: Counts,
}

/// Status of the installation: throughput, stored messages and problems.
#[utoipa::path(get, path = "/api/v1/status", operation_id = "status", tag = "broker", params(queries::HistoryQuery),
    responses((status = 200, description = "One page", body = Status<'static>), Failures))]
pub async fn status(State(app): State<App>, caller: Caller, query: Query) -> Result<Response, ApiError> {
    let history = app.engine.history(&series::read(&query)?).await?;
    let mut named = filter(&query, &caller, STATUS_QUEUES)?;
    (named.limit, named.offset) = (STATUS_QUEUES, 0);
    named.name = query.filled("queue").map(str::to_owned);
    let some = named.name.is_some() || named.namespace.is_some() || named.task.is_some();
    let queues = app.engine.queues(&named).await?;
    let listed = Counts::of_queues(&queues);
    let overview = app.engine.overview().await?;
    let trouble = app.engine.trouble().await?;
    let examined = app.engine.findings();
    let findings = examined.as_deref().map_or(&[][..], |examination| &examination.findings);
    let throughput = Throughput::of(&history);
    let status = Status {
        time_range: history.range.into(),
        bucket_minutes: history.range.bucket,
        point_count: throughput.len(),
        throughput,
        queues: queues.into_iter().map(StatusQueue::from).collect(),
        messages: StatusMessages {
            counts: match some {
                true => listed,
                false => {
                    Counts::new(overview.stored, overview.unread, overview.leased, overview.dead_letters)
                }
            },
            requests: (&history.total).into(),
            batch_efficiency: (&history.total).into(),
        },
        leases: Leases {
            active: trouble.leased_partitions,
            partitions_with_leases: trouble.leased_partitions,
            total_batch_size: trouble.leased,
            total_acked: trouble.consumed,
        },
        dead_letter_queue: DeadLetterQueue {
            total_messages: trouble.dead_letters,
            affected_partitions: trouble.dead_partitions,
            top_errors: trouble.errors.into_iter().map(|(error, count)| TopError { error, count }).collect(),
        },
        workers: history.workers.iter().map(WorkerState::from).collect(),
        errors: (&history.total).into(),
        findings: findings
            .iter()
            .map(|finding| StatusFinding {
                severity: finding.severity.word(),
                code: finding.code,
                message: &finding.text,
            })
            .collect(),
        stats_age: overview.age.map_or(-1.0, to_millis),
    };
    answer::json(StatusCode::OK, &status)
}

/// Lists queues, newest first.
#[utoipa::path(get, path = "/api/v1/status/queues", operation_id = "statusQueues", tag = "queues",
    params(queries::QueuesQuery), responses((status = 200, description = "A page", body = Queues), Failures))]
pub async fn queues(State(app): State<App>, caller: Caller, query: Query) -> Result<Response, ApiError> {
    let filter = filter(&query, &caller, QUEUES_DEFAULT)?;
    let queues = app.engine.queues(&filter).await?.iter().map(Queue::from).collect();
    let pagination = Pagination { limit: filter.limit, offset: filter.offset };
    answer::json(StatusCode::OK, &Queues { queues, pagination })
}

/// Shows a queue, its options and its partitions.
#[utoipa::path(get, path = "/api/v1/status/queues/{queue}", operation_id = "statusQueue", tag = "queues",
    params(("queue" = String, Path), queries::PageQuery),
    responses((status = 200, description = "The queue", body = Detail<'static>), Missing, Failures))]
pub async fn queue(
    State(app): State<App>,
    Segments(name): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let queue = find(&app, &name).await?;
    let options = app.engine.queue_options(queue.id).await?.ok_or_else(missing_queue)?;
    let (pagination, partitions) = partitions_of(&app, &queue, &query).await?;
    let partitions = partitions.into_iter().map(|partition| DetailPartition {
        messages: Counts::of_partition(&partition),
        stats: Counts::of_partition(&partition),
        cursor: Cursor { total_consumed: partition.cursor, batches_consumed: 0 },
        id: partition.id,
        name: partition.name,
        created_at: format_millis(partition.created_at),
        last_activity: partition.served_at.max(partition.newest_at).map(format_millis),
        oldest_message: partition.oldest_at.map(format_millis),
        newest_message: partition.newest_at.map(format_millis),
    });
    let detail = Detail {
        partitions: partitions.collect(),
        totals: Totals { messages: Counts::of_queue(&queue), counts: Counts::of_queue(&queue) },
        queue: DetailQueue {
            id: queue.id,
            name: &queue.name,
            namespace: &queue.namespace,
            task: &queue.task,
            priority: options.priority,
            created_at: format_millis(queue.created_at),
            partition_count: queue.partitions,
            config: Config {
                lease_time: options.lease_time,
                retry_limit: options.retry_limit,
                retry_delay: options.retry_delay,
                ttl: options.ttl,
                max_queue_size: options.max_size,
                dead_letter_queue: options.dead_letter_queue || options.dlq_after_max_retries,
            },
            options: Options { options: &options, namespace: &queue.namespace, task: &queue.task },
        },
        pagination,
    };
    answer::json(StatusCode::OK, &detail)
}

impl From<QueueFigures> for StatusQueue {
    fn from(queue: QueueFigures) -> Self {
        Self {
            total_consumed: (queue.stored - queue.unread).max(0),
            id: queue.id,
            name: queue.name,
            namespace: queue.namespace,
            task: queue.task,
            partitions: queue.partitions,
        }
    }
}
