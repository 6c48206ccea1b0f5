//! What a lane has to know of the requests that it carries.

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::db::{Connection, Error, Priority};

/// One kind of request, and how many of them become one procedure call.
pub trait Operation: Send + Sync + Sized + 'static {
    /// Names the operation everywhere: procedure, span, metric label, file.
    const NAME: &'static str;
    /// Kinds of entries, which are counted separately.
    const KINDS: &'static [&'static str] = &[Self::NAME];
    const PRIORITY: Priority;
    /// Entries of one key that may share a flight.
    const MERGED_MAX: usize;
    /// The most bytes that entries of one key may have in a flight.
    const MERGED_BYTES_MAX: usize = usize::MAX;
    /// The most items of one flight, whatever the settings allow.
    const ITEMS_MAX: usize = usize::MAX;
    /// A flight carries a single entry, of several statements, on a connection of its own.
    const ALONE: bool = false;
    /// Two entries with one key are never in the air at once, unless they share a flight.
    type Key: Hash + Eq + Clone + Send;
    type Output: Send + 'static;
    type Context: Send + Sync + 'static;

    /// Its place in `KINDS`.
    fn kind(&self) -> usize {
        0
    }

    fn key(&self) -> Self::Key;
    fn items(&self) -> usize;
    fn bytes(&self) -> usize;

    /// Called before another try if it is unknown whether the last one was committed.
    fn again(&mut self) {}

    /// Calls the procedure for the whole batch. Outputs come back in the order of the batch.
    fn call(
        context: &Arc<Self::Context>,
        db: &Connection,
        batch: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Output>, Error>> + Send;

    /// The same for entries of one key, which may wait for rows that another session has locked. `call` does not wait
    /// for locks, or not for long: `open` up to 200 ms, and a transaction, which flies alone, 50 ms.
    fn call_waiting(
        context: &Arc<Self::Context>,
        db: &Connection,
        batch: &[Self],
        _patience: Duration,
    ) -> impl Future<Output = Result<Vec<Self::Output>, Error>> + Send {
        Self::call(context, db, batch)
    }

    /// Why an entry was left out of a flight that landed. It flies again, and nothing of its key overtakes it.
    fn left(_output: &Self::Output) -> Option<Error> {
        None
    }

    /// Called when an entry has failed and does not fly again, or its caller went away before its flight left, and
    /// before another entry of its key may fly.
    fn ended(&self, _error: &Error) {}
}
