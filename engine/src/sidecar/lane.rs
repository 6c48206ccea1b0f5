//! One lane: arrivals collect while its slots are busy and leave together as soon as one is free.
//! It knows entries and flights, and nothing of what they mean.

mod rest;

use std::future::Future;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tracing::{debug, error, warn};

use super::batcher::{Batcher, Limits};
use super::slots::Slots;
use super::stats::{LaneCounts, LaneSpread, LaneStats, Load};
use crate::clock;
use crate::db::{Backend, Checkout, Connection, Connections, Error, Priority, RETRY_PAUSE};
use crate::tasks::Tasks;

/// One kind of request, and how many of them become one procedure call.
pub trait Operation: Send + Sync + Sized + 'static {
    /// Names the operation everywhere: procedure, span, metric label, file.
    const NAME: &'static str;
    /// Kinds of entries that are counted apart.
    const KINDS: usize = 1;
    const PRIORITY: Priority;
    /// Entries of one key that may share a flight.
    const MERGED_MAX: usize;
    /// And their bytes.
    const MERGED_BYTES_MAX: usize = usize::MAX;
    /// Items of one flight at the most, whatever the settings allow.
    const ITEMS_MAX: usize = usize::MAX;
    /// A flight carries a single entry, of several statements, on a connection of its own.
    const ALONE: bool = false;
    /// Two entries with one key are never in the air at once, unless they share a flight.
    type Key: Hash + Eq + Clone + Send;
    type Output: Send + 'static;
    type Context: Send + Sync + 'static;

    /// Below `KINDS`.
    fn kind(&self) -> usize {
        0
    }

    fn key(&self) -> Self::Key;
    fn items(&self) -> usize;
    fn bytes(&self) -> usize;

    /// Called before another try when nobody knows whether the last one was committed.
    fn again(&mut self) {}

    /// Calls the procedure for the whole batch. Answers come back in the batch's order.
    fn call(
        context: &Arc<Self::Context>,
        db: &Connection,
        batch: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Output>, Error>> + Send;

    /// The same for entries of one key, which may wait for rows that another session has locked. `call` does not, or not for long:
    /// `open` up to 200 ms, a transaction, which flies alone, 50 ms.
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

    /// It failed and does not fly again, or its caller went away before its flight left. Called before another entry of
    /// its key may fly.
    fn ended(&self, _error: &Error) {}
}

/// A steady stream of arrivals must not keep a flight on the ground; a round takes 10 to 50 microseconds.
const BOARDING_ROUNDS_MAX: usize = 16;

pub struct Lane<O: Operation>(Arc<Inner<O>>);

impl<O: Operation> Clone for Lane<O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<O: Operation> {
    context: Arc<O::Context>,
    connections: Connections,
    tasks: Tasks,
    limits: Limits,
    waiting_max: usize,
    linger: Duration,
    retry_for: Duration,
    waits_for_database: bool,
    epoch: Instant,
    /// By kind.
    stats: Vec<LaneStats>,
    state: Mutex<State<O>>,
}

struct State<O: Operation> {
    batcher: Batcher<O::Key, Entry<O>>,
    slots: Slots,
    /// Entries of the last flight.
    carried: usize,
    /// A task is waiting to see whether the flight in the air is a slow one.
    guarded: bool,
    /// A flight waits for a locked row. One at a time: it occupies a connection.
    waits: bool,
}

struct Entry<O: Operation> {
    operation: O,
    ticket: Ticket<O>,
    arrived: Instant,
}

struct Ticket<O: Operation> {
    reply: oneshot::Sender<Result<O::Output, Error>>,
    arrived: Instant,
    /// Of its first flight.
    started: Option<Instant>,
    /// How often it was left out.
    tries: u32,
    /// It may have been committed.
    sent: bool,
    /// Where its last try may still run. It must have ended before the next one begins.
    unsettled: Option<Backend>,
}

impl<O: Operation> Ticket<O> {
    fn end(self, operation: &O, error: Error) {
        let error = match error {
            // Nothing was done this time; but it may have been committed before.
            Error::Unreachable(cause) if self.sent => Error::Lost(cause),
            Error::Busy | Error::Full if self.sent => Error::Unknown,
            other => other,
        };
        operation.ended(&error);
        _ = self.reply.send(Err(error));
    }
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

/// One look at a lane.
pub struct LanePressure {
    /// In the air, by those that may be.
    pub flights: f64,
    pub waiting: usize,
    /// How long the entry has waited that leaves next.
    pub oldest: Duration,
}

pub struct LaneSettings {
    /// More waiting entries than this, and a caller is told at once instead of queueing behind them.
    pub waiting_max: usize,
    pub items_max: usize,
    pub bytes_max: usize,
    pub slots: usize,
    pub linger: Duration,
    pub retry_for: Duration,
    /// If it cannot be reached; otherwise the caller has another way.
    pub waits_for_database: bool,
}

impl<O: Operation> Lane<O> {
    pub fn new(
        context: Arc<O::Context>,
        connections: Connections,
        tasks: Tasks,
        settings: &LaneSettings,
    ) -> Self {
        Self(Arc::new(Inner {
            context,
            connections,
            tasks,
            limits: Limits {
                items: if O::ALONE { 1 } else { settings.items_max.min(O::ITEMS_MAX) },
                bytes: settings.bytes_max,
                merged: O::MERGED_MAX,
                merged_bytes: O::MERGED_BYTES_MAX,
            },
            waiting_max: settings.waiting_max,
            linger: settings.linger,
            retry_for: settings.retry_for,
            waits_for_database: settings.waits_for_database,
            epoch: clock::now(),
            stats: (0..O::KINDS).map(|_| LaneStats::default()).collect(),
            state: Mutex::new(State {
                batcher: Batcher::new(),
                slots: Slots::new(settings.slots),
                carried: 0,
                guarded: false,
                waits: false,
            }),
        }))
    }

    /// # Cancel safety
    /// Dropped before its flight leaves, the operation never runs. Dropped later, it runs, and its answer is dropped: one
    /// that holds something must give it back then.
    pub async fn submit(&self, operation: O) -> Result<O::Output, Error> {
        landed(self.enqueue(operation)?).await
    }

    /// Queues at once, in the order of the calls; the answer comes through the receiver.
    pub fn enqueue(&self, operation: O) -> Result<oneshot::Receiver<Result<O::Output, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        let (key, items, bytes) = (operation.key(), operation.items().max(1), operation.bytes());
        let arrived = clock::now();
        let ticket = Ticket { reply, arrived, started: None, tries: 0, sent: false, unsettled: None };
        let entry = Entry { operation, ticket, arrived };
        let mut state = self.0.lock();
        if state.batcher.len() >= self.0.waiting_max {
            return Err(Error::Full);
        }
        state.batcher.offer(key, entry, items, bytes);
        self.0.open_slot(&mut state);
        Ok(answer)
    }

    /// How busy the lane is at this moment.
    pub fn pressure(&self, now: Instant) -> LanePressure {
        let state = self.0.lock();
        LanePressure {
            flights: state.slots.share(),
            waiting: state.batcher.len(),
            oldest: state
                .batcher
                .next()
                .map_or(Duration::ZERO, |next| now.saturating_duration_since(next.arrived)),
        }
    }

    pub fn counts(&self) -> LaneCounts {
        self.counts_of(0)
    }

    pub fn counts_of(&self, kind: usize) -> LaneCounts {
        self.0.stats[kind].read()
    }

    pub fn spread(&self) -> LaneSpread {
        self.spread_of(0)
    }

    pub fn spread_of(&self, kind: usize) -> LaneSpread {
        self.0.stats[kind].spread()
    }
}

impl<O: Operation> Inner<O> {
    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a flight if there should be one more, or sees to it that somebody asks again soon.
    fn open_slot(self: &Arc<Self>, state: &mut State<O>) {
        let Some(next) = state.batcher.next() else { return };
        let waited = clock::now() - next.arrived;
        if state.slots.open(state.batcher.items(), self.limits.items, waited) {
            self.tasks.spawn(self.clone().run_slot());
        } else if !std::mem::replace(&mut state.guarded, true) {
            let patience = state.slots.patience();
            let lane = self.clone();
            self.tasks.spawn(async move {
                tokio::time::sleep(patience).await;
                let mut state = lane.lock();
                state.guarded = false;
                lane.open_slot(&mut state);
            });
        }
    }

    /// Flies until nothing waits. The batch is taken only once a connection is there: what arrives while the pool
    /// is busy still gets on.
    async fn run_slot(self: Arc<Self>) {
        self.board().await;
        loop {
            if !self.linger.is_zero() {
                tokio::time::sleep(self.linger).await;
            }
            let connection = self.connect(O::ALONE).await;
            let flight = {
                let mut state = self.lock();
                let flight = state.batcher.take(self.limits);
                if flight.is_empty() {
                    state.slots.close();
                    return;
                }
                state.carried = flight.len();
                flight
            };
            let (mut keys, mut entries) =
                (Vec::with_capacity(flight.len()), Vec::with_capacity(flight.len()));
            for (key, entry) in flight {
                if keys.last() != Some(&key) {
                    keys.push(key);
                }
                entries.push(entry);
            }
            self.carry(connection, keys, entries, false).await;
        }
    }

    /// One flight. Its keys land, also if it panics, but for those of entries that were left out: they rest.
    async fn carry(
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

    /// Requests that arrive together are read one after the other: the first flight waits while every look around finds
    /// somebody new at the door, until it has half of what the last one carried. Takes microseconds when nobody comes.
    /// With everybody on board, clients that wait for their answers would move in lockstep: the database idles while they
    /// are answered, and the broker while it works. Later flights leave at once, for the same reason.
    async fn board(&self) {
        let mut boarded = 0;
        for _ in 0..BOARDING_ROUNDS_MAX {
            tokio::task::yield_now().await;
            let state = self.lock();
            let waiting = state.batcher.len();
            if waiting == boarded || 2 * waiting >= state.carried.max(2) {
                return;
            }
            boarded = waiting;
        }
    }

    async fn connect(&self, alone: bool) -> Result<Checkout, Error> {
        match alone {
            true => self.connections.acquire().await,
            false => self.connections.join(O::PRIORITY).await,
        }
    }

    async fn fly(
        &self,
        mut connection: Result<Checkout, Error>,
        entries: Vec<Entry<O>>,
        waits: bool,
    ) -> Landing<O> {
        let started = clock::now();
        let mut loads = self.loads(&entries, started);
        let mut operations = Vec::with_capacity(entries.len());
        let mut tickets = Vec::with_capacity(entries.len());
        for mut entry in entries {
            entry.ticket.started.get_or_insert(started);
            operations.push(entry.operation);
            tickets.push(entry.ticket);
        }
        let result = loop {
            let result = match &connection {
                Ok(db) => match settle(db, &mut tickets).await {
                    Ok(()) => {
                        let result = match waits {
                            true => {
                                guarded::<O>(O::call_waiting(&self.context, db, &operations, rest::WAIT))
                                    .await
                            }
                            false => guarded::<O>(O::call(&self.context, db, &operations)).await,
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
                Err(error) if waits && error.is_lock_timeout() => break Err(Error::Busy),
                Err(error) if error.may_retry() && self.is_patient(&error, sent, started) => {
                    loads.iter().for_each(|(stats, _)| stats.retried());
                    debug!(op = O::NAME, %error, "trying a flight again");
                    if error.is_outcome_unknown() {
                        tickets.iter_mut().for_each(|ticket| ticket.sent = true);
                        operations.iter_mut().for_each(O::again);
                    }
                }
                other => break other,
            }
            drop(connection);
            tokio::time::sleep(RETRY_PAUSE).await;
            connection = self.connect(O::ALONE || waits).await;
        };
        let several = tickets.len() > 1;
        let mut failed = false;
        let outputs: Vec<Result<O::Output, Error>> = match result {
            Ok(outputs) => {
                outputs.into_iter().map(|output| O::left(&output).map_or(Ok(output), Err)).collect()
            }
            Err(error) => {
                let goes_on = matches!(error, Error::Busy) || (error.is_data() && several);
                failed = !goes_on;
                if failed {
                    loads.iter().for_each(|(stats, _)| stats.failed());
                    warn!(op = O::NAME, batch.entries = tickets.len(), %error, "flight failed");
                }
                tickets.iter().map(|_| Err(error.clone())).collect()
            }
        };
        let flies_again = |error: &Error, ticket: &Ticket<O>, since: Instant| {
            !failed && error.may_retry() && self.is_patient(error, ticket.sent, since)
        };
        for ((operation, ticket), output) in operations.iter().zip(&tickets).zip(&outputs) {
            let since = ticket.started.unwrap_or(started);
            if output.as_ref().is_err_and(|error| flies_again(error, ticket, since)) {
                self.stats[operation.kind()].retried();
                leave_out(&mut loads, &self.stats[operation.kind()], operation.items());
            }
        }
        let took = clock::now() - started;
        loads.iter().filter(|(_, load)| load.entries > 0).for_each(|(stats, load)| stats.landed(load, took));
        if !waits {
            self.lock().slots.landed(took);
        }
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
                Err(error) if flies_again(&error, &ticket, since) => {
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

/// The answer to an entry. Without one its flight has panicked, and nobody knows what was committed.
pub async fn landed<T>(answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
    answer.await.unwrap_or_else(|_| Err(Error::Lost("the flight ended without an answer".to_owned())))
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
