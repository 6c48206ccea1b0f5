//! One typed function per redrive procedure.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::{many, one};
use super::{Connection, Connections, Error};
use crate::clock;

/// A dead letter that is about to be replayed.
#[derive(Debug, Clone)]
pub struct Letter {
    pub id: Uuid,
    /// Where its message goes.
    pub queue: String,
    pub partition: String,
    pub frame: String,
}

/// All letters of the message that failed last under this transaction id.
pub async fn letters_of(
    connections: &Connections,
    partition: Uuid,
    transaction: &str,
) -> Result<Vec<Letter>, Error> {
    let sql = "select * from queen.letters_of($1, $2)";
    let rows = many(connections, "queen.letters_of", sql, &[&partition, &transaction]).await?;
    let letter =
        |row: &Row| Letter { id: row.get(0), queue: row.get(1), partition: row.get(2), frame: row.get(3) };
    Ok(rows.iter().map(letter).collect())
}

/// Deletes letters in the caller's transaction. Returns how many still existed.
pub async fn drop_letters(db: &Connection, ids: &[Uuid]) -> Result<i64, Error> {
    let parameters: [&(dyn ToSql + Sync); 1] = [&ids];
    let call = db.client.query_one("select queen.drop_letters($1)", &parameters);
    Ok(db.within("queen.drop_letters", call).await?.get(0))
}

/// Which dead letters to replay, where to, and how fast.
#[derive(Debug, Clone)]
pub struct RedriveAsk {
    pub queue: String,
    /// `None` = the queue itself.
    pub target_queue: Option<String>,
    pub partition: Option<String>,
    pub group: Option<String>,
    /// Microseconds since 1970, on the time of failure.
    pub from: Option<i64>,
    pub to: Option<i64>,
    /// A part of the error; case is ignored.
    pub error: Option<String>,
    /// The whole shape of the error; empty: letters without an error.
    pub shape: Option<String>,
    pub per_second: i32,
}

/// The dead letters that match at one point in time.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    pub total: i64,
    /// Microseconds since 1970; later failures were not counted.
    pub until: i64,
}

/// `None`: no such queue.
pub async fn count_redrive(connections: &Connections, ask: &RedriveAsk) -> Result<Option<Counted>, Error> {
    let (from, to) = (ask.from.map(clock::system_time), ask.to.map(clock::system_time));
    let sql = "select * from queen.count_redrive($1, $2, $3, $4, $5, $6, $7)";
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&ask.queue, &ask.partition, &ask.group, &from, &to, &ask.error, &ask.shape];
    let rows = many(connections, "queen.count_redrive", sql, &parameters).await?;
    Ok(rows.first().map(|row| Counted { total: row.get(0), until: clock::micros(row.get(1)) }))
}

/// Why a replay did not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdded {
    NoQueue,
    /// The target would be one queue more than the limit.
    QueueLimit,
    /// The target does not exist, and pushes do not create it.
    NoTarget,
}

pub async fn add_redrive(
    connections: &Connections,
    id: Uuid,
    ask: &RedriveAsk,
    counted: Counted,
) -> Result<Result<(), NotAdded>, Error> {
    let (from, until) = (ask.from.map(clock::system_time), clock::system_time(counted.until));
    let sql = "select queen.add_redrive($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &id,
        &ask.queue,
        &ask.target_queue,
        &ask.partition,
        &ask.group,
        &from,
        &until,
        &ask.error,
        &ask.shape,
        &ask.per_second,
        &counted.total,
    ];
    Ok(match one(connections, "queen.add_redrive", sql, &parameters).await?.get::<_, i32>(0) {
        0 => Ok(()),
        2 => Err(NotAdded::QueueLimit),
        3 => Err(NotAdded::NoTarget),
        _ => Err(NotAdded::NoQueue),
    })
}

pub async fn claim_redrives(
    connections: &Connections,
    worker: Uuid,
    hold: Duration,
    limit: i32,
) -> Result<Vec<Uuid>, Error> {
    let sql = "select queen.claim_redrives($1, make_interval(secs => $2), $3)";
    let rows =
        many(connections, "queen.claim_redrives", sql, &[&worker, &hold.as_secs_f64(), &limit]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The next step of a replay.
#[derive(Debug)]
pub struct RedriveStep {
    pub per_second: i32,
    /// Its position: a partition and an offset.
    pub stands: (Uuid, i64),
    /// With the places of their messages, in order; empty: the replay is done.
    pub letters: Vec<((Uuid, i64), Letter)>,
}

/// `None`: the replay no longer belongs to this worker, or is not running.
pub async fn redrive_letters(
    connections: &Connections,
    id: Uuid,
    worker: Uuid,
    limit: i32,
    bytes: i64,
) -> Result<Option<RedriveStep>, Error> {
    let sql = "select * from queen.redrive_letters($1, $2, $3, $4)";
    let rows = many(connections, "queen.redrive_letters", sql, &[&id, &worker, &limit, &bytes]).await?;
    let letter = |row: &Row| {
        let letter = Letter {
            id: row.get::<_, Option<Uuid>>(3)?,
            queue: row.get(6),
            partition: row.get(7),
            frame: row.get(8),
        };
        Some(((row.get(4), row.get(5)), letter))
    };
    Ok(rows.first().map(|first| RedriveStep {
        per_second: first.get(0),
        stands: (first.get(1), first.get(2)),
        letters: rows.iter().filter_map(letter).collect(),
    }))
}

/// In the caller's transaction, as its first lock.
pub async fn hold_redrive(
    db: &Connection,
    id: Uuid,
    worker: Uuid,
    stands: (Uuid, i64),
) -> Result<bool, Error> {
    let parameters: [&(dyn ToSql + Sync); 4] = [&id, &worker, &stands.0, &stands.1];
    let call = db.client.query_one("select queen.hold_redrive($1, $2, $3, $4)", &parameters);
    Ok(db.within("queen.hold_redrive", call).await?.get(0))
}

/// The result of a step.
#[derive(Debug)]
pub struct Stepped<'a> {
    /// Where the next step begins.
    pub stands: (Uuid, i64),
    /// Dead letters.
    pub done: i64,
    pub failed: i64,
    pub error: Option<&'a str>,
    pub finished: bool,
}

/// In the caller's transaction, which has locked the replay.
pub async fn step_redrive(
    db: &Connection,
    id: Uuid,
    step: &Stepped<'_>,
    hold: Duration,
) -> Result<(), Error> {
    let hold = hold.as_secs_f64();
    let parameters: [&(dyn ToSql + Sync); 8] =
        [&id, &step.stands.0, &step.stands.1, &step.done, &step.failed, &step.error, &step.finished, &hold];
    let sql = "select queen.step_redrive($1, $2, $3, $4, $5, $6, $7, make_interval(secs => $8))";
    db.within("queen.step_redrive", db.client.query_one(sql, &parameters)).await.map(drop)
}

/// The current status; `None`: no such replay.
pub async fn cancel_redrive(connections: &Connections, id: Uuid) -> Result<Option<String>, Error> {
    Ok(one(connections, "queen.cancel_redrive", "select queen.cancel_redrive($1)", &[&id]).await?.get(0))
}

/// A replay and its progress. Times are microseconds since 1970.
#[derive(Debug, Clone)]
pub struct Redrive {
    pub id: Uuid,
    pub queue: String,
    pub target_queue: Option<String>,
    pub partition: Option<String>,
    pub group: Option<String>,
    pub from: Option<i64>,
    /// Letters that failed later are not replayed.
    pub to: i64,
    pub error_filter: Option<String>,
    pub shape: Option<String>,
    pub per_second: i32,
    /// `running`, `completed` or `cancelled`.
    pub status: String,
    /// Dead letters: matched at the start, replayed, and left in place because they could not be replayed.
    pub total: i64,
    pub done: i64,
    pub failed: i64,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
    pub error: Option<String>,
    /// Dead letters per second.
    pub rate: f64,
}

pub async fn redrives(
    connections: &Connections,
    id: Option<Uuid>,
    limit: i64,
    offset: i64,
) -> Result<Vec<Redrive>, Error> {
    let sql = "select * from queen.redrive_states($1, $2, $3)";
    let rows = many(connections, "queen.redrive_states", sql, &[&id, &limit, &offset]).await?;
    let time = |row: &Row, name| row.get::<_, Option<SystemTime>>(name).map(clock::micros);
    let redrive = |row: &Row| Redrive {
        id: row.get("id"),
        queue: row.get("queue_name"),
        target_queue: row.get("target_queue"),
        partition: row.get("partition_name"),
        group: row.get("consumer_group"),
        from: time(row, "failed_from"),
        to: clock::micros(row.get("failed_to")),
        error_filter: row.get("error_filter"),
        shape: row.get("error_shape"),
        per_second: row.get("per_second"),
        status: row.get("status"),
        total: row.get("total"),
        done: row.get("done"),
        failed: row.get("failed"),
        created_at: clock::micros(row.get("created_at")),
        started_at: time(row, "started_at"),
        finished_at: time(row, "finished_at"),
        error: row.get("error"),
        rate: row.get("rate"),
    };
    Ok(rows.iter().map(redrive).collect())
}

pub async fn sweep_redrives(connections: &Connections, older_than: Duration) -> Result<i64, Error> {
    let sql = "select queen.sweep_redrives(make_interval(secs => $1))";
    Ok(one(connections, "queen.sweep_redrives", sql, &[&older_than.as_secs_f64()]).await?.get(0))
}
