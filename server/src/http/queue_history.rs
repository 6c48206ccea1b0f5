//! `/api/v1/analytics/queue-*`: the history of each queue, by step.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{ParkedPoint, QueuePoint, Range};
use queen_protocol::format_millis;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer;
use super::error::{ApiError, Failures};
use super::request::Query;
use super::series::{self, TimeRange, average_ms, in_ms, per_second};
use crate::app::App;
use crate::openapi::queries;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueLag<'a> {
    queue_name: &'a str,
    /// Number of messages delivered.
    pop_count: u64,
    avg_lag_ms: f64,
    max_lag_ms: f64,
}

impl<'a> From<&'a QueuePoint> for QueueLag<'a> {
    fn from(point: &'a QueuePoint) -> Self {
        Self {
            queue_name: &point.queue,
            pop_count: point.counts.lag_count,
            avg_lag_ms: average_ms(point.counts.lag_us, point.counts.lag_count),
            max_lag_ms: in_ms(point.counts.lag_us_max),
        }
    }
}

/// Steps without deliveries are left out.
pub fn delivered(points: &[QueuePoint]) -> impl Iterator<Item = &QueuePoint> {
    points.iter().filter(|point| point.counts.lag_count > 0)
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct QueueLagStep<'a> {
    queue_name: &'a str,
    /// Number of messages delivered.
    pop_count: u64,
    avg_lag_ms: f64,
    max_lag_ms: f64,
    #[schema(format = DateTime)]
    bucket_time: String,
}

/// Age of messages at delivery, by queue and step.
///
/// Covers the 200 busiest queues.
#[utoipa::path(get, path = "/api/v1/analytics/queue-lag", operation_id = "queueLag", tag = "analytics",
    params(queries::QueueHistoryQuery),
    responses((status = 200, description = "Oldest step first", body = Vec<QueueLagStep<'static>>), Failures))]
pub async fn lag(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let (_, points) = app.engine.queue_history(&series::read(&query)?).await?;
    answer::json(StatusCode::OK, &delivered(&points).map(lag_step).collect::<Vec<_>>())
}

fn lag_step(point: &QueuePoint) -> QueueLagStep<'_> {
    let QueueLag { queue_name, pop_count, avg_lag_ms, max_lag_ms } = QueueLag::from(point);
    QueueLagStep { queue_name, pop_count, avg_lag_ms, max_lag_ms, bucket_time: format_millis(point.at) }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct QueueOps<'a> {
    time_range: TimeRange,
    /// Width of a step in minutes.
    bucket_minutes: i32,
    /// Oldest step first.
    series: Vec<QueueStep<'a>>,
    queues: Vec<&'a str>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct QueueStep<'a> {
    #[schema(format = DateTime)]
    bucket: String,
    queue_name: &'a str,
    push_requests: u64,
    push_messages: u64,
    pop_messages: u64,
    pop_empty: u64,
    ack_requests: u64,
    ack_success: u64,
    ack_failed: u64,
    transactions: u64,
    partitions_created: u64,
    partitions_deleted: u64,
    /// Current values.
    partition_count: u64,
    /// Age of messages at delivery.
    avg_lag_ms: f64,
    max_lag_ms: f64,
    push_per_second: f64,
    pop_per_second: f64,
    ack_per_second: f64,
    empty_per_second: f64,
    /// Maximum number of pops that waited for messages at once.
    parked_count: u64,
}

/// Activity of each queue, by step.
///
/// Covers the 200 busiest queues.
#[utoipa::path(get, path = "/api/v1/analytics/queue-ops", operation_id = "queueOps", tag = "analytics",
    params(queries::QueueHistoryQuery),
    responses((status = 200, description = "By step and queue", body = QueueOps<'static>), Failures))]
pub async fn ops(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let (range, points) = app.engine.queue_history(&series::read(&query)?).await?;
    let mut queues: Vec<&str> = points.iter().map(|point| point.queue.as_str()).collect();
    queues.sort_unstable();
    queues.dedup();
    let partitions = app.engine.partition_counts(&queues).await?;
    let partitions = |point: &QueuePoint| partitions.get(&point.queue).copied();
    let body = QueueOps {
        time_range: range.into(),
        bucket_minutes: range.bucket,
        series: points.iter().map(|point| queue_step(range, partitions(point), point)).collect(),
        queues,
    };
    answer::json(StatusCode::OK, &body)
}

fn queue_step(range: Range, partitions: Option<u64>, point: &QueuePoint) -> QueueStep<'_> {
    let (counts, bucket) = (&point.counts, range.bucket);
    QueueStep {
        bucket: format_millis(point.at),
        queue_name: &point.queue,
        push_requests: counts.push_requests,
        push_messages: counts.push_messages,
        pop_messages: counts.pop_messages,
        pop_empty: counts.pop_empty,
        ack_requests: counts.ack_requests,
        ack_success: counts.ack_success,
        ack_failed: counts.ack_failed,
        transactions: counts.transactions,
        partitions_created: counts.partitions_created,
        partitions_deleted: point.partitions_deleted,
        partition_count: partitions.unwrap_or(0),
        avg_lag_ms: average_ms(counts.lag_us, counts.lag_count),
        max_lag_ms: in_ms(counts.lag_us_max),
        push_per_second: per_second(counts.push_messages, bucket),
        pop_per_second: per_second(counts.pop_messages, bucket),
        ack_per_second: per_second(counts.ack_success + counts.ack_failed, bucket),
        empty_per_second: per_second(counts.pop_empty, bucket),
        parked_count: point.parked,
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ParkedReplicas<'a> {
    time_range: TimeRange,
    /// Width of a step in minutes.
    bucket_minutes: i32,
    /// Oldest step first; steps without waiting pops are left out.
    series: Vec<ParkedStep<'a>>,
    replicas: Vec<ParkedReplica<'a>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ParkedStep<'a> {
    #[schema(format = DateTime)]
    bucket: String,
    queue_name: &'a str,
    hostname: &'a str,
    worker_id: &'a str,
    /// Maximum number at once.
    parked_count: u64,
}

#[derive(Serialize, ToSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
struct ParkedReplica<'a> {
    hostname: &'a str,
    worker_id: &'a str,
}

/// Pops that waited for messages, by queue and broker.
#[utoipa::path(get, path = "/api/v1/analytics/queue-parked-replicas", operation_id = "queueParkedReplicas",
    tag = "analytics", params(queries::HistoryQuery),
    responses((status = 200, description = "By step, queue and broker", body = ParkedReplicas<'static>), Failures))]
pub async fn parked(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let (range, points) = app.engine.parked_history(&series::read(&query)?).await?;
    let mut replicas: Vec<ParkedReplica<'_>> = points
        .iter()
        .map(|point| ParkedReplica { hostname: &point.hostname, worker_id: &point.worker_id })
        .collect();
    replicas.sort_unstable();
    replicas.dedup();
    let body = ParkedReplicas {
        time_range: range.into(),
        bucket_minutes: range.bucket,
        series: points.iter().map(parked_step).collect(),
        replicas,
    };
    answer::json(StatusCode::OK, &body)
}

fn parked_step(point: &ParkedPoint) -> ParkedStep<'_> {
    ParkedStep {
        bucket: format_millis(point.at),
        queue_name: &point.queue,
        hostname: &point.hostname,
        worker_id: &point.worker_id,
        parked_count: point.parked,
    }
}
