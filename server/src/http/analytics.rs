//! `/api/v1/analytics`, and the parts of `/api/v1/status` that are history: figures by step.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use queen_engine::{DAY, Metric, Point};
use queen_protocol::{BadRequest, format_millis};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::answer;
use super::error::{ApiError, Failures};
use super::queue_history::{QueueLag, delivered};
use super::request::Query;
use super::series::{self, TimeRange, WorkerState, average, average_ms, in_ms, per_second};
use crate::app::App;
use crate::openapi::{postgres_stats, queries};

/// Maximum number of points in a response whose step the request chooses: a week of minutes.
const POINTS_MAX: i64 = 10_080;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SystemMetrics {
    time_range: TimeRange,
    /// Width of a step in minutes.
    bucket_minutes: i32,
    /// Number of steps of all brokers.
    point_count: usize,
    replica_count: usize,
    replicas: Vec<Replica>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Replica {
    hostname: String,
    port: i32,
    worker_id: String,
    /// Oldest first.
    time_series: Vec<ReplicaStep>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ReplicaStep {
    #[schema(format = DateTime)]
    timestamp: String,
    sample_count: u64,
    /// `avg`, `min`, `max` and `last` of `cpu.user_us` and `cpu.system_us` (hundredths of a percent of a core),
    /// `memory.rss_bytes`, `memory.virtual_bytes`, `database.pool_size`, `pool_idle` and `pool_active`, `pool_size` and
    /// `queue_size` of `threadpool.db` and `threadpool.system`, `registries.response`, and of what is in `shared_state`.
    #[schema(value_type = Object)]
    metrics: Map<String, Value>,
}

/// Samples that brokers took of themselves, by step.
///
/// By default of the last hour. Steps are 1, 5, 15, 60 or 360 minutes wide for ranges of up to 1 hour, 6 hours, 24 hours, 7 days,
/// and beyond.
#[utoipa::path(get, path = "/api/v1/analytics/system-metrics", operation_id = "systemMetrics", tag = "analytics",
    params(queries::BrokerHistoryQuery),
    responses((status = 200, description = "By broker", body = SystemMetrics), Failures))]
pub async fn system_metrics(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let (range, metrics) = app.engine.broker_metrics(&series::read(&query)?).await?;
    let replicas = replicas(metrics);
    let body = SystemMetrics {
        time_range: range.into(),
        bucket_minutes: range.bucket,
        point_count: replicas.iter().map(|replica| replica.time_series.len()).sum(),
        replica_count: replicas.len(),
        replicas,
    };
    answer::json(StatusCode::OK, &body)
}

/// The rows are sorted by broker, then by time.
fn replicas(metrics: Vec<Metric>) -> Vec<Replica> {
    let mut replicas: Vec<Replica> = Vec::new();
    for metric in metrics {
        let same = |replica: &Replica| {
            (&replica.hostname, replica.port, &replica.worker_id)
                == (&metric.hostname, metric.port, &metric.worker_id)
        };
        if !replicas.last().is_some_and(same) {
            let (hostname, worker_id) = (metric.hostname.clone(), metric.worker_id.clone());
            replicas.push(Replica { hostname, port: metric.port, worker_id, time_series: Vec::new() });
        }
        let Some(replica) = replicas.last_mut() else { continue };
        let timestamp = format_millis(metric.at);
        if replica.time_series.last().is_none_or(|step| step.timestamp != timestamp) {
            replica.time_series.push(ReplicaStep {
                timestamp,
                sample_count: metric.samples,
                metrics: Map::new(),
            });
        }
        if let Some(step) = replica.time_series.last_mut() {
            insert(&mut step.metrics, &metric);
        }
    }
    replicas
}

/// Inserts a metric. Its name is a path of fields, separated by dots.
fn insert(tree: &mut Map<String, Value>, metric: &Metric) {
    let (path, leaf) = metric.name.rsplit_once('.').unwrap_or(("", &metric.name));
    let mut branch = tree;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let next = branch.entry(part).or_insert_with(|| json!({}));
        let Value::Object(next) = next else { return };
        branch = next;
    }
    let (average, last) = (series::rounded(metric.average), metric.latest);
    branch.insert(
        leaf.to_owned(),
        json!({"avg": average, "min": metric.lowest, "max": metric.highest, "last": last}),
    );
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WorkerMetrics<'a> {
    time_range: TimeRange,
    /// Width of a step in minutes.
    bucket_minutes: i32,
    point_count: usize,
    /// Oldest first.
    time_series: Vec<WorkerStep>,
    workers: Vec<WorkerState<'a>>,
    /// The busiest broker.
    queues: Vec<QueueLag<'a>>,
    summary: Summary,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WorkerStep {
    #[schema(format = DateTime)]
    timestamp: String,
    push_messages: u64,
    pop_messages: u64,
    ack_messages: u64,
    push_requests: u64,
    pop_requests: u64,
    ack_requests: u64,
    /// Database calls of the lanes.
    jobs_done: u64,
    push_per_second: f64,
    pop_per_second: f64,
    ack_per_second: f64,
    /// Delay of timers.
    avg_event_loop_lag_ms: f64,
    max_event_loop_lag_ms: f64,
    /// Idle connections per broker.
    avg_free_slots: f64,
    min_free_slots: u64,
    /// Sum over all brokers.
    db_connections: f64,
    /// Average number of connections with a call in progress, over all brokers.
    busy_connections: f64,
    /// Entries that waited for a database call.
    avg_job_queue_size: f64,
    max_job_queue_size: u64,
    /// Maximum number of pops that waited for messages.
    backoff_size: u64,
    /// Age of messages at delivery.
    avg_lag_ms: f64,
    max_lag_ms: f64,
    lag_count: u64,
    db_errors: u64,
    ack_success: u64,
    ack_failed: u64,
    dlq_count: u64,
}

impl WorkerStep {
    fn new(point: &Point, bucket: i32) -> Self {
        let counts = &point.counts;
        let acks = counts.ack_success + counts.ack_failed;
        Self {
            timestamp: format_millis(point.at),
            push_messages: counts.push_messages,
            pop_messages: counts.pop_messages,
            ack_messages: acks,
            push_requests: counts.push_requests,
            pop_requests: counts.pop_requests,
            ack_requests: counts.ack_requests,
            jobs_done: point.flights,
            push_per_second: per_second(counts.push_messages, bucket),
            pop_per_second: per_second(counts.pop_messages, bucket),
            ack_per_second: per_second(acks, bucket),
            avg_event_loop_lag_ms: average_ms(point.loop_lag_us, point.samples),
            max_event_loop_lag_ms: in_ms(point.loop_lag_us_max),
            avg_free_slots: average(point.free_slots, point.samples),
            min_free_slots: point.free_slots_min,
            db_connections: series::rounded(point.db_connections),
            busy_connections: series::rounded(point.pool_active),
            avg_job_queue_size: average(point.waiting, point.samples),
            max_job_queue_size: point.waiting_max,
            backoff_size: point.parked,
            avg_lag_ms: average_ms(counts.lag_us, counts.lag_count),
            max_lag_ms: in_ms(counts.lag_us_max),
            lag_count: counts.lag_count,
            db_errors: point.db_errors,
            ack_success: counts.ack_success,
            ack_failed: counts.ack_failed,
            dlq_count: counts.dead_letters,
        }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WorkerSummary)]
struct Summary {
    total_push_messages: u64,
    total_pop_messages: u64,
    total_ack_messages: u64,
    total_push_requests: u64,
    total_pop_requests: u64,
    total_ack_requests: u64,
    total_db_errors: u64,
    total_ack_failed: u64,
    total_dlq: u64,
    /// Messages pushed but not delivered in this time.
    pending_messages: u64,
}

impl From<&Point> for Summary {
    fn from(total: &Point) -> Self {
        let counts = &total.counts;
        Self {
            total_push_messages: counts.push_messages,
            total_pop_messages: counts.pop_messages,
            total_ack_messages: counts.ack_success + counts.ack_failed,
            total_push_requests: counts.push_requests,
            total_pop_requests: counts.pop_requests,
            total_ack_requests: counts.ack_requests,
            total_db_errors: total.db_errors,
            total_ack_failed: counts.ack_failed,
            total_dlq: counts.dead_letters,
            pending_messages: counts.push_messages.saturating_sub(counts.pop_messages),
        }
    }
}

/// Throughput and errors of brokers, by step.
#[utoipa::path(get, path = "/api/v1/analytics/worker-metrics", operation_id = "workerMetrics", tag = "analytics",
    params(queries::HistoryQuery),
    responses((status = 200, description = "The sum of all brokers, and each broker", body = WorkerMetrics<'static>), Failures))]
pub async fn worker_metrics(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let filter = series::read(&query)?;
    let history = app.engine.history(&filter).await?;
    let queues = app.engine.queue_sums(&filter, history.range).await?;
    let bucket = history.range.bucket;
    let body = WorkerMetrics {
        time_range: history.range.into(),
        bucket_minutes: bucket,
        point_count: history.points.len(),
        time_series: history.points.iter().map(|point| WorkerStep::new(point, bucket)).collect(),
        workers: history.workers.iter().map(WorkerState::from).collect(),
        queues: delivered(&queues).map(QueueLag::from).collect(),
        summary: (&history.total).into(),
    };
    answer::json(StatusCode::OK, &body)
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RetentionHistory)]
struct Retention {
    time_range: TimeRange,
    /// Width of a step in minutes.
    bucket_minutes: i32,
    /// Oldest step first.
    series: Vec<RetentionStep>,
    totals: Removed,
}

#[derive(Serialize, ToSchema)]
struct RetentionStep {
    #[schema(format = DateTime)]
    bucket: String,
    #[serde(flatten)]
    removed: Removed,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Removed {
    /// Messages deleted because they were older than `retentionSeconds`.
    retention_msgs: u64,
    /// Messages deleted because all groups had read them and they were older than `completedRetentionSeconds`.
    completed_retention_msgs: u64,
    /// Messages deleted because they had waited longer than `maxWaitTimeSeconds`.
    eviction_msgs: u64,
    total_msgs: u64,
    /// Number of deletions.
    event_count: u64,
}

impl From<&Point> for Removed {
    fn from(point: &Point) -> Self {
        let (age, completed, wait) = (point.expired_age, point.expired_completed, point.expired_wait);
        Self {
            retention_msgs: age,
            completed_retention_msgs: completed,
            eviction_msgs: wait,
            total_msgs: age + completed + wait,
            event_count: point.expiries,
        }
    }
}

/// Messages deleted by retention, by step.
#[utoipa::path(get, path = "/api/v1/analytics/retention", operation_id = "retentionHistory", tag = "analytics",
    params(queries::BrokerHistoryQuery),
    responses((status = 200, description = "By step", body = Retention), Failures))]
pub async fn retention(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let mut filter = series::read(&query)?;
    // Retention removes messages of several queues together, so there are no numbers per queue.
    (filter.queue, filter.namespace, filter.task) = (None, None, None);
    let history = app.engine.history(&filter).await?;
    let step = |point: &Point| RetentionStep { bucket: format_millis(point.at), removed: point.into() };
    let body = Retention {
        time_range: history.range.into(),
        bucket_minutes: history.range.bucket,
        series: history.points.iter().map(step).collect(),
        totals: (&history.total).into(),
    };
    answer::json(StatusCode::OK, &body)
}

/// Statistics of PostgreSQL about this database.
///
/// Totals since the statistics were last reset, and current activity. Lists hold the 20 largest entries.
#[utoipa::path(get, path = "/api/v1/analytics/postgres-stats", operation_id = "postgresStats", tag = "analytics",
    responses((status = 200, description = "From the statistics views of PostgreSQL", body = postgres_stats::PostgresStats), Failures))]
pub async fn postgres(State(app): State<App>) -> Result<Response, ApiError> {
    let stats = app.engine.postgres_stats().await?;
    Ok(answer::written(StatusCode::OK, Bytes::from(stats)))
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Ingested)]
struct Analytics<'a> {
    /// Oldest first.
    data_points: Vec<DataPoint>,
    interval: &'a str,
    #[schema(format = DateTime)]
    from: String,
    #[schema(format = DateTime)]
    to: String,
}

#[derive(Serialize, ToSchema)]
struct DataPoint {
    #[schema(format = DateTime)]
    timestamp: String,
    /// Messages pushed.
    messages: u64,
}

/// Messages pushed, by minute, hour or day.
///
/// By default of the last 24 hours. Minutes are available for up to a week.
#[utoipa::path(get, path = "/api/v1/status/analytics", operation_id = "statusAnalytics", tag = "analytics",
    params(queries::AnalyticsQuery),
    responses((status = 200, description = "By interval", body = Analytics<'static>), Failures))]
pub async fn ingested(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let interval = query.filled("interval").unwrap_or("hour");
    let minutes = match interval {
        "minute" => 1,
        "hour" => 60,
        "day" => 1_440,
        _ => {
            return Err(BadRequest(format!(
                "interval is {interval:?}; it must be `minute`, `hour` or `day`"
            ))
            .into());
        }
    };
    let filter = series::read(&query)?;
    let range = app.engine.history_range(&filter, DAY).await?.in_steps(minutes, POINTS_MAX);
    let points = app.engine.history_points(&filter, range).await?;
    let point = |point: &Point| DataPoint {
        timestamp: format_millis(point.at),
        messages: point.counts.push_messages,
    };
    let body = Analytics {
        data_points: points.iter().map(point).collect(),
        interval,
        from: format_millis(range.from),
        to: format_millis(range.to),
    };
    answer::json(StatusCode::OK, &body)
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Buffers<'a> {
    /// Messages in the spool of this broker.
    pending: u64,
    /// When the oldest message in the spool was accepted.
    #[schema(required, format = DateTime)]
    oldest_at: Option<String>,
    /// 1 if the last write to the spool failed.
    failed: u8,
    /// The last attempt to reach the database succeeded.
    db_healthy: bool,
    /// `host:port`.
    worker: &'a str,
}

/// The spool of this broker.
#[utoipa::path(get, path = "/api/v1/status/buffers", operation_id = "buffers", tag = "analytics",
    responses((status = 200, description = "The spool of this broker, from memory", body = Buffers<'static>)))]
pub async fn buffers(State(app): State<App>) -> Result<Response, ApiError> {
    let spool = app.engine.spool_stats();
    let body = Buffers {
        pending: spool.map_or(0, |spool| spool.messages),
        oldest_at: spool
            .and_then(|spool| spool.oldest)
            .map(|seconds| format_millis(seconds.cast_signed() * 1_000_000)),
        failed: u8::from(spool.is_some_and(|spool| !spool.healthy)),
        db_healthy: app.engine.reaches_database(),
        worker: &app.name,
    };
    answer::json(StatusCode::OK, &body)
}
