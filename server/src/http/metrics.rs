//! `GET /metrics` and `GET /metrics/prometheus`: the metrics of the broker, from memory only, so that they are available while
//! the database is not.

mod page;
mod queues;
mod series;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use queen_engine::{LaneCounts, process};
use serde::Serialize;
use utoipa::ToSchema;

use self::page::Page;
use super::answer;
use super::error::ApiError;
use crate::app::App;
use crate::auth::Identity;

pub const PATH: &str = "/metrics/prometheus";

const FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// Metrics of the broker, for Prometheus.
///
/// With access control on, series that name queues or groups require a token or key without grants, unless
/// `QUEEN_OPEN_METRICS` is set.
#[utoipa::path(get, path = "/metrics/prometheus", operation_id = "prometheus", tag = "broker",
    responses((status = 200, description = "Text in the format of Prometheus", body = String, content_type = "text/plain")))]
pub async fn prometheus(State(app): State<App>, identity: Option<Extension<Arc<Identity>>>) -> Response {
    let named = identity.is_some() || app.options.guard.as_ref().is_none_or(|guard| guard.open_metrics);
    let mut page = Page::default();
    series::process(&mut page, &app.meter);
    series::http(&mut page, &app.meter);
    series::limits(&mut page, &app);
    series::access(&mut page, &app.audit);
    series::broker(&mut page, &app.engine);
    series::load(&mut page, &app.engine);
    series::database(&mut page, &app.engine);
    series::traces(&mut page, &app);
    queues::cluster(&mut page, &app.engine);
    queues::dead_letters(&mut page, &app.engine);
    if named {
        queues::rates(&mut page, &app.engine);
        queues::gauges(&mut page, &app.engine);
    }
    (StatusCode::OK, [(CONTENT_TYPE, FORMAT)], page.into_text()).into_response()
}

#[derive(Serialize, ToSchema)]
struct Metrics {
    /// Seconds.
    uptime: f64,
    requests: Counted,
    messages: Counted,
    cluster: Done,
    database: Pool,
    memory: Memory,
    cpu: Cpu,
    sidecar: Sidecar,
}

#[derive(Serialize, ToSchema)]
#[schema(as = MetricsCounted)]
struct Counted {
    /// Total since the start. Messages are those pushed through this broker.
    total: u64,
    /// Per second, since the last request for metrics.
    rate: f64,
}

/// Totals of all brokers: of this one until now, of others until they last stored them. They never decrease.
#[derive(Serialize, ToSchema)]
#[schema(as = MetricsDone)]
#[serde(rename_all = "camelCase")]
struct Done {
    pushed: u64,
    popped: u64,
    acknowledged: u64,
    dead_letters: u64,
    /// Failed database calls.
    database_errors: u64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = MetricsPool)]
#[serde(rename_all = "camelCase")]
struct Pool {
    pool_size: usize,
    idle_connections: usize,
    waiting_requests: usize,
    /// Time that the database took for its last health check.
    latency_ms: f64,
    /// The last attempt to reach the database succeeded.
    connected: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = MetricsMemory)]
struct Memory {
    /// Bytes; 0 if unknown.
    rss: u64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = MetricsCpu)]
struct Cpu {
    /// Microseconds since the start; 0 if unknown.
    user: u64,
    system: u64,
}

/// The lanes.
#[derive(Serialize, ToSchema)]
#[schema(as = MetricsSidecar)]
struct Sidecar {
    connections: Connections,
    queue: Queue,
    /// `push`, `pop`, `ack`, `transaction` and `renew_lease`.
    operations: BTreeMap<&'static str, Lane>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = MetricsConnections)]
struct Connections {
    total: usize,
    busy: usize,
}

#[derive(Serialize, ToSchema)]
#[schema(as = MetricsQueue)]
struct Queue {
    /// Requests waiting for a flight.
    pending: usize,
    /// Requests that were on a flight.
    completed: u64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = MetricsLane)]
struct Lane {
    /// Flights.
    count: u64,
    /// Time that requests waited for their flight: the longest wait of each flight.
    avg_wait_ms: f64,
    /// Time of a flight in the database.
    avg_ms: f64,
    items: u64,
}

/// Metrics of the broker, as JSON.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "broker",
    responses((status = 200, description = "From memory, so it does not need the database", body = Metrics)))]
pub async fn json(State(app): State<App>) -> Result<Response, ApiError> {
    let (stats, usage) = (app.engine.stats(), process::usage());
    let lane = |name: &str| {
        stats
            .lanes
            .iter()
            .find(|(lane, _)| *lane == name)
            .map_or(LaneCounts::default(), |(_, counts)| *counts)
    };
    let operation = |name| {
        let counts = lane(name);
        let average = |sum_us: u64| sum_us as f64 / counts.flights.max(1) as f64 / 1_000.0;
        Lane {
            count: counts.flights,
            avg_wait_ms: average(counts.waited_us),
            avg_ms: average(counts.database_us),
            items: counts.items,
        }
    };
    let names = [
        ("push", "push"),
        ("pop", "pop"),
        ("ack", "ack"),
        ("transaction", "transaction"),
        ("renew_lease", "renew"),
    ];
    let (requests, messages) = (app.meter.requests(), lane("push").items);
    let (request_rate, message_rate) = app.meter.rates(requests, messages);
    let done = app.engine.cluster_totals();
    let metrics = Metrics {
        uptime: app.meter.uptime().as_secs_f64(),
        requests: Counted { total: requests, rate: request_rate },
        messages: Counted { total: messages, rate: message_rate },
        cluster: Done {
            pushed: done.push_messages,
            popped: done.pop_messages,
            acknowledged: done.ack_messages,
            dead_letters: done.dead_letters,
            database_errors: done.db_errors,
        },
        database: Pool {
            pool_size: stats.connections,
            idle_connections: stats.connections - stats.connections_busy,
            waiting_requests: app.engine.system_health().pool_waiting,
            latency_ms: app.engine.database_latency().as_secs_f64() * 1_000.0,
            connected: app.engine.reaches_database(),
        },
        memory: Memory { rss: usage.rss_bytes },
        cpu: Cpu { user: usage.user_us, system: usage.system_us },
        sidecar: Sidecar {
            connections: Connections { total: stats.connections, busy: stats.connections_busy },
            queue: Queue {
                pending: app.engine.waiting().iter().map(|(_, entries)| entries).sum(),
                completed: stats.lanes.iter().map(|(_, counts)| counts.entries).sum(),
            },
            operations: names.into_iter().map(|(word, name)| (word, operation(name))).collect(),
        },
    };
    answer::json(StatusCode::OK, &metrics)
}
