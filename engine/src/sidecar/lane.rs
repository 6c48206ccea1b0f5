//! One lane: arrivals collect while its slots are busy and leave together as soon as one is free. It knows entries and
//! flights, but not what they mean.

mod flight;
mod rest;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::batcher::{Batcher, Limits};
use super::operation::Operation;
use super::slots::Slots;
use super::stats::{LaneCounts, LaneSpread, LaneStats};
use crate::clock;
use crate::db::{Backend, Connections, Error};
use crate::tasks::Tasks;

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
    /// When its first flight started.
    started: Option<Instant>,
    /// How often it was left out of a flight.
    tries: u32,
    /// Whether it may have been committed.
    sent: bool,
    /// The backend where its last try may still run. That must have ended before the next try begins.
    unsettled: Option<Backend>,
}

impl<O: Operation> Ticket<O> {
    fn end(self, operation: &O, error: Error) {
        let error = if self.sent { error.after_unknown_try() } else { error };
        operation.ended(&error);
        _ = self.reply.send(Err(error));
    }
}

/// A reading of a lane's load.
pub struct LanePressure {
    /// Share of its flights that are in the air.
    pub flights: f64,
    pub waiting: usize,
    /// How long the entry that leaves next has waited.
    pub oldest: Duration,
}

pub struct LaneSettings {
    /// With more waiting entries than this, a caller gets an error at once instead of queueing behind them.
    pub waiting_max: usize,
    pub items_max: usize,
    pub bytes_max: usize,
    pub slots: usize,
    pub linger: Duration,
    pub retry_for: Duration,
    /// Whether entries wait while the database cannot be reached; if not, the caller has another way.
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
            stats: O::KINDS.iter().map(|_| LaneStats::default()).collect(),
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
    /// If dropped before its flight leaves, the operation never runs. If dropped later, it runs, and its output is
    /// dropped: an output that holds something must give it back then.
    pub async fn submit(&self, operation: O) -> Result<O::Output, Error> {
        landed(self.enqueue(operation)?).await
    }

    /// Queues at once, in the order of the calls; the output comes through the receiver.
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

    pub fn name(&self) -> &'static str {
        O::NAME
    }

    /// By kind of entry.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, LaneCounts)> {
        O::KINDS.iter().zip(&self.0.stats).map(|(kind, stats)| (*kind, stats.read()))
    }

    pub fn spreads(&self) -> impl Iterator<Item = (&'static str, LaneSpread)> {
        O::KINDS.iter().zip(&self.0.stats).map(|(kind, stats)| (*kind, stats.spread()))
    }
}

impl<O: Operation> Inner<O> {
    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a flight if there should be one more, or makes sure that this is checked again soon.
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

    /// Flies until nothing waits. The batch is taken only once there is a connection, so what arrives while the pool
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

    /// Requests that arrive together are read one after the other, so the first flight waits as long as every look
    /// finds new entries, until it has half of what the last one carried. That takes microseconds when nothing
    /// arrives. With all of them on board, clients that wait for their responses would move in lockstep: the database
    /// would idle while they are answered, and the broker while it works. Later flights leave at once, for the same
    /// reason.
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
}

/// The output of an entry. Without one its flight has panicked, and it is unknown what was committed.
pub async fn landed<T>(answer: oneshot::Receiver<Result<T, Error>>) -> Result<T, Error> {
    answer.await.unwrap_or(Err(Error::Unknown))
}
