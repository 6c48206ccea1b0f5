//! One lane: arrivals collect while its slots are busy and leave together as soon as one is free.
//! It knows entries and flights, and nothing of what they mean.

use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::batcher::{Batcher, Limits};
use super::slots::Slots;
use super::stats::{LaneCounts, LaneSpread, LaneStats, Load};
use crate::clock;
use crate::db::{Checkout, Connection, Connections, Error, Priority, RETRY_PAUSE};
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

    /// The caller went away before the flight left.
    fn abandoned(self, _context: &Arc<Self::Context>) {}

    /// The caller went away before its answer came.
    fn orphaned(_context: &Arc<Self::Context>, _output: Self::Output) {}
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
}

struct Entry<O: Operation> {
    operation: O,
    reply: oneshot::Sender<Result<O::Output, Error>>,
    arrived: Instant,
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
            stats: (0..O::KINDS).map(|_| LaneStats::default()).collect(),
            state: Mutex::new(State {
                batcher: Batcher::new(),
                slots: Slots::new(settings.slots),
                carried: 0,
                guarded: false,
            }),
        }))
    }

    /// # Cancel safety
    /// Dropped before its flight leaves, the operation never runs. Dropped later, it runs, and `orphaned` gets
    /// the answer.
    pub async fn submit(&self, operation: O) -> Result<O::Output, Error> {
        self.enqueue(operation)?.await.unwrap_or(Err(Error::Stopping))
    }

    /// Queues at once, in the order of the calls; the answer comes through the receiver.
    pub fn enqueue(&self, operation: O) -> Result<oneshot::Receiver<Result<O::Output, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        let (key, items, bytes) = (operation.key(), operation.items().max(1), operation.bytes());
        let entry = Entry { operation, reply, arrived: clock::now() };
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
            let connection = self.connect().await;
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
                if entry.reply.is_closed() {
                    entry.operation.abandoned(&self.context);
                } else {
                    entries.push(entry);
                }
            }
            if !entries.is_empty() {
                self.fly(connection, entries).await;
            }
            let mut state = self.lock();
            for key in &keys {
                state.batcher.landed(key);
            }
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

    async fn connect(&self) -> Result<Checkout, Error> {
        match O::ALONE {
            true => self.connections.acquire().await,
            false => self.connections.join(O::PRIORITY).await,
        }
    }

    async fn fly(&self, mut connection: Result<Checkout, Error>, entries: Vec<Entry<O>>) {
        let started = clock::now();
        let loads = self.loads(&entries, started);
        let mut operations = Vec::with_capacity(entries.len());
        let mut replies = Vec::with_capacity(entries.len());
        for entry in entries {
            operations.push(entry.operation);
            replies.push(entry.reply);
        }
        let mut sent = false;
        let result = loop {
            let result = match &connection {
                Ok(db) => O::call(&self.context, db, &operations).await,
                Err(error) => Err(error.clone()),
            };
            match result {
                Err(error) if error.may_retry() && self.is_patient(&error, sent, started) => {
                    loads.iter().for_each(|(stats, _)| stats.retried());
                    debug!(op = O::NAME, %error, "trying a flight again");
                    if error.is_outcome_unknown() {
                        sent = true;
                        operations.iter_mut().for_each(O::again);
                    }
                }
                other => break other,
            }
            drop(connection);
            tokio::time::sleep(RETRY_PAUSE).await;
            connection = self.connect().await;
        };
        let result = match result {
            // Not reached this time; but it may have been committed before.
            Err(Error::Unreachable(cause)) if sent => Err(Error::Lost(cause)),
            other => other,
        };
        let took = clock::now() - started;
        loads.iter().for_each(|(stats, load)| stats.landed(load, took));
        self.lock().slots.landed(took);
        match result {
            Ok(outputs) => {
                for (reply, output) in replies.into_iter().zip(outputs) {
                    self.answer(reply, Ok(output));
                }
            }
            Err(error) if error.is_data() && replies.len() > 1 => {
                warn!(op = O::NAME, batch.entries = replies.len(), %error, "batch failed, trying entries one by one");
                let Ok(db) = connection else { return };
                for (operation, reply) in operations.into_iter().zip(replies) {
                    let alone = O::call(&self.context, &db, std::slice::from_ref(&operation)).await;
                    self.answer(reply, alone.and_then(|mut outputs| outputs.pop().ok_or(Error::Stopping)));
                }
            }
            Err(error) => {
                loads.iter().for_each(|(stats, _)| stats.failed());
                warn!(op = O::NAME, batch.entries = replies.len(), %error, "flight failed");
                for (reply, operation) in replies.into_iter().zip(operations) {
                    operation.abandoned(&self.context);
                    self.answer(reply, Err(error.clone()));
                }
            }
        }
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

    fn answer(&self, reply: oneshot::Sender<Result<O::Output, Error>>, result: Result<O::Output, Error>) {
        if let Err(Ok(output)) = reply.send(result) {
            O::orphaned(&self.context, output);
        }
    }
}
