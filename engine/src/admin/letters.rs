//! Reading dead letters: one by one, or grouped by error.

use uuid::Uuid;

use super::messages::read;
use crate::Engine;
use crate::crypt::{Keys, Unreadable};
use crate::db::letters::{self, DeadLetterFilter, DeadLetterRow, LetterShapes};
use crate::error::Error;
use crate::log::frames::{Frame, read_string};

/// How many of the newest dead letters are grouped by error. A shape takes PostgreSQL 15 to 35 µs.
const SHAPED_MAX: i64 = 20_000;

#[derive(Debug)]
pub struct DeadLetter {
    pub id: Uuid,
    pub transaction_id: String,
    pub partition_id: Uuid,
    pub queue: String,
    pub partition: String,
    pub group: String,
    pub error: Option<String>,
    pub attempts: i32,
    /// The sender's JSON; null if it cannot be read.
    pub payload: String,
    pub unreadable: Option<Unreadable>,
    pub producer_sub: Option<String>,
    pub created_at: i64,
    pub failed_at: i64,
}

impl Engine {
    /// One page, newest failure first, and the total number of matches.
    pub async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<(Vec<DeadLetter>, i64), Error> {
        let (rows, total) = letters::dead_letters(&self.shared.reads, filter).await?;
        Ok((rows.into_iter().filter_map(|row| dead_letter(row, &self.shared.config.keys)).collect(), total))
    }

    /// Groups the matching dead letters by error, into at most `filter.limit` shapes. A shape or a page in the filter
    /// is ignored.
    pub async fn letter_shapes(&self, filter: &DeadLetterFilter) -> Result<LetterShapes, Error> {
        Ok(letters::letter_shapes(&self.shared.reads, filter, SHAPED_MAX).await?)
    }
}

fn dead_letter(row: DeadLetterRow, keys: &Keys) -> Option<DeadLetter> {
    let frame = Frame::parse(&row.frame)?;
    let (payload, unreadable) = read(&frame, keys);
    Some(DeadLetter {
        id: row.id,
        transaction_id: read_string(frame.transaction_id),
        partition_id: row.partition_id,
        queue: row.queue,
        partition: row.partition,
        group: row.group,
        error: row.error,
        attempts: row.attempts,
        payload,
        unreadable,
        producer_sub: frame.producer_sub.map(read_string),
        created_at: row.created_at,
        failed_at: row.failed_at,
    })
}
