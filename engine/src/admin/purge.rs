//! Purge: deletes dead letters slice by slice, so that no statement holds many of them for long.

use uuid::Uuid;

use crate::Engine;
use crate::db::letters::DeadLetterFilter;
use crate::db::purge::purge_letters;
use crate::error::Error;

/// Dead letters that a slice looks at, whether they match or not. About 10 ms of the database, three times that if
/// their errors are compared.
const SLICE_LETTERS: i32 = 1_000;

impl Engine {
    /// Returns how many dead letters of the queue matched and were deleted; pages in the filter are ignored. `None`:
    /// there is no such queue.
    ///
    /// # Cancel safety
    /// If dropped, it stops after the current slice. Calling it again deletes the rest.
    pub async fn purge_dead_letters(
        &self,
        queue: &str,
        filter: &DeadLetterFilter,
    ) -> Result<Option<i64>, Error> {
        let mut filter = DeadLetterFilter { queue: Some(queue.to_owned()), ..filter.clone() };
        let mut next = Some((Uuid::nil(), 0));
        let mut purged = 0;
        while let Some(begins) = next {
            let (engine, asked) = (self.clone(), filter.clone());
            // One slice at a time, so that other acts of the control plane can come in between.
            let slice = self.to_its_end(async move {
                let connections = &engine.shared.connections;
                Ok(purge_letters(connections, &asked, begins, SLICE_LETTERS).await?)
            });
            let Some(slice) = slice.await? else { return Ok(None) };
            purged += slice.purged;
            filter.to = Some(slice.until);
            next = slice.next;
        }
        Ok(Some(purged))
    }
}
