//! One typed function per procedure of traces.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::{many, one};
use super::{Connections, Error};
use crate::clock;

/// What a consumer reports about a message.
#[derive(Debug, Clone)]
pub struct NewTrace {
    pub partition: Uuid,
    pub transaction_id: String,
    pub group: Option<String>,
    pub worker: Option<String>,
    pub event: String,
    /// Distinct.
    pub names: Vec<String>,
    /// JSON.
    pub data: String,
}

/// `false`: there is no such message. `offset`: of the message, if known.
pub async fn add_trace(
    connections: &Connections,
    id: Uuid,
    trace: &NewTrace,
    hashes: &[u8],
    offset: Option<i64>,
) -> Result<bool, Error> {
    let sql = "select queen.add_trace($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    let parameters: [&(dyn ToSql + Sync); 10] = [
        &id,
        &trace.partition,
        &trace.transaction_id,
        &hashes,
        &offset,
        &trace.group,
        &trace.worker,
        &trace.event,
        &trace.names,
        &trace.data,
    ];
    Ok(one(connections, "queen.add_trace", sql, &parameters).await?.get(0))
}

/// One event.
#[derive(Debug, Clone)]
pub struct Trace {
    pub id: Uuid,
    pub event: String,
    /// The sender's JSON.
    pub data: String,
    pub group: Option<String>,
    pub worker: Option<String>,
    /// Microseconds since 1970.
    pub created_at: i64,
    pub names: Vec<String>,
}

/// One event under a name, and the message it is about.
#[derive(Debug, Clone)]
pub struct NamedTrace {
    pub trace: Trace,
    pub transaction_id: String,
    pub partition_id: Uuid,
    pub offset: Option<i64>,
    pub queue: String,
    pub partition: String,
}

fn trace(row: &Row) -> Trace {
    Trace {
        id: row.get("id"),
        event: row.get("event_type"),
        data: row.get("data"),
        group: row.get("consumer_group"),
        worker: row.get("worker_id"),
        created_at: clock::micros(row.get("created_at")),
        names: row.get("trace_names"),
    }
}

pub async fn message_traces(
    connections: &Connections,
    partition: Uuid,
    transaction: &str,
    limit: i64,
) -> Result<Vec<Trace>, Error> {
    let sql = "select * from queen.message_traces($1, $2, $3)";
    let rows = many(connections, "queen.message_traces", sql, &[&partition, &transaction, &limit]).await?;
    Ok(rows.iter().map(trace).collect())
}

/// One page and how many there are.
pub async fn named_traces(
    connections: &Connections,
    name: &str,
    limit: i64,
    offset: i64,
) -> Result<(Vec<NamedTrace>, i64), Error> {
    let sql = "select queen.count_named_traces($1)";
    let total = one(connections, "queen.count_named_traces", sql, &[&name]).await?.get(0);
    let sql = "select * from queen.named_traces($1, $2, $3)";
    let rows = many(connections, "queen.named_traces", sql, &[&name, &limit, &offset]).await?;
    let named = |row: &Row| NamedTrace {
        trace: trace(row),
        transaction_id: row.get("transaction_id"),
        partition_id: row.get("partition_id"),
        offset: row.get("message_offset"),
        queue: row.get("queue_name"),
        partition: row.get("partition_name"),
    };
    Ok((rows.iter().map(named).collect(), total))
}

/// A name that events were given.
#[derive(Debug, Clone)]
pub struct TraceName {
    pub name: String,
    pub traces: i64,
    pub messages: i64,
    /// Microseconds since 1970.
    pub last_seen: i64,
}

/// One page and how many names there are.
pub async fn trace_names(
    connections: &Connections,
    limit: i64,
    offset: i64,
) -> Result<(Vec<TraceName>, i64), Error> {
    let sql = "select * from queen.list_trace_names($1, $2)";
    let rows = many(connections, "queen.list_trace_names", sql, &[&limit, &offset]).await?;
    let name = |row: &Row| TraceName {
        name: row.get(0),
        traces: row.get(1),
        messages: row.get(2),
        last_seen: clock::micros(row.get(3)),
    };
    let total = match rows.first() {
        Some(row) => row.get(4),
        // Past the last page, no row carries the total.
        None => {
            let first = many(connections, "queen.list_trace_names", sql, &[&1_i64, &0_i64]).await?;
            first.first().map_or(0, |row| row.get(4))
        }
    };
    Ok((rows.iter().map(name).collect(), total))
}

/// How many were deleted; fewer than `batch` means that none are left.
pub async fn sweep_traces(connections: &Connections, older_than: Duration, batch: i32) -> Result<i64, Error> {
    let sql = "select queen.sweep_traces(make_interval(secs => $1), $2)";
    Ok(one(connections, "queen.sweep_traces", sql, &[&older_than.as_secs_f64(), &batch]).await?.get(0))
}
