//! One flight of a lane: the call for a whole batch, its retries, and what becomes of each entry.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tracing::{debug, error, warn};

use super::{Entry, Inner, Operation, Ticket, rest};
use crate::clock;
use crate::db::{Backend, Checkout, Connection, Error, RETRY_PAUSE};
use crate::sidecar::stats::{LaneStats, Load};

struct Flight<'a, O: Operation> {
    started: Instant,
    /// It waits for locked rows.
    waits: bool,
    operations: Vec<O>,
    tickets: Vec<Ticket<O>>,
    loads: Vec<(&'a LaneStats, Load)>,
    /// As a whole: none of its entries flies again.
    failed: bool,
}

/// What a flight leaves behind.
struct Landing<O: Operation> {
    /// They fly again.
    left: Vec<Entry<O>>,
    /// Keys of entries that have waited for a locked row for as long as they may.
    spent: Vec<O::Key>,
}

impl<O: Operation> Default for Landing<O> {
    fn default() -> Self {
        Self { left: Vec::new(), spent: Vec::new() }
    }
}

impl<O: Operation> Inner<O> {
    /// One flight. Its keys land, also if it panics, but for those of entries that were left out: they rest.
    pub(super) async fn carry(
        self: &Arc<Self>,
        connection: Result<Checkout, Error>,
        keys: Vec<O::Key>,
        mut entries: Vec<Entry<O>>,
        waits: bool,
    ) {
        // One that may have been committed flies again also for nobody: its answer gives back what it holds.
        let gone = entries.extract_if(.., |entry| entry.ticket.reply.is_closed() && !entry.ticket.sent);
        gone.for_each(|entry| entry.operation.ended(&Error::Stopping));
        let Landing { left, spent } = match entries.is_empty() {
            true => Landing::default(),
            false => {
                let flight = AssertUnwindSafe(self.fly(connection, entries, waits)).catch_unwind();
                // The callers of a flight that panicked see their replies dropped.
                flight.await.unwrap_or_else(|_| {
                    error!(op = O::NAME, "flight panicked");
                    Landing::default()
                })
            }
        };
        let mut state = self.lock();
        // Entries that have waited behind it for as long fail with it, instead of starting a wait of their own.
        let now = clock::now();
        for key in spent {
            let late = |entry: &Entry<O>| now - entry.ticket.arrived >= self.retry_for;
            for Entry { operation, ticket, .. } in state.batcher.take_late(&key, late) {
                self.stats[operation.kind()].failed();
                ticket.end(&operation, Error::Busy);
            }
        }
        let resting = self.rest(&mut state, left);
        for key in keys.iter().filter(|key| !resting.contains(key)) {
            state.batcher.landed(key);
        }
    }

    pub(super) async fn connect(&self, alone: bool) -> Result<Checkout, Error> {
        match alone {
            true => self.connections.acquire().await,
            false => self.connections.join(O::PRIORITY).await,
        }
    }

    async fn fly(
        &self,
        connection: Result<Checkout, Error>,
        entries: Vec<Entry<O>>,
        waits: bool,
    ) -> Landing<O> {
        let started = clock::now();
        let loads = self.loads(&entries, started);
        let (operations, tickets) = (Vec::with_capacity(entries.len()), Vec::with_capacity(entries.len()));
        let mut flight = Flight { started, waits, operations, tickets, loads, failed: false };
        for mut entry in entries {
            entry.ticket.started.get_or_insert(started);
            flight.operations.push(entry.operation);
            flight.tickets.push(entry.ticket);
        }
        let (connection, result) = self.call(&mut flight, connection).await;
        let outputs = self.outputs(&mut flight, result);
        self.land(flight, outputs, connection).await
    }

    /// Calls until there is a response, or no patience left. Returns the last connection as well.
    async fn call(
        &self,
        flight: &mut Flight<'_, O>,
        mut connection: Result<Checkout, Error>,
    ) -> (Result<Checkout, Error>, Result<Vec<O::Output>, Error>) {
        let Flight { started, waits, operations, tickets, loads, .. } = flight;
        loop {
            let result = match &connection {
                Ok(db) => match settle(db, tickets).await {
                    Ok(()) => {
                        let result = match waits {
                            true => {
                                guarded::<O>(O::call_waiting(&self.context, db, operations, rest::WAIT)).await
                            }
                            false => guarded::<O>(O::call(&self.context, db, operations)).await,
                        };
                        if result.is_err() {
                            tickets.iter_mut().for_each(|ticket| ticket.unsettled = db.unsettled());
                        }
                        result
                    }
                    Err(error) => Err(error),
                },
                Err(error) => Err(error.clone()),
            };
            let sent = tickets.iter().any(|ticket| ticket.sent);
            match result {
                Err(error) if *waits && error.is_lock_timeout() => return (connection, Err(Error::Busy)),
                Err(error) if error.may_retry() && self.is_patient(&error, sent, *started) => {
                    loads.iter().for_each(|(stats, _)| stats.retried());
                    debug!(op = O::NAME, %error, "trying a flight again");
                    if error.is_outcome_unknown() {
                        tickets.iter_mut().for_each(|ticket| ticket.sent = true);
                        operations.iter_mut().for_each(O::again);
                    }
                }
                other => return (connection, other),
            }
            drop(connection);
            tokio::time::sleep(RETRY_PAUSE).await;
            connection = self.connect(O::ALONE || *waits).await;
        }
    }

    /// What became of each entry, and the statistics of the flight.
    fn outputs(
        &self,
        flight: &mut Flight<'_, O>,
        result: Result<Vec<O::Output>, Error>,
    ) -> Vec<Result<O::Output, Error>> {
        let outputs: Vec<Result<O::Output, Error>> = match result {
            Ok(outputs) => {
                outputs.into_iter().map(|output| O::left(&output).map_or(Ok(output), Err)).collect()
            }
            Err(error) => {
                let goes_on = matches!(error, Error::Busy) || (error.is_data() && flight.tickets.len() > 1);
                flight.failed = !goes_on;
                if flight.failed {
                    flight.loads.iter().for_each(|(stats, _)| stats.failed());
                    warn!(op = O::NAME, batch.entries = flight.tickets.len(), %error, "flight failed");
                }
                flight.tickets.iter().map(|_| Err(error.clone())).collect()
            }
        };
        for ((operation, ticket), output) in flight.operations.iter().zip(&flight.tickets).zip(&outputs) {
            let since = ticket.started.unwrap_or(flight.started);
            let again = |error: &Error| !flight.failed && self.flies_again(error, ticket, since);
            if output.as_ref().is_err_and(again) {
                self.stats[operation.kind()].retried();
                leave_out(&mut flight.loads, &self.stats[operation.kind()], operation.items());
            }
        }
        let took = clock::now() - flight.started;
        let loads = flight.loads.iter().filter(|(_, load)| load.entries > 0);
        loads.for_each(|(stats, load)| stats.landed(load, took));
        if !flight.waits {
            self.lock().slots.landed(took);
        }
        outputs
    }

    /// Each entry is answered, or flies again.
    async fn land(
        &self,
        flight: Flight<'_, O>,
        outputs: Vec<Result<O::Output, Error>>,
        connection: Result<Checkout, Error>,
    ) -> Landing<O> {
        let Flight { started, operations, tickets, failed, .. } = flight;
        let several = tickets.len() > 1;
        let mut left = Vec::new();
        let mut spent: Vec<O::Key> = Vec::new();
        for ((mut operation, mut ticket), mut output) in operations.into_iter().zip(tickets).zip(outputs) {
            if let (Err(error), Ok(db), true) = (&output, &connection, several)
                && error.is_data()
            {
                warn!(op = O::NAME, %error, "batch failed, trying entries one by one");
                let behind =
                    left.last().is_some_and(|last: &Entry<O>| last.operation.key() == operation.key());
                // One that missed its deadline may take the connection along.
                output = match behind || !db.is_usable() {
                    true => Err(Error::Busy),
                    false => {
                        let alone = O::call(&self.context, db, std::slice::from_ref(&operation));
                        guarded::<O>(alone).await.and_then(|mut outputs| outputs.pop().ok_or(Error::Stopping))
                    }
                };
                output = output.and_then(|output| O::left(&output).map_or(Ok(output), Err));
            }
            let since = match spent.last().is_some_and(|key| *key == operation.key()) {
                true => ticket.arrived,
                false => ticket.started.unwrap_or(started),
            };
            match output {
                Ok(output) => _ = ticket.reply.send(Ok(output)),
                Err(error) if !failed && self.flies_again(&error, &ticket, since) => {
                    if error.is_outcome_unknown() {
                        ticket.sent = true;
                        let db = connection.as_ref().ok();
                        ticket.unsettled = ticket.unsettled.or(db.and_then(|db| db.unsettled()));
                        operation.again();
                    }
                    ticket.tries += 1;
                    left.push(Entry { operation, ticket, arrived: started });
                }
                Err(error) => {
                    if !failed {
                        self.stats[operation.kind()].failed();
                        warn!(op = O::NAME, %error, "operation failed");
                    }
                    if matches!(error, Error::Busy) {
                        spent.push(operation.key());
                    }
                    ticket.end(&operation, error);
                }
            }
        }
        Landing { left, spent }
    }

    /// Whether an entry that failed is tried again, with `since`: when its patience began.
    fn flies_again(&self, error: &Error, ticket: &Ticket<O>, since: Instant) -> bool {
        error.may_retry() && self.is_patient(error, ticket.sent, since)
    }

    /// Whether a flight that failed is tried again. Once the database has been away for that long nobody waits anew, and
    /// what can go another way does not wait at all, unless it may have been committed.
    fn is_patient(&self, error: &Error, sent: bool, started: Instant) -> bool {
        let away = match error {
            Error::Unreachable(_) if !sent && !self.waits_for_database => return false,
            Error::Unreachable(_) => self.connections.down_for().unwrap_or_default(),
            _ => Duration::ZERO,
        };
        (clock::now() - started).max(away) < self.retry_for
    }

    /// What a flight carries of each kind, with the counters of that kind.
    fn loads(&self, entries: &[Entry<O>], started: Instant) -> Vec<(&LaneStats, Load)> {
        let mut loads: Vec<_> = self.stats.iter().map(|stats| (stats, Load::default())).collect();
        for entry in entries {
            let load = &mut loads[entry.operation.kind()].1;
            load.entries += 1;
            load.items += entry.operation.items();
            load.waited = load.waited.max(started - entry.arrived);
        }
        loads.retain(|(_, load)| load.entries > 0);
        loads
    }
}

/// No try begins before the last one has ended: its statement may be waiting for a lock, or still be on its way.
async fn settle<O: Operation>(db: &Connection, tickets: &mut [Ticket<O>]) -> Result<(), Error> {
    let mut ended: Option<Backend> = None;
    for ticket in tickets {
        let Some(backend) = ticket.unsettled else { continue };
        if ended != Some(backend) {
            backend.end(db).await?;
            ended = Some(backend);
        }
        ticket.unsettled = None;
    }
    Ok(())
}

/// A call that panics fails like any other, so that its entries learn of it and nothing overtakes them.
async fn guarded<O: Operation>(
    call: impl Future<Output = Result<Vec<O::Output>, Error>>,
) -> Result<Vec<O::Output>, Error> {
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|_| {
        error!(op = O::NAME, "a call panicked");
        Err(Error::Unknown)
    })
}

/// An entry that flies again is counted when it lands.
fn leave_out(loads: &mut [(&LaneStats, Load)], stats: &LaneStats, items: usize) {
    for (_, load) in loads.iter_mut().filter(|(own, _)| std::ptr::eq(*own, stats)) {
        load.entries -= 1;
        load.items -= items;
    }
}
