//! The procedures of pushes: they open partitions, append segments, and look up what was accepted long ago.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Locked, list, position, row, rows, zero_based};
use crate::clock;
use crate::db::{Connection, Error};

#[derive(Default)]
pub struct Open<'a> {
    pub queues: Vec<&'a str>,
    pub partitions: Vec<&'a str>,
    pub ids: Vec<Uuid>,
    pub namespaces: Vec<Option<&'a str>>,
    pub tasks: Vec<Option<&'a str>>,
    /// `None`: create it regardless of limits.
    pub create: Vec<Option<bool>>,
}

pub struct Opened {
    pub position: usize,
    pub answer: Answer,
}

/// Why a partition is not created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its queue has reached its limit of partitions.
    Partitions,
    /// The limit of queues is reached.
    Queues,
    /// Its queue does not exist, and is not created automatically.
    NoQueue,
}

pub enum Answer {
    Found(Found),
    Refused(Refusal),
    /// Skipped, because another session has locked a row that it needs.
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
    /// The head before the first try, from where that try may have appended.
    pub recheck: Vec<i64>,
    /// These are deferred pushes, which other pushes must not overtake.
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
    /// When the first of them was accepted.
    pub times: Vec<SystemTime>,
    /// The deduplication windows of their queues, in seconds.
    pub windows: Vec<i32>,
    pub transactions: Vec<&'a [u8]>,
}

/// Those of them that were in the log by then and have left the window since, by position in the question.
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
    /// The id that was promised for it, if any.
    pub promised: Option<Uuid>,
}

/// The stored messages of a whole push.
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
