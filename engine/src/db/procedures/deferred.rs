//! The procedures of deferred operations: they store, claim, take, finish or fail them.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Locked, list, position, row, rows, zero_based};
use crate::db::{Connection, Error};

#[derive(Default)]
pub struct DeferPushes<'a> {
    /// Operations of one request are deferred together or not at all.
    pub requests: Vec<i32>,
    pub ids: Vec<Uuid>,
    pub partitions: Vec<Uuid>,
    pub counts: Vec<i32>,
    pub transactions: Vec<&'a [u8]>,
    pub bodies: Vec<&'a str>,
    /// Seconds.
    pub timeout: i32,
    pub attempts_max: i32,
    pub priority: i32,
    pub locked: Locked,
}

/// The positions of operations that were not deferred.
pub struct NotDeferred {
    /// The partition no longer exists, or the lease is not valid.
    pub refused: Vec<usize>,
    /// A row that they need is locked.
    pub busy: Vec<usize>,
}

impl NotDeferred {
    fn read(row: &Row) -> Self {
        let positions = |column| list::<i32>(row, column).into_iter().map(zero_based).collect();
        Self { refused: positions(0), busy: positions(1) }
    }
}

pub async fn defer_pushes(db: &Connection, ask: &DeferPushes<'_>) -> Result<NotDeferred, Error> {
    let wait = ask.locked.millis();
    let parameters: [&(dyn ToSql + Sync); 10] = [
        &ask.requests,
        &ask.ids,
        &ask.partitions,
        &ask.counts,
        &ask.transactions,
        &ask.bodies,
        &ask.timeout,
        &ask.attempts_max,
        &ask.priority,
        &wait,
    ];
    let row = row(db, "queen.defer_pushes_unlocked", &db.statements.defer_pushes, &parameters).await?;
    Ok(NotDeferred::read(&row))
}

#[derive(Default)]
pub struct DeferAcks<'a> {
    pub ids: Vec<Uuid>,
    pub partitions: Vec<Uuid>,
    pub groups: Vec<&'a str>,
    pub leases: Vec<Option<Uuid>>,
    pub kinds: Vec<&'a str>,
    pub priorities: Vec<i32>,
    pub counts: Vec<i32>,
    pub bodies: Vec<&'a str>,
    /// Seconds.
    pub timeout: i32,
    pub attempts_max: i32,
    pub locked: Locked,
}

pub async fn defer_acks(db: &Connection, ask: &DeferAcks<'_>) -> Result<NotDeferred, Error> {
    let wait = ask.locked.millis();
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &ask.ids,
        &ask.partitions,
        &ask.groups,
        &ask.leases,
        &ask.kinds,
        &ask.priorities,
        &ask.counts,
        &ask.bodies,
        &ask.timeout,
        &ask.attempts_max,
        &wait,
    ];
    let row = row(db, "queen.defer_acks_unlocked", &db.statements.defer_acks, &parameters).await?;
    Ok(NotDeferred::read(&row))
}

/// A partition with deferred operations; the group is empty for pushes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredLane {
    pub partition: Uuid,
    pub group: String,
}

/// Claims lanes whose oldest operation this worker executes next.
pub async fn claim_deferred(db: &Connection, worker: Uuid, limit: i32) -> Result<Vec<DeferredLane>, Error> {
    let claimed = rows(db, "queen.claim_deferred", &db.statements.claim_deferred, &[&worker, &limit]).await?;
    Ok(claimed.iter().map(|row| DeferredLane { partition: row.get(0), group: row.get(1) }).collect())
}

/// A deferred operation that was taken to be executed.
pub struct Taken {
    pub lane: usize,
    pub id: Uuid,
    pub transactions: Vec<u8>,
    pub body: String,
    pub queue: String,
    pub partition: String,
    pub number: i64,
    pub dedup_seconds: i32,
}

/// At most `limit` operations of each lane, and at most `bytes` unless the first is larger.
pub async fn take_deferred(
    db: &Connection,
    worker: Uuid,
    lanes: &[DeferredLane],
    limit: i32,
    bytes: i64,
) -> Result<Vec<Taken>, Error> {
    let partitions: Vec<Uuid> = lanes.iter().map(|lane| lane.partition).collect();
    let groups: Vec<&str> = lanes.iter().map(|lane| lane.group.as_str()).collect();
    let parameters: [&(dyn ToSql + Sync); 5] = [&worker, &partitions, &groups, &limit, &bytes];
    let answers = rows(db, "queen.take_deferred", &db.statements.take_deferred, &parameters).await?;
    let taken = |row: &Row| Taken {
        lane: position(row, 0),
        id: row.get(1),
        transactions: row.get::<_, Option<Vec<u8>>>(2).unwrap_or_default(),
        body: row.get::<_, Option<String>>(3).unwrap_or_default(),
        queue: row.get(4),
        partition: row.get(5),
        number: row.get(6),
        dedup_seconds: row.get(7),
    };
    Ok(answers.iter().map(taken).collect())
}

/// The oldest operation of a lane has failed. Returns which one, and whether for good. `counts`: the operation itself
/// is the cause.
pub async fn fail_deferred(
    db: &Connection,
    worker: Uuid,
    lane: &DeferredLane,
    reason: &str,
    counts: bool,
) -> Result<Option<(Uuid, bool)>, Error> {
    let parameters: [&(dyn ToSql + Sync); 5] = [&worker, &lane.partition, &lane.group, &reason, &counts];
    let failed = rows(db, "queen.fail_deferred", &db.statements.fail_deferred, &parameters).await?;
    Ok(failed.first().map(|row| (row.get(0), row.get(1))))
}

pub async fn finish_deferred(db: &Connection, ids: &[Uuid], results: &[String]) -> Result<(), Error> {
    let parameters: [&(dyn ToSql + Sync); 2] = [&ids, &results];
    rows(db, "queen.finish_deferred", &db.statements.finish_deferred, &parameters).await.map(drop)
}
