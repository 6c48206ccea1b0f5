//! One typed function per procedure of the message plane; parameter types are fixed here and nowhere else.

pub mod deferred;
pub mod inbox;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use super::{Connection, Error};
use crate::clock;

macro_rules! statements {
    ($($name:ident: $sql:literal,)*) => {
        /// Prepared on every connection, in one round trip.
        pub struct Statements { $($name: Statement,)* }

        impl Statements {
            pub async fn prepare(client: &Client) -> Result<Self, tokio_postgres::Error> {
                let ($($name,)*) = tokio::try_join!($(client.prepare($sql)),*)?;
                Ok(Self { $($name,)* })
            }
        }
    };
}

statements! {
    open: "select * from queen.open_with_options($1, $2, $3, $4, $5, $6, $7)",
    push: "select * from queen.push_unlocked($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    find_accepted: "select * from queen.find_accepted($1, $2, $3, $4)",
    defer_pushes: "select * from queen.defer_pushes_unlocked($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    defer_acks: "select * from queen.defer_acks_unlocked($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    claim_deferred: "select * from queen.claim_deferred($1, $2)",
    take_deferred: "select * from queen.take_deferred($1, $2, $3, $4, $5)",
    fail_deferred: "select * from queen.fail_deferred($1, $2, $3, $4, $5)",
    finish_deferred: "select queen.finish_deferred($1, $2)",
    lease: "select * from queen.lease($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    fetch: "select * from queen.fetch($1, $2, $3)",
    release: "select queen.release($1, $2, $3, $4, $5)",
    settle: "select * from queen.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
    settle_unlocked: "select * from queen.settle_unlocked($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
    complete: "select * from queen.complete($1, $2, $3, $4, $5, $6, null, null, false)",
    turn: "select * from queen.complete($1, $2, $3, $4, $5, $6, $8, $9, $16) c
           cross join lateral queen.lease($7, $8, $9, $10, $11, $12, $13, $14, $15, false,
                                          coalesce($17, c.positions is null))",
    locate: "select a.ordinal::int, l.cursor, l.live, l.index, l.message_offset
             from unnest($1::uuid[], $2::text[], $3::uuid[], $4::bytea[], $5::bytea[])
                  with ordinality a (partition_id, consumer_group, lease_id, hashes, ids, ordinal)
             cross join lateral queen.locate_acks(a.partition_id, a.consumer_group, a.lease_id, a.hashes, a.ids) l",
    add_readers: "select queen.add_readers($1, $2)",
    hold: "select * from queen.hold($1, $2, $3, $4)",
    renew: "select * from queen.renew_unlocked($1, $2, $3, $4)",
    register_group: "select queen.register_group($1, $2, $3, $4, $5, $6)",
    seed: "select * from queen.seed($1, $2, $3, $4)",
    discover: "select * from queen.discover($1, $2)",
}

/// What a call does about rows that another session has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Locked {
    /// Waits, as long as `DB_LOCK_TIMEOUT` allows.
    #[default]
    Wait,
    /// Leaves them out.
    Skip,
    /// Waits for this long at the most.
    WaitFor(Duration),
}

impl Locked {
    /// As the procedures take it.
    fn millis(self) -> Option<i32> {
        match self {
            Self::Wait => None,
            Self::Skip => Some(0),
            Self::WaitFor(time) => Some(i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)),
        }
    }
}

async fn rows(
    db: &Connection,
    procedure: &'static str,
    statement: &Statement,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Error> {
    db.within(procedure, db.client.query(statement, parameters)).await
}

/// The one row of a procedure that answers in arrays.
async fn row(
    db: &Connection,
    procedure: &'static str,
    statement: &Statement,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Row, Error> {
    db.within(procedure, db.client.query_one(statement, parameters)).await
}

/// An array of an answer; one without elements is null.
fn list<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Vec<T> {
    row.get::<_, Option<Vec<T>>>(column).unwrap_or_default()
}

fn zero_based(ordinal: i32) -> usize {
    usize::try_from(ordinal - 1).unwrap_or(0)
}

/// A zero-based position from a one-based SQL ordinal.
fn position(row: &Row, column: usize) -> usize {
    zero_based(row.get(column))
}

fn micros(row: &Row, column: usize) -> i64 {
    row.get::<_, Option<SystemTime>>(column).map_or(0, clock::micros)
}

#[derive(Default)]
pub struct Open<'a> {
    pub queues: Vec<&'a str>,
    pub partitions: Vec<&'a str>,
    pub ids: Vec<Uuid>,
    pub namespaces: Vec<Option<&'a str>>,
    pub tasks: Vec<Option<&'a str>>,
    /// `None`: whatever the limits.
    pub create: Vec<Option<bool>>,
}

pub struct Opened {
    pub position: usize,
    pub answer: Answer,
}

/// Why a partition is not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its queue has all the partitions it may have.
    Partitions,
    /// There are all the queues that there may be.
    Queues,
    /// Its queue does not exist, and is not made by itself.
    NoQueue,
}

pub enum Answer {
    Found(Found),
    Refused(Refusal),
    /// Left out, because another session has locked a row that it needs.
    Locked,
}

pub struct Found {
    pub id: Uuid,
    pub number: i64,
    pub head: i64,
    pub dedup_seconds: i32,
    pub encrypted: bool,
}

pub async fn open(db: &Connection, ask: &Open<'_>, locked: Locked) -> Result<Vec<Opened>, Error> {
    let answer = rows(
        db,
        "queen.open_with_options",
        &db.statements.open,
        &[&ask.queues, &ask.partitions, &ask.ids, &ask.namespaces, &ask.tasks, &ask.create, &locked.millis()],
    )
    .await?;
    let found = |row: &Row, id: Uuid| Found {
        id,
        number: row.get(2),
        head: row.get(3),
        dedup_seconds: row.get(5),
        encrypted: row.get(6),
    };
    let opened = |row: &Row| Opened {
        position: position(row, 0),
        answer: match (row.get::<_, Option<Uuid>>(1), row.get::<_, Option<i32>>(7)) {
            (Some(id), _) => Answer::Found(found(row, id)),
            (None, Some(2)) => Answer::Refused(Refusal::Queues),
            (None, Some(3)) => Answer::Refused(Refusal::NoQueue),
            (None, Some(4)) => Answer::Locked,
            (None, _) => Answer::Refused(Refusal::Partitions),
        },
    };
    Ok(answer.iter().map(opened).collect())
}

#[derive(Default)]
pub struct Push<'a> {
    pub partitions: Vec<Uuid>,
    pub expected: Vec<i64>,
    pub counts: Vec<i32>,
    pub bytes: Vec<i32>,
    pub transactions: Vec<&'a [u8]>,
    pub frames: Vec<&'a str>,
    pub suspects: Vec<bool>,
    /// The head before the first try: where that may have landed.
    pub recheck: Vec<i64>,
    /// These are the deferred pushes that others must not overtake.
    pub deferred: bool,
    pub locked: Locked,
}

pub struct Pushed {
    pub position: usize,
    pub outcome: PushOutcome,
    /// Hashes of the window that the dedup cache has not seen.
    pub unseen: Option<Vec<u8>>,
}

pub enum PushOutcome {
    Appended {
        base_offset: i64,
        created_at: i64,
    },
    /// Nothing was appended.
    Conflict {
        head: i64,
        stored: Vec<Stored>,
    },
    /// Nothing was appended: there are deferred pushes, and this is not one of them.
    Behind,
    /// Nothing was appended: the partition is locked.
    Busy,
    Gone,
}

pub async fn push(db: &Connection, ask: &Push<'_>) -> Result<Vec<Pushed>, Error> {
    let row = row(
        db,
        "queen.push_unlocked",
        &db.statements.push,
        &[
            &ask.partitions,
            &ask.expected,
            &ask.counts,
            &ask.bytes,
            &ask.transactions,
            &ask.frames,
            &ask.suspects,
            &ask.recheck,
            &ask.deferred,
            &ask.locked.millis(),
        ],
    )
    .await?;
    let (positions, statuses): (Vec<i32>, Vec<i32>) = (list(&row, 0), list(&row, 1));
    let (offsets, times): (Vec<i64>, Vec<SystemTime>) = (list(&row, 2), list(&row, 3));
    let mut unseen: Vec<Option<Vec<u8>>> = list(&row, 4);
    let stored = AllStored::read(&row, 5);
    let pushed = |index: usize| {
        let outcome = match statuses[index] {
            0 => {
                PushOutcome::Appended { base_offset: offsets[index], created_at: clock::micros(times[index]) }
            }
            1 => PushOutcome::Conflict { head: offsets[index], stored: stored.of(positions[index]) },
            3 => PushOutcome::Behind,
            4 => PushOutcome::Busy,
            _ => PushOutcome::Gone,
        };
        Pushed { position: zero_based(positions[index]), outcome, unseen: unseen[index].take() }
    };
    Ok((0..positions.len()).map(pushed).collect())
}

/// Messages that were accepted before they could be stored, by partition.
#[derive(Default)]
pub struct Accepted<'a> {
    pub partitions: Vec<Uuid>,
    /// When the first of them was.
    pub times: Vec<SystemTime>,
    /// Of their queues, in seconds.
    pub windows: Vec<i32>,
    pub transactions: Vec<&'a [u8]>,
}

/// What of them was in the log by then and has left the window since, by position in the question.
pub async fn find_accepted(db: &Connection, ask: &Accepted<'_>) -> Result<Vec<Vec<Stored>>, Error> {
    let parameters: [&(dyn ToSql + Sync); 4] = [&ask.partitions, &ask.times, &ask.windows, &ask.transactions];
    let row = row(db, "queen.find_accepted", &db.statements.find_accepted, &parameters).await?;
    let stored = AllStored::read(&row, 0);
    Ok((1..=ask.partitions.len() as i32).map(|position| stored.of(position)).collect())
}

/// A message that is in the log already.
pub struct Stored {
    /// In its segment.
    pub index: usize,
    pub offset: i64,
    pub created_at: i64,
    /// The id it is known by, if it was promised one.
    pub promised: Option<Uuid>,
}

/// Those of a whole push.
struct AllStored {
    positions: Vec<i32>,
    indexes: Vec<i32>,
    offsets: Vec<i64>,
    times: Vec<SystemTime>,
    ids: Vec<Option<Uuid>>,
}

impl AllStored {
    fn read(row: &Row, column: usize) -> Self {
        Self {
            positions: list(row, column),
            indexes: list(row, column + 1),
            offsets: list(row, column + 2),
            times: list(row, column + 3),
            ids: list(row, column + 4),
        }
    }

    fn of(&self, position: i32) -> Vec<Stored> {
        let of_position = (0..self.positions.len()).filter(|&at| self.positions[at] == position);
        of_position
            .map(|at| Stored {
                index: self.indexes[at] as usize,
                offset: self.offsets[at],
                created_at: clock::micros(self.times[at]),
                promised: self.ids[at],
            })
            .collect()
    }
}

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

pub struct Leased {
    pub position: usize,
    /// As in lease.sql.
    pub status: i32,
    pub first: i64,
    pub last: i64,
    pub attempts: i32,
    pub wait_ms: Option<i64>,
    pub head: i64,
}

impl Lease<'_> {
    fn parameters(&self) -> [&(dyn ToSql + Sync); 11] {
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

/// The answer of queen.lease, whose columns start here.
fn leased(row: &Row, column: usize) -> Vec<Leased> {
    let (positions, statuses): (Vec<i32>, Vec<i32>) = (list(row, column), list(row, column + 1));
    let (firsts, lasts): (Vec<i64>, Vec<i64>) = (list(row, column + 2), list(row, column + 3));
    let attempts: Vec<i32> = list(row, column + 4);
    let (waits, heads): (Vec<Option<i64>>, Vec<i64>) = (list(row, column + 5), list(row, column + 6));
    let (missed, reasons): (Vec<i32>, Vec<i32>) = (list(row, column + 7), list(row, column + 8));
    let found = (0..positions.len()).map(|index| Leased {
        position: zero_based(positions[index]),
        status: statuses[index],
        first: firsts[index],
        last: lasts[index],
        attempts: attempts[index],
        wait_ms: waits[index],
        head: heads[index],
    });
    let not_found = missed.iter().zip(&reasons).map(|(&position, &status)| Leased {
        position: zero_based(position),
        status,
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

/// Takes back what a claim was granted from `end` on. Not prepared: it is the way out of a mess.
pub async fn withdraw(
    db: &Connection,
    (partition, group, lease, first, _): Claimed<'_>,
    end: i64,
) -> Result<(), Error> {
    let sql = "select queen.withdraw($1, $2, $3, $4, $5)";
    let parameters: [&(dyn ToSql + Sync); 5] = [&partition, &group, &lease, &first, &end];
    db.within("queen.withdraw", db.client.execute(sql, &parameters)).await.map(drop)
}

#[derive(Default)]
pub struct Ack<'a> {
    pub ids: Vec<Uuid>,
    pub partitions: Vec<Uuid>,
    pub groups: Vec<&'a str>,
    pub leases: Vec<Option<Uuid>>,
    pub expected: Vec<i64>,
    /// Three elements per row from here on: one for each way it may go.
    pub to: Vec<i64>,
    pub stops: Vec<bool>,
    pub failed_from: Vec<Option<i64>>,
    pub failed_to: Vec<Option<i64>>,
    pub dead: Vec<i32>,
    pub dead_way: Vec<i32>,
    pub dead_offsets: Vec<i64>,
    pub dead_errors: Vec<Option<&'a str>>,
    /// These are the deferred acks that others must not overtake.
    pub deferred: bool,
}

#[derive(Clone)]
pub struct Acked {
    pub position: usize,
    /// As in settle.sql.
    pub status: i32,
    pub cursor: i64,
    /// The cursor before it was applied.
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

/// Also answers the positions of those that were left out.
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

/// Columns of queen.settle's answer.
const ACKED_COLUMNS: usize = 9;

fn acked(row: &Row) -> Vec<Acked> {
    let (positions, statuses): (Vec<i32>, Vec<i32>) = (list(row, 0), list(row, 1));
    let (cursors, started): (Vec<i64>, Vec<i64>) = (list(row, 2), list(row, 3));
    let heads: Vec<i64> = list(row, 4);
    let (released, kept): (Vec<bool>, Vec<bool>) = (list(row, 5), list(row, 6));
    let (queues, partitions): (Vec<String>, Vec<String>) = (list(row, 7), list(row, 8));
    let acked = |index: usize| Acked {
        position: zero_based(positions[index]),
        status: statuses[index],
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

/// Completions under a live lease, in the order of (partition, group).
#[derive(Default)]
pub struct Complete<'a> {
    pub ids: Vec<Uuid>,
    pub partitions: Vec<Uuid>,
    pub groups: Vec<&'a str>,
    pub leases: Vec<Uuid>,
    pub expected: Vec<i64>,
    pub to: Vec<i64>,
}

/// One that was applied; the others are for `settle`.
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
pub async fn turn(
    db: &Connection,
    acks: &Complete<'_>,
    claims: &Lease<'_>,
) -> Result<(Vec<Completed>, Vec<Leased>), Error> {
    let parameters: Vec<_> = acks.parameters().into_iter().chain(claims.parameters()).collect();
    let row = row(db, "queen.complete and queen.lease", &db.statements.turn, &parameters).await?;
    Ok((completed(&row), leased(&row, COMPLETED_COLUMNS)))
}

/// Columns of queen.complete's answer.
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
    /// The lease is.
    pub live: bool,
    /// Which message, and where it is; `None`: none of them.
    pub found: Option<(usize, i64)>,
}

/// No answer at a position: no such partition.
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

/// Locks what a transaction will acknowledge, and says which leases are live.
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

/// One (lease, new end) per partition lease that was extended, and one without an end per one that is locked.
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

/// Where a group starts; `mode`: how it asked for that.
pub struct Registration<'a> {
    pub queue: &'a str,
    pub group: &'a str,
    /// Empty: the whole queue.
    pub partition: &'a str,
    pub mode: &'a str,
    pub new: bool,
    pub since: Option<i64>,
}

/// Whether there is such a queue.
pub async fn register_group(db: &Connection, ask: &Registration<'_>) -> Result<bool, Error> {
    let since = ask.since.map(clock::system_time);
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&ask.queue, &ask.group, &ask.partition, &ask.mode, &ask.new, &since];
    Ok(row(db, "queen.register_group", &db.statements.register_group, &parameters).await?.get(0))
}

pub struct Seeded {
    pub id: Uuid,
    pub number: i64,
    pub name: String,
    pub wait_ms: Option<i64>,
    /// Microseconds since 1970; `None`: never.
    pub served_at: Option<i64>,
}

pub async fn seed(
    db: &Connection,
    queue: &str,
    group: &str,
    after: Uuid,
    limit: i32,
) -> Result<Vec<Seeded>, Error> {
    let answers = rows(db, "queen.seed", &db.statements.seed, &[&queue, &group, &after, &limit]).await?;
    let seeded = |row: &Row| Seeded {
        id: row.get(0),
        number: row.get(1),
        name: row.get(2),
        wait_ms: row.get(3),
        served_at: row.get::<_, Option<SystemTime>>(4).map(clock::micros),
    };
    Ok(answers.iter().map(seeded).collect())
}

/// How far a broker has read the log: see discover.sql.
#[derive(Debug, Clone, Default)]
pub struct Position {
    pub xmax: i64,
    pub running: Vec<i64>,
}

pub struct Written {
    pub id: Uuid,
    pub number: i64,
    pub name: String,
    pub queue: String,
    pub head: i64,
}

pub async fn discover(db: &Connection, from: &Position) -> Result<(Position, Vec<Written>), Error> {
    let answers = rows(db, "queen.discover", &db.statements.discover, &[&from.xmax, &from.running]).await?;
    let position = match answers.first() {
        Some(row) => Position { xmax: row.get(0), running: row.get(1) },
        None => from.clone(),
    };
    let written = answers.iter().filter_map(|row| {
        let id: Option<Uuid> = row.get(2);
        Some(Written { id: id?, number: row.get(3), name: row.get(4), queue: row.get(5), head: row.get(6) })
    });
    Ok((position, written.collect()))
}
