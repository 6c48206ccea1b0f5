//! One typed function per procedure of the message plane; parameter types are fixed here and nowhere else.

mod ack;
mod append;
mod claim;
pub mod deferred;
mod discover;
pub mod inbox;

use std::time::{Duration, SystemTime};

use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Row, Statement};

pub use self::ack::*;
pub use self::append::*;
pub use self::claim::*;
pub use self::discover::*;
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
    complete_and_lease: "select * from queen.complete($1, $2, $3, $4, $5, $6, $8, $9, $16) c
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
    /// Skips them.
    Skip,
    /// Waits at most this long.
    WaitFor(Duration),
}

impl Locked {
    /// The value that the procedures take.
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

/// The single row of a procedure that returns arrays.
async fn row(
    db: &Connection,
    procedure: &'static str,
    statement: &Statement,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Row, Error> {
    db.within(procedure, db.client.query_one(statement, parameters)).await
}

/// An array column; null stands for an empty array.
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
