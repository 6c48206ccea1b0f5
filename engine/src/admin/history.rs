//! Queries on the recorded history. Each first writes what this broker has counted, so that the answer includes it.

use std::collections::HashMap;

use queen_protocol::BadRequest;
use tracing::debug;

use crate::Engine;
use crate::clock;
use crate::db::history::{
    self as db, Asked, Broker, Metric, ParkedPoint, Point, QueuePoint, QueueRate, Worker,
};
use crate::error::Error;
use crate::history::ClusterTotals;
use crate::jobs::history::{beat, write};

const MINUTE: i64 = 60_000_000;
pub const HOUR: i64 = 60 * MINUTE;
pub const DAY: i64 = 24 * HOUR;

/// When minutes are folded into hours: `FOLD_AFTER` of `jobs/history.rs`, a little earlier, because folding takes
/// time.
const FOLDED_AFTER: i64 = 2 * DAY - HOUR;

/// Longer than anything is kept by default. Every query is limited to it.
const RANGE_MAX: i64 = 400 * DAY;

/// Times from 1970 to 2200, all of which PostgreSQL can compute with.
const YEARS: (i64, i64) = (0, 7_258_118_400_000_000);

/// Queues that one answer lists separately: the busiest.
const QUEUES_MAX: i64 = 200;

/// Entries of one answer about parked pops.
const PARKED_MAX: i64 = 20_000;

/// Selects a part of the history.
#[derive(Debug, Clone, Default)]
pub struct HistoryFilter {
    /// Microseconds since 1970. Without `to`: until now. Without `from`: the usual range before `to`.
    pub from: Option<i64>,
    pub to: Option<i64>,
    pub queue: Option<String>,
    pub namespace: Option<String>,
    pub task: Option<String>,
    pub hostname: Option<String>,
    pub worker_id: Option<String>,
}

/// The time that an answer covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Microseconds since 1970.
    pub from: i64,
    pub to: i64,
    /// Minutes in a step.
    pub bucket: i32,
}

impl Range {
    /// `usual`: the length if `from` is missing.
    pub fn new(from: Option<i64>, to: Option<i64>, now: i64, usual: i64) -> Result<Self, BadRequest> {
        let to = to.unwrap_or(now).clamp(YEARS.0, YEARS.1);
        let from = from.unwrap_or(to - usual).clamp(YEARS.0, YEARS.1);
        if from > to {
            return Err(BadRequest::new("from is later than to"));
        }
        let from = from.max(to - RANGE_MAX);
        // Older history is stored by the hour only.
        if from < now - FOLDED_AFTER {
            let bucket = if to - from <= 7 * DAY { 60 } else { 360 };
            return Ok(Self { from: from - from.rem_euclid(HOUR), to, bucket });
        }
        let bucket = match to - from {
            length if length <= HOUR => 1,
            length if length <= 6 * HOUR => 5,
            length if length <= DAY => 15,
            length if length <= 7 * DAY => 60,
            _ => 360,
        };
        Ok(Self { from, to, bucket })
    }

    /// The same range in other steps, shortened to at most `steps_max` of them.
    pub fn in_steps(self, bucket: i32, steps_max: i64) -> Self {
        let longest = steps_max * i64::from(bucket) * MINUTE;
        Self { from: self.from.max(self.to - longest), to: self.to, bucket }
    }

    fn asked(self, filter: &HistoryFilter) -> Asked<'_> {
        Asked {
            from: self.from,
            to: self.to,
            bucket: self.bucket,
            queue: filter.queue.as_deref(),
            namespace: filter.namespace.as_deref(),
            task: filter.task.as_deref(),
            hostname: filter.hostname.as_deref(),
            worker_id: filter.worker_id.as_deref(),
        }
    }
}

/// What happened in a range.
#[derive(Debug, Clone)]
pub struct HistorySeries {
    pub range: Range,
    /// Oldest first; steps without data are left out.
    pub points: Vec<Point>,
    /// The whole range as one point: counts are sums, measured values as in a point.
    pub total: Point,
    pub workers: Vec<Worker>,
}

/// This broker, and the brokers it hears from.
#[derive(Debug, Clone)]
pub struct ClusterState {
    pub broker: Broker,
    /// Brokers heard from in the last half minute.
    pub brokers: Vec<Broker>,
    /// Whether this broker hears notes from others.
    pub listening: bool,
}

impl Engine {
    /// The range that a filter selects, by the database's clock. Everything that this broker did in it is written
    /// first.
    pub async fn history_range(&self, filter: &HistoryFilter, usual: i64) -> Result<Range, Error> {
        // Reject bad times before asking the database.
        Range::new(filter.from, filter.to, self.database_time(), usual)?;
        write(&self.shared, true).await?;
        Ok(Range::new(filter.from, filter.to, self.database_time(), usual)?)
    }

    fn database_time(&self) -> i64 {
        self.shared.history.time(clock::now(), clock::wall())
    }

    /// The last hour unless the filter says otherwise.
    pub async fn history(&self, filter: &HistoryFilter) -> Result<HistorySeries, Error> {
        let range = self.history_range(filter, HOUR).await?;
        let points = self.history_points(filter, range).await?;
        let workers = db::workers(&self.shared.reads, &range.asked(filter)).await?;
        Ok(HistorySeries { range, total: total(&points), points, workers })
    }

    pub async fn history_points(&self, filter: &HistoryFilter, range: Range) -> Result<Vec<Point>, Error> {
        Ok(db::series(&self.shared.reads, &range.asked(filter)).await?)
    }

    /// Step by step, for the busiest queues.
    pub async fn queue_history(&self, filter: &HistoryFilter) -> Result<(Range, Vec<QueuePoint>), Error> {
        let range = self.history_range(filter, HOUR).await?;
        let (asked, step) = (range.asked(filter), Some(range.bucket));
        let points = db::queue_series(&self.shared.reads, &asked, step, QUEUES_MAX).await?;
        Ok((range, points))
    }

    /// How many partitions each queue has now. Deleted queues are left out.
    pub async fn partition_counts(&self, queues: &[&str]) -> Result<HashMap<String, u64>, Error> {
        self.freshen(None).await?;
        Ok(db::partition_counts(&self.shared.reads, queues).await?)
    }

    /// The whole range as one step, for the busiest queues.
    pub async fn queue_sums(&self, filter: &HistoryFilter, range: Range) -> Result<Vec<QueuePoint>, Error> {
        let asked = range.asked(filter);
        Ok(db::queue_series(&self.shared.reads, &asked, None, QUEUES_MAX).await?)
    }

    pub async fn broker_metrics(&self, filter: &HistoryFilter) -> Result<(Range, Vec<Metric>), Error> {
        let range = self.history_range(filter, HOUR).await?;
        let metrics = db::broker_metrics(&self.shared.reads, &range.asked(filter)).await?;
        Ok((range, metrics))
    }

    pub async fn parked_history(&self, filter: &HistoryFilter) -> Result<(Range, Vec<ParkedPoint>), Error> {
        let range = self.history_range(filter, HOUR).await?;
        let points = db::parked_series(&self.shared.reads, &range.asked(filter), PARKED_MAX).await?;
        Ok((range, points))
    }

    /// JSON, as it is sent to clients.
    pub async fn postgres_stats(&self) -> Result<String, Error> {
        Ok(db::postgres_stats(&self.shared.reads).await?)
    }

    /// Totals of the whole cluster as of the last write, plus what this broker did since. Does not query the database,
    /// and never goes down.
    pub fn cluster_totals(&self) -> ClusterTotals {
        self.shared.history.totals(&self.shared.tally)
    }

    /// The last full minute of the busiest queues, in the whole cluster. Does not query the database: it is looked up
    /// once a minute.
    pub fn queue_rates(&self) -> Vec<QueueRate> {
        self.shared.cluster.rates()
    }

    /// As the database has it, or, while that cannot be reached, as last read.
    pub async fn cluster_state(&self) -> ClusterState {
        if !self.shared.connections.is_down()
            && let Err(error) = beat(&self.shared).await
        {
            debug!(%error, "nobody can say who is there");
        }
        let cluster = &self.shared.cluster;
        ClusterState {
            broker: cluster.broker.clone(),
            brokers: cluster.brokers(),
            listening: self.shared.wake.is_hearing(),
        }
    }

    /// Reports that there may be something in this queue: the pops that wait for it look again.
    pub async fn notify(&self, queue: &str) -> Result<(), Error> {
        self.shared.wake.discover(&self.shared).await?;
        self.shared.watches.wake(queue);
        Ok(())
    }
}

fn total(points: &[Point]) -> Point {
    let mut total = Point { free_slots_min: u64::MAX, ..Point::default() };
    for point in points {
        total.counts.add(&point.counts);
        total.samples += point.samples;
        total.loop_lag_us += point.loop_lag_us;
        total.loop_lag_us_max = total.loop_lag_us_max.max(point.loop_lag_us_max);
        total.free_slots += point.free_slots;
        total.free_slots_min = total.free_slots_min.min(point.free_slots_min);
        total.waiting += point.waiting;
        total.waiting_max = total.waiting_max.max(point.waiting_max);
        total.parked = total.parked.max(point.parked);
        total.flights += point.flights;
        total.db_errors += point.db_errors;
        total.expired_age += point.expired_age;
        total.expired_completed += point.expired_completed;
        total.expired_wait += point.expired_wait;
        total.expiries += point.expiries;
    }
    let Some(last) = points.last() else { return Point::default() };
    // Values that cannot be added are taken from the last point.
    Point {
        at: last.at,
        db_connections: last.db_connections,
        cpu_user: last.cpu_user,
        cpu_system: last.cpu_system,
        rss_bytes: last.rss_bytes,
        pool_active: last.pool_active,
        pool_idle: last.pool_idle,
        pool_size: last.pool_size,
        ..total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000_000;

    fn bucket(length: i64) -> i32 {
        Range::new(Some(NOW - length), Some(NOW), NOW, HOUR).unwrap().bucket
    }

    #[test]
    fn steps_grow_with_the_range() {
        assert_eq!([0, HOUR, HOUR + 1, 6 * HOUR].map(bucket), [1, 1, 5, 5]);
        assert_eq!([6 * HOUR + 1, DAY, DAY + 1, 7 * DAY, 7 * DAY + 1].map(bucket), [15, 15, 60, 60, 360]);
    }

    #[test]
    fn a_range_is_the_last_hour_unless_told_and_never_endless() {
        let usual = Range::new(None, None, NOW, HOUR).unwrap();
        assert_eq!(usual, Range { from: NOW - HOUR, to: NOW, bucket: 1 });
        let until = Range::new(None, Some(NOW - DAY), NOW, HOUR).unwrap();
        assert_eq!((until.from, until.to), (NOW - DAY - HOUR, NOW - DAY));
        let endless = Range::new(Some(i64::MIN), Some(i64::MAX), NOW, HOUR).unwrap();
        assert_eq!(endless.to - endless.from, RANGE_MAX);
        assert!(Range::new(Some(NOW + 1), None, NOW, HOUR).is_err());
        assert!(Range::new(Some(2), Some(1), NOW, HOUR).is_err());
        let minutes = endless.in_steps(1, 1_000);
        assert_eq!(minutes.to - minutes.from, 1_000 * MINUTE);
    }
}
