//! The procedures of acks: they locate messages, and change cursors, dead letters and leases.

use std::sync::Arc;
use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::claim::{Lease, Leased, leased};
use super::{Locked, list, position, row, rows, zero_based};
use crate::clock;
use crate::db::{Connection, Error};

#[derive(Default)]
pub struct Ack<'a> {
    pub ids: Vec<Uuid>,
    pub partitions: Vec<Uuid>,
    pub groups: Vec<&'a str>,
    pub leases: Vec<Option<Uuid>>,
    pub expected: Vec<i64>,
    /// From here on, three elements per row: one for each way it may go.
    pub to: Vec<i64>,
    pub stops: Vec<bool>,
    pub failed_from: Vec<Option<i64>>,
    pub failed_to: Vec<Option<i64>>,
    pub dead: Vec<i32>,
    pub dead_way: Vec<i32>,
    pub dead_offsets: Vec<i64>,
    pub dead_errors: Vec<Option<&'a str>>,
    /// These are deferred acks, which other acks must not overtake.
    pub deferred: bool,
}

/// The outcome of planned acks. The first three are the ways of a plan that can be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The first message that failed has retries left.
    WithBudget,
    /// The first one has none left, but later ones do.
    FirstSpent,
    /// Nothing failed, or nothing is retried.
    WithoutBudget,
    /// The lease is not valid, or does not reach that far.
    InvalidLease,
    /// The plan was based on another cursor position.
    CursorMoved,
    /// The same acks had been applied before.
    AppliedBefore,
    /// Deferred acks come first.
    Behind,
}

impl Settlement {
    /// As in settle.sql.
    fn read(status: i32) -> Self {
        match status {
            0 => Self::WithBudget,
            6 => Self::FirstSpent,
            2 => Self::InvalidLease,
            3 => Self::CursorMoved,
            4 => Self::AppliedBefore,
            5 => Self::Behind,
            _ => Self::WithoutBudget,
        }
    }
}

#[derive(Clone)]
pub struct Acked {
    pub position: usize,
    pub status: Settlement,
    pub cursor: i64,
    /// The cursor before the plan was applied.
    pub started: i64,
    pub head: i64,
    pub released: bool,
    /// Dead letters of this queue are kept, not dropped.
    pub kept: bool,
    pub queue: Arc<str>,
    pub partition: Arc<str>,
}

impl Ack<'_> {
    fn parameters(&self) -> [&(dyn ToSql + Sync); 14] {
        [
            &self.ids,
            &self.partitions,
            &self.groups,
            &self.leases,
            &self.expected,
            &self.to,
            &self.stops,
            &self.failed_from,
            &self.failed_to,
            &self.dead,
            &self.dead_way,
            &self.dead_offsets,
            &self.dead_errors,
            &self.deferred,
        ]
    }
}

pub async fn settle(db: &Connection, ask: &Ack<'_>) -> Result<Vec<Acked>, Error> {
    let row = row(db, "queen.settle", &db.statements.settle, &ask.parameters()).await?;
    Ok(acked(&row))
}

/// Also returns the positions of those that were skipped.
pub async fn settle_unlocked(
    db: &Connection,
    ask: &Ack<'_>,
    locked: Locked,
) -> Result<(Vec<Acked>, Vec<usize>), Error> {
    let wait = locked.millis();
    let mut parameters: Vec<&(dyn ToSql + Sync)> = ask.parameters().to_vec();
    parameters.push(&wait);
    let row = row(db, "queen.settle_unlocked", &db.statements.settle_unlocked, &parameters).await?;
    let busy = list::<i32>(&row, ACKED_COLUMNS).into_iter().map(zero_based).collect();
    Ok((acked(&row), busy))
}

/// Columns that queen.settle returns.
const ACKED_COLUMNS: usize = 9;

fn acked(row: &Row) -> Vec<Acked> {
    let (positions, statuses): (Vec<i32>, Vec<i32>) = (list(row, 0), list(row, 1));
    let (cursors, started): (Vec<i64>, Vec<i64>) = (list(row, 2), list(row, 3));
    let heads: Vec<i64> = list(row, 4);
    let (released, kept): (Vec<bool>, Vec<bool>) = (list(row, 5), list(row, 6));
    let (queues, partitions): (Vec<String>, Vec<String>) = (list(row, 7), list(row, 8));
    let acked = |index: usize| Acked {
        position: zero_based(positions[index]),
        status: Settlement::read(statuses[index]),
        cursor: cursors[index],
        started: started[index],
        head: heads[index],
        released: released[index],
        kept: kept[index],
        queue: queues[index].as_str().into(),
        partition: partitions[index].as_str().into(),
    };
    (0..positions.len()).map(acked).collect()
}

/// Completions under a live lease, ordered by (partition, group).
#[derive(Default)]
pub struct Complete<'a> {
    pub ids: Vec<Uuid>,
    pub partitions: Vec<Uuid>,
    pub groups: Vec<&'a str>,
    pub leases: Vec<Uuid>,
    pub expected: Vec<i64>,
    pub to: Vec<i64>,
}

/// A completion that was applied. Those that were not go to `settle`.
pub struct Completed {
    pub position: usize,
    pub released: bool,
}

impl Complete<'_> {
    fn parameters(&self) -> [&(dyn ToSql + Sync); 6] {
        [&self.ids, &self.partitions, &self.groups, &self.leases, &self.expected, &self.to]
    }
}

pub async fn complete(db: &Connection, ask: &Complete<'_>) -> Result<Vec<Completed>, Error> {
    let row = row(db, "queen.complete", &db.statements.complete, &ask.parameters()).await?;
    Ok(completed(&row))
}

/// Completions, and after them claims, in one transaction.
pub async fn complete_and_lease(
    db: &Connection,
    acks: &Complete<'_>,
    claims: &Lease<'_>,
) -> Result<(Vec<Completed>, Vec<Leased>), Error> {
    let parameters: Vec<_> = acks.parameters().into_iter().chain(claims.parameters()).collect();
    let row =
        row(db, "queen.complete and queen.lease", &db.statements.complete_and_lease, &parameters).await?;
    Ok((completed(&row), leased(&row, COMPLETED_COLUMNS)))
}

/// Columns that queen.complete returns.
const COMPLETED_COLUMNS: usize = 2;

fn completed(row: &Row) -> Vec<Completed> {
    let (positions, released): (Vec<i32>, Vec<bool>) = (list(row, 0), list(row, 1));
    let completed = positions.iter().zip(released);
    completed.map(|(&position, released)| Completed { position: zero_based(position), released }).collect()
}

#[derive(Default)]
pub struct Locate<'a> {
    pub partitions: Vec<Uuid>,
    pub groups: Vec<&'a str>,
    pub leases: Vec<Option<Uuid>>,
    pub hashes: Vec<Vec<u8>>,
    pub ids: Vec<Vec<u8>>,
}

pub struct Located {
    pub position: usize,
    pub cursor: i64,
    /// Whether the lease is live.
    pub live: bool,
    /// The index of the message in the question, and its offset; `None`: none of them was found.
    pub found: Option<(usize, i64)>,
}

/// Positions without a result: there is no such partition.
pub async fn locate(db: &Connection, ask: &Locate<'_>) -> Result<Vec<Located>, Error> {
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&ask.partitions, &ask.groups, &ask.leases, &ask.hashes, &ask.ids];
    let answers = rows(db, "queen.locate_acks", &db.statements.locate, &parameters).await?;
    let located = |row: &Row| Located {
        position: position(row, 0),
        cursor: row.get(1),
        live: row.get(2),
        found: row.get::<_, Option<i32>>(3).map(|index| (index as usize, row.get(4))),
    };
    Ok(answers.iter().map(located).collect())
}

/// Each pair at most once.
pub async fn add_readers(db: &Connection, partitions: &[Uuid], groups: &[&str]) -> Result<(), Error> {
    rows(db, "queen.add_readers", &db.statements.add_readers, &[&partitions, &groups]).await.map(drop)
}

pub struct Held {
    pub partition: Uuid,
    pub group: String,
    pub cursor: i64,
    pub lease: Option<Uuid>,
}

/// Locks what a transaction will acknowledge, and returns which leases are live.
pub async fn hold(
    db: &Connection,
    leases: &[Uuid],
    numbers: &[i64],
    partitions: &[Uuid],
    groups: &[&str],
) -> Result<Vec<Held>, Error> {
    let parameters: [&(dyn ToSql + Sync); 4] = [&leases, &numbers, &partitions, &groups];
    let answers = rows(db, "queen.hold", &db.statements.hold, &parameters).await?;
    let held =
        |row: &Row| Held { partition: row.get(0), group: row.get(1), cursor: row.get(2), lease: row.get(3) };
    Ok(answers.iter().map(held).collect())
}

/// One (lease, new end) per partition lease that was extended, and one without an end for each that is locked.
pub async fn renew(
    db: &Connection,
    leases: &[Uuid],
    numbers: &[i64],
    seconds: &[i32],
    locked: Locked,
) -> Result<Vec<(Uuid, Option<i64>)>, Error> {
    let parameters: [&(dyn ToSql + Sync); 4] = [&leases, &numbers, &seconds, &locked.millis()];
    let answers = rows(db, "queen.renew_unlocked", &db.statements.renew, &parameters).await?;
    let end = |row: &Row| row.get::<_, Option<SystemTime>>(1).map(clock::micros);
    Ok(answers.iter().map(|row| (row.get(0), end(row))).collect())
}
