//! Purge: throws dead letters away, slice by slice, so that no statement holds many of them for long.

use uuid::Uuid;

use super::letters::DeadLetterFilter;
use crate::Engine;
use crate::db::purge::purge_letters;
use crate::error::Error;

/// About 10 ms of the database.
const SLICE_LETTERS: i32 = 1_000;

impl Engine {
    /// How many dead letters of the queue matched and are gone; pages do not count. `None`: there is no such queue.
    ///
    /// # Cancel safety
    /// Dropped between two slices it has thrown away some of them; asked for again, it goes on with the others.
    pub async fn purge_dead_letters(
        &self,
        queue: &str,
        filter: &DeadLetterFilter,
    ) -> Result<Option<i64>, Error> {
        self.check_open()?;
        let mut ask = filter.ask();
        ask.queue = Some(queue);
        let mut next = (Uuid::nil(), 0);
        let mut purged = 0;
        loop {
            let slice = purge_letters(&self.shared.connections, &ask, next, SLICE_LETTERS).await?;
            let Some(slice) = slice else { return Ok(None) };
            purged += slice.purged;
            match slice.next {
                Some(begins) if slice.purged == i64::from(SLICE_LETTERS) => next = begins,
                _ => return Ok(Some(purged)),
            }
            ask.to = Some(slice.until);
        }
    }
}
