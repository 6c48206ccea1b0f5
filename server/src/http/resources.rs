//! `/api/v1/resources` and `/api/v1/queues`: queues, partitions, namespaces and tasks with their counts. Counts of whole queues
//! cost the same for any number of partitions; lists of partitions are paged.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{Label, LabelFigures, PartitionFigures, QueueFigures, QueueFilter, Spread};
use queen_protocol::{BadRequest, ErrorCode, QUEUE_MODE, check_name, format_millis};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures, Missing};
use super::request::{Pagination, Query, Segments};
use crate::app::App;
use crate::auth::Caller;
use crate::openapi::queries;

const QUEUES_DEFAULT: i64 = 1_000;
const QUEUES_MAX: i64 = 10_000;
const PARTITIONS_DEFAULT: i64 = 200;
const PARTITIONS_MAX: i64 = 1_000;

/// Messages by state. A message whose delivery failed is pending again, so `failed` is always 0.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Messages stored.
    pub total: i64,
    /// Not delivered yet in queue mode or, if only groups read, to the slowest group.
    pub pending: i64,
    /// Delivered under a lease.
    pub processing: i64,
    /// Completed and still stored.
    pub completed: i64,
    pub failed: i64,
    pub dead_letter: i64,
}

impl Counts {
    pub fn new(stored: i64, unread: i64, leased: i64, dead_letter: i64) -> Self {
        Self {
            total: stored,
            pending: (unread - leased).max(0),
            processing: leased,
            completed: (stored - unread).max(0),
            failed: 0,
            dead_letter,
        }
    }

    pub fn of_queue(queue: &QueueFigures) -> Self {
        Self::new(queue.stored, queue.unread, queue.leased, queue.dead_letters)
    }

    pub fn of_queues(queues: &[QueueFigures]) -> Self {
        let sum = |count: fn(&QueueFigures) -> i64| queues.iter().map(count).sum();
        Self::new(
            sum(|queue| queue.stored),
            sum(|queue| queue.unread),
            sum(|queue| queue.leased),
            sum(|queue| queue.dead_letters),
        )
    }

    pub fn of_partition(partition: &PartitionFigures) -> Self {
        Self::new(partition.stored, partition.unread, partition.leased, 0)
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Queues)]
struct Queues {
    queues: Vec<Queue>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    id: Uuid,
    name: String,
    namespace: String,
    task: String,
    #[schema(format = DateTime)]
    created_at: String,
    partitions: i64,
    messages: QueueMessages,
    /// Always 0: bytes are not counted by queue.
    segments: i64,
    /// Always 0.
    retained_bytes: i64,
}

#[derive(Serialize, ToSchema)]
struct QueueMessages {
    total: i64,
    pending: i64,
    processing: i64,
}

impl From<&QueueFigures> for Queue {
    fn from(queue: &QueueFigures) -> Self {
        let counts = Counts::of_queue(queue);
        Self {
            id: queue.id,
            name: queue.name.clone(),
            namespace: queue.namespace.clone(),
            task: queue.task.clone(),
            created_at: format_millis(queue.created_at),
            partitions: queue.partitions,
            messages: QueueMessages {
                total: counts.total,
                pending: counts.pending,
                processing: counts.processing,
            },
            segments: 0,
            retained_bytes: 0,
        }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueueDetail)]
struct Detail {
    id: Uuid,
    name: String,
    namespace: String,
    task: String,
    #[schema(format = DateTime)]
    created_at: String,
    /// One page, by name.
    partitions: Vec<DetailPartition>,
    /// Sum over all partitions.
    totals: Counts,
    partition_count: i64,
    pagination: Pagination,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueueDetailPartition)]
struct DetailPartition {
    id: Uuid,
    name: String,
    #[schema(format = DateTime)]
    created_at: String,
    stats: Counts,
    #[schema(required, format = DateTime)]
    oldest_message: Option<String>,
    #[schema(required, format = DateTime)]
    newest_message: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Depth<'a> {
    queue: &'a str,
    group: &'a str,
    /// Messages that the group has not completed, including leased ones.
    pending: i64,
    /// Partitions with unread messages. For queues with more than 1,000 partitions, as of the last measurement.
    partitions_pending: i64,
    /// The same as `pending`.
    effective_pending: i64,
    conflation: bool,
    /// Partitions with the most unread messages, up to `limit`. In a queue with more than 1,000 partitions they are
    /// chosen from the notable partitions of the last measurement.
    partitions: Vec<DepthPartition>,
}

#[derive(Serialize, ToSchema)]
struct DepthPartition {
    partition: String,
    pending: i64,
}

#[derive(Serialize, ToSchema)]
struct BusyPartitions {
    partitions: Vec<BusyPartition>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct BusyPartition {
    queue: String,
    partition: String,
    id: Uuid,
    pending: i64,
    processing: i64,
    /// Age of its first unread message; null if there is none.
    #[schema(required)]
    lag_seconds: Option<f64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = QueueCleared, example = json!({"cleared": true, "queue": "orders", "partition": null, "deleted": 12}))]
struct Cleared<'a> {
    cleared: bool,
    queue: &'a str,
    #[schema(required)]
    partition: Option<&'a str>,
    /// Number of deleted messages.
    deleted: i64,
}

#[derive(Serialize, ToSchema)]
struct Namespaces {
    namespaces: Vec<Namespace>,
}

#[derive(Serialize, ToSchema)]
struct Namespace {
    namespace: String,
    queues: i64,
    partitions: i64,
    messages: LabelMessages,
}

#[derive(Serialize, ToSchema)]
struct Tasks {
    tasks: Vec<Task>,
}

#[derive(Serialize, ToSchema)]
struct Task {
    task: String,
    queues: i64,
    partitions: i64,
    messages: LabelMessages,
}

#[derive(Serialize, ToSchema)]
struct LabelMessages {
    total: i64,
    pending: i64,
}

impl From<&LabelFigures> for LabelMessages {
    fn from(label: &LabelFigures) -> Self {
        Self { total: label.stored, pending: label.unread }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Overview)]
struct Overview {
    queues: i64,
    partitions: i64,
    namespaces: i64,
    tasks: i64,
    messages: Counts,
    lag: Lag,
    throughput: Throughput,
    #[schema(format = DateTime)]
    timestamp: String,
    /// Age in seconds of the oldest measurement used; -1 if there is none. Queues that did not change
    /// since are not measured again, so a high age does not mean that the numbers are wrong.
    stats_age: f64,
}

/// Lag over all consumer groups and the queues they read.
#[derive(Serialize, ToSchema)]
struct Lag {
    /// Age of the oldest unread message in seconds.
    time: LagSpread,
    /// Number of unread messages.
    offset: LagSpread,
}

#[derive(Serialize, ToSchema)]
struct LagSpread {
    avg: f64,
    median: f64,
    min: f64,
    max: f64,
}

impl From<Spread> for LagSpread {
    fn from(spread: Spread) -> Self {
        Self { avg: spread.avg, median: spread.median, min: spread.min, max: spread.max }
    }
}

/// Throughput of all brokers in the last full minute.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OverviewThroughput)]
struct Throughput {
    ingested_per_second: f64,
    processed_per_second: f64,
}

/// Lists queues, newest first.
#[utoipa::path(get, path = "/api/v1/resources/queues", operation_id = "listQueues", tag = "queues", params(queries::QueuesQuery),
    responses((status = 200, description = "A page", body = Queues), Failures))]
pub async fn queues(State(app): State<App>, caller: Caller, query: Query) -> Result<Response, ApiError> {
    let filter = filter(&query, &caller, QUEUES_DEFAULT)?;
    let queues = app.engine.queues(&filter).await?.iter().map(Queue::from).collect();
    answer::json(StatusCode::OK, &Queues { queues })
}

/// Shows a queue and its partitions.
#[utoipa::path(get, path = "/api/v1/resources/queues/{queue}", operation_id = "getQueue", tag = "queues",
    params(("queue" = String, Path), queries::PageQuery),
    responses((status = 200, description = "The queue", body = Detail), Missing, Failures))]
pub async fn queue(
    State(app): State<App>,
    Segments(name): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let queue = find(&app, &name).await?;
    let (page, partitions) = partitions_of(&app, &queue, &query).await?;
    let partitions = partitions.into_iter().map(|partition| DetailPartition {
        stats: Counts::of_partition(&partition),
        id: partition.id,
        name: partition.name,
        created_at: format_millis(partition.created_at),
        oldest_message: partition.oldest_at.map(format_millis),
        newest_message: partition.newest_at.map(format_millis),
    });
    let detail = Detail {
        partitions: partitions.collect(),
        totals: Counts::of_queue(&queue),
        id: queue.id,
        name: queue.name,
        namespace: queue.namespace,
        task: queue.task,
        created_at: format_millis(queue.created_at),
        partition_count: queue.partitions,
        pagination: page,
    };
    answer::json(StatusCode::OK, &detail)
}

/// Counts the messages of a queue that a group has not completed.
///
/// Suitable for autoscalers: the cost does not depend on the number of partitions.
#[utoipa::path(get, path = "/api/v1/resources/queues/{queue}/depth", operation_id = "queueDepth", tag = "queues",
    params(("queue" = String, Path), queries::DepthQuery),
    responses((status = 200, description = "Messages and partitions", body = Depth<'static>), Missing, Failures))]
pub async fn depth(
    State(app): State<App>,
    Segments(name): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    let group = query.group()?.unwrap_or(QUEUE_MODE);
    check_name("group", group)?;
    let queue = find(&app, &name).await?;
    let known = app.engine.group_in(group, &name).await?;
    let limit = query.page(PARTITIONS_DEFAULT, PARTITIONS_MAX).limit;
    // For an unknown group, the partitions of queue mode are shown.
    let stands = if known.is_some() { group } else { QUEUE_MODE };
    let partitions = app.engine.busiest_partitions(Some(queue.id), Some(stands), PARTITIONS_MAX).await?;
    let mut partitions: Vec<DepthPartition> = partitions
        .into_iter()
        .filter(|partition| partition.unread > 0)
        .map(|partition| DepthPartition { partition: partition.name, pending: partition.unread })
        .collect();
    // An unknown group would start at the oldest message.
    let (pending, partitions_pending) = match &known {
        Some(group) => (group.unread, group.pending_partitions),
        None if queue.partitions > PARTITIONS_MAX => (queue.stored, queue.partitions),
        None => (queue.stored, partitions.len() as i64),
    };
    partitions.truncate(limit as usize);
    let depth = Depth {
        queue: &name,
        group,
        pending,
        partitions_pending,
        effective_pending: pending,
        conflation: false,
        partitions,
    };
    answer::json(StatusCode::OK, &depth)
}

/// Lists partitions, those with the most unread messages first.
///
/// If more than 1,000 match, the notable partitions of the last measurement come first, and the others by name.
#[utoipa::path(get, path = "/api/v1/resources/partitions", operation_id = "listPartitions", tag = "queues", params(queries::BusyQuery),
    responses((status = 200, description = "Partitions", body = BusyPartitions), Missing, Failures))]
pub async fn partitions(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let queue = match query.filled("queue") {
        Some(name) => Some(find(&app, name).await?.id),
        None => None,
    };
    let page = page_of(&query)?;
    let partitions = app.engine.partition_page(queue, None, page.search, page.limit, page.offset).await?;
    let partitions = partitions.into_iter().map(|partition| BusyPartition {
        lag_seconds: partition.lag_seconds.map(to_millis),
        queue: partition.queue,
        partition: partition.name,
        id: partition.id,
        pending: (partition.unread - partition.leased).max(0),
        processing: partition.leased,
    });
    answer::json(StatusCode::OK, &BusyPartitions { partitions: partitions.collect() })
}

/// Deletes the messages of a queue and keeps the queue.
///
/// Messages that are deferred or in a spool are not stored yet, so they are not deleted.
#[utoipa::path(delete, path = "/api/v1/queues/{queue}/clear", operation_id = "clearQueue", tag = "queues",
    params(("queue" = String, Path), queries::ClearQuery),
    responses((status = 200, description = "Cleared", body = Cleared<'static>), Missing, Failures))]
pub async fn clear(
    State(app): State<App>,
    Segments(name): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    check_name("queue", &name)?;
    let partition = query.text("partition");
    if partition == Some("") {
        return Err(BadRequest::new("`partition` is empty; leave it out to clear the whole queue").into());
    }
    check_name("partition", partition.unwrap_or_default())?;
    let Some(deleted) = app.engine.clear(&name, partition).await? else {
        let what = if partition.is_some() { "partition" } else { "queue" };
        return Err(ApiError::new(ErrorCode::NotFound, format!("{what} not found")));
    };
    answer::json(StatusCode::OK, &Cleared { cleared: true, queue: &name, partition, deleted })
}

/// Lists namespaces.
#[utoipa::path(get, path = "/api/v1/resources/namespaces", operation_id = "listNamespaces", tag = "queues",
    responses((status = 200, description = "All namespaces", body = Namespaces), Failures))]
pub async fn namespaces(State(app): State<App>) -> Result<Response, ApiError> {
    let labels = app.engine.labels(Label::Namespace).await?;
    let namespaces = labels.iter().map(|label| Namespace {
        namespace: label.label.clone(),
        queues: label.queues,
        partitions: label.partitions,
        messages: label.into(),
    });
    answer::json(StatusCode::OK, &Namespaces { namespaces: namespaces.collect() })
}

/// Lists tasks.
#[utoipa::path(get, path = "/api/v1/resources/tasks", operation_id = "listTasks", tag = "queues",
    responses((status = 200, description = "All tasks", body = Tasks), Failures))]
pub async fn tasks(State(app): State<App>) -> Result<Response, ApiError> {
    let labels = app.engine.labels(Label::Task).await?;
    let tasks = labels.iter().map(|label| Task {
        task: label.label.clone(),
        queues: label.queues,
        partitions: label.partitions,
        messages: label.into(),
    });
    answer::json(StatusCode::OK, &Tasks { tasks: tasks.collect() })
}

/// Counts of the whole installation.
#[utoipa::path(get, path = "/api/v1/resources/overview", operation_id = "overview", tag = "queues",
    responses((status = 200, description = "Numbers", body = Overview), Failures))]
pub async fn overview(State(app): State<App>) -> Result<Response, ApiError> {
    let seen = app.engine.overview().await?;
    let minute = app.engine.queue_rates();
    let per_second = |messages: u64| to_millis(messages as f64 / 60.0);
    let overview = Overview {
        queues: seen.queues,
        partitions: seen.partitions,
        namespaces: seen.namespaces,
        tasks: seen.tasks,
        messages: Counts::new(seen.stored, seen.unread, seen.leased, seen.dead_letters),
        lag: Lag { time: seen.time_lag.into(), offset: seen.offset_lag.into() },
        throughput: Throughput {
            ingested_per_second: per_second(minute.iter().map(|queue| queue.push_messages).sum()),
            processed_per_second: per_second(minute.iter().map(|queue| queue.acks).sum()),
        },
        timestamp: format_millis(app.engine.wall_clock()),
        stats_age: seen.age.map_or(-1.0, to_millis),
    };
    answer::json(StatusCode::OK, &overview)
}

/// The filter of lists of queues.
pub fn filter(query: &Query, caller: &Caller, limit: i64) -> Result<QueueFilter, BadRequest> {
    let text = |key: &'static str| {
        let value = query.filled(key).map(str::to_owned);
        value.map(|value| check_name(key, &value).map(|()| value)).transpose()
    };
    let page = query.page(limit, QUEUES_MAX);
    Ok(QueueFilter {
        name: None,
        namespace: text("namespace")?,
        task: text("task")?,
        search: text("search")?,
        patterns: caller.grants().map(|grants| grants.patterns().map(str::to_owned).collect()),
        limit: page.limit,
        offset: page.offset,
    })
}

/// A page of partitions, and which of them.
pub struct PageOf<'a> {
    pub search: Option<&'a str>,
    pub limit: i64,
    pub offset: i64,
}

/// The query of lists of partitions by backlog.
pub fn page_of(query: &Query) -> Result<PageOf<'_>, BadRequest> {
    let search = query.filled("search");
    check_name("search", search.unwrap_or_default())?;
    let Pagination { limit, offset } = query.page(PARTITIONS_DEFAULT, PARTITIONS_MAX);
    Ok(PageOf { search, limit, offset })
}

pub async fn find(app: &App, name: &str) -> Result<QueueFigures, ApiError> {
    check_name("queue", name)?;
    app.engine.queue(name).await?.ok_or_else(missing_queue)
}

pub fn missing_queue() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "queue not found")
}

/// The page of a queue's partitions that the query asks for.
pub async fn partitions_of(
    app: &App,
    queue: &QueueFigures,
    query: &Query,
) -> Result<(Pagination, Vec<PartitionFigures>), ApiError> {
    let page = query.page(PARTITIONS_DEFAULT, PARTITIONS_MAX);
    let after = query.filled("after");
    check_name("after", after.unwrap_or_default())?;
    let partitions = app.engine.queue_partitions(queue.id, after, page.limit, page.offset).await?;
    Ok((page, partitions))
}

/// Seconds, rounded to milliseconds.
pub fn to_millis(seconds: f64) -> f64 {
    (seconds.max(0.0) * 1e3).round() / 1e3
}
