//! The message plane's own connections: prepared once, handed to one flight at a time, the more urgent lane first.

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

/// Who goes first when connections are scarce: finishing work before taking more on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    Ack,
    Push,
    Pop,
    Background,
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
/// # Invariants
/// - At most `size` connections are open or being opened.
/// - A connection is used by one flight at a time.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    connector: Connector,
    size: usize,
    deadline: Duration,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    open: usize,
    waiting: [VecDeque<oneshot::Sender<Connection>>; 4],
}

impl Connections {
    /// `patience`: how long `persist` tries.
    pub fn new(connector: Connector, size: usize, statement_timeout: Duration, patience: Duration) -> Self {
        // The server ends a statement first; this is for when the server itself is gone.
        let deadline = statement_timeout + Duration::from_secs(5);
        Self(Arc::new(Inner { connector, size: size.max(1), deadline, patience, state: Mutex::default() }))
    }

    pub async fn acquire(&self, priority: Priority) -> Result<Checkout, Error> {
        loop {
            let waiting = {
                let mut state = self.lock();
                while let Some(connection) = state.idle.pop() {
                    if connection.is_usable() {
                        return Ok(self.checkout(connection));
                    }
                    state.open -= 1;
                }
                if state.open < self.0.size {
                    state.open += 1;
                    None
                } else {
                    let (sender, receiver) = oneshot::channel();
                    state.waiting[priority as usize].push_back(sender);
                    Some(receiver)
                }
            };
            let Some(receiver) = waiting else { return self.open().await };
            // An error means that a connection was lost and its place is free: try for it.
            if let Ok(connection) = receiver.await {
                return Ok(self.checkout(connection));
            }
        }
    }

    /// Runs a call that may run twice, and again while connections get lost, as long as patience lasts.
    pub async fn persist<T, F>(&self, priority: Priority, call: impl Fn(Checkout) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let started = clock::now();
        loop {
            let result = match self.acquire(priority).await {
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
        let place = Place(self);
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
        Checkout { connection: Some(connection), home: self.clone() }
    }

    fn give_back(&self, connection: Connection) {
        if !connection.is_usable() {
            return self.free_place();
        }
        let mut connection = connection;
        let mut state = self.lock();
        for queue in &mut state.waiting {
            while let Some(waiter) = queue.pop_front() {
                match waiter.send(connection) {
                    Ok(()) => return,
                    Err(returned) => connection = returned,
                }
            }
        }
        state.idle.push(connection);
    }

    /// Lets every waiter try for the place: the first opens a connection or reports why it cannot.
    fn free_place(&self) {
        let mut state = self.lock();
        state.open -= 1;
        state.waiting.iter_mut().for_each(VecDeque::clear);
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
struct Place<'a>(&'a Connections);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.free_place();
    }
}

/// A connection for one flight; it goes home when dropped.
pub struct Checkout {
    connection: Option<Connection>,
    home: Connections,
}

impl Deref for Checkout {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("a checkout holds its connection until it is dropped")
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.home.give_back(connection);
        }
    }
}
