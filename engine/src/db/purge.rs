//! The typed function of the procedure that deletes dead letters.

use std::time::SystemTime;

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::many;
use super::letters::DeadLetterFilter;
use super::{Connections, Error};
use crate::clock;

/// The result of one slice.
pub struct Slice {
    pub purged: i64,
    /// Microseconds since 1970; the next slice takes nothing that failed later.
    pub until: i64,
    /// The next slice begins behind this; `None`: that was all.
    pub next: Option<(Uuid, i64)>,
}

/// Looks at `limit` letters behind `next`. `None`: no such queue. `filter.queue` is required.
pub async fn purge_letters(
    connections: &Connections,
    filter: &DeadLetterFilter,
    next: (Uuid, i64),
    limit: i32,
) -> Result<Option<Slice>, Error> {
    let (from, to) = (filter.from.map(clock::system_time), filter.to.map(clock::system_time));
    let sql = "select * from queen.purge_letters($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    let parameters: [&(dyn ToSql + Sync); 10] = [
        &filter.queue,
        &filter.partition,
        &filter.group,
        &from,
        &to,
        &filter.error,
        &filter.shape,
        &next.0,
        &next.1,
        &limit,
    ];
    let rows = many(connections, "queen.purge_letters", sql, &parameters).await?;
    Ok(rows.first().map(|row| {
        let (partition, offset): (Option<Uuid>, Option<i64>) = (row.get(2), row.get(3));
        let until: SystemTime = row.get(1);
        Slice { purged: row.get(0), until: clock::micros(until), next: partition.zip(offset) }
    }))
}
