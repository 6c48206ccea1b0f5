//! The history in `GET /api/v1/status`: steps, and totals over them.

use queen_engine::{HistorySeries, Point};
use queen_protocol::format_millis;
use serde::Serialize;
use utoipa::ToSchema;

use super::series::{average, average_ms, in_ms, per_second, rounded};

/// One step of all brokers: throughput and load.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Throughput {
    #[schema(format = DateTime)]
    timestamp: String,
    ingested: u64,
    processed: u64,
    pop_messages: u64,
    ingested_per_second: f64,
    processed_per_second: f64,
    pop_per_second: f64,
    /// Age of messages at delivery.
    avg_lag_ms: f64,
    max_lag_ms: f64,
    /// Delay of timers.
    avg_event_loop_lag_ms: f64,
    max_event_loop_lag_ms: f64,
    /// Idle connections.
    min_free_slots: u64,
    db_errors: u64,
    ack_failed: u64,
    dlq_count: u64,
    /// Percent of one core, summed over all brokers.
    queen_cpu_user_pct: f64,
    queen_cpu_sys_pct: f64,
    queen_rss_mb: f64,
    db_pool_active: f64,
    db_pool_idle: f64,
    db_pool_size: f64,
}

impl Throughput {
    /// Newest first.
    pub fn of(series: &HistorySeries) -> Vec<Self> {
        let bucket = series.range.bucket;
        series.points.iter().rev().map(|point| Self::step(point, bucket)).collect()
    }

    fn step(point: &Point, bucket: i32) -> Self {
        let counts = &point.counts;
        Self {
            timestamp: format_millis(point.at),
            ingested: counts.push_messages,
            processed: counts.ack_success,
            pop_messages: counts.pop_messages,
            ingested_per_second: per_second(counts.push_messages, bucket),
            processed_per_second: per_second(counts.ack_success, bucket),
            pop_per_second: per_second(counts.pop_messages, bucket),
            avg_lag_ms: average_ms(counts.lag_us, counts.lag_count),
            max_lag_ms: in_ms(counts.lag_us_max),
            avg_event_loop_lag_ms: average_ms(point.loop_lag_us, point.samples),
            max_event_loop_lag_ms: in_ms(point.loop_lag_us_max),
            min_free_slots: point.free_slots_min,
            db_errors: point.db_errors,
            ack_failed: counts.ack_failed,
            dlq_count: counts.dead_letters,
            queen_cpu_user_pct: rounded(point.cpu_user / 100.0),
            queen_cpu_sys_pct: rounded(point.cpu_system / 100.0),
            queen_rss_mb: rounded(point.rss_bytes / f64::from(1 << 20)),
            db_pool_active: rounded(point.pool_active),
            db_pool_idle: rounded(point.pool_idle),
            db_pool_size: rounded(point.pool_size),
        }
    }
}

/// Totals of the range.
#[derive(Serialize, ToSchema)]
pub struct RequestCounts {
    push: u64,
    pop: u64,
    ack: u64,
}

impl From<&Point> for RequestCounts {
    fn from(total: &Point) -> Self {
        let counts = &total.counts;
        Self { push: counts.push_requests, pop: counts.pop_requests, ack: counts.ack_requests }
    }
}

/// Messages per request.
#[derive(Serialize, ToSchema)]
pub struct BatchEfficiency {
    push: f64,
    pop: f64,
    ack: f64,
}

impl From<&Point> for BatchEfficiency {
    fn from(total: &Point) -> Self {
        let counts = &total.counts;
        Self {
            push: average(counts.push_messages, counts.push_requests),
            pop: average(counts.pop_messages, counts.pop_requests),
            ack: average(counts.ack_success + counts.ack_failed, counts.ack_requests),
        }
    }
}

/// Totals of the range.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorCounts {
    db_errors: u64,
    ack_failed: u64,
    dlq_messages: u64,
}

impl From<&Point> for ErrorCounts {
    fn from(total: &Point) -> Self {
        let counts = &total.counts;
        let (ack_failed, dlq_messages) = (counts.ack_failed, counts.dead_letters);
        Self { db_errors: total.db_errors, ack_failed, dlq_messages }
    }
}

#[cfg(test)]
mod tests {
    use queen_engine::{Minute, Range};

    use super::*;

    #[test]
    fn the_newest_step_comes_first_and_sums_are_divided_by_what_they_are_of() {
        let counts = Minute {
            push_requests: 2,
            push_messages: 60,
            pop_requests: 4,
            pop_messages: 30,
            ack_requests: 1,
            ack_success: 3,
            ack_failed: 1,
            lag_us: 9_000,
            lag_count: 3,
            lag_us_max: 5_000,
            ..Minute::default()
        };
        let point = |at| Point { at, counts: counts.clone(), cpu_user: 250.0, ..Point::default() };
        let range = Range { from: 0, to: 0, bucket: 1 };
        let series = HistorySeries {
            range,
            points: vec![point(0), point(60_000_000)],
            total: point(0),
            workers: Vec::new(),
        };
        let told = serde_json::to_value(Throughput::of(&series)).unwrap();
        assert_eq!(told[0]["timestamp"], "1970-01-01T00:01:00.000Z");
        assert_eq!((&told[0]["ingestedPerSecond"], &told[0]["avgLagMs"]), (&1.0.into(), &3.0.into()));
        assert_eq!((&told[0]["queenCpuUserPct"], &told[0]["maxLagMs"]), (&2.5.into(), &5.0.into()));
        let efficiency = serde_json::to_value(BatchEfficiency::from(&series.total)).unwrap();
        assert_eq!(efficiency, serde_json::json!({"push": 30.0, "pop": 7.5, "ack": 4.0}));
        let requests = serde_json::to_value(RequestCounts::from(&series.total)).unwrap();
        assert_eq!(requests, serde_json::json!({"push": 2, "pop": 4, "ack": 1}));
        let errors = serde_json::to_value(ErrorCounts::from(&series.total)).unwrap();
        assert_eq!(errors, serde_json::json!({"dbErrors": 0, "ackFailed": 1, "dlqMessages": 0}));
    }
}
