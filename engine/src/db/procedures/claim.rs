//! The procedures of pops: they lease partitions, fetch their messages, and give leases back.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{list, micros, position, row, rows, zero_based};
use crate::db::{Connection, Error};

#[derive(Default)]
pub struct Lease<'a> {
    pub pops: Vec<i32>,
    pub partitions: Vec<Uuid>,
    pub groups: Vec<&'a str>,
    pub leases: Vec<Uuid>,
    pub seconds: Vec<i32>,
    pub batches: Vec<i32>,
    pub partitions_max: Vec<i32>,
    pub auto: Vec<bool>,
    pub bytes_max: i64,
    /// Some of the groups may read their partition for the first time.
    pub readers: bool,
    /// No pop has more than one candidate.
    pub single: bool,
}

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStatus {
    Granted,
    /// There is nothing to read.
    Empty,
    /// Another pop holds the lease.
    Leased,
    /// The row is locked.
    Busy,
    /// The partition no longer exists.
    Gone,
    /// The next message is delayed.
    Delayed,
    /// The pop has already been granted enough.
    Unneeded,
    /// The queue's window is still open, and the batch is not full.
    Window,
    /// The group does not read this partition yet, contrary to the claim.
    NoReader,
}

impl LeaseStatus {
    /// As in lease.sql.
    fn read(status: i32) -> Self {
        match status {
            0 => Self::Granted,
            1 => Self::Empty,
            2 => Self::Leased,
            3 => Self::Busy,
            4 => Self::Gone,
            5 => Self::Delayed,
            7 => Self::Window,
            8 => Self::NoReader,
            _ => Self::Unneeded,
        }
    }
}

pub struct Leased {
    pub position: usize,
    pub status: LeaseStatus,
    pub first: i64,
    pub last: i64,
    pub attempts: i32,
    pub wait_ms: Option<i64>,
    pub head: i64,
}

impl Lease<'_> {
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 11] {
        [
            &self.pops,
            &self.partitions,
            &self.groups,
            &self.leases,
            &self.seconds,
            &self.batches,
            &self.partitions_max,
            &self.auto,
            &self.bytes_max,
            &self.readers,
            &self.single,
        ]
    }
}

pub async fn lease(db: &Connection, ask: &Lease<'_>) -> Result<Vec<Leased>, Error> {
    let row = row(db, "queen.lease", &db.statements.lease, &ask.parameters()).await?;
    Ok(leased(&row, 0))
}

/// The result of queen.lease, whose columns start at `column`.
pub(super) fn leased(row: &Row, column: usize) -> Vec<Leased> {
    let (positions, statuses): (Vec<i32>, Vec<i32>) = (list(row, column), list(row, column + 1));
    let (firsts, lasts): (Vec<i64>, Vec<i64>) = (list(row, column + 2), list(row, column + 3));
    let attempts: Vec<i32> = list(row, column + 4);
    let (waits, heads): (Vec<Option<i64>>, Vec<i64>) = (list(row, column + 5), list(row, column + 6));
    let (missed, reasons): (Vec<i32>, Vec<i32>) = (list(row, column + 7), list(row, column + 8));
    let found = (0..positions.len()).map(|index| Leased {
        position: zero_based(positions[index]),
        status: LeaseStatus::read(statuses[index]),
        first: firsts[index],
        last: lasts[index],
        attempts: attempts[index],
        wait_ms: waits[index],
        head: heads[index],
    });
    let not_found = missed.iter().zip(&reasons).map(|(&position, &status)| Leased {
        position: zero_based(position),
        status: LeaseStatus::read(status),
        first: 0,
        last: 0,
        attempts: 0,
        wait_ms: None,
        head: 0,
    });
    found.chain(not_found).collect()
}

pub struct Fetched {
    pub position: usize,
    pub base_offset: i64,
    pub created_at: i64,
    pub transactions: Vec<u8>,
    pub frames: String,
}

pub async fn fetch(
    db: &Connection,
    partitions: &[Uuid],
    first: &[i64],
    last: &[i64],
) -> Result<Vec<Fetched>, Error> {
    let answers = rows(db, "queen.fetch", &db.statements.fetch, &[&partitions, &first, &last]).await?;
    let fetched = |row: &Row| Fetched {
        position: position(row, 0),
        base_offset: row.get(1),
        created_at: micros(row, 2),
        transactions: row.get(3),
        frames: row.get(4),
    };
    Ok(answers.iter().map(fetched).collect())
}

/// (partition, group, lease or `None` for an automatic ack, first, last)
pub type Claimed<'a> = (Uuid, &'a str, Option<Uuid>, i64, i64);

pub async fn release(db: &Connection, claims: &[Claimed<'_>]) -> Result<(), Error> {
    let partitions: Vec<Uuid> = claims.iter().map(|claim| claim.0).collect();
    let groups: Vec<&str> = claims.iter().map(|claim| claim.1).collect();
    let leases: Vec<Option<Uuid>> = claims.iter().map(|claim| claim.2).collect();
    let first: Vec<i64> = claims.iter().map(|claim| claim.3).collect();
    let last: Vec<i64> = claims.iter().map(|claim| claim.4).collect();
    let parameters: [&(dyn ToSql + Sync); 5] = [&partitions, &groups, &leases, &first, &last];
    rows(db, "queen.release", &db.statements.release, &parameters).await.map(drop)
}

/// Takes back what a claim was granted, from `end` on. Not prepared, because it is only needed when something went
/// wrong.
pub async fn withdraw(
    db: &Connection,
    (partition, group, lease, first, _): Claimed<'_>,
    end: i64,
) -> Result<(), Error> {
    let sql = "select queen.withdraw($1, $2, $3, $4, $5)";
    let parameters: [&(dyn ToSql + Sync); 5] = [&partition, &group, &lease, &first, &end];
    db.within("queen.withdraw", db.client.execute(sql, &parameters)).await.map(drop)
}
