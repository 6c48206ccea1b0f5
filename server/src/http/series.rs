//! What all history responses share: the time range, and the format of a step.

use queen_engine::{HistoryFilter, Range, Worker};
use queen_protocol::{BadRequest, check_name, format_millis, parse_time};
use serde::Serialize;
use utoipa::ToSchema;

use super::request::Query;

/// Reads `from`, `to`, `queue`, `namespace`, `task`, `hostname` and `workerId`. An empty filter matches all.
pub fn read(query: &Query) -> Result<HistoryFilter, BadRequest> {
    let name = |key: &'static str| {
        let value = query.filled(key).map(str::to_owned);
        value.map(|value| check_name(key, &value).map(|()| value)).transpose()
    };
    let time = |key| query.filled(key).map(|value| parse_time(key, value)).transpose();
    Ok(HistoryFilter {
        from: time("from")?,
        to: time("to")?,
        queue: name("queue")?,
        namespace: name("namespace")?,
        task: name("task")?,
        hostname: name("hostname")?,
        worker_id: name("workerId")?,
    })
}

/// The time range of a response.
#[derive(Serialize, ToSchema)]
pub struct TimeRange {
    #[schema(format = DateTime)]
    from: String,
    #[schema(format = DateTime)]
    to: String,
}

impl From<Range> for TimeRange {
    fn from(range: Range) -> Self {
        Self { from: format_millis(range.from), to: format_millis(range.to) }
    }
}

/// Average state of a broker.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WorkerState)]
pub struct WorkerState<'a> {
    hostname: &'a str,
    port: i32,
    worker_id: &'a str,
    avg_event_loop_lag_ms: f64,
    max_event_loop_lag_ms: f64,
    /// Average number of idle connections.
    free_slots: f64,
    db_connections: u64,
    /// Average number of entries waiting for a database call.
    job_queue_size: f64,
    /// Messages pushed, delivered and acknowledged.
    messages_processed: u64,
}

impl<'a> From<&'a Worker> for WorkerState<'a> {
    fn from(worker: &'a Worker) -> Self {
        Self {
            hostname: &worker.hostname,
            port: worker.port,
            worker_id: &worker.worker_id,
            avg_event_loop_lag_ms: average_ms(worker.loop_lag_us, worker.samples),
            max_event_loop_lag_ms: in_ms(worker.loop_lag_us_max),
            free_slots: average(worker.free_slots, worker.samples),
            db_connections: worker.db_connections,
            job_queue_size: average(worker.waiting, worker.samples),
            messages_processed: worker.messages,
        }
    }
}

/// `bucket`: minutes. A last step that is not over yet is divided by its full length as well.
pub fn per_second(count: u64, bucket: i32) -> f64 {
    rounded(count as f64 / (60.0 * f64::from(bucket.max(1))))
}

pub fn average(sum: u64, count: u64) -> f64 {
    rounded(sum as f64 / count.max(1) as f64)
}

pub fn average_ms(sum_us: u64, count: u64) -> f64 {
    rounded(sum_us as f64 / 1_000.0 / count.max(1) as f64)
}

pub fn in_ms(us: u64) -> f64 {
    rounded(us as f64 / 1_000.0)
}

/// Three decimals are enough for people.
pub fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_left_blank_matches_all_and_a_bad_time_is_refused() {
        let filter = read(&Query::parse("queue=&hostname=h&workerId=h:1&from=2026-01-01T00:00:00Z")).unwrap();
        assert_eq!((filter.queue, filter.hostname.as_deref()), (None, Some("h")));
        assert_eq!((filter.from, filter.to), (Some(1_767_225_600_000_000), None));
        for bad in ["from=yesterday", "to=1", &format!("queue={}", "x".repeat(300)), "hostname=%00"] {
            assert!(read(&Query::parse(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        assert_eq!([average(5, 0), average_ms(0, 0), per_second(90, 1)], [5.0, 0.0, 1.5]);
    }
}
