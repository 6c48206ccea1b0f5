//! The pool: connections that are prepared once, opened when they are needed, and handed out idle.
//! [`convoys`] assigns them; [`incarnation`] notices when the server has restarted or failed over.

mod connection;
mod convoys;
mod incarnation;

use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_postgres::Client;

pub use self::connection::Connection;
pub use self::convoys::Priority;
use self::convoys::{Next, Place, Schedule};
use self::incarnation::Incarnations;
use super::backend::{Backend, Enders};
use super::connect::{Connector, error_chain};
use super::error::Error;
use super::procedures::Statements;
use crate::clock;

/// Pause before retrying what a lost connection interrupted.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A flight that has waited this long for others to land leaves anyway.
const CONVOY_PATIENCE: Duration = Duration::from_millis(2);

/// How long a connection whose caller has gone away may take to become idle, before its server process is ended. Most
/// calls take a tenth of that, and a new connection costs as much as a hundred calls.
const SETTLES_WITHIN: Duration = Duration::from_millis(100);

/// A set of connections. Clones share it.
///
/// # Invariants
/// - At most `size` connections are open or being opened.
/// - A connection is used by one convoy, or by one caller of `acquire`, at a time.
/// - It is handed out idle: in no transaction, with no call outstanding. One that comes back in any other state, and
///   does not become idle within a moment, is closed, and a backend that may still be at work for it is ended.
#[derive(Clone)]
pub struct Connections(Arc<Inner>);

struct Inner {
    connector: Connector,
    size: usize,
    deadline: Duration,
    patience: Duration,
    schedule: Mutex<Schedule<Connection, Checkout>>,
    /// Since when no connection could be opened and no open one has been of use.
    down: Mutex<Option<Instant>>,
    incarnations: Incarnations,
    enders: Enders,
}

impl Connections {
    /// `patience`: how long `persist` keeps trying. `waiting_max`: how many callers may wait for a connection of their
    /// own; beyond that, the next is refused.
    pub fn new(
        connector: Connector,
        size: usize,
        flights: usize,
        statement_timeout: Duration,
        patience: Duration,
        waiting_max: usize,
    ) -> Self {
        // The server ends a statement first; this is for when the server itself is gone.
        let deadline = statement_timeout + Duration::from_secs(5);
        let size = size.max(1);
        Self(Arc::new(Inner {
            connector,
            size,
            deadline,
            patience,
            schedule: Mutex::new(Schedule::new(size, flights.max(1), waiting_max)),
            down: Mutex::default(),
            incarnations: Incarnations::default(),
            enders: Enders::default(),
        }))
    }

    /// A place in the next convoy, for a flight of single statements.
    pub async fn join(&self, priority: Priority) -> Result<Checkout, Error> {
        let place = self.lock().join(priority, Connection::is_usable);
        let mut receiver = match place {
            Place::Idle(connection) => return Ok(Checkout { loan: self.loan(*connection), flies: true }),
            Place::Wait(receiver) => receiver,
            Place::New => {
                let loan = self.open().await?;
                self.lock().took_off();
                return Ok(Checkout { loan, flies: true });
            }
        };
        if let Ok(Ok(checkout)) = tokio::time::timeout(CONVOY_PATIENCE, &mut receiver).await {
            return Ok(checkout);
        }
        receiver.close();
        match receiver.try_recv() {
            Ok(checkout) => Ok(checkout),
            Err(_) => self.acquire().await,
        }
    }

    /// A connection that is not shared.
    pub async fn acquire(&self) -> Result<Checkout, Error> {
        loop {
            let place = self.lock().acquire(Connection::is_usable);
            let receiver = match place.ok_or(Error::Full)? {
                Place::Idle(connection) => {
                    return Ok(Checkout { loan: self.loan(*connection), flies: false });
                }
                Place::New => return Ok(Checkout { loan: self.open().await?, flies: false }),
                Place::Wait(receiver) => receiver,
            };
            // An error means that a connection was lost and its place is free: try for it.
            if let Ok(checkout) = receiver.await {
                return Ok(checkout);
            }
        }
    }

    /// Runs a call that is safe to repeat, and retries it while connections get lost, as long as `patience` lasts.
    /// Never runs it while an earlier try may still be at work.
    pub async fn persist<T, F>(&self, call: impl Fn(Checkout) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let started = clock::now();
        let mut before: Option<Backend> = None;
        loop {
            let result = match self.acquire().await {
                Ok(connection) => {
                    let ended = match &before {
                        Some(backend) => backend.end(&connection).await,
                        None => Ok(()),
                    };
                    match ended {
                        Ok(()) => {
                            let (backend, unsettled) = (connection.backend, connection.unsettled_flag());
                            let result = call(connection).await;
                            before = unsettled.load(Relaxed).then_some(backend);
                            result
                        }
                        Err(error) => Err(error),
                    }
                }
                Err(error) => Err(error),
            };
            match result {
                Err(error)
                    if error.may_retry()
                        && clock::now() - started < self.0.patience
                        && self.down_for().is_none_or(|time| time < self.0.patience) =>
                {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    async fn open(&self) -> Result<Arc<Loan>, Error> {
        let opened = self.try_open().await;
        let mut down = self.0.down.lock().unwrap_or_else(PoisonError::into_inner);
        *down = match opened {
            Ok(_) => None,
            Err(_) => Some(down.unwrap_or_else(clock::now)),
        };
        opened
    }

    /// How long the database has been unreachable, as far as attempts have shown.
    pub fn down_for(&self) -> Option<Duration> {
        let down = self.0.down.lock().unwrap_or_else(PoisonError::into_inner);
        down.map(|since| clock::now() - since)
    }

    pub fn is_down(&self) -> bool {
        self.down_for().is_some()
    }

    /// Calls `forget` before a connection is handed out to a server that has crashed since, or has taken over from
    /// another: such a server may not have all that was committed.
    pub fn on_new_incarnation(&self, forget: impl Fn() + Send + Sync + 'static) {
        self.0.incarnations.on_new(forget);
    }

    /// How many incarnations of the server have ended; changes with every new one.
    pub fn incarnation(&self) -> u64 {
        self.0.incarnations.ended()
    }

    async fn try_open(&self) -> Result<Arc<Loan>, Error> {
        let place = Reserved(self);
        let client = self.0.connector.client().await?;
        let connection = self.prepared(client).await?;
        std::mem::forget(place);
        Ok(self.loan(connection))
    }

    async fn prepared(&self, client: Client) -> Result<Connection, Error> {
        let deadline = self.0.deadline;
        // Boxed: the future is large, and hardly ever needed.
        let prepare = tokio::time::timeout(deadline, Box::pin(Statements::prepare(&client)));
        let statements = match prepare.await {
            // No call was made on this connection yet, whatever went wrong.
            Ok(statements) => statements.map_err(|error| Error::Unreachable(error_chain(&error)))?,
            Err(_) => return Err(Error::Unreachable("no answer to prepare".to_owned())),
        };
        let (name, backend) = match tokio::time::timeout(deadline, Backend::of(&client)).await {
            Ok(known) => known.map_err(|error| Error::Unreachable(error.to_string()))?,
            Err(_) => return Err(Error::Unreachable("no answer".to_owned())),
        };
        let incarnation = self.0.incarnations.met(name);
        Ok(Connection::new(client, statements, incarnation, backend, deadline))
    }

    /// A connection outside the pool, for a caller that keeps it. `heard` is notified when something it listens to
    /// arrives.
    pub async fn own(&self, heard: Arc<Notify>) -> Result<Connection, Error> {
        let client = self.0.connector.client_hearing(move || heard.notify_one()).await?;
        self.prepared(client).await
    }

    fn loan(&self, connection: Connection) -> Arc<Loan> {
        Arc::new(Loan { connection: Some(connection), home: self.clone() })
    }

    fn give_back(&self, mut connection: Connection) {
        if connection.was_abandoned() {
            // During shutdown there may be no runtime left to run a task.
            match connection.is_idle() && tokio::runtime::Handle::try_current().is_ok() {
                true => return self.settle(connection),
                false => connection.give_up(),
            }
        }
        if !connection.is_idle() {
            if let Some(backend) = connection.unsettled() {
                self.0.enders.end(backend, &self.0.connector);
            }
            drop(connection);
            return self.lock().free_place();
        }
        *self.0.down.lock().unwrap_or_else(PoisonError::into_inner) = None;
        loop {
            // Handed over after the lock is released, because the end of a checkout takes it as well.
            let next = self.lock().hand_on(connection);
            match next {
                Next::Idle => return,
                Next::Alone(waiter, own) => {
                    match waiter.send(Checkout { loan: self.loan(own), flies: false }) {
                        Ok(()) => return,
                        Err(mut back) => match back.take() {
                            Some(returned) => connection = returned,
                            None => return,
                        },
                    }
                }
                Next::Convoy(flights, shared) => {
                    let loan = self.loan(shared);
                    let checkout = || Checkout { loan: loan.clone(), flies: true };
                    return flights.into_iter().for_each(|flight| drop(flight.send(checkout())));
                }
            }
        }
    }

    /// Waits for the response to an abandoned call: responses come in order, so this waits for the one to an empty
    /// query behind it.
    fn settle(&self, connection: Connection) {
        let home = self.clone();
        self.0.connector.tasks.spawn(async move {
            let settled = tokio::time::timeout(SETTLES_WITHIN, connection.client.simple_query(""));
            if !matches!(settled.await, Ok(Ok(_))) {
                connection.give_up();
            }
            connection.retire_if_worn();
            home.give_back(connection);
        });
    }

    fn lock(&self) -> MutexGuard<'_, Schedule<Connection, Checkout>> {
        self.0.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops idle connections, at shutdown.
    pub fn close(&self) {
        self.lock().drop_idle();
    }

    /// How long a call is retried while connections get lost.
    pub fn patience(&self) -> Duration {
        self.0.patience
    }

    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Open connections that are carrying a flight right now.
    pub fn busy(&self) -> usize {
        self.lock().busy()
    }

    /// Callers that wait for a connection.
    pub fn waiting(&self) -> usize {
        self.lock().waiting()
    }

    pub fn connector(&self) -> &Connector {
        &self.0.connector
    }
}

/// Gives the place back if opening fails or is canceled.
struct Reserved<'a>(&'a Connections);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.lock().free_place();
    }
}

/// A connection, alone or together with the rest of a convoy.
pub struct Checkout {
    loan: Arc<Loan>,
    flies: bool,
}

/// Goes back to the pool when the last user drops it.
struct Loan {
    connection: Option<Connection>,
    home: Connections,
}

impl Checkout {
    /// The connection itself, if no other flight shares it.
    fn take(&mut self) -> Option<Connection> {
        Arc::get_mut(&mut self.loan)?.connection.take()
    }
}

impl Deref for Checkout {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.loan.connection.as_ref().expect("a loan holds its connection until it is dropped")
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if self.flies {
            self.loan.home.lock().landed();
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.home.give_back(connection);
        }
    }
}
