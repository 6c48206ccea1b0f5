//! One typed function per procedure that reads or changes single messages.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::{many, one};
use super::{Connections, Error};
use crate::clock;

/// Which partitions are meant; `None` = any.
#[derive(Debug, Clone, Default)]
pub struct Scope<'a> {
    pub queue: Option<&'a str>,
    pub partition: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub task: Option<&'a str>,
}

/// Messages of one segment that are still stored: the offsets from `first` to `last`, except the gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub partition: Uuid,
    /// The part of a message id that identifies the partition.
    pub number: i64,
    pub first: i64,
    pub last: i64,
    pub created_at: i64,
    pub gaps: Vec<i64>,
}

pub async fn has_queue(connections: &Connections, queue: &str) -> Result<bool, Error> {
    Ok(one(connections, "queen.has_queue", "select queen.has_queue($1)", &[&queue]).await?.get(0))
}

/// At most `limit` partitions, with their numbers.
pub async fn partitions_within(
    connections: &Connections,
    scope: &Scope<'_>,
    limit: i32,
) -> Result<Vec<(Uuid, i64)>, Error> {
    let sql = "select * from queen.partitions_within($1, $2, $3, $4, $5)";
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&scope.queue, &scope.partition, &scope.namespace, &scope.task, &limit];
    let rows = many(connections, "queen.partitions_within", sql, &parameters).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Per partition: the newest segments below an offset, or, with `None`, of those not newer than a time. Each comes
/// with the offset below which to continue.
pub async fn newest_spans(
    connections: &Connections,
    partitions: &[(Uuid, i64)],
    before: &[Option<i64>],
    until: i64,
    limit: i32,
) -> Result<Vec<(usize, i64, Span)>, Error> {
    let ids: Vec<Uuid> = partitions.iter().map(|partition| partition.0).collect();
    let until = clock::system_time(until);
    let sql = "select * from queen.newest_spans($1, $2, $3, $4)";
    let rows = many(connections, "queen.newest_spans", sql, &[&ids, &before, &until, &limit]).await?;
    let span = |row: &Row| {
        let position = row.get::<_, i32>(0) as usize - 1;
        let (partition, number) = partitions[position];
        let span = Span {
            partition,
            number,
            first: row.get(2),
            last: row.get(3),
            created_at: clock::micros(row.get(4)),
            gaps: row.get::<_, Option<Vec<i64>>>(5).unwrap_or_default(),
        };
        (position, row.get(1), span)
    };
    Ok(rows.iter().map(span).collect())
}

/// How many segments were looked at, and those of the scope; none if there were more than `limit`.
pub async fn spans_between(
    connections: &Connections,
    scope: &Scope<'_>,
    after: i64,
    until: i64,
    limit: i32,
) -> Result<(i32, Vec<Span>), Error> {
    let (after, until) = (clock::system_time(after), clock::system_time(until));
    let sql = "select * from queen.spans_between($1, $2, $3, $4, $5, $6, $7)";
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&scope.queue, &scope.partition, &scope.namespace, &scope.task, &after, &until, &limit];
    let rows = many(connections, "queen.spans_between", sql, &parameters).await?;
    let looked = rows.first().map_or(0, |row| row.get(0));
    let span = |row: &Row| {
        Some(Span {
            partition: row.get::<_, Option<Uuid>>(1)?,
            number: row.get(2),
            first: row.get(3),
            last: row.get(4),
            created_at: clock::micros(row.get(5)),
            gaps: row.get::<_, Option<Vec<i64>>>(6).unwrap_or_default(),
        })
    };
    Ok((looked, rows.iter().filter_map(span).collect()))
}

/// Where a group stands in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    pub group: String,
    pub cursor: i64,
    /// Of a live lease: the offset it ends at, and its expiry.
    pub lease: Option<(i64, i64)>,
    /// Messages that the group will not get although its cursor has not passed them.
    pub skipped: Vec<i64>,
}

pub async fn readers_at(
    connections: &Connections,
    partitions: &[Uuid],
) -> Result<Vec<(Uuid, Reader)>, Error> {
    let sql = "select * from queen.readers_at($1)";
    let rows = many(connections, "queen.readers_at", sql, &[&partitions]).await?;
    let reader = |row: &Row| {
        let (end, until): (Option<i64>, Option<SystemTime>) = (row.get(3), row.get(4));
        let reader = Reader {
            group: row.get(1),
            cursor: row.get(2),
            lease: end.zip(until.map(clock::micros)),
            skipped: row.get::<_, Option<Vec<i64>>>(5).unwrap_or_default(),
        };
        (row.get(0), reader)
    };
    Ok(rows.iter().map(reader).collect())
}

/// Which messages of these spans are dead letters.
pub async fn dead_between(connections: &Connections, spans: &[Span]) -> Result<Vec<(Uuid, i64)>, Error> {
    let partitions: Vec<Uuid> = spans.iter().map(|span| span.partition).collect();
    let first: Vec<i64> = spans.iter().map(|span| span.first).collect();
    let last: Vec<i64> = spans.iter().map(|span| span.last).collect();
    let sql = "select * from queen.dead_between($1, $2, $3)";
    let rows = many(connections, "queen.dead_between", sql, &[&partitions, &first, &last]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// A message with the options of its queue.
#[derive(Debug, Clone)]
pub struct MessageRow {
    pub created_at: i64,
    pub frame: String,
    pub number: i64,
    pub queue: String,
    pub partition: String,
    pub namespace: String,
    pub task: String,
    pub priority: i32,
    pub lease_time: i32,
    pub retry_limit: i32,
    pub retry_delay: i32,
    pub ttl: i32,
    /// Its last dead letter: the error, and the retries that were counted.
    pub dead: Option<(Option<String>, i32)>,
}

/// In the order asked; `None` for a message that no longer exists.
pub async fn messages_at(
    connections: &Connections,
    places: &[(Uuid, i64)],
) -> Result<Vec<Option<MessageRow>>, Error> {
    let partitions: Vec<Uuid> = places.iter().map(|place| place.0).collect();
    let offsets: Vec<i64> = places.iter().map(|place| place.1).collect();
    let sql = "select * from queen.messages_at($1, $2)";
    let rows = many(connections, "queen.messages_at", sql, &[&partitions, &offsets]).await?;
    let mut found: Vec<Option<MessageRow>> = places.iter().map(|_| None).collect();
    for row in &rows {
        found[row.get::<_, i32>(0) as usize - 1] = Some(message(row));
    }
    Ok(found)
}

/// The message of a dead letter, which may have left the log: its id, its offset, and the rest.
pub async fn dead_message(
    connections: &Connections,
    partition: Uuid,
    transaction: &str,
) -> Result<Option<(Uuid, i64, MessageRow)>, Error> {
    let sql = "select * from queen.dead_message($1, $2)";
    let rows = many(connections, "queen.dead_message", sql, &[&partition, &transaction]).await?;
    Ok(rows.first().map(|row| (row.get("message_id"), row.get("message_offset"), message(row))))
}

fn message(row: &Row) -> MessageRow {
    let dead: bool = row.get("dead");
    MessageRow {
        created_at: clock::micros(row.get("created_at")),
        frame: row.get("frame"),
        number: row.get("number"),
        queue: row.get("queue_name"),
        partition: row.get("partition_name"),
        namespace: row.get("namespace"),
        task: row.get("task"),
        priority: row.get("priority"),
        lease_time: row.get("lease_time"),
        retry_limit: row.get("retry_limit"),
        retry_delay: row.get("retry_delay"),
        ttl: row.get("ttl"),
        dead: dead.then(|| (row.get("error"), row.get("attempts"))),
    }
}

pub async fn find_message(
    connections: &Connections,
    partition: Uuid,
    hashes: &[u8],
) -> Result<Option<i64>, Error> {
    let sql = "select queen.find_message($1, $2)";
    Ok(one(connections, "queen.find_message", sql, &[&partition, &hashes]).await?.get(0))
}

/// Returns whether there was something to delete.
pub async fn delete_message(
    connections: &Connections,
    partition: Uuid,
    hashes: &[u8],
    transaction: &str,
) -> Result<bool, Error> {
    let sql = "select queen.delete_message($1, $2, $3)";
    let parameters: [&(dyn ToSql + Sync); 3] = [&partition, &hashes, &transaction];
    Ok(one(connections, "queen.delete_message", sql, &parameters).await?.get(0))
}

/// The procedure's outcome, and of the dead letter the message id and the time of failure.
pub async fn bury_message(
    connections: &Connections,
    partition: Uuid,
    hashes: &[u8],
    group: &str,
    error: Option<&str>,
) -> Result<(String, Option<(Uuid, i64)>), Error> {
    let sql = "select * from queen.bury_message($1, $2, $3, $4)";
    let parameters: [&(dyn ToSql + Sync); 4] = [&partition, &hashes, &group, &error];
    let row = one(connections, "queen.bury_message", sql, &parameters).await?;
    let (id, at): (Option<Uuid>, Option<SystemTime>) = (row.get(1), row.get(2));
    Ok((row.get(0), id.zip(at.map(clock::micros))))
}

/// Deletes skips of messages that have left the log.
pub async fn sweep_skips(connections: &Connections) -> Result<i64, Error> {
    Ok(one(connections, "queen.sweep_skips", "select queen.sweep_skips()", &[]).await?.get(0))
}
