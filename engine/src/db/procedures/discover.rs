//! The procedures that find out what there is to read: where groups start, and what was written since a broker last
//! looked.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{row, rows};
use crate::clock;
use crate::db::{Connection, Error};

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

/// Returns whether there is such a queue.
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
