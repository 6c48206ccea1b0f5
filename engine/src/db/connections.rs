//! The message plane's own connections: prepared once, and shared by the flights that leave at the same time.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::connect::Connector;
use super::error::Error;
use super::procedures::Statements;
use crate::clock;

/// Before what a lost connection interrupted is tried again.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A flight that has waited this long for others to land leaves beside them.
const CONVOY_PATIENCE: Duration = Duration::from_millis(2);

/// Who goes first: finishing work before taking more on, and what may take long last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    Ack,
    Push,
    Pop,
    Fetch,
}

pub struct Connection {
    pub client: tokio_postgres::Client,
    pub statements: Statements,
    deadline: Duration,
    broken: AtomicBool,
}

impl Connection {
    /// Waits no longer than the deadline; a connection that missed one is not used again.
    pub async fn within<T>(
        &self,
        procedure: &'static str,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let result = match tokio::time::timeout(self.deadline, call).await {
            Ok(result) => result.map_err(|error| Error::from_postgres(procedure, error)),
            Err(_) => Err(Error::Lost(format!("{procedure}: no answer within {:?}", self.deadline))),
        };
        if let Err(Error::Lost(_)) = result {
            self.broken.store(true, Relaxed);
        }
        result
    }

    /// Not to be used again, for example because it is stuck in a transaction.
    pub fn spoil(&self) {
        self.broken.store(true, Relaxed);
    }

    fn is_usable(&self) -> bool {
        !self.broken.load(Relaxed) && !self.client.is_closed()
    }
}

/// The set of connections. Clones share it.
///
/// The database spends a quarter of a millisecond on a flight before it looks at the first item, most of it waiting for
/// the disk and for the next message to arrive. So flights of different lanes leave as a convoy: one after the other on
/// one connection, without a pause in between, while everything that arrives meanwhile collects for the next convoy.
/// Beyond `convoys` of them a flight waits, but not for long: one slow flight must not hold up the others.
///
/// # Invariants
/// - At most `size` connections are open or being opened.
/// - A connection is used by one convoy, or by one caller of `acquire`, at a time.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    connector: Connector,
    size: usize,
    convoys: usize,
    deadline: Duration,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    open: usize,
    /// Flights that wait for the next convoy, by priority.
    flights: [VecDeque<oneshot::Sender<Checkout>>; 4],
    /// Out of patience, or in need of a connection of their own: the next one is theirs alone.
    alone: VecDeque<oneshot::Sender<Checkout>>,
}

enum Place {
    Idle(Box<Connection>),
    /// Counted as open already.
    New,
    Full,
}

impl State {
    /// A connection, or the right to open one, while fewer than `limit` are in use.
    fn take(&mut self, limit: usize) -> Place {
        if self.open - self.idle.len() >= limit {
            return Place::Full;
        }
        while let Some(connection) = self.idle.pop() {
            if connection.is_usable() {
                return Place::Idle(Box::new(connection));
            }
            self.open -= 1;
        }
        self.open += 1;
        Place::New
    }

    /// Who gets a connection that has come back. `crowded`: enough others are still in use.
    fn next(&mut self, crowded: bool) -> Vec<oneshot::Sender<Checkout>> {
        match self.alone.pop_front() {
            Some(waiter) => vec![waiter],
            None if crowded => Vec::new(),
            None => self.flights.iter_mut().flat_map(|queue| queue.drain(..)).collect(),
        }
    }
}

impl Connections {
    /// `patience`: how long `persist` tries.
    pub fn new(
        connector: Connector,
        size: usize,
        convoys: usize,
        statement_timeout: Duration,
        patience: Duration,
    ) -> Self {
        // The server ends a statement first; this is for when the server itself is gone.
        let deadline = statement_timeout + Duration::from_secs(5);
        let (size, convoys) = (size.max(1), convoys.max(1));
        Self(Arc::new(Inner { connector, size, convoys, deadline, patience, state: Mutex::default() }))
    }

    /// A place in the next convoy, for a flight of single statements.
    pub async fn join(&self, priority: Priority) -> Result<Checkout, Error> {
        let receiver = {
            let mut state = self.lock();
            match state.take(self.0.convoys.min(self.0.size)) {
                Place::Idle(connection) => return Ok(self.checkout(*connection)),
                Place::New => None,
                Place::Full => {
                    let (sender, receiver) = oneshot::channel();
                    state.flights[priority as usize].push_back(sender);
                    Some(receiver)
                }
            }
        };
        let Some(mut receiver) = receiver else { return self.open().await };
        if let Ok(Ok(checkout)) = tokio::time::timeout(CONVOY_PATIENCE, &mut receiver).await {
            return Ok(checkout);
        }
        receiver.close();
        match receiver.try_recv() {
            Ok(checkout) => Ok(checkout),
            Err(_) => self.acquire().await,
        }
    }

    /// A connection of one's own.
    pub async fn acquire(&self) -> Result<Checkout, Error> {
        loop {
            let receiver = {
                let mut state = self.lock();
                match state.take(self.0.size) {
                    Place::Idle(connection) => return Ok(self.checkout(*connection)),
                    Place::New => None,
                    Place::Full => {
                        let (sender, receiver) = oneshot::channel();
                        state.alone.push_back(sender);
                        Some(receiver)
                    }
                }
            };
            let Some(receiver) = receiver else { return self.open().await };
            // An error means that a connection was lost and its place is free: try for it.
            if let Ok(checkout) = receiver.await {
                return Ok(checkout);
            }
        }
    }

    /// Runs a call that may run twice, and again while connections get lost, as long as patience lasts.
    pub async fn persist<T, F>(&self, call: impl Fn(Checkout) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let started = clock::now();
        loop {
            let result = match self.acquire().await {
                Ok(connection) => call(connection).await,
                Err(error) => Err(error),
            };
            match result {
                Err(error) if error.may_retry() && clock::now() - started < self.0.patience => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    async fn open(&self) -> Result<Checkout, Error> {
        let place = Reserved(self);
        let client = self.0.connector.client().await?;
        let prepare = tokio::time::timeout(self.0.deadline, Statements::prepare(&client));
        let statements = match prepare.await {
            Ok(statements) => statements.map_err(|error| Error::from_postgres("prepare", error))?,
            Err(_) => return Err(Error::Unreachable("no answer to prepare".to_owned())),
        };
        let connection =
            Connection { client, statements, deadline: self.0.deadline, broken: AtomicBool::new(false) };
        std::mem::forget(place);
        Ok(self.checkout(connection))
    }

    fn checkout(&self, connection: Connection) -> Checkout {
        Checkout(Arc::new(Loan { connection: Some(connection), home: self.clone() }))
    }

    fn give_back(&self, connection: Connection) {
        if !connection.is_usable() {
            return self.free_place();
        }
        let waiters = {
            let mut state = self.lock();
            let crowded = state.open - state.idle.len() > self.0.convoys;
            let waiters = state.next(crowded);
            if waiters.is_empty() {
                state.idle.push(connection);
                return;
            }
            waiters
        };
        // Not under the lock: should nobody be there any more, this comes back here.
        let checkout = self.checkout(connection);
        for waiter in waiters {
            _ = waiter.send(checkout.clone());
        }
    }

    /// Lets every waiter try for the place: the first opens a connection or reports why it cannot.
    fn free_place(&self) {
        let mut state = self.lock();
        state.open -= 1;
        state.flights.iter_mut().for_each(VecDeque::clear);
        state.alone.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops idle connections, for the end.
    pub fn close(&self) {
        let mut state = self.lock();
        state.open -= state.idle.len();
        state.idle.clear();
    }

    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Open connections that are carrying a flight right now.
    pub fn busy(&self) -> usize {
        let state = self.lock();
        state.open - state.idle.len()
    }

    pub fn connector(&self) -> &Connector {
        &self.0.connector
    }
}

/// Gives the place back if opening fails or is cancelled.
struct Reserved<'a>(&'a Connections);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.free_place();
    }
}

/// A connection on loan, alone or together with the rest of a convoy; it goes home with the last of them.
#[derive(Clone)]
pub struct Checkout(Arc<Loan>);

struct Loan {
    connection: Option<Connection>,
    home: Connections,
}

impl Deref for Checkout {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.connection.as_ref().expect("a loan holds its connection until it is dropped")
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.home.give_back(connection);
        }
    }
}
