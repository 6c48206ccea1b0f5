//! One typed function per procedure that reads dead letters.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::{many, one};
use super::{Connections, Error};
use crate::clock;

/// Selects dead letters; `None` = any.
#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    pub queue: Option<String>,
    pub partition: Option<String>,
    pub group: Option<String>,
    /// Microseconds since 1970, on the time of failure.
    pub from: Option<i64>,
    pub to: Option<i64>,
    /// A part of the error; case is ignored.
    pub error: Option<String>,
    /// The whole shape of the error, as `letter_shapes` returns it; empty: letters without an error.
    pub shape: Option<String>,
    pub limit: i64,
    pub offset: i64,
}

pub struct DeadLetterRow {
    pub id: Uuid,
    pub partition_id: Uuid,
    pub queue: String,
    pub partition: String,
    pub group: String,
    pub error: Option<String>,
    pub attempts: i32,
    pub frame: String,
    pub created_at: i64,
    pub failed_at: i64,
}

/// One page and the total number of matches.
pub async fn dead_letters(
    connections: &Connections,
    filter: &DeadLetterFilter,
) -> Result<(Vec<DeadLetterRow>, i64), Error> {
    let (from, to) = (filter.from.map(clock::system_time), filter.to.map(clock::system_time));
    let filters: [&(dyn ToSql + Sync); 7] =
        [&filter.queue, &filter.partition, &filter.group, &from, &to, &filter.error, &filter.shape];
    let sql = "select queen.count_letters($1, $2, $3, $4, $5, $6, $7)";
    let total = one(connections, "queen.count_letters", sql, &filters).await?.get(0);
    let sql = "select * from queen.find_letters($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let mut parameters = filters.to_vec();
    parameters.extend([&filter.limit as &(dyn ToSql + Sync), &filter.offset]);
    let rows = many(connections, "queen.find_letters", sql, &parameters).await?;
    let letter = |row: &Row| DeadLetterRow {
        id: row.get("id"),
        partition_id: row.get("partition_id"),
        queue: row.get("queue_name"),
        partition: row.get("partition_name"),
        group: row.get("consumer_group"),
        error: row.get("error"),
        attempts: row.get("attempts"),
        frame: row.get("frame"),
        created_at: clock::micros(row.get("created_at")),
        failed_at: clock::micros(row.get("failed_at")),
    };
    Ok((rows.iter().map(letter).collect(), total))
}

/// Dead letters with errors that look alike. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterShape {
    /// The error without its varying parts; empty: no error.
    pub shape: String,
    pub count: i64,
    /// In how many queues.
    pub queues: i64,
    /// One of the errors, or its beginning.
    pub example: String,
    pub first_failed_at: i64,
    pub last_failed_at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterShapes {
    /// The most letters first.
    pub shapes: Vec<LetterShape>,
    /// Letters that match.
    pub total: i64,
    /// How many of them were looked at: the newest.
    pub counted: i64,
}

/// At most `filter.limit` shapes. A shape or an offset in the filter is ignored.
pub async fn letter_shapes(
    connections: &Connections,
    filter: &DeadLetterFilter,
    letters_max: i64,
) -> Result<LetterShapes, Error> {
    let (from, to) = (filter.from.map(clock::system_time), filter.to.map(clock::system_time));
    let sql = "select * from queen.letter_shapes($1, $2, $3, $4, $5, $6, $7, $8)";
    let parameters: [&(dyn ToSql + Sync); 8] = [
        &filter.queue,
        &filter.partition,
        &filter.group,
        &from,
        &to,
        &filter.error,
        &letters_max,
        &filter.limit,
    ];
    let rows = many(connections, "queen.letter_shapes", sql, &parameters).await?;
    let shape = |row: &Row| {
        let (first, last): (Option<SystemTime>, Option<SystemTime>) =
            (row.get("first_failed_at"), row.get("last_failed_at"));
        Some(LetterShape {
            shape: row.get::<_, Option<String>>("shape")?,
            count: row.get("count"),
            queues: row.get("queues"),
            example: row.get("example"),
            first_failed_at: clock::micros(first?),
            last_failed_at: clock::micros(last?),
        })
    };
    Ok(LetterShapes {
        shapes: rows.iter().filter_map(shape).collect(),
        total: rows.first().map_or(0, |row| row.get("total")),
        counted: rows.first().map_or(0, |row| row.get("counted")),
    })
}
