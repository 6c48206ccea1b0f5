//! One typed function per procedure of the control plane. Calls are rare, so statements are not prepared ahead.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use queen_protocol::{Configure, OperationStats, OperationStatus, QueueOptions};
use serde_json::value::RawValue;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::{Checkout, Connection, Connections, Error, error_chain};
use crate::clock;
use crate::doctor::Facts;
use crate::load::Pulse;

pub(super) async fn many(
    connections: &Connections,
    procedure: &'static str,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    let call = |db: Checkout| async move { db.within(procedure, db.client.query(sql, parameters)).await };
    connections.persist(call).await
}

pub(super) async fn one(
    connections: &Connections,
    procedure: &'static str,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Row, Error> {
    let rows = many(connections, procedure, sql, parameters).await?;
    rows.into_iter().next().ok_or_else(|| Error::Unexpected { procedure, cause: "no row".to_owned() })
}

pub struct Configured {
    pub id: Uuid,
    pub namespace: String,
    pub task: String,
    pub options: QueueOptions,
}

/// `note`, here and below, is sent to all brokers with the commit: what they remember is no longer true. `None`: the
/// limit on queues is reached.
pub async fn configure(
    connections: &Connections,
    ask: &Configure,
    note: &str,
) -> Result<Option<Configured>, Error> {
    let columns = serde_json::Value::Object(ask.columns.clone()).to_string();
    let sql = "select c.id, c.namespace, c.task, to_jsonb(c)::text
               from queen.configure_queue($1, $2, $3, $4::text::jsonb) c, pg_notify('queen', $5)";
    let parameters: [&(dyn ToSql + Sync); 5] = [&ask.queue, &ask.namespace, &ask.task, &columns, &note];
    let rows = many(connections, "queen.configure_queue", sql, &parameters).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let options = options("queen.configure_queue", row.get(3))?;
    Ok(Some(Configured { id: row.get(0), namespace: row.get(1), task: row.get(2), options }))
}

pub async fn queue_exists(connections: &Connections, queue: &str) -> Result<bool, Error> {
    Ok(one(connections, "queen.queue_exists", "select queen.queue_exists($1)", &[&queue]).await?.get(0))
}

/// Sets the rules for queues that are pushed to from SQL.
pub async fn rule_queues(connections: &Connections, auto_create: bool, max: i32) -> Result<(), Error> {
    let sql = "select queen.rule_queues($1, $2)";
    one(connections, "queen.rule_queues", sql, &[&auto_create, &max]).await.map(drop)
}

/// Unqualified names mean schema `public` in later sessions of our role.
pub async fn lead_to_public(connections: &Connections) -> Result<(), Error> {
    one(connections, "queen.lead_to_public", "select queen.lead_to_public()", &[]).await.map(drop)
}

/// Whether a group reads a queue.
pub async fn reads(connections: &Connections, group: &str, queue: &str) -> Result<bool, Error> {
    Ok(one(connections, "queen.reads", "select queen.reads($1, $2)", &[&group, &queue]).await?.get(0))
}

/// From a row of `queen.queues` as JSON.
pub(super) fn options(procedure: &'static str, row: &str) -> Result<QueueOptions, Error> {
    serde_json::from_str(row).map_err(|error| Error::Unexpected { procedure, cause: error.to_string() })
}

pub async fn delete_queue(connections: &Connections, queue: &str, note: &str) -> Result<bool, Error> {
    let sql = "select queen.delete_queue($1), pg_notify('queen', $2)";
    Ok(one(connections, "queen.delete_queue", sql, &[&queue, &note]).await?.get(0))
}

pub async fn queues_matching(
    connections: &Connections,
    namespace: Option<&str>,
    task: Option<&str>,
) -> Result<Vec<String>, Error> {
    let sql = "select * from queen.queues_matching($1, $2)";
    let rows = many(connections, "queen.queues_matching", sql, &[&namespace, &task]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[derive(Debug, Clone)]
pub struct QueueLabels {
    pub name: String,
    pub namespace: String,
    pub task: String,
}

pub async fn queues_labelled(
    connections: &Connections,
    names: &[&str],
    namespaces: &[&str],
    tasks: &[&str],
) -> Result<Vec<QueueLabels>, Error> {
    let sql = "select * from queen.queues_labelled($1, $2, $3)";
    let rows = many(connections, "queen.queues_labelled", sql, &[&names, &namespaces, &tasks]).await?;
    let labels = |row: &Row| QueueLabels { name: row.get(0), namespace: row.get(1), task: row.get(2) };
    Ok(rows.iter().map(labels).collect())
}

/// What was deleted of a consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletedGroup {
    pub cursors: i64,
    /// Where it had registered to start.
    pub registrations: bool,
}

pub async fn delete_group(
    connections: &Connections,
    group: &str,
    queue: Option<&str>,
    metadata: bool,
    note: &str,
) -> Result<DeletedGroup, Error> {
    // A stable function sees the data as it was when the statement began.
    let sql =
        "select queen.delete_group($1, $2, $3), $3 and queen.registered($1, $2), pg_notify('queen', $4)";
    let row = one(connections, "queen.delete_group", sql, &[&group, &queue, &metadata, &note]).await?;
    Ok(DeletedGroup { cursors: row.get(0), registrations: row.get(1) })
}

pub async fn set_subscription(
    connections: &Connections,
    group: &str,
    since: i64,
    note: &str,
) -> Result<i64, Error> {
    let since = clock::system_time(since);
    let sql = "select queen.set_subscription($1, $2), pg_notify('queen', $3)";
    Ok(one(connections, "queen.set_subscription", sql, &[&group, &since, &note]).await?.get(0))
}

/// `partition`: `None` = all; `time`: `None` = to the end; `create`: also if the group does not read the queue yet,
/// which otherwise returns `None`.
pub async fn seek(
    connections: &Connections,
    group: &str,
    queue: &str,
    partition: Option<&str>,
    time: Option<i64>,
    create: bool,
    note: &str,
) -> Result<Option<i64>, Error> {
    let time: Option<SystemTime> = time.map(clock::system_time);
    let sql = "select queen.seek_group($1, $2, $3, $4, $5, $6), pg_notify('queen', $7)";
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&group, &queue, &partition, &time.is_none(), &time, &create, &note];
    Ok(one(connections, "queen.seek_group", sql, &parameters).await?.get(0))
}

/// What a seek would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeekForecast {
    pub partitions: i64,
    /// Messages the group has passed and would read again.
    pub replayed: i64,
    /// Messages it would not read any more.
    pub skipped: i64,
    /// The offset it would read next. Of several partitions: the highest of them; of none: 0.
    pub lands: i64,
}

/// Like `seek`, but moves nothing.
pub async fn seek_forecast(
    connections: &Connections,
    group: &str,
    queue: &str,
    partition: Option<&str>,
    time: Option<i64>,
) -> Result<SeekForecast, Error> {
    let time: Option<SystemTime> = time.map(clock::system_time);
    let sql = "select * from queen.seek_forecast($1, $2, $3, $4, $5)";
    let parameters: [&(dyn ToSql + Sync); 5] = [&group, &queue, &partition, &time.is_none(), &time];
    let row = one(connections, "queen.seek_forecast", sql, &parameters).await?;
    let lands: Option<i64> = row.get("lands");
    Ok(SeekForecast {
        partitions: row.get("partitions"),
        replayed: row.get("replayed"),
        skipped: row.get("skipped"),
        lands: lands.unwrap_or(0),
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub queue: Uuid,
    /// `age`, `completed` or `wait`, as in retention.sql.
    pub kind: String,
    pub seconds: i32,
    pub cutoff: SystemTime,
}

pub async fn retention_policies(connections: &Connections) -> Result<Vec<Policy>, Error> {
    let rows = many(connections, "queen.retention_policies", "select * from queen.retention_policies()", &[])
        .await?;
    let policy =
        |row: &Row| Policy { queue: row.get(0), kind: row.get(1), seconds: row.get(2), cutoff: row.get(3) };
    Ok(rows.iter().map(policy).collect())
}

/// A partition whose messages below an offset have expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    pub queue: Uuid,
    pub partition: Uuid,
    pub offset: i64,
}

/// `from`: `None` = look at everything.
pub async fn expired(
    connections: &Connections,
    queues: &[Uuid],
    from: Option<SystemTime>,
    cutoff: SystemTime,
) -> Result<Vec<Expired>, Error> {
    let sql = "select h.queue_id, e.partition_id, e.message_offset
        from queen.expired_since($1, coalesce($2, '-infinity'::timestamptz), $3) e
        cross join lateral queen.head_of(e.partition_id) h";
    let rows = many(connections, "queen.expired_since", sql, &[&queues, &from, &cutoff]).await?;
    let expired = |row: &Row| Expired { queue: row.get(0), partition: row.get(1), offset: row.get(2) };
    Ok(rows.iter().map(expired).collect())
}

/// How many messages were removed, and what has to be passed in again. Removes nothing under a policy that is no
/// longer in force.
pub async fn apply_policy(
    connections: &Connections,
    kind: &str,
    seconds: i32,
    expired: &[Expired],
) -> Result<(i64, Vec<Expired>), Error> {
    let partitions: Vec<Uuid> = expired.iter().map(|one| one.partition).collect();
    let offsets: Vec<i64> = expired.iter().map(|one| one.offset).collect();
    let sql = "select * from queen.apply_policy($1, $2, $3, $4)";
    let rows =
        many(connections, "queen.apply_policy", sql, &[&kind, &seconds, &partitions, &offsets]).await?;
    let removed = rows.iter().map(|row| row.get::<_, i64>(1)).sum();
    let waiting = rows.iter().filter(|row| row.get(2)).map(|row| expired[row.get::<_, i32>(0) as usize - 1]);
    Ok((removed, waiting.collect()))
}

pub async fn touch_groups(connections: &Connections, pairs: &[(Arc<str>, Arc<str>)]) -> Result<(), Error> {
    let queues: Vec<&str> = pairs.iter().map(|(queue, _)| &**queue).collect();
    let groups: Vec<&str> = pairs.iter().map(|(_, group)| &**group).collect();
    let sql = "select queen.touch_groups($1, $2)";
    one(connections, "queen.touch_groups", sql, &[&queues, &groups]).await.map(drop)
}

/// How many registrations were removed; fewer than `batch` means that none are left.
pub async fn remove_unused_groups(
    connections: &Connections,
    older_than: Duration,
    batch: i32,
) -> Result<i32, Error> {
    let sql = "select queen.remove_unused_groups(make_interval(secs => $1), $2)";
    let seconds = older_than.as_secs_f64();
    Ok(one(connections, "queen.remove_unused_groups", sql, &[&seconds, &batch]).await?.get(0))
}

pub async fn remove_idle_partitions(
    connections: &Connections,
    older_than: Duration,
    batch: i32,
) -> Result<i32, Error> {
    let sql = "select queen.remove_idle_partitions(make_interval(secs => $1), $2)";
    let seconds = older_than.as_secs_f64();
    Ok(one(connections, "queen.remove_idle_partitions", sql, &[&seconds, &batch]).await?.get(0))
}

pub async fn rotate_extent(
    connections: &Connections,
    bytes: i64,
    age: Duration,
) -> Result<Option<i32>, Error> {
    let sql = "select queen.rotate_extent($1, make_interval(secs => $2))";
    Ok(one(connections, "queen.rotate_extent", sql, &[&bytes, &age.as_secs_f64()]).await?.get(0))
}

/// The extent that was dropped and how many segments were copied out of it; `None`: nothing to do.
pub async fn drop_extent(connections: &Connections) -> Result<Option<(i32, i64)>, Error> {
    let rows = many(connections, "queen.drop_extents", "select * from queen.drop_extents()", &[]).await?;
    Ok(rows.first().map(|row| (row.get(0), row.get(1))))
}

pub async fn pulse(connections: &Connections) -> Result<Pulse, Error> {
    let asked = clock::now();
    let row = one(connections, "queen.pulse", "select * from queen.pulse()", &[]).await?;
    Ok(Pulse {
        depth: u64::try_from(row.get::<_, i64>(0)).unwrap_or(0),
        oldest_age: Duration::from_secs_f64(row.get::<_, f64>(1).max(0.0)),
        maintenance: row.get(2),
        pop_maintenance: row.get(3),
        took: clock::now() - asked,
    })
}

/// `thorough`: includes checks that take a while.
pub async fn doctor_facts(connections: &Connections, thorough: bool) -> Result<Facts, Error> {
    let row = one(connections, "queen.diagnose", DOCTOR_FACTS, &[&thorough]).await?;
    facts(&row).map_err(|cause| Error::Unexpected { procedure: "queen.diagnose", cause })
}

/// The same for callers without an engine.
pub async fn doctor_facts_alone(client: &Client, thorough: bool) -> Result<Facts, String> {
    let row = client.query_one(DOCTOR_FACTS, &[&thorough]).await.map_err(|error| error_chain(&error))?;
    facts(&row)
}

const DOCTOR_FACTS: &str = "select queen.diagnose($1)::text";

fn facts(row: &Row) -> Result<Facts, String> {
    serde_json::from_str(row.get(0)).map_err(|error| format!("queen.diagnose is of another version: {error}"))
}

pub async fn set_setting(connections: &Connections, name: &str, on: bool) -> Result<(), Error> {
    let sql = "select queen.set_setting($1, to_jsonb($2::boolean))";
    one(connections, "queen.set_setting", sql, &[&name, &on]).await.map(drop)
}

/// The next record of a spool to be moved into the log.
pub async fn spool_position(connections: &Connections, spool: Uuid) -> Result<u64, Error> {
    let row = one(connections, "queen.spool_position", "select queen.spool_position($1)", &[&spool]).await?;
    Ok(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0))
}

/// In the caller's transaction; `false`: the position was not the expected one.
pub async fn move_spool(db: &Connection, spool: Uuid, from: u64, to: u64) -> Result<bool, Error> {
    let (from, to) = (i64::try_from(from).unwrap_or(i64::MAX), i64::try_from(to).unwrap_or(i64::MAX));
    let parameters: [&(dyn ToSql + Sync); 3] = [&spool, &from, &to];
    let call = db.client.query_one("select queen.move_spool($1, $2, $3)", &parameters);
    Ok(db.within("queen.move_spool", call).await?.get(0))
}

pub async fn sweep_deferred(connections: &Connections, older_than: Duration) -> Result<i64, Error> {
    let sql = "select queen.sweep_deferred(make_interval(secs => $1))";
    Ok(one(connections, "queen.sweep_deferred", sql, &[&older_than.as_secs_f64()]).await?.get(0))
}

#[derive(Debug, Clone, Default)]
pub struct Operations<'a> {
    pub id: Option<Uuid>,
    pub status: Option<&'a str>,
    pub queue: Option<&'a str>,
    pub older_than: Option<Duration>,
    pub limit: i64,
    pub offset: i64,
}

pub async fn operations(
    connections: &Connections,
    ask: &Operations<'_>,
) -> Result<Vec<OperationStatus>, Error> {
    let older_than = ask.older_than.map(|age| age.as_secs_f64());
    let sql = "select * from queen.operations($1, $2, $3, make_interval(secs => $4), $5, $6)";
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&ask.id, &ask.status, &ask.queue, &older_than, &ask.limit, &ask.offset];
    let rows = many(connections, "queen.operations", sql, &parameters).await?;
    let time = |row: &Row, name| row.get::<_, Option<SystemTime>>(name).map(clock::millis);
    let operation = |row: &Row| OperationStatus {
        id: row.get("id"),
        operation_type: row.get("kind"),
        queue_name: row.get("queue_name"),
        partition_name: row.get("partition_name"),
        status: row.get("status"),
        priority: row.get("priority"),
        created_at: time(row, "created_at"),
        processing_started_at: time(row, "started_at"),
        processed_at: time(row, "finished_at"),
        retry_count: row.get("attempts"),
        error_message: row.get("error"),
        latency_seconds: row.get("latency_seconds"),
        messages: row.get("messages"),
        worker: row.get("worker"),
        result: row.get::<_, Option<String>>("result").and_then(|json| RawValue::from_string(json).ok()),
    };
    Ok(rows.iter().map(operation).collect())
}

pub async fn operations_stats(connections: &Connections) -> Result<Vec<OperationStats>, Error> {
    let sql = "select * from queen.operations_stats()";
    let rows = many(connections, "queen.operations_stats", sql, &[]).await?;
    let stats = |row: &Row| OperationStats {
        operation_type: row.get("kind"),
        priority: row.get("priority"),
        status: row.get("status"),
        count: row.get("count"),
        oldest: clock::millis(row.get("oldest")),
        newest: clock::millis(row.get("newest")),
        avg_latency_seconds: row.get("avg_latency_seconds"),
    };
    Ok(rows.iter().map(stats).collect())
}

/// The current status; `None`: there is no such operation.
pub async fn cancel_operation(connections: &Connections, id: Uuid) -> Result<Option<String>, Error> {
    Ok(one(connections, "queen.cancel_deferred", "select queen.cancel_deferred($1)", &[&id]).await?.get(0))
}

/// The current status; `None`: there is no such operation, or its partition no longer exists.
pub async fn retry_operation(connections: &Connections, id: Uuid) -> Result<Option<String>, Error> {
    Ok(one(connections, "queen.retry_deferred", "select queen.retry_deferred($1)", &[&id]).await?.get(0))
}

/// The database's clock, in microseconds since 1970.
pub async fn now(connections: &Connections) -> Result<i64, Error> {
    Ok(clock::micros(one(connections, "queen.now", "select queen.now()", &[]).await?.get(0)))
}

pub async fn notify(connections: &Connections, notes: &[String]) -> Result<(), Error> {
    let sql = "select pg_notify('queen', n) from unnest($1::text[]) n";
    many(connections, "pg_notify", sql, &[&notes]).await.map(drop)
}
