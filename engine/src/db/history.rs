//! One typed function per history procedure: `history.sql` writes, `analytics.sql` and `postgres_stats.sql` read.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::{many, one};
use super::{Connections, Error};
use crate::clock;
use crate::history::{Batch, ClusterTotals};
use crate::tally::Minute;

/// A broker that records history, as all brokers know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    pub id: Uuid,
    pub hostname: String,
    pub port: i32,
    pub worker_id: String,
    pub version: String,
    /// Microseconds since 1970.
    pub started_at: i64,
    pub seen_at: i64,
}

/// The database's time, in microseconds since 1970.
pub async fn now(connections: &Connections) -> Result<i64, Error> {
    let row = one(connections, "queen.now", "select queen.now()", &[]).await?;
    Ok(clock::micros(row.get(0)))
}

/// All brokers that were heard of lately.
pub async fn beat(connections: &Connections, broker: &Broker) -> Result<Vec<Broker>, Error> {
    let started = clock::system_time(broker.started_at);
    let sql = "select * from queen.beat($1, $2, $3, $4, $5, $6)";
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&broker.id, &broker.hostname, &broker.port, &broker.worker_id, &broker.version, &started];
    let rows = many(connections, "queen.beat", sql, &parameters).await?;
    let broker = |row: &Row| Broker {
        id: row.get("id"),
        hostname: row.get("hostname"),
        port: row.get("port"),
        worker_id: row.get("worker_id"),
        version: row.get("version"),
        started_at: clock::micros(row.get("started_at")),
        seen_at: clock::micros(row.get("seen_at")),
    };
    Ok(rows.iter().map(broker).collect())
}

pub async fn goodbye(connections: &Connections, broker: Uuid) -> Result<(), Error> {
    one(connections, "queen.goodbye", "select queen.goodbye($1)", &[&broker]).await.map(drop)
}

/// Safe to repeat with the same batch. Returns the totals.
pub async fn record(connections: &Connections, broker: Uuid, batch: &Batch) -> Result<ClusterTotals, Error> {
    let minute = clock::system_time(batch.minute);
    let queues: Vec<&str> = batch.lines.iter().map(|line| line.0.as_ref()).collect();
    let column = |value: fn(&Minute) -> u64| -> Vec<i64> {
        batch.lines.iter().map(|line| int(value(&line.1))).collect()
    };
    let columns: [Vec<i64>; 15] = [
        column(|minute| minute.push_requests),
        column(|minute| minute.push_messages),
        column(|minute| minute.pop_requests),
        column(|minute| minute.pop_messages),
        column(|minute| minute.pop_empty),
        column(|minute| minute.ack_requests),
        column(|minute| minute.ack_success),
        column(|minute| minute.ack_failed),
        column(|minute| minute.transactions),
        column(|minute| minute.dead_letters),
        column(|minute| minute.lag_us),
        column(|minute| minute.lag_count),
        column(|minute| minute.lag_us_max),
        batch.lines.iter().map(|line| int(line.2)).collect(),
        column(|minute| minute.partitions_created),
    ];
    let (names, values) = (&ClusterTotals::NAMES[..], batch.totals.values().map(int).to_vec());
    let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&broker, &batch.number, &minute, &queues];
    parameters.extend(columns.iter().map(|column| column as &(dyn ToSql + Sync)));
    parameters.extend([&batch.row as &(dyn ToSql + Sync), &names, &values]);
    let sql = "select * from queen.record_minute($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
                                                 $17, $18, $19, $20, $21, $22)";
    Ok(totals(&many(connections, "queen.record_minute", sql, &parameters).await?))
}

pub async fn cluster_totals(connections: &Connections) -> Result<ClusterTotals, Error> {
    let sql = "select * from queen.cluster_totals()";
    Ok(totals(&many(connections, "queen.cluster_totals", sql, &[]).await?))
}

fn totals(rows: &[Row]) -> ClusterTotals {
    let value = |name: &str| {
        let row = rows.iter().find(|row| row.get::<_, &str>(0) == name);
        row.map_or(0, |row| count(row, "value"))
    };
    ClusterTotals::from_values(ClusterTotals::NAMES.map(value))
}

/// What a queue did in one minute, in the whole cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueRate {
    pub queue: String,
    pub push_messages: u64,
    pub pop_messages: u64,
    pub pop_empty: u64,
    pub acks: u64,
    pub transactions: u64,
    /// Over delivered messages: the sum of their ages, how many there were, and the highest age.
    pub lag_us: u64,
    pub lag_count: u64,
    pub lag_us_max: u64,
    /// The most pops that waited at once.
    pub parked: u64,
}

/// Busiest first.
pub async fn queue_rates(
    connections: &Connections,
    minute: i64,
    limit: i64,
) -> Result<Vec<QueueRate>, Error> {
    let minute = clock::system_time(minute);
    let sql = "select * from queen.queue_rates($1, $2)";
    let rows = many(connections, "queen.queue_rates", sql, &[&minute, &limit]).await?;
    let rate = |row: &Row| QueueRate {
        queue: row.get("queue_name"),
        push_messages: count(row, "push_messages"),
        pop_messages: count(row, "pop_messages"),
        pop_empty: count(row, "pop_empty"),
        acks: count(row, "acks"),
        transactions: count(row, "transactions"),
        lag_us: count(row, "lag_us"),
        lag_count: count(row, "lag_count"),
        lag_us_max: count(row, "lag_us_max"),
        parked: count(row, "parked"),
    };
    Ok(rows.iter().map(rate).collect())
}

/// Returns whether there may be more to fold.
pub async fn fold_minutes(connections: &Connections, older_than: Duration) -> Result<bool, Error> {
    let sql = "select queen.fold_minutes(make_interval(secs => $1))";
    Ok(one(connections, "queen.fold_minutes", sql, &[&older_than.as_secs_f64()]).await?.get(0))
}

pub async fn sweep_minutes(
    connections: &Connections,
    older_than: Duration,
    batch: i64,
) -> Result<i64, Error> {
    let sql = "select queen.sweep_minutes(make_interval(secs => $1), $2)";
    Ok(one(connections, "queen.sweep_minutes", sql, &[&older_than.as_secs_f64(), &batch]).await?.get(0))
}

/// A range of time, and a filter on it.
#[derive(Debug, Clone, Default)]
pub struct Asked<'a> {
    /// Microseconds since 1970.
    pub from: i64,
    pub to: i64,
    /// Minutes in a step.
    pub bucket: i32,
    pub queue: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub task: Option<&'a str>,
    pub hostname: Option<&'a str>,
    pub worker_id: Option<&'a str>,
}

impl Asked<'_> {
    fn range(&self) -> (SystemTime, SystemTime) {
        (clock::system_time(self.from), clock::system_time(self.to))
    }
}

/// One step of history, of the whole cluster or of some queues or brokers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Point {
    /// Its beginning, in microseconds since 1970.
    pub at: i64,
    pub counts: Minute,
    /// Samples of brokers; `loop_lag_us`, `free_slots` and `waiting` are sums over them.
    pub samples: u64,
    pub loop_lag_us: u64,
    pub loop_lag_us_max: u64,
    pub free_slots: u64,
    pub free_slots_min: u64,
    pub waiting: u64,
    pub waiting_max: u64,
    pub parked: u64,
    pub flights: u64,
    pub db_errors: u64,
    /// Messages removed because of their age, because all groups had read them, because not all had in time; and how
    /// often any were.
    pub expired_age: u64,
    pub expired_completed: u64,
    pub expired_wait: u64,
    pub expiries: u64,
    /// Of all brokers together, averaged over the step. Processor time in hundredths of a percent of a core.
    pub db_connections: f64,
    pub cpu_user: f64,
    pub cpu_system: f64,
    pub rss_bytes: f64,
    pub pool_active: f64,
    pub pool_idle: f64,
    pub pool_size: f64,
}

/// Oldest first.
pub async fn series(connections: &Connections, ask: &Asked<'_>) -> Result<Vec<Point>, Error> {
    let (from, to) = ask.range();
    let sql = "select * from queen.series($1, $2, $3, $4, $5, $6, $7, $8)";
    let parameters: [&(dyn ToSql + Sync); 8] =
        [&from, &to, &ask.bucket, &ask.queue, &ask.namespace, &ask.task, &ask.hostname, &ask.worker_id];
    let rows = many(connections, "queen.series", sql, &parameters).await?;
    let point = |row: &Row| Point {
        at: clock::micros(row.get("at")),
        counts: counts(row),
        samples: count(row, "samples"),
        loop_lag_us: count(row, "loop_lag_us"),
        loop_lag_us_max: count(row, "loop_lag_us_max"),
        free_slots: count(row, "free_slots"),
        free_slots_min: count(row, "free_slots_min"),
        waiting: count(row, "waiting"),
        waiting_max: count(row, "waiting_max"),
        parked: count(row, "parked"),
        flights: count(row, "flights"),
        db_errors: count(row, "db_errors"),
        expired_age: count(row, "expired_age"),
        expired_completed: count(row, "expired_completed"),
        expired_wait: count(row, "expired_wait"),
        expiries: count(row, "expiries"),
        db_connections: row.get("db_connections"),
        cpu_user: row.get("cpu_user"),
        cpu_system: row.get("cpu_system"),
        rss_bytes: row.get("rss_bytes"),
        pool_active: row.get("pool_active"),
        pool_idle: row.get("pool_idle"),
        pool_size: row.get("pool_size"),
    };
    Ok(rows.iter().map(point).collect())
}

/// The measurements of one broker over a range.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    pub hostname: String,
    pub port: i32,
    pub worker_id: String,
    /// As in `Point`.
    pub samples: u64,
    pub loop_lag_us: u64,
    pub loop_lag_us_max: u64,
    pub free_slots: u64,
    pub waiting: u64,
    pub db_connections: u64,
    /// Pushed, delivered and acknowledged.
    pub messages: u64,
}

pub async fn workers(connections: &Connections, ask: &Asked<'_>) -> Result<Vec<Worker>, Error> {
    let (from, to) = ask.range();
    let sql = "select * from queen.workers($1, $2, $3, $4)";
    let rows = many(connections, "queen.workers", sql, &[&from, &to, &ask.hostname, &ask.worker_id]).await?;
    let worker = |row: &Row| Worker {
        hostname: row.get("hostname"),
        port: row.get("port"),
        worker_id: row.get("worker_id"),
        samples: count(row, "samples"),
        loop_lag_us: count(row, "loop_lag_us"),
        loop_lag_us_max: count(row, "loop_lag_us_max"),
        free_slots: count(row, "free_slots"),
        waiting: count(row, "waiting"),
        db_connections: count(row, "db_connections"),
        messages: count(row, "messages"),
    };
    Ok(rows.iter().map(worker).collect())
}

/// One measurement of a broker about itself in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    pub hostname: String,
    pub port: i32,
    pub worker_id: String,
    pub at: i64,
    pub samples: u64,
    /// A path, with dots between its parts.
    pub name: String,
    pub average: f64,
    pub lowest: f64,
    pub highest: f64,
    pub latest: f64,
}

/// Grouped by broker, oldest first.
pub async fn broker_metrics(connections: &Connections, ask: &Asked<'_>) -> Result<Vec<Metric>, Error> {
    let (from, to) = ask.range();
    let sql = "select * from queen.broker_metrics($1, $2, $3, $4, $5)";
    let parameters: [&(dyn ToSql + Sync); 5] = [&from, &to, &ask.bucket, &ask.hostname, &ask.worker_id];
    let rows = many(connections, "queen.broker_metrics", sql, &parameters).await?;
    let metric = |row: &Row| Metric {
        hostname: row.get("hostname"),
        port: row.get("port"),
        worker_id: row.get("worker_id"),
        at: clock::micros(row.get("at")),
        samples: count(row, "samples"),
        name: row.get("name"),
        average: row.get("average"),
        lowest: row.get("lowest"),
        highest: row.get("highest"),
        latest: row.get("latest"),
    };
    Ok(rows.iter().map(metric).collect())
}

/// One step of a queue's history.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuePoint {
    pub at: i64,
    pub queue: String,
    pub counts: Minute,
    /// The most pops that waited at once.
    pub parked: u64,
    pub partitions_deleted: u64,
}

/// Oldest first. `bucket`: `None` = the whole range is one step; `limit`: how many queues, the busiest.
pub async fn queue_series(
    connections: &Connections,
    ask: &Asked<'_>,
    bucket: Option<i32>,
    limit: i64,
) -> Result<Vec<QueuePoint>, Error> {
    let (from, to) = ask.range();
    let sql = "select * from queen.queue_series($1, $2, $3, $4, $5, $6, $7)";
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&from, &to, &bucket, &ask.queue, &ask.namespace, &ask.task, &limit];
    let rows = many(connections, "queen.queue_series", sql, &parameters).await?;
    let point = |row: &Row| QueuePoint {
        at: clock::micros(row.get("at")),
        queue: row.get("queue_name"),
        counts: Minute { partitions_created: count(row, "partitions_created"), ..counts(row) },
        parked: count(row, "parked"),
        partitions_deleted: count(row, "partitions_deleted"),
    };
    Ok(rows.iter().map(point).collect())
}

pub async fn partition_counts(
    connections: &Connections,
    queues: &[&str],
) -> Result<std::collections::HashMap<String, u64>, Error> {
    let sql = "select * from queen.partition_counts($1)";
    let rows = many(connections, "queen.partition_counts", sql, &[&queues]).await?;
    Ok(rows.iter().map(|row| (row.get(0), count(row, "partitions"))).collect())
}

/// The most pops of a queue that one broker had parked at once in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedPoint {
    pub at: i64,
    pub queue: String,
    pub hostname: String,
    pub worker_id: String,
    pub parked: u64,
}

pub async fn parked_series(
    connections: &Connections,
    ask: &Asked<'_>,
    limit: i64,
) -> Result<Vec<ParkedPoint>, Error> {
    let (from, to) = ask.range();
    let sql = "select * from queen.parked_series($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let parameters: [&(dyn ToSql + Sync); 9] = [
        &from,
        &to,
        &ask.bucket,
        &ask.queue,
        &ask.namespace,
        &ask.task,
        &ask.hostname,
        &ask.worker_id,
        &limit,
    ];
    let rows = many(connections, "queen.parked_series", sql, &parameters).await?;
    let point = |row: &Row| ParkedPoint {
        at: clock::micros(row.get("at")),
        queue: row.get("queue_name"),
        hostname: row.get("hostname"),
        worker_id: row.get("worker_id"),
        parked: count(row, "parked"),
    };
    Ok(rows.iter().map(point).collect())
}

/// JSON, as it is sent to clients.
pub async fn postgres_stats(connections: &Connections) -> Result<String, Error> {
    let sql = "select queen.postgres_stats()::text";
    Ok(one(connections, "queen.postgres_stats", sql, &[]).await?.get(0))
}

fn counts(row: &Row) -> Minute {
    Minute {
        push_requests: count(row, "push_requests"),
        push_messages: count(row, "push_messages"),
        pop_requests: count(row, "pop_requests"),
        pop_messages: count(row, "pop_messages"),
        pop_empty: count(row, "pop_empty"),
        ack_requests: count(row, "ack_requests"),
        ack_success: count(row, "ack_success"),
        ack_failed: count(row, "ack_failed"),
        transactions: count(row, "transactions"),
        dead_letters: count(row, "dead_letters"),
        partitions_created: 0,
        lag_us: count(row, "lag_us"),
        lag_count: count(row, "lag_count"),
        lag_us_max: count(row, "lag_us_max"),
    }
}

/// For columns that are never negative.
fn count(row: &Row, column: &str) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or(0)
}

fn int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
